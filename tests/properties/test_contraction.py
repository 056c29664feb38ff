"""A guaranteed step bound is one: no drawn block at or below it expands any drawn distance."""

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pdecnn.diagnostics import energy_curves, guaranteed_bound
from pdecnn.pde import Block, ForwardEuler, RungeKutta4, SymmetricLayer
from tests.blocks import randomize_

TOLERANCE = 1e-9


@st.composite
def guaranteed_blocks(draw, **options):
    """Blocks of different weights at a share of the smallest bound of their steps."""
    size = (draw(st.integers(1, 5)),)
    integrator = draw(st.sampled_from((ForwardEuler(), RungeKutta4())))
    activation = draw(st.sampled_from(("relu", "tanh", "identity")))
    layers = []
    for _ in range(draw(st.integers(1, 3))):
        layer = SymmetricLayer(
            2,
            hidden_channels=draw(st.integers(1, 4)),
            dimension=1,
            activation=activation,
            normalization="none",
            affine=options["affine"],
        ).double()
        randomize_(layer, draw(st.integers(0, 2**31)), deviation=10.0 ** draw(st.integers(-1, 1)))
        if options["affine"]:
            with torch.no_grad():
                layer.normalization.scale.abs_()
        layers.append(layer)
    dense_size = draw(st.sampled_from((0, 1000)))
    bounds = [
        guaranteed_bound(integrator, [layer], size, dense_size=dense_size) for layer in layers
    ]
    share = draw(st.sampled_from((0.3, 0.9, 1.0)))
    return Block(layers, integrator, step_size=share * min(bounds)), size


def draw_features(size, seed, distance):
    generator = torch.Generator().manual_seed(seed)
    first, second = torch.randn(2, 2, *size, generator=generator, dtype=torch.float64)
    return torch.stack([first, first + distance * second])


@settings(max_examples=80)
@given(
    block_and_size=guaranteed_blocks(affine=True),
    seed=st.integers(0, 2**31),
    distance=st.sampled_from((1e-3, 1.0, 100.0)),
)
def test_guaranteed_blocks_never_expand_distances(block_and_size, seed, distance):
    block, size = block_and_size
    with torch.no_grad():
        states = block.trajectory(draw_features(size, seed, distance))
    distances = [float((state[0] - state[1]).norm()) for (state,) in states]
    assert all(later <= earlier * (1 + TOLERANCE) for earlier, later in pairwise(distances))


@settings(max_examples=60)
@given(block_and_size=guaranteed_blocks(affine=False), seed=st.integers(0, 2**31))
def test_the_norm_of_parabolic_features_never_increases(block_and_size, seed):
    """|Y| with any weights, since sigma(0) = 0."""
    block, size = block_and_size
    norms = energy_curves(block, draw_features(size, seed, 1.0)).norms
    assert bool((norms[1:] <= norms[:-1] * (1 + TOLERANCE)).all())


@settings(max_examples=60)
@given(block_and_size=guaranteed_blocks(affine=False), seed=st.integers(0, 2**31))
def test_the_energy_of_a_parabolic_block_with_constant_weights_never_increases(
    block_and_size, seed
):
    """sum Phi(K Y), by forward Euler below 2/|K|^2."""
    block, size = block_and_size
    constant = Block([block.layers[0]], ForwardEuler(), num_steps=6, step_size=block.step_size)
    bound = guaranteed_bound(ForwardEuler(), constant.steps[0], size)
    constant.step_size = min(constant.step_size, bound)
    energies = energy_curves(constant, draw_features(size, seed, 1.0)).raw
    rounding = TOLERANCE * energies[0]
    assert bool((energies[1:] <= energies[:-1] + rounding).all())
