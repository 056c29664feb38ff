"""Steps whose size is trained: what the factor stands for, and that every mode has its gradient."""

from math import exp

import pytest
import torch

import pdecnn
from pdecnn.diagnostics import block_stability
from pdecnn.errors import ConfigError
from pdecnn.pde.block import Block
from pdecnn.pde.layers import TimedLayer

INTEGRATORS = {"forward_euler": 1, "runge_kutta_4": 1, "verlet": 2, "leapfrog": 1}
DT, CHANNELS = 0.25, 4


def make_block(integrator, log_factor, step_size=DT, backprop="stored", normalization="tv"):
    torch.manual_seed(0)
    width = CHANNELS // INTEGRATORS[integrator]
    layers = [
        TimedLayer(width, normalization=normalization) for _ in range(2 * INTEGRATORS[integrator])
    ]
    for layer in layers:
        torch.nn.init.constant_(layer.log_factor, log_factor)
    return Block(layers, integrator, step_size=step_size, backprop=backprop).double()


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_the_factor_is_that_of_dt_or_of_its_square(integrator):
    features = torch.randn(2, CHANNELS, 5, 5, dtype=torch.float64)
    log_factor = 0.6
    block = make_block(integrator, log_factor)
    own = DT * exp(log_factor / (2 if integrator == "leapfrog" else 1))
    assert block.step_sizes == pytest.approx((own, own))
    torch.testing.assert_close(block(features), make_block(integrator, 0.0, own)(features))


@pytest.mark.parametrize(
    ("integrator", "backprop"),
    [
        ("forward_euler", "checkpointed"),
        *((name, mode) for name in ("verlet", "leapfrog") for mode in ("reversible", "exact")),
    ],
)
def test_every_mode_has_the_gradient_of_stored(integrator, backprop):
    torch.manual_seed(1)
    features, found = torch.randn(2, CHANNELS, 5, 5, dtype=torch.float64), []
    for mode in ("stored", backprop):
        block = make_block(integrator, 0.3, backprop=mode, normalization="bias")
        block(features).square().sum().backward()
        found.append([layer.log_factor.grad for layer in block.layers])
    assert all(gradient != 0 for gradient in found[0])
    rounding = 1e-2 if backprop == "exact" else 1e-9
    torch.testing.assert_close(found[1], found[0], rtol=rounding, atol=rounding)


@pytest.mark.parametrize("settings", [{"layer": "residual"}, {"step_size": "stable"}])
def test_layers_without_such_a_factor_are_refused(settings):
    with pytest.raises(ConfigError, match="train_step_size has factors before symmetric layers"):
        pdecnn.create_model("parabolic_digits", train_step_size=True, **settings)


@pytest.mark.parametrize("log_factor", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("integrator", ["forward_euler", "verlet", "leapfrog"])
def test_a_diagnosis_judges_the_steps_as_they_are(integrator, log_factor):
    """Linear waves, constant in time: the same words as of a block with those steps."""
    verdicts = []
    for own in (False, True):
        width, growth = CHANNELS // INTEGRATORS[integrator], exp(log_factor)
        size = growth ** (0.5 if integrator == "leapfrog" else 1) if own else 1.0
        torch.manual_seed(0)
        layers = [
            TimedLayer(width, normalization="none", activation="identity")
            for _ in range(INTEGRATORS[integrator])
        ]
        for layer in layers:
            torch.nn.init.constant_(layer.log_factor, 0.0 if own else log_factor)
        block = Block(layers, integrator, step_size=0.6 * size, num_steps=2)
        verdicts.append(block_stability(block, torch.randn(1, CHANNELS, 5, 5)).verdict)
    held = [[one.holds for one in verdict.assumptions] for verdict in verdicts]
    assert verdicts[0].name == verdicts[1].name
    assert held[0] == held[1]


def test_a_training_changes_the_steps(tmp_path):
    settings = {"network.train_step_size": True, "network.channels": [4, 4], "data.fraction": 0.1}
    config = pdecnn.recipe("hamiltonian_digits").with_settings({**settings, "training.epochs": 1})
    run = pdecnn.train(config, output=tmp_path / "run", device="cpu")
    sizes = pdecnn.load(run.folder).blocks[0].step_sizes
    assert len(set(sizes)) == len(sizes)
    assert 1.0 not in sizes
