"""What the runs of a plan came to, and Table 1 of it beside the paper's numbers."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from pdecnn.errors import CheckpointError, ConfigError
from pdecnn.files import csv_bytes
from pdecnn.learning.metrics import AUTO
from pdecnn.reports.recorded import (
    UNKNOWN,
    entry,
    named,
    read_metrics,
    read_predictions,
    read_seconds,
    read_summary,
)
from pdecnn.runs.config import RunConfig
from pdecnn.runs.paper import NARROW, PUBLISHED, TITLES, Experiment, Plan, Published
from pdecnn.runs.queue import CONDITIONS, is_complete, read_training_evaluation
from pdecnn.runs.runs import ENVIRONMENT, METRICS, PREDICTIONS, Run
from pdecnn.runs.training import check_settings

MISSING, UNFINISHED = "missing", "not finished"


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


def read_result(folder: Path, *, of_queue: bool = True) -> Result:
    """The result in a run directory; a CheckpointError says what is missing or damaged there.

    Runs of a queue have figures on the training images too.
    """
    if of_queue and not is_complete(folder):
        raise CheckpointError(UNFINISHED)
    run = Run(folder)
    summary = read_summary(run)
    if summary is None:
        raise CheckpointError(UNFINISHED)
    metrics = read_metrics(run, ("validation_accuracy", "learning_rate"))
    with named(folder / METRICS):
        if len(metrics) < summary["epochs"]:
            raise ValueError(f"{len(metrics)} of {summary['epochs']} epochs")
    kept = (folder / PREDICTIONS).exists()
    return Result(
        folder=folder,
        config=run.config,
        summary=summary,
        training=read_training_evaluation(folder) or {},
        metrics=metrics,
        predictions=read_predictions(run, len(summary["class_names"])) if kept else {},
        environment=_read_environment(folder / ENVIRONMENT),
        num_parallel=_read_num_parallel(folder / CONDITIONS),
        seconds=read_seconds(run, summary["epochs"]),
    )


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


def _read_environment(path: Path) -> dict[str, Any]:
    with named(path):
        environment: dict[str, Any] = json.loads(path.read_bytes())
        entry(environment, str | None, "hardware", "gpu")
        entry(environment, str, "hardware", "processor")
        entry(environment, int | None, "hardware", "cpu_cores")
        entry(environment, str | None, "commit")
        for name in ("pdecnn", "torch", "python"):
            entry(environment, str | None, "versions", name)
    return environment


def _read_num_parallel(path: Path) -> int | None:
    """What the queue wrote down; None where it did not."""
    try:
        return int(json.loads(path.read_bytes())["runs_at_a_time"])
    except UNKNOWN:
        return None


QUICK = "Quick version on digits, not the paper's experiment"


def title(dataset: str, plan: Plan) -> str:
    """The data set that is shown, and what stands in for it."""
    return f"digits in place of {TITLES[dataset]}" if plan.quick else TITLES[dataset]


def seeds(plan: Plan) -> str:
    """'one seed' or '3 seeds'."""
    return "one seed" if plan.num_seeds == 1 else f"{plan.num_seeds} seeds"


def changed(plan: Plan) -> str:
    """The settings that are not the recipes', if any."""
    settings = ", ".join(f"{key} = {value}" for key, value in plan.settings.items())
    return f"Changed in every run: {settings}" if settings else ""


def is_augmented(plan: Plan, experiments: Iterable[Experiment]) -> bool:
    """Whether training images are mirrored or moved at random in some of them."""
    data = [plan.config(one).data for one in experiments]
    return any(config.flip or config.padding > 0 for config in data)


LABELS = {
    "parabolic": "parabolic",
    "hamiltonian": "hamiltonian",
    "second_order": "second order",
    "resnet": "resnet, twice the stencils",
    NARROW: "resnet, narrowed",
}
_HEADER = (
    "network",
    "weights",
    "regulariser: smoothness, decay",
    "test accuracy % (loss)",
    "training accuracy %",
    "paper: test accuracy % (loss)",
    "seeds",
)
_ALIGNED_RIGHT = (1, 6)
_CSV_HEADER = (
    "data_set", "trained_on", "network", "weights", "smoothness_weight", "decay_weight", "seeds",
    "test_accuracy", "test_accuracy_deviation", "test_loss", "test_loss_deviation",
    "training_accuracy", "training_accuracy_deviation",
    "paper_weights", "paper_test_accuracy", "paper_test_loss",
    "test_accuracy_by_seed", "changed_settings",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One network on one data set."""

    experiment: Experiment
    trained_on: str
    """The data set that was read: the digits, in a quick version."""
    num_weights: int | None
    regularization: tuple[float, float]
    """The weights of smoothness and decay, alpha_1 and alpha_2."""
    test_accuracies: tuple[float, ...]
    test_loss: Spread | None
    training_accuracy: Spread | None
    num_seeds: int
    published: Published | None

    def cells(self) -> tuple[str, ...]:
        """What stands in the table, in words."""
        published = self.published
        return (
            LABELS[self.experiment.dynamics],
            MISSING if self.num_weights is None else f"{self.num_weights:,}",
            ", ".join(f"{weight:g}" for weight in self.regularization),
            _accuracy(spread(self.test_accuracies), self.test_loss),
            _percent(self.training_accuracy),
            "-"
            if published is None
            else f"{100 * published.test_accuracy:.1f} ({published.test_loss:.3f})",
            f"{len(self.test_accuracies)} of {self.num_seeds}",
        )


def make_rows(plan: Plan, results: dict[str, Result]) -> list[Row]:
    """Table 1 from the results by name of the run."""
    rows = []
    for experiment, several in results_of("table1", plan, results).items():
        tests = [result.summary["test"] for result in several]
        config = plan.config(experiment)
        training = config.training
        rows.append(
            Row(
                experiment=experiment,
                trained_on=config.data.name,
                num_weights=several[0].summary["num_weights"] if several else None,
                regularization=(training.smoothness_weight, training.decay_weight),
                test_accuracies=tuple(test["accuracy"] for test in tests),
                test_loss=spread([test["loss"] for test in tests]),
                training_accuracy=spread([result.training["accuracy"] for result in several]),
                num_seeds=plan.num_seeds,
                published=PUBLISHED.get((experiment.dynamics, experiment.dataset)),
            )
        )
    return rows


def _percent(value: Spread | None) -> str:
    if value is None:
        return MISSING
    deviation = "" if value.deviation is None else f" ± {100 * value.deviation:.2f}"
    return f"{100 * value.mean:.2f}{deviation}"


def _accuracy(accuracy: Spread | None, loss: Spread | None) -> str:
    if accuracy is None:
        return MISSING
    if loss is None:
        return f"{_percent(accuracy)} (not finite)"
    deviation = "" if loss.deviation is None else f" ± {loss.deviation:.3f}"
    return f"{_percent(accuracy)} ({loss.mean:.3f}{deviation})"


def to_markdown(rows: Iterable[Row], titles: dict[str, str]) -> str:
    """One table a data set, its columns aligned, under the data set's title."""
    lines = []
    for dataset, mine in _by_dataset(rows):
        cells = [_HEADER, *(row.cells() for row in mine)]
        widths = [max(len(line[k]) for line in cells) for k in range(len(_HEADER))]
        rule = [
            "-" * (width - 1) + (":" if k in _ALIGNED_RIGHT else "-")
            for k, width in enumerate(widths)
        ]
        lines += [f"## {titles[dataset]}", ""]
        for line in (cells[0], rule, *cells[1:]):
            padded = [
                f"{cell:{'>' if k in _ALIGNED_RIGHT else '<'}{widths[k]}}"
                for k, cell in enumerate(line)
            ]
            lines.append(f"| {' | '.join(padded)} |")
        lines.append("")
    return "\n".join(lines)


def to_csv(rows: Iterable[Row], settings: dict[str, Any]) -> str:
    """One line a network and data set; accuracies in [0, 1], nothing rounded."""
    changed = "; ".join(f"{key} = {value}" for key, value in settings.items())
    lines = []
    for row in rows:
        figures: list[Any] = []
        for value in (spread(row.test_accuracies), row.test_loss, row.training_accuracy):
            figures += (None, None) if value is None else value
        lines.append(
            [
                row.experiment.dataset,
                row.trained_on,
                row.experiment.dynamics,
                row.num_weights,
                *row.regularization,
                len(row.test_accuracies),
                *figures,
                *(row.published or (None, None, None)),
                " ".join(map(str, row.test_accuracies)),
                changed,
            ]
        )
    return csv_bytes(_CSV_HEADER, lines).decode()


def to_latex(rows: Iterable[Row], titles: dict[str, str]) -> str:
    """A tabular that needs no package."""
    lines = [r"\begin{tabular}{lrccccr}", r"\hline", _latex(" & ".join(_HEADER)) + r" \\"]
    for dataset, mine in _by_dataset(rows):
        name = _latex(titles[dataset])
        lines += [r"\hline", rf"\multicolumn{{{len(_HEADER)}}}{{l}}{{{name}}} \\", r"\hline"]
        lines += [_latex(" & ".join(row.cells())) + r" \\" for row in mine]
    return "\n".join([*lines, r"\hline", r"\end{tabular}", ""])


def _latex(text: str) -> str:
    return text.replace("%", r"\%").replace("_", r"\_").replace("±", r"$\pm$")


def _by_dataset(rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.experiment.dataset, []).append(row)
    return list(groups.items())
