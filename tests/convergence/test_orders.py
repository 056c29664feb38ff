"""The error at a fixed time falls with the declared order, for every integrator."""

from math import log

import pytest
import torch

from pdecnn.pde import INTEGRATORS, Block, ResidualLayer, SymmetricLayer
from tests.blocks import integrator_name, make_features, randomize_

FINAL_TIME = 1.0
NUM_STEPS = {1: (32, 64, 128, 256), 2: (16, 32, 64, 128), 4: (16, 32, 64, 128)}
TOLERANCE = {1: 0.15, 2: 0.15, 4: 0.3}


def runge_kutta(rate, state, num_steps):
    """The reference: classical Runge-Kutta for a state of one tensor, written out here."""
    dt = FINAL_TIME / num_steps
    for _ in range(num_steps):
        k1 = rate(state)
        k2 = rate(state + dt / 2 * k1)
        k3 = rate(state + dt / 2 * k2)
        k4 = rate(state + dt * k3)
        state = state + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return state


def reference(integrator, layers, features):
    """The solution at the final time of the differential equation the integrator is for."""
    if integrator.name == "verlet":  # Y' = F1(Z), Z' = -F2(Y)

        def rate(state):
            y, z = state.chunk(2, dim=1)
            return torch.cat([layers[0](z), -layers[1](y)], dim=1)

        return runge_kutta(rate, features, 500)
    if integrator.name.startswith("leapfrog"):  # Y'' = F(Y), Y'(0) = 0

        def rate(state):
            position, velocity = state
            return torch.stack([velocity, layers[0](position)])

        return runge_kutta(rate, torch.stack([features, torch.zeros_like(features)]), 500)[0]
    return runge_kutta(layers[0], features, 500)  # Y' = F(Y)


def fitted_slope(step_sizes, errors):
    """The slope of the least-squares line through (log step_size, log error)."""
    x = torch.tensor([log(h) for h in step_sizes], dtype=torch.float64)
    y = torch.tensor([log(e) for e in errors], dtype=torch.float64)
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / (x * x).sum())


@pytest.mark.parametrize("layer_class", [SymmetricLayer, ResidualLayer])
@pytest.mark.parametrize("normalization", ["none", "tv"])
@pytest.mark.parametrize("integrator", INTEGRATORS, ids=integrator_name)
def test_the_fitted_slope_is_the_declared_order(integrator, normalization, layer_class):
    channels = integrator.layer_channels(4)
    # With the TV norm at epsilon 1e-3 the solution is stiff where features vanish: 1 is smooth.
    layers = [
        randomize_(
            layer_class(
                channels,
                dimension=1,
                activation="tanh",
                normalization=normalization,
                epsilon=1.0,
            ).double(),
            seed,
            deviation=0.5,
        )
        for seed in range(integrator.layers_per_step)
    ]
    features = make_features(dimension=1)
    errors, step_sizes = [], []
    with torch.no_grad():
        expected = reference(integrator, layers, features)
        for num_steps in NUM_STEPS[integrator.order]:
            step_size = FINAL_TIME / num_steps
            block = Block(layers, integrator, step_size=step_size, num_steps=num_steps)
            errors.append(float((block(features) - expected).norm()))
            step_sizes.append(step_size)
    assert errors[-1] > 1e-12 * float(expected.norm()), "rounding hides the order"
    slope = fitted_slope(step_sizes, errors)
    assert abs(slope - integrator.order) <= TOLERANCE[integrator.order], (slope, errors)
