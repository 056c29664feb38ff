"""The confusion matrix: which classes are taken for which."""

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MultipleLocator, PercentFormatter
from numpy.typing import NDArray

from pdecnn.reports.style import SMALL, WIDTH, short_name

_MOST_NUMBERED_CLASSES = 20
_MOST_NAMED_CLASSES = 40
_NUM_LISTED = 20
_DIGIT_WIDE_SPACE = "\N{FIGURE SPACE}"
_TICKS = (0, 0.01, 0.05, 0.1, 0.25, 0.5, 1)


def draw_confusion(test: dict[str, Any], class_names: list[str]) -> Figure:
    """Row: true class, column: predicted class; coloured by the share of the row.

    Up to 20 classes the counts are written; with more than 40, whose names would be too small to
    read, classes have numbers and the commonest errors are listed by name.
    """
    counts = np.array(test["confusion"], dtype=np.int64)
    num_classes = len(class_names)
    figure = Figure(layout="compressed")
    if num_classes > _MOST_NAMED_CLASSES:
        figure.set_size_inches(WIDTH, 4.7)
        axes, beside = figure.subplots(1, 2, width_ratios=(1.3, 1))
        _number_classes(axes)
        _list_errors(beside, counts, class_names)
    else:
        names = [short_name(name) for name in class_names]
        size, longest = _matrix_inches(counts), max(map(len, names))
        figure.set_size_inches(size + 0.6 + 0.07 * longest, size + 1.3 + 0.08 * longest)
        axes = figure.subplots()
        name_classes(axes, names)
    image = draw_matrix(axes, counts)
    if num_classes <= _MOST_NUMBERED_CLASSES:
        _write_counts(axes, counts, image.to_rgba(_shares(counts)))
    add_colour_bar(figure, image, axes)
    correct, total = int(np.trace(counts)), int(counts.sum())
    axes.set_title(f"Test accuracy {test['accuracy']:.2%}: {correct:,} of {total:,} images")
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    return figure


def _matrix_inches(counts: NDArray[np.int64]) -> float:
    """So that names and counts of 8 points fit."""
    if len(counts) > _MOST_NUMBERED_CLASSES:
        return 0.16 * len(counts)
    digits = len(str(counts.max()))
    return max(2.8, len(counts) * max(0.3, 0.08 * digits + 0.08))


def _shares(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Of each row the share of its sum."""
    shares: NDArray[np.float64] = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return shares


def draw_matrix(axes: Axes, counts: NDArray[np.int64]) -> AxesImage:
    """The matrix in colours: row by row the shares of the true class."""
    axes.spines[:].set_visible(True)
    axes.tick_params(length=2)
    # The square root lifts a few errors out of the ground, which full rows on the diagonal
    # would drown otherwise; no error at all stays white.
    return axes.imshow(
        np.ma.masked_equal(_shares(counts), 0),
        cmap=_colours(),
        norm=PowerNorm(0.5, vmin=0, vmax=1),
        interpolation="none",
    )


def add_colour_bar(figure: Figure, image: AxesImage, axes: Axes | list[Axes]) -> None:
    """Say below what the colours mean."""
    bar = figure.colorbar(image, ax=axes, location="bottom", ticks=_TICKS, aspect=40, pad=0.03)
    bar.ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    bar.set_label("share of the true class (white: none)")


def _colours() -> Colormap:
    """Magma from light to dark: uniform to the eye, colour-blind or not; white for nothing."""
    colours = colormaps["magma"](np.linspace(0.95, 0.1, 256))
    return ListedColormap(colours, name="confusion").with_extremes(bad="white")


def name_classes(axes: Axes, names: list[str]) -> None:
    """Write the names along both sides, at an angle where they are long."""
    places = range(len(names))
    axes.set_yticks(places, names)
    axes.set_xticks(places, names)
    if len(names) > _MOST_NUMBERED_CLASSES:
        axes.tick_params(axis="x", rotation=90)
    elif max(map(len, names)) > 3:
        axes.set_xticks(places, names, rotation=45, ha="right", rotation_mode="anchor")


def _number_classes(axes: Axes) -> None:
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MultipleLocator(10))


def _write_counts(axes: Axes, counts: NDArray[np.int64], colours: NDArray[np.float64]) -> None:
    lightness = colours[..., :3] @ (0.299, 0.587, 0.114)
    for row, column in np.argwhere(counts):
        axes.text(
            column,
            row,
            str(counts[row, column]),
            ha="center",
            va="center_baseline",
            fontsize=SMALL,
            color="white" if lightness[row, column] < 0.5 else "black",
        )


def _list_errors(axes: Axes, counts: NDArray[np.int64], class_names: list[str]) -> None:
    """The commonest errors as "12  maple_tree (47) → oak_tree (52)"."""
    errors = counts - np.diag(np.diag(counts))
    # A stable sort: equal counts stand in the order of the classes, on every machine.
    order = np.argsort(-errors, axis=None, kind="stable")[:_NUM_LISTED]
    width = len(str(errors.max()))
    lines = []
    for row, column in zip(*np.unravel_index(order, errors.shape), strict=True):
        if errors[row, column]:
            pair = [f"{short_name(class_names[k], 13)} ({k})" for k in (row, column)]
            number = str(errors[row, column]).rjust(width, _DIGIT_WIDE_SPACE)
            lines.append(f"{number}  {pair[0]} → {pair[1]}")
    axes.set_axis_off()
    axes.set_title("Commonest errors: true → predicted", loc="left")
    text = axes.text(0, 1, "\n".join(lines or ["none"]), va="top", fontsize=SMALL, linespacing=1.5)
    text.set_in_layout(False)
