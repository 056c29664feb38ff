"""Blocks: trajectories, the way back, dtypes, layouts, and the settings they refuse."""

import numpy
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from pdecnn.errors import ConfigError
from pdecnn.pde import (
    BACKPROP_MODES,
    Block,
    ForwardEuler,
    Grid,
    ResidualLayer,
    SymmetricLayer,
    Verlet,
)
from pdecnn.pde.backprop import Propagator
from tests.blocks import (
    IRREVERSIBLE,
    every_combination,
    every_integrator,
    every_reversible,
    gradients_of,
    integrator_name,
    largest_relative_error,
    make_block,
    make_features,
    relative_error,
)


def layers_for(integrator, channels=4, num_steps=3, **options):
    width = integrator.layer_channels(channels)
    return [SymmetricLayer(width, **options) for _ in range(integrator.layers_per_step * num_steps)]


def test_a_propagator_may_finish_in_its_own_way():
    class Doubling(Propagator):
        def finish(self, stepping, state, dtype):
            return 2 * super().finish(stepping, state, dtype)

    block, features = make_block("verlet"), make_features()
    expected = 2 * block(features)
    block.propagator = Doubling()
    assert torch.equal(block(features), expected)


@every_combination
def test_a_trajectory_runs_from_start_to_propagate(integrator, backprop):
    block = make_block(integrator, backprop=backprop, num_steps=5)
    features = make_features()
    with torch.no_grad():
        states = block.trajectory(features)
        final = block.propagate(features)
    assert len(states) == 6
    assert all(isinstance(state, tuple) for state in states)
    assert all(torch.equal(a, b) for a, b in zip(states[-1], final, strict=True))
    start = integrator.finish(states[0])
    torch.testing.assert_close(start, features, rtol=0, atol=2.0**-13)
    if backprop != "exact":
        assert torch.equal(start, features)
    assert torch.equal(block(features), integrator.finish(final))


@every_combination
def test_modes_compute_the_same_features(integrator, backprop):
    features = make_features()
    with torch.no_grad():
        expected = make_block(integrator)(features)
        found = make_block(integrator, backprop=backprop)(features)
    if backprop == "exact":
        torch.testing.assert_close(found, expected, rtol=0, atol=0.05)
    else:
        assert torch.equal(found, expected)


@every_reversible
@pytest.mark.parametrize("backprop", ["stored", "checkpointed", "reversible"])
@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_reverse_undoes_propagate(integrator, backprop, dimension):
    block = make_block(integrator, backprop=backprop, dimension=dimension, num_steps=10)
    features = make_features(dimension=dimension)
    with torch.no_grad():
        assert relative_error(block.reverse(block.propagate(features)), features) <= 1e-12


@every_reversible
def test_the_reconstruction_error_in_float32_is_of_the_size_of_rounding(integrator):
    block = make_block(integrator, num_steps=30, step_size=0.1, dtype=torch.float32)
    features = make_features(dtype=torch.float32)
    with torch.no_grad():
        assert relative_error(block.reverse(block.propagate(features)), features) <= 1e-5


@pytest.mark.parametrize("integrator", IRREVERSIBLE, ids=integrator_name)
def test_reversing_an_irreversible_block_is_refused(integrator):
    block = make_block(integrator)
    with pytest.raises(ConfigError, match=f"{integrator.name} steps cannot be undone"):
        block.reverse(block.propagate(make_features()))


@pytest.mark.parametrize("state", [torch.zeros(2, 4, 5, 4), [1, 2], (torch.zeros(1),), ("a", "b")])
def test_reverse_refuses_what_is_no_state(state):
    with pytest.raises(ValueError, match="2 tensors; found"):
        make_block("leapfrog").reverse(state)


@every_reversible
def test_reverse_refuses_parts_that_do_not_fit_each_other(integrator):
    block = make_block(integrator)
    first, second = block.propagate(make_features())
    for other in (second[:1], second[:, :1], second.float()):
        with pytest.raises(ValueError, match="all parts of a state have one shape and dtype"):
            block.reverse((first, other))


@every_integrator
def test_shared_weights_are_the_same_as_equal_weights(integrator):
    shared = make_block(integrator, share_weights=True, num_steps=3)
    separate = Block([*shared.layers] * 3, integrator, step_size=0.5)
    assert separate.num_steps == shared.num_steps == 3
    features = make_features()
    assert torch.equal(shared(features), separate(features))


def test_final_time_and_repr():
    block = make_block("verlet", num_steps=3, step_size=0.5, backprop="reversible")
    assert block.final_time == 1.5
    description = "integrator=verlet, step_size=0.5, num_steps=3, backprop=reversible"
    assert description in repr(block)


def test_any_module_may_be_a_layer():
    block = Block([nn.Tanh()], "forward_euler", step_size=0.5, num_steps=2)
    once = torch.ones(3) + 0.5 * torch.ones(3).tanh()
    torch.testing.assert_close(block(torch.ones(3)), once + 0.5 * once.tanh())


@every_integrator
def test_residual_layers_fit_every_integrator(integrator):
    block = make_block(integrator, layer_class=ResidualLayer)
    assert block(make_features()).shape == make_features().shape


# Switching the mode of a block


@every_reversible
@pytest.mark.parametrize("after", BACKPROP_MODES)
def test_a_switched_block_is_as_if_made_so(integrator, after):
    switched = make_block(integrator)
    for mode in (*BACKPROP_MODES, after):
        switched.backprop = mode
    fresh = make_block(integrator, backprop=after)
    assert switched.backprop == after
    assert switched.grid == fresh.grid == (Grid() if after == "exact" else None)
    found, expected = (gradients_of(block, make_features()) for block in (switched, fresh))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_mode_that_does_not_fit_is_refused_and_changes_nothing():
    with pytest.raises(ConfigError, match="did you mean 'stored'"):
        make_block("leapfrog").backprop = "store"
    block = make_block("forward_euler")
    with pytest.raises(ConfigError, match="steps cannot be undone"):
        block.backprop = "exact"
    assert (block.backprop, block.grid) == ("stored", None)
    block = make_block("leapfrog", grid_bits=8)
    with pytest.raises(ConfigError, match="grid_bits=8 has no use"):
        block.backprop = "reversible"
    assert (block.backprop, block.grid) == ("stored", Grid(8))
    block.backprop = "exact"
    assert block.grid == Grid(8)


@every_reversible
def test_a_block_switched_to_exact_has_the_grid_of_its_step_size(integrator):
    switched = make_block(integrator, step_size=1e-3)
    assert switched.grid is None
    switched.backprop = "exact"
    fresh = make_block(integrator, step_size=1e-3, backprop="exact")
    assert switched.grid == fresh.grid == Grid(16)


@pytest.mark.parametrize("given", ["grid_bits", "exact_bits"])
def test_given_bits_come_back_with_the_mode(given):
    block = make_block("leapfrog", step_size=1e-3, backprop="exact")
    block = Block(block.layers, "leapfrog", step_size=1e-3, backprop="exact", **{given: 9})
    for mode in ("stored", "exact"):
        block.backprop = mode
        assert block.grid == (Grid(9) if (mode, given) != ("stored", "exact_bits") else None)
        assert block.exact_bits == 9


def test_bits_of_exact_alone_leave_other_modes_without_a_grid():
    for backprop in ("stored", "checkpointed", "reversible"):
        block = Block([SymmetricLayer(2)], "leapfrog", backprop=backprop, exact_bits=9)
        assert (block.grid, block.exact_bits) == (None, 9)


def test_a_step_too_small_for_a_grid_is_refused_and_changes_nothing():
    block = make_block("leapfrog", step_size=1e-5)
    with pytest.raises(ConfigError, match=r"step_size=1e-05 is too small .* set grid_bits"):
        block.backprop = "exact"
    assert (block.backprop, block.grid) == ("stored", None)
    with pytest.raises(ConfigError, match="set grid_bits"):
        make_block("leapfrog", step_size=1e-5, backprop="exact")
    assert make_block("leapfrog", step_size=1e-5, backprop="exact", grid_bits=22).grid == Grid(22)


@pytest.mark.parametrize("name", ["num_steps", "grid", "exact_bits", "final_time"])
def test_what_follows_from_the_rest_cannot_be_set(name):
    block = make_block("leapfrog")
    with pytest.raises(AttributeError):
        setattr(block, name, 5)


# Autocast and half precision


@every_combination
def test_under_autocast_the_state_is_float32_and_the_layers_bfloat16(integrator, backprop):
    block = make_block(integrator, backprop=backprop, dtype=torch.float32)
    dtypes = set()
    for layer in block.layers:
        layer.register_forward_hook(lambda _, inputs, output: dtypes.add(output.dtype))
    features = make_features(dtype=torch.float32, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        state = block.propagate(features)
        outputs = block(features)
    assert dtypes == {torch.bfloat16}
    assert {part.dtype for part in state} == {torch.float32}
    assert outputs.dtype == torch.float32
    outputs.square().sum().backward()  # outside autocast, as PyTorch recommends
    assert dtypes == {torch.bfloat16}, "recomputed in another dtype"
    assert features.grad.dtype == torch.float32
    for name, parameter in block.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == torch.float32


@every_combination
def test_under_autocast_gradients_are_near_those_of_float32(integrator, backprop):
    block = make_block(integrator, backprop=backprop, dtype=torch.float32)
    features = make_features(dtype=torch.float32)
    expected = gradients_of(block, features)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = gradients_of(block, features)  # backward inside autocast works as well
    error, name = largest_relative_error(found, expected)
    assert error <= 0.1, f"{name}: relative error {error}"


@every_combination
def test_a_bfloat16_block_has_a_float32_state_and_bfloat16_features(integrator, backprop):
    block = make_block(integrator, backprop=backprop, dtype=torch.bfloat16)
    features = make_features(dtype=torch.bfloat16, requires_grad=True)
    assert {part.dtype for part in block.propagate(features)} == {torch.float32}
    outputs = block(features)
    assert outputs.dtype == torch.bfloat16
    outputs.sum().backward()
    assert features.grad.dtype == torch.bfloat16
    assert {parameter.grad.dtype for parameter in block.parameters()} == {torch.bfloat16}


@every_combination
def test_channels_last_features_give_the_same_numbers(integrator, backprop):
    block = make_block(integrator, backprop=backprop)
    features = make_features()
    last = features.to(memory_format=torch.channels_last)
    found, expected = gradients_of(block, last), gradients_of(block, features)
    tolerance = 1e-2 if backprop == "exact" else 1e-12  # a rounding may fall to the other side
    error, name = largest_relative_error(found, expected)
    assert error <= tolerance, f"{name}: relative error {error}"


@every_integrator
@pytest.mark.parametrize(("dimension", "size"), [(1, (1,)), (2, (1, 1)), (3, (1, 2, 1))])
def test_the_smallest_images(integrator, dimension, size):
    block = make_block(integrator, dimension=dimension)
    features = make_features(dimension=dimension, size=size)
    gradients = gradients_of(block, features)
    assert all(gradient.isfinite().all() for gradient in gradients.values())


# What is refused


@pytest.mark.parametrize(
    ("shape", "dtype", "device", "message"),
    [
        ((4, 5, 5), torch.float32, "cpu", r"found shape \(4, 5, 5\)"),
        ((4,), torch.float32, "cpu", r"found shape \(4,\)"),
        ((1, 4, 5, 5, 5), torch.float32, "cpu", r"found shape \(1, 4, 5, 5, 5\)"),
        ((1, 6, 5, 5), torch.float32, "cpu", "needs features of 4 channels, found 6"),
        ((1, 4, 5, 5), torch.float64, "cpu", "float64 but the weights torch.float32"),
        ((1, 4, 5, 5), torch.float16, "cpu", "float16 but the weights torch.float32"),
        ((1, 4, 5, 5), torch.uint8, "cpu", "uint8 but the weights torch.float32"),
        ((1, 4, 5, 5), torch.float32, "meta", "on meta but the weights on cpu"),
        ((1, 4, 0, 5), torch.float32, "cpu", r"no pixels: found shape \(1, 4, 0, 5\)"),
    ],
)
def test_wrong_features_are_refused(shape, dtype, device, message):
    block = Block(layers_for(Verlet()), "verlet", backprop="reversible")
    features = torch.zeros(shape, dtype=dtype, device=device)
    for method in (block, block.propagate, block.trajectory):
        with pytest.raises(ValueError, match=message):
            method(features)


@every_integrator
def test_a_wrong_number_of_layers_is_refused(integrator):
    width = integrator.layers_per_step
    layers = layers_for(integrator)
    with pytest.raises(ConfigError, match="found 0 layers"):
        Block([], integrator)
    with pytest.raises(ConfigError, match=f"need {4 * width} layers.*found {3 * width}"):
        Block(layers, integrator, num_steps=4)
    if width > 1:
        with pytest.raises(ConfigError, match=f"multiple of {width}; found {3 * width - 1}"):
            Block(layers[:-1], integrator)


@pytest.mark.parametrize("num_steps", [0, -1, 1.5, 2.0, "3", True])
def test_a_wrong_number_of_steps_is_refused(num_steps):
    with pytest.raises(ConfigError, match="whole number of at least 1, found") as caught:
        Block([SymmetricLayer(4)], "leapfrog", num_steps=num_steps)
    assert repr(num_steps) in str(caught.value)


@pytest.mark.parametrize(
    "step_size", [0, 0.0, -1.0, float("nan"), float("inf"), "1", None, True, 10**400]
)
def test_a_wrong_step_size_is_refused(step_size):
    with pytest.raises(ConfigError, match="step_size must be a positive number") as caught:
        Block([SymmetricLayer(4)], "leapfrog", step_size=step_size)
    assert repr(step_size) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("reversable", "reversible"), ("store", "stored"), ("exactly", "exact"), ("zzz", None)],
)
def test_an_unknown_backprop_mode_is_refused_with_the_nearest_name(name, nearest):
    with pytest.raises(ConfigError, match=f"unknown backprop mode '{name}'") as caught:
        Block([SymmetricLayer(4)], "leapfrog", backprop=name)
    expected = BACKPROP_MODES if nearest is None else [f"did you mean '{nearest}'?"]
    assert all(part in str(caught.value) for part in expected)


@pytest.mark.parametrize("integrator", IRREVERSIBLE, ids=integrator_name)
@pytest.mark.parametrize("backprop", ["reversible", "exact"])
def test_reversing_modes_refuse_irreversible_integrators(integrator, backprop):
    with pytest.raises(ConfigError, match=f"but {integrator.name} steps cannot be undone"):
        Block([SymmetricLayer(4)], integrator, backprop=backprop)


@every_integrator
def test_batch_norm_is_welcome(integrator):
    block = Block(layers_for(integrator, normalization="batch"), integrator)
    assert block(torch.randn(2, 4, 5, 5)).shape == (2, 4, 5, 5)


class RememberingNorm(nn.BatchNorm2d):
    """A batch norm of a user's own, of which nothing is known."""


@every_reversible
@pytest.mark.parametrize("backprop", BACKPROP_MODES)
@pytest.mark.parametrize(
    "norm",
    [RememberingNorm(4), nn.InstanceNorm2d(4, track_running_stats=True)],
    ids=lambda norm: type(norm).__name__,
)
def test_other_norms_with_a_memory_are_refused_in_reversible_blocks(integrator, backprop, norm):
    layers = [nn.Sequential(SymmetricLayer(4), norm) for _ in range(integrator.layers_per_step)]
    with pytest.raises(
        ConfigError, match=r"has the buffer '(1\.)?running_mean', which a step may change"
    ):
        Block(layers, integrator, backprop=backprop)


@pytest.mark.parametrize(
    ("integrator", "backprop"),
    [
        ("forward_euler", "stored"),
        ("runge_kutta_4", "checkpointed"),
        ("leapfrog", "reversible"),
    ],
)
def test_grid_bits_without_use_are_refused(integrator, backprop):
    with pytest.raises(ConfigError, match=f"grid_bits=12 has no use with backprop='{backprop}'"):
        Block([SymmetricLayer(4)], integrator, backprop=backprop, grid_bits=12)


@pytest.mark.parametrize("grid_bits", [0, 23, 1.5, True])
def test_grid_bits_out_of_range_are_refused(grid_bits):
    for given in ("grid_bits", "exact_bits"):
        with pytest.raises(ConfigError, match=f"from 1 to 22, found {grid_bits}"):
            Block([SymmetricLayer(4)], "leapfrog", **{given: grid_bits})


def test_layers_that_do_not_fit_each_other_are_refused():
    with pytest.raises(ConfigError, match="same channels and dimension, found"):
        Block([SymmetricLayer(4), SymmetricLayer(6)], "leapfrog")
    with pytest.raises(ConfigError, match="same channels and dimension, found"):
        Block([SymmetricLayer(4), SymmetricLayer(4, dimension=1)], "verlet")


@pytest.mark.parametrize("layers", [SymmetricLayer(4), nn.Sequential(SymmetricLayer(4)), 3, None])
def test_what_is_no_list_of_layers_is_refused(layers):
    message = f"a list of modules, found {type(layers).__name__}"
    with pytest.raises(ConfigError, match=message):
        Block(layers, "leapfrog")
    with pytest.raises(ConfigError, match="layers must be modules, found 'SymmetricLayer'"):
        Block(["SymmetricLayer"], "leapfrog")


def test_layers_may_come_from_any_iterable_and_numbers_from_numpy():
    layers = layers_for(ForwardEuler())
    for iterable in ((layer for layer in layers), tuple(layers), nn.ModuleList(layers)):
        block = Block(iterable, "forward_euler", num_steps=numpy.int64(3))
        assert list(block.layers) == layers
        assert type(block.num_steps) is int
    assert type(Block(layers, "forward_euler", step_size=numpy.float32(0.5)).step_size) is float


@pytest.mark.parametrize("integrator", ["verlet", "leapfrog"])
def test_dropout_in_a_reversible_block_is_refused(integrator):
    layers = [nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.Dropout()) for _ in range(2)]
    with pytest.raises(ConfigError, match="dropout in a reversible block"):
        Block(layers, integrator)


class Buffered(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, features):
        return -features


@every_reversible
@pytest.mark.parametrize("backprop", BACKPROP_MODES)
def test_layers_with_a_memory_are_refused_in_reversible_blocks(integrator, backprop):
    def spectral():
        return parametrizations.spectral_norm(nn.Conv2d(2, 2, 3, padding=1))

    def tracking():
        return nn.InstanceNorm2d(2, track_running_stats=True)

    for make, name in [(Buffered, "count"), (spectral, "_u"), (tracking, "running_mean")]:
        layers = [make() for _ in range(integrator.layers_per_step)]
        message = rf"the buffer '.*{name}', which .* reversible block \({integrator.name}\)"
        with pytest.raises(ConfigError, match=message):
            Block(layers, integrator, backprop=backprop)


@every_reversible
def test_a_memory_that_came_later_is_refused_where_states_are_recomputed(integrator):
    block = make_block(integrator, backprop="reversible")
    state = block.propagate(make_features())
    parametrizations.spectral_norm(block.layers[-1].convolution, "stencil")
    for call in (lambda: block(make_features()), lambda: block.reverse(state)):
        with pytest.raises(ConfigError, match=r"the buffer 'convolution\..*_u'"):
            call()


def test_layers_with_a_memory_are_welcome_elsewhere():
    assert Block([Buffered()], "forward_euler")(torch.ones(1, 2, 3, 3)).eq(0).all()


@every_reversible
def test_norms_without_a_memory_are_welcome(integrator):
    norms = [nn.GroupNorm(1, 2), nn.InstanceNorm2d(2, affine=True)]
    for norm in norms:
        block = Block([norm] * integrator.layers_per_step, integrator, backprop="reversible")
        features = make_features(channels=integrator.block_channels(2), dtype=torch.float32)
        assert block(features).shape == features.shape
