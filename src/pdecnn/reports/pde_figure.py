"""The learned PDE as a picture: basis stencils, coefficient spectrum, shares (Sec. 2.2)."""

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pdecnn.diagnostics.coefficients import KINDS, term_kind
from pdecnn.diagnostics.diagnosis import BlockDiagnosis
from pdecnn.diagnostics.json_values import derivative_name
from pdecnn.pde.stencil import pde_terms, stencil_from_pde_coefficients
from pdecnn.reports.style import LIGHT_GREY, SMALL, WIDTH

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
