"""Table 1 beside the paper's numbers: as Markdown, CSV and LaTeX."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdecnn.experiments.paper import NARROW, TITLES, Experiment, Plan
from pdecnn.experiments.published import PUBLISHED, Published
from pdecnn.reports.results import MISSING, Spread, read_results, spread

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
    "test accuracy % (loss)",
    "training accuracy %",
    "paper: test accuracy % (loss)",
    "seeds",
)
_ALIGNED_RIGHT = (1, 5)
_CSV_HEADER = (
    "data_set",
    "network",
    "weights",
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
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One network on one data set."""

    experiment: Experiment
    num_weights: int | None
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
            _accuracy(spread(self.test_accuracies), self.test_loss),
            _percent(self.training_accuracy),
            "-"
            if published is None
            else f"{100 * published.test_accuracy:.1f} ({published.test_loss:.3f})",
            f"{len(self.test_accuracies)} of {self.num_seeds}",
        )


def make_rows(plan: Plan, runs: Path) -> list[Row]:
    """Table 1 from the run directories."""
    rows = []
    for experiment in plan.experiments["table1"]:
        results = read_results(runs, experiment, plan.num_seeds)
        tests = [result.summary["test"] for result in results]
        rows.append(
            Row(
                experiment=experiment,
                num_weights=results[0].summary["num_weights"] if results else None,
                test_accuracies=tuple(test["accuracy"] for test in tests),
                test_loss=spread([test["loss"] for test in tests]),
                training_accuracy=spread([result.training["accuracy"] for result in results]),
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
    return f"{_percent(accuracy)} ({'not finite' if loss is None else f'{loss.mean:.3f}'})"


def to_markdown(rows: Iterable[Row], heading: str) -> str:
    """One table a data set, its columns aligned; `heading` has a place for the data set's name."""
    lines = []
    for dataset, mine in _by_dataset(rows):
        cells = [_HEADER, *(row.cells() for row in mine)]
        widths = [max(len(line[k]) for line in cells) for k in range(len(_HEADER))]
        rule = [
            "-" * (width - 1) + (":" if k in _ALIGNED_RIGHT else "-")
            for k, width in enumerate(widths)
        ]
        lines += [heading.format(TITLES[dataset]), ""]
        lines += [_line(line, widths) for line in (cells[0], rule, *cells[1:])]
        lines.append("")
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.rjust(width) if k in _ALIGNED_RIGHT else cell.ljust(width)
        for k, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return f"| {' | '.join(padded)} |"


def to_csv(rows: Iterable[Row]) -> str:
    """One line a network and data set; accuracies in [0, 1], nothing rounded."""
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
                row.experiment.dynamics,
                row.num_weights,
                len(row.test_accuracies),
                *figures,
                *(row.published or (None, None, None)),
                " ".join(map(str, row.test_accuracies)),
            ]
        )
    return stream.getvalue()


def to_latex(rows: Iterable[Row], heading: str) -> str:
    """A tabular that needs no package."""
    lines = [r"\begin{tabular}{lrcccr}", r"\hline", _latex_line(_HEADER)]
    for dataset, mine in _by_dataset(rows):
        name = _latex(heading.format(TITLES[dataset]))
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
