"""Settings as text: `key=value` pairs, TOML files, and the conversion to a field's type."""

import tomllib
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from pdecnn.checks import is_finite_number
from pdecnn.errors import ConfigError, quoted


def parse_assignment(text: str) -> tuple[str, Any]:
    """'training.epochs=5' -> ('training.epochs', 5); lists as [1,2] or 1,2; other text as it is."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError(
            f"a setting reads key=value, e.g. training.epochs=5; found {quoted(text)}"
        )
    value = value.strip()
    for candidate in (value, f"[{value}]" if "," in value else value):
        try:
            return key.strip(), tomllib.loads(f"value = {candidate}")["value"]
        except ValueError:  # not TOML, or a whole number of thousands of digits
            continue
        except RecursionError as error:
            raise ConfigError(
                f"{quoted(key.strip())} has lists within lists without end"
            ) from error
    return key.strip(), value


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of a TOML file as dotted keys; 'recipe' names what it is a variant of."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML ({error})") from error
    settings: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, dict):
            settings |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            settings[key] = value
    return settings


def convert(value: Any, hint: Any, key: str) -> Any:
    """The value as the type of its field; a ConfigError names the key where it is not one."""
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if NoneType in options and (value is None or value == "none"):
        return None
    # A single number will do as a list of one, and names need no quotes: opening,blocks.
    items = [part.strip() for part in value.split(",")] if isinstance(value, str) else [value]
    for candidate in (value, items):
        for option in options:
            converted = _convert_one(candidate, option)
            if converted is not _NO:
                return converted
    wanted = " or ".join(_describe(option) for option in options if option is not NoneType)
    raise ConfigError(f"{key} must be {wanted}, found {quoted(value)}")


_NO = object()


def _convert_one(value: Any, hint: Any) -> Any:
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        if not isinstance(value, list | tuple):
            return _NO
        items = [_convert_one(entry, item) for entry in value]
        return _NO if any(entry is _NO for entry in items) else tuple(items)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if is_finite_number(value) else _NO
    if hint is int and isinstance(value, bool):
        return _NO
    return value if isinstance(hint, type) and isinstance(value, hint) else _NO


def _describe(hint: Any) -> str:
    if get_origin(hint) is tuple:
        return f"a list of {_describe(get_args(hint)[0]).removeprefix('a ')}s"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return names.get(hint, str(hint))
