"""Pictures of a run: convergence, confusion matrix, and predictions (Figure 1) or answers."""

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MultipleLocator, PercentFormatter
from numpy.typing import NDArray

from pdecnn.data.image_file import seen_pixels
from pdecnn.errors import CheckpointError, system_errors_as
from pdecnn.files import write_all
from pdecnn.learning.metrics import best_epoch
from pdecnn.learning.tasks import AbstractTask
from pdecnn.reports.charts import (
    channels_words,
    commonest_errors,
    convergence_charts,
    rates_in_words,
)
from pdecnn.reports.recorded import (
    fullest_slice,
    read_answers,
    read_metrics,
    read_predictions,
    read_summary,
)
from pdecnn.reports.style import (
    BLUE,
    GREY,
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
from pdecnn.runs.preparation import make_run_task
from pdecnn.runs.runs import Run

FIGURES = "figures"


def draw_run_figures(run: Run) -> list[Path]:
    """Draw what the run holds, each figure as PNG and SVG, and return the files.

    A run has a convergence figure after its first epoch; the confusion matrix and the predictions
    (Figure 1) once it is finished. The same run gives the same bytes.
    """
    task = make_run_task(run.config)
    with journal_style():
        contents = _class_figures(run) if task.has_classes else _field_figures(run, task)
    folder = run.folder / FIGURES
    with system_errors_as(
        CheckpointError,
        f"{folder}: the figures cannot be written",
        "make room or allow writing (the run itself is intact)",
    ):
        if contents:
            folder.mkdir(exist_ok=True)
        return write_all(folder, contents)


def _class_figures(run: Run) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    metrics, summary = read_metrics(run), read_summary(run)
    if metrics:
        config = run.config
        title, ties = f"{config.recipe}, seed {config.seed}", config.training.ties
        contents |= render("convergence", draw_convergence(metrics, title, ties=ties))
    if summary is not None:
        names = summary["class_names"]
        predictions = read_predictions(run, len(names))
        contents |= render("confusion", draw_confusion(summary["test"], names))
        contents |= render("predictions", draw_predictions(predictions, names))
    return contents


def _field_figures(run: Run, task: AbstractTask) -> dict[str, bytes]:
    """Of a network with an answer for every pixel."""
    contents: dict[str, bytes] = {}
    if run.metrics:
        figure = draw_charts(
            convergence_charts([("", run.metrics, None, 0)], several=False, task=task)
        )
        figure.suptitle(f"{run.config.recipe}, seed {run.config.seed}")
        contents |= render("convergence", figure)
    if run.summary is not None:
        contents |= render("predictions", draw_answers(read_answers(run, task.columns)))
    return contents


def draw_convergence(metrics: list[dict[str, Any]], title: str, *, ties: str) -> Figure:
    """Two panels: accuracy, and the loss of the data without the regularisation.

    The best epoch, whose weights are kept, is starred, with `ties` settled as in the run; grey
    lines are changes of learning rate or level.
    """
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    panels = figure.subplots(1, 2)
    best = best_epoch(metrics, ties=ties)
    charts = convergence_charts([(title, metrics, best, 0)], several=False)
    for axes, chart in zip(panels, charts, strict=True):
        plot_chart(axes, chart)
    handles, reached = list(panels[0].lines[:3]), metrics[best]["validation_accuracy"]
    if reached is None:  # no curve of it, no star
        handles = handles[:1]
    else:
        handles[2].set_label(f"best epoch: {metrics[best]['epoch']} (validation {reached:.2%})")
    label = f"learning rate: {rates_in_words(metrics)}"
    handles.append(
        Line2D(
            [], [], color=GREY, linewidth=0.8, linestyle=":" if charts[0].lines else "", label=label
        )
    )
    figure.suptitle(title)
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


_MOST_NUMBERED_CLASSES = 20
_MOST_NAMED_CLASSES = 40
_NUM_LISTED = 20
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
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MultipleLocator(10))
        _list_errors(beside, counts, class_names)
    else:
        names = [short_name(name) for name in class_names]
        # So that names and counts of 8 points fit.
        size = max(2.8, num_classes * max(0.3, 0.08 * len(str(counts.max())) + 0.08))
        size = 0.16 * num_classes if num_classes > _MOST_NUMBERED_CLASSES else size
        longest = max(map(len, names))
        figure.set_size_inches(size + 0.6 + 0.07 * longest, size + 1.3 + 0.08 * longest)
        axes = figure.subplots()
        name_classes(axes, names)
    image = draw_matrix(axes, counts)
    if num_classes <= _MOST_NUMBERED_CLASSES:
        _write_counts(axes, counts, image.to_rgba(_shares(counts)))
    add_colour_bar(figure, image, axes)
    correct, total = int(np.trace(counts)), int(counts.sum())
    axes.set_title(f"Test accuracy {test['accuracy']:.2%}: {correct:,} of {total:,}")
    axes.set(xlabel="predicted class", ylabel="true class")
    return figure


def _shares(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Of each row the share of its sum."""
    shares: NDArray[np.float64] = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return shares


def draw_matrix(axes: Axes, counts: NDArray[np.int64]) -> AxesImage:
    """The matrix in colours: row by row the shares of the true class."""
    axes.spines[:].set_visible(True)
    axes.tick_params(length=2)
    # Magma from light to dark: uniform to the eye, colour-blind or not; white for nothing.
    colours = ListedColormap(colormaps["magma"](np.linspace(0.95, 0.1, 256)), name="confusion")
    # The square root lifts a few errors out of the ground, which full rows on the diagonal
    # would drown otherwise; no error at all stays white.
    return axes.imshow(
        np.ma.masked_equal(_shares(counts), 0),
        cmap=colours.with_extremes(bad="white"),
        norm=PowerNorm(0.5, vmin=0, vmax=1),
        interpolation="none",
    )


def add_colour_bar(figure: Figure, image: AxesImage, axes: Axes | list[Axes]) -> None:
    """Say below what the colours mean."""
    bar = figure.colorbar(image, ax=axes, location="bottom", ticks=_TICKS, aspect=40, pad=0.03)
    bar.ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    bar.set_label("share of the true class (white: none)")


def name_classes(axes: Axes, names: list[str]) -> None:
    """Write the names along both sides, at an angle where they are long."""
    places = range(len(names))
    axes.set_yticks(places, names)
    axes.set_xticks(places, names)
    if len(names) > _MOST_NUMBERED_CLASSES:
        axes.tick_params(axis="x", rotation=90)
    elif max(map(len, names)) > 3:
        axes.set_xticks(places, names, rotation=45, ha="right", rotation_mode="anchor")


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
    errors = commonest_errors(counts, _NUM_LISTED)
    lines = []
    for number, *pair in errors:
        names = [f"{short_name(class_names[k], 13)} ({k})" for k in pair]
        count = str(number).rjust(len(str(errors[0][0])), "\N{FIGURE SPACE}")
        lines.append(f"{count}  {names[0]} → {names[1]}")
    axes.set_axis_off()
    axes.set_title("Commonest errors: true → predicted", loc="left")
    text = axes.text(0, 1, "\n".join(lines or ["none"]), va="top", fontsize=SMALL, linespacing=1.5)
    text.set_in_layout(False)


MOST_BARS = 10
NUM_LARGEST = 5
_SHORT_NAME = 4
_LEAST_WRITTEN = 0.005
_TRUE: dict[str, Any] = {"facecolor": BLUE, "linewidth": 0}
_WRONG: dict[str, Any] = {"facecolor": "white", "edgecolor": ORANGE, "hatch": "//////"}
_OTHER: dict[str, Any] = {"facecolor": LIGHT_GREY, "linewidth": 0}
_CHANNEL_STYLES = ("-", "--", ":", "-.")


def draw_predictions(predictions: dict[str, NDArray[Any]], class_names: list[str]) -> Figure:
    """Each image with its true class and the probabilities the network gives.

    Up to 10 classes have a bar each; of more, the largest probabilities and the true class do.
    """
    images, labels = predictions["images"], predictions["labels"]
    names = [short_name(name) for name in class_names]
    num_columns = 3 if max(map(len, names)) <= _SHORT_NAME else 2
    num_rows = ceil(len(images) / num_columns)
    num_bars = len(names) if len(names) <= MOST_BARS else NUM_LARGEST
    figure = Figure(figsize=(WIDTH, num_rows * (0.35 + max(0.15 * num_bars, 1)) + 0.5))
    figure.set_layout_engine("constrained", wspace=0.03)
    grid = figure.add_gridspec(num_rows, 2 * num_columns, width_ratios=(1, 1) * num_columns)
    for k, (image, label) in enumerate(zip(images, labels, strict=True)):
        row, column = divmod(k, num_columns)
        picture = figure.add_subplot(grid[row, 2 * column])
        bars = figure.add_subplot(grid[row, 2 * column + 1])
        probabilities = predictions["probabilities"][k]
        mark = "✓" if probabilities.argmax() == label else "✗"
        picture.set_title(f"true: {names[label]} {mark}", loc="left").set_in_layout(False)
        show_image(picture, image)
        picture.set_xlabel(channels_words(image.shape), fontsize=SMALL, loc="left")
        draw_bars(bars, probabilities, int(label), names)
    figure.legend(handles=legend_patches(), loc="outside lower center", ncols=3)
    return figure


def legend_patches() -> list[Patch]:
    """What the bars mean."""
    return [
        Patch(label="probability of the true class", **_TRUE),
        Patch(label="of a wrong prediction", **_WRONG),
        Patch(label="of another class", **_OTHER),
    ]


def show_image(axes: Axes, image: NDArray[Any]) -> None:
    """An image as pixels, a volume by its middle slice, a signal as a line for each channel."""
    if image.ndim == 2:
        for channel, style in zip(image, _CHANNEL_STYLES, strict=False):
            axes.plot(channel, style, color="black", linewidth=1)
        axes.set_box_aspect(1)
    else:
        if image.ndim == 4:
            image = image[:, image.shape[1] // 2]
        pixels = np.moveaxis(image, 0, -1) if len(image) == 3 else image.mean(0)
        if pixels.dtype != np.uint8 and len(image) == 3:  # numbers in units of their own
            pixels = (pixels - pixels.min()) / max(np.ptp(pixels), 1e-12)
        low, high = (0, 255) if image.dtype == np.uint8 else (None, None)
        axes.imshow(pixels, cmap="gray", vmin=low, vmax=high, interpolation="none")
    axes.set_anchor("NW")
    axes.spines[:].set_visible(True)
    axes.set(xticks=[], yticks=[])


def draw_bars(
    axes: Axes, probabilities: NDArray[Any], label: int, class_names: Sequence[str]
) -> None:
    """The probabilities as bars with their numbers; the true class in bold."""
    shown = _shown_classes(probabilities, label)
    axes.set_yticks(range(len(shown)), [class_names[k] for k in shown])
    axes.get_yticklabels()[shown.index(label)].set_fontweight("bold")
    # Room for the number at the end of a full bar.
    axes.set(ylim=(len(shown) - 0.5, -0.5), xlim=(0, 1.35), xticks=[])
    axes.tick_params(axis="y", length=0, pad=2)
    axes.spines["bottom"].set_visible(False)
    for place, k in enumerate(shown):
        value = float(probabilities[k])
        look = _TRUE if k == label else _WRONG if k == probabilities.argmax() else _OTHER
        axes.barh(place, value, height=0.75, **look)
        if k == label or value >= _LEAST_WRITTEN:
            number = f"{value:.0%}" if value >= _LEAST_WRITTEN else "<1%"
            axes.text(value + 0.03, place, number, va="center_baseline", fontsize=SMALL)


def _shown_classes(probabilities: NDArray[Any], label: int) -> list[int]:
    """All classes in their order, or the most probable first with the true one among them."""
    if len(probabilities) <= MOST_BARS:
        return list(range(len(probabilities)))
    order = [int(k) for k in np.argsort(-probabilities, kind="stable")]
    largest = order[:NUM_LARGEST]
    return largest if label in largest else [*order[: NUM_LARGEST - 1], label]


_MOST_SHOWN, _AXES_OF_PICTURES = 3, 3


def draw_answers(answers: dict[str, NDArray[Any]]) -> Figure:
    """Some images, in columns what goes in, what comes out, and what is wanted; of volumes a slice.

    Whole numbers are classes, each with a colour.
    """
    number = min(_MOST_SHOWN, min(map(len, answers.values())))
    figure = Figure(figsize=(WIDTH, number * WIDTH / 3 + 0.3), layout="constrained")
    panels = figure.subplots(number, len(answers), squeeze=False)
    for column, (name, pixels) in enumerate(answers.items()):
        for row, axes in enumerate(panels[:, column]):
            seen = pixels[row]
            if seen.ndim > _AXES_OF_PICTURES:
                seen = seen[..., fullest_slice(answers["labels"][row])]
            image = np.moveaxis(seen_pixels(seen), 0, -1)
            image = image[..., 0] if image.shape[-1] == 1 else image
            axes.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="none")
            axes.set_axis_off()
        panels[0, column].set_title(name)
    return figure
