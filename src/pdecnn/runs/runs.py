"""The run directory: everything a run leaves behind, and the only thing reports read.

config.json  environment.json  metrics.jsonl  timing.jsonl  summary.json  predictions.safetensors
checkpoints/epoch-0012/        a `from_pretrained` folder with the state resuming needs
checkpoints/*.damaged-1/       one that did not verify when the run was resumed
best, last                     links to two of them
figures/
initial/                       of a coarsened or refined run: the weights it begins with
data.json                      the fingerprint of its data
.lock                          who trains it, while it is trained; killed processes leave it behind
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pdecnn.errors import CheckpointError, ConfigError
from pdecnn.files import sync_folder, write_atomically, write_json
from pdecnn.networks.pretrained import WEIGHTS as MODEL
from pdecnn.runs.config import RunConfig, run_config_from_dict
from pdecnn.runs.folder_lock import LOCK, is_lock

CONFIG, SUMMARY, METRICS, TIMING = "config.json", "summary.json", "metrics.jsonl", "timing.jsonl"
ENVIRONMENT, PREDICTIONS, DATA = "environment.json", "predictions.safetensors", "data.json"
WEIGHTS = ("best", "last")
INITIAL = "initial"
RUNS = Path("runs")
TIME_LIMIT = "time_limit"
_CHECKPOINT_NAME = re.compile(r"epoch-(\d+)(?:-batch-(\d+))?")


class Run:
    """A run directory that exists, or does so for rank 0 (`elsewhere`)."""

    def __init__(self, folder: str | Path, *, elsewhere: bool = False) -> None:
        self.folder = Path(folder)
        if elsewhere:
            return
        if os.path.isfile(self.folder / MODEL):
            raise CheckpointError(
                f"{self.folder}: holds the weights of a network, not a run; pass the run directory"
            )
        if not is_run(self.folder):
            raise CheckpointError(
                f"{self.folder}: not a run directory (no {CONFIG}); pass what `pdecnn train` made"
            )

    @property
    def config(self) -> RunConfig:
        """The resolved config the run was made with."""
        values = self._read(CONFIG)
        try:
            return run_config_from_dict(values)
        except ConfigError as error:
            raise CheckpointError(f"{self.folder / CONFIG}: {error}") from error

    @property
    def num_ranks(self) -> int:
        """How many processes the run was begun with."""
        try:
            return int(self._read(ENVIRONMENT)["hardware"]["ranks"])
        except (CheckpointError, LookupError, TypeError, ValueError, OverflowError):
            return 1  # nothing depends on it but a remark

    @property
    def data_fingerprint(self) -> str | None:
        """The SHA-256 of the data it was begun with; None: not known yet."""
        if not (self.folder / DATA).exists():
            return None
        values = self._read(DATA)
        if not isinstance(values, dict) or not isinstance(values.get("sha256"), str):
            raise CheckpointError(
                f"{self.folder / DATA}: not the fingerprint of data; restore it from a copy, or "
                f"delete it if the data is the same"
            )
        return str(values["sha256"])

    @property
    def summary(self) -> dict[str, Any] | None:
        """The final figures; None while the run is not finished."""
        if not (self.folder / SUMMARY).exists():
            return None
        summary = self._read(SUMMARY)
        if not isinstance(summary, dict) or "stopped" not in summary:
            raise CheckpointError(
                f"{self.folder / SUMMARY}: not the summary of a run; delete it and go on with "
                f"--resume"
            )
        return summary

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left to train; a run that met its time limit may go on."""
        summary = self.summary
        return summary is not None and summary["stopped"] != TIME_LIMIT

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One entry per epoch."""
        return self._read_lines(METRICS)

    @property
    def timing(self) -> list[dict[str, Any]]:
        """The wall-clock figures, one entry for each time that an epoch was finished."""
        return self._read_lines(TIMING)

    @property
    def checkpoints(self) -> list[Path]:
        """All checkpoint folders, oldest first, but for those set aside as damaged."""
        folders = (self.folder / "checkpoints").glob("epoch-*")
        placed = [(place, path) for path in folders if (place := _place(path)) is not None]
        return [path for _, path in sorted(placed)]

    def checkpoint_path(self, epoch: int, batch: int) -> Path:
        """The folder for a checkpoint after so many epochs and batches of the next one."""
        name = f"epoch-{epoch:04d}" + (f"-batch-{batch:06d}" if batch else "")
        return self.folder / "checkpoints" / name

    def weights(self, which: str = "best") -> Path:
        """The `from_pretrained` folder of the best or the last weights."""
        if which not in WEIGHTS:
            raise ConfigError(f"weights must be one of {', '.join(WEIGHTS)}, found {which!r}")
        path = self.folder / which
        if not path.is_dir():
            raise CheckpointError(
                f"{path}: this run has no {which} weights yet; go on with `pdecnn train --output "
                f"{self.folder} --resume`"
            )
        return path

    def write_metrics(self, entries: list[dict[str, Any]]) -> None:
        """Replace metrics.jsonl, so that a crash leaves whole lines only."""
        text = "".join(json.dumps(entry, allow_nan=False) + "\n" for entry in entries)
        write_atomically(self.folder / METRICS, text.encode())

    def append_timing(self, entry: dict[str, Any]) -> None:
        """Add a line of wall-clock figures; half a line that a crash has left goes."""
        path = self.folder / TIMING
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        whole = b"".join(line for line in lines if line.endswith(b"\n"))
        write_atomically(path, whole + json.dumps(entry, allow_nan=False).encode() + b"\n")

    def link(self, which: str, checkpoint: Path) -> None:
        """Let `best` or `last` be that checkpoint, atomically."""
        temporary = self.folder / f".{which}.{os.getpid()}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(checkpoint.relative_to(self.folder))
        os.replace(temporary, self.folder / which)
        sync_folder(self.folder)

    def discard(self, made: Iterable[Path]) -> None:
        """Take back a run that was only just made, and the folders made for it, innermost first."""
        for name in (CONFIG, ENVIRONMENT, DATA, LOCK, *WEIGHTS):
            (self.folder / name).unlink(missing_ok=True)
        shutil.rmtree(self.folder / INITIAL, ignore_errors=True)
        with suppress(OSError):  # what is not empty is not ours alone
            for folder in made:
                folder.rmdir()

    def prune(self, best_epoch: int) -> None:
        """Keep the best checkpoint and the last two; drop interrupted ones and crash leftovers."""
        beginning = self.checkpoint_path(0, 0)
        complete = [
            path for path in self.checkpoints if "-batch-" not in path.name and path != beginning
        ]
        keep = {*complete[-2:], self.checkpoint_path(best_epoch, 0)}
        leftovers = (self.folder / "checkpoints").glob(".epoch-*")
        for path in [*self.checkpoints, *leftovers]:
            if path not in keep:
                shutil.rmtree(path)
        names = (ENVIRONMENT, CONFIG, DATA, METRICS, TIMING, PREDICTIONS, SUMMARY, *WEIGHTS)
        for name in names:
            for path in self.folder.glob(f".{name}.*"):
                path.unlink()

    def _read_lines(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        try:
            return [json.loads(line) for line in path.read_text().splitlines()]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{path}: cannot be read ({error}); restore it from a copy, or start anew"
            ) from error

    def _read(self, name: str) -> Any:
        path = self.folder / name
        try:
            return json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{path}: cannot be read ({error}); restore it from a copy, or start anew"
            ) from error


def _place(checkpoint: Path) -> tuple[int, int] | None:
    """Epochs and batches of a checkpoint folder; None for any other name."""
    match = _CHECKPOINT_NAME.fullmatch(checkpoint.name)
    return (int(match[1]), int(match[2] or 0)) if match else None


def as_run(run: "str | Path | Run") -> Run:
    """The run of a folder, or the run itself."""
    return run if isinstance(run, Run) else Run(run)


def is_run(folder: Path) -> bool:
    """Whether the folder is a run directory; False too where nothing can be read."""
    return os.path.isfile(folder / CONFIG)


def check_free(folder: Path) -> None:
    """Raise a ConfigError if the folder holds a run or foreign files."""
    if is_run(folder):
        raise ConfigError(
            f"{folder} holds a run already; pass --resume to go on with it, or another --output"
        )
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    # A run killed while it was made leaves its lock, and with it what it had begun to write.
    if is_lock(folder / LOCK):
        begun = (f".{ENVIRONMENT}.", f".{CONFIG}.")
        names = {name for name in names - {LOCK, ENVIRONMENT} if not name.startswith(begun)}
    if names:
        raise ConfigError(f"{folder} holds other files; pass an empty or new folder as --output")


def create_run(
    folder: Path,
    config: RunConfig,
    environment: dict[str, Any],
    fill: Callable[[Run], None] = lambda run: None,
    made: Iterable[Path] = (),
) -> Run:
    """Make a run directory, or nothing; an existing run or foreign files are not touched.

    `fill` puts in what it begins with. The config comes last: it makes the folder a run. `made`
    are folders that go with it if it cannot be made.
    """
    check_free(folder)
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(folder, elsewhere=True)
    try:
        write_json(folder / ENVIRONMENT, environment)
        fill(run)
        write_json(folder / CONFIG, config.to_dict())
    except BaseException:
        run.discard(made)
        raise
    return run


def choose_folder(output: Path | None, recipe: str) -> tuple[Path, list[Path]]:
    """Where a new run is to lie, and the folders that are made for it alone, innermost first."""
    if output is None:
        missing = _missing(RUNS)
        folder = fresh_folder(recipe)
        return folder, [folder, *missing]
    return output, _missing(output)


def _missing(folder: Path) -> list[Path]:
    return [path for path in (folder, *folder.parents) if not os.path.lexists(path)]


def fresh_folder(recipe: str, root: Path = RUNS) -> Path:
    """The first of runs/<recipe>-1, -2, ... that does not exist, created."""
    root.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        folder = root / f"{recipe}-{number}"
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
            continue
        return folder


def newest_folder(recipe: str, root: Path = RUNS) -> Path | None:
    """The run with the highest number of a recipe, or None."""
    stem = f"{recipe}-"
    numbers = [
        int(path.name.removeprefix(stem))
        for path in root.glob(f"{stem}*")
        if path.name.removeprefix(stem).isdigit()
    ]
    return root / f"{stem}{max(numbers)}" if numbers else None
