"""Backward uses the weights and buffers of its forward pass, though the layers hold others."""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrizations

from pdecnn.pde import Block
from tests.blocks import (
    both_reversing_modes,
    every_combination,
    every_reversible,
    gradients_of,
    largest_relative_error,
    make_block,
    make_features,
    relative_error,
)


def stored_like(integrator, backprop, **options):
    """The same network in mode `stored`."""
    return make_block(integrator, grid_bits=12 if backprop == "exact" else None, **options)


def gradients_with(block, weights, features=None):
    """The gradients of the given weights, which stand in for the block's, and of the features."""
    leaf = (make_features() if features is None else features).requires_grad_()
    outputs = functional_call(block, weights, (leaf,))
    seed_gradient = torch.cos(torch.arange(outputs.numel()).double()).reshape(outputs.shape)
    trained = {name: weight for name, weight in weights.items() if weight.requires_grad}
    found = torch.autograd.grad(outputs, (leaf, *trained.values()), seed_gradient.to(outputs.dtype))
    return dict(zip(("features", *trained), found, strict=True))


@every_combination
@pytest.mark.parametrize("share_weights", [False, True], ids=["separate", "shared"])
def test_weights_that_stand_in_for_the_layers_own_get_their_gradient(
    integrator, backprop, share_weights
):
    found = []
    for block in (
        make_block(integrator, backprop=backprop, num_steps=5, share_weights=share_weights),
        stored_like(integrator, backprop, num_steps=5, share_weights=share_weights),
    ):
        weights = {
            name: (1.5 * weight.detach() + 0.1).requires_grad_()
            for name, weight in block.named_parameters()
        }
        found.append(gradients_with(block, weights))
    error, name = largest_relative_error(*found)
    assert error <= 1e-11, f"{name}: relative error {error}"


@every_combination
def test_weights_that_were_computed_pass_their_gradient_on(integrator, backprop):
    """As another network makes them; its graph is not entered twice."""
    found = []
    for block in (make_block(integrator, backprop=backprop), stored_like(integrator, backprop)):
        factor = torch.ones((), dtype=torch.float64, requires_grad=True)
        weights = {name: factor * weight.detach() for name, weight in block.named_parameters()}
        outputs = functional_call(block, weights, (make_features(),))
        (gradient,) = torch.autograd.grad(outputs.square().sum(), factor)
        found.append(gradient)
    assert relative_error(*found) <= 1e-11


@every_combination
def test_one_tensor_that_stands_in_for_two_weights_of_a_layer(integrator, backprop):
    found = []
    for block in (make_block(integrator, backprop=backprop), stored_like(integrator, backprop)):
        weights = dict(block.named_parameters())
        for name in list(weights):
            if name.endswith("scale"):
                weights[name.replace("scale", "bias")] = weights[name]
        leaf = make_features(requires_grad=True)
        outputs = functional_call(block, weights, (leaf,), tie_weights=False)
        distinct = [weight for name, weight in weights.items() if not name.endswith("bias")]
        gradients = torch.autograd.grad(outputs.square().sum(), (leaf, *distinct))
        found.append(torch.cat([gradient.flatten() for gradient in gradients]))
    assert relative_error(*found) <= 1e-11


class Tied(nn.Module):
    """F(Y) = -w tanh(w Y), the weight being known by two names."""

    def __init__(self):
        super().__init__()
        self.first = self.second = nn.Parameter(torch.full((2, 1, 1), 0.7, dtype=torch.float64))

    def forward(self, features):
        return -self.second * torch.tanh(self.first * features)


@both_reversing_modes
@pytest.mark.parametrize("replaced", [False, True])
def test_one_weight_with_two_names_in_a_layer(backprop, replaced):
    found = []
    for mode, bits in ((backprop, None), ("stored", 12 if backprop == "exact" else None)):
        block = Block([Tied()], "leapfrog", num_steps=3, backprop=mode, grid_bits=bits)
        features = make_features(channels=2)
        if replaced:
            stand_in = torch.full((2, 1, 1), 0.4, dtype=torch.float64, requires_grad=True)
            found.append(gradients_with(block, {"layers.0.first": stand_in}, features))
        else:
            found.append(gradients_of(block, features))
    error, name = largest_relative_error(*found)
    assert error <= 1e-12, f"{name}: relative error {error}"


@every_reversible
@both_reversing_modes
def test_weights_in_half_precision_that_stand_in_for_wide_ones(integrator, backprop):
    """Half-precision layers are met by casts, then also on the way back."""
    found = []
    for block in (
        make_block(integrator, backprop=backprop, dtype=torch.float32),
        stored_like(integrator, backprop, dtype=torch.float32),
    ):
        weights = {
            name: weight.detach().bfloat16().requires_grad_()
            for name, weight in block.named_parameters()
        }
        found.append(gradients_with(block, weights, make_features(dtype=torch.bfloat16)))
    error, name = largest_relative_error(*found)
    assert error <= (0.05 if backprop == "reversible" else 0.01), f"{name}: relative error {error}"


@every_combination
def test_weights_changed_between_forward_and_backward_raise(integrator, backprop):
    block = make_block(integrator, backprop=backprop)
    total = block(make_features()).sum()
    with torch.no_grad():
        block.layers[-1].convolution.stencil.mul_(0.5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def with_running_statistics(backprop):
    """A block in evaluation mode whose batch norms have seen a batch."""
    block = make_block("forward_euler", num_steps=5, normalization="batch", backprop=backprop)
    block(make_features())
    return block.eval()


def test_buffers_that_stand_in_for_the_layers_own_are_met_again_when_checkpointed():
    found = []
    for backprop in ("checkpointed", "stored"):
        block = with_running_statistics(backprop)
        buffers = {
            name: 3 * buffer + 1
            for name, buffer in block.named_buffers()
            if buffer.is_floating_point()
        }
        found.append(gradients_with(block, {**dict(block.named_parameters()), **buffers}))
    error, name = largest_relative_error(*found)
    assert error <= 1e-14, f"{name}: relative error {error}"


def test_buffers_changed_after_a_checkpointed_forward_do_not_matter():
    expected = gradients_of(with_running_statistics("checkpointed"), make_features())
    block = with_running_statistics("checkpointed")
    leaf = make_features(requires_grad=True)
    outputs = block(leaf)
    for buffer in block.buffers():
        buffer.add_(1)
    seed_gradient = torch.cos(torch.arange(outputs.numel()).double()).reshape(outputs.shape)
    outputs.backward(seed_gradient)
    assert torch.equal(leaf.grad, expected["features"])


def test_a_checkpointed_layer_that_changes_its_buffers_is_recomputed_with_those_it_met():
    """Spectral norm improves its vectors in each forward pass, and its weights are made of them."""
    found = []
    for backprop in ("checkpointed", "stored"):
        torch.manual_seed(0)
        layers = [
            parametrizations.spectral_norm(nn.Conv2d(4, 4, 3, padding=1)).double() for _ in range(2)
        ]
        block = Block([*layers, *layers], "forward_euler", backprop=backprop)
        gradients = gradients_of(block, make_features())
        found.append({**gradients, **dict(block.named_buffers())})
    error, name = largest_relative_error(*found)
    assert error <= 1e-14, f"{name}: relative error {error}"
