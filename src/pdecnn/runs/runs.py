"""The run directory: everything a run leaves behind, and the only thing reports read.

config.json  environment.json  metrics.jsonl  timing.jsonl  summary.json  predictions.safetensors
checkpoints/epoch-0012/        a `from_pretrained` folder with the state resuming needs
checkpoints/*.damaged-1/       one that did not verify when the run was resumed
best, last                     links to two of them, or copies where there are no links
figures/                       of curves and answers; previews while a network for pixels trains
initial/                       of a coarsened or refined run: the weights it begins with
data.json                      the fingerprint of its data
.lock, .holder                 who trains it; a killed process leaves them behind
"""

import errno
import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Literal, get_args

import numpy as np
from filelock import FileLock, Timeout
from torch import Tensor

from pdecnn.data.image_file import encode_png, seen_pixels
from pdecnn.errors import BusyError, CheckpointError, ConfigError
from pdecnn.files import (
    is_temporary,
    make_folder,
    read_bytes,
    remove,
    remove_temporaries,
    sync_folder,
    temporary_beside,
    write_atomically,
    write_json,
)
from pdecnn.networks.pretrained import WEIGHTS as MODEL
from pdecnn.runs.config import RunConfig, run_config_from_dict

CONFIG, SUMMARY, METRICS, TIMING = "config.json", "summary.json", "metrics.jsonl", "timing.jsonl"
ENVIRONMENT, PREDICTIONS, DATA = "environment.json", "predictions.safetensors", "data.json"
CHECKPOINTS, FIGURES, TENSORBOARD, INITIAL = "checkpoints", "figures", "tensorboard", "initial"
Weights = Literal["best", "last"]
WEIGHTS: tuple[Weights, ...] = get_args(Weights)
LOCK, HOLDER = ".lock", ".holder"
RUNS = Path("runs")
TIME_LIMIT = "time_limit"
RUN_WAIT_SECONDS = 5.0
"""How long a run waits for a process that is just ending, as before a restart."""
_POLL_SECONDS = 0.1
_HOLDER_PREFIX = "process "
_CHECKPOINT_NAME = re.compile(r"epoch-(\d+)(?:-batch-(\d+))?")
_PREVIEW_NAME = re.compile(r"preview-epoch-(\d+)\.png")
_PREVIEW_PIXELS, _PREVIEW_GAP = 256, 4
"""The most along an axis: six previews of a photograph must not make a report of 100 MB."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_NO_LINKS = (errno.EPERM, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


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

    def __fspath__(self) -> str:
        """Its folder: a run will do wherever a path does."""
        return str(self.folder)

    __str__ = __fspath__

    @cached_property
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
        folders = (self.folder / CHECKPOINTS).glob("epoch-*")
        placed = [(place, path) for path in folders if (place := _place(path)) is not None]
        return [path for _, path in sorted(placed) if not path.is_symlink()]

    def checkpoint_path(self, epoch: int, batch: int) -> Path:
        """The folder for a checkpoint after so many epochs and batches of the next one."""
        name = f"epoch-{epoch:04d}" + (f"-batch-{batch:06d}" if batch else "")
        return self.folder / CHECKPOINTS / name

    def weights(self, which: Weights = "best") -> Path:
        """The `from_pretrained` folder of the best or the last weights.

        Where it is a link the folder that it means now: a training may point it elsewhere while
        its files are read.
        """
        if which not in WEIGHTS:
            raise ConfigError(f"weights must be one of {', '.join(WEIGHTS)}, found {which!r}")
        path = self.folder / which
        with suppress(OSError):  # it is no link, or not there
            path = self.folder / os.readlink(path)
        if not path.is_dir():
            raise CheckpointError(
                f"{self.folder / which}: this run has no {which} weights yet; go on with `pdecnn "
                f"train --output {self.folder} --resume`"
            )
        return path

    def write_metrics(self, entries: list[dict[str, Any]]) -> None:
        """Replace metrics.jsonl, so that a crash leaves whole lines only."""
        text = "".join(json.dumps(entry, allow_nan=False) + "\n" for entry in entries)
        write_atomically(self.folder / METRICS, text.encode())

    def append_timing(self, entry: dict[str, Any]) -> None:
        """Add a line of wall-clock figures; half a line that a crash has left goes."""
        path = self.folder / TIMING
        lines = read_bytes(path).splitlines(keepends=True) if path.exists() else []
        whole = b"".join(line for line in lines if line.endswith(b"\n"))
        write_atomically(path, whole + json.dumps(entry, allow_nan=False).encode() + b"\n")

    @property
    def previews(self) -> dict[int, Path]:
        """The pictures that a training for pixels has left, by epoch."""
        paths = (self.folder / FIGURES).glob("preview-*.png")
        matches = ((_PREVIEW_NAME.fullmatch(path.name), path) for path in paths)
        return dict(sorted((int(match[1]), path) for match, path in matches if match))

    def write_preview(self, epoch: int, columns: list[Tensor]) -> None:
        """What goes in, what comes out and what is wanted, (channels, height, width), in a row.

        Of large images the middle; of a volume, with an axis more, the slice in the middle.
        """
        shown = []
        for column in columns:
            pixels = column.cpu().numpy()
            seen = seen_pixels(pixels if pixels.ndim == 3 else pixels[..., pixels.shape[-1] // 2])
            seen = seen[:, *(_middle(number) for number in seen.shape[1:])]
            shown.append(np.broadcast_to(seen, (3, *seen.shape[1:])))
            shown.append(np.full((3, seen.shape[1], _PREVIEW_GAP), 255, np.uint8))
        row = np.ascontiguousarray(np.moveaxis(np.concatenate(shown[:-1], axis=2), 0, -1))
        (self.folder / FIGURES).mkdir(exist_ok=True)
        write_atomically(self.folder / FIGURES / f"preview-epoch-{epoch:04d}.png", encode_png(row))

    def link(self, which: str, checkpoint: Path) -> None:
        """Let `best` or `last` be that checkpoint, atomically; a copy on disks without links."""
        path = self.folder / which
        temporary = temporary_beside(path)
        try:
            temporary.symlink_to(checkpoint.relative_to(self.folder), target_is_directory=True)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            shutil.copytree(checkpoint, temporary)
        replaced = temporary_beside(path)
        if path.is_dir() and not path.is_symlink():  # a copy, as `cp -rL` of a run makes
            _check_copy(path, checkpoint)
            path.rename(replaced)
        os.replace(temporary, path)
        sync_folder(self.folder)
        shutil.rmtree(replaced, ignore_errors=True)

    def discard(self, made: Iterable[Path]) -> None:
        """Take back a run that was only just made, and the folders made for it, innermost first."""
        for name in (CONFIG, ENVIRONMENT, DATA, LOCK, HOLDER, *WEIGHTS):
            with suppress(IsADirectoryError, PermissionError):
                (self.folder / name).unlink(missing_ok=True)
        for name in (INITIAL, *WEIGHTS):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        with suppress(OSError):  # what is not empty is not ours alone
            for folder in made:
                folder.rmdir()

    def prune(self, best_epoch: int) -> None:
        """Keep the best checkpoint and the last two; drop those of interruptions."""
        complete = [path for path in self.checkpoints if "-batch-" not in path.name]
        keep = {*complete[-2:], self.checkpoint_path(best_epoch, 0)} - {self.checkpoint_path(0, 0)}
        for path in self.checkpoints:
            if path not in keep:
                shutil.rmtree(path)

    def clean(self) -> None:
        """Remove what killed processes have left; who calls it holds the lock.

        Refuses a folder that is a link: what lies there is not the run's to rename or delete.
        """
        for name in (CHECKPOINTS, FIGURES, TENSORBOARD, INITIAL):
            if (self.folder / name).is_symlink():
                raise CheckpointError(
                    f"{self.folder / name}: is a link, and what it leads to is no part of the run; "
                    f"put the folder itself in its place"
                )
        for folder in (self.folder, *(self.folder / name for name in (CHECKPOINTS, FIGURES))):
            remove_temporaries(folder)

    def _read_lines(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        try:
            return [json.loads(line) for line in read_bytes(path).decode().splitlines()]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, RecursionError) as error:
            raise _unreadable(path, error) from error

    def _read(self, name: str) -> Any:
        path = self.folder / name
        try:
            return json.loads(read_bytes(path))
        except (OSError, ValueError, RecursionError) as error:
            raise _unreadable(path, error) from error


def _middle(number: int) -> slice:
    begin = max(0, (number - _PREVIEW_PIXELS) // 2)
    return slice(begin, begin + _PREVIEW_PIXELS)


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{path}: cannot be read ({error}); restore it from a copy, or start anew"
    )


def _check_copy(folder: Path, checkpoint: Path) -> None:
    """Refuse to replace a folder that holds other files than checkpoints do."""
    others = {path.name for path in folder.iterdir()} - {path.name for path in checkpoint.iterdir()}
    if others:
        raise CheckpointError(f"{folder}: holds {min(others)}, which is no part of a run; move it")


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
    make_folder(folder)
    run = Run(folder, elsewhere=True)
    for name in (INITIAL, *WEIGHTS):  # what a process left that was killed here
        remove(folder / name)
    remove_temporaries(folder)
    try:
        write_json(folder / ENVIRONMENT, environment)
        fill(run)
        write_json(folder / CONFIG, config.to_dict())
    except BaseException:
        run.discard(made)
        raise
    return run


def check_free(folder: Path, remedy: str = "pass another --output") -> None:
    """Raise a ConfigError if the folder holds other files, or a run, with what to do then."""
    if is_run(folder):
        raise ConfigError(f"{folder} holds a run already; {remedy}")
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    # A run killed while it was made leaves its lock, and with it what it had begun to write.
    if _is_lock(folder / LOCK):
        begun = {LOCK, HOLDER, ENVIRONMENT, INITIAL, *WEIGHTS}
        names = {name for name in names if name not in begun and not is_temporary(name)}
    if names:
        raise ConfigError(f"{folder} holds other files; pass an empty or new folder as --output")


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
    make_folder(root)
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
    numbered = re.compile(rf"{re.escape(recipe)}-([0-9]+)")
    paths = root.iterdir() if root.is_dir() else ()
    found = [(int(match[1]), path) for path in paths if (match := numbered.fullmatch(path.name))]
    return max(found)[1] if found else None


# ------------------------------------------------------------------ one process at a time


@contextmanager
def locked_folder(
    folder: Path, *, wait_seconds: float, on_wait: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Within it no other process has the folder.

    The lock is the operating system's, and ends with the process however that ends. A BusyError
    names who has it, if it still does after `wait_seconds`; an OSError means that there can be no
    such folder.
    """
    lock, path = FileLock(folder / LOCK), folder / LOCK
    deadline, told = monotonic() + wait_seconds, False
    while not _acquired(lock, folder):
        if monotonic() > deadline:
            raise BusyError(
                f"{folder}: {_holder(folder)} is at work there; wait until it has ended, or choose "
                f"another --output"
            )
        if not told:
            on_wait()
        told = True
        sleep(_POLL_SECONDS)
    own = os.stat(path, follow_symlinks=False)
    with suppress(OSError):  # a full disk: only the message to others would have been clearer
        name = f"{_HOLDER_PREFIX}{os.getpid()} on {socket.gethostname()}\n"
        (folder / HOLDER).write_text(name)
    try:
        yield
    finally:
        try:
            # Removed while held: who opened it meanwhile sees that it is gone, and tries again.
            # If it was removed before, with its folder, what is there now is another's.
            if os.path.samestat(own, os.stat(path, follow_symlinks=False)):
                (folder / HOLDER).unlink(missing_ok=True)
                path.unlink()
        except OSError:
            pass  # who comes next finds that nobody holds it
        finally:
            lock.release()


def _acquired(lock: FileLock, folder: Path) -> bool:
    """Whether this process has the lock now."""
    make_folder(folder)  # each time: who has the lock may take its folder back
    try:
        lock.acquire(timeout=0)
    except (Timeout, FileNotFoundError):
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise ConfigError(  # e.g. a network disk
            f"{folder}: cannot be locked ({error.strerror}); choose an --output on another disk"
        ) from error
    return True


def _is_lock(path: Path) -> bool:
    """Whether there is a lock of a process, alive or killed, and not another program's file."""
    if path.is_symlink() or not path.is_file():
        return False
    text = _beginning(path)
    return not text or text.startswith(_HOLDER_PREFIX)  # as earlier versions wrote into it


def _holder(folder: Path) -> str:
    """Who has the lock, as far as it tells."""
    text = _beginning(folder / HOLDER)
    return text if text.startswith(_HOLDER_PREFIX) and text.isprintable() else "another process"


def _beginning(path: Path) -> str:
    try:
        return read_bytes(path)[:100].decode(errors="replace").strip()
    except OSError:
        return ""
