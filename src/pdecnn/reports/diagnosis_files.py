"""What `pdecnn diagnose` and `pdecnn attack` leave behind: JSON, CSV, LaTeX and figures."""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from math import ceil, isfinite, nan
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import torch
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FixedFormatter,
    FixedLocator,
    NullLocator,
    PercentFormatter,
)
from numpy.typing import NDArray

from pdecnn.diagnostics.coefficients import KINDS, term_kind
from pdecnn.diagnostics.diagnosis import LATEX_THRESHOLD, BlockDiagnosis
from pdecnn.diagnostics.json_values import derivative_name, kind_name
from pdecnn.errors import ConfigError, system_errors_as
from pdecnn.files import write_all
from pdecnn.pde.stencil import pde_terms, stencil_from_pde_coefficients
from pdecnn.reports.attack import attack_chart
from pdecnn.reports.charts import ATTACKS, channels_words
from pdecnn.reports.diagnosis import (
    bounds_chart,
    energy_chart,
    growth_chart,
    reversal_note,
    spectrum_chart,
)
from pdecnn.reports.run_figures import show_image
from pdecnn.reports.style import (
    BLUE,
    GREY,
    LIGHT_BLUE,
    LIGHT_GREY,
    ORANGE,
    SMALL,
    WIDTH,
    draw_charts,
    journal_style,
    plot_chart,
    render,
    short_name,
)
from pdecnn.runs.diagnosis import AttackReport, Diagnosis
from pdecnn.runs.field_attack import FieldAttackReport

_SPECTRA = ("block", "step", "of", "real", "imaginary")
_COEFFICIENTS = (
    "block", "step", "operator", "name", "output", "input", "derivative", "kind", "coefficient",
)  # fmt: skip
_PANEL_LETTERS, _LETTERS = 44, 110
"""Of a line in a panel, and below the panels."""
_ZERO_DECADES = 2
_ERRORS = {
    "reconstruction": ("states", GREY, "^"),
    "feature_gradient": ("gradient of the features", BLUE, "o"),
    "weight_gradient": ("gradient of the weights", ORANGE, "s"),
}


def write_diagnosis(found: Diagnosis, folder: Path) -> list[Path]:
    """diagnosis.json, the spectra and coefficients as CSV, the PDE as LaTeX, and the figures."""
    contents = {
        "diagnosis.json": _json(found.to_dict()),
        "spectra.csv": _csv(_SPECTRA, _spectra(found.blocks)),
        "coefficients.csv": _csv(_COEFFICIENTS, _coefficients(found.blocks)),
        "pde.tex": _latex(found).encode(),
    }
    figures = {
        "stability": draw_stability,
        "growth": draw_growth,
        "energy": draw_energy,
        "learned_pde": draw_pde,
    }
    if all(block.reversibility for block in found.blocks):
        figures["reversibility"] = draw_reversibility
    with _writable(folder), journal_style():
        for name, draw in figures.items():
            figure = draw(found.blocks)
            figure.suptitle(f"{found.recipe}, {found.weights} weights")
            contents |= render(name, figure)
        return write_all(folder, contents)


def write_attack(found: AttackReport | FieldAttackReport, folder: Path) -> list[Path]:
    """attack_linf.json or attack_l2.json, the curve of the score, and images where classified."""
    values = found.to_dict()
    name = f"attack_{values['results'][0]['norm']}"
    contents = {f"{name}.json": _json(values)}
    with _writable(folder), journal_style():
        if isinstance(found, FieldAttackReport):
            return write_all(folder, contents | render(name, draw_charts([attack_chart(values)])))
        contents |= render(name, draw_robustness(found))
        if len(found.examples[0].labels):  # none where no clean image is right
            contents |= render(f"{name}_images", draw_attacked(found))
        return write_all(folder, contents)


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    """Make the folder, and say in one line where it cannot be written."""
    with system_errors_as(ConfigError, f"{folder}: cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
        yield


def _spectra(blocks: Sequence[BlockDiagnosis]) -> Iterable[tuple[Any, ...]]:
    """Every eigenvalue that was found."""
    for index, block in enumerate(blocks):
        for place, step in enumerate(block.stability.steps):
            named = {f"layer {k}": found for k, found in enumerate(step.layer_spectra)}
            named["system"] = step.system_spectrum
            for name, spectrum in named.items():
                for value in () if spectrum is None else spectrum.eigenvalues:
                    yield index, place, name, repr(value.real), repr(value.imag)


def _coefficients(blocks: Sequence[BlockDiagnosis]) -> Iterable[tuple[Any, ...]]:
    """Every coefficient of every derivative, then the scale and the bias, as a source."""
    for index, block in enumerate(blocks):
        for step, operators in enumerate(block.coefficients.steps):
            for place, operator in enumerate(operators):
                key = (index, step, place, operator.name)
                values = operator.derivatives.tolist()
                for output, row in enumerate(values):
                    for source, entries in enumerate(row):
                        for term, value in zip(operator.terms, entries, strict=True):
                            name = derivative_name(term)
                            yield *key, output, source, name, kind_name(term), repr(value)
                for kind in ("scale", "source"):
                    weights = getattr(operator, kind)
                    for output, value in enumerate([] if weights is None else weights.tolist()):
                        yield *key, output, "", "", kind, repr(value)


def _latex(found: Diagnosis) -> str:
    domain = {1: "interval", 2: "square", 3: "cube"}[len(found.blocks[0].size)]
    lines = [
        f"% The PDEs learned by {found.recipe} on the unit {domain}: for \\input in a document",
        "% with amsmath. Terms whose part of the stencil is below "
        f"{LATEX_THRESHOLD:g} times the largest of",
        "% their operator are left out; all of them are in coefficients.csv.",
    ]
    for index, block in enumerate(found.blocks):
        for step, equation in enumerate(block.latex):
            lines += [f"% Block {index}, step {step}", rf"\[{equation}\]"]
    return "\n".join(lines) + "\n"


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    stream = StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return stream.getvalue().encode()


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


def draw_stability(blocks: Sequence[BlockDiagnosis]) -> Figure:
    """A row for each block: eigenvalues of its system, and its step beside the bounds."""
    figure = Figure(figsize=(WIDTH, 0.5 + 2.3 * len(blocks)), layout="constrained")
    rows = figure.subplots(len(blocks), 2, squeeze=False, width_ratios=(1, 1))
    for index, (found, (plane, bounds)) in enumerate(zip(blocks, rows, strict=True)):
        steps, verdict = found.stability.steps, found.stability.verdict
        plane.set_title(f"block {index}: {verdict.name}", loc="left", fontweight="bold")
        if not steps:
            for axes in (plane, bounds):
                _say_in(axes, verdict.reason)
            continue
        eigenvalues = spectrum_chart(index, found)
        if eigenvalues.drawn:
            plot_chart(plane, eigenvalues)
            plane.legend(loc="best", handletextpad=0.1, borderaxespad=0.1)
        else:
            reason = steps[0].why_missing("spectrum of the system")
            _say_in(plane, f"the eigenvalues are missing: {reason}")
        plot_chart(bounds, bounds_chart(index, found))
        bounds.set_ylim(0, 1.6 / 1.1 * bounds.get_ylim()[1])  # room for the legend
        bounds.legend(loc="upper right", borderaxespad=0.1)
        if all(step.local_bound is None for step in steps):
            text = fill(f"no local bound: {steps[0].why_missing('local bound')}", _PANEL_LETTERS)
            bounds.set_title(text, loc="left", color=GREY, fontsize=SMALL)
    return figure


def draw_growth(blocks: Sequence[BlockDiagnosis]) -> Figure:
    """M against the depth, forwards and, for waves, backwards (eq. 6)."""
    figure, panels = _panels(blocks)
    for index, (axes, found) in enumerate(zip(panels, blocks, strict=True)):
        plot_chart(axes, growth_chart(index, found))
    _share_legend(figure, panels, ncols=3)
    return figure


def draw_energy(blocks: Sequence[BlockDiagnosis]) -> Figure:
    """Each energy as a share of its start, the mean over the images (eq. 12)."""
    figure, panels = _panels(blocks)
    for index, (axes, found) in enumerate(zip(panels, blocks, strict=True)):
        plot_chart(axes, energy_chart(index, found))
        if found.energy.raw is None:
            axes.set_title("no conserved energy is known", loc="right", fontsize=SMALL, color=GREY)
    _share_legend(figure, panels, ncols=3)
    return figure


def _say_in(axes: Axes, text: str) -> None:
    axes.text(
        0.5,
        0.5,
        fill(text, _PANEL_LETTERS),
        ha="center",
        va="center",
        transform=axes.transAxes,
        color=GREY,
    )
    axes.set_xticks([])
    axes.set_yticks([])


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


_COLOURS = dict(zip(KINDS, ("#004F8C", "#5BA3D0", "#E8850C", "#F7C98B", "#8C8C8C"), strict=True))
_MARKERS = "os^Dv<>ph*"
_MOST_BARS = 24
_MOST_STENCILS = 9
"""In a row; 3D has 27."""


def draw_pde(blocks: Sequence[BlockDiagnosis]) -> Figure:
    """Above what each coefficient multiplies, below how large it is and each kind's share."""
    terms = pde_terms(len(blocks[0].size))
    rows = -(-len(terms) // _MOST_STENCILS)
    # Flat stencils, a line of pixels or three slices side by side, need less height than squares.
    height = 1.1 if rows == 1 else 0.6 * rows
    figure = Figure(figsize=(WIDTH, 3.5 + height), layout="constrained")
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=(height, 3.5))[:, 0]
    panels = above.subplots(rows, len(terms) // rows, squeeze=False).flatten()
    _draw_basis(panels, terms)
    spectrum, shares = below.subplots(1, 2)
    _draw_spectrum(spectrum, blocks, terms)
    _draw_shares(shares, blocks)
    handles, labels = shares.get_legend_handles_labels()
    below.legend(handles, labels, loc="outside lower right", ncols=3)
    return figure


def _draw_basis(panels: NDArray[np.object_], terms: Sequence[tuple[int, ...]]) -> None:
    """The stencil of each derivative at mesh size 1, from blue (negative) to orange (positive)."""
    unit = torch.eye(len(terms), dtype=torch.float64)
    dimension = len(terms[0])
    stencils = stencil_from_pde_coefficients(unit, 1.0, dimension=dimension)
    for axes, term, stencil in zip(panels, terms, stencils, strict=True):
        # b3 multiplies minus d_xx.
        picture = _flat((-1) ** term.count(2) * stencil)
        largest = float(np.nanmax(np.abs(picture)))
        axes.imshow(picture, cmap=_diverging(), vmin=-largest, vmax=largest, interpolation="none")
        axes.set_title(_derivative_text(term), fontsize=SMALL)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(True)
        axes.spines[:].set_color(_COLOURS[term_kind(term)])
        axes.spines[:].set_linewidth(1.5)


def _flat(stencil: torch.Tensor) -> NDArray[np.float64]:
    """A stencil as a picture: x to the right, y downwards, slices in z side by side."""
    values = stencil.numpy()
    if values.ndim == 1:
        return np.asarray(values[None])
    if values.ndim == 2:
        return np.asarray(values)
    return np.concatenate(list(values), axis=1)


def _derivative_text(term: tuple[int, ...]) -> str:
    name = derivative_name(term)
    return "1" if name == "1" else f"∂{name}"


def _draw_spectrum(
    axes: Axes, blocks: Sequence[BlockDiagnosis], terms: Sequence[tuple[int, ...]]
) -> None:
    """The root mean square part of each term in the stencils of a block."""
    blues = np.linspace(0.85, 0.35, len(blocks))
    for index, found in enumerate(blocks):
        operators = [operator for step in found.coefficients.steps for operator in step]
        squares = torch.stack([op.contributions.square().mean((0, 1)) for op in operators])
        sizes = squares.mean(0).sqrt().cpu().nan_to_num(nan=0.0, posinf=0.0).numpy()
        axes.plot(
            range(len(terms)),
            sizes,
            marker=_MARKERS[index % len(_MARKERS)],
            color=_shade(blues[index]),
            label=f"block {index}",
        )
    axes.set_xticks(
        range(len(terms)),
        [_derivative_text(term) for term in terms],
        rotation={3: 0, 9: 60}.get(len(terms), 90),
        fontsize=None if len(terms) <= _MOST_STENCILS else SMALL - 1,
    )
    # Room for the legend, one line a block.
    axes.set_ylim(0, (1.1 + 0.08 * len(blocks)) * axes.dataLim.intervaly[1] or 1.0)
    axes.set_ylabel("rms part of the stencils")
    axes.grid(axis="y", color=LIGHT_GREY, linewidth=0.4)
    axes.legend(loc="upper right")


def _draw_shares(axes: Axes, blocks: Sequence[BlockDiagnosis]) -> None:
    """A bar for each step of each block, mean over its operators, and one for random weights.

    Steps are thinned if they are many.
    """
    total = sum(len(found.coefficients.steps) for found in blocks)
    every = -(-total // _MOST_BARS)
    position, ticks, labels = 0.0, [], []
    for index, found in enumerate(blocks):
        chosen = range(0, len(found.coefficients.steps), every)
        first = position
        for step in chosen:
            operators = found.coefficients.steps[step]
            shares = {kind: sum(op.shares[kind] for op in operators) for kind in KINDS}
            _draw_bar(axes, position, {k: v / len(operators) for k, v in shares.items()})
            position += 1
        ticks.append((first + position - 1) / 2)
        number = len(found.coefficients.steps)
        labels.append(f"block {index}\n{number} step{'' if number == 1 else 's'}")
        position += 0.6
    position += 0.4
    _draw_bar(axes, position, blocks[0].coefficients.random_shares)
    axes.set_xticks([*ticks, position], [*labels, "random\nweights"])
    axes.tick_params(axis="x", length=0)
    axes.set_ylim(0, 1)
    axes.set_ylabel("share of the stencils")


def _draw_bar(axes: Axes, position: float, shares: dict[str, float]) -> None:
    bottom = 0.0
    for kind, share in shares.items():
        label = kind if position == 0 else None
        axes.bar(position, share, 0.85, bottom, color=_COLOURS[kind], label=label)
        bottom += share


def _diverging() -> LinearSegmentedColormap:
    return LinearSegmentedColormap.from_list("pdecnn", ["#004F8C", "white", "#E8850C"])


def _shade(strength: float) -> tuple[float, float, float]:
    base = np.array([0, 0x4F, 0x8C]) / 255
    red, green, blue = 1 - strength * (1 - base)
    return float(red), float(green), float(blue)


_LOOKS = {
    "fgsm": (LIGHT_BLUE, "o"),
    "pgd": (BLUE, "s"),
    "apgd_ce": (GREY, "^"),
    "apgd_dlr": (LIGHT_GREY, "D"),
    "worst": (ORANGE, "x"),
}
_AXES = {
    "noise": "noise (deviation)",
    "blur": "blur (grid points)",
    "contrast": "contrast lost",
}


def draw_robustness(found: AttackReport) -> Figure:
    """Accuracy against epsilon, and against noise, blur and the loss of contrast."""
    figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
    panels = figure.subplots(1, 4, sharey=True, width_ratios=(2, 1, 1, 1))
    attacked = panels[0]
    for attack in dict.fromkeys(result.attack for result in found.results):
        colour, marker = _LOOKS[attack]
        chosen = [result for result in found.results if result.attack == attack]
        attacked.plot(
            [0, *(result.epsilon for result in chosen)],
            [found.clean_accuracy, *(result.accuracy for result in chosen)],
            marker=marker,
            color=colour,
            label=ATTACKS[attack],
        )
    attacked.set_xlabel(f"epsilon ({found.results[0].norm})")
    attacked.set_ylabel("accuracy")
    attacked.set_title("under attack", loc="left")
    attacked.legend(loc="best")
    for axes, (name, label) in zip(panels[1:], _AXES.items(), strict=True):
        _draw_corruption(axes, found, name, label)
    for axes in panels:
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.grid(axis="y", color=LIGHT_GREY, linewidth=0.4)
        axes.set_axisbelow(True)
    figure.suptitle(f"{found.recipe}, {found.num_images:,} test {found.subject}s")
    return figure


def draw_attacked(found: AttackReport) -> Figure:
    """Images as they are, and below what the attacks made of them with each epsilon."""
    examples = found.examples
    clean, labels = examples[0].clean, examples[0].labels
    rows = [("clean", clean, labels)]
    rows += [(f"{pair.epsilon:g}", pair.attacked, pair.predicted) for pair in examples]
    figure = Figure(figsize=(WIDTH, 0.6 + 1.05 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), len(labels), squeeze=False)
    for panels, (name, images, classes) in zip(grid, rows, strict=True):
        panels[0].set_ylabel(name)
        for axes, image, label, truth in zip(
            panels, images, classes.tolist(), labels.tolist(), strict=True
        ):
            is_image = found.subject == "image"
            shown = (255 * image).round().byte() if is_image else image
            show_image(axes, shown.numpy())
            wrong = label != truth
            text = short_name(found.class_names[label], 10) + (" ✗" if wrong else "")
            axes.set_xlabel(text, color=ORANGE if wrong else "black", fontsize=SMALL, labelpad=2)
    seen = channels_words(clean.shape[1:])
    figure.suptitle(
        f"{found.recipe}, epsilon ({examples[0].norm}): below each {found.subject} the class that "
        f"is found{seen and f'; {seen}'}"
    )
    return figure


def _draw_corruption(axes: Axes, found: AttackReport, name: str, label: str) -> None:
    chosen = [result for result in found.corruptions if result.corruption == name]
    amounts = [1 - r.amount if name == "contrast" else r.amount for r in chosen]
    axes.plot(
        [0, *amounts],
        [found.clean_accuracy, *(result.accuracy for result in chosen)],
        "-^",
        color=GREY,
    )
    axes.set_xlabel(label)
    axes.set_title(name, loc="left")
