"""What computes in which precision, and the scale of float16 gradients."""

import math

import pytest
import torch

from pdecnn.errors import ConfigError
from pdecnn.learning.precision import (
    PRECISIONS,
    LossScale,
    autocast,
    compute_scores,
    resolve_precision,
)
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


YES, NO = torch.tensor(True), torch.tensor(False)


def after(scale, *, finite):
    """Whether the scale is exhausted after a step that was finite or overflowed."""
    return bool(scale.update_(accepted=YES if finite else NO, overflowed=NO if finite else YES))


def state(scale):
    return float(scale.value), int(scale.steps_since_change)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "auto"])
def test_only_float16_is_scaled(precision):
    scale = LossScale(precision)
    assert not scale.active
    assert state(scale) == (1.0, 0)


def test_the_scale_is_halved_by_an_overflow_and_doubled_after_a_while():
    scale = LossScale("float16")
    assert state(scale) == (2.0**16, 0)
    assert not after(scale, finite=False)
    assert state(scale) == (2.0**15, 0)
    for _ in range(scale.growth_interval - 1):
        after(scale, finite=True)
    assert state(scale) == (2.0**15, scale.growth_interval - 1)
    after(scale, finite=True)
    assert state(scale) == (2.0**16, 0)


def test_an_overflow_starts_the_wait_anew():
    scale = LossScale("float16")
    for _ in range(scale.growth_interval - 1):
        after(scale, finite=True)
    after(scale, finite=False)
    after(scale, finite=True)
    assert state(scale) == (2.0**15, 1)


def test_a_step_that_is_neither_leaves_the_scale_alone():
    scale = LossScale("float16")
    after(scale, finite=True)
    assert not bool(scale.update_(accepted=NO, overflowed=NO))
    assert state(scale) == (2.0**16, 1)


def test_an_overflow_at_the_smallest_scale_is_the_end():
    scale = LossScale("float16")
    for _ in range(16):
        assert not after(scale, finite=False)
    assert float(scale.value) == scale.smallest == 1.0
    assert after(scale, finite=False)
    assert float(scale.value) == 1.0
    assert "training.precision=bfloat16" in scale.exhausted_message
    assert "\n" not in scale.exhausted_message


def test_auto_is_float32_on_a_cpu():
    assert resolve_precision("auto", CPU) == "float32"
    assert not autocast("auto", CPU)._enabled
