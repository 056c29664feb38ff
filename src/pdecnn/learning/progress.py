"""Where a training stands: what a checkpoint holds besides tensors."""

from dataclasses import dataclass, field, fields
from typing import Any

from pdecnn.errors import CheckpointError
from pdecnn.settings import is_count, is_finite_number

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
