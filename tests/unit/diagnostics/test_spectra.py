"""Spectra without matrices: equal to dense ones, and to the closed forms of heat and waves."""

import numpy
import pytest
import torch

from pdecnn.diagnostics import (
    block_inputs,
    convolution_norm,
    largest_symmetric_eigenvalue,
    layer_jacobian,
    operator_norm,
    spectrum,
    step_jacobian,
    system_jacobian,
)
from pdecnn.diagnostics.spectra import largest_eigenvalue
from pdecnn.errors import ConfigError, DivergedError
from pdecnn.networks import Network, NetworkConfig
from pdecnn.pde import Block, Convolution, ResidualLayer, SymmetricLayer
from tests.blocks import every_integrator, make_block, make_features, randomize_
from tests.dense import dense_convolution, jacobian
from tests.heat import heat_layer, laplacian_eigenvalues
from tests.unit.learning.trainings import make_network

SIZE = (5, 4)


def assert_among(found, all_eigenvalues, tolerance=1e-6):
    """Every found eigenvalue is one of the dense ones, to a share of the largest."""
    scale = numpy.abs(all_eigenvalues).max()
    for value in found:
        assert numpy.abs(all_eigenvalues - value).min() <= tolerance * scale, value


@pytest.mark.parametrize("normalization", ["none", "tv"])
@pytest.mark.parametrize("layer_class", [SymmetricLayer, ResidualLayer])
@pytest.mark.parametrize("activation", ["tanh", pytest.param("relu", marks=pytest.mark.slow)])
def test_spectra_of_a_layer_agree_with_its_dense_jacobian(layer_class, normalization, activation):
    layer = layer_class(3, activation=activation, normalization=normalization).double()
    randomize_(layer, 1)
    features = make_features(batch=1, channels=3, size=SIZE)
    dense = jacobian(layer, features[0]).detach().numpy()
    matrix = layer_jacobian(layer, features)
    numpy.testing.assert_allclose(matrix.dense().numpy(), dense, atol=1e-12)
    eigenvalues = numpy.linalg.eigvals(dense)
    scale = numpy.abs(eigenvalues).max()

    complete = spectrum(matrix)
    assert complete.complete
    assert len(complete.eigenvalues) == 60
    assert complete.radius == pytest.approx(scale, rel=1e-9)

    partial = spectrum(matrix, dense_size=0)
    assert not partial.complete
    assert_among(partial.eigenvalues, eigenvalues)
    assert partial.radius == pytest.approx(scale, rel=1e-6)
    wanted = numpy.linalg.eigvalsh((dense + dense.T) / 2)[-1]
    for dense_size in (0, 1000):
        found = largest_symmetric_eigenvalue(matrix, dense_size=dense_size)
        assert abs(found - wanted) <= 1e-6 * scale
        norm = operator_norm(matrix, dense_size=dense_size)
        assert norm == pytest.approx(numpy.linalg.norm(dense, 2), rel=1e-6)


def test_the_rightmost_eigenvalue_is_found_without_a_matrix():
    layer = randomize_(ResidualLayer(3, normalization="none").double(), 1)
    features = make_features(batch=1, channels=3, size=SIZE)
    eigenvalues = numpy.linalg.eigvals(jacobian(layer, features[0]).detach().numpy())
    found = spectrum(layer_jacobian(layer, features), dense_size=0).largest_real_part
    assert found == pytest.approx(eigenvalues.real.max(), rel=1e-6)


@every_integrator
def test_a_step_jacobian_is_the_derivative_of_the_step(integrator):
    block = make_block(integrator, dimension=1)
    state = block.trajectory(make_features(batch=1, dimension=1))[1]
    matrix = step_jacobian(block, state, step=1)
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(matrix.size, generator=generator, dtype=torch.float64)

    def after(shift):
        parts = (shift * direction).chunk(len(state))
        moved = [part + d.view(part.shape) for part, d in zip(state, parts, strict=True)]
        stepped = integrator.step(block.steps[1], tuple(moved), block.step_size)
        return torch.cat([part.flatten() for part in stepped]).detach()

    wanted = (after(1e-5) - after(-1e-5)) / 2e-5
    torch.testing.assert_close(matrix.apply(direction), wanted, rtol=1e-6, atol=1e-7)
    other = torch.randn(matrix.size, generator=generator, dtype=torch.float64)
    left, right = other @ matrix.apply(direction), matrix.adjoint(other) @ direction
    assert float(left) == pytest.approx(float(right), rel=1e-10)


@pytest.mark.parametrize("dense_size", [0, 1000], ids=["matrix-free", "dense"])
@pytest.mark.parametrize(("dimension", "size"), [(1, (30,)), (2, (7, 6))])
def test_the_heat_equation_has_the_eigenvalues_of_the_laplacian(dimension, size, dense_size):
    features = make_features(batch=1, channels=1, size=size, dimension=dimension)
    matrix = layer_jacobian(heat_layer(dimension), features)
    expected = -laplacian_eigenvalues(size)
    found = spectrum(matrix, dense_size=dense_size)
    assert_among(found.eigenvalues, expected)
    assert found.radius == pytest.approx(-expected[-1], rel=1e-6)
    largest = largest_symmetric_eigenvalue(matrix, dense_size=dense_size)
    assert largest == pytest.approx(expected[0], rel=1e-6)


@pytest.mark.parametrize("dense_size", [0, 1000], ids=["matrix-free", "dense"])
def test_the_wave_equation_has_imaginary_eigenvalues(dense_size):
    """+-i omega with omega^2 the Laplacian's: second order, and Hamiltonian with K_1 = identity."""
    expected = numpy.sqrt(laplacian_eigenvalues((20,)))
    features = make_features(batch=1, channels=1, size=(20,), dimension=1)
    block = Block([heat_layer(1)], "leapfrog", step_size=0.05)
    state = block.trajectory(features)[0]
    found = spectrum(system_jacobian(block, state), dense_size=dense_size)
    scale = float(expected[-1])
    for value in found.eigenvalues:
        assert abs(value.real) <= 1e-6 * scale
        assert numpy.abs(expected - abs(value.imag)).min() <= 1e-6 * scale
    assert found.radius == pytest.approx(scale, rel=1e-6)


@pytest.mark.parametrize(
    "activation", ["relu", "tanh", pytest.param("identity", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("dense_size", [0, 1000], ids=["matrix-free", "dense"])
def test_the_hamiltonian_system_is_imaginary(activation, dense_size):
    """Eigenvalues +-i sqrt(lambda(A B)) (docs/paper-map.md, (10))."""
    block = make_block("verlet", channels=6, activation=activation, normalization="none")
    state = block.trajectory(make_features(batch=1, channels=6, size=SIZE))[1]
    found = spectrum(system_jacobian(block, state, step=1), dense_size=dense_size)
    assert max(abs(value.real) for value in found.eigenvalues) <= 1e-6 * found.radius
    first, second = (
        jacobian(layer, part[0]).detach().numpy()
        for layer, part in zip(block.steps[1], reversed(state), strict=True)
    )
    squares = numpy.linalg.eigvals(first @ second)
    assert found.radius == pytest.approx(float(numpy.sqrt(squares.real.max())), rel=1e-6)


@pytest.mark.parametrize("channels", [(1, 1), (2, 5), (5, 2)])
@pytest.mark.parametrize("dense_size", [0, 1000], ids=["matrix-free", "dense"])
def test_the_norm_of_a_convolution_is_between_its_bounds(channels, dense_size):
    convolution = Convolution(*channels, dtype=torch.float64)
    exact = float(torch.linalg.matrix_norm(dense_convolution(convolution, SIZE), ord=2))
    found = convolution_norm(convolution, SIZE, dense_size=dense_size)
    assert found.lower <= exact * (1 + 1e-12)
    assert exact <= found.upper
    assert found.lower == pytest.approx(exact, rel=1e-6)
    assert found.upper <= 1.3 * exact


def test_the_zero_matrix_has_a_spectrum():
    layer = SymmetricLayer(2, normalization="none").double()
    torch.nn.init.zeros_(layer.convolution.stencil)
    matrix = layer_jacobian(layer, make_features(batch=1, channels=2, size=SIZE))
    for dense_size in (0, 1000):
        assert spectrum(matrix, dense_size=dense_size).radius == 0
        assert largest_eigenvalue(matrix, dense_size=dense_size) == 0
    assert convolution_norm(layer.convolution, SIZE, dense_size=0).lower == 0


@pytest.mark.slow
def test_equal_matrices_give_equal_numbers():
    layer = randomize_(SymmetricLayer(3).double(), 1)
    matrix = layer_jacobian(layer, make_features(batch=1, channels=3, size=SIZE))
    assert spectrum(matrix, dense_size=0) == spectrum(matrix, dense_size=0)


def test_features_that_diverged_have_no_spectrum():
    layer = SymmetricLayer(3).double()
    features = make_features(batch=1, channels=3, size=SIZE)
    features[0, 0, 0, 0] = float("nan")
    for dense_size in (0, 1000):
        with pytest.raises(DivergedError, match="not finite"):
            spectrum(layer_jacobian(layer, features), dense_size=dense_size)


def test_measuring_leaves_the_layer_alone():
    layer = SymmetricLayer(3)
    before = {name: weight.clone() for name, weight in layer.state_dict().items()}
    layer_jacobian(layer, make_features(batch=1, channels=3, size=SIZE)).dense()
    assert layer.dtype == torch.float32
    assert layer.training
    assert all(weight.requires_grad and weight.grad is None for weight in layer.parameters())
    assert all(torch.equal(before[name], weight) for name, weight in layer.state_dict().items())


@pytest.mark.parametrize("step", [-1, 3])
def test_steps_that_do_not_exist_are_refused(step):
    block = make_block("verlet")
    state = block.trajectory(make_features())[0]
    with pytest.raises(ConfigError, match=f"from 0 to 2, found {step}"):
        step_jacobian(block, state, step=step)


def test_the_inputs_of_the_blocks_are_those_of_the_network():
    network = make_network("parabolic")
    images = torch.rand(2, 1, 8, 8)
    inputs = block_inputs(network, images)
    network.eval()
    with torch.no_grad():
        torch.testing.assert_close(inputs[0], network.opening(images))
        outputs = [block(start) for block, start in zip(network.blocks, inputs, strict=True)]
        for found, wanted in zip(outputs, network.forward_intermediates(images), strict=True):
            torch.testing.assert_close(found, wanted)


def test_the_inputs_of_blocks_on_invertible_levels_are_those_of_the_network():
    """There a velocity goes on, too: what a block makes of its features alone is something else."""
    network = Network(
        NetworkConfig(
            channels=(2, 2, 4, 4),
            in_channels=1,
            integrator="leapfrog",
            dimension=1,
            connector="invertible",
            pooling="haar",
        )
    ).eval()
    images = torch.rand(2, 1, 8)
    with torch.no_grad():
        _, *later = block_inputs(network, images)
        after = network.forward_intermediates(images)
        for found, connector, features in zip(later, network.connectors, after, strict=False):
            torch.testing.assert_close(found, connector(features))


def test_the_modes_of_the_network_are_kept():
    network = make_network("parabolic")
    network.opening.eval()
    statistics = network.connectors[0].normalization.running_mean.clone()
    block_inputs(network, torch.rand(2, 1, 8, 8))
    assert not network.opening.training
    assert network.connectors[0].training
    assert torch.equal(statistics, network.connectors[0].normalization.running_mean)
