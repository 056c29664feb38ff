"""Step bounds of the linearisation at given features, for each integrator (Sec. 3.1).

These are *local*: across a kink of sigma a step below the bound may expand distances many times.
"""

from cmath import sqrt as sqrt_complex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf, sqrt
from typing import NamedTuple

import numpy
import torch

from pdecnn.diagnostics.guarantees import is_linear, is_monotone, quotient
from pdecnn.diagnostics.jacobians import (
    double_state,
    frozen_copy,
    jacobian_at,
    layer_jacobian,
)
from pdecnn.diagnostics.spectra import DENSE_SIZE, finite, largest_eigenvalue, spectrum
from pdecnn.errors import DivergedError
from pdecnn.pde.integrators import (
    AbstractIntegrator,
    ForwardEuler,
    Layers,
    Leapfrog,
    RungeKutta4,
    State,
    Verlet,
)

_RK4_TAYLOR = (1.0, 1.0, 1 / 2, 1 / 6, 1 / 24)
# Eigenvalues nearer to an axis than this share of the largest one are taken to be on it.
_ON_AXIS = 1e-7
_ZERO = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalStability:
    """What the linearisation of a step says."""

    bound: float
    """The largest step size without growth; 0: at every step size something grows."""
    amplification: float | None
    """The largest factor by which the actual step multiplies one of its eigenvectors; None: not
    found."""
    why_missing: str | None = None
    """Why there is no amplification."""


def local_stability(
    integrator: AbstractIntegrator,
    layers: Layers,
    state: State,
    step_size: float,
    *,
    dense_size: int = DENSE_SIZE,
) -> LocalStability | None:
    """Step bound and amplification of the linearisation at `state`; None: no rule is known.

    With lambda the eigenvalues of dF/dY the bound is: for forward Euler
    min -2 Re(lambda)/|lambda|^2, that is 2/lambda_max(K^T D K) for F_sym; for Runge-Kutta 4 where
    |R(dt lambda)| leaves the unit disk, 2.7853/lambda_max; for leapfrog 2/sqrt(-lambda_min) if all
    lambda are real and not positive; for Verlet 2/sqrt(lambda_max(A B)) if all eigenvalues of A B
    are real and not negative. Jacobians are taken where a step of `step_size` from `state` takes
    them; the bound of Runge-Kutta 4 is that of the system linearised at `state`, though its
    stages are elsewhere. Of large matrices only outermost eigenvalues are known, so that the bound
    of a layer that is not monotone is an estimate from above and the amplification one from below;
    where none is found, a DivergedError says so.
    """
    rule = _RULES.get(type(integrator))
    if rule is None:
        return None
    copies = [frozen_copy(layer) for layer in layers]
    values = rule.eigenvalues(copies, double_state(state), step_size, dense_size)
    factors = [rule.factor(value, step_size) for value in _significant(values)]
    # Zero eigenvalues are multiplied by 1.
    still = [1.0] if len(factors) < len(values) else []
    factor: float | None = max(factors + still, default=1.0)
    missing = None
    if isinstance(integrator, RungeKutta4) and not is_linear(layers[0]):
        try:
            factor = _step_radius(integrator, copies, state, step_size, dense_size)
        except DivergedError as error:
            factor, missing = None, str(error)
    return LocalStability(bound=rule.bound(values), amplification=factor, why_missing=missing)


def _step_radius(
    integrator: AbstractIntegrator, layers: Layers, state: State, step_size: float, dense_size: int
) -> float:
    """The largest |eigenvalue| of the Jacobian of a step whose stages are at different features."""
    jacobian = jacobian_at(lambda at: integrator.step(layers, at, step_size), double_state(state))
    return spectrum(jacobian, dense_size=dense_size).radius


def local_bound(
    integrator: AbstractIntegrator,
    layers: Layers,
    state: State,
    step_size: float,
    *,
    dense_size: int = DENSE_SIZE,
) -> float | None:
    """The bound of `local_stability`."""
    found = local_stability(integrator, layers, state, step_size, dense_size=dense_size)
    return None if found is None else found.bound


def euler_bound(eigenvalues: Iterable[complex]) -> float:
    """min -2 Re(l)/|l|^2 over the eigenvalues: |1 + dt l| <= 1 up to it; 0 if some Re(l) > 0."""
    return min(
        (max(-2 * value.real, 0.0) / abs(value) ** 2 for value in _significant(eigenvalues)),
        default=inf,
    )


def runge_kutta_bound(eigenvalues: Iterable[complex]) -> float:
    """The first dt at which |R(dt l)| exceeds 1, over the eigenvalues: R = 1 + z + ... + z^4/24."""
    return min(
        (_first_exit(value / abs(value)) / abs(value) for value in _significant(eigenvalues)),
        default=inf,
    )


def oscillation_bound(eigenvalues: Iterable[complex]) -> float:
    """2/sqrt(max p) if all p are real and not negative, else 0.

    p are the squared frequencies: the eigenvalues of -dF/dY for leapfrog, of A B for Verlet. A
    step multiplies by the roots of r^2 - (2 - dt^2 p) r + 1, which lie on the unit circle for
    dt^2 p in [0, 4] and nowhere else.
    """
    significant = _significant(eigenvalues)
    scale = max(map(abs, significant), default=0.0)
    if any(value.real < 0 or abs(value.imag) > _ON_AXIS * scale for value in significant):
        return 0.0
    return quotient(2.0, sqrt(scale))


def _euler_factor(value: complex, step_size: float) -> float:
    return abs(1 + step_size * value)


def _runge_kutta_factor(value: complex, step_size: float) -> float:
    z = step_size * value
    return abs(sum(weight * z**power for power, weight in enumerate(_RK4_TAYLOR)))


def _oscillation_factor(value: complex, step_size: float) -> float:
    """The larger root of r^2 - (2 - dt^2 p) r + 1."""
    half = 1 - step_size**2 * value / 2
    root = sqrt_complex(half**2 - 1)
    return max(abs(half + root), abs(half - root))


def _layer_eigenvalues(
    layers: Layers, state: State, step_size: float, dense_size: int
) -> tuple[complex, ...]:
    """Of dF/dY; a monotone layer's are real."""
    del step_size
    jacobian = layer_jacobian(layers[0], state[0])
    if not is_monotone(layers[0]):
        return spectrum(jacobian, dense_size=dense_size).eigenvalues
    if jacobian.size <= dense_size:
        return tuple(map(complex, torch.linalg.eigvalsh(finite(jacobian.dense())).tolist()))
    # 0 may or may not be an eigenvalue; it stands for all that are not the largest.
    return complex(largest_eigenvalue(jacobian, smallest=True, dense_size=dense_size)), 0j


def _leapfrog_eigenvalues(
    layers: Layers, state: State, step_size: float, dense_size: int
) -> tuple[complex, ...]:
    values = _layer_eigenvalues(layers, state, step_size, dense_size)
    return tuple(-value for value in values)


def _verlet_eigenvalues(
    layers: Layers, state: State, step_size: float, dense_size: int
) -> tuple[complex, ...]:
    moved, auxiliary = _after_first_shear(layers, state, step_size)
    product = layer_jacobian(layers[0], auxiliary).after(layer_jacobian(layers[1], moved))
    return spectrum(product, dense_size=dense_size).eigenvalues


class _Rule(NamedTuple):
    eigenvalues: Callable[[Layers, State, float, int], tuple[complex, ...]]
    bound: Callable[[Iterable[complex]], float]
    factor: Callable[[complex, float], float]


_RULES: dict[type, _Rule] = {
    ForwardEuler: _Rule(_layer_eigenvalues, euler_bound, _euler_factor),
    RungeKutta4: _Rule(_layer_eigenvalues, runge_kutta_bound, _runge_kutta_factor),
    Leapfrog: _Rule(_leapfrog_eigenvalues, oscillation_bound, _oscillation_factor),
    Verlet: _Rule(_verlet_eigenvalues, oscillation_bound, _oscillation_factor),
}


def _after_first_shear(layers: Layers, state: State, step_size: float) -> State:
    first = Verlet().shears(layers)[0]
    with torch.no_grad():
        moved = first.add_to(state[first.target], state[first.source], step_size, None)
    return moved, state[1]


def _significant(eigenvalues: Iterable[complex]) -> list[complex]:
    """Without the zeros, and with those on the imaginary axis put onto it."""
    values = list(eigenvalues)
    scale = max(map(abs, values), default=0.0)
    return [
        complex(0.0 if abs(value.real) <= _ZERO * scale else value.real, value.imag)
        for value in values
        if abs(value) > _ON_AXIS * scale
    ]


def _first_exit(direction: complex) -> float:
    """The first s > 0 at which |R(s direction)| exceeds 1; 0 if it does at once."""
    # R(z) R(conj z) - 1, the coefficient of s^n summed over products of Taylor terms.
    coefficients = numpy.zeros(9)
    for m, first in enumerate(_RK4_TAYLOR):
        for n, second in enumerate(_RK4_TAYLOR):
            coefficients[m + n] += first * second * (direction ** (m - n)).real
    coefficients[0] = 0.0
    coefficients[numpy.abs(coefficients) < 1e-14] = 0.0
    lowest = int(numpy.flatnonzero(coefficients)[0])
    if coefficients[lowest] > 0:
        return 0.0
    roots = numpy.roots(coefficients[lowest:][::-1])
    real = roots.real[(numpy.abs(roots.imag) < 1e-9) & (roots.real > 0)]
    return float(real.min())
