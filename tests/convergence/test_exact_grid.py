"""However small its steps are, `exact` computes what `stored` computes without a grid."""

import pytest
import torch
from torch import nn

import pdecnn
from pdecnn.pde import Block
from tests.blocks import make_block, make_features, relative_error

TOLERANCE = 5e-3
slow = pytest.mark.slow


class Decay(nn.Module):
    """F(Y) = -tanh(Y)/10: so slow that rounding errs the same way step after step."""

    def forward(self, features):
        return -features.tanh() / 10


def grid_error(exact, features):
    """The relative error of the features at the final time that is due to the grid."""
    stored = Block(
        exact.layers, exact.integrator, step_size=exact.step_size, num_steps=exact.num_steps
    )
    assert stored.grid is None
    with torch.no_grad():
        return relative_error(exact(features), stored(features))


@pytest.mark.parametrize(
    ("integrator", "num_steps"),
    [
        ("verlet", 100),
        ("leapfrog", 100),
        ("leapfrog", 1000),
        pytest.param("verlet", 1000, marks=slow),
        pytest.param("verlet", 10_000, marks=slow),
        pytest.param("leapfrog", 10_000, marks=slow),
    ],
)
def test_small_steps_to_one_time_lose_no_accuracy(integrator, num_steps):
    exact = make_block(
        integrator,
        num_steps=num_steps,
        step_size=1 / num_steps,
        share_weights=True,
        backprop="exact",
        dimension=1,
        dtype=torch.float32,
        activation="relu",
    )
    features = make_features(dimension=1, dtype=torch.float32)
    assert 0 < grid_error(exact, features) <= TOLERANCE


@pytest.mark.parametrize(
    ("integrator", "num_steps"),
    [
        ("verlet", 100),
        ("verlet", 1000),
        ("leapfrog", 1000),
        pytest.param("verlet", 10_000, marks=slow),
        pytest.param("leapfrog", 10_000, marks=slow),
    ],
)
def test_nor_do_small_steps_of_a_slow_equation(integrator, num_steps):
    layers = [Decay()] * (2 if integrator == "verlet" else 1)
    exact = Block(layers, integrator, num_steps=num_steps, step_size=1 / num_steps)
    exact.backprop = "exact"
    assert 0 < grid_error(exact, make_features(dimension=1, dtype=torch.float32)) <= TOLERANCE


@pytest.mark.parametrize("name", ["hamiltonian_signals", "second_order_signals"])
def test_nor_do_networks_of_small_steps(name):
    torch.manual_seed(0)
    options = {"channels": (4, 4), "num_steps": 200, "step_size": 1e-3, "share_weights": True}
    exact = pdecnn.create_model(name, backprop="exact", **options).eval()
    stored = pdecnn.create_model(name, **options).eval()
    stored.load_state_dict(exact.state_dict())
    signals = torch.randn(2, 1, 16)
    with torch.no_grad():
        error = relative_error(exact.forward_features(signals), stored.forward_features(signals))
    assert 0 < error <= TOLERANCE
