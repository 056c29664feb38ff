"""The grid on which reversal is exact: fixed-point numbers held in floating point (Sec. 3.2).

Multiples of 2^-k are added and subtracted without rounding as long as the results stay below
2^(p-k), p the number of bits of the significand. Rounding every increment to the grid therefore
makes a shear an exact bijection (Levesque & Verlet 1993, bit-reversible molecular dynamics).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, log2, nan
from typing import Any

import torch
from torch import Tensor

from pdecnn.errors import ConfigError, DivergedError
from pdecnn.settings import is_count

_SIGNIFICAND_BITS = {torch.float32: 24, torch.float64: 53}
_COARSEST_CHOICE, _FINEST_CHOICE, _LARGEST = 12, 20, 22
# One for the process, not one a thread: recomputation runs in a thread of autograd's own.
_deferred: list[Tensor] | None = None


are_transforms_active = torch._C._are_functorch_transforms_active
"""Whether torch.func is at work; not to be asked by what is compiled."""


def is_followed() -> bool:
    """Whether torch.func transforms what is computed now, operator by operator."""
    # The compiler has its own ways to do that, and cannot look into this question.
    return not torch.compiler.is_compiling() and bool(are_transforms_active())


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

    bits: int = _COARSEST_CHOICE

    def __post_init__(self) -> None:
        if not is_count(self.bits, 1, _LARGEST):
            raise ConfigError(
                f"grid_bits must be a whole number from 1 to {_LARGEST}, found {self.bits!r}"
            )
        object.__setattr__(self, "bits", int(self.bits))

    def round(self, values: Tensor) -> Tensor:
        """The nearest grid points, differentiated straight through."""
        scale = float(2**self.bits)
        if torch.compiler.is_compiling() or is_followed():
            # Neither takes functions of ours well. No difference or sum of these is rounded.
            distance: Tensor = (values * scale).round() / scale - values
            return values + distance.detach()
        rounded: Tensor = _RoundStraightThrough.apply(values, scale)  # type: ignore[no-untyped-call]
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
        # Where every operator is followed nothing is reversed, and numbers cannot be looked at.
        if torch.compiler.is_compiling() or is_followed() or extent.is_meta:
            return
        # Not even the limit itself: it is also what limit + 2^-bits, a tie, is rounded to.
        if _deferred is not None:
            _deferred.append(~(extent < limit))
            return
        largest = float(extent)
        if not largest < limit:
            raise DivergedError(
                f"the state left the range of exact reversal: largest magnitude {largest:.4g}, "
                f"limit {limit:.4g} with grid_bits={self.bits}; use fewer grid_bits, a "
                f"normalisation, a smaller step_size on the same grid, or backprop='checkpointed'"
            )

    def checked(self, state: tuple[Tensor, ...], extent: Tensor) -> tuple[Tensor, ...]:
        """The state, once `check_extent` of its largest magnitude on the way raised nothing.

        What is recorded for a CUDA graph cannot wait for a number: there a state that left the
        range, or will in a replay, is NaN, so that a loss shows it.
        """
        if _deferred is None and _is_recorded(extent):
            left = ~(extent < self.limit(extent.dtype))
            return tuple(part.masked_fill(left, nan) for part in state)
        self.check_extent(extent, extent.dtype)
        return state

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


def choose_bits(step_size: float) -> int:
    """The coarsest grid on which a step of that size is at least 64 grid points: 2^-k <= dt/64.

    A shear adds dt F rounded to the grid, with an error of up to 2^-(k+1). Errors that were
    independent would add up like sqrt(N) over N = T/dt steps. But where dt F changes by less than
    a grid point a step they are the same again and again and add up like N, as if F were wrong by
    up to 2^-(k+1)/dt: more steps to the same T make the error larger. Uniform in that range it
    has the standard deviation 2^-k / (sqrt(12) dt), here at most 1/(64 sqrt(12)) = 4.5e-3: at
    T = 1 that is the relative error of features of size 1.

    Against that stands the range: float32 states must stay below 2^(24-k), float64 ones below
    2^(53-k), but a block cannot know its states before they come. 12 bits, for steps of 1/64 and
    longer, leave 4096 in float32 and 20 bits 16; finer grids are not chosen.
    """
    bits = max(_COARSEST_CHOICE, 6 + ceil(-log2(step_size)))
    if bits > _FINEST_CHOICE:
        raise ConfigError(
            f"step_size={step_size:g} is too small for backprop='exact' to choose a grid: it takes "
            f"grid_bits={bits}, where float32 states must stay below {2.0 ** (24 - bits):g}; use "
            f"larger steps or backprop='checkpointed', or set grid_bits, at most {_LARGEST}"
        )
    return bits


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

    def checked(self, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The state, if none on the way to it left the range of exact reversal."""
        return self.grid.checked(state, self.largest)


def _is_recorded(values: Tensor) -> bool:
    return (
        values.is_cuda
        and not torch.compiler.is_compiling()
        and torch.cuda.is_current_stream_capturing()
    )


def largest_magnitude(values: Tensor) -> Tensor:
    """max |values| as a tensor on the device, 0 without any; NaN if any value is."""
    if values.numel() == 0:
        return values.new_zeros(())
    largest: Tensor = torch.linalg.vector_norm(values.detach(), ord=float("inf"))
    return largest
