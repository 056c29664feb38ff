"""The kink trap: where pre-activations are exactly 0, `reversible` is wrong and `exact` right.

A reconstructed zero is off by rounding, so ReLU's slope there flips from 0 to 1 and the TV norm
multiplies what passes by 1/sqrt(epsilon) = 32. It happens at initialisation (zero biases) to
images with regions of zeros.
"""

import pytest
import torch

from pdecnn.pde import Block, SymmetricLayer
from tests.blocks import (
    every_reversible,
    gradients_of,
    make_features,
    relative_error,
)

CHANNELS, SIZE = 8, (12, 12)


def features_with_zeros(integrator, dtype):
    """Zeros where a layer first looks: the second half of the channels, or most pixels."""
    features = make_features(channels=CHANNELS, size=SIZE, dtype=dtype)
    if integrator.name == "verlet":
        features[:, CHANNELS // 2 :] = 0
        return features
    spots = torch.zeros(SIZE, dtype=dtype)
    spots[::4, ::4] = 1
    return features * spots


def fresh_block(integrator, dtype, **options):
    """As at initialisation: random stencils, scale 1, bias 0, ReLU, TV norm."""
    torch.manual_seed(0)
    layers = [
        SymmetricLayer(integrator.layer_channels(CHANNELS))
        for _ in range(3 * integrator.layers_per_step)
    ]
    return Block(layers, integrator, step_size=1.0, **options).to(dtype)


@every_reversible
@pytest.mark.parametrize(
    ("dtype", "rounding"), [(torch.float64, 1e-13), (torch.float32, 1e-5)], ids=str
)
def test_reversible_gradients_are_wrong_though_the_state_is_right(integrator, dtype, rounding):
    features = features_with_zeros(integrator, dtype)
    reversible = fresh_block(integrator, dtype, backprop="reversible")
    with torch.no_grad():
        back = reversible.reverse(reversible.propagate(features))
    assert relative_error(back, features) <= rounding
    expected = gradients_of(fresh_block(integrator, dtype), features)["features"]
    found = gradients_of(reversible, features)["features"]
    assert relative_error(found, expected) > 1


@every_reversible
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_exact_gradients_are_right(integrator, dtype):
    features = features_with_zeros(integrator, dtype)
    expected = gradients_of(fresh_block(integrator, dtype, grid_bits=12), features)
    found = gradients_of(fresh_block(integrator, dtype, backprop="exact"), features)
    for name in expected:
        assert torch.equal(found[name], expected[name]), name


@every_reversible
def test_checkpointed_gradients_are_right(integrator):
    features = features_with_zeros(integrator, torch.float64)
    expected = gradients_of(fresh_block(integrator, torch.float64), features)
    found = gradients_of(fresh_block(integrator, torch.float64, backprop="checkpointed"), features)
    for name in expected:
        assert torch.equal(found[name], expected[name]), name
