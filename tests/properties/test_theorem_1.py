"""Theorem 1 in discrete time (docs/paper-map.md): below the step bound distances never grow."""

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pdecnn.pde import Block, SymmetricLayer
from tests.blocks import randomize_
from tests.dense import dense_convolution

TOLERANCE = 1e-9


@st.composite
def layers_and_sizes(draw, **options):
    dimension = draw(st.sampled_from((1, 2)))
    size = draw(st.tuples(*[st.integers(1, 5)] * dimension))
    layer = SymmetricLayer(
        draw(st.integers(1, 3)),
        hidden_channels=draw(st.integers(1, 4)),
        stencil_size=draw(st.sampled_from((1, 3, 5))),
        dimension=dimension,
        activation=draw(st.sampled_from(options.pop("activations"))),
        **options,
    ).double()
    scale = 10.0 ** draw(st.integers(-2, 2))
    return randomize_(layer, draw(st.integers(0, 2**31)), deviation=scale), size


def two_features(layer, size, seed, distance):
    generator = torch.Generator().manual_seed(seed)
    shape = (1, layer.channels, *size)
    first = torch.randn(shape, generator=generator, dtype=torch.float64)
    return first, first + distance * torch.randn(shape, generator=generator, dtype=torch.float64)


def assert_distances_never_grow(layer, step_size, first, second):
    block = Block([layer], "forward_euler", step_size=step_size, num_steps=10)
    with torch.no_grad():
        states = block.trajectory(torch.cat([first, second]))
    distances = [float((state[0] - state[1]).norm()) for (state,) in states]
    for earlier, later in pairwise(distances):
        assert later <= earlier * (1 + TOLERANCE)


@settings(max_examples=250)
@given(
    layer_and_size=layers_and_sizes(
        activations=("relu", "tanh", "identity"), normalization="none", affine=True
    ),
    seed=st.integers(0, 2**31),
    distance=st.sampled_from((1e-3, 1.0, 100.0)),
    share_of_the_bound=st.sampled_from((0.1, 0.5, 0.9, 1.0)),
)
def test_forward_euler_never_expands_distances(layer_and_size, seed, distance, share_of_the_bound):
    """dt <= 2/|S^(1/2) K|^2: slopes in [0, 1], any bias, any scale >= 0."""
    layer, size = layer_and_size
    with torch.no_grad():
        layer.normalization.scale.abs_()
        layer.normalization.scale[: layer.hidden_channels // 3] = 0
    matrix = dense_convolution(layer.convolution, size)
    num_pixels = matrix.shape[0] // layer.hidden_channels
    root = layer.normalization.scale.detach().sqrt().repeat_interleave(num_pixels)
    norm = float(torch.linalg.matrix_norm(root[:, None] * matrix, ord=2))
    first, second = two_features(layer, size, seed, distance)
    assert_distances_never_grow(layer, share_of_the_bound * 2 / norm**2, first, second)


@settings(max_examples=150)
@given(
    layer_and_size=layers_and_sizes(
        activations=("identity",), normalization="tv", affine=False, epsilon=1e-3
    ),
    seed=st.integers(0, 2**31),
    distance=st.sampled_from((1e-3, 1.0, 100.0)),
    share_of_the_bound=st.sampled_from((0.1, 0.9, 1.0)),
)
def test_total_variation_denoising_never_expands_distances(
    layer_and_size, seed, distance, share_of_the_bound
):
    """dt <= 2 sqrt(epsilon)/|K|^2 with sigma = identity and the TV norm without weights."""
    layer, size = layer_and_size
    matrix = dense_convolution(layer.convolution, size)
    norm = float(torch.linalg.matrix_norm(matrix, ord=2))
    step_size = share_of_the_bound * 2 * 1e-3**0.5 / norm**2
    first, second = two_features(layer, size, seed, distance)
    assert_distances_never_grow(layer, step_size, first, second)


def test_the_bound_is_sharp():
    """Just above it a linear layer expands the direction of its largest singular value."""
    layer = SymmetricLayer(2, dimension=1, activation="identity", normalization="none").double()
    matrix = dense_convolution(layer.convolution, (6,))
    _, singular_values, right = torch.linalg.svd(matrix)
    worst = right[0].reshape(1, 2, 6)
    block = Block([layer], "forward_euler", step_size=2.02 / float(singular_values[0]) ** 2)
    with torch.no_grad():
        assert block(worst).norm() > 1.01 * worst.norm()
