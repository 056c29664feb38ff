"""Validation accuracy over work and over time, single-level and in levels."""

from itertools import accumulate
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pdecnn.reports.style import BLUE, GREY, ORANGE, WIDTH

_UNITS = {"P": 1e15, "T": 1e12, "G": 1e9}
_MOST_COLUMNS = 3
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
    most = max(run["work"] for run in runs)
    prefix, unit = next((p, u) for p, u in _UNITS.items() if most >= u or p == "G")
    for run in runs:
        name = run["name"]
        look: dict[str, Any] = dict(_LOOKS[names.index(name) % len(_LOOKS)])
        label = None if name in labelled else _label(name)
        labelled.add(name)
        curve = run["curve"]
        work = [entry["work"] / unit for entry in curve]
        seconds = list(accumulate(entry["seconds"] for entry in curve))
        _draw(by_work, work, curve, look, label)
        _draw(by_time, seconds, curve, look, None)
    by_work.set_xlabel(f"work of training ({prefix}FLOP)")
    by_time.set_xlabel("seconds of training and validation")
    by_work.set_ylabel("validation accuracy (%)")
    handles: list[Any] = by_work.get_legend_handles_labels()[0]
    if any(run["level_epochs"] for run in runs):
        label = "first epoch of a level"
        handles.append(Line2D([], [], linestyle="none", marker="o", color=BLUE, label=label))
    figure.legend(handles=handles, loc="outside lower center", ncols=_MOST_COLUMNS)
    return figure


def _label(name: str) -> str:
    """'levels-60_40epochs-16_32px' in words."""
    if not name.startswith("levels-"):
        return "single level"
    parts = name.removeprefix("levels-").split("-")
    words = {"epochs": " epochs", "px": " px", "steps": " steps"}
    for old, new in words.items():
        parts = [
            part.replace(old, new).replace("_", ":" if old == "epochs" else " → ")
            if part.endswith(old)
            else part
            for part in parts
        ]
    return ", ".join([*parts[1:], parts[0]])


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
