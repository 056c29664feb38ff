"""Pictures of a run whose network has an answer for every pixel: its training, and some answers."""

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pdecnn.learning.tasks import AbstractTask
from pdecnn.reports.recorded import fullest_slice, read_answers
from pdecnn.reports.style import BLUE, ORANGE, WIDTH, render, scale_epochs
from pdecnn.runs.runs import Run

_MOST_SHOWN = 3
_AXES_OF_PICTURES = 3


def draw_field_figures(run: Run, task: AbstractTask) -> dict[str, bytes]:
    """What the run holds, by file name: curves after its first epoch, answers once it is done."""
    contents: dict[str, bytes] = {}
    metrics, title = run.metrics, f"{run.config.recipe}, seed {run.config.seed}"
    if metrics:
        contents |= render("convergence", draw_curves(metrics, title, task))
    if run.summary is not None:
        contents |= render("predictions", draw_answers(read_answers(run, task.columns)))
    return contents


def draw_curves(metrics: list[dict[str, Any]], title: str, task: AbstractTask) -> Figure:
    """The score and the loss, of training and validation, epoch by epoch."""
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    epochs = [entry["epoch"] for entry in metrics]
    panels = figure.subplots(1, 2)
    for axes, (training, validation, label) in zip(
        panels,
        [
            (task.score, f"validation_{task.score}", task.label),
            ("data_loss", "validation_loss", "loss (data term)"),
        ],
        strict=True,
    ):
        for key, colour, name in ((training, BLUE, "training"), (validation, ORANGE, "validation")):
            values = [np.nan if entry[key] is None else entry[key] for entry in metrics]
            axes.plot(epochs, values, color=colour, marker=".", label=name)
        scale_epochs(axes, epochs)
        axes.set_ylabel(label)
    figure.suptitle(title)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def draw_answers(answers: dict[str, NDArray[Any]]) -> Figure:
    """Some images, in columns what goes in, what comes out, and what is wanted; of volumes a slice.

    Whole numbers are classes, each with a colour.
    """
    number = min(_MOST_SHOWN, min(map(len, answers.values())))
    figure = Figure(figsize=(WIDTH, number * WIDTH / 3 + 0.3), layout="constrained")
    panels = figure.subplots(number, len(answers), squeeze=False)
    for column, (name, pixels) in enumerate(answers.items()):
        for row in range(number):
            seen = pixels[row]
            if seen.ndim > _AXES_OF_PICTURES:
                seen = seen[..., fullest_slice(answers["labels"][row])]
            _draw_pixels(panels[row, column], seen)
        panels[0, column].set_title(name)
    return figure


def _draw_pixels(axes: Axes, pixels: NDArray[Any]) -> None:
    how: dict[str, Any] = {"interpolation": "none"}
    if pixels.dtype.kind in "iu":
        colours = ListedColormap(("black", *colormaps["tab10"].colors))  # type: ignore[attr-defined]
        most = colours.N - 1
        shown = np.where(pixels[0] > most, (pixels[0] - 1) % most + 1, pixels[0])
        axes.imshow(shown, cmap=colours, vmin=-0.5, vmax=most + 0.5, **how)
    else:
        if len(pixels) not in (1, 3):  # bands that are no colours
            pixels = pixels.mean(0, keepdims=True)
        image = np.moveaxis(pixels, 0, -1).clip(0, 1)
        axes.imshow(
            image[..., 0] if len(pixels) == 1 else image, cmap="gray", vmin=0, vmax=1, **how
        )
    axes.set_axis_off()
