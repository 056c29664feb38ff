"""K with every boundary: what lies outside of an image, its exact adjoint, a bound of its norm."""

import pytest
import torch

from pdecnn.errors import ConfigError
from pdecnn.pde import Convolution, SymmetricLayer
from tests.blocks import randomize_
from tests.dense import dense_convolution, dense_matrix

BOUNDARIES = ("zero", "reflect", "periodic")
OUTSIDE = {  # of the signal 1, 2, 3, with a stencil of 5
    "zero": [0, 0, 1, 2, 3, 0, 0],
    "reflect": [2, 1, 1, 2, 3, 3, 2],
    "periodic": [2, 3, 1, 2, 3, 1, 2],
}
SIZES = {1: [(7,), (2,)], 2: [(5, 4), (2, 3)], 3: [(3, 2, 4)]}
CASES = [(dimension, size) for dimension, sizes in SIZES.items() for size in sizes]


def make(boundary: str, dimension: int = 2, **options: int) -> Convolution:
    convolution = Convolution(2, 3, dimension=dimension, boundary=boundary, **options)
    return randomize_(convolution, 0).double()


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_what_lies_outside(boundary):
    convolution = Convolution(1, 1, stencil_size=5, dimension=1, boundary=boundary)
    outside = torch.tensor([[OUTSIDE[boundary]]], dtype=torch.float32)
    expected = torch.nn.functional.conv1d(outside, convolution.stencil)
    assert torch.allclose(convolution(torch.tensor([[[1.0, 2.0, 3.0]]])), expected)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize(("dimension", "size"), CASES)
@pytest.mark.parametrize("stencil_size", [3, 5])
def test_the_adjoint_is_the_transposed_matrix(boundary, dimension, size, stencil_size):
    convolution = make(boundary, dimension, stencil_size=stencil_size)
    matrix = dense_convolution(convolution, size)
    transposed = dense_matrix(convolution.adjoint, (3, *size))
    assert torch.allclose(matrix.T, transposed, rtol=0, atol=1e-14)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize(("dimension", "size"), CASES)
@pytest.mark.parametrize("stencil_size", [3, 5])
def test_norm_bound_is_one_and_norm_estimate_is_none(boundary, dimension, size, stencil_size):
    convolution = make(boundary, dimension, stencil_size=stencil_size)
    norm = float(torch.linalg.matrix_norm(dense_convolution(convolution, size), ord=2))
    assert norm <= convolution.norm_bound(size)
    assert convolution.norm_estimate(size) <= norm * (1 + 1e-12)


def test_the_symbol_alone_does_not_bound_a_reflecting_convolution():
    convolution = Convolution(1, 1, dimension=1, boundary="reflect", dtype=torch.float64)
    with torch.no_grad():
        convolution.stencil.copy_(torch.tensor([[[-1.0, 0.0, 1.0]]]) / 2)
        convolution.stencil[..., 1] = 0.5
    size = (2,)
    norm = float(torch.linalg.matrix_norm(dense_convolution(convolution, size), ord=2))
    circular = Convolution(1, 1, dimension=1, boundary="periodic", dtype=torch.float64)
    circular.load_state_dict(convolution.state_dict())
    assert norm > circular.norm_bound((64,))
    assert norm <= convolution.norm_bound(size)


def test_the_bound_holds_where_a_pixel_is_copied_to_both_sides():
    convolution = Convolution(
        1, 1, stencil_size=5, dimension=1, boundary="reflect", dtype=torch.float64
    )
    for size, stencil in ((2, [2.0, 0.0, -1.0, 0.0, 2.0]), (3, [1.0, -1.0, -1.0, 0.0, -1.0])):
        with torch.no_grad():
            convolution.stencil.copy_(torch.tensor([[stencil]]))
        norm = torch.linalg.matrix_norm(dense_convolution(convolution, (size,)), ord=2)
        assert float(norm) <= convolution.norm_bound((size,))


def test_periodic_norm_bound_is_the_norm():
    convolution = make("periodic")
    norm = float(torch.linalg.matrix_norm(dense_convolution(convolution, (6, 5)), ord=2))
    assert convolution.norm_bound((6, 5)) == pytest.approx(norm, rel=1e-9)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_gradients_through_a_symmetric_layer(boundary):
    layer = SymmetricLayer(2, hidden_channels=3, boundary=boundary, activation="tanh").double()
    features = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (features,))


def test_an_image_smaller_than_the_rim_is_refused():
    convolution = make("reflect", stencil_size=5)
    with pytest.raises(ValueError, match="copies 2 pixels of an image that has 1"):
        convolution(torch.zeros(1, 2, 4, 1, dtype=torch.float64))


def test_unknown_boundaries_are_refused():
    with pytest.raises(ConfigError, match="boundary"):
        Convolution(1, 1, boundary="mirror")


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("stencil_size", [3, 5])
def test_a_bound_for_any_size_holds_for_images_larger_than_that(boundary, stencil_size):
    for seed in range(5):
        convolution = Convolution(1, 1, stencil_size=stencil_size, dimension=1, boundary=boundary)
        randomize_(convolution.double(), seed)
        bound = convolution.norm_bound((8,), any_size=True)
        assert convolution.norm_bound((8,)) < bound < 2 * convolution.norm_bound((8,))
        for size in (3, 64, 131):
            matrix = dense_convolution(convolution, (size,))
            assert float(torch.linalg.matrix_norm(matrix, ord=2)) <= bound
