"""What `pdecnn attack` and `pdecnn certify` leave behind: JSON, CSV and figures."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from pdecnn.data.image_file import seen_pixels
from pdecnn.files import csv_bytes, json_bytes, write_all
from pdecnn.reports.charts import ATTACKS, channels_words
from pdecnn.reports.recorded import fullest_slice
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
_AXES_OF_PICTURES = 3


def write_attack(found: AttackReport | FieldAttackReport, folder: Path) -> list[Path]:
    """attack_linf.json or attack_l2.json, the curve of the score, and images under attack."""
    values = found.to_dict()
    name = f"attack_{values['results'][0]['norm']}"
    contents = {f"{name}.json": json_bytes(values)}
    with writing_figures(folder):
        if isinstance(found, FieldAttackReport):
            contents |= render(name, draw_charts([attack_chart(values)]))
            contents |= render(f"{name}_images", draw_attacked_fields(found))
            return write_all(folder, contents)
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


def draw_attacked_fields(found: FieldAttackReport) -> Figure:
    """Images with their answers, below both under attack with each epsilon, and what is wanted.

    Of volumes the slice with most in it.
    """
    task, wanted = found.task, [target.numpy() for target in found.wanted]
    entered, *others = task.columns
    (meant,) = set(others) - {task.answer}
    # A row is as high as its images, but not higher than they are wide.
    highest = min(1, max(target.shape[1] / target.shape[2] for target in wanted))
    height = 0.6 + (0.2 + 1.15 * highest) * (len(found.examples) + 1)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    grid = figure.subplots(len(found.examples) + 1, 2 * len(wanted), squeeze=False)
    for panels, shown in zip(grid, found.examples, strict=False):
        name = f"{shown.epsilon:g}, {ATTACKS[shown.attack]}" if shown.attack else "no attack"
        panels[0].set_ylabel(name)
        for k, row in enumerate(shown.figures):
            image, clean = shown.images[k].numpy(), found.examples[0].images[k].numpy()
            if found.subject != "image":  # in units of its own, those of the clean one
                image = (image - clean.min()) / max(np.ptp(clean), 1e-30)
            _show_field(panels[2 * k], image, wanted[k])
            _show_field(panels[2 * k + 1], shown.answers[k].numpy(), wanted[k])
            panels[2 * k + 1].set_xlabel(_figure_words(row), fontsize=SMALL, labelpad=2)
    for k, target in enumerate(wanted):
        grid[0, 2 * k].set_title(entered)
        grid[0, 2 * k + 1].set_title(task.answer)
        grid[-1, 2 * k].set_visible(False)
        _show_field(grid[-1, 2 * k + 1], target, target)
        grid[-1, 2 * k + 1].set_xlabel(meant, fontsize=SMALL, labelpad=2)
    words = f"epsilon ({found.norm}): the attack that raises the loss most"
    figure.suptitle(f"{found.recipe}, {words}")
    return figure


def _show_field(axes: Axes, pixels: NDArray[Any], wanted: NDArray[Any]) -> None:
    if pixels.ndim > _AXES_OF_PICTURES:
        pixels = pixels[..., fullest_slice(wanted)]
    show_image(axes, seen_pixels(pixels))


def _figure_words(row: dict[str, Any]) -> str:
    """How good an answer is, in the figure of its task."""
    if "psnr" in row:
        return f"{row['psnr']:.2f} dB"
    shares = [share for share in row["dice"].values() if share is not None]
    return f"Dice {np.mean(shares):.1%}" if shares else ""
