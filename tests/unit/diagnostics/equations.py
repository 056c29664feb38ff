"""Blocks whose behaviour is known in closed form."""

import numpy
import torch

from pdecnn.pde import Block, SymmetricLayer
from tests.blocks import randomize_

MESH_SIZE = 0.2


def make_layer(matrix=None, *, channels=1, activation="identity", **options):
    """F_sym on single pixels with K = matrix, or random on images; no normalisation, float64."""
    options = {"normalization": "none", "dimension": 1, **options}
    if matrix is None:
        layer = SymmetricLayer(channels, activation=activation, **options).double()
        return randomize_(layer, 0)
    matrix = torch.as_tensor(matrix, dtype=torch.float64)
    layer = SymmetricLayer(
        matrix.shape[1],
        hidden_channels=matrix.shape[0],
        stencil_size=1,
        activation=activation,
        **options,
    ).double()
    with torch.no_grad():
        layer.convolution.stencil.copy_(matrix[:, :, None])
    return layer


def heat_layer(dimension):
    """F_sym = the discrete Laplacian: K = [0 -1 1]/h along each axis, 1 -> d channels."""
    layer = SymmetricLayer(
        1,
        hidden_channels=dimension,
        dimension=dimension,
        activation="identity",
        normalization="none",
    ).double()
    with torch.no_grad():
        layer.convolution.stencil.zero_()
        for axis in range(dimension):
            centre = [axis, 0, *(1,) * dimension]
            ahead = list(centre)
            ahead[2 + axis] = 2
            layer.convolution.stencil[tuple(centre)] = -1 / MESH_SIZE
            layer.convolution.stencil[tuple(ahead)] = 1 / MESH_SIZE
    return layer


def laplacian_eigenvalues(size):
    """Of minus the Laplacian: sums of (4/h^2) sin^2((2k-1) pi / (2 (2n+1))), ascending."""
    total = numpy.zeros(1)
    for num_pixels in size:
        k = numpy.arange(1, num_pixels + 1)
        sines = numpy.sin((2 * k - 1) * numpy.pi / (2 * (2 * num_pixels + 1)))
        total = numpy.add.outer(total, 4 / MESH_SIZE**2 * sines**2).ravel()
    return numpy.sort(total)


def make_block(integrator, layers, *, step_size, num_steps=None):
    return Block(layers, integrator, step_size=step_size, num_steps=num_steps).double()
