"""Stencils as differential operators: the change of basis of Sec. 2.2, in 1, 2 and 3 dimensions.

In one dimension a 3-point stencil is, as a cross-correlation,

    theta = (b1/4) [1 2 1] + (b2/2h) [-1 0 1] + (b3/h^2) [-1 2 -1],

reaction, convection and diffusion; b3 multiplies *minus* the second derivative. In 2 and 3
dimensions the basis is the tensor product, with 9 and 27 terms.
"""

from collections.abc import Sequence
from itertools import product
from math import isclose

import torch
from torch import Tensor

from pdecnn.errors import ConfigError
from pdecnn.pde.convolution import check_dimension
from pdecnn.settings import check_count, is_finite_number

MeshSize = float | Sequence[float]


def pde_terms(dimension: int) -> tuple[tuple[int, ...], ...]:
    """The order of the coefficients: for each one its number of derivatives in (x, y, z).

    The paper's order in 2D: 1, d_x, d_y, d_xx, d_yy, d_xy, d_xxy, d_xyy, d_xxyy. In general by
    total number of derivatives, pure before mixed, x before y before z.
    """
    check_dimension(dimension)
    terms = product(range(3), repeat=dimension)
    return tuple(sorted(terms, key=lambda term: (sum(term), -max(term), [-n for n in term])))


def pde_coefficients(stencil: Tensor, mesh_size: MeshSize, *, dimension: int) -> Tensor:
    """The coefficients beta(theta), one per term of `pde_terms`, of 3-point stencils.

    `stencil` has shape (..., 3) in 1D, (..., 3, 3) in 2D, (..., 3, 3, 3) in 3D, with x the last
    axis; `mesh_size` is one h or one per axis, in the order of the stencil's axes. The result
    has shape (..., 3^dimension) and is differentiable. A coefficient multiplies one minus sign
    for each second derivative: the operator is b1 + b2 d_x - b3 d_xx in 1D.
    """
    mesh_sizes = _mesh_sizes(mesh_size, dimension)
    _check_stencil(stencil, dimension)
    for axis, h in zip(range(-dimension, 0), mesh_sizes, strict=True):
        stencil = _apply_along(_coefficients_matrix(h), stencil, axis)
    return stencil.flatten(-dimension)[..., _term_positions(dimension)]


def stencil_from_pde_coefficients(
    coefficients: Tensor, mesh_size: MeshSize, *, dimension: int
) -> Tensor:
    """The stencil theta(beta): the inverse of `pde_coefficients`, differentiable too."""
    mesh_sizes = _mesh_sizes(mesh_size, dimension)
    if coefficients.dim() < 1 or coefficients.shape[-1] != 3**dimension:
        raise ConfigError(
            f"in {dimension}D there are {3**dimension} coefficients, found shape "
            f"{tuple(coefficients.shape)}"
        )
    _check_floating(coefficients)
    positions = torch.tensor(_term_positions(dimension)).argsort()
    stencil = coefficients[..., positions].reshape(*coefficients.shape[:-1], *(3,) * dimension)
    for axis, h in zip(range(-dimension, 0), mesh_sizes, strict=True):
        stencil = _apply_along(_stencil_matrix(h), stencil, axis)
    return stencil


def rediscretize(
    stencil: Tensor, mesh_size: MeshSize, new_mesh_size: MeshSize, *, dimension: int
) -> Tensor:
    """The stencil of the same differential operator on another mesh: h -> H keeps the betas."""
    coefficients = pde_coefficients(stencil, mesh_size, dimension=dimension)
    return stencil_from_pde_coefficients(coefficients, new_mesh_size, dimension=dimension)


def galerkin_coarsen(stencil: Tensor, factor: int = 2, *, dimension: int) -> Tensor:
    """The stencil of R K P on a mesh `factor` times as wide, away from the boundary.

    R averages over the `factor`^dimension pixels of a coarse one, P interpolates linearly between
    the centres of coarse pixels: 3-point stencils stay 3-point. For a factor of 2 it is
    (b1, b2, b3 + h^2 b1/4) per dimension.
    """
    check_dimension(dimension)
    _check_stencil(stencil, dimension)
    matrix = _galerkin_matrix(check_count("factor", factor))
    for axis in range(-dimension, 0):
        stencil = _apply_along(matrix, stencil, axis)
    return stencil


def mesh_growth(mesh_size: float, new_mesh_size: float, *, dimension: int) -> float:
    """How many times larger a change of mesh can make the largest entry of a stencil.

    The norm of the change h -> H for the largest entry: per dimension 5.5 for H = h/2 by
    `rediscretize`; where `galerkin_coarsen` can make the change too, the larger of both, 1.75 for
    H = 2h.
    """
    units = torch.eye(3, dtype=torch.float64)
    changes = [rediscretize(units, mesh_size, new_mesh_size, dimension=1)]
    factor = round(new_mesh_size / mesh_size)
    if isclose(factor * mesh_size, new_mesh_size):
        changes.append(galerkin_coarsen(units, factor, dimension=1))
    norm = max(float(changed.abs().sum(0).amax()) for changed in changes)
    return norm ** check_dimension(dimension)


def _galerkin_matrix(factor: int) -> list[list[float]]:
    """Its column s is R K P for K the shift by s pixels; its rows are coarse pixels -1, 0, 1."""

    def share(pixel: int, coarse: int) -> float:
        """What P gives a pixel of the coarse pixel 0, or next to it, of a coarse one."""
        return max(0.0, 1 - abs((pixel + 0.5) / factor - 0.5 - coarse))

    return [
        [sum(share(p + s, coarse) for p in range(factor)) / factor for s in (-1, 0, 1)]
        for coarse in (-1, 0, 1)
    ]


def _stencil_matrix(h: float) -> list[list[float]]:
    """The matrix of Sec. 2.2: its columns are the basis stencils."""
    return [
        [1 / 4, -1 / (2 * h), -1 / h**2],
        [1 / 2, 0.0, 2 / h**2],
        [1 / 4, 1 / (2 * h), -1 / h**2],
    ]


def _coefficients_matrix(h: float) -> list[list[float]]:
    """The inverse of `_stencil_matrix`, in closed form."""
    return [
        [1.0, 1.0, 1.0],
        [-h, 0.0, h],
        [-(h**2) / 4, h**2 / 4, -(h**2) / 4],
    ]


def _apply_along(matrix: list[list[float]], values: Tensor, axis: int) -> Tensor:
    return (values.movedim(axis, -1) @ values.new_tensor(matrix).T).movedim(-1, axis)


def _check_stencil(stencil: Tensor, dimension: int) -> None:
    if stencil.dim() < dimension or stencil.shape[-dimension:] != (3,) * dimension:
        raise ConfigError(
            f"only 3-point stencils have PDE coefficients: in {dimension}D the last axes must be "
            f"{(3,) * dimension}, found shape {tuple(stencil.shape)}"
        )
    _check_floating(stencil)


def _check_floating(values: Tensor) -> None:
    if not values.is_floating_point():
        raise ConfigError(
            f"stencils and coefficients must be floating point, found {values.dtype}; convert "
            f"them with .to(dtype)"
        )


def _term_positions(dimension: int) -> list[int]:
    """Where each term stands in the flattened tensor product, whose last axis is x."""
    return [
        sum(order * 3**axis for axis, order in enumerate(term)) for term in pde_terms(dimension)
    ]


def _mesh_sizes(mesh_size: MeshSize, dimension: int) -> tuple[float, ...]:
    check_dimension(dimension)
    sizes = tuple(mesh_size) if isinstance(mesh_size, Sequence) else (mesh_size,) * dimension
    if len(sizes) != dimension or not all(is_finite_number(h) and h > 0 for h in sizes):
        raise ConfigError(
            f"mesh_size must be one positive number, or one for each of {dimension} axes; found "
            f"{mesh_size!r}"
        )
    return tuple(float(h) for h in sizes)
