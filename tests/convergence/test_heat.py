"""The heat equation: a parabolic block with K = grad converges to expm (docs/paper-map.md, (8))."""

from itertools import pairwise

import numpy
import pytest
import scipy.linalg
import torch

from pdecnn.pde import Block
from tests.blocks import make_features
from tests.convergence.test_orders import fitted_slope
from tests.dense import dense_convolution, dense_matrix
from tests.heat import MESH_SIZE, heat_layer, laplacian_eigenvalues

SIZES = {1: (12,), 2: (5, 6), 3: (3, 4, 3)}


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_the_eigenvalues_are_those_of_the_laplacian(dimension):
    size = SIZES[dimension]
    matrix = -dense_matrix(heat_layer(dimension), (1, *size))
    found = numpy.linalg.eigvalsh(matrix.numpy())
    numpy.testing.assert_allclose(found, laplacian_eigenvalues(size), rtol=1e-12)


def test_the_operator_is_minus_k_transposed_k():
    layer = heat_layer(2)
    gradient = dense_convolution(layer.convolution, SIZES[2])
    found = dense_matrix(layer, (1, *SIZES[2]))
    torch.testing.assert_close(found, -gradient.T @ gradient, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_a_parabolic_block_converges_to_the_matrix_exponential_with_slope_one(dimension):
    size = SIZES[dimension]
    layer = heat_layer(dimension)
    final_time = 0.05
    features = make_features(batch=3, channels=1, size=size, dimension=dimension)
    generator = dense_matrix(layer, (1, *size)).numpy()
    exact = features.flatten(1).numpy() @ scipy.linalg.expm(final_time * generator).T
    step_sizes, errors = [], []
    for num_steps in (64, 128, 256, 512):
        step_size = final_time / num_steps
        block = Block([layer], "forward_euler", step_size=step_size, num_steps=num_steps)
        with torch.no_grad():
            found = block(features).flatten(1).numpy()
        errors.append(float(numpy.linalg.norm(found - exact)))
        step_sizes.append(step_size)
    assert abs(fitted_slope(step_sizes, errors) - 1) <= 0.1, errors


def test_heat_smooths():
    """Below the bound h^2/(2 d) the features and their variation never increase."""
    layer = heat_layer(2)
    block = Block([layer], "forward_euler", step_size=MESH_SIZE**2 / 4, num_steps=50)
    with torch.no_grad():
        states = [state for (state,) in block.trajectory(make_features(channels=1, size=(8, 8)))]
        energies = [float(layer.convolution(state).norm()) for state in states]
        sizes = [float(state.norm()) for state in states]
    assert all(later <= earlier for earlier, later in pairwise(energies))
    assert all(later <= earlier for earlier, later in pairwise(sizes))
