"""What the runs of a plan came to, read once and checked for all that a report needs."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors import torch as safetensors

from pdecnn.errors import CheckpointError, ConfigError
from pdecnn.learning.metrics import AUTO
from pdecnn.reports.recorded import entry, named, read_metrics, read_summary
from pdecnn.runs.config import RunConfig
from pdecnn.runs.paper import Experiment, Plan
from pdecnn.runs.queue import CONDITIONS, is_complete, read_training_evaluation
from pdecnn.runs.runs import ENVIRONMENT, METRICS, PREDICTIONS, Run
from pdecnn.runs.training import check_settings

_UNKNOWN = (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError)
_MOST_SECONDS = 1e10
"""Three centuries: what is beyond was not measured."""
MISSING = "missing"
UNFINISHED = "not finished"


class Result(NamedTuple):
    """A run at its end."""

    folder: Path
    config: RunConfig
    summary: dict[str, Any]
    training: dict[str, Any]
    """The best weights on the training images."""
    metrics: list[dict[str, Any]]
    predictions: dict[str, NDArray[Any]]
    """Of some test images; empty where a run is kept without images."""
    environment: dict[str, Any]
    """Where it ran."""
    num_parallel: int | None
    """How many runs shared the device; None: unknown."""
    seconds: float | None
    """How long it trained, by the clock; None: unknown."""

    @property
    def precision(self) -> str:
        """What its layers computed in."""
        precision = self.config.training.precision
        if precision != AUTO:
            return precision
        # A run of before 'auto' was resolved in its config.
        return "float32" if self.environment["hardware"]["gpu"] is None else "bfloat16"


Results = dict[Experiment, list[Result]]
"""What there is for each experiment, in the order of the seeds."""


class Spread(NamedTuple):
    """A mean over seeds, and the sample standard deviation where there are two or more."""

    mean: float
    deviation: float | None


def read_runs(plan: Plan, runs: Path) -> tuple[dict[str, Result], dict[str, str]]:
    """The results of a plan by name of the run, and why the others have none.

    A run of other settings than the plan's is no result of it, however it came there.
    """
    results, reasons = {}, {}
    for name, config in plan.runs.items():
        try:
            result = read_result(runs / name)
            check_settings(Run(runs / name), config)
            results[name] = result
        except (CheckpointError, ConfigError) as error:
            reasons[name] = " ".join(str(error).splitlines())
    return results, reasons


def results_of(target: str, plan: Plan, results: dict[str, Result]) -> Results:
    """What there is for the experiments of a target."""
    return {
        one: [results[name] for name in plan.run_names(target, one) if name in results]
        for one in plan.experiments[target]
    }


def read_result(folder: Path) -> Result:
    """The result in a run directory; a CheckpointError says what is missing or damaged there."""
    if not is_complete(folder):
        raise CheckpointError(UNFINISHED)
    run = Run(folder)
    summary = read_summary(run)
    if summary is None:
        raise CheckpointError(UNFINISHED)
    metrics = read_metrics(run, ("validation_accuracy", "learning_rate"))
    with named(folder / METRICS):
        if len(metrics) < summary["epochs"]:
            raise ValueError(f"{len(metrics)} of {summary['epochs']} epochs")
    with named(folder / ENVIRONMENT):
        environment = json.loads((folder / ENVIRONMENT).read_bytes())
        _check_environment(environment)
    predictions = {}
    if (folder / PREDICTIONS).exists():
        predictions = read_predictions(run, len(summary["class_names"]))
    return Result(
        folder=folder,
        config=run.config,
        summary=summary,
        training=read_training_evaluation(folder) or {},
        metrics=metrics,
        predictions=predictions,
        environment=environment,
        num_parallel=_read_num_parallel(folder / CONDITIONS),
        seconds=read_seconds(run, summary["epochs"]),
    )


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


def spread(values: Sequence[float | None]) -> Spread | None:
    """The mean and spread of numbers; None if there are none or one is not finite."""
    numbers = [value for value in values if value is not None]
    if not numbers or len(numbers) < len(values):
        return None
    deviation = statistics.stdev(numbers) if len(numbers) > 1 else None
    return Spread(statistics.fmean(numbers), deviation)


def dynamics_of(results: Results) -> list[str]:
    """The networks of some experiments, each once, in order."""
    return list(dict.fromkeys(one.dynamics for one in results))


def _check_environment(environment: Any) -> None:
    entry(environment, str | None, "hardware", "gpu")
    entry(environment, str, "hardware", "processor")
    entry(environment, int | None, "hardware", "cpu_cores")
    entry(environment, str | None, "commit")
    for name in ("pdecnn", "torch", "python"):
        entry(environment, str | None, "versions", name)


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


def _read_num_parallel(path: Path) -> int | None:
    """What the queue wrote down; None where it did not."""
    try:
        return int(json.loads(path.read_bytes())["runs_at_a_time"])
    except _UNKNOWN:
        return None


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
