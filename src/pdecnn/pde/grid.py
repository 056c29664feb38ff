"""The grid on which reversal is exact: fixed-point numbers held in floating point (Sec. 3.2).

Multiples of 2^-k are added and subtracted without rounding as long as the results stay below
2^(p-k), p the number of bits of the significand. Rounding every increment to the grid therefore
makes a shear an exact bijection (Levesque & Verlet 1993, bit-reversible molecular dynamics).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pdecnn.checks import is_count
from pdecnn.errors import ConfigError, DivergedError

_SIGNIFICAND_BITS = {torch.float32: 24, torch.float64: 53}
# One for the process, not one a thread: recomputation runs in a thread of autograd's own.
_deferred: list[Tensor] | None = None


class _RoundStraightThrough(torch.autograd.Function):
    """Round to multiples of 1/scale; the gradient is that of the identity."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, scale: float) -> Tensor:
        del ctx
        return (values * scale).round() / scale

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        del ctx
        return gradients[0], None


@dataclass(frozen=True, slots=True)
class Grid:
    """The multiples of 2^-bits."""

    bits: int = 12

    def __post_init__(self) -> None:
        if not is_count(self.bits, 1, 22):
            raise ConfigError(f"grid_bits must be a whole number from 1 to 22, found {self.bits!r}")
        object.__setattr__(self, "bits", int(self.bits))

    def round(self, values: Tensor) -> Tensor:
        """The nearest grid points, differentiated straight through."""
        rounded: Tensor = _RoundStraightThrough.apply(values, float(2**self.bits))  # type: ignore[no-untyped-call]
        return rounded

    def limit(self, dtype: torch.dtype) -> float:
        """The magnitude below which sums of grid points are exact."""
        if dtype not in _SIGNIFICAND_BITS:
            raise ValueError(
                f"exact reversal needs a float32 or float64 state, found {dtype}; convert it with "
                f".to(dtype)"
            )
        return float(2 ** (_SIGNIFICAND_BITS[dtype] - self.bits))

    def check_extent(self, extent: Tensor, dtype: torch.dtype) -> None:
        """Raise if `extent`, the largest magnitude of a state, is at or beyond the limit or NaN.

        Within `deferred_checks` a flag is left on the device instead.
        """
        limit = self.limit(dtype)
        # Not even the limit itself: it is also what limit + 2^-bits, a tie, is rounded to.
        if _deferred is not None:
            _deferred.append(~(extent < limit))
            return
        largest = float(extent)
        if not largest < limit:
            raise DivergedError(
                f"the state left the range of exact reversal: largest magnitude {largest:.4g}, "
                f"limit {limit:.4g} with grid_bits={self.bits}; use a smaller step_size, a "
                f"normalisation, fewer grid_bits, or backprop='checkpointed'"
            )

    def check_state(self, state: tuple[Tensor, ...]) -> None:
        """Raise unless every component lies on the grid and in range, as exact reversal needs."""
        for component in state:
            self.check_extent(largest_magnitude(component), component.dtype)
            if not torch.equal(component, self.round(component.detach())):
                raise ValueError(
                    f"exact reversal needs a state on the grid 2^-{self.bits}, such as "
                    f"propagate returns; round it first: tuple(pdecnn.Grid({self.bits})"
                    f".round(part) for part in state)"
                )


@contextmanager
def deferred_checks() -> Iterator[list[Tensor]]:
    """Collect, as 0-dim bool tensors, whether states left the range of exact reversal.

    Raising would mean to wait for the device at every block.
    """
    global _deferred
    before, flags = _deferred, list[Tensor]()
    _deferred = flags
    try:
        yield flags
    finally:
        _deferred = before


def has_left_range() -> bool:
    """Whether a check that was deferred has failed so far; waits for the device."""
    return _deferred is not None and any(bool(flag) for flag in _deferred)


class Extent:
    """The largest magnitude of a state and of all it becomes, one number on the device."""

    def __init__(self, grid: Grid, state: tuple[Tensor, ...]) -> None:
        self.grid = grid
        self.largest = largest_magnitude(state[0])
        for component in state[1:]:
            self.watch(component)

    def watch(self, values: Tensor) -> None:
        """Take these values into account."""
        # Never a list: small tensors that stay alive among large ones split the memory these
        # leave, so that on a CPU it would grow with the number of steps.
        self.largest = torch.maximum(self.largest, largest_magnitude(values))

    def check(self) -> None:
        """Raise if the state left the range of exact reversal at any time."""
        self.grid.check_extent(self.largest, self.largest.dtype)


def largest_magnitude(values: Tensor) -> Tensor:
    """max |values| as a tensor on the device, 0 without any; NaN if any value is."""
    if values.numel() == 0:
        return values.new_zeros(())
    largest: Tensor = torch.linalg.vector_norm(values.detach(), ord=float("inf"))
    return largest
