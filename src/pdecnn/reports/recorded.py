"""The figures in a run directory, checked for all that a report does with them."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

from pdecnn.errors import CheckpointError, quoted
from pdecnn.runs.runs import METRICS, SUMMARY, Run

AGAIN = "restore it from a copy, or train again"
CURVES = ("accuracy", "data_loss", "validation_loss", "validation_accuracy", "learning_rate")
"""What the curves of a training are drawn from."""
_LARGEST = 1e100
"""No run comes to a number beyond it, and the sum of some is finite still."""
_SHARES = ("accuracy", "validation_accuracy")
_SIZES = ("loss", "data_loss", "validation_loss", "smoothness", "decay", "learning_rate")
_COUNTS = ("step", "nonfinite_steps", "overflow_steps", "checkpointed_blocks", "rollbacks", "level")
_ALWAYS_FINITE = ("validation_accuracy", "learning_rate")


def read_metrics(run: Run, required: Iterable[str] = CURVES) -> list[dict[str, Any]]:
    """The epochs of a run; a CheckpointError unless each has what is required of it."""
    with named(run.folder / METRICS):
        metrics = run.metrics
        _check_metrics(metrics, required)
    return metrics


def read_summary(run: Run) -> dict[str, Any] | None:
    """The final figures of a run, None while it is not finished; else a CheckpointError."""
    with named(run.folder / SUMMARY):
        summary = run.summary
        if summary is not None:
            _check_summary(summary)
    return summary


@contextmanager
def named(path: Path, remedy: str = AGAIN) -> Iterator[None]:
    """Say which file is damaged, and what to do."""
    try:
        yield
    except CheckpointError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged ({error}); {remedy}") from error


def entry(values: Any, kind: Any, *keys: str) -> Any:
    """What lies under the keys, if it is of the kind and, where a number, not too large."""
    for key in keys:
        if not isinstance(values, dict) or key not in values:
            raise ValueError(f"it lacks {'.'.join(keys)}")
        values = values[key]
    if not isinstance(values, kind) or isinstance(values, bool):
        raise ValueError(f"{'.'.join(keys)} is {quoted(values, 40)}")
    if isinstance(values, float) and not isfinite(values):
        raise ValueError(f"{'.'.join(keys)} is not finite")
    if isinstance(values, int | float) and abs(values) > _LARGEST:
        raise ValueError(f"{'.'.join(keys)} is too large")
    return values


def _check_metrics(metrics: Sequence[Any], required: Iterable[str]) -> None:
    before = 0
    for epoch in metrics:
        for key in required:
            entry(epoch, int | float | None, key)
        number = entry(epoch, int, "epoch")
        if number <= before:
            raise ValueError(f"epoch {number} after epoch {before}")
        before = number
        for key in (*_SHARES, *_SIZES, *_COUNTS):
            if key in epoch:
                _check_figure(epoch, key)


def _check_figure(epoch: dict[str, Any], key: str) -> None:
    kind: Any = int if key in _COUNTS else int | float
    value = entry(epoch, kind if key in (*_COUNTS, *_ALWAYS_FINITE) else kind | None, key)
    if value is not None and not 0 <= value <= (1 if key in _SHARES else _LARGEST):
        raise ValueError(f"{key} is {value}")


def _check_summary(summary: dict[str, Any]) -> None:
    for key in ("epochs", "best_epoch", "num_weights"):
        if entry(summary, int, key) < 0:
            raise ValueError(f"{key} is {summary[key]}")
    entry(summary, str, "stopped")
    entry(summary, int | float, "best_validation_accuracy")
    names = entry(summary, list, "class_names")
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError("class_names are no names")
    _check_test(entry(summary, dict, "test"), names)


def _check_test(test: dict[str, Any], names: list[str]) -> None:
    values = {"test": test}
    for key in ("accuracy", "balanced_accuracy"):
        if not 0 <= entry(values, int | float, "test", key) <= 1:
            raise ValueError(f"test.{key} is {test[key]}")
    entry(values, int | float | None, "test", "loss")
    entry(values, int, "test", "num_images")
    for name in names:
        entry(values, int | float | None, "test", "per_class", name)
    confusion = entry(values, list, "test", "confusion")
    rows = [row for row in confusion if isinstance(row, list) and len(row) == len(names)]
    if len(rows) != len(names) or len(confusion) != len(names):
        raise ValueError("test.confusion does not fit class_names")
    for row in rows:
        for count in row:
            if not isinstance(count, int) or not 0 <= count < 2**40:
                raise ValueError("test.confusion has entries that are no counts")
