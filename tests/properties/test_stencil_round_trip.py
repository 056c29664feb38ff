"""Stencil -> PDE coefficients -> stencil loses nothing, on any mesh."""

from math import prod

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pdecnn.pde import (
    pde_coefficients,
    pde_terms,
    rediscretize,
    stencil_from_pde_coefficients,
)
from tests.blocks import relative_error

mesh_size = st.floats(1e-3, 10.0)


@st.composite
def stencils(draw):
    """Random 3-point stencils of a few channels, and one mesh size an axis."""
    dimension = draw(st.sampled_from((1, 2, 3)))
    mesh_sizes = draw(mesh_size | st.tuples(*[mesh_size] * dimension))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    shape = (2, 3, *(3,) * dimension)
    return torch.randn(shape, generator=generator, dtype=torch.float64), mesh_sizes


@settings(max_examples=100)
@given(stencil_on_mesh=stencils())
def test_stencil_to_coefficients_and_back(stencil_on_mesh):
    stencil, mesh_sizes = stencil_on_mesh
    dimension = stencil.dim() - 2
    coefficients = pde_coefficients(stencil, mesh_sizes, dimension=dimension)
    assert coefficients.shape == (2, 3, 3**dimension)
    back = stencil_from_pde_coefficients(coefficients, mesh_sizes, dimension=dimension)
    assert relative_error(back, stencil) <= 1e-12


@settings(max_examples=100)
@given(stencil_on_mesh=stencils())
def test_coefficients_to_stencil_and_back(stencil_on_mesh):
    values, mesh_sizes = stencil_on_mesh
    dimension = values.dim() - 2
    # The coefficient of n derivatives in units of h^n, so that none drowns in the others.
    per_axis = mesh_sizes if isinstance(mesh_sizes, tuple) else (mesh_sizes,) * dimension
    units = torch.tensor(
        [
            prod(h**order for h, order in zip(reversed(per_axis), term, strict=True))
            for term in pde_terms(dimension)
        ],
        dtype=torch.float64,
    )
    coefficients = values.flatten(2) * units
    stencil = stencil_from_pde_coefficients(coefficients, mesh_sizes, dimension=dimension)
    assert stencil.shape == values.shape
    back = pde_coefficients(stencil, mesh_sizes, dimension=dimension)
    assert relative_error(back / units, values.flatten(2)) <= 1e-12


@settings(max_examples=100)
@given(stencil_on_mesh=stencils(), factor=st.sampled_from((0.25, 0.5, 2.0, 3.0)))
def test_refine_then_coarsen_is_the_identity(stencil_on_mesh, factor):
    stencil, mesh_sizes = stencil_on_mesh
    dimension = stencil.dim() - 2
    fine = (
        [factor * h for h in mesh_sizes] if isinstance(mesh_sizes, tuple) else factor * mesh_sizes
    )
    refined = rediscretize(stencil, mesh_sizes, fine, dimension=dimension)
    back = rediscretize(refined, fine, mesh_sizes, dimension=dimension)
    assert relative_error(back, stencil) <= 1e-12
