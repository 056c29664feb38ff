"""step_back undoes step, up to rounding, for every reversible integrator and any weights."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pdecnn.pde import Grid, ResidualLayer, SymmetricLayer
from pdecnn.pde.backprop import TimeStepping
from tests.blocks import REVERSIBLE, make_block, relative_error


@st.composite
def situations(draw):
    """A random block of one step and a random state, not only one that `start` would give."""
    integrator = draw(st.sampled_from(REVERSIBLE))
    dimension = draw(st.sampled_from((1, 2, 3)))
    channels = 2 * draw(st.integers(1, 3))
    block = make_block(
        integrator,
        channels=channels,
        num_steps=1,
        step_size=draw(st.floats(1e-3, 2.0)),
        dimension=dimension,
        seed=draw(st.integers(0, 2**31)),
        layer_class=draw(st.sampled_from((SymmetricLayer, ResidualLayer))),
        activation=draw(st.sampled_from(("relu", "tanh", "identity"))),
        normalization=draw(st.sampled_from(("none", "tv"))),
        stencil_size=draw(st.sampled_from((1, 3, 5))),
    )
    size = draw(st.tuples(*[st.integers(1, 4)] * dimension))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    shape = (draw(st.integers(1, 3)), integrator.layer_channels(channels), *size)
    state = tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return block, state


@settings(max_examples=100)
@given(situation=situations())
def test_step_back_undoes_step(situation):
    block, state = situation
    integrator, layers = block.integrator, block.steps[0]
    with torch.no_grad():
        after = integrator.step(layers, state, block.step_size)
        back = integrator.step_back(layers, after, block.step_size)
    for found, expected in zip(back, state, strict=True):
        scale = max(float(part.norm()) for part in (*state, *after))
        assert float((found - expected).norm()) <= 1e-12 * scale * (1 + block.step_size)


@settings(max_examples=60)
@given(situation=situations(), bits=st.integers(2, 16))
def test_on_the_grid_step_back_undoes_step_to_the_last_bit(situation, bits):
    block, state = situation
    grid = Grid(bits)
    block = block.float()
    state = tuple(grid.round(part.float()) for part in state)
    steps = block.steps[:1]
    stepping = TimeStepping(block.integrator, steps, block.step_size, grid, "exact", "")
    with torch.no_grad():
        after = stepping.walk_on_grid(state, steps)
        grid.check_state(after)
        back = stepping.walk_on_grid(after, steps, back=True)
    assert all(torch.equal(found, expected) for found, expected in zip(back, state, strict=True))


@settings(max_examples=40)
@given(situation=situations(), num_steps=st.integers(1, 5))
def test_reverse_undoes_propagate(situation, num_steps):
    block, state = situation
    features = block.integrator.finish(state)
    again = make_block(
        block.integrator,
        channels=features.shape[1],
        num_steps=num_steps,
        step_size=min(block.step_size, 0.5),
        dimension=features.dim() - 2,
    )
    with torch.no_grad():
        assert relative_error(again.reverse(again.propagate(features)), features) <= 1e-12
