"""The constant M of eq. 6: against depth, forwards and backwards, for three perturbations."""

from math import inf

import pytest
import torch

from pdecnn.diagnostics import measure_growth
from pdecnn.errors import ConfigError
from pdecnn.pde.block import Block
from pdecnn.pde.layers import SymmetricLayer
from tests.blocks import (
    REVERSIBLE,
    every_integrator,
    every_reversible,
    integrator_name,
    make_block,
    make_features,
)
from tests.dense import jacobian
from tests.heat import heat_layer, laplacian_eigenvalues
from tests.unit.diagnostics import equations

every_perturbation = pytest.mark.parametrize("perturbation", ["random", "noise", "worst"])


@pytest.mark.slow
@every_integrator
def test_the_worst_growth_is_the_largest_singular_value_at_each_depth(integrator):
    block = make_block(integrator, dimension=1)
    features = make_features(dimension=1, size=(3,))
    found = measure_growth(block, features, num_iterations=40)
    assert found.constants[0] == 1
    for depth in range(1, 4):
        width = integrator.layers_per_step
        shallow = equations.make_block(
            integrator, block.layers[: depth * width], step_size=0.5, num_steps=depth
        )
        norms = [torch.linalg.matrix_norm(jacobian(shallow, image), ord=2) for image in features]
        exact = float(max(norms))
        assert 0.97 * exact <= found.constants[depth] <= exact * (1 + 1e-9)
    assert found.constant == max(found.constants)


def test_the_worst_growth_leaves_a_direction_that_is_worst_no_longer():
    # Two oscillators, y_{n+1} = (2 - p) y_n - y_{n-1}: after one step the slow one has 0.9 and
    # the fast one 0, after two 0.71 and -1; both are singular vectors at every depth.
    layer = SymmetricLayer(
        2, stencil_size=1, dimension=1, activation="identity", normalization="none", affine=False
    )
    with torch.no_grad():
        layer.convolution.stencil.copy_(torch.tensor([0.1, 1.0]).sqrt().diag()[..., None])
    block = Block([layer], "leapfrog", num_steps=2)
    found = measure_growth(block, torch.ones(1, 2, 1))
    assert found.constants == pytest.approx((1, 0.9, 1.0), rel=1e-3)


@pytest.mark.slow
@every_reversible
def test_the_worst_growth_backwards_inverts_the_least_growth_forwards(integrator):
    block = make_block(integrator, dimension=1, activation="identity", normalization="none")
    features = make_features(batch=1, dimension=1, size=(3,))
    found = measure_growth(block, features, backward=True, num_iterations=100)
    state = block.trajectory(features)[0]

    def propagate(flat):
        parts = flat.chunk(2, dim=1)
        moved = tuple(part.reshape(wanted.shape) for part, wanted in zip(parts, state, strict=True))
        for layers in block.steps:
            moved = integrator.step(layers, moved, block.step_size)
        return torch.cat([part.flatten(1) for part in moved], dim=1)

    matrix = jacobian(propagate, torch.cat([part.flatten() for part in state]).detach())
    smallest = float(torch.linalg.svdvals(matrix)[-1])
    assert found.constants[-1] == pytest.approx(1 / smallest, rel=3e-2)
    assert found.constants[-1] <= (1 + 1e-9) / smallest


@every_perturbation
def test_heat_below_its_bound_never_grows(perturbation):
    """M = 1 in every perturbation and at every depth: Theorem 1 (eq. 6)."""
    layer = heat_layer(1)
    step_size = 1.9 / float(laplacian_eigenvalues((12,))[-1])
    block = equations.make_block("forward_euler", [layer], step_size=step_size, num_steps=10)
    features = make_features(channels=1, size=(12,), dimension=1)
    constants = measure_growth(
        block, features, perturbation=perturbation, num_iterations=5
    ).constants
    assert len(constants) == 11
    assert max(constants) <= 1 + 1e-12
    assert constants[-1] < 1


@every_perturbation
def test_a_distance_that_shrinks_may_grow_relative_to_the_features(perturbation):
    """Heat halves the first channel, the large one, and leaves nine tenths of the second."""
    layer = equations.make_layer([[0.5**0.5, 0.0], [0.0, 0.1**0.5]])
    block = equations.make_block("forward_euler", [layer], step_size=1.0, num_steps=3)
    features = torch.tensor([[[1.0], [0.0]], [[0.0], [0.0]]], dtype=torch.float64)
    found = measure_growth(block, features, perturbation=perturbation)
    assert found.constants[-1] < 1 < found.relative_constants[-1]
    assert found.relative_constants[0] == pytest.approx(1)
    if perturbation == "worst":
        assert found.constants == pytest.approx((1, 0.9, 0.9**2, 0.9**3), rel=1e-3)
        assert found.relative_constants == pytest.approx((1, 1.8, 1.8**2, 1.8**3), rel=1e-3)
    assert found.relative_constant == max(found.relative_constants)


@every_perturbation
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_no_perturbation_beats_the_worst_one_of_a_linear_block(perturbation, backward):
    block = make_block("leapfrog", dimension=1, activation="identity", normalization="none")
    features = make_features(dimension=1, size=(3,))
    options = {"backward": backward, "num_iterations": 40}
    worst = measure_growth(block, features, **options).constants
    found = measure_growth(block, features, perturbation=perturbation, **options).constants
    assert all(a <= b * (1 + 1e-9) for a, b in zip(found, worst, strict=True))


def test_small_noise_grows_like_a_derivative():
    block = make_block("verlet")
    features = make_features(batch=1)
    random = measure_growth(block, features, perturbation="random", num_draws=1)
    noise = measure_growth(block, features, perturbation="noise", num_draws=1, noise_size=1e-7)
    assert noise.constants == pytest.approx(random.constants, rel=1e-4)


@every_perturbation
def test_growth_beyond_all_numbers_is_infinite(perturbation):
    layer = equations.make_layer([[1e200]])
    block = equations.make_block("forward_euler", [layer], step_size=1.0, num_steps=4)
    features = torch.ones(1, 1, 1, dtype=torch.float64)
    assert measure_growth(block, features, perturbation=perturbation).constant == inf


@every_perturbation
def test_features_and_perturbations_that_vanish_are_no_trouble(perturbation):
    layer = equations.make_layer([[1.0]])
    block = equations.make_block("forward_euler", [layer], step_size=1.0, num_steps=3)
    features = torch.zeros(1, 1, 1, dtype=torch.float64)
    found = measure_growth(block, features, perturbation=perturbation).constants
    assert found == pytest.approx((1, 0, 0, 0))


@pytest.mark.parametrize("integrator", REVERSIBLE, ids=integrator_name)
def test_a_block_of_mode_exact_is_measured_without_its_grid(integrator):
    features = make_features()
    stored = measure_growth(make_block(integrator), features, num_iterations=2)
    exact = make_block(integrator, backprop="exact")
    assert measure_growth(exact, features, num_iterations=2) == stored


def test_theorem_2_fails_growth_is_linear_for_ever():
    """Scalar ReLU, K = 1: |y - y~| is about 8.4, 98, 998 at T = 10, 100, 1000."""
    layer = equations.make_layer([[1.0]], activation="relu")
    features = torch.ones(1, 1, 1, dtype=torch.float64)
    block = equations.make_block("leapfrog", [layer], step_size=0.05, num_steps=2000)
    found = measure_growth(block, features, perturbation="noise", noise_size=0.5, num_draws=1)
    # Half the starting distance, y0 = 1 and 0.5 or 1.5, is also half of the distance at T.
    assert found.constants[200] == pytest.approx(8.4, abs=0.1)
    assert found.constants[2000] == pytest.approx(98.4, abs=0.5)


def test_parabolic_blocks_do_not_run_backwards():
    with pytest.raises(ConfigError, match="forward_euler steps cannot be undone"):
        measure_growth(make_block("forward_euler"), make_features(), backward=True)


def test_unknown_perturbations_are_refused():
    with pytest.raises(ConfigError, match="did you mean 'worst'"):
        measure_growth(make_block("verlet"), make_features(), perturbation="worse")


@pytest.mark.parametrize(
    ("num_steps", "expected"),
    [
        (1, (0, 1)),
        (16, tuple(range(17))),
        (32, tuple(range(0, 33, 2))),
        (50, (0, 3, 6, 9, 12, 16, 19, 22, 25, 28, 31, 34, 38, 41, 44, 47, 50)),
    ],
)
@every_perturbation
def test_the_worst_of_deep_blocks_is_measured_at_some_depths(num_steps, expected, perturbation):
    """y' = -y by Euler's method: every perturbation falls to (1 - dt)^j."""
    layer = equations.make_layer([[1.0]])
    block = equations.make_block("forward_euler", [layer], step_size=0.1, num_steps=num_steps)
    found = measure_growth(
        block, torch.ones(1, 1, 1, dtype=torch.float64), perturbation=perturbation
    )
    assert found.depths == (expected if perturbation == "worst" else tuple(range(num_steps + 1)))
    assert found.constants == pytest.approx([0.9**depth for depth in found.depths])
