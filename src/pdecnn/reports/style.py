"""How all figures look, how charts are drawn into them, and how they become bytes."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from math import ceil, isfinite, log10, nan
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from pdecnn.errors import ConfigError, system_errors_as
from pdecnn.reports.charts import Chart, Series, percent_range

# A dark blue and a light orange: told apart by every kind of eye, and in grey by their lightness.
BLUE, ORANGE, GREY, LIGHT_GREY = "#004F8C", "#E8850C", "#8C8C8C", "#C8C8C8"
LIGHT_BLUE = "#5BA3D0"
SMALL, NORMAL = 8, 9
WIDTH = 7.0  # inches: the text width of a journal page
MOST_MARKERS = 30
_COLOURS = (BLUE, ORANGE, GREY, LIGHT_BLUE, "black", LIGHT_GREY)
_MARKERS = ("o", "s", "^", "D", "x", "+")

_SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": NORMAL,
    "axes.titlesize": NORMAL,
    "axes.labelsize": NORMAL,
    "figure.titlesize": NORMAL,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.2,
    "hatch.linewidth": 0.8,
    "figure.dpi": 200,
    "svg.hashsalt": "pdecnn",
    # A class may be called "$x$": names are words, not formulas.
    "text.parse_math": False,
}


@contextmanager
def journal_style() -> Iterator[None]:
    """Draw inside with our settings, whatever the user's are, and leave theirs as they were."""
    with matplotlib.style.context(["default", _SETTINGS]):
        yield


@contextmanager
def writing_figures(folder: Path) -> Iterator[None]:
    """The same, into a folder that is made; a line where it cannot be written."""
    with system_errors_as(ConfigError, f"{folder}: cannot be written"), journal_style():
        folder.mkdir(parents=True, exist_ok=True)
        yield


def render(name: str, figure: Figure) -> dict[str, bytes]:
    """The figure as `name`.png and `name`.svg; equal figures give equal bytes."""
    png, svg = BytesIO(), BytesIO()
    with warnings.catch_warnings():
        # A letter that the font lacks is drawn as a box; the other names are still of use.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        pixels = FigureCanvasAgg(figure)
        pixels.print_png(png, metadata={"Software": None})  # type: ignore[no-untyped-call]
        # The layout is settled; finding it anew would take most of the time.
        figure.set_layout_engine("none")
        vectors = FigureCanvasSVG(figure)
        vectors.print_svg(svg, metadata={"Date": None})  # type: ignore[no-untyped-call]
    return {f"{name}.png": png.getvalue(), f"{name}.svg": svg.getvalue()}


def short_name(name: str, longest: int = 18) -> str:
    """A class name that leaves room for the figure; both ends stay, where names differ."""
    if len(name) <= longest:
        return name
    tail = (longest - 1) // 2
    return name[: longest - 1 - tail] + "…" + name[-tail:]


def plot_chart(axes: Axes, chart: Chart) -> None:
    """Curves with markers, which tell them apart without colour, and axes that suit them."""
    for curve in chart.series:
        _plot_curve(axes, curve, points=chart.plane)
    for x in chart.lines:
        axes.axvline(x, color=GREY, linewidth=0.8, linestyle=":", zorder=1)
    if chart.plane:
        axes.axvline(0, color="black", linewidth=0.6, zorder=1)
        axes.axhline(0, color=LIGHT_GREY, linewidth=0.6, zorder=1)
        _widen(axes)
    elif chart.drawn:
        _scale(axes, chart)
    if chart.level is not None:
        axes.axhline(chart.level, color="black", linewidth=0.6, zorder=1)
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label)


def draw_charts(charts: Sequence[Chart]) -> Figure:
    """Charts side by side with one legend below."""
    figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
    panels = figure.subplots(1, len(charts), squeeze=False)[0]
    for axes, chart in zip(panels, charts, strict=True):
        plot_chart(axes, chart)
        axes.set_title(chart.title, loc="left")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def say_in(axes: Axes, text: str, **look: Any) -> None:
    """A sentence in place of what a panel would show."""
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, **look)
    axes.set(xticks=[], yticks=[])


def _plot_curve(axes: Axes, curve: Series, *, points: bool) -> None:
    colour = _COLOURS[curve.colour]
    look: dict[str, Any] = {"color": colour, "marker": _MARKERS[curve.colour]}
    if points:
        look |= {"markersize": 2.2, "markerfacecolor": "none", "markeredgewidth": 0.6}
    elif not curve.line:
        look |= {"markersize": 5, "clip_on": False, "zorder": 3}
    else:
        look |= {"markevery": ceil(len(curve.ys) / MOST_MARKERS) or 1}
        look |= {"linewidth": 3.5, "alpha": 0.5} if curve.broad else {}
        look |= {"markerfacecolor": "white"} if curve.dashed else {}
    ys = [y if y is not None and isfinite(y) else nan for y in curve.ys]
    line = "none" if not curve.line else "--" if curve.dashed else "-"
    axes.plot(curve.xs, ys, linestyle=line, label=curve.label, **look)
    if curve.starred is not None:
        axes.plot(
            curve.xs[curve.starred],
            ys[curve.starred],
            linestyle="none",
            marker="*",
            markersize=10,
            color=colour,
            markeredgecolor="black",
            zorder=4,
        )


def _scale(axes: Axes, chart: Chart) -> None:
    """A faint grid; percent, decades or numbers."""
    faint_grid(axes)
    if chart.whole:
        axes.xaxis.set_major_locator(_whole_numbers())
    axes.set_ylim(*chart.y_range)
    if chart.percent:
        _write_percent(axes)
    elif chart.is_log:
        low, high = chart.y_range
        axes.set_yscale("log")
        subs = (1, 2, 5) if log10(high / low) < 3 else (1,)
        axes.yaxis.set_major_locator(LogLocator(subs=subs))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())


def _widen(axes: Axes) -> None:
    """Eigenvalues on a line, waves' or those of heat, should not look like a cloud of rounding."""
    width, height = np.ptp(axes.dataLim.intervalx), np.ptp(axes.dataLim.intervaly)
    if width < 0.3 * height:
        axes.set_xlim(-0.2 * height - width, 0.2 * height + width)
    elif height < 0.3 * width:
        axes.set_ylim(-0.2 * width - height, 0.2 * width + height)


def faint_grid(axes: Axes) -> None:
    """Horizontal lines, behind what is drawn."""
    axes.grid(axis="y", color=LIGHT_GREY, linewidth=0.4)
    axes.set_axisbelow(True)


def _whole_numbers() -> MaxNLocator:
    return MaxNLocator(6, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10])


def scale_epochs(axes: Axes, epochs: Sequence[int]) -> None:
    """A horizontal axis of whole epochs, and a faint grid."""
    margin = 0.5 + 0.02 * len(epochs)
    axes.set_xlim(epochs[0] - margin, epochs[-1] + margin)
    axes.xaxis.set_major_locator(_whole_numbers())
    axes.set_xlabel("epoch")
    faint_grid(axes)


def scale_accuracy(axes: Axes) -> None:
    """A vertical axis in percent around what is drawn."""
    axes.set_ylabel("accuracy")
    axes.set_ylim(*percent_range(tuple(axes.dataLim.intervaly)))
    _write_percent(axes)


def _write_percent(axes: Axes) -> None:
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
