"""The command `pdecnn`: its commands in the order of its help, and what errors become."""

import errno
import logging
import os
import signal
import sys
from collections.abc import Callable
from io import TextIOWrapper
from types import FrameType
from typing import Annotated

import typer

from pdecnn.cli.data import download_data, list_data, pack_data, verify_data
from pdecnn.cli.inspection import attack, certify, diagnose, explore, report
from pdecnn.cli.levels import coarsen, refine
from pdecnn.cli.options import process_rank
from pdecnn.cli.reproduction import bench, reproduce
from pdecnn.cli.sharing import export, models, recipes, settings
from pdecnn.cli.training import evaluate, predict, train
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
from pdecnn.runs.environment import Interrupted, is_losing_rank

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
COMMANDS: tuple[Callable[..., None], ...] = (
    train,
    evaluate,
    predict,
    coarsen,
    refine,
    reproduce,
    diagnose,
    report,
    attack,
    certify,
    explore,
    export,
    recipes,
    settings,
    models,
    bench,
)
_MEMORY_REMEDY = "close other programs, or use another --device"
_TRAINING_MEMORY_REMEDY = (
    "lower training.batch_size, training.evaluation_batch_size, data.size or network.channels, "
    "raise training.accumulation, or set network.backprop=exact (checkpointed for parabolic "
    "networks)"
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
for command in COMMANDS:
    app.command()(command)
app.add_typer(data_app, name="data")
data_app.command("list")(list_data)
data_app.command("download")(download_data)
data_app.command("verify")(verify_data)
data_app.command("pack")(pack_data)


def main() -> None:
    """Run a command; errors become one line and an exit code, with a traceback on --debug."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
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
            print(speaker, *lines, file=sys.stderr)
        sys.exit(code)


def _stop(number: int, frame: FrameType | None) -> None:
    """End at a signal, but not before an error that torchrun answers with one is told."""
    del frame
    if not is_losing_rank():
        sys.exit(128 + number)


def _end_output() -> None:
    """Write what is left for stdout; if that cannot be, nothing that matters is lost.

    Results are flushed as they are printed. What remains are words about a training, and an
    interpreter that cannot write them as it ends would call the training a failure.
    """
    try:
        sys.stdout.flush()
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


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
