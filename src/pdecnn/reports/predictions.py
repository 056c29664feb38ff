"""Test images with the probabilities of the classes (Figure 1)."""

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from pdecnn.reports.style import BLUE, LIGHT_GREY, ORANGE, SMALL, WIDTH, short_name

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
    axes.set_xticks([])
    axes.set_yticks([])


def draw_bars(
    axes: Axes, probabilities: NDArray[Any], label: int, class_names: Sequence[str]
) -> None:
    """The probabilities as bars with their numbers; the true class in bold."""
    shown = _shown_classes(probabilities, label)
    axes.set_yticks(range(len(shown)), [class_names[k] for k in shown])
    axes.get_yticklabels()[shown.index(label)].set_fontweight("bold")
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlim(0, 1.35)  # room for the number at the end of a full bar
    axes.set_xticks([])
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
