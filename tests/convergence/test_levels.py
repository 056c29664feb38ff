"""Finer levels of one network converge: of order 2 in the mesh size, of order 1 in the step."""

from itertools import pairwise
from math import pi

import pytest
import torch

import pdecnn
from pdecnn.networks import Network, NetworkConfig, refine_in_space, refine_in_time
from pdecnn.networks.preprocessing import average_pool
from pdecnn.pde import pde_terms, stencil_from_pde_coefficients
from tests.convergence.test_orders import fitted_slope

SIZES = {1: (64, 128, 256, 512), 2: (24, 48, 96, 192), 3: (24, 48, 96)}


def make_network(dynamics, dimension, **settings):
    torch.manual_seed(1)
    axes = pdecnn.networks.registry.DYNAMICS[dynamics]
    return Network(
        NetworkConfig(
            **axes,
            channels=(2, 2),
            dimension=dimension,
            activation="tanh",
            normalization="none",
            **settings,
        )
    ).double()


def features_on(size, dimension):
    """Two smooth channels that vanish near the boundary, at the centres of pixels."""
    x = (torch.arange(size, dtype=torch.float64) + 0.5) / size
    window = torch.where((x - 0.5).abs() < 0.4, torch.cos(pi * (x - 0.5) / 0.8), 0) ** 8
    product, tilted = window, window * (1 + x)
    for _ in range(dimension - 1):
        product, tilted = product[..., None] * window, tilted[..., None] * window * (1 - x)
    return torch.stack([product, tilted])[None]


def set_smooth_operators_(network, size):
    """Stencils of second-order operators whose terms are about equally large on the features."""
    dimension = network.config.dimension
    scales = torch.tensor([0.02 ** sum(term) * (sum(term) <= 2) for term in pde_terms(dimension)])
    with torch.no_grad():
        for layer in network.blocks[0].layers:
            stencil = layer.convolution.stencil
            shape = (*stencil.shape[:2], len(scales))
            coefficients = torch.randn(shape, dtype=torch.float64) * scales
            stencil.copy_(
                stencil_from_pde_coefficients(coefficients, 1 / size, dimension=dimension)
            )


@pytest.mark.parametrize("dimension", [1, 2, 3])
@pytest.mark.parametrize("dynamics", ["parabolic", "hamiltonian", "second_order"])
def test_slope_2_in_the_mesh_size(dynamics, dimension):
    sizes = SIZES[dimension]
    network = make_network(dynamics, dimension, num_steps=1, step_size=0.2)
    set_smooth_operators_(network, sizes[0])
    results = []
    with torch.no_grad():
        for size in sizes:
            results.append(network.blocks[0](features_on(size, dimension)))
            network = refine_in_space(network)
        differences = [
            float((average_pool(fine, 2) - coarse).square().mean().sqrt())
            for coarse, fine in pairwise(results)
        ]
    assert min(differences) > 1e-12, "rounding hides the order"
    slope = fitted_slope([1 / size for size in sizes[:-1]], differences)
    assert abs(slope - 2) <= 0.2, (slope, differences)


@pytest.mark.parametrize("interpolation", ["constant", "linear"])
@pytest.mark.parametrize("dynamics", ["parabolic", "hamiltonian", "second_order"])
def test_slope_1_in_the_step_size(dynamics, interpolation):
    network = make_network(dynamics, 2, num_steps=4, step_size=0.125)
    with torch.no_grad():
        for weight in network.blocks.parameters():
            weight += 0.1 * torch.randn_like(weight)  # weights that change in time
        results, step_sizes = [], []
        for _ in range(6):
            step_sizes.append(network.blocks[0].step_size)
            results.append(network.blocks[0](features_on(16, 2)))
            network = refine_in_time(network, interpolation=interpolation)
        differences = [float((fine - coarse).norm()) for coarse, fine in pairwise(results)]
    assert min(differences) > 1e-12, "rounding hides the order"
    slope = fitted_slope(step_sizes[2:-1], differences[2:])
    assert abs(slope - 1) <= 0.15, (slope, differences)
