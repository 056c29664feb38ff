"""The curves that pages and figures show, defined once: `svg` and `style` draw them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdecnn.learning.tasks import AbstractTask

_LARGEST = 1e300  # beyond it an axis overflows
_MOST_RATE_LINES = 6
_LOG_FROM_RATIO = 10.0
_LEAST_CHANGE = 0.02  # of a number: less looks like the rounding it is


ATTACKS = {
    "fgsm": "FGSM",
    "pgd": "PGD",
    "apgd": "APGD",
    "apgd_ce": "APGD (CE)",
    "apgd_dlr": "APGD (DLR)",
    "worst": "worst",
}
"""Their names in tables and figures, in the order they are run."""


MOST_CHANNELS = 4
"""Of a signal, that are drawn."""


def channels_words(shape: Sequence[int]) -> str:
    """How many of the channels of a sample (channels, *spatial) are seen; '' where all are."""
    channels, *spatial = shape
    if len(spatial) == 1:
        shown = f"the first {MOST_CHANNELS} of {channels} channels"
        return shown if channels > MOST_CHANNELS else ""
    return "" if channels in (1, 3) else f"the mean of {channels} channels"


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """A curve; None among its values, or what is no finite number, is a gap."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    colour: int
    """One of six, which has a marker of its own."""
    dashed: bool = False
    line: bool = True
    """False: points only."""
    broad: bool = False
    """To be seen below another."""
    starred: int | None = None
    """The place of a point to be marked."""
    main: bool = False
    """To be shown where several runs share a chart."""

    @property
    def points(self) -> list[tuple[int, float, float]]:
        """Place, x and y of what can be drawn."""
        return [
            (k, x, y)
            for k, (x, y) in enumerate(zip(self.xs, self.ys, strict=True))
            if y is not None and abs(y) < _LARGEST
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """Curves over a common x."""

    title: str
    series: Sequence[Series]
    x_label: str
    y_label: str
    percent: bool = False
    """Values are shares."""
    may_be_log: bool = False
    """Values that differ more than tenfold get decades."""
    whole: bool = True
    """x counts."""
    lines: Sequence[float] = ()
    """Vertical ones."""
    level: float | None = None
    """A horizontal one."""
    plane: bool = False
    """Points are complex numbers; both axes are shown."""

    @property
    def drawn(self) -> list[Series]:
        """The curves that have points."""
        return [curve for curve in self.series if curve.points]

    @property
    def is_log(self) -> bool:
        """Whether the values get decades."""
        ys = [y for curve in self.series for _, _, y in curve.points]
        ys += [] if self.level is None else [self.level]
        return self.may_be_log and min(ys) > 0 and max(ys) > _LOG_FROM_RATIO * min(ys)

    @property
    def y_range(self) -> tuple[float, float]:
        """What the vertical axis shows: the change of the values, and zero where that is near."""
        ys = [y for curve in self.series for _, _, y in curve.points]
        ys += [] if self.level is None else [self.level]
        if self.percent:
            return percent_range(ys)
        low, high = min(ys), max(ys)
        if self.is_log:
            return low / 1.2, high * 1.2
        if 0 <= low <= (high - low) / 2:
            return 0.0, 1.08 * high or 1.0
        reach = max(high - low, _LEAST_CHANGE * abs(low), _LEAST_CHANGE * abs(high)) or 1.0
        middle = (low + high) / 2
        return middle - 0.55 * reach, middle + 0.55 * reach


def percent_range(values: Sequence[float]) -> tuple[float, float]:
    """A tenth at least, and not beyond 0 and 100 % but for half a marker."""
    low, high = min(values), max(values)
    # A small difference should not look like a wide gap.
    middle, reach = (low + high) / 2, 0.6 * max(high - low, 0.1)
    return max(middle - reach, -0.05 * reach), min(middle + reach, 1 + 0.05 * reach)


def overlaid(charts: Sequence[tuple[str, int, Chart]]) -> Chart:
    """The main curves of several runs, by name and colour, in one chart; of one run all curves.

    The first main curve of a run is solid, the others are dashed.
    """
    _, _, first = charts[0]
    if len(charts) == 1:
        return first
    series = [
        replace(curve, label=f"{name}, {curve.label}", colour=colour % 6, dashed=k > 0, broad=False)
        for name, colour, chart in charts
        for k, curve in enumerate(one for one in chart.series if one.main)
    ]
    return replace(first, series=series)


def commonest_errors(counts: NDArray[np.int64], most: int) -> list[tuple[int, int, int]]:
    """Of a confusion matrix how often, the true class and the predicted one."""
    errors = counts - np.diag(np.diag(counts))
    # A stable sort: equal counts stand in the order of the classes, on every machine.
    order = np.argsort(-errors, axis=None, kind="stable")[:most]
    pairs = (divmod(int(place), len(counts)) for place in order)
    return [(int(errors[pair]), *pair) for pair in pairs if errors[pair]]


def convergence_charts(
    runs: Sequence[tuple[str, list[dict[str, Any]], int | None, int]],
    *,
    several: bool,
    task: AbstractTask | None = None,
) -> list[Chart]:
    """A score and the loss against the epoch, of runs by name, epochs, place of the best, colour.

    The score is the accuracy, or that of a task. Of one run training and validation have colours;
    of several each run has one.
    """
    charts = []
    name, score, label, percent = "Accuracy", "accuracy", "accuracy", True
    if task is not None:
        name, score = task.label.partition(" in ")[0], task.score
        label, percent = task.label, task.percent
    validated = f"validation_{score}"
    for title, keys, y_label in (
        (name, (score, validated), label),
        ("Loss", ("data_loss", "validation_loss"), "loss (data term)"),
    ):
        curves = [
            Series(
                label=f"{run}, {kind}" if several else kind,
                xs=[entry["epoch"] for entry in metrics],
                ys=[entry.get(key) for entry in metrics],
                colour=colour % 6 if several else k,
                dashed=several and not k,
                starred=best if k else None,
            )
            for run, metrics, best, colour in runs
            for k, (kind, key) in enumerate(zip(("training", "validation"), keys, strict=True))
            if not k or any(entry.get(validated) is not None for entry in metrics)
        ]
        charts.append(
            Chart(
                title=title,
                series=curves,
                x_label="epoch",
                y_label=y_label,
                percent=percent and title == name,
                may_be_log=title == "Loss",
                lines=changes(runs[0][1]) if len(runs) == 1 else (),
            )
        )
    return charts


def changes(metrics: list[dict[str, Any]]) -> list[float]:
    """Where the learning rate or the level changes, unless that is all the time."""
    places = [
        second["epoch"] - 0.5
        for first, second in pairwise(metrics)
        if any(first.get(key) != second.get(key) for key in ("learning_rate", "level"))
    ]
    return places if len(places) <= _MOST_RATE_LINES else []


def rates_in_words(metrics: list[dict[str, Any]]) -> str:
    """The learning rates one after the other, or the first and the last of many."""
    rates = distinct(metrics, "learning_rate")
    if len(rates) - 1 > _MOST_RATE_LINES:
        return f"{rates[0]:.3g} to {rates[-1]:.3g}, changing steadily"
    return " → ".join(f"{rate:.3g}" for rate in rates)


def lines_in_words(metrics: list[dict[str, Any]]) -> str:
    """What the dotted lines of a single run are; '' where there are none."""
    if not changes(metrics):
        return ""
    levels = " or level" if len(distinct(metrics, "level")) > 1 else ""
    return f"dotted lines are changes of learning rate{levels}"


def distinct(metrics: list[dict[str, Any]], key: str) -> list[Any]:
    """The values in their order, each once where it stays."""
    values: list[Any] = []
    for entry in metrics:
        if not values or entry.get(key) != values[-1]:
            values.append(entry.get(key))
    return values
