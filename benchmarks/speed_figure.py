"""Memory and time of a block against its number of steps."""

from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from pdecnn.pde.backprop import BACKPROP_MODES
from pdecnn.reports.style import BLUE, GREY, LIGHT_GREY, ORANGE, SMALL, WIDTH
from pdecnn.runs.bench import EAGER

# Line, marker and lightness tell the modes apart without colour; 'exact' is larger and hollow,
# since it often lies on 'reversible'.
_LOOKS: dict[str, dict[str, Any]] = {
    "stored": {"color": ORANGE, "linestyle": "-", "marker": "o"},
    "checkpointed": {"color": GREY, "linestyle": "--", "marker": "s"},
    "reversible": {"color": BLUE, "linestyle": "-", "marker": "^", "markersize": 3.6},
    "exact": {
        "color": "black",
        "linestyle": ":",
        "marker": "D",
        "markersize": 6.5,
        "markerfacecolor": "none",
    },
}


def draw_depth(part: dict[str, Any]) -> Figure:
    """A row of two panels for each timed dynamics: memory, and time of an eager training step."""
    rows = [row for row in part["rows"] if row["variant"] == EAGER]
    eager = [row for row in part["memory_rows"] if row["variant"] == EAGER]
    names = list(dict.fromkeys(row["dynamics"] for row in rows))
    figure = Figure(figsize=(WIDTH, 0.6 + 2.4 * len(names)), layout="constrained")
    panels = figure.subplots(len(names), 2, squeeze=False, sharex=True, sharey="col")
    for name, (memory, time) in zip(names, panels, strict=True):
        mine = [row for row in eager if row["dynamics"] == name]
        depths = sorted({row["num_steps"] for row in mine})
        _draw_panel(memory, mine, depths, _megabytes)
        _draw_panel(time, [row for row in rows if row["dynamics"] == name], depths, _milliseconds)
        word = "peak activations" if part["memory"] == "peak" else "saved for backward"
        memory.set_ylabel(f"{word} (MB)")
        time.set_ylabel("time of an eager training step (ms)")
        for axes in (memory, time):
            axes.set_title(name.replace("_", " "), loc="left")
    for axes in panels[-1]:
        axes.set_xlabel("time steps of the block")
    handles = [Line2D([], [], label=mode, **_LOOKS[mode]) for mode in BACKPROP_MODES]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _megabytes(row: dict[str, Any]) -> float | None:
    found = row["activation_bytes"]
    return None if found is None else found / 1e6


def _milliseconds(row: dict[str, Any]) -> float | None:
    return None if row["time"] is None else 1e3 * row["time"]["median_seconds"]


def _draw_panel(
    axes: Axes,
    rows: list[dict[str, Any]],
    depths: list[int],
    value: Callable[[dict[str, Any]], float | None],
) -> None:
    missing = []
    for mode in BACKPROP_MODES:
        points = []
        for row in (row for row in rows if row["backprop"] == mode):
            found = value(row)
            if found is None:
                missing.append(f"{mode} at {row['num_steps']:,}")
            else:
                points.append((row["num_steps"], found))
        if points:
            axes.plot(*zip(*points, strict=True), **_LOOKS[mode])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(NullLocator())
    axes.set_xticks(depths, [f"{depth:,}" for depth in depths])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=_subdivisions(axes)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="y", color=LIGHT_GREY, linewidth=0.4)
    axes.set_axisbelow(True)
    if missing:
        axes.set_title(f"out of memory: {', '.join(missing)}", loc="right", size=SMALL)


def _subdivisions(axes: Axes) -> tuple[int, ...]:
    low, high = axes.dataLim.intervaly
    return (1, 2, 5) if high < 1000 * low else (1,)
