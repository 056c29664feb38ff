"""What several commands take, and how they answer."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdecnn.errors import ConfigError
from pdecnn.runs.runs import Weights

if TYPE_CHECKING:
    from pdecnn.runs.training import Listener


def choice(flag: str, meaning: str) -> Any:
    """An option with a `Literal` as type: who takes the word refuses a wrong one, in one line."""
    return typer.Option(flag, help=meaning, parser=str)


NetworkArgument = Annotated[
    Path,
    typer.Argument(metavar="RUN|MODEL", help="A run directory, or a model with published weights."),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]
DataOption = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="The folder or file of the data set.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a setting (`pdecnn settings`); may be repeated."
    ),
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or mps.")]
ImagesOption = Annotated[
    int | None, typer.Option("--images", help="How many test images; all if none.")
]
WeightsOption = Annotated[Weights, choice("--weights", "best or last.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def split_names(option: str, texts: list[str] | None) -> list[Any]:
    """'a,b' and repeated options alike; who takes the names refuses wrong ones."""
    names = [name.strip() for text in texts or [] for name in text.split(",") if name.strip()]
    if texts and not names:
        raise ConfigError(f"{option} names nothing; say which, or leave it out for all")
    return names


def parse_fraction(option: str, text: str) -> float:
    """'0.5', or '36/255'."""
    numerator, _, denominator = text.partition("/")
    try:
        return float(numerator) / float(denominator or 1)
    except (ValueError, ZeroDivisionError):
        raise ConfigError(
            f"{option} must be a number such as 0.5 or a fraction such as 36/255, found {text!r}"
        ) from None


def parse_assignments(texts: list[str] | None) -> dict[str, Any]:
    """The settings that `--set` names."""
    from pdecnn.runs.config import parse_assignment

    return dict(parse_assignment(text) for text in texts or [])


def say_to_terminal(*, quiet: bool) -> Callable[[str], None]:
    """How a command tells who looks at a terminal that it is at work."""

    def say(text: str) -> None:
        if not quiet and sys.stderr.isatty():
            print(text, file=sys.stderr, flush=True)

    return say


@contextmanager
def shown_training(
    *, quiet: bool, to_stderr: bool, notes_alone: bool = False
) -> Iterator["Listener"]:
    """Who shows a training, and within it the notes of pdecnn; of several ranks the first does."""
    from pdecnn.runs.training import Listener, notes_shown_by

    if quiet or process_rank():
        yield Listener()
    elif notes_alone:
        with notes_shown_by(lambda text: print(text, flush=True)):
            yield Listener()
    else:
        from pdecnn.reports.terminal import ConsoleListener

        listener = ConsoleListener(to_stderr=to_stderr)
        with notes_shown_by(listener.note):
            yield listener


def print_json(value: Any, indent: int | None = None) -> None:
    """On stdout, on one line unless indented; never with a bare NaN, which is no JSON."""
    print(json.dumps(value, indent=indent, allow_nan=False), flush=True)


def warn(text: str) -> None:
    """A line on stderr that does not end the command."""
    print(f"pdecnn: {text}", file=sys.stderr, flush=True)


def process_rank() -> int:
    """Which of the processes that torchrun started this is; 0 without it."""
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdecimal() else 0
