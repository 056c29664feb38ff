"""Step bounds of the linearisation at given features, by each integrator's rule (Sec. 3.1).

These are *local*: across a kink of sigma a step below the bound may expand distances many times.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor, nn

from pdecnn.diagnostics.guarantees import is_linear, is_monotone
from pdecnn.diagnostics.jacobians import (
    LinearMap,
    double_state,
    frozen_copy,
    is_wave,
    jacobian_at,
    layer_jacobian,
)
from pdecnn.diagnostics.spectra import DENSE_SIZE, finite, largest_eigenvalue, spectrum
from pdecnn.errors import DivergedError
from pdecnn.pde.facts import StabilityRule, declared
from pdecnn.pde.integrators import AbstractIntegrator, Layers, State

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

    The rule is the one that the integrator's class declares, with lambda the eigenvalues of dF/dY,
    or of both layers' Jacobians together: for forward Euler min -2 Re(lambda)/|lambda|^2, that is
    2/lambda_max(K^T D K) for F_sym; for Runge-Kutta 4 where |R(dt lambda)| leaves the unit disk,
    2.7853/lambda_max; for leapfrog 2/sqrt(-lambda_min) if all lambda are real and not positive; for
    Verlet 2/sqrt(lambda_max(A B)) if all eigenvalues of A B are real and not negative. Jacobians
    are taken where a step of `step_size` from `state` takes them first; the bound of a method of
    several stages is that of the system linearised there. Of large matrices only outermost
    eigenvalues are known, so that the bound of a layer that is not monotone is an estimate from
    above and the amplification one from below; where none is found, a DivergedError says so.
    """
    rule: StabilityRule | None = declared(type(integrator), "stability")
    if rule is None or len(integrator.equations) != len(layers):
        return None
    copies = [frozen_copy(layer) for layer in layers]
    sources, num_evaluations = layer_sources(integrator, copies, double_state(state), step_size)
    wave = is_wave(integrator)
    values = _eigenvalues(integrator, copies, sources, dense_size)
    power = 2 if wave else 1
    factors = [rule.growth(step_size**power * value) for value in _significant(values)]
    # Zero eigenvalues are multiplied by 1.
    still = [1.0] if len(factors) < len(values) else []
    factor: float | None = max(factors + still, default=1.0)
    missing = None
    if num_evaluations > len(layers) and not all(map(is_linear, layers)):
        # Its stages are at different features.
        try:
            step = jacobian_at(
                lambda at: integrator.step(copies, at, step_size), double_state(state)
            )
            factor = spectrum(step, dense_size=dense_size).radius
        except DivergedError as error:
            factor, missing = None, str(error)
    bound = min(map(rule.bound, _significant(values, real=wave)), default=inf)
    return LocalStability(bound=bound, amplification=factor, why_missing=missing)


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


class _Recorder(nn.Module):
    """A layer that remembers what it was applied to."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.sources: list[Tensor] = []

    def forward(self, *features: Tensor) -> Tensor:
        """F(features)."""
        self.sources.append(features[0])
        outputs: Tensor = self.layer(*features)
        return outputs


@torch.no_grad()
def layer_sources(
    integrator: AbstractIntegrator, layers: Layers, state: State, step_size: float
) -> tuple[list[Tensor], int]:
    """What each layer of a step is first applied to, and how often layers are applied in all."""
    recorders = [_Recorder(layer) for layer in layers]
    integrator.step(recorders, state, step_size)
    # A layer that a step does not use is judged at the features' place.
    sources = [recorder.sources[0] if recorder.sources else state[0] for recorder in recorders]
    return sources, sum(len(recorder.sources) for recorder in recorders)


def _eigenvalues(
    integrator: AbstractIntegrator, layers: Layers, sources: list[Tensor], dense_size: int
) -> tuple[complex, ...]:
    """Of dF/dY, or of the product of both where two unknowns drive each other."""
    sign = 1
    jacobians: list[LinearMap] = []
    for equation, layer, source in zip(integrator.equations, layers, sources, strict=True):
        sign *= equation.sign
        jacobians.append(layer_jacobian(layer, source))
    product = jacobians[0]
    for other in jacobians[1:]:
        product = product.after(other)
    if len(layers) > 1 or not is_monotone(layers[0]):
        values = spectrum(product, dense_size=dense_size).eigenvalues
    elif product.size <= dense_size:
        # A monotone layer's are real.
        dense = torch.linalg.eigvalsh(finite(product.dense()))
        values = tuple(map(complex, dense.tolist()))
    else:
        # 0 may or may not be an eigenvalue; it stands for all that are not the largest.
        values = (complex(largest_eigenvalue(product, smallest=True, dense_size=dense_size)), 0j)
    return tuple(sign * value for value in values)


def _significant(eigenvalues: Iterable[complex], *, real: bool = False) -> list[complex]:
    """Without the zeros, and with those near the imaginary axis, or the real one, put onto it."""
    values = list(eigenvalues)
    scale = max(map(abs, values), default=0.0)
    return [
        complex(
            0.0 if abs(value.real) <= _ZERO * scale else value.real,
            0.0 if real and abs(value.imag) <= _ON_AXIS * scale else value.imag,
        )
        for value in values
        if abs(value) > _ON_AXIS * scale
    ]
