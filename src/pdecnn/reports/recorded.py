"""What run directories hold, read once and checked for all that a report does with it."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from pdecnn.errors import CheckpointError, quoted
from pdecnn.runs.runs import METRICS, PREDICTIONS, SUMMARY, Run

TIES = {
    "loss": "of equal ones that of the lower validation loss, then the earlier",
    "first": "of equal ones the first",
}
"""Which epoch has the best validation accuracy, by training.ties."""


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
_COUNTS = ("step", "nonfinite_steps", "overflow_steps", "checkpointed_blocks", "rollbacks", "level")
_FIGURES: dict[str, tuple[Any, float]] = {
    **dict.fromkeys(("accuracy", "validation_accuracy"), (int | float | None, 1)),
    **dict.fromkeys(
        ("loss", "data_loss", "validation_loss", "smoothness", "decay"),
        (int | float | None, _LARGEST),
    ),
    "learning_rate": (int | float, _LARGEST),
    **dict.fromkeys(_COUNTS, (int, _LARGEST)),
}
"""What an epoch may hold: of which kind, and how much at most."""


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
def named(path: Path) -> Iterator[None]:
    """Say which file is damaged, and what to do."""
    try:
        yield
    except CheckpointError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged ({error}); {AGAIN}") from error


def entry(
    values: Any, kind: Any, *keys: str, least: float = -_LARGEST, most: float = _LARGEST
) -> Any:
    """What lies under the keys, if it is of the kind and, where a number, in that range."""
    name = ".".join(keys)
    for key in keys:
        if not isinstance(values, dict) or key not in values:
            raise ValueError(f"it lacks {name}")
        values = values[key]
    beyond = isinstance(values, int | float) and not least <= values <= most
    if not isinstance(values, kind) or isinstance(values, bool) or beyond:
        raise ValueError(f"{name} is {quoted(values, 40)}")
    return values


def _check_metrics(metrics: Sequence[Any], required: Iterable[str], *, validated: bool) -> None:
    before = 0
    for epoch in metrics:
        for key in required:
            entry(epoch, int | float | None, key)
        before = entry(epoch, int, "epoch", least=before + 1)
        for key, (kind, most) in _FIGURES.items():
            if key in epoch:
                entry(epoch, kind, key, least=0, most=most)
        if (epoch.get("validation_accuracy") is None) == validated:
            raise ValueError(f"validation_accuracy is {epoch.get('validation_accuracy')}")


def _check_summary(summary: dict[str, Any]) -> None:
    for key in ("epochs", "best_epoch", "num_weights"):
        entry(summary, int, key, least=0)
    entry(summary, str, "stopped")
    entry(summary, int | float | None, "best_validation_accuracy")
    names = entry(summary, list, "class_names")
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError("class_names are no names")
    for key in ("accuracy", "balanced_accuracy"):
        entry(summary, int | float, "test", key, least=0, most=1)
    entry(summary, int | float | None, "test", "loss")
    entry(summary, int, "test", "num_images")
    for name in names:
        entry(summary, int | float | None, "test", "per_class", name)
    confusion = entry(summary, list, "test", "confusion")
    if [isinstance(row, list) and len(row) for row in confusion] != [len(names)] * len(names):
        raise ValueError("test.confusion does not fit class_names")
    if not all(isinstance(count, int) and 0 <= count < 2**40 for row in confusion for count in row):
        raise ValueError("test.confusion has entries that are no counts")


UNKNOWN = (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError)
_MOST_SECONDS = 1e10
"""Three centuries: what is beyond was not measured."""


def read_predictions(run: Run, num_classes: int) -> dict[str, NDArray[Any]]:
    """`images` (n, channels, *spatial), `labels` (n,) and `probabilities` (n, classes)."""
    predictions = _read_arrays(run, ("images", "labels", "probabilities"))
    with named(run.folder / PREDICTIONS):
        images, labels, probabilities = (array.shape for array in predictions.values())
        wanted = (images[:1], (*images[:1], num_classes))
        if len(images) < 3 or (labels, probabilities) != wanted or not images[0]:
            raise ValueError(f"shapes {images}, {labels}, {probabilities}, {num_classes} classes")
        found = predictions["labels"]
        if found.dtype.kind not in "iu":
            raise ValueError(f"labels of type {found.dtype}")
        if not 0 <= found.min() <= found.max() < num_classes:
            raise ValueError(f"labels beyond {num_classes} classes")
    return predictions


def read_answers(run: Run, columns: Sequence[str]) -> dict[str, NDArray[Any]]:
    """What goes in, what comes out and what is wanted, (n, channels, *spatial) each."""
    found = _read_arrays(run, columns)
    with named(run.folder / PREDICTIONS):
        shapes = {(len(array), *array.shape[2:]) for array in found.values()}
        if len(shapes) > 1:
            raise ValueError(f"shapes {sorted(shapes)}")
    return found


def _read_arrays(run: Run, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    path = run.folder / PREDICTIONS
    try:
        with safe_open(path, framework="np") as file:
            return {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError, TypeError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); {AGAIN}") from error


def fullest_slice(labels: NDArray[Any]) -> int:
    """The slice along the last axis with the most pixels of a class."""
    return int((labels > 0).reshape(-1, labels.shape[-1]).sum(0).argmax())


def read_seconds(run: Run, epochs: int) -> float | None:
    """The sum of the times of all epochs; None if the time of one is not known."""
    try:
        entries = run.timing
        if not entries or {int(entry["epoch"]) for entry in entries} != set(range(1, epochs + 1)):
            return None
        seconds = float(sum(entry["seconds"] for entry in entries))
        return seconds if 0 <= seconds < _MOST_SECONDS else None
    except (CheckpointError, *UNKNOWN):
        return None
