"""Accuracy and loss against the epoch, in training and in validation."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from pdecnn.learning.metrics import best_epoch
from pdecnn.reports.style import BLUE, GREY, LIGHT_GREY, ORANGE, WIDTH

MOST_MARKERS = 30
_MOST_RATE_LINES = 6
_LOG_FROM_RATIO = 10


def draw_convergence(metrics: Sequence[dict[str, Any]], title: str, *, ties: str) -> Figure:
    """Two panels: accuracy, and the loss of the data without the regularisation.

    The best epoch, whose weights are kept, is starred, with `ties` settled as in the run; grey
    lines are changes of learning rate.
    """
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    accuracy, loss = figure.subplots(1, 2)
    epochs = [entry["epoch"] for entry in metrics]
    accuracies = [entry["validation_accuracy"] for entry in metrics]
    best = best_epoch(metrics, ties=ties)
    panels = (
        (accuracy, "accuracy", "validation_accuracy"),
        (loss, "data_loss", "validation_loss"),
    )
    for axes, training_key, validation_key in panels:
        training = [_finite(entry[training_key]) for entry in metrics]
        validation = [_finite(entry[validation_key]) for entry in metrics]
        handles = _draw_curves(axes, epochs, training, validation, best)
    handles[2].set_label(f"best epoch: {epochs[best]} (validation {accuracies[best]:.2%})")
    scale_accuracy(accuracy)
    _scale_loss(loss)
    rates = [entry["learning_rate"] for entry in metrics]
    handles.append(draw_rates((accuracy, loss), epochs, rates))
    figure.suptitle(title)
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def _finite(value: float | None) -> float:
    """A gap in the curve where a number was not finite."""
    return math.nan if value is None else value


def _draw_curves(
    axes: Axes, epochs: list[int], training: list[float], validation: list[float], best: int
) -> list[Line2D]:
    # Markers tell the curves apart without colour; on a long curve every so many epochs.
    every = math.ceil(len(epochs) / MOST_MARKERS)
    curves = [
        *axes.plot(epochs, training, "-o", color=BLUE, markevery=every, label="training"),
        *axes.plot(
            epochs,
            validation,
            "-s",
            color=ORANGE,
            markerfacecolor="white",
            markevery=every,
            label="validation",
        ),
        *axes.plot(
            epochs[best],
            validation[best],
            linestyle="none",
            marker="*",
            markersize=10,
            color=ORANGE,
            markeredgecolor="black",
            zorder=4,
        ),
    ]
    scale_epochs(axes, epochs)
    return curves


def scale_epochs(axes: Axes, epochs: Sequence[int]) -> None:
    """A horizontal axis of whole epochs, and a faint grid."""
    margin = 0.5 + 0.02 * len(epochs)
    axes.set_xlim(epochs[0] - margin, epochs[-1] + margin)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axes.set_xlabel("epoch")
    axes.grid(axis="y", color=LIGHT_GREY, linewidth=0.4)
    axes.set_axisbelow(True)


def scale_accuracy(axes: Axes) -> None:
    """A vertical axis in percent around what is drawn."""
    axes.set_ylabel("accuracy")
    low, high = axes.dataLim.intervaly
    # A tenth at least, so that a small difference does not look like a wide gap; and nothing
    # beyond 0 and 100 % but for half a marker.
    middle, reach = (low + high) / 2, 0.6 * max(high - low, 0.1)
    margin = 0.05 * reach
    axes.set_ylim(max(middle - reach, -margin), min(middle + reach, 1 + margin))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))


def _scale_loss(axes: Axes) -> None:
    axes.set_ylabel("loss (data term)")
    low, high = axes.dataLim.intervaly
    if not 0 <= low <= high < math.inf:
        return
    if low == 0 or high < _LOG_FROM_RATIO * low:
        axes.set_ylim(0, 1.1 * high or 1.0)
        return
    axes.set_yscale("log")
    decades = math.log10(high / low)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 3 else (1,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def draw_rates(panels: Sequence[Axes], epochs: Sequence[int], rates: list[float]) -> Line2D:
    """Mark each change before the first epoch that ended with the new rate; say the rates."""
    changes = [k for k in range(1, len(rates)) if rates[k] != rates[k - 1]]
    if len(changes) > _MOST_RATE_LINES:
        label = f"learning rate: {rates[0]:.3g} to {rates[-1]:.3g}, changing steadily"
        return Line2D([], [], linestyle="none", label=label)
    for axes in panels:
        for k in changes:
            axes.axvline(epochs[k] - 0.5, color=GREY, linewidth=0.8, linestyle=":", zorder=1)
    label = "learning rate: " + " → ".join(f"{rates[k]:.3g}" for k in [0, *changes])
    return Line2D([], [], color=GREY, linewidth=0.8, linestyle=":" if changes else "", label=label)
