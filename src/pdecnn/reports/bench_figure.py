"""Memory and time of a block against its number of steps."""

from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from pdecnn.pde.backprop import BACKPROP_MODES
from pdecnn.reports.style import BLUE, GREY, LIGHT_GREY, ORANGE, SMALL, WIDTH

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
    """A row of two panels for each dynamics: memory, and the time of an eager training step."""
    rows = [row for row in part["rows"] if not row["captured"]]
    names = list(dict.fromkeys(row["dynamics"] for row in rows))
    figure = Figure(figsize=(WIDTH, 0.6 + 2.4 * len(names)), layout="constrained")
    panels = figure.subplots(len(names), 2, squeeze=False, sharex=True, sharey="col")
    for name, (memory, time) in zip(names, panels, strict=True):
        mine = [row for row in rows if row["dynamics"] == name]
        _draw_panel(memory, mine, lambda row: row["activation_bytes"] / 1e6)
        _draw_panel(time, mine, lambda row: 1e3 * row["time"]["median_seconds"])
        word = "peak activations" if part["memory"] == "peak" else "saved for backward"
        memory.set_ylabel(f"{word} (MB)")
        time.set_ylabel("time of a training step (ms)")
        for axes in (memory, time):
            axes.set_title(name.replace("_", " "), loc="left")
    for axes in panels[-1]:
        axes.set_xlabel("time steps of the block")
    handles = [Line2D([], [], label=mode, **_LOOKS[mode]) for mode in BACKPROP_MODES]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _draw_panel(
    axes: Axes, rows: list[dict[str, Any]], value: Callable[[dict[str, Any]], float]
) -> None:
    depths = sorted({row["num_steps"] for row in rows})
    missing = []
    for mode in BACKPROP_MODES:
        points = []
        for row in (row for row in rows if row["backprop"] == mode):
            if row["time"] is None or row["activation_bytes"] is None:
                missing.append(f"{mode} at {row['num_steps']:,}")
            else:
                points.append((row["num_steps"], value(row)))
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
