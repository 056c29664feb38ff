"""Validation accuracy over work and over time, single-level and in levels."""

from itertools import accumulate
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pdecnn.reports.style import BLUE, GREY, ORANGE, WIDTH

_LOOKS = (
    {"color": ORANGE, "linestyle": "-"},
    {"color": BLUE, "linestyle": "-"},
    {"color": GREY, "linestyle": "--"},
    {"color": "black", "linestyle": ":"},
)


def draw_courses(runs: list[dict[str, Any]]) -> Figure:
    """Two panels; a line for each run, one look for all seeds, a mark where a level begins."""
    figure = Figure(figsize=(WIDTH, 2.8), layout="constrained")
    by_work, by_time = figure.subplots(1, 2, sharey=True)
    names = list(dict.fromkeys(run["name"] for run in runs))
    labelled: set[str] = set()
    for run in runs:
        name = run["name"]
        look: dict[str, Any] = dict(_LOOKS[names.index(name) % len(_LOOKS)])
        label = None if name in labelled else name.replace("multilevel-", "in levels, epochs ")
        labelled.add(name)
        curve = run["curve"]
        work = [entry["work"] for entry in curve]
        seconds = list(accumulate(entry["seconds"] for entry in curve))
        _draw(by_work, work, curve, look, label)
        _draw(by_time, seconds, curve, look, None)
    by_work.set_xlabel("floating-point operations of training")
    by_time.set_xlabel("seconds of training and validation")
    by_work.set_ylabel("validation accuracy (%)")
    figure.legend(loc="outside lower center", ncols=len(names))
    return figure


def _draw(
    axes: Axes,
    positions: list[float],
    curve: list[dict[str, Any]],
    look: dict[str, Any],
    label: str | None,
) -> None:
    accuracies = [100 * entry["validation_accuracy"] for entry in curve]
    axes.plot(positions, accuracies, linewidth=0.9, label=label, **look)
    begins = [k for k in range(1, len(curve)) if curve[k]["level"] != curve[k - 1]["level"]]
    axes.plot(
        [positions[k] for k in begins],
        [accuracies[k] for k in begins],
        linestyle="none",
        marker="o",
        color=look["color"],
    )
