"""What classes declare of themselves: equations in time, and when steps are stable (Sec. 3).

A fact that a proof uses counts for the class whose own body declares it, see `declared`.
"""

from cmath import sqrt as sqrt_complex
from collections.abc import Callable, Sequence
from functools import partial
from math import inf, sqrt
from typing import Any, NamedTuple

import torch
from torch import nn

_DETERMINISTIC_OF_TORCH = {
    nn.ModuleList,
    nn.Identity,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
}


def declared(kind: type, fact: str) -> Any:
    """A fact that the body of the class itself declares; None where it is only inherited.

    A subclass may compute anything, so what was proved of its parent says nothing of it.
    """
    return vars(kind).get(fact)


def is_deterministic(kind: type) -> bool:
    """Whether modules of this very class compute the same of the same input and weights."""
    return kind in _DETERMINISTIC_OF_TORCH or declared(kind, "deterministic") is True


class Component(NamedTuple):
    """A part of a state."""

    symbol: str
    """What it is called in equations: 'Y'."""
    name: str
    """The same in words."""
    offset: float = 0.0
    """Where it stands in time, in steps after t_j: -1/2 for v_{j-1/2}."""


class Equation(NamedTuple):
    """The derivative in time, of that order, of `unknown` is sign * F(argument).

    F is the layer in the same place of a step.
    """

    unknown: str
    argument: str
    order: int = 1
    sign: int = 1


HEAT = (Equation("Y", "Y"),)
"""Y' = F(Y) (eq. 5)."""


class StabilityRule(NamedTuple):
    """When steps of a method are stable.

    lambda is an eigenvalue of the Jacobian of F for Y' = F(Y), of that of F for Y'' = F(Y), and
    of sign_1 F_1' sign_2 F_2' where two unknowns drive each other; z is dt lambda for the first
    and dt^2 lambda for the others.
    """

    growth: Callable[[complex], float]
    """z -> the largest factor by which a step multiplies the eigenvector."""
    bound: Callable[[complex], float]
    """lambda -> the largest dt at which that is not above 1; 0: none."""
    contractive: float = 0.0
    """Steps of dt <= contractive/c never expand distances where -F is co-coercive with constant
    1/c; 0: some expand them at any step size."""
    linear: float = 0.0
    """For real z from -linear to 0 nothing grows."""


def polynomial_rule(
    coefficients: Sequence[float], *, contractive: float, linear: float
) -> StabilityRule:
    """That of a one-step method with R(z) = sum of coefficients[n] z^n."""
    return StabilityRule(
        partial(_polynomial_growth, tuple(coefficients)),
        partial(_polynomial_bound, tuple(coefficients)),
        contractive,
        linear,
    )


def _polynomial_growth(coefficients: Sequence[float], z: complex) -> float:
    return abs(sum(weight * z**power for power, weight in enumerate(coefficients)))


def _polynomial_bound(coefficients: Sequence[float], eigenvalue: complex) -> float:
    """The first dt at which |R(dt lambda)| exceeds 1; 0 if it does at once."""
    direction = eigenvalue / abs(eigenvalue)
    # R(z) R(conj z) - 1 along the direction, the coefficient of s^n summed over Taylor terms.
    products = [0.0] * (2 * len(coefficients) - 1)
    for m, first in enumerate(coefficients):
        for n, second in enumerate(coefficients):
            products[m + n] += first * second * (direction ** (m - n)).real
    products = [0.0, *(value if abs(value) >= 1e-14 else 0.0 for value in products[1:])]
    lowest = next((power for power, value in enumerate(products) if value != 0), None)
    if lowest is None:
        return inf
    if products[lowest] > 0:
        return 0.0
    return min(_positive_roots(products[lowest:]), default=inf) / abs(eigenvalue)


def _positive_roots(coefficients: list[float]) -> list[float]:
    """The positive roots of a polynomial, its constant term first, as eigenvalues."""
    while coefficients[-1] == 0:
        coefficients = coefficients[:-1]
    degree = len(coefficients) - 1
    if degree == 0:
        return []
    companion = torch.diag(torch.ones(degree - 1, dtype=torch.float64), -1)
    companion[0] = -torch.tensor(coefficients[-2::-1], dtype=torch.float64) / coefficients[-1]
    roots = torch.linalg.eigvals(companion).tolist()
    return [root.real for root in roots if abs(root.imag) < 1e-9 and root.real > 0]


def _wave_growth(z: complex) -> float:
    """The larger root of r^2 - (2 + z) r + 1."""
    half = 1 + z / 2
    root = sqrt_complex(half**2 - 1)
    return max(abs(half + root), abs(half - root))


def _wave_bound(eigenvalue: complex) -> float:
    """2/sqrt(-lambda) where lambda is real and not positive: the roots are on the unit circle."""
    if eigenvalue.imag != 0 or eigenvalue.real > 0:
        return 0.0
    return inf if eigenvalue == 0 else 2 / sqrt(-eigenvalue.real)


EULER_RULE = polynomial_rule((1.0, 1.0), contractive=2.0, linear=2.0)
# Its disk of contractivity has radius 1 as Euler's has (Dahlquist & Jeltsch 1979).
RUNGE_KUTTA_4_RULE = polynomial_rule(
    (1.0, 1.0, 1 / 2, 1 / 6, 1 / 24), contractive=2.0, linear=2.785293563405282
)
WAVE_RULE = StabilityRule(_wave_growth, _wave_bound, linear=4.0)
"""Of two shears that take turns, Verlet and leapfrog: stable for z in [-4, 0] and nowhere else."""
