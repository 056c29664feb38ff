"""The axes of a chart: how far they reach, and where numbers are written."""

from collections.abc import Sequence
from math import ceil, floor, log10


class Axis:
    """From numbers to places along one side of a chart."""

    def __init__(self, low: float, high: float, begin: float, end: float, *, log: bool) -> None:
        self.low, self.high, self.begin, self.end, self.log = low, high, begin, end, log

    def __call__(self, value: float) -> float:
        """Where a number lies."""
        low, high = self.low, self.high
        if self.log:
            value, low, high = log10(value), log10(low), log10(high)
        share = (value - low) / (high - low)
        return round(self.begin + share * (self.end - self.begin), 1)

    def ticks(self, whole: bool = False) -> list[float]:
        """Where numbers are written."""
        if self.log:
            return _decades(self.low, self.high)
        return nice_ticks(self.low, self.high, whole=whole)


def nice_ticks(low: float, high: float, *, whole: bool = False, most: int = 6) -> list[float]:
    """Round numbers within a range."""
    rough = (high - low) / (most - 1)
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    if whole:
        step = max(step, 1.0)
    first = ceil(low / step - 1e-9)
    count = floor(high / step + 1e-9) - first + 1
    return [float(f"{(first + k) * step:.12g}") for k in range(count)]


def _decades(low: float, high: float) -> list[float]:
    ends = ceil(log10(low) - 1e-9), floor(log10(high) + 1e-9)
    every = max(1, ceil((ends[1] - ends[0]) / 5))
    decades = [float(f"1e{k}") for k in range(ends[0], ends[1] + 1, every)]
    if len(decades) > 2:
        return decades
    finer = [factor * 10.0**k for k in range(ends[0] - 1, ends[1] + 1) for factor in (1, 2, 5)]
    return [float(f"{value:.6g}") for value in finer if low <= value <= high]


def padded(low: float, high: float) -> tuple[float, float]:
    """A little more on both sides."""
    margin = 0.03 * (high - low) or max(0.5, 0.03 * abs(high))
    return low - margin, high + margin


def percent_range(values: Sequence[float]) -> tuple[float, float]:
    """A tenth at least, and not beyond 0 and 100 % but for half a marker."""
    low, high = min(values), max(values)
    middle, reach = (low + high) / 2, 0.6 * max(high - low, 0.1)
    return max(middle - reach, -0.02 * reach), min(middle + reach, 1 + 0.06 * reach)


def value_range(values: Sequence[float], *, log: bool) -> tuple[float, float]:
    """From zero, unless there are negative numbers or decades."""
    low, high = min(values), max(values)
    if log:
        return low / 1.2, high * 1.2
    if low >= 0:
        return 0.0, 1.08 * high or 1.0
    return padded(low, high)


def plane_range(values: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """With zero in it, and wide enough that rounding does not look like a cloud."""
    low, high = min(0.0, *values), max(0.0, *values)
    margin = 0.06 * (high - low)
    if high - low < 0.3 * (max(others) - min(others)):
        margin = 0.2 * (max(others) - min(others))
    return low - (margin or 0.5), high + (margin or 0.5)
