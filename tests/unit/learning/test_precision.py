"""What computes in which precision."""

import math

import pytest
import torch

from pdecnn.errors import ConfigError
from pdecnn.learning import TrainingConfig
from pdecnn.learning.metrics import (
    PRECISIONS,
    autocast,
    compute_scores,
    resolve_precision,
)
from tests.unit.learning.trainings import make_network

CPU = torch.device("cpu")
BAD_PRECISIONS = [
    "float8",
    "double",
    "",
    None,
    16,
    16.0,
    True,
    math.nan,
    ["float32"],
    {},
    10**400,
]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_autocast_computes_in_the_precision(precision):
    images, stencil = torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3)
    with autocast(precision, CPU):
        assert torch.conv2d(images, stencil).dtype == PRECISIONS[precision]
    assert torch.conv2d(images, stencil).dtype == torch.float32


def test_float32_leaves_float64_alone():
    with autocast("float32", CPU):
        images = torch.ones(1, 1, 4, 4, dtype=torch.float64)
        assert torch.conv2d(images, images).dtype == torch.float64


@pytest.mark.parametrize("precision", PRECISIONS)
def test_scores_are_float32_whatever_layers_compute_in(precision):
    network, seen = make_network().eval(), []
    network.opening.convolution.register_forward_hook(lambda *a: seen.append(a[2].dtype))
    scores = compute_scores(network, torch.randn(3, 1, 8, 8), precision)
    assert scores.dtype == torch.float32
    assert seen == [PRECISIONS[precision]]
    scores.sum().backward()
    assert all(weight.grad.dtype == torch.float32 for weight in network.parameters())


def test_float32_scores_are_the_networks():
    network, images = make_network().eval(), torch.randn(3, 1, 8, 8)
    assert torch.equal(compute_scores(network, images, "float32"), network(images))


@pytest.mark.parametrize("precision", BAD_PRECISIONS, ids=lambda value: str(value)[:9])
def test_unknown_precisions_are_refused(precision):
    with pytest.raises(ConfigError, match="unknown precision"):
        autocast(precision, CPU)


def test_auto_is_float32_on_a_cpu():
    assert resolve_precision("auto", CPU) == "float32"
    assert not autocast("auto", CPU)._enabled


def test_promise_19_float16_is_refused():
    wanted = r"unknown training\.precision 'float16'; did you mean 'bfloat16'"
    with pytest.raises(ConfigError, match=wanted):
        TrainingConfig(precision="float16")
