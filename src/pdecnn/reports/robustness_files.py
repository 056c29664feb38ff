"""What `pdecnn attack` and `pdecnn certify` leave behind: JSON, CSV and figures."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from pdecnn.files import csv_bytes, json_bytes, write_all
from pdecnn.reports.charts import ATTACKS, channels_words
from pdecnn.reports.robustness import attack_chart, certificate_chart
from pdecnn.reports.run_figures import show_image
from pdecnn.reports.style import (
    BLUE,
    GREY,
    LIGHT_BLUE,
    LIGHT_GREY,
    ORANGE,
    SMALL,
    WIDTH,
    draw_charts,
    faint_grid,
    render,
    short_name,
    writing_figures,
)
from pdecnn.runs.certification import CertificateReport
from pdecnn.runs.diagnosis import AttackReport
from pdecnn.runs.field_attack import FieldAttackReport

_LOOKS = {
    "fgsm": (LIGHT_BLUE, "o"),
    "pgd": (BLUE, "s"),
    "apgd_ce": (GREY, "^"),
    "apgd_dlr": (LIGHT_GREY, "D"),
    "worst": (ORANGE, "x"),
}
_AXES = {
    "noise": "noise (deviation)",
    "blur": "blur (grid points)",
    "contrast": "contrast lost",
}


def write_attack(found: AttackReport | FieldAttackReport, folder: Path) -> list[Path]:
    """attack_linf.json or attack_l2.json, the curve of the score, and images where classified."""
    values = found.to_dict()
    name = f"attack_{values['results'][0]['norm']}"
    contents = {f"{name}.json": json_bytes(values)}
    with writing_figures(folder):
        if isinstance(found, FieldAttackReport):
            return write_all(folder, contents | render(name, draw_charts([attack_chart(values)])))
        contents |= render(name, draw_robustness(found))
        if len(found.examples[0].labels):  # none where no clean image is right
            contents |= render(f"{name}_images", draw_attacked(found))
        return write_all(folder, contents)


def write_certificate(found: CertificateReport, folder: Path) -> list[Path]:
    """certificate.json, images.csv with a radius for every image, and the figure of both curves."""
    values, certificate = found.to_dict(), found.certificate
    columns = (part.tolist() for part in (certificate.labels, certificate.predictions))
    rows = zip(found.places, *columns, map(repr, certificate.radii.tolist()), strict=True)
    contents = {
        "certificate.json": json_bytes(values),
        "images.csv": csv_bytes(("index", "label", "prediction", "radius"), rows),
    }
    with writing_figures(folder):
        drawn = draw_charts([certificate_chart(values)])
        drawn.suptitle(f"{found.recipe}, {certificate.num_images:,} test {found.subject}s")
        return write_all(folder, contents | render("certificate", drawn))


def draw_robustness(found: AttackReport) -> Figure:
    """Accuracy against epsilon, and against noise, blur and the loss of contrast."""
    figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
    panels = figure.subplots(1, 4, sharey=True, width_ratios=(2, 1, 1, 1))
    attacked = panels[0]
    for attack in dict.fromkeys(result.attack for result in found.results):
        colour, marker = _LOOKS[attack]
        points = ((one.epsilon, one.accuracy) for one in found.results if one.attack == attack)
        _draw_curve(attacked, found, points, marker=marker, color=colour, label=ATTACKS[attack])
    attacked.set(xlabel=f"epsilon ({found.results[0].norm})", ylabel="accuracy")
    attacked.set_title("under attack", loc="left")
    attacked.legend(loc="best")
    for axes, (name, label) in zip(panels[1:], _AXES.items(), strict=True):
        points = (
            (1 - one.amount if name == "contrast" else one.amount, one.accuracy)
            for one in found.corruptions
            if one.corruption == name
        )
        _draw_curve(axes, found, points, marker="^", color=GREY)
        axes.set_xlabel(label)
        axes.set_title(name, loc="left")
    for axes in panels:
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        faint_grid(axes)
    figure.suptitle(f"{found.recipe}, {found.num_images:,} test {found.subject}s")
    return figure


def _draw_curve(
    axes: Axes, found: AttackReport, points: Iterable[tuple[float, float]], **look: Any
) -> None:
    """From the clean accuracy on."""
    axes.plot(*zip((0, found.clean_accuracy), *points, strict=True), **look)


def draw_attacked(found: AttackReport) -> Figure:
    """Images as they are, and below what the attacks made of them with each epsilon."""
    examples = found.examples
    clean, labels = examples[0].clean, examples[0].labels
    rows = [("clean", clean, labels)]
    rows += [(f"{pair.epsilon:g}", pair.attacked, pair.predicted) for pair in examples]
    figure = Figure(figsize=(WIDTH, 0.6 + 1.05 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), len(labels), squeeze=False)
    for panels, (name, images, classes) in zip(grid, rows, strict=True):
        panels[0].set_ylabel(name)
        for axes, image, label, truth in zip(
            panels, images, classes.tolist(), labels.tolist(), strict=True
        ):
            is_image = found.subject == "image"
            show_image(axes, ((255 * image).round().byte() if is_image else image).numpy())
            wrong = label != truth
            text = short_name(found.class_names[label], 10) + (" ✗" if wrong else "")
            axes.set_xlabel(text, color=ORANGE if wrong else "black", fontsize=SMALL, labelpad=2)
    seen = channels_words(clean.shape[1:])
    figure.suptitle(
        f"{found.recipe}, epsilon ({examples[0].norm}): below each {found.subject} the class that "
        f"is found{seen and f'; {seen}'}"
    )
    return figure
