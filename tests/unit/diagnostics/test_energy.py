"""What is conserved, to which order, and that eq. 12 is not."""

import pytest
import torch

from pdecnn.diagnostics import energy_curves
from pdecnn.diagnostics.energy import potential
from pdecnn.pde import Leapfrog, Verlet
from tests.blocks import every_integrator, make_block, make_features, randomize_
from tests.convergence.test_orders import fitted_slope
from tests.unit.diagnostics import equations

FINAL_TIME = 4.0
NUM_STEPS = (50, 100, 200, 400)
waves = pytest.mark.parametrize(
    "integrator",
    [Verlet(), Leapfrog(), Leapfrog(second_order_start=True)],
    ids=lambda integrator: integrator.name,
)


def smooth_layers(integrator, activation, *, affine=None):
    layers = [
        equations.make_layer(channels=2, activation=activation, affine=affine)
        for _ in range(integrator.layers_per_step)
    ]
    for seed, layer in enumerate(layers):
        randomize_(layer, seed, deviation=0.4)
    return layers


def energy_errors(integrator, activation, name, **options):
    """max_j |E_j - E_0| / E_0 at a fixed final time, for falling step sizes."""
    layers = smooth_layers(integrator, activation, **options)
    channels = integrator.block_channels(2)
    features = make_features(batch=1, channels=channels, size=(6,), dimension=1)
    step_sizes, errors = [], []
    for num_steps in NUM_STEPS:
        step_size = FINAL_TIME / num_steps
        block = equations.make_block(integrator, layers, step_size=step_size, num_steps=num_steps)
        energies = getattr(energy_curves(block, features), name)
        assert energies.shape == (num_steps + 1, 1)
        errors.append(float((energies - energies[0]).abs().max() / energies[0].abs().max()))
        step_sizes.append(step_size)
    return step_sizes, errors


@waves
@pytest.mark.parametrize(
    "activation", ["tanh", "relu", pytest.param("identity", marks=pytest.mark.slow)]
)
def test_the_error_of_the_centred_energy_falls_with_slope_two(integrator, activation):
    assert abs(fitted_slope(*energy_errors(integrator, activation, "centred")) - 2) <= 0.15


@waves
@pytest.mark.parametrize(
    "activation", ["tanh", "relu", pytest.param("identity", marks=pytest.mark.slow)]
)
def test_the_error_of_the_raw_energy_falls_with_slope_one(integrator, activation):
    assert abs(fitted_slope(*energy_errors(integrator, activation, "raw")) - 1) <= 0.15


@waves
def test_scale_and_bias_keep_an_energy(integrator):
    slope = fitted_slope(*energy_errors(integrator, "tanh", "centred", affine=True))
    assert abs(slope - 2) <= 0.15


@pytest.mark.parametrize("name", ["printed_raw", "printed_centred"])
def test_the_printed_energy_is_not_conserved(name):
    """However small the steps (eq. 12)."""
    _, errors = energy_errors(Leapfrog(), "tanh", name)
    assert min(errors) > 0.01


def test_the_printed_energy_is_the_conserved_one_of_a_linear_block():
    block = equations.make_block(
        "leapfrog", smooth_layers(Leapfrog(), "identity"), step_size=0.1, num_steps=10
    )
    found = energy_curves(block, make_features(channels=2, size=(6,), dimension=1))
    torch.testing.assert_close(found.printed_raw, found.raw, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.printed_centred, found.centred, rtol=1e-12, atol=1e-12)


def test_the_printed_energy_by_hand():
    """(|v|^2 + (K Y)^T sigma(N(K Y)))/2 (eq. 12), with a normalisation too."""
    block = make_block("leapfrog", normalization="tv")
    features = make_features()
    found = energy_curves(block, features).printed_raw
    with torch.no_grad():
        for step, (position, velocity) in enumerate(block.trajectory(features)):
            layer = block.steps[min(step, 2)][0]
            filtered = layer.convolution(position)
            elastic = filtered * layer.activation(layer.normalization(filtered))
            expected = (velocity.square() + elastic).flatten(1).sum(1) / 2
            torch.testing.assert_close(found[step], expected)


@pytest.mark.parametrize("activation", ["relu", "tanh", "identity"])
@pytest.mark.parametrize("affine", [False, True])
def test_the_layer_is_minus_the_gradient_of_its_potential(activation, affine):
    layer = equations.make_layer(channels=3, activation=activation, affine=affine)
    randomize_(layer, 2)
    if affine:
        with torch.no_grad():
            layer.normalization.scale[1] = 0
    features = make_features(channels=3, dimension=1, requires_grad=True)
    (gradient,) = torch.autograd.grad(potential(layer, features).sum(), features)
    torch.testing.assert_close(layer(features), -gradient)


@every_integrator
def test_norms_are_those_of_the_features(integrator):
    block = make_block(integrator)
    features = make_features()
    found = energy_curves(block, features).norms
    assert found.shape == (4, 2)
    with torch.no_grad():
        outputs = block(features).flatten(1).norm(dim=1)
    torch.testing.assert_close(found[0], features.flatten(1).norm(dim=1))
    torch.testing.assert_close(found[-1], outputs)


@every_integrator
@pytest.mark.parametrize("normalization", ["tv", "batch"])
def test_with_a_normalisation_no_conserved_energy_is_claimed(integrator, normalization):
    found = energy_curves(make_block(integrator, normalization=normalization), make_features())
    assert found.raw is None
    assert found.centred is None


def test_an_activation_without_an_antiderivative_has_no_energy():
    block = make_block("leapfrog", normalization="none", activation=torch.sin)
    found = energy_curves(block, make_features())
    assert found.raw is None
    assert found.printed_raw is not None
