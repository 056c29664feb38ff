"""Figures 2 and 4 of the paper: accuracy against the amount of data and the epoch."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pdecnn.reports.convergence import MOST_MARKERS, draw_rates, scale_accuracy, scale_epochs
from pdecnn.reports.paper_text import is_augmented, seeds
from pdecnn.reports.results import MISSING, Results, dynamics_of
from pdecnn.reports.style import BLUE, GREY, LIGHT_GREY, ORANGE, WIDTH
from pdecnn.reports.table import LABELS
from pdecnn.runs.paper import TITLES, Plan

# Colour, line and marker each tell the networks apart on their own.
LOOKS: dict[str, dict[str, Any]] = {
    "parabolic": {"color": BLUE, "linestyle": "-", "marker": "o"},
    "hamiltonian": {"color": ORANGE, "linestyle": "--", "marker": "s"},
    "second_order": {
        "color": "black",
        "linestyle": "-.",
        "marker": "^",
        "markerfacecolor": "white",
        "markersize": 4.5,
    },
}


def draw_amounts(results: Results, plan: Plan) -> Figure:
    """Figure 2: test accuracy by amount of training data; validation accuracy by epoch."""
    figure = Figure(figsize=(WIDTH, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    amounts = {one: several for one, several in results.items() if one.percentage is not None}
    _draw_percentages(left, amounts, plan)
    whole = {one: several for one, several in results.items() if one.percentage is None}
    _draw_epochs(right, whole)
    for axes, shown in ((left, amounts), (right, whole)):
        augmentation = "With" if is_augmented(plan, shown) else "Without"
        axes.set_title(f"{augmentation} augmentation", loc="left")
    return _with_legend(figure, results, plan)


def _draw_percentages(axes: Axes, results: Results, plan: Plan) -> None:
    """The mean over the seeds as a line, the least and the most as bars."""
    if not any(results.values()):
        mark_missing(axes, "")
        return
    networks = dynamics_of(results)
    amounts = sorted({plan.percentage(one) for one in results})
    apart = 0.01 * (amounts[-1] - amounts[0])
    for place, dynamics in enumerate(networks):
        mine = [one for one in results if one.dynamics == dynamics]
        accuracies = [
            [result.summary["test"]["accuracy"] for result in results[one]]
            or [math.nan]  # a gap in the line
            for one in mine
        ]
        means = np.array([np.mean(values) for values in accuracies])
        low, high = (np.array([f(values) for values in accuracies]) for f in (min, max))
        axes.errorbar(
            # Moved apart a little, so that bars of spread do not hide each other.
            [plan.percentage(one) + apart * (place - (len(networks) - 1) / 2) for one in mine],
            means,
            yerr=[means - low, high - means],
            capsize=2,
            elinewidth=0.8,
            **LOOKS[dynamics],
        )
    axes.set_xticks(amounts, [f"{amount:.3g}%" for amount in amounts])
    axes.set_xlabel("part of the training images that is trained on")
    axes.grid(axis="y", color=LIGHT_GREY, linewidth=0.4)
    axes.set_axisbelow(True)
    scale_accuracy(axes)
    axes.set_ylabel("test accuracy")


def draw_validation(results: Results, plan: Plan) -> Figure:
    """Figure 4: validation accuracy by epoch, a panel a data set."""
    datasets = list(dict.fromkeys(one.dataset for one in results))
    figure = Figure(figsize=(WIDTH, 3.5), layout="constrained")
    panels = figure.subplots(1, len(datasets), squeeze=False)[0]
    for axes, dataset in zip(panels, datasets, strict=True):
        _draw_epochs(axes, {one: r for one, r in results.items() if one.dataset == dataset})
        name = f"digits for {TITLES[dataset]}" if plan.quick else TITLES[dataset]
        axes.set_title(f"{name} ({seeds(plan)})", loc="left")
    return _with_legend(figure, results, plan)


def _draw_epochs(axes: Axes, results: Results) -> None:
    """The mean over the seeds as a line, all of them within a faint band."""
    epochs: Sequence[int] = ()
    rates: list[float] = []
    for place, (one, several) in enumerate(results.items()):
        metrics = [result.metrics for result in several]
        length = min(map(len, metrics), default=0)
        if not length:
            continue
        values = np.array([[m["validation_accuracy"] for m in run[:length]] for run in metrics])
        if length > len(epochs):
            epochs = range(1, length + 1)
            rates = [entry["learning_rate"] for entry in metrics[0][:length]]
        where = range(1, length + 1)
        look = LOOKS[one.dynamics]
        every = math.ceil(length / MOST_MARKERS)
        # Each network has its markers at epochs of its own.
        begin = min(place * every // len(results), length - 1)
        axes.plot(where, values.mean(0), markevery=(begin, every), **look)
        axes.fill_between(
            where, values.min(0), values.max(0), color=look["color"], alpha=0.15, linewidth=0
        )
    if not epochs:
        mark_missing(axes, "")
        return
    scale_epochs(axes, epochs)
    scale_accuracy(axes)
    axes.set_ylabel("validation accuracy")
    draw_rates([axes], epochs, rates)


def _with_legend(figure: Figure, results: Results, plan: Plan) -> Figure:
    """One legend below; a network of which runs are missing says so."""
    axes = figure.axes[0]
    handles = []
    for dynamics in dynamics_of(results):
        mine = [one for one in results if one.dynamics == dynamics]
        finished = len({result.folder for one in mine for result in results[one]})
        wanted = plan.num_seeds * len({plan.trained[one] for one in mine})
        label = LABELS[dynamics]
        if finished < wanted:
            label += f" ({wanted - finished} of {wanted} {MISSING})"
        handles += axes.plot([], [], label=label, **LOOKS[dynamics])
    handles += axes.plot(
        [], [], color=GREY, linestyle=":", linewidth=0.8, label="change of learning rate"
    )
    room = 4 if all(len(several) == plan.num_seeds for several in results.values()) else 2
    figure.legend(handles=handles, loc="outside lower center", ncols=room)
    return figure


def mark_missing(axes: Axes, title: str) -> None:
    """Say in place of a panel that there is nothing to show in it."""
    axes.set_title(title)
    axes.text(0.5, 0.5, MISSING, transform=axes.transAxes, ha="center", va="center")
    axes.set_xticks([])
    axes.set_yticks([])
