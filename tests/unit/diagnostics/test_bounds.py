"""Step bounds are sharp on linear blocks, and those of dense Jacobians on others."""

from math import inf, sqrt

import numpy
import pytest
import torch

from pdecnn.diagnostics import guaranteed_bound, local_bound
from pdecnn.diagnostics.guarantees import sufficient_linear_bound
from pdecnn.pde import INTEGRATORS, ForwardEuler, Leapfrog, RungeKutta4, SymmetricLayer, Verlet
from tests.blocks import make_features, randomize_
from tests.dense import dense_convolution, jacobian
from tests.unit.diagnostics.equations import make_block, make_layer

SIZE = (8,)
BY_NAME = {integrator.name: integrator for integrator in INTEGRATORS}
both_ways = pytest.mark.parametrize("dense_size", [0, 1000], ids=["matrix-free", "dense"])


def linear_layers(integrator, channels=2):
    """Injective K: random ones on 8 pixels with 2 -> 2 channels."""
    layers = [make_layer(channels=channels) for _ in range(integrator.layers_per_step)]
    for seed, layer in enumerate(layers):
        randomize_(layer, seed, deviation=0.7)
        assert torch.linalg.matrix_rank(dense_convolution(layer.convolution, SIZE)) == 16
    return layers


def worst_start(integrator, layers):
    """The features whose oscillation or decay is the fastest."""
    first, *others = [dense_convolution(layer.convolution, SIZE) for layer in layers]
    gram = first.T @ first
    if not others:
        return torch.linalg.eigh(gram)[1][:, -1].reshape(1, 2, 8)
    product = gram @ (others[0].T @ others[0])
    values, vectors = torch.linalg.eig(product)
    vector = vectors[:, values.real.argmax()].real
    features = torch.stack([vector, torch.zeros_like(vector)])
    return features.reshape(1, 4, 8) / features.norm()


def trajectory_norms(integrator, share, num_steps, dense_size):
    layers = linear_layers(integrator)
    start = worst_start(integrator, layers)
    state = integrator.start(start, layers, 0.0)
    bound = local_bound(integrator, layers, state, 1.0, dense_size=dense_size)
    block = make_block(integrator, layers, step_size=share * bound, num_steps=num_steps)
    with torch.no_grad():
        states = block.trajectory(start)
    return [float(integrator.finish(state).norm() / start.norm()) for state in states]


@both_ways
@pytest.mark.parametrize(
    ("name", "share", "expected"),
    [
        ("forward_euler", 0.99, 0.98),
        ("forward_euler", 1.05, 1.10),
        ("runge_kutta_4", 0.99, 0.959),
        ("runge_kutta_4", 1.05, 1.231),
    ],
)
def test_heat_bounds_are_sharp(name, share, expected, dense_size):
    found = trajectory_norms(BY_NAME[name], share, 1, dense_size)[1]
    assert found == pytest.approx(expected, abs=5e-4)


@both_ways
@pytest.mark.parametrize("name", ["leapfrog", "leapfrog_second_order", "verlet"])
def test_wave_bounds_are_sharp(name, dense_size):
    assert max(trajectory_norms(BY_NAME[name], 0.99, 1000, dense_size)) < 10
    assert max(trajectory_norms(BY_NAME[name], 1.05, 50, dense_size)) > 1e6


@both_ways
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_local_bounds_are_those_of_the_dense_jacobian(activation, dense_size):
    layers = [randomize_(make_layer(channels=2, activation=activation), seed) for seed in range(2)]
    features = make_features(batch=1, channels=2, size=SIZE, dimension=1)
    other = make_features(batch=1, channels=2, size=SIZE, dimension=1, seed=5)
    largest = -float(torch.linalg.eigvalsh(jacobian(layers[0], features[0]).detach())[0])
    for integrator, state, expected in (
        (ForwardEuler(), (features,), 2 / largest),
        (RungeKutta4(), (features,), 2.7853 / largest),
        (Leapfrog(), (features, other), 2 / sqrt(largest)),
    ):
        found = local_bound(integrator, layers[:1], state, 0.3, dense_size=dense_size)
        assert found == pytest.approx(expected, rel=1e-5), integrator
    with torch.no_grad():
        moved = features + 0.3 * layers[0](other)
    product = jacobian(layers[0], other[0]) @ jacobian(layers[1], moved[0])
    largest = float(torch.linalg.eigvals(product.detach()).real.max())
    found = local_bound(Verlet(), layers, (features, other), 0.3, dense_size=dense_size)
    assert found == pytest.approx(2 / sqrt(largest), rel=1e-6)


def test_the_general_euler_bound_touches_the_unit_circle():
    bound = ForwardEuler.stability.bound(-1 + 3j)
    assert bound == pytest.approx(2 / 10)
    assert ForwardEuler.stability.growth(bound * (-1 + 3j)) == pytest.approx(1)
    assert ForwardEuler.stability.bound(1e-3) == 0
    assert ForwardEuler.stability.bound(1j) == 0


@pytest.mark.parametrize("value", [-1, -1 + 1j, -0.3 - 2j, -0.01 + 1j, 1j, -7])
def test_the_runge_kutta_bound_is_where_the_amplification_leaves_the_unit_disk(value):
    bound = RungeKutta4.stability.bound(value)

    def amplification(step_size):
        z = step_size * value
        return abs(1 + z + z**2 / 2 + z**3 / 6 + z**4 / 24)

    assert RungeKutta4.stability.growth(0.3 * value) == pytest.approx(amplification(0.3))
    assert amplification(bound) == pytest.approx(1, abs=1e-9)
    assert amplification(1.001 * bound) > 1
    assert all(amplification(share * bound) <= 1 for share in numpy.linspace(0, 0.999, 200))


def test_the_real_limit_of_runge_kutta():
    rule = RungeKutta4.stability
    assert rule.linear == pytest.approx(2.7853, abs=5e-5)
    assert rule.bound(-1.0) == pytest.approx(rule.linear, rel=1e-12)
    assert rule.bound(1j) == pytest.approx(sqrt(8), rel=1e-9)
    assert rule.bound(0.1) == 0


def test_oscillations_are_bounded_only_where_frequencies_are_real():
    rule = Verlet.stability
    assert rule.bound(-4.0) == pytest.approx(1)
    assert rule.growth(-3.99) == pytest.approx(1)
    assert rule.growth(-4.01) > 1.1
    assert rule.bound(1e-3) == 0
    assert rule.bound(-1 + 0.1j) == 0
    assert rule.bound(0.0) == inf


def test_the_kink_example_local_two_yet_197_fold():
    """K = diag(1, 10), the second unit off: the local bound 2 is no guarantee."""
    layer = make_layer([[1.0, 0.0], [0.0, 10.0]], activation="relu")
    off = torch.tensor([[[1.0], [-1e-9]]], dtype=torch.float64)
    assert local_bound(ForwardEuler(), [layer], (off,), 1.98) == pytest.approx(2)
    assert guaranteed_bound(ForwardEuler(), [layer], (1,)) == pytest.approx(0.02)
    other = torch.tensor([[[1.0], [1.0]]], dtype=torch.float64)
    block = make_block("forward_euler", [layer], step_size=1.98)
    with torch.no_grad():
        expansion = (block(other) - block(off)).norm() / (other - off).norm()
    assert float(expansion) == pytest.approx(197, abs=0.5)


@both_ways
def test_guaranteed_bounds_are_below_the_exact_ones(dense_size):
    layer = randomize_(make_layer(channels=3, activation="relu", affine=True), 3)
    with torch.no_grad():
        layer.normalization.scale.abs_()
    matrix = dense_convolution(layer.convolution, SIZE)
    root = layer.normalization.scale.detach().sqrt().repeat_interleave(8)
    exact = 2 / float(torch.linalg.matrix_norm(root[:, None] * matrix, ord=2)) ** 2
    for integrator in (ForwardEuler(), RungeKutta4()):
        found = guaranteed_bound(integrator, [layer], SIZE, dense_size=dense_size)
        assert 0.7 * exact <= found <= exact


def test_what_is_not_monotone_has_no_guarantee():
    negative = randomize_(make_layer(channels=2, affine=True), 0)
    with torch.no_grad():
        negative.normalization.scale[0] = -1
    for layer in (
        negative,
        make_layer(channels=2, activation=torch.sin),
        make_layer(channels=2, activation="relu", normalization="tv"),
        make_layer(channels=2, activation="identity", normalization="tv"),
        make_layer(channels=2, activation="identity", normalization="batch"),
        torch.nn.Identity(),
    ):
        assert guaranteed_bound(ForwardEuler(), [layer], SIZE) is None
        assert sufficient_linear_bound(Leapfrog(), [layer], SIZE) is None


def test_total_variation_denoising_is_guaranteed():
    layer = make_layer(channels=2, normalization="tv", affine=False)
    norm = float(torch.linalg.matrix_norm(dense_convolution(layer.convolution, SIZE), ord=2))
    found = guaranteed_bound(ForwardEuler(), [layer], SIZE)
    assert found == pytest.approx(2 * sqrt(1e-3) / norm**2)


def test_hyperbolic_steps_are_never_guaranteed():
    layers = linear_layers(Verlet())
    for integrator in (Verlet(), Leapfrog(), Leapfrog(second_order_start=True)):
        assert guaranteed_bound(integrator, layers[: integrator.layers_per_step], SIZE) is None


@both_ways
@pytest.mark.parametrize("integrator", [Leapfrog(), Verlet()], ids=["leapfrog", "verlet"])
def test_the_sufficient_bound_of_waves_is_sufficient(integrator, dense_size):
    layers = linear_layers(integrator)
    features = make_features(batch=1, channels=2, size=SIZE, dimension=1)
    sufficient = sufficient_linear_bound(integrator, layers, SIZE, dense_size=dense_size)
    exact = local_bound(integrator, layers, (features, features), 1.0, dense_size=dense_size)
    assert 0.3 * exact <= sufficient <= exact * (1 + 1e-9)


def test_without_k_every_step_is_stable():
    layer = SymmetricLayer(2, normalization="none", dimension=1).double()
    torch.nn.init.zeros_(layer.convolution.stencil)
    features = make_features(batch=1, channels=2, size=SIZE, dimension=1)
    assert guaranteed_bound(ForwardEuler(), [layer], SIZE) == inf
    for integrator in (ForwardEuler(), RungeKutta4()):
        assert local_bound(integrator, [layer], (features,), 1.0) == inf
    assert local_bound(Leapfrog(), [layer], (features, features), 1.0) == inf
    assert local_bound(Verlet(), [layer, layer], (features, features), 1.0) == inf


def test_the_disk_of_contractivity_of_runge_kutta_has_radius_one():
    """min eig of B^(-1/2) (B A + A^T B - b b^T) B^(-1/2) is -1, as for Euler."""
    stages = numpy.zeros((4, 4))
    stages[1, 0], stages[2, 1], stages[3, 2] = 0.5, 0.5, 1.0
    weights = numpy.array([1, 2, 2, 1]) / 6
    matrix = numpy.diag(weights) @ stages
    matrix = matrix + matrix.T - numpy.outer(weights, weights)
    root = numpy.diag(weights**-0.5)
    assert numpy.linalg.eigvalsh(root @ matrix @ root)[0] == pytest.approx(-1)
