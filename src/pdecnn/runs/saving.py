"""What a run writes while it trains, and how it comes back to its newest intact checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pdecnn.errors import CheckpointError, DataError, system_errors_as
from pdecnn.files import write_json
from pdecnn.learning.checkpoint import load_checkpoint, save_checkpoint, set_aside
from pdecnn.learning.trainer import Trainer
from pdecnn.runs.listener import Listener
from pdecnn.runs.preparation import Splits
from pdecnn.runs.runs import DATA, Run


def remember_data(run: Run, splits: Splits) -> str:
    """Write down the fingerprint of the data, or refuse other data than the run was begun with."""
    found = splits.fingerprint()
    if run.data_fingerprint is None:
        sizes = {name: len(part) for name, part in splits._asdict().items()}
        write(run, write_json, run.folder / DATA, {"sha256": found, "images": sizes})
    else:
        check_data(run, found)
    return found


def check_data(run: Run, fingerprint: str) -> None:
    """Raise a DataError if the run was begun with other data than that of the fingerprint."""
    if run.data_fingerprint != fingerprint:
        raise DataError(
            f"{run.folder} was begun with other data ({DATA} has another SHA-256); give it the "
            f"same --data, or start anew with another --output"
        )


def restore_newest(run: Run, trainer: Trainer, listener: Listener) -> None:
    """Put the trainer where the newest intact checkpoint was; damaged ones are named and kept."""
    failures: dict[Path, str] = {}
    for folder in reversed(run.checkpoints):
        try:
            load_checkpoint(trainer, folder)
        except CheckpointError as error:
            listener.note(f"skipped a checkpoint: {error}")
            failures[folder] = str(error)
            continue
        listener.note(f"resumed from {folder.name}")
        for damaged in failures:
            write(run, set_aside, damaged)
        return
    if failures:
        raise CheckpointError(
            f"{run.folder}: none of its {len(failures)} checkpoints is intact "
            f"({next(iter(failures.values()))}); start anew with another --output"
        )


def save(run: Run, trainer: Trainer) -> None:
    """Write a checkpoint, then point `best` and `last` at what they mean."""
    progress = trainer.progress
    write(run, save_checkpoint, trainer, run.checkpoint_path(progress.epoch, progress.batch))
    write(run, point, run, trainer)


def point(run: Run, trainer: Trainer) -> None:
    """Let `best` and `last` be the checkpoints they mean, and drop those that nothing needs."""
    progress = trainer.progress
    run.link("last", run.checkpoint_path(progress.epoch, progress.batch))
    best = run.checkpoint_path(progress.best_epoch, 0)
    if progress.best_epoch and best.is_dir():
        run.link("best", best)
    if progress.epoch and not progress.batch:
        run.prune(progress.best_epoch)


def write(run: Run, action: Callable[..., None], *arguments: Any) -> None:
    """Write, once more if it fails; then say so, with what was saved before intact."""
    with system_errors_as(
        CheckpointError,
        f"{run.folder}: cannot be written",
        "make room or allow writing, then go on with --resume (earlier checkpoints are intact)",
    ):
        try:
            action(*arguments)
        except OSError:
            action(*arguments)
