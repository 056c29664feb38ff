"""What an epoch of training came to."""

from math import nan
from typing import NamedTuple

from torch import Tensor

from pdecnn.learning.metrics import Evaluation
from pdecnn.learning.progress import Progress


class EpochReport(NamedTuple):
    """The figures of one epoch; nothing in it depends on the clock."""

    epoch: int
    step: int
    learning_rate: float
    loss: float
    data_loss: float
    smoothness: float
    decay: float
    accuracy: float
    validation_loss: float
    validation_accuracy: float
    nonfinite_steps: int
    """Steps skipped so far for a loss or gradient that was not finite."""
    nonfinite_batches: list[int]
    """Those of this epoch, by the number of the batch from 0."""
    reversal_error: float | None
    """The gradient error of reversible blocks at the start of the epoch; None: not measured."""
    checkpointed_blocks: int
    """How many of them the drift guard has switched to 'checkpointed' so far."""
    level: int
    """From 0."""
    work: float
    """Floating-point operations of the training so far."""


def report_epoch(
    progress: Progress, sums: Tensor, evaluation: Evaluation, *, learning_rate: float
) -> EpochReport:
    """The figures of the epoch that `progress` has just completed, with the step's `sums`."""
    *totals, number = sums.tolist()
    count = number or nan  # no figures for an epoch whose every step was skipped
    loss, data_loss, smoothness, decay, accuracy = (total / count for total in totals)
    return EpochReport(
        epoch=progress.epoch,
        step=progress.step,
        learning_rate=learning_rate,
        loss=loss,
        data_loss=data_loss,
        smoothness=smoothness,
        decay=decay,
        accuracy=accuracy,
        validation_loss=evaluation.loss,
        validation_accuracy=evaluation.accuracy,
        nonfinite_steps=progress.nonfinite_steps,
        nonfinite_batches=progress.nonfinite_batches,
        reversal_error=progress.reversal_error,
        checkpointed_blocks=len(progress.checkpointed_blocks),
        level=progress.level,
        work=progress.work,
    )
