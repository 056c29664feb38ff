"""Integrators and layers of a user's: all modes they support, the way back, what is refused."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from pdecnn.errors import ConfigError
from pdecnn.pde import AbstractReversibleIntegrator, Block, Shear, SymmetricLayer
from tests import plugin_example
from tests.blocks import (
    gradients_of,
    integrator_name,
    largest_relative_error,
    make_features,
    randomize_,
    relative_error,
)
from tests.plugin_example import ExplicitMidpoint, LeakyLayer

every_own = pytest.mark.parametrize("integrator", plugin_example.INTEGRATORS, ids=integrator_name)
every_layer = pytest.mark.parametrize("layer_class", [SymmetricLayer, LeakyLayer])


def own_block(integrator, layer_class=SymmetricLayer, *, num_steps=4, step_size=0.1, **options):
    layers = [
        randomize_(layer_class(4, activation="tanh", normalization="none"), seed)
        for seed in range(num_steps * integrator.layers_per_step)
    ]
    return Block(layers, integrator, step_size=step_size, **options).double()


@every_own
@every_layer
def test_reverse_undoes_propagate(integrator, layer_class):
    block = own_block(integrator, layer_class)
    features = make_features()
    with torch.no_grad():
        assert relative_error(block.reverse(block.propagate(features)), features) <= 1e-12


@every_own
@every_layer
@pytest.mark.parametrize("backprop", ["checkpointed", "reversible"])
def test_gradients_are_those_of_stored(integrator, layer_class, backprop):
    expected = gradients_of(own_block(integrator, layer_class), make_features())
    found = gradients_of(own_block(integrator, layer_class, backprop=backprop), make_features())
    error, name = largest_relative_error(found, expected)
    assert error <= 1e-9, f"{name}: relative error {error}"


@every_own
@pytest.mark.parametrize("backprop", ["stored", "checkpointed", "reversible"])
def test_gradients_are_those_of_differences(integrator, backprop):
    block = own_block(integrator, LeakyLayer, num_steps=2, backprop=backprop)
    features = make_features(size=(3, 2), requires_grad=True)
    assert torch.autograd.gradcheck(block, (features,), atol=1e-6)


@every_own
def test_the_error_falls_with_the_declared_order(integrator):
    layer = randomize_(LeakyLayer(4, activation="tanh", normalization="none"), 0).double()
    features = make_features()

    def solution(name, num_steps):
        return Block([layer], name, step_size=1 / num_steps, num_steps=num_steps)(features)

    with torch.no_grad():
        exact = solution("runge_kutta_4", 200)
        errors = [relative_error(solution(integrator, n), exact) for n in (20, 40)]
    ratio = torch.log2(torch.tensor(errors[0] / errors[1]))
    assert float(ratio) == pytest.approx(integrator.order, abs=0.1)


@every_own
def test_without_shears_there_is_no_exact_reversal(integrator):
    with pytest.raises(ConfigError, match=f"but {integrator.name} lists none"):
        own_block(integrator, backprop="exact")
    with pytest.raises(ConfigError, match="grid_bits=12 has no use"):
        own_block(integrator, grid_bits=12)


def test_hooks_and_frozen_weights_go_with_a_step_of_its_own():
    block = own_block(ExplicitMidpoint(), backprop="reversible")
    frozen = block.layers[1].convolution.stencil.requires_grad_(False)
    seen = []
    block.layers[0].convolution.stencil.register_hook(seen.append)
    block(make_features(requires_grad=True)).sum().backward()
    assert frozen.grad is None
    assert len(seen) == 1


@dataclass(frozen=True)
class ThreeWay(AbstractReversibleIntegrator):
    """B += dt G(A), then A += dt F(B, C), then C -= dt (A + B): three components."""

    name = "three_way"
    order = 1
    layers_per_step = 2

    def start(self, features, layers, step_size):
        return features, torch.zeros_like(features), torch.zeros_like(features)

    def shears(self, layers):
        return (
            Shear(1, 0, layers[0], 1),
            Shear(0, (1, 2), layers[1], 1),
            Shear(2, (0, 1), None, -1),
        )

    def finish(self, state):
        return state[0]


class OfTwo(nn.Module):
    """tanh(K B) - K C of two features."""

    def __init__(self):
        super().__init__()
        self.inner = SymmetricLayer(4, activation="tanh", normalization="none")

    def forward(self, first, second):
        return self.inner(first).tanh() - self.inner(second)


def three_way_block(backprop, grid_bits=None):
    layers = []
    for _ in range(3):
        layers += [SymmetricLayer(4, activation="tanh", normalization="none"), OfTwo()]
    for seed, layer in enumerate(layers):
        randomize_(layer, seed)
    block = Block(layers, ThreeWay(), step_size=0.25, backprop=backprop, grid_bits=grid_bits)
    return block.double()


@pytest.mark.parametrize("backprop", ["checkpointed", "reversible", "exact"])
def test_shears_with_several_sources_and_components(backprop):
    bits = 20 if backprop == "exact" else None
    expected = gradients_of(three_way_block("stored", bits), make_features())
    found = gradients_of(three_way_block(backprop, bits), make_features())
    error, name = largest_relative_error(found, expected)
    assert error <= (0 if backprop == "exact" else 1e-12), f"{name}: relative error {error}"
    block = three_way_block(backprop, bits)
    features = make_features()
    with torch.no_grad():
        back = block.reverse(block.propagate(features))
        start = features if block.grid is None else block.grid.round(features)
    torch.testing.assert_close(back, start, rtol=0, atol=0 if backprop == "exact" else 1e-12)


def test_reverse_refuses_a_finish_that_does_not_undo_start():
    class Mean(ExplicitMidpoint):
        def finish(self, state):
            return (state[0] + state[1]) / 2

    block = own_block(Mean())
    with pytest.raises(ConfigError, match=r"finish\(start\(x\)\) = x, but explicit_midpoint"):
        block.reverse(block.propagate(make_features()))


def test_a_reversible_integrator_without_a_way_back_is_refused():
    class Stuck(AbstractReversibleIntegrator):
        name, order = "stuck", 1

        def start(self, features, layers, step_size):
            return (features,)

        def step(self, layers, state, step_size):
            return state

        def finish(self, state):
            return state[0]

    with pytest.raises(ConfigError, match="stuck must list its shears or define both"):
        own_block(Stuck())
