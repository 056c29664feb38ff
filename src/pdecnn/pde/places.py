"""Objects by name, so that an operator in a compiled graph, which takes no object, can know one."""

from itertools import count
from typing import Any
from weakref import WeakValueDictionary

_numbers = count()
_places: WeakValueDictionary[str, Any] = WeakValueDictionary()


def new_place(thing: object) -> str:
    """The name of an object from now on, for as long as it is there."""
    place = f"{type(thing).__name__} {next(_numbers)}"
    _places[place] = thing
    return place


def at_place(place: str) -> Any:
    """The object of that name."""
    return _places[place]
