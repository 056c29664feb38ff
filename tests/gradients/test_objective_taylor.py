"""Taylor test of the whole objective: |f(x + t d) - f(x) - t f'(x) d| falls like t^2.

f is network, loss and regulariser together as a function of all weights, in float64. Blocks have
tanh; opening and connectors always have ReLU, so their batch norms are set such that no unit
changes sides along the way, which is checked.
"""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

import pdecnn
from pdecnn.data.registry import read_digits
from pdecnn.learning import Objective, ObjectiveConfig

STEPS = 2.0 ** -np.arange(2, 12)
MODES = {
    "parabolic": ("stored", "checkpointed"),
    "hamiltonian": ("stored", "checkpointed", "reversible"),
    "second_order": ("stored", "checkpointed", "reversible"),
}
CASES = [(dynamics, backprop) for dynamics, modes in MODES.items() for backprop in modes]


def make_network(dynamics, backprop):
    torch.manual_seed(0)
    network = pdecnn.create_model(
        f"{dynamics}_digits", channels=(8, 12, 12), activation="tanh", backprop=backprop
    ).double()
    with torch.no_grad():
        for weight in network.parameters():
            weight += 0.1 * torch.randn_like(weight)
        for part in (network.opening, *network.connectors):
            part.normalization.weight.fill_(0.1)
            part.normalization.bias.fill_(1.0)[::4] = -1.0  # most units on, some off
    return network


@contextmanager
def no_unit_changes_sides(network):
    """Raise unless every ReLU unit keeps the sign it has in the first evaluation."""
    signs = {}

    def check(module, _inputs, values):
        assert torch.equal(signs.setdefault(module, values > 0), values > 0)

    parts = (network.opening, *network.connectors)
    handles = [part.normalization.register_forward_hook(check) for part in parts]
    yield
    for handle in handles:
        handle.remove()
    assert len(signs) == len(parts)
    assert all(sign.any() and not sign.all() for sign in signs.values())


def taylor_remainders(dynamics, backprop, config):
    """|f(x + t d) - f(x) - t f'(x) d| and |f(x + t d) - f(x)| for every t of STEPS."""
    network = make_network(dynamics, backprop)
    data = read_digits().train
    images, labels = network.preprocess(data.images[:24]), data.labels[:24]
    weights = list(network.parameters())
    start = [weight.detach().clone() for weight in weights]
    direction = [torch.randn_like(weight) for weight in weights]
    length = torch.stack([d.square().sum() for d in direction]).sum().sqrt()
    objective = Objective(config)

    def value(step):
        with torch.no_grad():
            for weight, x, d in zip(weights, start, direction, strict=True):
                weight.copy_(x + step / length * d)
        return objective(network, network(images), labels).total

    with no_unit_changes_sides(network):
        f = value(0.0)
        f.backward()
        products = [(w.grad * d).sum() for w, d in zip(weights, direction, strict=True)]
        slope = float(torch.stack(products).sum() / length)
        with torch.no_grad():
            changes = np.array([float(value(step) - f) for step in STEPS])
    return np.abs(changes - STEPS * slope), np.abs(changes)


def fitted_order(remainders):
    return np.polyfit(np.log(STEPS), np.log(remainders), 1)[0]


@pytest.mark.parametrize(("dynamics", "backprop"), CASES)
@pytest.mark.parametrize("smoothness", ["tv", "h1"])
def test_remainder_of_the_objective_is_of_order_two(dynamics, backprop, smoothness):
    config = ObjectiveConfig(
        smoothness=smoothness,
        # Large enough for a wrong factor in a regulariser to be seen beside the loss.
        smoothness_weight=1e-2,
        decay_weight=1e-2,
        label_smoothing=0.1,
    )
    remainders, changes = taylor_remainders(dynamics, backprop, config)
    assert fitted_order(remainders) == pytest.approx(2, abs=0.1)
    # Without the derivative it is of order 1: the test can tell them apart.
    assert fitted_order(changes) < 1.5


@pytest.mark.parametrize("dynamics", MODES)
def test_remainder_with_the_settings_of_the_recipe_is_of_order_two(dynamics):
    remainders, _ = taylor_remainders(dynamics, "stored", ObjectiveConfig())
    assert fitted_order(remainders) == pytest.approx(2, abs=0.1)


def test_remainder_of_least_squares_is_of_order_two():
    config = ObjectiveConfig(loss="least_squares", class_weights=tuple(range(1, 11)))
    remainders, _ = taylor_remainders("hamiltonian", "reversible", config)
    assert fitted_order(remainders) == pytest.approx(2, abs=0.1)
