"""The command `pdecnn`: what its commands take, how they answer, and what errors become."""

import errno
import inspect
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdecnn.errors import (
    BadFilesError,
    BusyError,
    CheckpointError,
    ConfigError,
    DataError,
    DivergedError,
    ExportError,
    RankError,
    TooLargeError,
)
from pdecnn.runs.preparation import Interrupted, is_losing_rank
from pdecnn.runs.runs import Weights

if TYPE_CHECKING:
    from pdecnn.runs.training import Listener


def choice(flag: str, meaning: str) -> Any:
    """An option with a `Literal` as type: who takes the word refuses a wrong one, in one line.

    The help says the words once, in the meaning; as a metavar typer would say them again.
    """
    return typer.Option(flag, help=meaning, parser=str, metavar="NAME")


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


# ------------------------------------------------------------------ the program


EXIT_CODES: dict[type[Exception], int] = {
    ConfigError: 2,
    DataError: 3,
    DivergedError: 4,
    CheckpointError: 5,
    RankError: 6,
    ExportError: 7,
    BusyError: 8,
    TooLargeError: 9,
}
_MEMORY_REMEDY = "close other programs, or use another --device"
_TRAINING_MEMORY_REMEDY = (
    "lower training.batch_size, data.size, network.channels or, of classifiers, "
    "training.evaluation_batch_size, raise training.accumulation, or set network.backprop=exact "
    "(checkpointed for parabolic networks)"
)
_MEMORY_REMEDIES = {
    "train": _TRAINING_MEMORY_REMEDY,
    "reproduce": f"pass fewer --jobs, or with --set {_TRAINING_MEMORY_REMEDY}",
    "report": "pass fewer runs, --no-diagnosis, or another --device",
    "predict": "pass smaller images, or another --device",
    "attack": "pass fewer --images, or another --device",
    "certify": "pass fewer --images, or another --device",
}
_OPEN_FILES = "close other programs, or allow more open files (ulimit -n 1024)"
_SYSTEM_REMEDIES = {
    errno.EMFILE: _OPEN_FILES,
    errno.ENFILE: _OPEN_FILES,
    errno.ENOSPC: "make room, or write elsewhere",
    errno.ENAMETOOLONG: "use shorter names",
}
# What several processes do together; anything else each would do for itself.
WITH_TORCHRUN = ("train", "evaluate")

app = typer.Typer(
    name="pdecnn",
    help="Convolutional networks that are partial differential equations.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(value: bool) -> None:
    if value:
        from pdecnn.version import __version__

        print(f"pdecnn {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Convolutional networks that are partial differential equations."""
    del version
    if os.environ.get("WORLD_SIZE", "1") != "1" and context.invoked_subcommand not in WITH_TORCHRUN:
        raise ConfigError(
            f"torchrun is for {' and '.join(WITH_TORCHRUN)}; run "
            f"`pdecnn {context.invoked_subcommand}` without it"
        )


data_app = typer.Typer(
    help="List, fetch and check the paper's data sets; pack your own.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def with_debug(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the flag --debug, which `main` looks for."""
    signature = inspect.signature(command)
    flag = inspect.Parameter(
        "debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=DebugOption
    )

    @wraps(command)
    def run(*, debug: bool, **values: Any) -> None:
        del debug
        command(**values)

    parameters = [*signature.parameters.values(), flag]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def main() -> None:
    """Run a command; errors become one line and an exit code, with a traceback on --debug."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed before the command began, as by `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, TextIOWrapper):
            # File names may hold what the terminal's encoding does not: that ends no training.
            stream.reconfigure(errors="backslashreplace")
    # Its first import may tell of font caches: no concern of who trains a network.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        try:
            app()
        finally:
            _end_output()
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        words = [word for word in sys.argv[1:] if not word.startswith("-")]
        code, message = explain(error, *words[:1])
        if _speaks_of(error):
            # One line, whatever it quotes; but a report of bad files has one for each.
            lines = [message] if isinstance(error, BadFilesError) else message.splitlines()
            speaker = f"pdecnn (rank {process_rank()}):" if process_rank() else "pdecnn:"
            with suppress(OSError):  # whoever cannot be told why still gets the exit code
                print(speaker, *lines, file=sys.stderr)
        _end_output()
        sys.exit(code)


def _stop(number: int, frame: FrameType | None) -> None:
    """End at a signal, but not before an error that torchrun answers with one is told."""
    del frame
    if not is_losing_rank():
        sys.exit(128 + number)


def _end_output() -> None:
    """Write what is left for stdout and stderr; if that cannot be, nothing that matters is lost.

    Results are flushed as they are printed. What remains are words about a training, and an
    interpreter that cannot write them as it ends would call the training a failure.
    """
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except OSError:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115


def _speaks_of(error: Exception) -> bool:
    """Whether this rank says what went wrong: of what all know rank 0 speaks."""
    if isinstance(error, RankError):
        return not error.told
    return process_rank() == 0 or not isinstance(error, Interrupted | DivergedError)


def explain(error: Exception, command: str = "train") -> tuple[int, str]:
    """The exit code and the message of an error in a command."""
    if isinstance(error, Interrupted):
        return error.exit_code, str(error)
    for kind, code in EXIT_CODES.items():
        if isinstance(error, kind):
            return code, str(error)
    if isinstance(error, OSError) and error.errno in _SYSTEM_REMEDIES:
        return 1, f"{error.strerror}; {_SYSTEM_REMEDIES[error.errno]}"
    from pdecnn.learning.memory import is_out_of_memory

    if is_out_of_memory(error):
        return 1, f"not enough memory; {_MEMORY_REMEDIES.get(command, _MEMORY_REMEDY)}"
    return 1, f"unexpected {type(error).__name__}: {error}; run again with --debug and report it"
