"""An eigenvalue that is not found is a number that is missing, with its reason; no more."""

import json

import pytest
import torch
from torch import nn

from pdecnn.diagnostics import block_stability, convolution_norm, diagnose_block, spectra
from pdecnn.diagnostics.diagnosis import block_values
from pdecnn.pde import Block, ForwardEuler
from tests.unit.diagnostics import equations

DIFFERENCE, SECOND_DIFFERENCE = (0.0, -1.0, 1.0), (-1.0, 2.0, -1.0)


def wave_or_heat(stencil, integrator, step_size, num_steps=1):
    """A linear equation in 1D with weights constant in time."""
    layer = equations.make_layer(channels=1)
    with torch.no_grad():
        layer.convolution.stencil.copy_(torch.tensor(stencil))
    return equations.make_block(integrator, [layer], step_size=step_size, num_steps=num_steps)


def signal(size):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, 1, size, generator=generator, dtype=torch.float64)


@pytest.fixture
def impatient(monkeypatch):
    """Neither method gets beyond its first basis, as with larger or more crowded spectra."""
    monkeypatch.setattr(spectra, "_LANCZOS_RESTARTS", 1)
    monkeypatch.setattr(spectra, "_RESTARTS", dict.fromkeys(spectra._RESTARTS, 1))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("stencil", "size", "integrator", "step_size", "verdict"),
    [
        (DIFFERENCE, 2048, "forward_euler", 0.25, "guaranteed"),
        (SECOND_DIFFERENCE, 1100, "forward_euler", 0.1, "guaranteed"),
        (DIFFERENCE, 2048, "runge_kutta_4", 0.25, "guaranteed"),
        (DIFFERENCE, 2048, "leapfrog", 0.5, "measured"),
    ],
)
def test_a_diagnosis_does_not_stop_where_an_eigenvalue_is_not_found(
    stencil, size, integrator, step_size, verdict
):
    block = wave_or_heat(stencil, integrator, step_size)
    found = block_stability(block, signal(size), num_iterations=1)
    assert found.verdict.name == verdict
    (step,) = found.steps
    assert step.local_bound is None
    assert step.amplification is None
    assert step.symmetric_eigenvalues == (None,)
    assert step.layer_spectra == (None,)
    assert step.system_spectrum is None
    reasons = {missing.number: missing.reason for missing in step.missing}
    assert reasons.keys() == {
        "local bound",
        "amplification",
        "largest symmetric eigenvalue of layer 0",
        "spectrum of layer 0",
        "spectrum of the system",
    }
    assert f"found no eigenvalue of a matrix of {size} columns" in reasons["local bound"]
    assert step.why_missing("local bound") == reasons["local bound"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stencil", "size", "integrator", "step_size", "verdict"),
    [
        (DIFFERENCE, 2048, "forward_euler", 0.25, "guaranteed"),
        (SECOND_DIFFERENCE, 1100, "forward_euler", 0.1, "guaranteed"),
        (DIFFERENCE, 2048, "leapfrog", 0.5, "bounded"),
    ],
)
def test_ordinary_stable_equations_are_diagnosed(stencil, size, integrator, step_size, verdict):
    """As they are: what Lanczos and Arnoldi find of them, and what they do not."""
    block = wave_or_heat(stencil, integrator, step_size)
    assert block_stability(block, signal(size), num_iterations=1).verdict.name == verdict


@pytest.mark.usefixtures("impatient")
def test_a_wave_whose_k_is_not_known_to_be_injective_is_said_to_be_just_that():
    block = wave_or_heat(DIFFERENCE, "leapfrog", 0.5)
    verdict = block_stability(block, signal(2048), num_iterations=1).verdict
    assert verdict.failing == ("every K is injective",)
    assert "not known whether every K is injective" in verdict.reason
    assert "found no eigenvalue" in verdict.reason


@pytest.mark.usefixtures("impatient")
def test_the_norm_of_k_has_both_bounds_without_a_converged_eigenvalue():
    block = wave_or_heat(DIFFERENCE, "forward_euler", 0.25)
    found = convolution_norm(block.layers[0].convolution, (2048,))
    assert found.upper == pytest.approx(2)
    assert 1.9 < found.lower <= found.upper


def test_a_verdict_that_needs_the_norm_alone_does_not_wait_for_an_eigenvalue(monkeypatch):
    """Not even for one that would be found."""

    def refuse(*arguments, **options):
        raise AssertionError("an eigenvalue was computed")

    monkeypatch.setattr(spectra, "_lanczos", refuse)
    monkeypatch.setattr(spectra, "_arnoldi", refuse)
    from pdecnn.diagnostics import guaranteed_bound

    block = wave_or_heat(DIFFERENCE, "forward_euler", 0.25)
    assert guaranteed_bound(ForwardEuler(), block.layers, (2048,)) == pytest.approx(0.5)


@pytest.mark.usefixtures("impatient")
def test_a_missing_number_is_null_in_the_json_with_its_reason():
    found = diagnose_block(wave_or_heat(DIFFERENCE, "forward_euler", 0.25), signal(1100))
    values = json.loads(json.dumps(block_values(found), allow_nan=False))
    (step,) = values["stability"]["steps"]
    assert step["local_bound"] is step["amplification"] is step["system"] is None
    (layer,) = step["layers"]
    assert layer["largest_symmetric_eigenvalue"] is layer["spectral_radius"] is None
    assert layer["num_eigenvalues"] == 0
    assert layer["complete"] is False
    assert {entry["number"] for entry in step["missing"]} == {
        missing.number for missing in found.stability.steps[0].missing
    }
    assert all(entry["reason"] for entry in step["missing"])


class OwnLayer(nn.Module):
    """F(Y) = -Y."""

    def forward(self, features):
        return -features


def test_a_layer_of_ones_own_has_no_norm_of_k_in_the_json():
    found = diagnose_block(Block([OwnLayer()], "forward_euler"), signal(6), num_iterations=1)
    (step,) = block_values(found)["stability"]["steps"]
    assert step["layers"][0]["norm_upper"] is None
    assert step["missing"] == [
        {
            "number": "norm of K of layer 0",
            "reason": "OwnLayer is not one of pdecnn's layers, so that its K is not known",
        }
    ]


def test_a_method_without_a_rule_has_its_reason_too():
    class Stride(ForwardEuler):
        """An integrator of one's own."""

    block = Block([equations.make_layer(channels=1)], Stride(), step_size=0.1)
    (step,) = block_stability(block, signal(6), num_iterations=1).steps
    assert step.local_bound is None
    assert step.why_missing("local bound") == "no step bound is known for Stride"
