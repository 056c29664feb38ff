"""Blocks whose behaviour is known in closed form."""

import torch

from pdecnn.pde import Block, SymmetricLayer
from tests.blocks import randomize_


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


def make_block(integrator, layers, *, step_size, num_steps=None):
    return Block(layers, integrator, step_size=step_size, num_steps=num_steps).double()
