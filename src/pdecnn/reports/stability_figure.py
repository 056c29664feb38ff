"""Spectra and step bounds of every block, as a picture (Sec. 3.1)."""

from collections.abc import Sequence
from math import nan
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pdecnn.diagnostics.diagnosis import BlockDiagnosis
from pdecnn.diagnostics.json_values import finite_number
from pdecnn.reports.diagnosis import bound_label
from pdecnn.reports.style import BLUE, GREY, LIGHT_GREY, ORANGE, SMALL, WIDTH

_SHOWN_STEPS = ((BLUE, "o"), (ORANGE, "s"), (GREY, "^"))
_LETTERS = 44
"""Of a line in a panel."""


def draw_stability(blocks: Sequence[BlockDiagnosis]) -> Figure:
    """A row for each block: eigenvalues of its system, and its step beside the bounds."""
    figure = Figure(figsize=(WIDTH, 0.5 + 2.3 * len(blocks)), layout="constrained")
    rows = figure.subplots(len(blocks), 2, squeeze=False, width_ratios=(1, 1))
    for index, (found, (plane, bounds)) in enumerate(zip(blocks, rows, strict=True)):
        verdict = found.stability.verdict.name
        plane.set_title(f"block {index}: {verdict}", loc="left", fontweight="bold")
        if not found.stability.steps:
            for axes in (plane, bounds):
                _say_in(axes, fill(found.stability.verdict.reason, _LETTERS))
            continue
        _draw_eigenvalues(plane, found)
        _draw_bounds(bounds, found)
    return figure


def _draw_eigenvalues(axes: Axes, found: BlockDiagnosis) -> None:
    """Of the first, a middle and the last step."""
    steps = found.stability.steps
    if all(step.system_spectrum is None for step in steps):
        reason = steps[0].why_missing("spectrum of the system")
        _say_in(axes, fill(f"the eigenvalues are missing: {reason}", _LETTERS))
        return
    shown = sorted({0, len(steps) // 2, len(steps) - 1})
    for step, (colour, marker) in zip(shown, _SHOWN_STEPS, strict=False):
        spectrum = steps[step].system_spectrum
        if spectrum is None:
            label, values = f"step {step}: missing", np.array([])
        else:
            label = f"step {step}" + ("" if spectrum.complete else " (outermost)")
            values = np.array(spectrum.eigenvalues)
        axes.plot(
            values.real,
            values.imag,
            linestyle="none",
            marker=marker,
            markersize=2.2,
            markerfacecolor="none",
            markeredgewidth=0.6,
            color=colour,
            label=label,
        )
    axes.axvline(0, color="black", linewidth=0.6, zorder=1)
    axes.axhline(0, color=LIGHT_GREY, linewidth=0.6, zorder=1)
    _widen(axes)
    axes.set_xlabel("real part (> 0: grows)")
    axes.set_ylabel("imaginary part")
    axes.legend(loc="best", handletextpad=0.1, borderaxespad=0.1)


def _widen(axes: Axes) -> None:
    """Eigenvalues on a line, waves' or those of heat, should not look like a cloud of rounding."""
    width, height = np.ptp(axes.dataLim.intervalx), np.ptp(axes.dataLim.intervaly)
    if width < 0.3 * height:
        axes.set_xlim(-0.2 * height - width, 0.2 * height + width)
    elif height < 0.3 * width:
        axes.set_ylim(-0.2 * width - height, 0.2 * width + height)


def _draw_bounds(axes: Axes, found: BlockDiagnosis) -> None:
    steps = found.stability.steps
    numbers = list(range(len(steps)))
    size = found.block.step_size
    axes.axhline(size, color="black", linewidth=1, label=f"actual step {size:g}")
    for name, colour, marker in (
        ("local_bound", BLUE, "o"),
        ("guaranteed_bound", ORANGE, "s"),
    ):
        values = [finite_number(getattr(step, name)) for step in steps]
        axes.plot(
            numbers,
            [nan if value is None else value for value in values],
            marker=marker,
            markersize=5,
            linestyle="none",
            color=colour,
            clip_on=False,
            zorder=3,
            label=bound_label(steps, name),
        )
    reason = steps[0].why_missing("local bound")
    if all(step.local_bound is None for step in steps):
        text = fill(f"no local bound: {reason}", _LETTERS)
        axes.set_title(text, loc="left", color=GREY, fontsize=SMALL)
    axes.set_xlim(-0.5, len(steps) - 0.5)
    top = max(axes.dataLim.intervaly[1], size)
    axes.set_ylim(0, 1.6 * top)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    axes.set_xlabel("step")
    axes.set_ylabel("step size")
    axes.legend(loc="upper right", borderaxespad=0.1)


def _say_in(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color=GREY)
    axes.set_xticks([])
    axes.set_yticks([])
