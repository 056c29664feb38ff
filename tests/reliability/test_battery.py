"""Promise 28: what theory says of every registered model, tried on every one of them."""

from dataclasses import replace

import pytest
import torch

import pdecnn
from pdecnn.diagnostics import guaranteed_bound
from pdecnn.networks.network import Network
from pdecnn.pde import Block, Grid, SymmetricLayer

SIZES = {1: (9,), 2: (5, 4), 3: (3, 4, 3)}


def make(name, **overrides):
    """A registered model in float64 with weights away from their start, and its image size."""
    network = pdecnn.create_model(name, num_steps=2, **overrides).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in network.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    return network, SIZES[network.config.dimension]


def random(channels, size, number=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(number, channels, *size, generator=generator, dtype=torch.float64)


def has_symmetric_layers(name):
    return pdecnn.create_model(name, channels=(8, 8)).config.layer == "symmetric"


def is_reversible(name):
    return pdecnn.create_model(name, channels=(8, 8)).blocks[0].integrator.reversible


# Those with stable steps are tried in tests/unit/networks/test_bounded.py, denoisers and
# segmenters in test_fields.py and test_segmentation_step.py; tuned ones have the same networks.
OTHERS = ("stable", "denoising", "tuned", "segmentation")
MODELS = [name for name in pdecnn.list_models() if not any(word in name for word in OTHERS)]
SYMMETRIC = [name for name in MODELS if has_symmetric_layers(name)]
REVERSIBLE = [name for name in MODELS if is_reversible(name)]
PARABOLIC = [name for name in SYMMETRIC if name not in REVERSIBLE]


def test_promise_28_every_registered_model_is_tried():
    assert len(MODELS) >= 28
    assert {name.rpartition("_")[0] for name in set(MODELS) - set(SYMMETRIC)} == {"resnet"}
    assert {name.rpartition("_")[0] for name in PARABOLIC} == {"parabolic"}
    assert len(REVERSIBLE) == 2 * len(PARABOLIC)


@pytest.mark.parametrize("name", MODELS)
def test_promise_28_adjoint_identity(name):
    """<K x, y> = <x, K^T y> for every convolution of every block."""
    network, size = make(name)
    for block in network.blocks:
        for layer in block.layers:
            operator = layer.convolution
            x, y = random(operator.in_channels, size), random(operator.out_channels, size, seed=1)
            left, right = (operator(x) * y).sum(), (x * operator.adjoint(y)).sum()
            torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-8)


@pytest.mark.parametrize("name", SYMMETRIC)
def test_promise_28_without_normalisation_f_sym_is_monotone(name):
    """<F(x) - F(y), x - y> <= 0."""
    network, size = make(name, normalization="none")
    for block in network.blocks:
        layer = block.layers[0]
        assert isinstance(layer, SymmetricLayer)
        x, y = random(layer.channels, size), random(layer.channels, size, seed=1)
        with torch.no_grad():
            product = float(((layer(x) - layer(y)) * (x - y)).sum())
        assert product < 0


@pytest.mark.parametrize("name", PARABOLIC)
def test_promise_28_parabolic_blocks_do_not_expand_below_the_guaranteed_bound(name):
    network, size = make(name, normalization="none")
    for block in network.blocks:
        bounds = [
            guaranteed_bound(block.integrator, step, size, dense_size=0) for step in block.steps
        ]
        assert 0 < min(bounds) < float("inf")
        safe = Block(block.layers, block.integrator, step_size=min(bounds))
        x, y = (
            random(block.layers[0].channels, size),
            random(block.layers[0].channels, size, seed=1),
        )
        with torch.no_grad():
            distance = float((safe(x) - safe(y)).norm())
            wild = Block(block.layers, block.integrator, step_size=1000 * min(bounds))
            assert float((wild(x) - wild(y)).norm()) > float((x - y).norm())
        assert distance <= float((x - y).norm()) * (1 + 1e-12)


@pytest.mark.parametrize("name", REVERSIBLE)
def test_promise_28_reverse_after_forward_is_the_identity(name):
    network, size = make(name)
    exact = Network(replace(network.config, backprop="exact")).double()
    exact.load_state_dict(network.state_dict())
    for block, on_grid in zip(network.blocks, exact.blocks, strict=True):
        channels = block.integrator.block_channels(block.layers[0].channels)
        features = random(channels, size)
        with torch.no_grad():
            back = block.reverse(block.propagate(features))
            assert (back - features).norm() < 1e-12 * features.norm()
            assert torch.equal(on_grid.reverse(on_grid.propagate(features)), Grid().round(features))


@pytest.mark.parametrize("name", sorted(set(MODELS) - set(REVERSIBLE)))
def test_promise_28_what_cannot_be_reversed_says_so(name):
    network, size = make(name, channels=(8, 8))
    block = network.blocks[0]
    with pytest.raises(Exception, match="cannot be undone"):
        block.reverse(block.propagate(random(8, size)))
