"""What the runs of an experiment came to, read from their directories."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pdecnn.errors import CheckpointError
from pdecnn.experiments.paper import Experiment
from pdecnn.experiments.runs import ENVIRONMENT, TIMING, Run
from pdecnn.experiments.worker import TRAINING_EVALUATION, is_complete

MISSING = "missing"


class Result(NamedTuple):
    """A run at its end."""

    run: Run
    summary: dict[str, Any]
    training: dict[str, Any]
    """The best weights on the training images."""

    @property
    def seconds(self) -> float:
        """How long it trained, by the clock."""
        lines = (self.run.folder / TIMING).read_text().splitlines()
        return float(sum(json.loads(line)["seconds"] for line in lines))

    @property
    def environment(self) -> dict[str, Any]:
        """Where it ran."""
        values: dict[str, Any] = json.loads((self.run.folder / ENVIRONMENT).read_bytes())
        return values


Results = dict[Experiment, list[Result]]
"""What there is for each experiment, in the order of the seeds."""


class Spread(NamedTuple):
    """A mean over seeds, and the sample standard deviation where there are two or more."""

    mean: float
    deviation: float | None


def read_result(folder: Path) -> Result | None:
    """The result in a run directory; None if the run is missing, unfinished or damaged."""
    try:
        if not is_complete(folder):
            return None
        run = Run(folder)
        training = json.loads((folder / TRAINING_EVALUATION).read_bytes())
        return Result(run, run.summary or {}, training)
    except (CheckpointError, OSError, ValueError):
        return None


def read_results(runs: Path, experiment: Experiment, num_seeds: int) -> list[Result]:
    """The results there are, in the order of the seeds."""
    folders = [runs / experiment.run_name(seed) for seed in range(num_seeds)]
    return [result for result in map(read_result, folders) if result is not None]


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
