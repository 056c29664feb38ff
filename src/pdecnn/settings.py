"""Declared settings: type, default, range and meaning of each in one place, checked by one rule.

What counts as a number is the same for all: no text, no truth value, no NaN; numpy's will do.
"""

import json
from collections.abc import Callable, Collection
from dataclasses import MISSING, Field, field, fields
from functools import cache, wraps
from inspect import cleandoc
from math import inf, isfinite
from numbers import Integral, Real
from types import GenericAlias, NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    ParamSpec,
    Self,
    TypeGuard,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from pdecnn.errors import ConfigError, unknown_name

LARGEST_COUNT = 2**31 - 1
"""JSON has no limit, sizes of tensors do."""
LARGEST_NUMBER = (2 - 2**-23) * 2.0**127
"""Of float32: torch refuses to multiply a tensor of it by more."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Class = TypeVar("Class", bound="type[Settings]")


def setting(
    default: Any = MISSING,
    meaning: str = "",
    allowed: str | Collection[str] | None = None,
    *,
    kind: str | None = None,
) -> Any:
    """A field of `Settings`: its default, what it means, and which values it may have.

    `allowed` is an interval of numbers such as '[0, 1)', or the names there are where no `Literal`
    says them; it holds for each entry of a list. `kind` is what an unknown name is called, the
    field's own name if None.
    """
    return field(default=default, metadata={"meaning": meaning, "allowed": allowed, "kind": kind})


def same_setting(declared: "type[Settings]", name: str) -> Any:
    """A field that another class of settings has declared, and that it has to agree with."""
    entry = next(entry for entry in _fields(declared) if entry.name == name)
    return field(default=entry.default, metadata=entry.metadata)


class Settings:
    """The base of dataclasses of settings: every value is checked, and stored as Python's own."""

    section: ClassVar[str]
    """What the settings are of: 'network', 'training', 'data'. Errors name 'training.epochs'."""

    def __post_init__(self) -> None:
        for entry in _fields(self):
            object.__setattr__(self, entry.name, _checked(entry, getattr(self, entry.name), self))
        self.check_together()

    def check_together(self) -> None:
        """Refuse values that do not fit each other."""

    def refuse_unused(self, name: str, where: str) -> None:
        """Refuse a setting that would be ignored there, unless it has its default."""
        entry = next(entry for entry in _fields(self) if entry.name == name)
        if getattr(self, name) != entry.default:
            key = f"{self.section}.{name}"
            raise ConfigError(
                f"{key} has no use {where}, found {setting_text(getattr(self, name))}; leave "
                f"it out, or where the recipe has it pass --set {key}={setting_text(entry.default)}"
            )

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """The settings of JSON values; unknown and missing keys are errors."""
        if not isinstance(values, dict):
            raise ConfigError(
                f"the {cls.section} settings must be an object, found {type(values).__name__}"
            )
        known = {entry.name: entry for entry in _fields(cls)}
        for key in values:
            if key not in known:
                raise unknown_name(f"{cls.section} setting", key, known)
        for name, entry in known.items():
            if entry.default is MISSING and name not in values:
                raise ConfigError(f"the {cls.section} settings need {name!r}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values."""
        values = {entry.name: getattr(self, entry.name) for entry in _fields(self)}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def documented(cls: Class) -> Class:
    """Add what each setting means to the documentation of a class of settings; a decorator."""
    lines = [f"- `{entry.name}`: {entry.metadata['meaning']}" for entry in _fields(cls)]
    cls.__doc__ = "\n".join([cleandoc(str(cls.__doc__)), "", *lines])
    return cls


def setting_text(value: Any) -> str:
    """A value as `--set` takes it."""
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return ",".join(map(setting_text, value))
    return value if isinstance(value, str) else json.dumps(value)


def allowed_values(entry: "Field[Any]") -> str | Collection[str] | None:
    """The interval of numbers or the names that a setting may have; None: any of its type."""
    hints = _alternatives(entry.type)
    hints = tuple(get_args(hint)[0] if get_origin(hint) is tuple else hint for hint in hints)
    names = [name for hint in hints if get_origin(hint) is Literal for name in get_args(hint)]
    return names or entry.metadata.get("allowed")


def value_types(hint: Any) -> tuple[Any, ...]:
    """The types of which a value may be one; names, `Literal`s, are text."""
    return tuple(map(_without_names, _alternatives(hint)))


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _without_names(hint: Any) -> Any:
    if get_origin(hint) is tuple:
        return GenericAlias(tuple, (_without_names(get_args(hint)[0]), ...))
    return str if get_origin(hint) is Literal else hint


class Interval(NamedTuple):
    """The numbers that a setting may have."""

    low: float
    high: float
    has_low: bool
    has_high: bool

    def __contains__(self, number: object) -> bool:
        if not is_finite_number(number):
            return False
        value = float(number)
        above = value >= self.low if self.has_low else value > self.low
        return above and (value <= self.high if self.has_high else value < self.high)


@cache
def interval(text: str) -> Interval:
    """'[0, 1)' as an interval."""
    low, high = map(float, text[1:-1].split(","))
    return Interval(low, high, text[0] == "[", text[-1] == "]")


def _fields(settings: Any) -> "tuple[Field[Any], ...]":
    return fields(settings)


def _checked(entry: "Field[Any]", value: object, settings: Settings) -> Any:
    """The value of a field, or a ConfigError that names it."""
    name, kinds = f"{settings.section}.{entry.name}", value_types(entry.type)
    if value is None and NoneType in kinds:
        return None
    several = [get_args(kind)[0] for kind in kinds if get_origin(kind) is tuple]
    single = [kind for kind in kinds if kind is not NoneType and get_origin(kind) is not tuple]
    if not several:
        if bool in single and len(single) > 1:  # a word instead of true or false
            return value if isinstance(value, bool) else _checked_word(name, value, entry)
        # What may be an object as well as a name is the business of `check_together`.
        return value if len(single) > 1 else _checked_one(name, value, single[0], entry)
    if isinstance(value, str) and str in single:  # a word instead of numbers
        return value
    if not isinstance(value, list | tuple):  # one value is a list of one
        one = _checked_one(name, value, (single or several)[0], entry)
        return one if single else (one,)
    if not value and entry.default != ():
        raise ConfigError(f"{name} must be a list with at least one entry, found {value!r}")
    return tuple(_checked_one(name, part, several[0], entry) for part in value)


def _checked_one(name: str, value: object, hint: Any, entry: "Field[Any]") -> Any:
    allowed: Any = allowed_values(entry)
    if hint is bool:
        if not isinstance(value, bool):
            raise ConfigError(f"{name} must be true or false, found {value!r}")
    elif hint is int or hint is float:
        return _checked_number(name, value, hint, allowed or "(-inf, inf)")
    elif hint is str and allowed is not None:
        if not isinstance(value, str) or value not in allowed:
            raise unknown_name(entry.metadata.get("kind") or name, value, allowed)
    elif not isinstance(value, hint):
        raise ConfigError(f"{name} must be text, found {value!r}")
    return value


def _checked_word(name: str, value: object, entry: "Field[Any]") -> object:
    words = allowed_values(entry) or ()
    if not isinstance(value, str):
        said = " or ".join(map(repr, words))
        raise ConfigError(f"{name} must be true, false or {said}, found {value!r}")
    if value not in words:
        raise unknown_name(entry.metadata["kind"] or name, value, ("true", "false", *words))
    return value


def _checked_number(name: str, value: object, kind: type, text: str) -> float:
    whole = kind is int
    if value in interval(text) and (not whole or is_count(value, -LARGEST_COUNT)):
        number: float = kind(value)
        return number
    low, high, has_low, _ = interval(text)
    if whole and is_count(value, LARGEST_COUNT + 1, 10**400):
        wanted = f" of at most {LARGEST_COUNT}"
    elif high < inf:
        wanted = f" in {text}"
    elif low > -inf and (has_low or whole):
        wanted = f" of at least {low:g}"
    else:
        wanted = ""
    article = "a whole number" if whole else "a number" if wanted else "a positive number"
    if not whole and low == -inf:
        article = "a finite number"
    raise ConfigError(f"{name} must be {article}{wanted}, found {value!r}")


# ------------------------------------------------------------------ numbers


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
    if not isinstance(value, Integral) or isinstance(value, bool):
        return False
    return smallest <= int(value) <= largest


def check_count(name: str, value: object, *, smallest: int = 1) -> int:
    """The whole number of that setting, or a ConfigError."""
    return int(_checked_number(name, value, int, f"[{smallest}, inf)"))


def check_positive(name: str, value: object) -> float:
    """The positive number of that setting, or a ConfigError."""
    number = _checked_number(name, value, float, "(0, inf)")
    if number > LARGEST_NUMBER:
        raise ConfigError(f"{name} must be at most {LARGEST_NUMBER:.3g}, found {value!r}")
    return number


def check_number(name: str, value: object, *, smallest: float = -inf, below: float = inf) -> float:
    """The number of that setting, from `smallest` on and below `below`, or a ConfigError."""
    return _checked_number(name, value, float, f"[{smallest:g}, {below:g})")


# ------------------------------------------------------------------ earlier names


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
