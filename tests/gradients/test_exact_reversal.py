"""Mode `exact`: the way back is bit-identical, and so is the gradient but for shared weights."""

import pytest
import torch
from torch import nn

from pdecnn.errors import DivergedError
from pdecnn.pde import Block, Grid, Leapfrog, ResidualLayer, Shear
from tests.blocks import (
    every_reversible,
    gradients_of,
    largest_relative_error,
    make_block,
    make_features,
    relative_error,
)

ACTIVATIONS = pytest.mark.parametrize("activation", ["relu", "tanh"])


def assert_same_bits(found, expected):
    assert found.keys() == expected.keys()
    different = [name for name in expected if not torch.equal(found[name], expected[name])]
    assert not different, f"gradients differ in {different}"


def exact_and_stored(integrator, **options):
    """The same network twice: exactly reversed, and stored on the same grid."""
    return (
        make_block(integrator, backprop="exact", **options),
        make_block(integrator, backprop="stored", grid_bits=12, **options),
    )


@every_reversible
@pytest.mark.parametrize(
    ("activation", "share_weights"),
    [
        ("relu", True),
        pytest.param("relu", False, marks=pytest.mark.slow),
        pytest.param("tanh", False, marks=pytest.mark.slow),
    ],
    ids=["relu-shared", "relu-separate", "tanh-separate"],
)
def test_a_thousand_steps_there_and_back_and_there_again(integrator, activation, share_weights):
    block = make_block(
        integrator,
        num_steps=1000,
        step_size=0.05,
        backprop="exact",
        dtype=torch.float32,
        activation=activation,
        share_weights=share_weights,
    )
    features = make_features(batch=1, dtype=torch.float32)
    with torch.no_grad():
        there = block.propagate(features)
        back = block.reverse(there)
        again = block.propagate(back)
    assert torch.equal(back, Grid(12).round(features))
    assert all(torch.equal(a, b) for a, b in zip(again, there, strict=True))
    assert not torch.equal(block.integrator.finish(there), back), "nothing moved"


@every_reversible
@pytest.mark.parametrize("num_steps", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_the_gradient_is_bit_identical_to_stored(integrator, num_steps):
    exact, stored = exact_and_stored(
        integrator, num_steps=num_steps, step_size=0.05, dtype=torch.float32, activation="relu"
    )
    features = make_features(batch=1, size=(4, 3), dtype=torch.float32)
    assert_same_bits(gradients_of(exact, features), gradients_of(stored, features))


@every_reversible
@ACTIVATIONS
def test_with_shared_weights_the_gradient_agrees_up_to_summation_order(integrator, activation):
    exact, stored = exact_and_stored(
        integrator,
        num_steps=50,
        step_size=0.05,
        dtype=torch.float32,
        share_weights=True,
        activation=activation,
    )
    features = make_features(dtype=torch.float32)
    found, expected = gradients_of(exact, features), gradients_of(stored, features)
    assert torch.equal(found["features"], expected["features"])
    error, name = largest_relative_error(found, expected)
    assert error <= 1e-6, f"{name}: relative error {error}"


SHAPES = {
    "1d": {"dimension": 1, "size": (7,), "batch": 3},
    "1d one pixel": {"dimension": 1, "size": (1,), "batch": 1},
    "2d": {"dimension": 2, "size": (5, 7), "batch": 3},
    "2d one image": {"dimension": 2, "size": (1, 9), "batch": 1},
    "2d larger": {"dimension": 2, "size": (17, 16), "batch": 5},
    "3d": {"dimension": 3, "size": (3, 4, 5), "batch": 2},
}


@every_reversible
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(
    ("layout", "dtype"),
    [
        ("contiguous", torch.float32),
        ("channels_last", torch.float32),
        ("strided", torch.float64),
        ("expanded", torch.float32),
    ],
    ids=str,
)
def test_bit_identical_whatever_the_shape_and_layout(integrator, shape, layout, dtype):
    features = make_features(channels=6, dtype=dtype, **shape)
    dimension = shape["dimension"]
    if layout == "channels_last" and dimension > 1:
        formats = {2: torch.channels_last, 3: torch.channels_last_3d}
        features = features.to(memory_format=formats[dimension])
    elif layout == "strided":
        features = torch.stack([features, features], dim=-1)[..., 0]
    elif layout == "expanded":
        features = features[:1].expand_as(features)
    exact, stored = exact_and_stored(
        integrator, channels=6, dimension=dimension, dtype=dtype, activation="relu"
    )
    leaves = [features.detach().requires_grad_() for _ in range(2)]
    for block, leaf in zip((exact, stored), leaves, strict=True):
        block(leaf).square().sum().backward()
    assert torch.equal(leaves[0].grad, leaves[1].grad)
    for (name, found), expected in zip(exact.named_parameters(), stored.parameters(), strict=True):
        assert torch.equal(found.grad, expected.grad), name
    with torch.no_grad():
        back = exact.reverse(exact.propagate(features))
    assert torch.equal(back, Grid(12).round(features))


@every_reversible
def test_bit_identical_with_channels_last_weights(integrator):
    exact, stored = exact_and_stored(integrator, channels=16, dtype=torch.float32)
    features = make_features(channels=16, size=(8, 8), dtype=torch.float32)
    exact, stored = (block.to(memory_format=torch.channels_last) for block in (exact, stored))
    for layout in (torch.contiguous_format, torch.channels_last):
        laid_out = features.to(memory_format=layout)
        assert_same_bits(gradients_of(exact, laid_out), gradients_of(stored, laid_out))


@every_reversible
@pytest.mark.parametrize(
    "options",
    [{"normalization": "none"}, {"normalization": "batch"}, {"layer_class": ResidualLayer}],
)
def test_bit_identical_with_other_layers(integrator, options):
    exact, stored = exact_and_stored(integrator, dtype=torch.float32, num_steps=10, **options)
    features = make_features(dtype=torch.float32)
    assert_same_bits(gradients_of(exact, features), gradients_of(stored, features))


@every_reversible
@ACTIVATIONS
@pytest.mark.parametrize("backward_inside", [False, True])
def test_bit_identical_under_autocast(integrator, activation, backward_inside):
    """Wherever backward runs, the recomputation restores the autocast of the forward pass."""
    exact, stored = exact_and_stored(
        integrator, num_steps=20, step_size=0.1, dtype=torch.float32, activation=activation
    )
    gradients = []
    for block in (exact, stored):
        features = make_features(dtype=torch.float32, requires_grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = block(features)
        assert outputs.dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=backward_inside):
            found = torch.autograd.grad(outputs.square().sum(), (features, *block.parameters()))
        names = ("features", *(name for name, _ in block.named_parameters()))
        gradients.append(dict(zip(names, found, strict=True)))
    if integrator.name == "leapfrog_second_order":
        # Layer 0 serves the start as well as step 0: shared weights, summed in bfloat16 by
        # `stored` (autocast casts them once) and in float32 by `exact`.
        shared = [gradient.pop("layers.0.convolution.stencil") for gradient in gradients]
        assert relative_error(*shared) <= 2e-2
    assert_same_bits(*gradients)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        features = make_features(dtype=torch.float32)
        assert torch.equal(exact.reverse(exact.propagate(features)), Grid(12).round(features))


@every_reversible
def test_bit_identical_with_bfloat16_weights(integrator):
    exact, stored = exact_and_stored(integrator, dtype=torch.bfloat16, num_steps=10)
    features = make_features(dtype=torch.bfloat16)
    assert_same_bits(gradients_of(exact, features), gradients_of(stored, features))


@every_reversible
@pytest.mark.parametrize("grid_bits", [4, 8, 16])
def test_other_grids(integrator, grid_bits):
    exact = make_block(integrator, backprop="exact", grid_bits=grid_bits, dtype=torch.float32)
    stored = make_block(integrator, grid_bits=grid_bits, dtype=torch.float32)
    features = make_features(dtype=torch.float32)
    assert_same_bits(gradients_of(exact, features), gradients_of(stored, features))
    for component in exact.propagate(features):
        assert torch.equal(component, Grid(grid_bits).round(component))


@every_reversible
def test_a_finer_grid_is_nearer_to_the_ungridded_network(integrator):
    features = make_features(dtype=torch.float32)
    plain = make_block(integrator, num_steps=20, step_size=0.1, dtype=torch.float32)
    with torch.no_grad():
        errors = [
            float(
                (
                    make_block(
                        integrator,
                        num_steps=20,
                        step_size=0.1,
                        dtype=torch.float32,
                        backprop="exact",
                        grid_bits=bits,
                    )(features)
                    - plain(features)
                )
                .abs()
                .max()
            )
            for bits in (6, 12, 18)
        ]
    assert errors[0] > 8 * errors[1] > 64 * errors[2]


@every_reversible
def test_checkpointed_on_the_grid_is_the_same_network(integrator):
    checkpointed = make_block(
        integrator, backprop="checkpointed", grid_bits=12, num_steps=10, dtype=torch.float32
    )
    exact = make_block(integrator, backprop="exact", num_steps=10, dtype=torch.float32)
    features = make_features(dtype=torch.float32)
    assert_same_bits(gradients_of(exact, features), gradients_of(checkpointed, features))


class Growth(nn.Module):
    """F(Y) = 10 Y: no restoring force at all."""

    def forward(self, features):
        return 10 * features


def growing_block(integrator, num_steps, **options):
    layers = [Growth() for _ in range(integrator.layers_per_step)]
    return Block(layers, integrator, num_steps=num_steps, **options)


@every_reversible
@pytest.mark.parametrize(
    "options", [{"backprop": "exact"}, {"grid_bits": 12}], ids=["exact", "stored"]
)
def test_leaving_the_range_raises(integrator, options):
    features = make_features(dtype=torch.float32)
    block = growing_block(integrator, 50, **options)
    with pytest.raises(DivergedError, match=r"left the range .* limit 4096 with grid_bits=12"):
        block.propagate(features)
    with pytest.raises(DivergedError):
        block.trajectory(features)


class Kick(nn.Module):
    """F(Y) = amount, whatever Y is."""

    def __init__(self, amount):
        super().__init__()
        self.amount = amount

    def forward(self, features):
        return torch.full_like(features, self.amount)


def test_leaving_the_range_and_coming_back_raises():
    """The final state alone does not tell: every step is looked at."""
    layers = [Kick(5000.0), Kick(-10000.0), Kick(5000.0)]
    block = Block(layers, "leapfrog", backprop="exact")
    with pytest.raises(DivergedError, match="largest magnitude 5000"):
        block.propagate(torch.zeros(1, 1, 1, 1))


class ThereAndBack(Leapfrog):
    """Three shears of one component: its state after a step tells nothing of the first two."""

    layers_per_step = 3

    def shears(self, layers):
        return tuple(Shear(1, 0, layer, 1) for layer in layers)


@pytest.mark.parametrize(
    "options", [{"backprop": "exact"}, {"grid_bits": 12}], ids=["exact", "stored"]
)
def test_leaving_the_range_and_coming_back_within_a_step_raises(options):
    layers = [Kick(5000.0), Kick(-10000.0), Kick(5000.0)]
    block = Block(layers, ThereAndBack(), **options)
    start = torch.zeros(1, 1, 1, 1)
    with pytest.raises(DivergedError, match="largest magnitude 5000"):
        block.propagate(start)
    with pytest.raises(DivergedError, match="largest magnitude 5000"):
        block.reverse((start, start))


@every_reversible
def test_leaving_the_range_on_the_way_back_raises(integrator):
    block = growing_block(integrator, 50, backprop="exact")
    state = tuple(torch.ones(1, 2, 3, 3) * sign for sign in (1.0, -0.5))
    with pytest.raises(DivergedError, match="left the range"):
        block.reverse(state)


def test_the_limit_itself_is_out_of_range():
    """4096 + 2^-12 is a tie that float32 rounds to 4096: the way back would miss it."""

    class Nudge(nn.Module):
        def forward(self, features):
            return torch.full_like(features, 2.0**-12)

    block = Block([Nudge(), Nudge()], "verlet", backprop="exact")
    with pytest.raises(DivergedError, match="largest magnitude 4096, limit 4096"):
        block.propagate(torch.full((1, 2, 1, 1), 4096.0))
    below = torch.full((1, 2, 1, 1), 4095.0)
    assert torch.equal(block.reverse(block.propagate(below)), below)


@every_reversible
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_features_that_are_not_finite_raise(integrator, value):
    block = make_block(integrator, backprop="exact", dtype=torch.float32)
    features = make_features(dtype=torch.float32)
    features[0, 0, 0, 0] = value
    with pytest.raises(DivergedError, match="left the range"):
        block(features)


@every_reversible
def test_weights_that_are_not_finite_raise(integrator):
    block = make_block(integrator, backprop="exact", dtype=torch.float32)
    with torch.no_grad():
        block.layers[-1].convolution.stencil[0, 0, 0, 0] = float("nan")
    with pytest.raises(DivergedError, match="nan"):
        block(make_features(dtype=torch.float32))


@every_reversible
def test_reversing_a_state_off_the_grid_raises(integrator):
    block = make_block(integrator, backprop="exact", dtype=torch.float32)
    first, second = block.propagate(make_features(dtype=torch.float32))
    with pytest.raises(ValueError, match=r"needs a state on the grid 2\^-12"):
        block.reverse((first + 1e-5, second))
    with pytest.raises(ValueError, match=r"needs a state on the grid 2\^-12"):
        block.reverse((first, second + 1e-5))
    with pytest.raises(ValueError, match=r"float32 or float64 state, found torch\.bfloat16"):
        block.reverse((first.bfloat16(), second.bfloat16()))


@every_reversible
def test_an_empty_batch_passes(integrator):
    block = make_block(integrator, backprop="exact", dtype=torch.float32)
    features = make_features(dtype=torch.float32)[:0].requires_grad_()
    outputs = block(features)
    assert outputs.shape == features.shape
    outputs.sum().backward()
    assert features.grad.shape == features.shape


@pytest.mark.gpu
@every_reversible
@ACTIVATIONS
def test_on_a_gpu_the_way_back_is_bit_identical_and_the_gradient_near(integrator, activation):
    """Sums of gradients have no fixed order there; the states have."""
    exact, stored = (
        block.cuda()
        for block in exact_and_stored(
            integrator,
            channels=16,
            num_steps=100,
            step_size=0.05,
            dtype=torch.float32,
            activation=activation,
        )
    )
    features = make_features(channels=16, size=(32, 32), dtype=torch.float32).cuda()
    with torch.no_grad():
        there = exact.propagate(features)
        assert torch.equal(exact.reverse(there), Grid(12).round(features))
        again = stored.propagate(features)
    assert all(torch.equal(a, b) for a, b in zip(again, there, strict=True))
    gradients = []
    for block in (exact, stored):
        leaf = features.clone().requires_grad_()
        names, weights = zip(*block.named_parameters(), strict=True)
        found = torch.autograd.grad(block(leaf).square().sum(), (leaf, *weights))
        gradients.append(dict(zip(("features", *names), found, strict=True)))
    error, name = largest_relative_error(*gradients)
    assert error <= 1e-6, f"{name}: relative error {error}"
