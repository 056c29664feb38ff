"""A user's integrators and layer: every row of a diagnosis that applies to them is filled."""

import json

import pytest
import torch

from pdecnn.diagnostics import diagnose_block
from pdecnn.diagnostics.diagnosis import block_values
from pdecnn.diagnostics.guarantees import departure, is_linear, is_monotone
from pdecnn.pde import Block, SymmetricLayer
from tests.blocks import integrator_name, make_features, randomize_
from tests.plugin_example import INTEGRATORS, ExplicitMidpoint, ImplicitMidpoint, LeakyLayer

every_own = pytest.mark.parametrize("integrator", INTEGRATORS, ids=integrator_name)
FEATURES = {"batch": 2, "channels": 2, "size": (4, 3)}


def diagnosed(integrator, layer_class=SymmetricLayer, *, step_size=0.05, activation="tanh"):
    layers = [
        randomize_(layer_class(2, activation=activation, normalization="none"), seed)
        for seed in range(2)
    ]
    block = Block(layers, integrator, step_size=step_size).double()
    return diagnose_block(block, make_features(**FEATURES), num_iterations=2)


@every_own
@pytest.mark.parametrize("layer_class", [SymmetricLayer, LeakyLayer])
def test_every_number_that_applies_is_there(integrator, layer_class):
    found = diagnosed(integrator, layer_class)
    for step in found.stability.steps:
        assert step.missing == ()
        assert step.local_bound is not None
        assert step.amplification is not None
        assert step.system_spectrum is not None
        assert step.system_spectrum.complete
        assert len(step.system_spectrum.eigenvalues) == 2 * 4 * 3
    assert {growth.backward for growth in found.stability.growth} == {False, True}
    assert len(found.reversibility) == 3
    assert max(errors.gradient for errors in found.reversibility[:2]) < 1e-4
    assert len(found.coefficients.steps) == 2
    assert found.energy.norms.shape == (3, 2)
    # A potential and the sum in LaTeX are known of layers that declare what they are.
    symmetric = layer_class is SymmetricLayer
    assert (found.energy.raw is not None) == symmetric
    assert (len(found.latex) == 2) == symmetric
    json.dumps(block_values(found), allow_nan=False)


def test_the_implicit_midpoint_never_expands_distances():
    verdict = diagnosed(ImplicitMidpoint()).stability.verdict
    assert verdict.name == "guaranteed"


def test_the_explicit_midpoint_multiplies_heat_at_every_step():
    found = diagnosed(ExplicitMidpoint(), activation="identity").stability
    assert found.verdict.name in ("unstable", "measured")
    assert {step.local_bound for step in found.steps} == {0.0}
    assert all(step.amplification > 1.01 for step in found.steps)


def test_a_subclass_inherits_no_guarantee():
    class Tweaked(ImplicitMidpoint):
        """Whose step may be anything."""

    found = diagnosed(Tweaked()).stability
    assert found.verdict.name == "measured"
    assert "no guaranteed step bound is known for Tweaked" in found.verdict.reason
    assert found.steps[0].why_missing("local bound") == "no step bound is known for Tweaked"


def test_a_layer_that_declares_itself_symmetric_has_the_proof_and_its_subclass_has_not():
    class Declared(SymmetricLayer):
        deterministic = True
        symmetric = True

    class Inherits(Declared):
        pass

    verdicts = [
        diagnosed("forward_euler", kind).stability.verdict.name for kind in (Declared, Inherits)
    ]
    assert verdicts == ["guaranteed", "measured"]


def test_amplification_of_the_explicit_midpoint_is_that_of_its_step():
    layer = randomize_(SymmetricLayer(2, activation="identity", normalization="none"), 0)
    block = Block([layer], ExplicitMidpoint(), step_size=0.05).double()
    features = make_features(**{**FEATURES, "batch": 1})
    (step,) = diagnose_block(block, features, num_iterations=1).stability.steps

    def flat_step(vector):
        state = tuple(part.view_as(features) for part in vector.chunk(2))
        return torch.cat([part.flatten() for part in block.integrator.step([layer], state, 0.05)])

    matrix = torch.func.jacrev(flat_step)(torch.cat([features.flatten()] * 2))
    radius = float(torch.linalg.eigvals(matrix.detach()).abs().max())
    assert step.amplification == pytest.approx(radius, rel=1e-6)


def test_a_layer_that_says_nothing_of_its_form_is_not_taken_to_be_linear():
    class Squared(LeakyLayer):
        deterministic = True

        def forward(self, features):
            return self.pre_activation(features) ** 2

    layer = Squared(2, activation="identity", normalization="none")
    assert departure(layer) is None
    assert not is_linear(layer)
    assert not is_monotone(layer)
