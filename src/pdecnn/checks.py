"""What counts as a number in a setting: no text, no truth value, no NaN; numpy's will do."""

from collections.abc import Callable
from functools import wraps
from math import inf, isfinite
from numbers import Integral, Real
from typing import ParamSpec, TypeGuard, TypeVar

from pdecnn.errors import ConfigError

LARGEST_COUNT = 2**31 - 1
"""JSON has no limit, sizes of tensors do."""
LARGEST_NUMBER = (2 - 2**-23) * 2.0**127
"""Of float32: torch refuses to multiply a tensor of it by more."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def formerly(
    **successors: str,
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Arguments that a function had in 0.1, and what to pass since 0.2: a TypeError says so."""

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @wraps(function)
        def checked(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
            for name in successors.keys() & named.keys():
                raise TypeError(
                    f"{function.__qualname__} has no argument {name!r} since 0.2: "
                    f"{successors[name]}"
                )
            return function(*arguments, **named)

        return checked

    return decorate


def is_finite_number(value: object) -> TypeGuard[float]:
    """Whether it is a number that a float can hold."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def is_count(value: object, smallest: int = 1, largest: int = LARGEST_COUNT) -> TypeGuard[int]:
    """Whether it is a whole number in that range."""
    return _is_whole(value) and smallest <= value <= largest


def check_count(name: str, value: object, *, smallest: int = 1) -> int:
    """The whole number of that setting, or a ConfigError."""
    if not is_count(value, smallest):
        too_large = _is_whole(value) and value > LARGEST_COUNT
        bound = f"at most {LARGEST_COUNT}" if too_large else f"at least {smallest}"
        raise ConfigError(f"{name} must be a whole number of {bound}, found {value!r}")
    return int(value)


def check_positive(name: str, value: object) -> float:
    """The positive number of that setting, or a ConfigError."""
    if not (is_finite_number(value) and float(value) > 0):
        raise ConfigError(f"{name} must be a positive number, found {value!r}")
    if value > LARGEST_NUMBER:
        raise ConfigError(f"{name} must be at most {LARGEST_NUMBER:.3g}, found {value!r}")
    return float(value)


def check_number(name: str, value: object, *, smallest: float = -inf, below: float = inf) -> float:
    """The number of that setting, from `smallest` on and below `below`, or a ConfigError."""
    if not (is_finite_number(value) and smallest <= float(value) < below):
        wanted = "a finite number" if smallest == -inf else f"a number of at least {smallest:g}"
        wanted = wanted if below == inf else f"in [{smallest:g}, {below:g})"
        raise ConfigError(f"{name} must be {wanted}, found {value!r}")
    return float(value)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, Integral) and not isinstance(value, bool)
