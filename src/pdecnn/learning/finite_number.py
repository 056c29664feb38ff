"""What counts as a number in a setting."""

from sys import float_info
from typing import TypeGuard

LARGEST_COUNT = 2**53


def is_finite_number(value: object) -> TypeGuard[float]:
    """Whether it is a number that a float can hold: no text, no truth value, no NaN."""
    # A comparison, not isfinite, which overflows for the huge whole numbers JSON can hold.
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and -float_info.max <= value <= float_info.max
    )


def is_count(value: object, smallest: int) -> TypeGuard[int]:
    """Whether it is a whole number from `smallest` to what a float holds exactly; True is none."""
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and smallest <= value <= LARGEST_COUNT
    )
