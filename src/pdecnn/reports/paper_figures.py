"""The figures of the paper from run directories; Figures 1 and 3 themselves."""

import textwrap
from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from pdecnn.reports.confusion import add_colour_bar, draw_matrix, name_classes
from pdecnn.reports.paper_curves import draw_amounts, draw_validation, mark_missing
from pdecnn.reports.paper_text import QUICK, changed, seeds, title
from pdecnn.reports.predictions import (
    MOST_BARS,
    NUM_LARGEST,
    draw_bars,
    legend_patches,
    show_image,
)
from pdecnn.reports.results import Result, Results, dynamics_of, results_of
from pdecnn.reports.style import WIDTH, short_name
from pdecnn.reports.table import LABELS
from pdecnn.runs.paper import Plan

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
                mark_missing(axes, LABELS[one.dynamics])
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
            axes.set_title(title)
        else:
            mark_missing(axes, title)
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
