"""What may be asked of the explorer, and how a request's fields become arguments."""

from collections.abc import Callable
from typing import Any

from pdecnn.errors import ConfigError
from pdecnn.explorer.answers import Explorer

Query = dict[str, str]
GET: dict[str, Callable[[Explorer, Query], dict[str, Any]]] = {
    "describe": lambda explorer, query: explorer.describe(),
    "sample": lambda explorer, query: explorer.sample(_text(query, "sample")),
    "noise": lambda explorer, query: explorer.noise(
        _text(query, "sample"), _number(query, "amount")
    ),
    "frame": lambda explorer, query: explorer.frame(
        _text(query, "sample"),
        _index(query, "block"),
        _index(query, "step"),
        view=_text(query, "view"),
        amount=_number(query, "amount"),
    ),
    "reverse": lambda explorer, query: explorer.reverse(
        _text(query, "sample"), _index(query, "block")
    ),
}
POST: dict[str, Callable[[Explorer, bytes], dict[str, Any]]] = {
    "upload": lambda explorer, content: explorer.upload(content),
}


def _text(query: Query, name: str) -> str:
    if name not in query:
        raise ConfigError(f"{name} is missing")
    return query[name]


def _index(query: Query, name: str) -> int:
    text = _text(query, name)
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ConfigError(f"{name} must be a whole number from 0 on, found {text!r}")
    return int(text)


def _number(query: Query, name: str) -> float:
    text = _text(query, name)
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"{name} must be a number, found {text!r}") from error
