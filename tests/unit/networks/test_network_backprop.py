"""Backpropagation through whole networks: every mode has the scores and gradients of stored."""

import copy

import pytest
import torch
from torch import nn

from pdecnn.errors import ConfigError
from pdecnn.pde import Block, Grid
from tests.unit.networks.registered import DYNAMICS, HYPERBOLIC, images_for, make, trained_a_little


@pytest.mark.parametrize("name", DYNAMICS)
def test_checkpointed_is_stored_bit_for_bit(name):
    stored, other = trained_a_little(name), trained_a_little(name, backprop="checkpointed")
    other.load_state_dict(stored.state_dict())
    images = images_for(stored, 8, 8)
    results = []
    for network in (stored, other):
        scores = network(images)
        scores.square().sum().backward()
        results.append([scores, *(weight.grad for weight in network.parameters())])
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("name", ["parabolic_digits", "resnet_digits"])
def test_checkpointing_counts_the_statistics_of_batch_norm_once(name):
    networks = [make(name, normalization="batch", backprop=b) for b in ("stored", "checkpointed")]
    for network in networks:
        network(images_for(network, 8, 8)).square().sum().backward()
    stored, other = (network.state_dict() for network in networks)
    for key, tensor in stored.items():
        assert torch.equal(tensor, other[key]), key


@pytest.mark.parametrize("name", HYPERBOLIC)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-4)])
def test_reversible_is_stored(name, dtype, tolerance):
    stored = trained_a_little(name, activation="tanh").to(dtype)
    other = make(name, activation="tanh", backprop="reversible").to(dtype)
    other.load_state_dict(stored.state_dict())
    images = images_for(stored, 8, 8)
    scores = [network(images) for network in (stored, other)]
    assert torch.equal(*scores)
    for result in scores:
        result.square().sum().backward()
    pairs = zip(stored.named_parameters(), other.named_parameters(), strict=True)
    for (parameter_name, one), (_, two) in pairs:
        error = (one.grad - two.grad).norm() / one.grad.norm()
        assert error < tolerance, f"{parameter_name}: {error}"


@pytest.mark.parametrize("name", HYPERBOLIC)
def test_exact_is_stored_within_the_grid(name):
    stored = trained_a_little(name).eval()
    exact = make(name, backprop="exact").eval()
    exact.load_state_dict(stored.state_dict())
    images = images_for(stored, 8, 8)
    scores = stored(images)
    difference = (exact(images) - scores).abs().max()
    assert 0 < difference < 0.02 * scores.abs().max()


@pytest.mark.parametrize("name", HYPERBOLIC)
def test_exact_has_the_gradient_of_stored_on_the_same_grid(name):
    exact = trained_a_little(name, backprop="exact")
    stored = copy.deepcopy(exact)
    stored.blocks = nn.ModuleList(
        Block(block.layers, block.integrator, step_size=block.step_size, grid_bits=12)
        for block in stored.blocks
    )
    images = images_for(stored, 8, 8)
    for network in (exact, stored):
        network.zero_grad()
        network(images).square().sum().backward()
    pairs = zip(exact.named_parameters(), stored.named_parameters(), strict=True)
    for (parameter_name, one), (_, two) in pairs:
        assert torch.equal(one.grad, two.grad), parameter_name


@pytest.mark.parametrize(
    "name", [f"{d}_{s}" for d in ("hamiltonian", "second_order") for s in ("digits", "cifar10")]
)
@pytest.mark.parametrize("backprop", ["stored", "reversible", "exact"])
def test_reverse_after_propagate_is_the_identity(name, backprop):
    network = make(name, backprop=backprop)
    for block, width in zip(network.blocks, network.config.channels, strict=False):
        features = torch.randn(2, width, 6, 7)
        with torch.no_grad():
            back = block.reverse(block.propagate(features))
        if backprop == "exact":
            assert torch.equal(back, Grid().round(features))
        else:
            assert (back - features).norm() < 1e-5 * features.norm()


@pytest.mark.parametrize("name", ["parabolic_digits", "resnet_digits"])
def test_parabolic_blocks_cannot_be_reversed(name):
    block = make(name).blocks[0]
    with pytest.raises(ConfigError, match="cannot be undone"):
        block.reverse(block.propagate(torch.randn(1, 16, 4, 4)))


@pytest.mark.parametrize(
    ("name", "backprop"),
    [(name, backprop) for name in DYNAMICS for backprop in ("stored", "checkpointed")]
    + [(name, backprop) for name in HYPERBOLIC for backprop in ("reversible", "exact")],
)
def test_autocast_to_bfloat16(name, backprop):
    network = trained_a_little(name, backprop=backprop)
    images = images_for(network, 8, 8)
    with torch.no_grad():
        expected = network(images)
    with torch.autocast("cpu", torch.bfloat16):
        scores = network(images)
    scores.float().square().sum().backward()
    torch.testing.assert_close(scores.float(), expected, rtol=0.1, atol=0.1)
    for parameter_name, weight in network.named_parameters():
        assert weight.grad is not None, f"{parameter_name} has no gradient"
        assert weight.grad.dtype == torch.float32
        assert weight.grad.isfinite().all(), parameter_name


@pytest.mark.parametrize("name", HYPERBOLIC)
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("backprop", ["stored", "checkpointed", "reversible", "exact"])
def test_no_gradients_wanted(name, context, backprop):
    network = trained_a_little(name, backprop=backprop).eval()
    images = images_for(network, 8, 8)
    with context():
        scores = network(images)
    assert not scores.requires_grad
    torch.testing.assert_close(scores, network(images).detach())


@pytest.mark.parametrize("name", HYPERBOLIC)
@pytest.mark.parametrize("backprop", ["reversible", "exact"])
def test_second_derivatives_through_reversal_are_refused(name, backprop):
    network = make(name, backprop=backprop)
    images = images_for(network, 8, 8).requires_grad_()
    with pytest.raises(RuntimeError, match="use backprop='stored' or 'checkpointed'"):
        torch.autograd.grad(network(images).square().sum(), images, create_graph=True)


@pytest.mark.parametrize("backprop", ["reversible", "exact"])
@pytest.mark.parametrize("name", ["hamiltonian_digits", "second_order_denoising"])
def test_a_network_that_runs_backwards_says_its_shapes_on_the_meta_device(name, backprop):
    with torch.device("meta"):
        network = make(name, backprop=backprop)
    images = torch.empty(2, 1, 8, 8, device="meta", requires_grad=True)
    scores = network(images)
    scores.sum().backward()
    assert scores.shape == make(name)(torch.zeros(2, 1, 8, 8)).shape
    assert images.grad.shape == images.shape
