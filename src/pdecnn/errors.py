"""The errors a user can meet, and helpers to say them in one line."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class ConfigError(ValueError):
    """A setting is unknown, out of range, or does not fit another one."""


class DataError(ValueError):
    """A data file, image or label cannot be used."""


class BadFilesError(DataError):
    """Files of a folder cannot be used: a line for the folder, then one for each of them."""


class UnsuitableFile(Exception):
    """What is wrong with a file that is whole, and what to do, in words."""


class CheckpointError(ValueError):
    """A saved network or run is missing, damaged, or belongs to something else."""


class DivergedError(RuntimeError):
    """A number left the range in which the computation means anything."""


class RankError(RuntimeError):
    """Another process of a training failed or does not answer.

    `told` means that the process which failed says why itself.
    """

    def __init__(self, message: str, *, told: bool = False) -> None:
        super().__init__(message)
        self.told = told


class BusyError(RuntimeError):
    """Another process is at work on the same run directory."""


class TooLargeError(RuntimeError):
    """A training step does not fit into memory, however it is divided."""


class ExportError(RuntimeError):
    """A network cannot be exported, or its exported form does not compute what it does."""


def in_one_line(error: BaseException) -> str:
    """The kind of an error and what it says, without line breaks or more of a file than is useful.

    The representation of a UnicodeDecodeError, for one, has the whole file in it.
    """
    return _shortened(" ".join(f"{type(error).__name__}: {error}".split()), 200)


@contextmanager
def system_errors_as(
    kind: Callable[[str], Exception], problem: str, remedy: str = "choose another --output"
) -> Iterator[None]:
    """Say in one line what the system refuses within it: the problem, the reason, the remedy."""
    try:
        yield
    except OSError as error:
        raise kind(f"{problem} ({error.strerror or error}); {remedy}") from error


@contextmanager
def bad_file_refused(path: object, problem: str, remedy: str) -> Iterator[None]:
    """Say in one line what is wrong with a file: on a damaged one readers raise nearly anything."""
    try:
        yield
    except DataError:
        raise
    except UnsuitableFile as error:
        raise DataError(f"{path}: {error}") from error
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; check the path") from None
    except Exception as error:
        raise DataError(f"{path}: {problem} ({reason_of(error)}); {remedy}") from error


def reason_of(error: BaseException) -> str:
    """What an error says, or of the system what it says in words, on one line; else its kind."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return _shortened(" ".join(said.split()), 200) or type(error).__name__


def quoted(value: object, longest: int = 200) -> str:
    """A value as it was found, or the beginning of it: it may be as long as a file."""
    return _shortened(repr(value), longest)


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


_MOST_LISTED, _FEW = 40, 12


def unknown_name(kind: str, name: object, known: Iterable[str]) -> ConfigError:
    """The error for a misspelt name: what was found and the nearest one, or what there is."""
    text, names = _shortened(str(name), 200), sorted(known)
    nearest = (
        [candidate for candidate in names if text == _initials(candidate)]
        or get_close_matches(text, names, n=1, cutoff=0.6)
        or [candidate for candidate in names if text and text in candidate]
    )
    if nearest:
        return ConfigError(f"unknown {kind} {quoted(name)}; did you mean {nearest[0]!r}?")
    said = ", ".join(names)
    if len(names) > _MOST_LISTED:
        said = f"{len(names)} others, such as {', '.join(names[:_FEW])}"
    return ConfigError(f"unknown {kind} {quoted(name)}; known are {said}")


def _initials(name: str) -> str:
    """'rk4' for 'runge_kutta_4', 'training.lr' for 'training.learning_rates'."""
    group, dot, last = name.rpartition(".")
    return group + dot + "".join(word[:1] for word in last.split("_"))
