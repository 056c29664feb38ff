"""Chance in layers: recomputation draws the same numbers again, or the block refuses them."""

import random

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrizations

from pdecnn.errors import ConfigError
from pdecnn.pde import Block
from pdecnn.pde.grid import deferred_checks
from tests.blocks import (
    both_reversing_modes,
    every_reversible,
    gradients_of,
    largest_relative_error,
    make_block,
    make_features,
)


def drop_in_normalization(layer):
    layer.normalization = nn.Sequential(layer.normalization, nn.Dropout(0.5))


def drop_by_hook(layer):
    layer.register_forward_hook(lambda _module, _inputs, output: functional.dropout(output, 0.5))


def drop_by_activation(layer):
    layer.activation = layer.activation.__class__(
        name="dropout", function=lambda values: functional.dropout(values, 0.5)
    )


def drop_by_own_forward(layer):
    plain = layer.forward
    layer.forward = lambda features: functional.dropout(plain(features), 0.5)


def drop_by_own_convolution(layer):
    plain = layer.convolution.forward
    layer.convolution.forward = lambda features: functional.dropout(plain(features), 0.5)


@pytest.mark.parametrize(
    "make_random",
    [
        drop_in_normalization,
        drop_by_hook,
        drop_by_activation,
        drop_by_own_forward,
        drop_by_own_convolution,
    ],
)
def test_checkpointed_equals_stored_with_chance_inside_our_own_layers(make_random):
    found = []
    for backprop in ("stored", "checkpointed"):
        block = make_block("forward_euler", num_steps=4, backprop=backprop)
        for layer in block.layers:
            make_random(layer)
        torch.manual_seed(3)
        found.append(gradients_of(block, make_features()))
    for name, gradient in found[0].items():
        assert torch.equal(found[1][name], gradient), name


def test_layers_that_draw_nothing_do_not_touch_the_generator():
    block = make_block("forward_euler", num_steps=4, backprop="checkpointed")
    torch.manual_seed(3)
    state = torch.get_rng_state()
    gradients_of(block, make_features())
    assert torch.equal(torch.get_rng_state(), state)


class Dropping(nn.Module):
    """F(Y) = -w tanh(Y), half of it dropped as `keep` says."""

    def __init__(self, keep):
        super().__init__()
        self.weight = nn.Parameter(torch.full((1, 1, 1), 0.7, dtype=torch.float64))
        self.keep = keep

    def forward(self, features):
        return -self.weight * torch.tanh(features) * self.keep(features, self.training)


def by_dropout(features, training):
    return functional.dropout(torch.ones_like(features), 0.5, training)


def by_drop_path(features, training):
    return features.new_empty(features.shape[0], 1, 1, 1).bernoulli_() if training else 1


def by_python(features, training):
    del features
    return random.choice((0.0, 2.0)) if training else 1


def by_numpy(features, training):
    return torch.from_numpy(numpy.random.rand(*features.shape)) if training else 1


GENERATORS = {
    by_dropout: "PyTorch's",
    by_drop_path: "PyTorch's",
    by_python: "Python's",
    by_numpy: "NumPy's",
}
global_chance = pytest.mark.parametrize("keep", GENERATORS)


def block_of(keep, integrator, **options):
    layers = [Dropping(keep) for _ in range(integrator.layers_per_step)]
    return Block(layers, integrator, step_size=0.5, num_steps=5, **options)


def seed_all():
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


@every_reversible
@both_reversing_modes
@global_chance
def test_random_numbers_are_refused_where_states_are_computed_backwards(integrator, backprop, keep):
    block = block_of(keep, integrator, backprop=backprop)
    features = make_features()
    message = rf"drawn while Dropping ran \({GENERATORS[keep]} generator .* 'checkpointed'"
    with pytest.raises(ConfigError, match=message) as caught:
        block(features)
    assert "\n" not in str(caught.value)
    with torch.no_grad():
        block(features)  # nothing will be computed backwards
    block.eval()
    gradients_of(block, features)  # nothing is drawn


@every_reversible
@both_reversing_modes
@pytest.mark.parametrize("make_random", [drop_by_own_forward, drop_by_own_convolution])
def test_random_numbers_of_replaced_methods_are_refused(integrator, backprop, make_random):
    block = make_block(integrator, num_steps=4, backprop=backprop)
    for layer in block.layers:
        make_random(layer)
    with pytest.raises(ConfigError, match="random numbers were drawn while SymmetricLayer ran"):
        block(make_features())


@both_reversing_modes
def test_random_numbers_of_hooks_on_all_modules_are_refused(backprop):
    block = make_block("verlet", num_steps=4, backprop=backprop)
    handle = register_module_forward_hook(
        lambda module, _inputs, output: (
            functional.dropout(output, 0.5) if module in list(block.layers) else None
        )
    )
    try:
        with pytest.raises(ConfigError, match="random numbers were drawn"):
            block(make_features())
    finally:
        handle.remove()


@every_reversible
@global_chance
def test_random_numbers_are_refused_on_the_way_back(integrator, keep):
    block = block_of(keep, integrator)
    state = block.propagate(make_features())
    with pytest.raises(ConfigError, match="random numbers were drawn while Dropping ran"):
        block.reverse(state)


@every_reversible
@global_chance
def test_checkpointed_equals_stored_with_chance_inside_reversible_blocks(integrator, keep):
    found = []
    for backprop in ("stored", "checkpointed"):
        seed_all()
        gradients = gradients_of(block_of(keep, integrator, backprop=backprop), make_features())
        found.append(gradients)
        found.append({"next": torch.tensor([random.random(), numpy.random.rand()])})
    error, name = largest_relative_error(found[2], found[0])
    assert error <= 1e-14, f"{name}: relative error {error}"
    assert torch.equal(found[1]["next"], found[3]["next"]), "recomputation moved the generators"


class OwnGenerator:
    """Chance that no generator known to others tells of."""

    def __init__(self):
        self.generator = numpy.random.default_rng(0)

    def __call__(self, features, training):
        del features, training
        return float(self.generator.random() < 0.5)


class Forgetful:
    """Another factor at each call."""

    def __init__(self):
        self.calls = 0

    def __call__(self, features, training):
        del features, training
        self.calls += 1
        return 1 / self.calls


@every_reversible
@pytest.mark.parametrize("make_keep", [OwnGenerator, Forgetful])
def test_exact_notices_that_it_did_not_come_back_to_the_start(integrator, make_keep):
    block = block_of(make_keep(), integrator, backprop="exact")
    total = block(make_features()).sum()
    with pytest.raises(ConfigError, match=r"do not lead back .* Dropping .*'stored'") as caught:
        total.backward()
    assert "\n" not in str(caught.value)


class Growth(nn.Module):
    """F(Y) = 10 Y: leaves the range of exact reversal soon."""

    def forward(self, features):
        return 10 * features


def test_a_state_that_left_the_range_is_not_blamed_on_chance_where_checks_are_deferred():
    block = Block([Growth()], "leapfrog", num_steps=50, backprop="exact")
    features = make_features(dtype=torch.float32, requires_grad=True)
    with deferred_checks() as flags:
        block(features).sum().backward()
    assert any(flags)


def weight_normalised(channels):
    return parametrizations.weight_norm(nn.Conv2d(channels, channels, 3, padding=1))


def grouped(channels):
    return nn.Sequential(nn.GroupNorm(1, channels), nn.Conv2d(channels, channels, 1), nn.Tanh())


@every_reversible
@pytest.mark.parametrize("make_layer", [weight_normalised, grouped])
@pytest.mark.parametrize(
    ("layout", "dtype"),
    [
        ("contiguous", torch.float64),
        ("channels_last", torch.float32),
        ("strided", torch.float32),
        ("negative zeros", torch.float32),
    ],
    ids=str,
)
def test_exact_trusts_layers_of_ones_own_that_compute_the_same_twice(
    integrator, make_layer, layout, dtype
):
    torch.manual_seed(0)
    layers = [make_layer(integrator.layer_channels(4)) for _ in range(integrator.layers_per_step)]
    block = Block(layers, integrator, step_size=0.1, num_steps=5, backprop="exact").to(dtype)
    features = make_features(dtype=dtype)
    if layout == "channels_last":
        features = features.to(memory_format=torch.channels_last)
    elif layout == "strided":
        features = torch.stack([features, features], dim=-1)[..., 0]
    elif layout == "negative zeros":
        features = -torch.zeros_like(features)
    gradients_of(block, features)


@every_reversible
@both_reversing_modes
def test_layers_that_draw_nothing_are_not_suspected_when_others_did(integrator, backprop):
    block = block_of(
        lambda features, training: torch.rand_like(features) if training else 1.0,
        integrator,
        backprop=backprop,
    )
    block.eval()
    torch.rand(3)
    outputs = block(make_features())
    torch.rand(3)
    outputs.sum().backward()
