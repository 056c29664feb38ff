"""Derivatives against finite differences: layers, integrators, and the three smooth modes."""

import pytest
import torch

from pdecnn.pde import INTEGRATORS, ResidualLayer, SymmetricLayer
from tests.blocks import (
    IRREVERSIBLE,
    REVERSIBLE,
    integrator_name,
    make_block,
    make_features,
    randomize_,
)

SIZES = {1: (3,), 2: (3, 2), 3: (2, 2, 2)}


def gradcheck(module, features):
    """Compare the derivatives by the features and by every parameter.

    gradcheck perturbs its inputs in place, so the parameters need not be passed on.
    """
    weights = list(module.parameters())
    return torch.autograd.gradcheck(lambda features, *_: module(features), (features, *weights))


@pytest.mark.parametrize("layer_class", [SymmetricLayer, ResidualLayer])
@pytest.mark.parametrize("dimension", [1, 2, 3])
@pytest.mark.parametrize("options", [{"normalization": "none"}, {"normalization": "tv"}])
def test_layers(layer_class, dimension, options):
    layer = layer_class(2, dimension=dimension, activation="tanh", hidden_channels=1, **options)
    randomize_(layer.double(), 0)
    features = make_features(
        batch=1, channels=2, dimension=dimension, size=SIZES[dimension], requires_grad=True
    )
    assert gradcheck(layer, features)


@pytest.mark.parametrize(
    ("normalization", "affine"), [("none", True), ("tv", False), ("batch", True)]
)
def test_layers_with_other_normalizations(normalization, affine):
    layer = SymmetricLayer(
        2, dimension=1, activation="tanh", normalization=normalization, affine=affine
    )
    randomize_(layer.double(), 0)
    features = make_features(channels=2, dimension=1, size=(4,), requires_grad=True)
    if normalization == "batch":
        layer.normalization.track_running_stats = False
    assert gradcheck(layer, features)


COMBINATIONS = [
    *((integrator, mode) for integrator in INTEGRATORS for mode in ("stored", "checkpointed")),
    *((integrator, "reversible") for integrator in REVERSIBLE),
]
every_combination = pytest.mark.parametrize(
    ("integrator", "backprop"), COMBINATIONS, ids=integrator_name
)


@every_combination
@pytest.mark.parametrize("share_weights", [False, True], ids=["separate", "shared"])
@pytest.mark.parametrize("normalization", ["none", "tv", "batch"])
def test_blocks(integrator, backprop, share_weights, normalization):
    block = make_block(
        integrator,
        backprop=backprop,
        share_weights=share_weights,
        normalization=normalization,
        dimension=1,
        num_steps=2,
        step_size=0.7,
    )
    batch = 2 if normalization == "batch" else 1
    features = make_features(batch=batch, dimension=1, size=(3,), requires_grad=True)
    assert gradcheck(block, features)


@pytest.mark.parametrize("integrator", REVERSIBLE, ids=integrator_name)
def test_both_components_of_the_state(integrator):
    """Not only the features: the velocity has derivatives too."""
    block = make_block(integrator, backprop="reversible", dimension=1)
    features = make_features(batch=1, dimension=1, size=(2,), requires_grad=True)
    assert torch.autograd.gradcheck(block.propagate, features)


@pytest.mark.slow
@every_combination
@pytest.mark.parametrize("dimension", [2, 3])
def test_blocks_at_paper_depth(integrator, backprop, dimension):
    block = make_block(integrator, channels=2, backprop=backprop, dimension=dimension)
    features = make_features(
        batch=1, channels=2, dimension=dimension, size=SIZES[dimension], requires_grad=True
    )
    assert gradcheck(block, features)


@pytest.mark.parametrize("integrator", IRREVERSIBLE, ids=integrator_name)
def test_second_derivatives_through_stored(integrator):
    block = make_block(integrator, dimension=1, num_steps=2)
    features = make_features(batch=1, dimension=1, size=(2,), requires_grad=True)
    assert torch.autograd.gradgradcheck(block, features)
