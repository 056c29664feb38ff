"""The figures of the paper from run directories."""

import math
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from pdecnn.reports.charts import changes
from pdecnn.reports.paper_results import (
    LABELS,
    MISSING,
    QUICK,
    Result,
    Results,
    changed,
    dynamics_of,
    is_augmented,
    results_of,
    seeds,
    title,
)
from pdecnn.reports.run_figures import (
    MOST_BARS,
    NUM_LARGEST,
    add_colour_bar,
    draw_bars,
    draw_matrix,
    legend_patches,
    name_classes,
    show_image,
)
from pdecnn.reports.style import (
    BLUE,
    GREY,
    MOST_MARKERS,
    ORANGE,
    WIDTH,
    faint_grid,
    say_in,
    scale_accuracy,
    scale_epochs,
    short_name,
)
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
        say_in(axes, MISSING)
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
    faint_grid(axes)
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
    longest: list[dict[str, Any]] = []
    for place, (one, several) in enumerate(results.items()):
        metrics = [result.metrics for result in several]
        length = min(map(len, metrics), default=0)
        if not length:
            continue
        values = np.array([[m["validation_accuracy"] for m in run[:length]] for run in metrics])
        if length > len(longest):
            longest = metrics[0][:length]
        where = range(1, length + 1)
        look = LOOKS[one.dynamics]
        every = math.ceil(length / MOST_MARKERS)
        # Each network has its markers at epochs of its own.
        begin = min(place * every // len(results), length - 1)
        axes.plot(where, values.mean(0), markevery=(begin, every), **look)
        axes.fill_between(
            where, values.min(0), values.max(0), color=look["color"], alpha=0.15, linewidth=0
        )
    if not longest:
        say_in(axes, MISSING)
        return
    scale_epochs(axes, range(1, len(longest) + 1))
    scale_accuracy(axes)
    axes.set_ylabel("validation accuracy")
    for change in changes(longest):
        axes.axvline(change, color=GREY, linewidth=0.8, linestyle=":", zorder=1)


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


NUM_IMAGES = 4
_LETTERS_A_LINE = 85
_RED = "#B00000"


def draw_target(target: str, plan: Plan, results: dict[str, Result]) -> Figure | None:
    """The figure of that name; None where no run for it is finished."""
    mine = results_of(target, plan, results)
    if target == "figure1":
        mine = {one: [r for r in several if r.predictions] for one, several in mine.items()}
    if not any(mine.values()):
        return None
    figure = _DRAW[target](mine, plan)
    notes = [QUICK] * plan.quick + textwrap.wrap(changed(plan), _LETTERS_A_LINE)
    lines = [*_headline(target, plan), *notes]
    if lines:
        figure.suptitle("\n".join(lines), color=_RED if notes else "black")
    return figure


def _headline(target: str, plan: Plan) -> list[str]:
    """The data set and the seeds, where the panels do not name them."""
    if target == "figure4":
        return []
    name = title(plan.experiments[target][0].dataset, plan)
    shown = {
        "figure1": "test images, seed 0",
        "figure2": seeds(plan),
        "figure3": f"test images, {seeds(plan)}",
    }
    return [f"{name[0].upper()}{name[1:]}: {shown[target]}"]


def _draw_predictions(results: Results, plan: Plan) -> Figure:
    """Figure 1: test images, and beside each the probabilities by each network."""
    shown = {one: several[0] for one, several in results.items() if several}
    predictions = {one: result.predictions for one, result in shown.items()}
    first = next(iter(predictions.values()))
    names = [short_name(name) for name in next(iter(shown.values())).summary["class_names"]]
    num_bars = len(names) if len(names) <= MOST_BARS else NUM_LARGEST
    num_images = min(NUM_IMAGES, len(first["images"]))
    height = num_images * (0.35 + max(0.15 * num_bars, 1)) + 0.8
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    panels = figure.subplots(num_images, 1 + len(results), squeeze=False)
    for row, label in enumerate(first["labels"][:num_images].tolist()):
        show_image(panels[row, 0], first["images"][row])
        panels[row, 0].set_title(f"true: {names[label]}", loc="left").set_in_layout(False)
        for axes, one in zip(panels[row, 1:], results, strict=True):
            if one not in predictions:
                axes.set_title(LABELS[one.dynamics])
                say_in(axes, MISSING)
                continue
            probabilities = predictions[one]["probabilities"][row]
            mark = "✓" if probabilities.argmax() == label else "✗"
            draw_bars(axes, probabilities, label, names)
            axes.set_title(f"{LABELS[one.dynamics]} {mark}", loc="left").set_in_layout(False)
    figure.legend(handles=legend_patches(), loc="outside lower center", ncols=3)
    return figure


def _draw_confusions(results: Results, plan: Plan) -> Figure:
    """Figure 3: a row of confusion matrices a network, a column an amount of data."""
    dynamics = dynamics_of(results)
    percentages = list(dict.fromkeys(one.percentage for one in results))
    first = next(several[0] for several in results.values() if several)
    names = [short_name(name) for name in first.summary["class_names"]]
    size = (WIDTH, 1.55 * len(dynamics) + 1.7)
    figure = Figure(figsize=size, layout="compressed")
    panels = figure.subplots(
        len(dynamics), len(percentages), sharex=True, sharey=True, squeeze=False
    )
    image: AxesImage | None = None
    for one, several in results.items():
        axes = panels[dynamics.index(one.dynamics), percentages.index(one.percentage)]
        title = ""
        if one.dynamics == dynamics[0]:
            title = f"{plan.percentage(one):.3g}% of the\ntraining images"
        if several:
            counts = np.sum([r.summary["test"]["confusion"] for r in several], axis=0)
            image = draw_matrix(axes, counts)
            correct = np.trace(counts) / counts.sum()
            title = f"{title}\n{correct:.1%} correct".lstrip()
        else:
            say_in(axes, MISSING)
        axes.set_title(title)
    for axes, name in zip(panels[:, 0], dynamics, strict=True):
        axes.set_ylabel(f"{LABELS[name]}: true")
    for axes in panels[-1]:
        axes.set_xlabel("predicted")
    for axes in panels.flat:
        name_classes(axes, names)
        axes.tick_params(axis="x", rotation=90 if max(map(len, names)) > 2 else 0)
        axes.label_outer()
    if image is not None:
        add_colour_bar(figure, image, list(panels.flat))
    return figure


_DRAW: dict[str, Callable[[Results, Plan], Figure]] = {
    "figure1": _draw_predictions,
    "figure2": draw_amounts,
    "figure3": _draw_confusions,
    "figure4": draw_validation,
}
