"""Stencils are differential operators: the polynomial identities, the order, other meshes."""

from itertools import product
from math import prod

import numpy
import pytest
import torch

from pdecnn.errors import ConfigError
from pdecnn.pde import (
    Convolution,
    pde_coefficients,
    pde_terms,
    rediscretize,
    stencil_from_pde_coefficients,
)

MESH_SIZES = {1: (0.1,), 2: (0.1, 0.25), 3: (0.1, 0.25, 0.4)}
"""One a stencil axis: the last is x's."""


def random_stencil(dimension, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((3,) * dimension, generator=generator, dtype=torch.float64)


def image_of_1d_monomial(power, derivatives, x, h):
    """What the 1D basis operator of that many derivatives makes of x^power (Sec. 2.2)."""
    one = torch.ones_like(x)
    table = {
        # [1 2 1]/4           [-1 0 1]/2h    [-1 2 -1]/h^2
        0: (one, 0 * one, 0 * one),
        1: (x, one, 0 * one),
        2: (x**2 + h**2 / 2, 2 * x, -2 * one),
    }
    return table[power][derivatives]


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_polynomial_identities_away_from_the_boundary(dimension):
    """K of every monomial of degree up to 2 an axis, mixed ones included, in the interior."""
    mesh_sizes = MESH_SIZES[dimension]
    stencil = random_stencil(dimension)
    coefficients = pde_coefficients(stencil, mesh_sizes, dimension=dimension)
    convolution = Convolution(1, 1, dimension=dimension, dtype=torch.float64)
    with torch.no_grad():
        convolution.stencil.copy_(stencil)
    grids = torch.meshgrid(
        *[h * torch.arange(-3, 4, dtype=torch.float64) for h in mesh_sizes], indexing="ij"
    )
    by_variable = list(zip(reversed(grids), reversed(mesh_sizes), strict=True))  # x, y, z
    interior = (slice(1, -1),) * dimension
    for powers in product(range(3), repeat=dimension):
        monomial = prod(x**power for power, (x, _) in zip(powers, by_variable, strict=True))
        expected = sum(
            coefficient
            * prod(
                image_of_1d_monomial(power, derivatives, x, h)
                for power, derivatives, (x, h) in zip(powers, term, by_variable, strict=True)
            )
            for coefficient, term in zip(coefficients, pde_terms(dimension), strict=True)
        )
        with torch.no_grad():
            found = convolution(monomial[None, None])[0, 0]
        error = (found - expected)[interior].abs().max()
        assert error <= 1e-10, f"x^{powers}: off by {error}"


def test_the_three_coefficients_of_a_1d_stencil_in_words():
    """With b3 the factor of minus d_xx (docs/paper-map.md, Sec. 2.2 stencils)."""
    h = 0.125
    stencil = torch.tensor([0.3, -1.2, 2.5], dtype=torch.float64)
    b1, b2, b3 = pde_coefficients(stencil, h, dimension=1)
    assert float(b1) == pytest.approx(float(stencil.sum()), abs=1e-14)
    assert float(b2) == pytest.approx(h * (2.5 - 0.3), abs=1e-14)
    assert float(b3) == pytest.approx(h**2 / 4 * (-1.2 - 0.3 - 2.5), abs=1e-14)
    convolution = Convolution(1, 1, dimension=1, dtype=torch.float64)
    with torch.no_grad():
        convolution.stencil.copy_(stencil)
    x = h * torch.arange(9, dtype=torch.float64)

    def interior(values):
        with torch.no_grad():
            return convolution(values[None, None])[0, 0, 1:-1]

    inner = x[1:-1]
    torch.testing.assert_close(interior(x**0), b1.expand(7), rtol=0, atol=1e-10)
    torch.testing.assert_close(interior(x), b1 * inner + b2, rtol=0, atol=1e-10)
    quadratic = b1 * (inner**2 + h**2 / 2) + 2 * b2 * inner - 2 * b3
    torch.testing.assert_close(interior(x**2), quadratic, rtol=0, atol=1e-10)


def test_the_papers_order_of_nine_terms():
    assert pde_terms(1) == ((0,), (1,), (2,))
    one, dx, dy, dxx, dyy = (0, 0), (1, 0), (0, 1), (2, 0), (0, 2)
    dxdy, dxxdy, dxdyy, dxxdyy = (1, 1), (2, 1), (1, 2), (2, 2)
    assert pde_terms(2) == (one, dx, dy, dxx, dyy, dxdy, dxxdy, dxdyy, dxxdyy)
    assert len(set(pde_terms(3))) == 27
    assert pde_terms(3)[:7] == (
        (0, 0, 0),
        (1, 0, 0),
        (0, 1, 0),
        (0, 0, 1),
        (2, 0, 0),
        (0, 2, 0),
        (0, 0, 2),
    )


def test_x_is_the_last_axis():
    h_y, h_x = 0.5, 0.25
    along_x = torch.zeros(3, 3, dtype=torch.float64)
    along_x[1, 0], along_x[1, 2] = -1 / (2 * h_x), 1 / (2 * h_x)
    terms = dict(zip(pde_terms(2), pde_coefficients(along_x, (h_y, h_x), dimension=2), strict=True))
    assert float(terms[1, 0]) == pytest.approx(1)
    assert float(terms[0, 1]) == 0


def test_a_pure_centre_reads_as_a_quarter_of_h_squared_of_diffusion():
    h = 0.1
    pure = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    coefficients = pde_coefficients(pure, h, dimension=1)
    torch.testing.assert_close(coefficients, torch.tensor([1.0, 0.0, h**2 / 4]).double())


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_both_ways_are_differentiable(dimension):
    stencil = random_stencil(dimension).requires_grad_()
    mesh = MESH_SIZES[dimension]
    assert torch.autograd.gradcheck(
        lambda theta: pde_coefficients(theta, mesh, dimension=dimension), stencil
    )
    beta = torch.randn(3**dimension, dtype=torch.float64, requires_grad=True)
    # Central differences of a linear map are exact, so large entries 1/h^2 do no harm.
    assert torch.autograd.gradcheck(
        lambda b: stencil_from_pde_coefficients(b, mesh, dimension=dimension), beta, rtol=1e-4
    )


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_rediscretize_keeps_the_coefficients(dimension):
    stencil = random_stencil(dimension)
    coarse = rediscretize(stencil, 0.125, 0.25, dimension=dimension)
    torch.testing.assert_close(
        pde_coefficients(coarse, 0.25, dimension=dimension),
        pde_coefficients(stencil, 0.125, dimension=dimension),
        rtol=1e-12,
        atol=1e-15,
    )


def test_a_laplacian_on_half_the_mesh_size_is_four_times_as_large():
    laplacian = torch.tensor([-1.0, 2.0, -1.0], dtype=torch.float64)
    finer = rediscretize(laplacian, 1.0, 0.5, dimension=1)
    torch.testing.assert_close(finer, 4 * laplacian)


@pytest.mark.parametrize("shape", [(5,), (1,), (3, 5), (3, 3, 1), ()])
def test_stencils_of_other_sizes_have_no_coefficients(shape):
    with pytest.raises(ConfigError, match="only 3-point stencils") as caught:
        pde_coefficients(torch.zeros(shape), 1.0, dimension=max(len(shape), 1))
    assert str(shape) in str(caught.value)


def test_a_wrong_number_of_coefficients_is_refused():
    with pytest.raises(ConfigError, match=r"there are 9 coefficients, found shape \(3,\)"):
        stencil_from_pde_coefficients(torch.zeros(3), 1.0, dimension=2)


def test_whole_numbers_are_refused_rather_than_truncated():
    with pytest.raises(ConfigError, match=r"floating point, found torch\.int64"):
        pde_coefficients(torch.tensor([0, 1, 0]), 1.0, dimension=1)
    with pytest.raises(ConfigError, match=r"floating point, found torch\.int64"):
        stencil_from_pde_coefficients(torch.tensor([0, 1, 0]), 1.0, dimension=1)


@pytest.mark.parametrize(
    "mesh_size",
    [
        0.0, -1.0, float("nan"), float("inf"), 10**400, None, True, "1", "11", torch.tensor(1.0),
        (1.0,), (1.0, 0.0), (1.0, None), (1.0, "1"),
    ],
)  # fmt: skip
def test_wrong_mesh_sizes_are_refused(mesh_size):
    with pytest.raises(ConfigError, match="mesh_size must be one positive number") as caught:
        pde_coefficients(torch.zeros(3, 3), mesh_size, dimension=2)
    assert repr(mesh_size) in str(caught.value)


def test_mesh_sizes_of_numpy_are_taken():
    stencil = random_stencil(2)
    expected = pde_coefficients(stencil, 0.5, dimension=2)
    for half in (numpy.float32(0.5), (numpy.float64(0.5), 0.5)):
        assert torch.equal(pde_coefficients(stencil, half, dimension=2), expected)


@pytest.mark.parametrize("dimension", [4, 2.0, True])
def test_other_dimensions_are_refused(dimension):
    with pytest.raises(ConfigError, match=f"1, 2 or 3, found {dimension}"):
        pde_terms(dimension)
