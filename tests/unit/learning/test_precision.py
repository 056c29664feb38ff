"""What computes in which precision, and the scale of float16 gradients."""

import math

import pytest
import torch

from pdecnn.errors import ConfigError, DivergedError
from pdecnn.learning.precision import PRECISIONS, LossScale, autocast, compute_scores
from tests.unit.learning.trainings import make_network

CPU = torch.device("cpu")
BAD_PRECISIONS = ["float8", "double", "", None, 16, 16.0, True, math.nan, ["float32"], {}, 10**400]


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
        LossScale(precision)
    with pytest.raises(ConfigError, match="unknown precision"):
        autocast(precision, CPU)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_only_float16_is_scaled(precision):
    scale = LossScale(precision)
    for finite in (True, False, False):
        scale.update(finite=finite)
    assert (scale.active, scale.value, scale.steps_since_change) == (False, 1.0, 0)


def test_the_scale_is_halved_by_an_overflow_and_doubled_after_a_while():
    scale = LossScale("float16")
    assert scale.value == 2.0**16
    scale.update(finite=False)
    assert scale.value == 2.0**15
    for _ in range(scale.growth_interval - 1):
        scale.update(finite=True)
    assert scale.value == 2.0**15
    scale.update(finite=True)
    assert scale.value == 2.0**16
    assert scale.steps_since_change == 0


def test_an_overflow_starts_the_wait_anew():
    scale = LossScale("float16")
    for _ in range(scale.growth_interval - 1):
        scale.update(finite=True)
    scale.update(finite=False)
    scale.update(finite=True)
    assert (scale.value, scale.steps_since_change) == (2.0**15, 1)


def test_an_overflow_at_the_smallest_scale_is_the_end():
    scale = LossScale("float16")
    for _ in range(16):
        scale.update(finite=False)
    assert scale.value == scale.smallest == 1.0
    with pytest.raises(DivergedError, match=r"training\.precision=bfloat16") as caught:
        scale.update(finite=False)
    assert "\n" not in str(caught.value)
    assert scale.value == 1.0
