"""Parts of a network by name: the package's own, and those that others register."""

import logging
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from threading import RLock
from typing import Generic, TypeVar

from pdecnn.errors import ConfigError, in_one_line, unknown_name

GROUP = "pdecnn.plugins"
"""The entry points that installed packages declare: modules that register parts."""

log = logging.getLogger(__name__)
Part = TypeVar("Part")


class Registry(Generic[Part]):
    """Parts of one kind by name; installed plugins are loaded when a name is not known."""

    def __init__(self, kind: str, parts: Mapping[str, Part]) -> None:
        self.kind = kind
        self._parts = dict(parts)

    def add(self, name: object, part: Part, cls: type) -> None:
        """Make a part of a class known; once more is no fault, another class's name is one."""
        if not isinstance(name, str) or not name:
            raise ConfigError(
                f"register_{self.kind} needs a name for {cls.__name__}: give the class a line "
                f"name = '...'; found {name!r}"
            )
        known = self._parts.setdefault(name, part)
        owner = known if isinstance(known, type) else type(known)
        if owner is not cls:
            raise ConfigError(
                f"{self.kind} {name!r} is {owner.__module__}.{owner.__qualname__} already; give "
                f"{cls.__module__}.{cls.__qualname__} a name of its own"
            )

    def __getitem__(self, name: object) -> Part:
        if not isinstance(name, str) or name not in self._parts:
            _plugins.load()
        if not isinstance(name, str) or name not in self._parts:
            unknown = str(unknown_name(self.kind, name, self._parts))
            joined = " If" if unknown.endswith("?") else "; if"
            raise ConfigError(
                f"{unknown}{joined} it comes from a plugin, install the package that provides it, "
                f"or call pdecnn.register_{self.kind}"
            )
        return self._parts[name]


class _Plugins:
    """The installed plugins, each loaded once."""

    def __init__(self) -> None:
        self._lock = RLock()  # a plugin may itself ask for a name
        self._loaded = False

    def load(self) -> None:
        with self._lock:
            if self._loaded:
                return
            self._loaded = True
            for entry in entry_points(group=GROUP):
                _load(entry)


def _load(entry: EntryPoint) -> None:
    """Import the module; one that fails is named and left out, for others may do without it."""
    try:
        entry.load()
    except Exception as error:  # the code of others may fail in any way
        package = "an unknown package" if entry.dist is None else entry.dist.name
        log.warning(
            "plugin %r of %s cannot be loaded (%s)", entry.name, package, in_one_line(error)
        )


_plugins = _Plugins()
