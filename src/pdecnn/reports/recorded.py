"""What run directories hold, read once and checked for all that a report does with it."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors import torch as safetensors

from pdecnn.errors import CheckpointError, quoted
from pdecnn.runs.runs import METRICS, PREDICTIONS, SUMMARY, Run

TIES = {
    "loss": "of equal ones that of the lower validation loss, then the earlier",
    "first": "of equal ones the first",
}
"""Which epoch has the best validation accuracy, by training.ties."""


def measured_on(environment: dict[str, Any]) -> str:
    """When, with which versions and on what, without a full stop."""
    versions = environment["versions"]
    return (
        f"{environment['date']}, commit {environment['commit']}, torch {versions['torch']}, "
        f"Python {versions['python']}, {device_name(environment['hardware'])}"
    )


def short_commit(environment: dict[str, Any]) -> str:
    """Its first twelve digits, and '+' where the tree had changes."""
    commit = str(environment.get("commit") or "unknown")
    return commit if len(commit) <= 12 else commit[:12] + "+" * commit.endswith("+")


def device_name(hardware: dict[str, Any]) -> str:
    """The GPU, or the processor if there was none."""
    return str(hardware["gpu"] or processor_name(hardware))


def processor_name(hardware: dict[str, Any]) -> str:
    """The processor and its cores."""
    return f"{hardware['processor']} with {hardware['cpu_cores']} cores"


AGAIN = "restore it from a copy, or train again"
CURVES = ("accuracy", "data_loss", "validation_loss", "validation_accuracy", "learning_rate")
"""What the curves of a training are drawn from."""
_LARGEST = 1e100
"""No run comes to a number beyond it, and the sum of some is finite still."""
_SHARES = ("accuracy", "validation_accuracy")
_SIZES = ("loss", "data_loss", "validation_loss", "smoothness", "decay", "learning_rate")
_COUNTS = ("step", "nonfinite_steps", "overflow_steps", "checkpointed_blocks", "rollbacks", "level")
_ALWAYS_FINITE = ("learning_rate",)


def read_metrics(run: Run, required: Iterable[str] = CURVES) -> list[dict[str, Any]]:
    """The epochs of a run; a CheckpointError unless each has what is required of it."""
    with named(run.folder / METRICS):
        metrics = run.metrics
        _check_metrics(metrics, required, validated=run.config.data.validation_fraction > 0)
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


def _check_metrics(metrics: Sequence[Any], required: Iterable[str], *, validated: bool) -> None:
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
        if (epoch.get("validation_accuracy") is None) == validated:
            raise ValueError(f"validation_accuracy is {epoch.get('validation_accuracy')}")


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
    entry(summary, int | float | None, "best_validation_accuracy")
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


_UNKNOWN = (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError)
_MOST_SECONDS = 1e10
"""Three centuries: what is beyond was not measured."""


def read_predictions(run: Run, num_classes: int) -> dict[str, NDArray[Any]]:
    """`images` (n, channels, *spatial), `labels` (n,) and `probabilities` (n, classes)."""
    path = run.folder / PREDICTIONS
    try:
        predictions = {
            name: tensor.numpy() for name, tensor in safetensors.load(path.read_bytes()).items()
        }
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error}); restore it from a copy, or train again"
        ) from error
    with named(path):
        _check_predictions(predictions, num_classes)
    return predictions


def read_answers(run: Run, columns: Sequence[str]) -> dict[str, NDArray[Any]]:
    """What goes in, what comes out and what is wanted, (n, channels, *spatial) each."""
    path = run.folder / PREDICTIONS
    try:
        with safe_open(path, framework="np") as file:
            found = {name: file.get_tensor(name) for name in columns}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); {AGAIN}") from error
    with named(path):
        shapes = {(len(array), *array.shape[2:]) for array in found.values()}
        if len(shapes) > 1:
            raise ValueError(f"shapes {sorted(shapes)}")
    return found


def fullest_slice(labels: NDArray[Any]) -> int:
    """The slice along the last axis with the most pixels of a class."""
    return int((labels > 0).reshape(-1, labels.shape[-1]).sum(0).argmax())


def _check_predictions(predictions: dict[str, NDArray[Any]], num_classes: int) -> None:
    shapes = {name: array.shape for name, array in predictions.items()}
    images, labels = shapes.get("images", ()), shapes.get("labels", ())
    if len(images) < 3 or labels != images[:1] or not images[0]:
        raise ValueError(f"shapes {shapes}")
    if shapes.get("probabilities") != (images[0], num_classes):
        raise ValueError(f"shapes {shapes}, {num_classes} classes")
    if predictions["labels"].dtype.kind not in "iu":
        raise ValueError(f"labels of type {predictions['labels'].dtype}")
    if not 0 <= predictions["labels"].min() <= predictions["labels"].max() < num_classes:
        raise ValueError(f"labels beyond {num_classes} classes")


def read_seconds(run: Run, epochs: int) -> float | None:
    """The sum of the times of all epochs; None if the time of one is not known."""
    try:
        entries = run.timing
        if not entries or {int(entry["epoch"]) for entry in entries} != set(range(1, epochs + 1)):
            return None
        seconds = float(sum(entry["seconds"] for entry in entries))
        return seconds if 0 <= seconds < _MOST_SECONDS else None
    except (CheckpointError, *_UNKNOWN):
        return None
