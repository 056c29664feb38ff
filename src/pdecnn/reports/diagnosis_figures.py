"""The figures of a diagnosis: growth, energy and reversibility of every block."""

from collections.abc import Sequence
from math import ceil, isfinite, nan
from textwrap import fill

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator

from pdecnn.diagnostics.diagnosis import BlockDiagnosis
from pdecnn.diagnostics.energy import features_symbol
from pdecnn.diagnostics.growth import Growth
from pdecnn.reports.diagnosis import reversal_note
from pdecnn.reports.style import BLUE, GREY, LIGHT_BLUE, LIGHT_GREY, ORANGE, SMALL, WIDTH

_PERTURBATIONS = {"worst": (ORANGE, "s"), "noise": (BLUE, "o"), "random": (GREY, "^")}
_ENERGIES = {
    # Equation 12 first and broad: for ReLU it is the energy itself, which lies on top of it.
    "printed_raw": ("eq. 12, stored states", LIGHT_GREY, "^", "-", 3.5),
    "printed_centred": ("eq. 12, centred states", LIGHT_GREY, "^", "--", 3.5),
    "norms": ("|{symbol}|", BLUE, "o", "-", 1.2),
    "raw": ("energy, stored states", ORANGE, "s", "-", 1.2),
    "centred": ("energy, centred states", ORANGE, "s", "--", 1.2),
}
_ERRORS = {
    "reconstruction": ("states", GREY, "^"),
    "feature_gradient": ("gradient of the features", BLUE, "o"),
    "weight_gradient": ("gradient of the weights", ORANGE, "s"),
}
_LOG_FROM_RATIO = 10
_ZERO_DECADES = 2
_LETTERS = 110
"""Of a line below the panels."""


def draw_growth(blocks: Sequence[BlockDiagnosis]) -> Figure:
    """M against the depth, forwards and, for waves, backwards (eq. 6)."""
    figure, panels = _panels(blocks)
    for axes, found in zip(panels, blocks, strict=True):
        for growth in found.stability.growth:
            _draw_constants(axes, growth)
            if growth.perturbation == "noise":
                _draw_constants(axes, growth, relative=True)
        _scale_growth(axes)
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
        axes.set_xlabel("steps")
        axes.set_ylabel("growth of a perturbation")
    _share_legend(figure, panels, ncols=3)
    return figure


def _draw_constants(axes: Axes, growth: Growth, *, relative: bool = False) -> None:
    colour, marker = (LIGHT_BLUE, "D") if relative else _PERTURBATIONS[growth.perturbation]
    values = growth.relative_constants if relative else growth.constants
    direction = "backwards" if growth.backward else "forwards"
    axes.plot(
        growth.depths,
        [value if isfinite(value) else nan for value in values],
        marker=marker,
        markerfacecolor="white" if growth.backward else colour,
        linestyle="--" if growth.backward else "-",
        color=colour,
        label=f"{growth.perturbation}, {direction}{', relative' if relative else ''}",
    )


def _scale_growth(axes: Axes) -> None:
    low, high = axes.dataLim.intervaly
    axes.axhline(1, color="black", linewidth=0.6, zorder=1)
    if low > 0 and high > _LOG_FROM_RATIO * low:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.1 * max(high, 1.0))


def draw_energy(blocks: Sequence[BlockDiagnosis]) -> Figure:
    """Each energy as a share of its start, the mean over the images (eq. 12)."""
    figure, panels = _panels(blocks)
    for axes, found in zip(panels, blocks, strict=True):
        times = found.block.step_size * np.arange(found.block.num_steps + 1)
        for name, (label, colour, marker, line, width) in _ENERGIES.items():
            curve = getattr(found.energy, name)
            if curve is None:
                continue
            mean = curve.mean(1).cpu().numpy()
            if not np.isfinite(mean).all() or mean[0] == 0:
                continue
            axes.plot(
                times,
                mean / mean[0],
                line,
                linewidth=width,
                marker=marker,
                markerfacecolor=colour if line == "-" else "white",
                color=colour,
                label=label.format(symbol=features_symbol(found.block)),
            )
        axes.axhline(1, color="black", linewidth=0.6, zorder=1)
        low, high = axes.dataLim.intervaly
        axes.set_ylim(min(0.0, 1.1 * low), 1.1 * max(high, 1.0))
        axes.set_xlabel("time")
        axes.set_ylabel("share of the start")
        if found.energy.raw is None:
            axes.set_title("no conserved energy is known", loc="right", fontsize=SMALL, color=GREY)
    _share_legend(figure, panels, ncols=3)
    return figure


def draw_reversibility(blocks: Sequence[BlockDiagnosis]) -> Figure:
    """Errors of running each block backwards, in each precision."""
    figure, panels = _panels(blocks)
    errors = [
        getattr(entry, name)
        for found in blocks
        for entry in found.reversibility
        for name in _ERRORS
    ]
    positive = [error for error in errors if error > 0 and isfinite(error)]
    floor = min(positive, default=1.0) / 10**_ZERO_DECADES
    for axes, found in zip(panels, blocks, strict=True):
        names = [str(entry.dtype).removeprefix("torch.") for entry in found.reversibility]
        for offset, (name, (label, colour, marker)) in zip(
            (-0.15, 0, 0.15), _ERRORS.items(), strict=True
        ):
            values = [getattr(entry, name) for entry in found.reversibility]
            axes.plot(
                np.arange(len(names)) + offset,
                [max(value, floor) if isfinite(value) else nan for value in values],
                linestyle="none",
                marker=marker,
                markersize=5,
                color=colour,
                label=label,
            )
        _scale_errors(axes, floor, max(positive, default=1.0), has_zero=0.0 in errors)
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.5, len(names) - 0.5)
        axes.set_ylabel("relative error")
    _share_legend(figure, panels, ncols=3, note=fill(reversal_note(blocks), _LETTERS))
    return figure


def _scale_errors(axes: Axes, floor: float, largest: float, *, has_zero: bool) -> None:
    """Decades, every third of them named, with a place of its own for exact zeros."""
    axes.set_yscale("log")
    low, high = int(np.floor(np.log10(floor))), int(np.ceil(np.log10(largest)))
    first = low + _ZERO_DECADES if has_zero else low
    every = max(1, ceil((high - first) / 6))
    decades = list(range(high, first - 1, -every))[::-1]
    ticks = [10.0**decade for decade in decades]
    labels = [f"1e{decade}" for decade in decades]
    if has_zero:
        ticks, labels = [floor, *ticks], ["0", *labels]
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_formatter(FixedFormatter(labels))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(floor / 3, 10.0**high * 3)
    axes.grid(axis="y", color=LIGHT_GREY, linewidth=0.4)
    axes.set_axisbelow(True)


def _panels(blocks: Sequence[BlockDiagnosis]) -> tuple[Figure, list[Axes]]:
    """A panel for each block, two in a row."""
    rows = ceil(len(blocks) / 2)
    figure = Figure(figsize=(WIDTH, 0.6 + 2.4 * rows), layout="constrained")
    grid = figure.subplots(rows, 2, squeeze=False)
    panels = list(grid.flat)
    for axes in panels[len(blocks) :]:
        axes.remove()
    for index, axes in enumerate(panels[: len(blocks)]):
        axes.set_title(f"block {index}", loc="left", fontweight="bold")
    return figure, panels[: len(blocks)]


def _share_legend(figure: Figure, panels: Sequence[Axes], *, ncols: int, note: str = "") -> None:
    """One legend for all panels, each curve once, below a note."""
    handles: dict[str, Artist] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if not handles:  # no curve has a finite number
        return
    figure.legend(
        handles=list(handles.values()),
        labels=list(handles),
        loc="outside lower center",
        ncols=ncols,
        title=note or None,
        title_fontsize=SMALL,
    )
