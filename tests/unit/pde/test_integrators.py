"""The contract every integrator keeps, and the facts of each."""

import pytest
import torch
from torch import nn

from pdecnn.errors import ConfigError
from pdecnn.pde import (
    INTEGRATORS,
    AbstractReversibleIntegrator,
    Block,
    ForwardEuler,
    Leapfrog,
    RungeKutta4,
    SymmetricLayer,
    Verlet,
)
from pdecnn.pde.integrators import evaluate, resolve_integrator
from tests.blocks import (
    IRREVERSIBLE,
    every_integrator,
    every_reversible,
    integrator_name,
    make_block,
    make_features,
    relative_error,
)


def test_every_integrator_of_the_paper_is_there():
    facts = {known.name: (known.order, known.reversible) for known in INTEGRATORS}
    assert facts == {
        "forward_euler": (1, False),
        "runge_kutta_4": (4, False),
        "verlet": (1, True),
        "leapfrog": (1, True),
        "leapfrog_second_order": (2, True),
    }


@every_integrator
@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_states_keep_shape_and_dtype(integrator, dimension):
    block = make_block(integrator, dimension=dimension)
    features = make_features(dimension=dimension)
    layers = block.steps[0]
    assert len(layers) == integrator.layers_per_step
    start = integrator.start(features, layers, 0.1)
    after = integrator.step(layers, start, 0.1)
    assert isinstance(start, tuple)
    assert isinstance(after, tuple)
    assert len({part.shape for part in start}) == 1, "a state is tensors of one shape"
    assert [part.shape for part in after] == [part.shape for part in start]
    assert {part.dtype for part in (*start, *after)} == {torch.float64}
    assert integrator.finish(after).shape == features.shape


@every_integrator
def test_finish_undoes_start(integrator):
    block = make_block(integrator)
    features = make_features()
    assert torch.equal(integrator.finish(integrator.start(features, block.steps[0], 0.1)), features)


@every_integrator
def test_a_step_changes_neither_its_state_nor_the_features(integrator):
    block = make_block(integrator)
    features = make_features()
    before = features.clone()
    state = integrator.start(features, block.steps[0], 0.1)
    copies = [part.clone() for part in state]
    integrator.step(block.steps[0], state, 0.1)
    if integrator.reversible:
        integrator.step_back(block.steps[0], state, 0.1)
    assert torch.equal(features, before)
    assert all(torch.equal(part, copy) for part, copy in zip(state, copies, strict=True))


@every_integrator
def test_layer_channels_fit_the_state(integrator):
    layers = [
        SymmetricLayer(integrator.layer_channels(6)) for _ in range(integrator.layers_per_step)
    ]
    state = integrator.start(torch.randn(1, 6, 4, 4), layers, 0.1)
    assert {part.shape[1] for part in state} == {integrator.layer_channels(6)}
    assert integrator.block_channels(integrator.layer_channels(6)) == 6


@every_reversible
def test_each_component_is_the_target_of_one_shear_a_step(integrator):
    """So a check after each step sees every sum, and none depends on itself."""
    assert isinstance(integrator, AbstractReversibleIntegrator)
    layers = make_block(integrator).steps[0]
    shears = integrator.shears(layers)
    targets = [shear.target for shear in shears]
    assert len(set(targets)) == len(targets)
    assert all(shear.target != shear.source for shear in shears)
    assert {shear.sign for shear in shears} <= {-1, 1}
    assert [shear.layer for shear in shears if shear.layer is not None] == list(layers)


@pytest.mark.parametrize("integrator", IRREVERSIBLE, ids=integrator_name)
def test_irreversible_integrators_have_no_step_back(integrator):
    assert not isinstance(integrator, AbstractReversibleIntegrator)
    assert "step_back" not in dir(integrator)


def test_forward_euler_formula():
    block = make_block("forward_euler", num_steps=1)
    features = make_features()
    expected = features + 0.5 * block.layers[0](features)
    assert torch.equal(ForwardEuler().step(block.layers, (features,), 0.5)[0], expected)


def test_runge_kutta_is_the_exponential_series_to_fourth_order_for_linear_layers():
    class Times(nn.Module):
        def forward(self, values):
            return -0.7 * values

    (after,) = RungeKutta4().step([Times()], (torch.ones(1, dtype=torch.float64),), 0.5)
    z = -0.35
    assert float(after) == pytest.approx(1 + z + z**2 / 2 + z**3 / 6 + z**4 / 24, abs=1e-15)


def test_verlet_follows_equation_10_with_its_signs():
    block = make_block("verlet", num_steps=1)
    first, second = block.layers
    features = make_features()
    y, z = features.chunk(2, dim=1)
    y_next = y + 0.5 * first(z)
    z_next = z - 0.5 * second(y_next)
    found_y, found_z = Verlet().step(block.layers, (y, z), 0.5)
    torch.testing.assert_close(found_y, y_next, rtol=1e-15, atol=1e-15)
    torch.testing.assert_close(found_z, z_next, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("second_order_start", [False, True])
def test_position_and_velocity_form_equals_the_two_step_form(second_order_start):
    """Y_{j+1} = 2 Y_j - Y_{j-1} + dt^2 F(Y_j) (eq. 11), with Y_{-1} = Y_0 - dt v_{-1/2}."""
    integrator = Leapfrog(second_order_start=second_order_start)
    dt = 0.3
    block = make_block(integrator.name, num_steps=10, step_size=dt)
    features = make_features()
    with torch.no_grad():
        states = block.trajectory(features)
        velocity = -dt / 2 * block.layers[0](features) if second_order_start else 0
        previous, current = features - dt * velocity, features
        for layer, (position, _) in zip(block.layers, states[1:], strict=True):
            previous, current = current, 2 * current - previous + dt**2 * layer(current)
            assert relative_error(position, current) <= 1e-13


def test_the_papers_start_is_at_rest():
    features = make_features()
    position, velocity = Leapfrog().start(features, [], 0.1)
    assert position is features
    assert torch.equal(velocity, torch.zeros_like(features))


@pytest.mark.parametrize("channels", [1, 3, 7])
def test_verlet_refuses_odd_channels(channels):
    with pytest.raises(ConfigError, match=f"must be even; found {channels}"):
        Verlet().layer_channels(channels)
    with pytest.raises(ConfigError, match=f"must be even; found {channels}"):
        Verlet().start(torch.zeros(1, channels, 4), [], 0.1)
    block = Block([SymmetricLayer(2), SymmetricLayer(2)], "verlet")
    with pytest.raises(ValueError, match=f"needs features of 4 channels, found {channels}"):
        block(torch.zeros(1, channels, 4, 4))


def test_verlet_halves_keep_channels_last_and_own_their_memory():
    features = make_features(channels=8).to(memory_format=torch.channels_last)
    for half in Verlet().start(features, [], 0.1):
        assert half.is_contiguous(memory_format=torch.channels_last)
        assert half.untyped_storage().data_ptr() != features.untyped_storage().data_ptr()


@every_integrator
def test_every_integrator_is_found_by_its_name(integrator):
    assert resolve_integrator(integrator.name) == integrator
    assert resolve_integrator(integrator) is integrator


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("verlot", "verlet"),
        ("leap_frog", "leapfrog"),
        ("forwardeuler", "forward_euler"),
        ("euler", "forward_euler"),
        ("rk4", "runge_kutta_4"),
    ],
)
def test_an_unknown_integrator_is_refused_with_the_nearest_name(name, nearest):
    with pytest.raises(ConfigError, match=f"unknown integrator '{name}'") as caught:
        Block([SymmetricLayer(2)], name)
    assert f"did you mean '{nearest}'?" in str(caught.value)


def test_a_name_near_to_none_is_refused_with_all_there_are():
    with pytest.raises(ConfigError, match="unknown integrator 'xyz'") as caught:
        Block([SymmetricLayer(2)], "xyz")
    assert all(known.name in str(caught.value) for known in INTEGRATORS)


def test_the_class_of_an_integrator_is_refused_with_how_to_make_one():
    with pytest.raises(ConfigError, match=r"the class Verlet; pass Verlet\(\)"):
        Block([SymmetricLayer(2)] * 2, Verlet)


@pytest.mark.parametrize("integrator", [["verlet"], None, 3, ("verlet",), {}])
def test_what_is_no_integrator_is_refused(integrator):
    with pytest.raises(ConfigError, match="unknown integrator"):
        Block([SymmetricLayer(2)] * 2, integrator)


@every_integrator
def test_a_layer_that_changes_the_shape_is_refused(integrator):
    """A sum would broadcast it in silence."""

    class Mean(nn.Module):
        def forward(self, features):
            return features.mean(1, keepdim=True)

    block = Block([Mean() for _ in range(integrator.layers_per_step)], integrator)
    width = integrator.layer_channels(4)
    message = rf"Mean made \(2, 1, 5, 4\) of \(2, {width}, 5, 4\)"
    with pytest.raises(ValueError, match=message):
        block(make_features())


def test_evaluate_meets_narrow_layers_with_casts():
    layer = SymmetricLayer(2).bfloat16()
    features = torch.randn(1, 2, 4, 4)
    rate = evaluate(layer, features)
    assert rate.dtype == torch.float32
    assert torch.equal(rate, layer(features.bfloat16()).float())
