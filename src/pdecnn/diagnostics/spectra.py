"""Eigenvalues and norms of matrices that are known by their products only.

Lanczos for symmetric matrices, Arnoldi for others, both from a fixed start, so that equal
matrices give equal numbers; small matrices are written out and solved densely.
"""

from cmath import sqrt as sqrt_complex
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy
import torch
from torch import Tensor

from pdecnn.diagnostics.jacobians import LinearMap, convolution_map
from pdecnn.errors import DivergedError
from pdecnn.pde.convolution import Convolution

DENSE_SIZE = 1024
"""Up to this many columns a matrix is written out."""
_RESTARTS = {"LM": 100, "LR": 10, "LI": 10}
"""Where Arnoldi seeks eigenvalues: of largest magnitude, real part, imaginary part; and how
long. The inner ends may be crowded, those of waves all on one line: what is found there will do."""
_SMALLEST_BASIS = 40
# What 300 do not find, eigenvalues crowded to a relative 1e-6 and less, 1000 rarely do either.
_LANCZOS_RESTARTS = 300
_RELATIVE_TOLERANCE = 1e-8
# A dense singular value is right to a few units in the last place; both ends get this margin.
_ROUNDING_MARGIN = 1e-12


class NotFoundError(DivergedError):
    """An iteration for an eigenvalue did not converge."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spectrum:
    """Eigenvalues, by decreasing magnitude."""

    eigenvalues: tuple[complex, ...]
    complete: bool
    """Whether these are all of them, or the outermost ones only."""

    @property
    def radius(self) -> float:
        """The largest magnitude."""
        return max(map(abs, self.eigenvalues), default=0.0)

    @property
    def largest_real_part(self) -> float:
        """max Re(lambda_i): positive where the linearised system grows."""
        return max((value.real for value in self.eigenvalues), default=0.0)

    @property
    def largest_imaginary_part(self) -> float:
        """max Im(lambda_i), the highest frequency of the linearised system."""
        return max((value.imag for value in self.eigenvalues), default=0.0)

    def negated(self) -> "Spectrum":
        """That of -A."""
        return Spectrum(
            eigenvalues=tuple(-value for value in self.eigenvalues), complete=self.complete
        )

    def square_roots(self) -> "Spectrum":
        """Both square roots of each eigenvalue: the spectrum of [[0, I], [A, 0]]."""
        roots = [sqrt_complex(value) for value in self.eigenvalues]
        both = [sign * root for root in roots for sign in (1, -1)]
        return _sorted_spectrum(both, self.complete)


@dataclass(frozen=True, kw_only=True, slots=True)
class NormBounds:
    """|K|, the largest singular value, between two numbers."""

    lower: float
    upper: float


def spectrum(
    matrix: LinearMap, *, num_eigenvalues: int = 6, dense_size: int = DENSE_SIZE
) -> Spectrum:
    """All eigenvalues of a small square matrix, else outermost ones.

    Of a large matrix those of largest magnitude, real and imaginary part that Arnoldi's method
    found to a relative 1e-8.
    """
    if matrix.size <= max(dense_size, num_eigenvalues + 2):
        return _sorted_spectrum(torch.linalg.eigvals(finite(matrix.dense())).tolist(), True)
    found = [value for end in _RESTARTS for value in _arnoldi(matrix, num_eigenvalues, end)]
    return _sorted_spectrum(_distinct(found), False)


def largest_eigenvalue(
    matrix: LinearMap, *, smallest: bool = False, dense_size: int = DENSE_SIZE
) -> float:
    """The largest (or smallest) eigenvalue of a symmetric matrix, by Lanczos where it is large."""
    if matrix.size <= max(dense_size, 2):
        values = torch.linalg.eigvalsh(finite(matrix.dense()))
        return float(values[0 if smallest else -1])
    return _lanczos(matrix, smallest=smallest)


def largest_symmetric_eigenvalue(matrix: LinearMap, *, dense_size: int = DENSE_SIZE) -> float:
    """lambda_max((J + J^T)/2), the fastest growth |y|'/|y| of y' = J y at any instant.

    Not positive exactly where the system is monotone, as in the proof of Theorem 1.
    """
    return largest_eigenvalue(matrix.symmetric_part(), dense_size=dense_size)


def operator_norm(matrix: LinearMap, *, dense_size: int = DENSE_SIZE) -> float:
    """The largest singular value, sqrt(lambda_max(A^T A))."""
    return sqrt(max(largest_eigenvalue(matrix.gram(), dense_size=dense_size), 0.0))


def convolution_norm(
    convolution: Convolution, size: tuple[int, ...], *, dense_size: int = DENSE_SIZE
) -> NormBounds:
    """|K| on images of `size`, between Lanczos from below and the symbol from above (eq. 2).

    A small K is written out: both ends are its largest singular value up to rounding. Where Lanczos
    does not converge, a power iteration bounds it from below.
    """
    exact = _dense_norm(convolution, size, dense_size)
    if exact is not None:
        return NormBounds(
            lower=exact * (1 - _ROUNDING_MARGIN), upper=exact * (1 + _ROUNDING_MARGIN)
        )
    try:
        lower = operator_norm(convolution_map(convolution, size), dense_size=0)
    except NotFoundError:
        lower = convolution.norm_estimate(size)
    upper = convolution.norm_bound(size)
    return NormBounds(lower=min(lower, upper), upper=upper)


def convolution_norm_bound(
    convolution: Convolution, size: tuple[int, ...], *, dense_size: int = DENSE_SIZE
) -> float:
    """The upper end of `convolution_norm` alone, for which no eigenvalue is sought."""
    exact = _dense_norm(convolution, size, dense_size)
    return convolution.norm_bound(size) if exact is None else exact * (1 + _ROUNDING_MARGIN)


def _dense_norm(convolution: Convolution, size: tuple[int, ...], dense_size: int) -> float | None:
    """|K| where K is small enough to be written out."""
    matrix = convolution_map(convolution, size)
    if matrix.size > dense_size:
        return None
    return float(torch.linalg.matrix_norm(finite(matrix.dense()), ord=2))


def finite(values: Tensor) -> Tensor:
    """The values, or a DivergedError where one is NaN or infinite."""
    if not bool(values.isfinite().all()):
        raise DivergedError(
            "a Jacobian has entries that are not finite, so it has no spectrum; the features or "
            "the weights diverged"
        )
    return values


def _lanczos(matrix: LinearMap, *, smallest: bool) -> float:
    """The end of the spectrum, to a share of the largest magnitude."""
    if _vanishes(matrix):
        return 0.0
    # Shifted, so that the wanted end is the far one: an eigenvalue near 0 cannot be found to a
    # relative tolerance.
    shift = 1.1 * abs(_lanczos_far(matrix, 1.0, 0.0, tolerance=1e-2))
    sign = -1.0 if smallest else 1.0
    return sign * (_lanczos_far(matrix, sign, shift, tolerance=_RELATIVE_TOLERANCE) - shift)


def _lanczos_far(matrix: LinearMap, sign: float, shift: float, *, tolerance: float) -> float:
    """The eigenvalue of largest magnitude of sign * A + shift * I."""
    from scipy.sparse.linalg import ArpackError, eigsh

    shifted = LinearMap(
        size=matrix.size,
        device=matrix.device,
        apply=lambda vector: sign * matrix.apply(vector) + shift * vector,
        adjoint=lambda vector: sign * matrix.adjoint(vector) + shift * vector,
    )
    try:
        (value,) = eigsh(
            _operator(shifted),
            k=1,
            which="LM",
            v0=_start(matrix),
            ncv=min(matrix.size, _SMALLEST_BASIS),
            maxiter=_LANCZOS_RESTARTS,
            tol=tolerance,
            return_eigenvectors=False,
        )
    except ArpackError as error:
        raise _not_found("Lanczos", matrix, _LANCZOS_RESTARTS) from error
    return float(value)


def _arnoldi(matrix: LinearMap, num_eigenvalues: int, which: str) -> list[complex]:
    from scipy.sparse.linalg import ArpackError, eigs

    if _vanishes(matrix):
        return [0j]
    try:
        values = eigs(
            _operator(matrix),
            k=num_eigenvalues,
            which=which,
            v0=_start(matrix),
            ncv=min(matrix.size, max(4 * num_eigenvalues, _SMALLEST_BASIS)),
            maxiter=_RESTARTS[which],
            tol=_RELATIVE_TOLERANCE,
            return_eigenvectors=False,
        )
    except ArpackError as error:
        values = getattr(error, "eigenvalues", ())
        if which == "LM" and len(values) == 0:
            raise _not_found("Arnoldi", matrix, _RESTARTS[which]) from error
    return [complex(value) for value in values]


def _not_found(method: str, matrix: LinearMap, num_restarts: int) -> NotFoundError:
    return NotFoundError(
        f"the method of {method} found no eigenvalue of a matrix of {matrix.size} columns in "
        f"{num_restarts} restarts; pass smaller images, or in Python dense_size={matrix.size}"
    )


def _operator(matrix: LinearMap) -> Any:
    from scipy.sparse.linalg import LinearOperator

    def multiply(vector: Any) -> Any:
        product = matrix.apply(
            torch.tensor(vector, dtype=torch.float64, device=matrix.device).flatten()
        )
        return finite(product).cpu().numpy()

    return LinearOperator((matrix.size, matrix.size), matvec=multiply, dtype=numpy.float64)


def _start(matrix: LinearMap) -> Any:
    return numpy.random.default_rng(0).standard_normal(matrix.size)


def _vanishes(matrix: LinearMap) -> bool:
    """Whether it is the zero matrix, from which neither method can start."""
    vector = torch.tensor(_start(matrix), dtype=torch.float64, device=matrix.device)
    return not bool(finite(matrix.apply(vector)).any())


def _distinct(values: list[complex]) -> list[complex]:
    """Each eigenvalue once, though several ends found it."""
    scale = max(map(abs, values), default=0.0)
    kept: list[complex] = []
    for value in values:
        if all(abs(value - other) > 1e-8 * scale for other in kept):
            kept.append(value)
    return kept


def _sorted_spectrum(values: list[complex], complete: bool) -> Spectrum:
    ordered = sorted(map(complex, values), key=lambda value: (-abs(value), -value.imag))
    return Spectrum(eigenvalues=tuple(ordered), complete=complete)
