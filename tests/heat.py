"""The heat equation as a layer, and its spectrum in closed form."""

import numpy
import torch

from pdecnn.pde import SymmetricLayer

MESH_SIZE = 0.2


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
    """Of minus the Laplacian, ascending: Neumann at the first pixel, Dirichlet after the last.

    Sums over the axes of (4/h^2) sin^2((2k-1) pi / (2 (2n+1))), k = 1 ... n.
    """
    total = numpy.zeros(1)
    for num_pixels in size:
        k = numpy.arange(1, num_pixels + 1)
        sines = numpy.sin((2 * k - 1) * numpy.pi / (2 * (2 * num_pixels + 1)))
        total = numpy.add.outer(total, 4 / MESH_SIZE**2 * sines**2).ravel()
    return numpy.sort(total)
