"""The figures of a diagnosis: stability, growth, energy and reversibility of every block."""

from collections.abc import Sequence
from math import ceil, isfinite, nan

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator

from pdecnn.diagnostics.diagnosis import BlockDiagnosis
from pdecnn.diagnostics.growth import Growth
from pdecnn.diagnostics.json_values import finite_number
from pdecnn.reports.style import BLUE, GREY, LIGHT_GREY, ORANGE, SMALL, WIDTH

_PERTURBATIONS = {"worst": (ORANGE, "s"), "noise": (BLUE, "o"), "random": (GREY, "^")}
_ENERGIES = {
    # Equation 12 first and broad: for ReLU it is the energy itself, which lies on top of it.
    "printed_raw": ("eq. 12, stored states", LIGHT_GREY, "^", "-", 3.5),
    "printed_centred": ("eq. 12, centred states", LIGHT_GREY, "^", "--", 3.5),
    "norms": ("|Y|", BLUE, "o", "-", 1.2),
    "raw": ("energy, stored states", ORANGE, "s", "-", 1.2),
    "centred": ("energy, centred states", ORANGE, "s", "--", 1.2),
}
_ERRORS = {
    "reconstruction": ("states", GREY, "^"),
    "feature_gradient": ("gradient of the features", BLUE, "o"),
    "weight_gradient": ("gradient of the weights", ORANGE, "s"),
}
_SHOWN_STEPS = ((BLUE, "o"), (ORANGE, "s"), (GREY, "^"))
_LOG_FROM_RATIO = 10
_ZERO_DECADES = 2


def draw_stability(blocks: Sequence[BlockDiagnosis]) -> Figure:
    """A row for each block: eigenvalues of its system, and its step beside the bounds."""
    figure = Figure(figsize=(WIDTH, 0.5 + 2.3 * len(blocks)), layout="constrained")
    rows = figure.subplots(len(blocks), 2, squeeze=False, width_ratios=(1, 1))
    for index, (found, (plane, bounds)) in enumerate(zip(blocks, rows, strict=True)):
        verdict = found.stability.verdict.name
        plane.set_title(f"block {index}: {verdict}", loc="left", fontweight="bold")
        if not found.stability.steps:
            for axes in (plane, bounds):
                _say_in(axes, "the features overflowed")
            continue
        _draw_eigenvalues(plane, found)
        _draw_bounds(bounds, found)
    return figure


def _draw_eigenvalues(axes: Axes, found: BlockDiagnosis) -> None:
    """Of the first, a middle and the last step."""
    steps = found.stability.steps
    shown = sorted({0, len(steps) // 2, len(steps) - 1})
    for step, (colour, marker) in zip(shown, _SHOWN_STEPS, strict=False):
        spectrum = steps[step].system_spectrum
        if spectrum is None:
            _say_in(axes, "the differential equation is not known")
            return
        values = np.array(spectrum.eigenvalues)
        label = f"step {step}" + ("" if spectrum.complete else " (outermost)")
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
        known = [value for value in values if value is not None]
        label = name.replace("_", " ")
        if not known:
            label += ": none"
        elif max(known) == 0:
            label += ": 0 (something grows)"
        axes.plot(
            numbers,
            [nan if value is None else value for value in values],
            marker=marker,
            markersize=5,
            linestyle="none",
            color=colour,
            clip_on=False,
            zorder=3,
            label=label,
        )
    axes.set_xlim(-0.5, len(steps) - 0.5)
    top = max(axes.dataLim.intervaly[1], size)
    axes.set_ylim(0, 1.6 * top)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    axes.set_xlabel("step")
    axes.set_ylabel("step size")
    axes.legend(loc="upper right", borderaxespad=0.1)


def draw_growth(blocks: Sequence[BlockDiagnosis]) -> Figure:
    """M against the depth, forwards and, for waves, backwards (eq. 6)."""
    figure, panels = _panels(blocks)
    for axes, found in zip(panels, blocks, strict=True):
        for growth in found.stability.growth:
            _draw_constants(axes, growth)
        _scale_growth(axes)
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
        axes.set_xlabel("steps")
        axes.set_ylabel("growth of a perturbation")
    _share_legend(figure, panels, ncols=3)
    return figure


def _draw_constants(axes: Axes, growth: Growth) -> None:
    colour, marker = _PERTURBATIONS[growth.perturbation]
    axes.plot(
        range(len(growth.constants)),
        [value if isfinite(value) else nan for value in growth.constants],
        marker=marker,
        markerfacecolor="white" if growth.backward else colour,
        linestyle="--" if growth.backward else "-",
        color=colour,
        label=f"{growth.perturbation}, {'backwards' if growth.backward else 'forwards'}",
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
                label=label,
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
    _share_legend(figure, panels, ncols=3)
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


def _share_legend(figure: Figure, panels: Sequence[Axes], *, ncols: int) -> None:
    """One legend for all panels, each curve once."""
    handles: dict[str, Artist] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(
        handles=list(handles.values()),
        labels=list(handles),
        loc="outside lower center",
        ncols=ncols,
    )


def _say_in(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color=GREY)
    axes.set_xticks([])
    axes.set_yticks([])
