"""What counts as a number in a setting."""

from sys import float_info
from typing import TypeGuard


def is_finite_number(value: object) -> TypeGuard[float]:
    """Whether it is a number that a float can hold: no text, no truth value, no NaN."""
    # A comparison, not isfinite, which overflows for the huge whole numbers JSON can hold.
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and -float_info.max <= value <= float_info.max
    )


def is_count(value: object, smallest: int) -> TypeGuard[int]:
    """Whether it is a whole number of at least `smallest`; True is none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= smallest
