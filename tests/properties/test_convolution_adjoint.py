"""<K x, y> = <x, K^T y>, and the bounds of |K|, for any stencil, channels and size."""

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pdecnn.pde import Convolution
from tests.blocks import randomize_
from tests.dense import dense_convolution

LARGEST_SIZE = {1: 12, 2: 6, 3: 4}


@st.composite
def operators(draw, max_channels=4, sizes=LARGEST_SIZE):
    """A random convolution and an image size, from 1 pixel (so less than the stencil) up."""
    dimension = draw(st.sampled_from((1, 2, 3)))
    stencil_size = draw(st.tuples(*[st.sampled_from((1, 3, 5))] * dimension))
    size = draw(st.tuples(*[st.integers(1, sizes[dimension])] * dimension))
    convolution = Convolution(
        draw(st.integers(1, max_channels)),
        draw(st.integers(1, max_channels)),
        stencil_size=stencil_size,
        dimension=dimension,
        dtype=torch.float64,
    )
    scale = 10.0 ** draw(st.integers(-3, 3))
    return randomize_(convolution, draw(st.integers(0, 2**31)), deviation=scale), size


def image(channels, size, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, channels, *size, generator=generator, dtype=torch.float64)


@settings(max_examples=300)
@given(operator=operators(), seed=st.integers(0, 2**31))
def test_adjoint_identity(operator, seed):
    convolution, size = operator
    x = image(convolution.in_channels, size, seed)
    y = image(convolution.out_channels, size, seed + 1)
    with torch.no_grad():
        forward = (convolution(x) * y).sum()
        backward = (x * convolution.adjoint(y)).sum()
    norm = torch.linalg.matrix_norm(dense_convolution(convolution, size), ord=2)
    assert abs(forward - backward) <= 1e-12 * norm * x.norm() * y.norm()


@settings(max_examples=50)
@given(operator=operators(max_channels=3, sizes={1: 8, 2: 4, 3: 3}))
def test_the_adjoint_is_the_transposed_matrix(operator):
    convolution, size = operator
    matrix = dense_convolution(convolution, size)
    units = torch.eye(matrix.shape[0], dtype=torch.float64)
    with torch.no_grad():
        transposed = convolution.adjoint(units.reshape(-1, convolution.out_channels, *size))
    torch.testing.assert_close(transposed.flatten(1), matrix, rtol=1e-13, atol=0)


def constant_stencil(dimension, size):
    """All ones: the worst case, whose norm is near the bound on large images."""
    convolution = Convolution(1, 1, stencil_size=5, dimension=dimension, dtype=torch.float64)
    torch.nn.init.ones_(convolution.stencil)
    return convolution, size


@settings(max_examples=300)
@given(operator=operators(max_channels=3, sizes={1: 12, 2: 5, 3: 3}))
@example(operator=constant_stencil(1, (1,)))
@example(operator=constant_stencil(1, (200,)))
@example(operator=constant_stencil(2, (2, 9)))
@example(operator=constant_stencil(3, (1, 2, 3)))
def test_norm_bound_is_never_below_a_dense_svd(operator):
    convolution, size = operator
    norm = float(torch.linalg.matrix_norm(dense_convolution(convolution, size), ord=2))
    assert convolution.norm_bound(size) >= norm


@settings(max_examples=60)
@given(operator=operators(max_channels=3, sizes={1: 10, 2: 4, 3: 3}))
def test_norm_estimate_is_never_above_a_dense_svd_and_near_it(operator):
    convolution, size = operator
    norm = float(torch.linalg.matrix_norm(dense_convolution(convolution, size), ord=2))
    for num_iterations in (1, 10):
        few = convolution.norm_estimate(size, num_iterations=num_iterations)
        assert few <= norm * (1 + 1e-10)
    many = convolution.norm_estimate(size, num_iterations=300)
    assert norm * (1 - 1e-2) <= many <= norm * (1 + 1e-10)
