"""Where a training stands: its counters as JSON, and with its tensors as a folder.

The folder is one that `from_pretrained` reads, with what resuming needs beside the network.
"""

import json
import os
from dataclasses import dataclass, field, fields
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pdecnn.errors import CheckpointError, DivergedError, in_one_line
from pdecnn.files import (
    MANIFEST,
    json_bytes,
    manifest_bytes,
    read_bytes,
    sync_folder,
    verify_manifest,
    write_folder,
)
from pdecnn.networks.config import with_old_grid
from pdecnn.networks.pretrained import (
    CONFIG,
    WEIGHTS,
    deserialize,
    load_weights,
    serialize,
)
from pdecnn.settings import is_count, is_finite_number

if TYPE_CHECKING:  # which has a progress
    from pdecnn.learning.trainer import Trainer

TENSORS, PROGRESS = "state.safetensors", "state.json"
FILES = (CONFIG, WEIGHTS, TENSORS, PROGRESS)
FORMAT_VERSION = 5
STOPPED = (None, "completed", "early_stopping")
_LARGEST_COUNTER = 2**53  # what a float holds exactly


@dataclass(kw_only=True, slots=True)
class Progress:
    """The counters of a training; nothing in it depends on the clock."""

    epoch: int = 0
    """Epochs completed, validation included."""
    batch: int = 0
    """Batches done in the current epoch."""
    step: int = 0
    """Batches done altogether."""
    best_accuracy: float = -1.0
    """The best validation accuracy, or score of another task, so far; -1 before the first
    validation, or without any."""
    best_loss: float | None = None
    """The validation loss of the best epoch; None: not finite, or there is none yet."""
    best_epoch: int = 0
    """The epoch whose weights are the best so far; the last one without validation."""
    nonfinite_in_row: int = 0
    """Steps skipped since the last good one."""
    nonfinite_steps: int = 0
    """Steps skipped altogether for a non-finite loss or gradient."""
    reversal_error: float | None = None
    """The gradient error of reversal as measured in the current epoch; None: it was not."""
    checkpointed_blocks: list[int] = field(default_factory=list)
    """Blocks that the drift guard has switched to mode 'checkpointed'."""
    level: int = 0
    """The level the network is on, from 0; at the end of its last epoch still that level."""
    nonfinite_batches: list[int] = field(default_factory=list)
    """Batches of the current epoch, from 0, that were skipped as not finite."""
    work: float = 0.0
    """Floating-point operations of all epochs completed."""
    stopped: str | None = None
    """Why the training is over: 'completed' or 'early_stopping'; None: it is not."""

    def to_dict(self) -> dict[str, Any]:
        """The counters as JSON values."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}


def progress_from_dict(values: object) -> Progress:
    """The progress of JSON values; unknown or missing keys and other types are errors."""
    expected = fields(Progress)
    if not isinstance(values, dict) or set(values) != {entry.name for entry in expected}:
        raise CheckpointError("the progress has other fields than expected")
    for entry in expected:
        if not _fits(entry.type, values[entry.name]):
            raise CheckpointError(f"the progress cannot have {entry.name}={values[entry.name]!r}")
    best, epoch = values["best_accuracy"], values["best_epoch"]
    without = best == -1 and epoch in (0, values["epoch"])
    if not (best >= 0 or without) or epoch > values["epoch"]:
        raise CheckpointError(f"the progress cannot have best_accuracy={best!r} in epoch {epoch}")
    return Progress(**values)


def _fits(kind: object, value: object) -> bool:
    if kind is int:
        return is_count(value, 0, _LARGEST_COUNTER)
    if kind is float:
        return is_finite_number(value)
    if kind == list[int]:
        return isinstance(value, list) and all(is_count(index, 0) for index in value)
    if kind == float | None:
        return value is None or is_finite_number(value)
    return value in STOPPED


def save_checkpoint(trainer: "Trainer", folder: Path) -> None:
    """Write the folder whole or not at all; a DivergedError where it would hold no numbers.

    An intact checkpoint of that name is the same one, a training being deterministic, and stays.
    """
    if _intact(folder):
        return
    tensors = _tensors(trainer)
    refuse_nonfinite(tensors, trainer.progress.epoch)
    progress = {"format_version": FORMAT_VERSION, "progress": trainer.progress.to_dict()}
    contents = {
        **trainer.evaluated.folder_contents(),
        TENSORS: serialize(tensors),
        PROGRESS: json_bytes(progress),
    }
    contents[MANIFEST] = manifest_bytes({name: contents[name] for name in FILES})
    if os.path.lexists(folder):  # a damaged one that resuming skipped: moved aside, never deleted
        set_aside(folder)
    write_folder(folder, contents)


def refuse_nonfinite(tensors: dict[str, Tensor], epoch: int) -> None:
    """Raise a DivergedError where a tensor of a training holds NaN or infinity."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise DivergedError(
                f"diverged in epoch {epoch}: {name} is not finite any more, and is not saved; "
                f"lower training.learning_rates, or clip with training.clip_norm"
            )


def load_checkpoint(trainer: "Trainer", folder: Path) -> None:
    """Put a trainer where the checkpoint was; anything amiss is a CheckpointError."""
    verify_manifest(folder, required=FILES)
    progress = _read_progress(trainer, folder / PROGRESS)
    tensors = deserialize(folder / TENSORS)
    groups: dict[str, dict[str, Tensor]] = {"weights": {}, "average": {}, "sums": {}, "states": {}}
    for key, tensor in tensors.items():
        group, _, name = key.partition("/")
        if group in groups:
            groups[group][name] = tensor
        else:
            groups["states"][key] = tensor
    with trainer.trying_level(progress.level):
        _check_network(trainer, folder / CONFIG)
        _restore(trainer, groups, folder / TENSORS)
    trainer.progress = progress
    trainer.switch_blocks(progress.checkpointed_blocks)


def _check_network(trainer: "Trainer", path: Path) -> None:
    """Shapes alone do not tell a heat equation from a wave equation, nor a cat from a dog."""
    found, preprocessing = _read(path, "network", "preprocessing")
    wanted = trainer.network.config.to_dict()
    found = with_old_grid(found) if isinstance(found, dict) else {}
    differing = [key for key in wanted if found.get(key) != wanted[key]]
    if differing:
        raise CheckpointError(
            f"{path}: belongs to another architecture: it differs in {', '.join(differing)}"
        )
    names = preprocessing.get("class_names") if isinstance(preprocessing, dict) else None
    if names not in (None, list(trainer.train.class_names)):
        raise CheckpointError(f"{path}: belongs to data with other classes than this training's")


def _read_progress(trainer: "Trainer", path: Path) -> Progress:
    version, values = _read(path, "format_version", "progress")
    if not is_count(version, FORMAT_VERSION, FORMAT_VERSION):
        raise CheckpointError(
            f"{path}: format version {version!r}, but this pdecnn goes on from {FORMAT_VERSION} "
            f"only; resume with the pdecnn that wrote it, or start from its weights with --from"
        )
    try:
        progress = progress_from_dict(values)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    if progress.step != progress.epoch * trainer.steps_per_epoch + progress.batch:
        raise CheckpointError(
            f"{path}: belongs to a training whose epochs do not have {trainer.steps_per_epoch} "
            f"batches"
        )
    if any(batch >= trainer.steps_per_epoch for batch in progress.nonfinite_batches):
        raise CheckpointError(f"{path}: has skipped batches that this training does not have")
    if not set(progress.checkpointed_blocks) <= set(trainer.watched_blocks):
        raise CheckpointError(f"{path}: has switched blocks that this network does not reverse")
    if not trainer.progress.level <= progress.level < trainer.config.num_levels:
        raise CheckpointError(f"{path}: is on level {progress.level}, where this training is not")
    return progress


def _read(path: Path, *keys: str) -> list[Any]:
    try:
        values = json.loads(read_bytes(path))
        return [values[key] for key in keys]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: not part of a pdecnn checkpoint ({in_one_line(error)})"
        ) from error


def set_aside(folder: Path) -> None:
    """Rename a damaged checkpoint, so that neither resuming nor pruning meets it again."""
    names = (folder.with_name(f"{folder.name}.damaged-{number}") for number in count(1))
    folder.rename(next(name for name in names if not name.exists()))
    sync_folder(folder.parent)


def _intact(folder: Path) -> bool:
    try:
        verify_manifest(folder, required=FILES)
    except CheckpointError:
        return False
    return True


def _tensors(trainer: "Trainer") -> dict[str, Tensor]:
    tensors = {f"weights/{k}": v for k, v in trainer.network.state_dict().items()}
    tensors |= trainer.optimizer.named_states(trainer.network)
    if trainer.average is not None:
        tensors |= {f"average/{k}": v for k, v in trainer.average.state_dict().items()}
    tensors["sums/epoch"] = trainer.sums
    return tensors


def _restore(trainer: "Trainer", groups: dict[str, dict[str, Tensor]], origin: Path) -> None:
    """Copy the tensors once they are known to fit."""
    if bool(groups["average"]) != (trainer.average is not None):
        raise CheckpointError(
            f"{origin}: the file or the config, but not both, has a moving average"
        )
    states = trainer.optimizer.named_states(trainer.network)
    sums = groups["sums"].get("epoch")
    wanted = {"states": states, "weights": trainer.network.state_dict()}
    if trainer.average is not None:
        wanted["average"] = trainer.average.state_dict()
    # A network of other numbers than the trainer's would be trained in those without a word.
    fits = groups["states"].keys() == states.keys() and all(
        tensor.dtype == wanted[group][name].dtype
        for group in wanted
        for name, tensor in groups[group].items()
        if name in wanted[group]
    )
    fits = fits and all(t.shape == states[name].shape for name, t in groups["states"].items())
    if not fits or sums is None or sums.shape != trainer.sums.shape:
        raise CheckpointError(
            f"{origin}: weights, states of the optimiser or sums do not fit the network"
        )
    load_weights(trainer.network, groups["weights"], origin)
    if trainer.average is not None:
        load_weights(trainer.average, groups["average"], origin)
    with torch.no_grad():
        for name, state in states.items():
            state.copy_(groups["states"][name])
        trainer.sums.copy_(sums)
