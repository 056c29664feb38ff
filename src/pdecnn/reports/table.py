"""Table 1 beside the paper's numbers: as Markdown, CSV and LaTeX."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pdecnn.reports.results import MISSING, Result, Spread, results_of, spread
from pdecnn.runs.paper import NARROW, Experiment, Plan
from pdecnn.runs.published import PUBLISHED, Published

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
    "data_set",
    "trained_on",
    "network",
    "weights",
    "smoothness_weight",
    "decay_weight",
    "seeds",
    "test_accuracy",
    "test_accuracy_deviation",
    "test_loss",
    "test_loss_deviation",
    "training_accuracy",
    "training_accuracy_deviation",
    "paper_weights",
    "paper_test_accuracy",
    "paper_test_loss",
    "test_accuracy_by_seed",
    "changed_settings",
)


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
        lines += [_line(line, widths) for line in (cells[0], rule, *cells[1:])]
        lines.append("")
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.rjust(width) if k in _ALIGNED_RIGHT else cell.ljust(width)
        for k, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return f"| {' | '.join(padded)} |"


def to_csv(rows: Iterable[Row], settings: dict[str, Any]) -> str:
    """One line a network and data set; accuracies in [0, 1], nothing rounded."""
    changed = "; ".join(f"{key} = {value}" for key, value in settings.items())
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_CSV_HEADER)
    for row in rows:
        figures: list[Any] = []
        for value in (spread(row.test_accuracies), row.test_loss, row.training_accuracy):
            figures += (None, None) if value is None else value
        writer.writerow(
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
    return stream.getvalue()


def to_latex(rows: Iterable[Row], titles: dict[str, str]) -> str:
    """A tabular that needs no package."""
    lines = [r"\begin{tabular}{lrccccr}", r"\hline", _latex_line(_HEADER)]
    for dataset, mine in _by_dataset(rows):
        name = _latex(titles[dataset])
        lines += [r"\hline", rf"\multicolumn{{{len(_HEADER)}}}{{l}}{{{name}}} \\", r"\hline"]
        lines += [_latex_line(row.cells()) for row in mine]
    return "\n".join([*lines, r"\hline", r"\end{tabular}", ""])


def _latex_line(cells: Iterable[str]) -> str:
    return " & ".join(map(_latex, cells)) + r" \\"


def _latex(text: str) -> str:
    return text.replace("%", r"\%").replace("_", r"\_").replace("±", r"$\pm$")


def _by_dataset(rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.experiment.dataset, []).append(row)
    return list(groups.items())
