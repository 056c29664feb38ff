"""Accuracy against the strength of attacks and corruptions, as a picture."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from pdecnn.reports.style import BLUE, GREY, LIGHT_GREY, ORANGE, WIDTH
from pdecnn.runs.diagnosis import AttackReport

_ATTACKS = {"fgsm": (BLUE, "o"), "pgd": (ORANGE, "s")}
_AXES = {
    "noise": "noise (pixel values)",
    "blur": "blur (pixels)",
    "contrast": "contrast lost",
}


def draw_robustness(found: AttackReport) -> Figure:
    """Accuracy against epsilon, and against noise, blur and the loss of contrast."""
    figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
    panels = figure.subplots(1, 4, sharey=True, width_ratios=(2, 1, 1, 1))
    attacked = panels[0]
    for attack, (colour, marker) in _ATTACKS.items():
        chosen = [result for result in found.results if result.attack == attack]
        attacked.plot(
            [0, *(result.epsilon for result in chosen)],
            [found.clean_accuracy, *(result.accuracy for result in chosen)],
            marker=marker,
            color=colour,
            label=attack.upper(),
        )
    attacked.set_xlabel(f"epsilon ({found.results[0].norm})")
    attacked.set_ylabel("accuracy")
    attacked.set_title("under attack", loc="left")
    attacked.legend(loc="upper right")
    for axes, (name, label) in zip(panels[1:], _AXES.items(), strict=True):
        _draw_corruption(axes, found, name, label)
    for axes in panels:
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.grid(axis="y", color=LIGHT_GREY, linewidth=0.4)
        axes.set_axisbelow(True)
    figure.suptitle(f"{found.recipe}, {found.num_images:,} test images")
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
