"""Verdicts in plain words: what is proved is called so, and nothing else is."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from pdecnn.diagnostics import (
    block_stability,
    diagnose_block,
    network_stability,
    spectrum,
    stability,
    step_jacobian,
    system_jacobian,
)
from pdecnn.diagnostics.verdict import VERDICTS
from pdecnn.pde import Activation, Block, SymmetricLayer
from tests.blocks import (
    every_integrator,
    every_reversible,
    make_block,
    make_features,
    randomize_,
)
from tests.unit.diagnostics import equations
from tests.unit.learning.trainings import make_network

ONE = torch.ones(1, 1, 1, dtype=torch.float64)
DECREASING = Activation(
    name="decreasing", function=lambda x: -x.clamp(min=0), slope_range=(-1.0, 0.0)
)
SIZE = (6,)


def verdict_of(block, features, **options):
    return block_stability(block, features, num_iterations=5, **options).verdict


def plain_block(
    integrator="forward_euler", *, share=0.9, activation="relu", num_steps=3, **options
):
    """A random block without normalisation at a share of the bound 2/|K|^2."""
    layers = [
        randomize_(equations.make_layer(channels=2, activation=activation, **options), seed)
        for seed in range(num_steps)
    ]
    features = make_features(channels=2, size=SIZE, dimension=1)
    probe = equations.make_block(integrator, layers, step_size=1.0)
    bounds = [
        step.guaranteed_bound
        for step in block_stability(probe, features, num_iterations=1).steps
        if step.guaranteed_bound is not None
    ]
    step_size = share * min(bounds, default=1.0)
    return equations.make_block(integrator, layers, step_size=step_size, num_steps=num_steps)


@pytest.mark.parametrize("integrator", ["forward_euler", "runge_kutta_4"])
@pytest.mark.parametrize(
    "activation",
    ["relu", *(pytest.param(name, marks=pytest.mark.slow) for name in ("tanh", "identity"))],
)
def test_a_plain_parabolic_block_below_the_bound_is_guaranteed(integrator, activation):
    block = plain_block(integrator, activation=activation)
    features = make_features(channels=2, size=SIZE, dimension=1)
    found = block_stability(block, features)
    assert found.verdict.name == "guaranteed"
    assert "Theorem 1" in found.verdict.theorem
    assert not found.verdict.failing
    assert max(growth.constant for growth in found.growth) <= 1 + 1e-12
    for step in found.steps:
        assert step.step_size <= step.guaranteed_bound <= step.local_bound * (1 + 1e-9)
        assert step.amplification <= 1 + 1e-12
        assert max(step.symmetric_eigenvalues) <= 1e-12


def test_a_plain_parabolic_block_above_the_bound_is_not_guaranteed():
    block = plain_block(share=1.01)
    verdict = verdict_of(block, make_features(channels=2, size=SIZE, dimension=1))
    assert verdict.name == "measured"
    assert len(verdict.failing) == 1
    assert "at most the guaranteed bound" in verdict.failing[0]
    assert f"since step_size {block.step_size:.4g} is above the guaranteed bound" in verdict.reason


def test_the_kink_example_is_not_guaranteed():
    """K = diag(1, 10), second unit off: below the local bound 2, above the guaranteed 0.02."""
    layer = equations.make_layer([[1.0, 0.0], [0.0, 10.0]], activation="relu")
    block = equations.make_block("forward_euler", [layer], step_size=1.0)
    found = block_stability(block, torch.tensor([[[1.0], [-1.0]]], dtype=torch.float64))
    assert found.steps[0].local_bound == pytest.approx(2)
    assert found.steps[0].guaranteed_bound == pytest.approx(0.02)
    assert found.verdict.name == "measured"


@pytest.mark.parametrize("integrator", ["leapfrog", "leapfrog_second_order"])
def test_the_counterexample_to_theorem_2_is_measured(integrator):
    layer = equations.make_layer([[1.0]], activation="relu")
    block = equations.make_block(integrator, [layer], step_size=1.0, num_steps=20)
    found = block_stability(block, ONE, num_iterations=1)
    assert found.verdict.name == "measured"
    assert found.verdict.failing == ("the layers are linear",)
    assert "Theorem 2 is false" in found.verdict.theorem
    assert max(growth.constant for growth in found.growth) > 10


@every_integrator
@pytest.mark.parametrize(
    "activation",
    ["relu", *(pytest.param(name, marks=pytest.mark.slow) for name in ("tanh", "identity"))],
)
def test_a_tv_normalised_block_is_never_guaranteed(integrator, activation):
    block = make_block(integrator, dimension=1, activation=activation, step_size=1e-6)
    verdict = verdict_of(block, make_features(dimension=1))
    assert verdict.name == "measured"
    assert "the layers have no normalisation" in verdict.failing
    assert "nothing is proved, since the layers have a normalisation" in verdict.reason


@pytest.mark.parametrize("dynamics", ["resnet", "parabolic", "hamiltonian", "second_order"])
def test_the_papers_networks_are_never_guaranteed(dynamics):
    network = make_network(dynamics, channels=(4, 4, 4))
    images = network.preprocess(torch.rand(2, 1, 8, 8))
    found = network_stability(network, images, num_iterations=3)
    assert len(found) == 2
    hyperbolic = dynamics in ("hamiltonian", "second_order")
    for block in found:
        assert block.verdict.name in ("measured", "unstable")
        assert len(block.steps) == 3
        assert len(block.growth) == (6 if hyperbolic else 3)
        assert [growth.backward for growth in block.growth] == [False] * 3 + [True] * (
            3 if hyperbolic else 0
        )


def linear_waves(integrator, matrices, share, *, num_steps=4):
    layers = [equations.make_layer(matrix) for matrix in matrices]
    block = equations.make_block(integrator, layers, step_size=1.0)
    features = torch.ones(1, block.integrator.block_channels(2), 1, dtype=torch.float64)
    (step,) = block_stability(block, features, num_iterations=1).steps
    block = equations.make_block(
        integrator, layers, step_size=share * step.local_bound, num_steps=num_steps
    )
    return block_stability(block, features)


INJECTIVE = [[1.0, 0.3], [0.0, 2.0]]
SINGULAR = [[1.0, 0.5], [2.0, 1.0]]


@every_reversible
def test_linear_waves_below_the_bound_are_bounded(integrator):
    found = linear_waves(integrator, [INJECTIVE] * integrator.layers_per_step, 0.99)
    assert found.verdict.name == "bounded"
    assert found.steps[0].amplification == pytest.approx(1)


def test_bounded_waves_that_grow_240_fold_are_not_said_to_neither_grow_nor_decay():
    """A constant bounds them; it may be large, and what was measured is said."""
    waves = equations.make_layer([[0.002]])
    block = equations.make_block("leapfrog", [waves], step_size=100.0, num_steps=8)
    found = block_stability(block, ONE, num_iterations=2)
    largest = max(growth.constant for growth in found.growth)
    assert found.verdict.name == "bounded"
    assert largest > 240
    assert found.verdict.reason == (
        "perturbations stay below a constant, which may be large, at any depth: every eigenvalue "
        f"of a step has magnitude 1. On these features they grew at most {largest:.3g}-fold"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"activation": torch.sin}, "sin declares no slopes"),
        ({"activation": DECREASING}, "the slopes of decreasing begin at -1"),
        ({"affine": True}, "a scale is negative"),
        ({"normalization": "batch"}, "the layers have a normalisation"),
    ],
)
def test_a_condition_that_is_not_met_is_said_as_it_is(options, said):
    layer = equations.make_layer(channels=2, **{"activation": "relu", **options})
    if "affine" in options:
        with torch.no_grad():
            layer.normalization.scale.fill_(-1.0)
    block = equations.make_block("forward_euler", [layer], step_size=1e-6)
    verdict = verdict_of(block, make_features(channels=2, size=SIZE, dimension=1))
    assert verdict.reason.startswith(f"nothing is proved, since {said}. On these features ")


def test_the_slopes_of_an_activation_of_ones_own_are_declared_not_known():
    steep = Activation(name="steep", function=lambda x: 2 * x, slope_range=(2.0, 2.0))
    layer = equations.make_layer(channels=2, activation=steep)
    block = equations.make_block("forward_euler", [layer], step_size=1e-3)
    verdict = verdict_of(block, make_features(channels=2, size=SIZE, dimension=1))
    statements = [found.statement for found in verdict.assumptions]
    assert verdict.name == "guaranteed"
    assert "steep is declared not to decrease" in statements


@every_reversible
def test_linear_waves_above_the_bound_are_unstable(integrator):
    found = linear_waves(integrator, [INJECTIVE] * integrator.layers_per_step, 1.05, num_steps=1)
    assert found.verdict.name == "unstable"
    assert "grows without limit" in found.verdict.reason
    assert found.steps[0].amplification > 1.1


@every_reversible
def test_linear_waves_with_a_null_vector_are_measured(integrator):
    found = linear_waves(integrator, [SINGULAR] * integrator.layers_per_step, 0.5)
    assert found.verdict.name == "measured"
    assert found.verdict.failing == ("every K is injective",)


@every_reversible
def test_waves_that_nothing_drives_back_are_not_bounded(integrator):
    """Where sigma is constant, y'' does not depend on y: velocities never change."""
    flat = Activation(name="flat", function=lambda x: 0 * x, slope_range=(0.0, 0.0))
    width = integrator.layers_per_step
    layers = [equations.make_layer([[1.0]], activation=flat) for _ in range(width)]
    block = equations.make_block(integrator, layers, step_size=0.1, num_steps=3)
    assert verdict_of(block, ONE.expand(1, width, 1)).name == "measured"


def test_linear_waves_whose_weights_change_are_measured():
    layers = [equations.make_layer([[1.0]]), equations.make_layer([[1.1]])]
    block = equations.make_block("leapfrog", layers, step_size=0.1, num_steps=2)
    verdict = verdict_of(block, ONE)
    assert verdict.name == "measured"
    assert verdict.failing == ("the weights are constant in time",)


def test_equal_weights_of_separate_layers_are_constant_in_time():
    layers = [equations.make_layer([[1.0]]) for _ in range(3)]
    block = equations.make_block("leapfrog", layers, step_size=0.1, num_steps=3)
    assert verdict_of(block, ONE).name == "bounded"


def test_linear_heat_above_the_bound_is_unstable():
    block = equations.make_block("forward_euler", [equations.make_layer([[1.0]])], step_size=2.1)
    verdict = verdict_of(block, ONE)
    assert verdict.name == "unstable"
    assert "multiplies some perturbation by 1.1" in verdict.reason


def test_large_measured_growth_above_the_local_bound_is_unstable(monkeypatch):
    layer = equations.make_layer([[2.0]], activation="relu")
    block = equations.make_block("forward_euler", [layer], step_size=20.0)
    verdict = verdict_of(block, ONE)
    assert verdict.name == "unstable"
    assert "exceeds the local bound of step 0, and perturbations grew 79-fold" in verdict.reason
    monkeypatch.setattr(stability, "LARGEST_PIECE", 32)
    found = block_stability(block, ONE.expand(1, 1, 40), dense_size=0)
    assert found.piece == (0, 32)
    assert "the local bound of step 0 on its loudest piece, and perturb" in found.verdict.reason


def test_features_that_overflow_are_unstable():
    layer = equations.make_layer([[1e200]])
    block = equations.make_block("forward_euler", [layer], step_size=1.0, num_steps=4)
    found = block_stability(block, ONE, num_iterations=2)
    assert found.verdict.name == "unstable"
    assert found.steps == ()


@every_integrator
def test_matrix_free_and_dense_agree(integrator):
    block = make_block(integrator, dimension=1, normalization="none", num_steps=1)
    features = make_features(batch=1, dimension=1, size=(9,))
    (free,), (dense,) = (
        block_stability(block, features, dense_size=size, num_iterations=2).steps
        for size in (0, 1000)
    )
    assert free.local_bound == pytest.approx(dense.local_bound, rel=1e-6)
    assert free.symmetric_eigenvalues == pytest.approx(dense.symmetric_eigenvalues, abs=1e-6)
    for low, exact in zip(free.norms, dense.norms, strict=True):
        assert low.lower <= exact.upper
        assert exact.lower <= low.upper


@every_integrator
@pytest.mark.parametrize("dense_size", [0, 1000], ids=["matrix-free", "dense"])
def test_the_spectra_of_a_step_are_those_of_its_jacobians(integrator, dense_size):
    """That of the system is found from smaller matrices where it is a wave."""
    block = make_block(integrator, dimension=1, num_steps=2)
    features = make_features(batch=1, dimension=1, size=(9,))
    state = block.trajectory(features)[1]
    found = block_stability(block, features, dense_size=dense_size, num_iterations=1).steps[1]
    expected = spectrum(system_jacobian(block, state, step=1), dense_size=1000)
    assert found.system_spectrum.radius == pytest.approx(expected.radius, rel=1e-6)
    assert found.system_spectrum.complete == (dense_size > 0)
    if dense_size:
        for value in found.system_spectrum.eigenvalues:
            # A zero of a wave is double and defective: known to a root of the rounding only.
            assert min(abs(value - other) for other in expected.eigenvalues) <= 1e-6
        assert len(found.system_spectrum.eigenvalues) == len(expected.eigenvalues)
    assert len(found.layer_spectra) == integrator.layers_per_step


@pytest.mark.parametrize("integrator", ["forward_euler", "verlet"])
def test_spectra_of_long_signals_are_those_of_the_loudest_piece(integrator, monkeypatch):
    """Of the whole they are where they may be a proof, and where there is no long axis."""
    monkeypatch.setattr(stability, "LARGEST_PIECE", 4 * 33)
    block = make_block(integrator, dimension=1, num_steps=2)
    channels = 4
    features = make_features(batch=3, channels=channels, dimension=1, size=(100,))
    features[0, :, 50:80] *= 9
    found = block_stability(block, features, dense_size=0, num_iterations=1)
    begin, end = found.piece
    assert 47 <= begin <= 50
    assert end - begin == 33
    state = tuple(part[:1, :, begin:end] for part in block.trajectory(features)[1])
    expected = spectrum(system_jacobian(block, state, step=1), dense_size=1000)
    assert found.steps[1].system_spectrum.radius == pytest.approx(expected.radius, rel=1e-6)
    whole = block_stability(block, features[:2], num_iterations=1)
    assert whole.piece is None  # it has no more than 1024 columns
    assert found.growth == whole.growth
    for one, other in zip(found.steps, whole.steps, strict=True):
        assert (one.guaranteed_bound is None) == (other.guaranteed_bound is None)
        for loose, exact in zip(one.norms, other.norms, strict=True):
            assert loose.lower <= exact.upper
            assert exact.lower <= loose.upper
    options = {"activation": "identity", "normalization": "none"}
    linear = make_block(integrator, dimension=1, num_steps=2, **options)
    assert block_stability(linear, features, dense_size=0, num_iterations=1).piece is None
    image = make_features(batch=1, channels=channels, size=(8, 9))
    pixels = make_block(integrator, num_steps=1)
    assert block_stability(pixels, image, dense_size=0, num_iterations=1).piece is None


@every_integrator
def test_every_verdict_says_why(integrator):
    block = make_block(integrator, dimension=1)
    verdict = verdict_of(block, make_features(dimension=1))
    assert verdict.name in VERDICTS
    assert verdict.reason
    assert verdict.theorem
    assert verdict.assumptions


@pytest.mark.parametrize("integrator", ["forward_euler", "leapfrog"])
def test_weight_norm_does_not_hide_a_scale(integrator):
    layer = equations.make_layer(channels=2, activation="identity", affine=True)
    with torch.no_grad():
        layer.normalization.scale.fill_(100.0)
    features = make_features(channels=2, size=SIZE, dimension=1)
    options = {"step_size": 0.2, "num_steps": 3}
    plain = block_stability(equations.make_block(integrator, [layer], **options), features)
    weight_norm(layer.convolution, "stencil")
    found = block_stability(equations.make_block(integrator, [layer], **options), features)
    assert plain.verdict.name == found.verdict.name == "unstable"
    for step, twin in zip(found.steps, plain.steps, strict=True):
        assert (step.guaranteed_bound or 0) == pytest.approx(twin.guaranteed_bound or 0, rel=1e-6)


@pytest.mark.parametrize("change", ["activation", "affine"])
def test_steps_with_equal_weights_but_other_functions_are_not_constant_in_time(change):
    layer = equations.make_layer(channels=2, activation="identity")
    if change == "activation":
        steep = Activation(name="steep", function=lambda x: 900 * x, slope_range=(900, 900))
        other = deepcopy(layer)
        other.activation = steep
    else:
        other = equations.make_layer(channels=2, activation="identity", affine=True)
        other.convolution = deepcopy(layer.convolution)
    block = equations.make_block("leapfrog", [layer, other] * 5, step_size=0.1, num_steps=10)
    features = make_features(channels=2, size=SIZE, dimension=1)
    found = verdict_of(block, features)
    assert found.name != "bounded"
    assert "the weights are constant in time" in found.failing


@every_integrator
def test_the_amplification_is_that_of_the_actual_step(integrator):
    """Of Runge-Kutta 4 too, whose stages meet other slopes than those at the start."""
    block = make_block(integrator, dimension=1, normalization="tv", step_size=0.5).double()
    features = make_features(size=SIZE, dimension=1)
    found = block_stability(block, features, num_iterations=1)
    states = block.trajectory(features)
    for index, step in enumerate(found.steps):
        state = tuple(part[:1] for part in states[index])
        values = torch.linalg.eigvals(step_jacobian(block, state, step=index).dense())
        assert step.amplification == pytest.approx(float(values.abs().max()), rel=1e-5)


class OwnLayer(nn.Module):
    """F(Y) = -tanh(C Y), C a convolution of torch."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Conv1d(2, 2, 3, padding=1)

    def forward(self, features):
        return -torch.tanh(self.inner(features))


@pytest.mark.parametrize("integrator", ["forward_euler", "leapfrog"])
@pytest.mark.parametrize(
    "make_layer", [OwnLayer, lambda: SymmetricLayer(2, stencil_size=5, dimension=1)]
)
def test_a_block_whose_operators_are_not_known_is_diagnosed_all_the_same(make_layer, integrator):
    block = Block([make_layer()], integrator, step_size=0.1, num_steps=2)
    found = diagnose_block(block, torch.randn(2, 2, 6), num_iterations=2)
    assert found.stability.verdict.name == "measured"
    assert found.coefficients.steps == ()
    assert found.latex == ()
    assert [errors.gradient < 0.1 for errors in found.reversibility] == (
        [True] * 3 if integrator == "leapfrog" else []
    )
