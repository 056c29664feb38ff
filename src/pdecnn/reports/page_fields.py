"""The page of runs with an answer for each pixel: what they recorded, and some answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pdecnn.data.image_file import seen_pixels
from pdecnn.learning.image_quality import psnr
from pdecnn.learning.tasks import AbstractTask
from pdecnn.reports.charts import convergence_charts, lines_in_words, rates_in_words
from pdecnn.reports.html import Markup, data_uri, draw_sample, tag
from pdecnn.reports.page_runs import ShownRun
from pdecnn.reports.page_summary import draw_facts, duration, network_words, swatched
from pdecnn.reports.recorded import entry, fullest_slice, named, read_answers
from pdecnn.reports.robustness import read_attacks, read_png
from pdecnn.reports.svg import draw_chart, legend
from pdecnn.runs.preparation import make_run_task
from pdecnn.runs.runs import METRICS, SUMMARY, Run

_AXES_OF_PICTURES = 3
_SHARES = {"dice": "mean Dice of", "median_dice": "median Dice of", "iou": "IoU of"}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FieldRun(ShownRun):
    """A run as the page shows it: nothing is measured anew."""

    task: AbstractTask
    answers: dict[str, NDArray[Any]] | None
    """The columns of the task, (n, channels, height, width), of volumes with an axis of slices."""
    previews: dict[int, bytes]
    """PNG files of an answer during the training, by epoch."""

    @property
    def score(self) -> str:
        """What its score is called, without the unit."""
        return self.task.label.partition(" in ")[0]

    @property
    def test_score(self) -> str:
        """The score of the test with its unit."""
        if self.summary is None:
            return "not finished"
        unit = self.task.label.partition(" in ")[2]
        return f"{self.task.format(self.summary['test'][self.task.score])} {unit}".strip()


def read_field_runs(
    runs: Sequence[Run], names: Sequence[str], *, num_images: int
) -> list[FieldRun]:
    """Read every run, and check what is shown of it."""
    found = []
    for place, (run, name) in enumerate(zip(runs, names, strict=True)):
        task = make_run_task(run.config)
        scores = (task.score, f"validation_{task.score}", "data_loss", "validation_loss")
        with named(run.folder / METRICS):
            metrics = run.metrics
            for epoch in metrics:
                entry(epoch, int, "epoch")
                for key in scores:
                    entry(epoch, int | float | None, key)
        with named(run.folder / SUMMARY):
            summary = run.summary
            if summary is not None:
                _check_summary(summary, task)
        previews = {
            epoch: picture
            for epoch, path in run.previews.items()
            if (picture := read_png(path)) is not None
        }
        answers = None if summary is None else read_answers(run, task.columns)
        found.append(
            FieldRun(
                name=name,
                place=place,
                run=run,
                task=task,
                metrics=metrics,
                summary=summary,
                answers=answers,
                previews=previews,
                attacks=read_attacks(run.folder, "best", pairs=num_images > 0),
            )
        )
    return found


def _check_summary(summary: dict[str, Any], task: AbstractTask) -> None:
    entry(summary, int, "num_weights")
    entry(summary, int | float, "test", task.score)
    entry(summary, int, "test", "num_images")
    if "ssim" in summary["test"]:
        entry(summary, int | float | None, "test", "ssim")
    for key in _SHARES.keys() & summary["test"].keys():
        for label in entry(summary, dict, "test", key):
            entry(summary, int | float | None, "test", key, label)


def draw_field_summary(runs: Sequence[FieldRun]) -> Markup:
    """What came of the runs, as they recorded it."""
    facts = [_facts(run) for run in runs]
    names = dict.fromkeys(name for found in facts for name in found)  # runs may have other classes
    facts = [{name: found.get(name) for name in names} for found in facts]
    hero = None
    if len(runs) == 1:
        said = tag("span", f"test {runs[0].score}, best weights, as the run recorded it")
        hero = tag("p", tag("strong", runs[0].test_score), " ", said, class_="hero")
    return tag("div", hero, draw_facts(runs, facts, always=f"test {runs[0].score}"))


def _facts(run: FieldRun) -> dict[str, str | None]:
    summary: dict[str, Any] = run.summary or {}
    test = summary.get("test", {})
    similar = test.get("ssim")
    noise = run.config.data.noise_range
    return {
        "data": f"{run.config.data.name}, {Path(run.config.data.folder or '').name}",
        "network": network_words(run),
        f"test {run.score}": run.test_score,
        "SSIM": None if similar is None else f"{similar:.4f}",
        **{
            f"{words} {label}": None if share is None else f"{share:.1%}"
            for key, words in _SHARES.items()
            for label, share in test.get(key, {}).items()
        },
        "test images": f"{test['num_images']:,}" if test else None,
        "noise": None if noise is None else " to ".join(f"{one:g}" for one in dict.fromkeys(noise)),
        "weights": f"{summary['num_weights']:,}" if summary else None,
        "epochs": f"{len(run.metrics)} of {run.config.training.epochs}",
        "time": duration(run.seconds),
        "seed": str(run.config.seed),
    }


def draw_field_convergence(runs: Sequence[FieldRun]) -> Markup:
    """The score and the loss, all runs in one chart."""
    trained = [run for run in runs if run.metrics]
    if not trained:
        return tag("p", "No epoch is finished yet.", class_="note")
    curves = [(run.name, run.metrics, None, run.place) for run in trained]
    charts = convergence_charts(curves, several=len(runs) > 1, task=trained[0].task)
    panels = [tag("figure", tag("figcaption", one.title), draw_chart(one)) for one in charts]
    said = None
    if len(runs) == 1 and (lines := lines_in_words(trained[0].metrics)):
        said = tag("p", f"Learning rate {rates_in_words(trained[0].metrics)}; {lines}.")
    shown = tag("div", tag("div", panels, class_="charts"), legend(charts[-1]), said)
    return tag("div", shown, [_previews(run) for run in trained if run.previews])


def _previews(run: FieldRun) -> Markup:
    """What a run made of a validation image as it learned."""
    columns = ", ".join(run.task.columns)
    shown = [
        tag(
            "figure",
            tag("img", src=data_uri(content), alt=f"{columns} after epoch {epoch}"),
            tag("figcaption", f"epoch {epoch}"),
        )
        for epoch, content in run.previews.items()
    ]
    said = tag("p", swatched(run), f": {columns}, of a validation {run.config.subject}")
    return tag("div", said, tag("div", shown, class_="previews"))


def draw_field_images(runs: Sequence[FieldRun], number: int) -> Markup:
    """A row an image: what goes in, what each run makes of it, and what is wanted."""
    groups: dict[object, list[FieldRun]] = {}
    for run in runs:
        if run.answers is not None:
            shared = [run.answers[name] for name in run.task.columns if name != run.task.answer]
            key = tuple((pixels.shape, pixels.tobytes()) for pixels in shared)
            groups.setdefault(key, []).append(run)
    if not groups:
        return tag("p", "Images are there when a run is finished.", class_="note")
    return tag("div", [_images(group, number) for group in groups.values()])


def _images(runs: Sequence[FieldRun], number: int) -> Markup:
    task, answers = runs[0].task, [run.answers or {} for run in runs]
    rows = []
    for k in range(min(number, len(answers[0][task.answer]))):
        shown, place = [], None
        first = {name: x[k] for name, x in answers[0].items()}
        if first[task.answer].ndim > _AXES_OF_PICTURES:
            place = fullest_slice(first["labels"])
            last = str(first["labels"].shape[-1] - 1)
            knob = tag("input", type="range", min="0", max=last, value=str(place))
            shown.append(tag("label", "slice ", knob, class_="slider"))
        for column in task.columns:
            if column != task.answer:
                shown.append(_picture(column, first, column, place))
                continue
            shown += [
                _picture(swatched(run), {name: x[k] for name, x in found.items()}, column, place)
                for run, found in zip(runs, answers, strict=True)
            ]
        rows.append(tag("li", shown))
    if not rows:
        return tag("p", "No images are shown.", class_="note")
    subject = runs[0].config.subject
    volumes = answers[0][task.answer].ndim > 1 + _AXES_OF_PICTURES
    kind = "images"
    if subject != "image":
        kind = f"{subject}s, {'slices' if volumes else 'a slice'} of each"
    measure = "PSNR" if "clean" in task.columns else "mean Dice of what is shown"
    said = (
        f"{len(rows)} test {kind}, of {', '.join(run.name for run in runs)}, with their {measure}."
    )
    return tag("div", tag("p", said), tag("ul", rows, class_="fields"))


def _picture(
    name: str | Markup, row: dict[str, NDArray[Any]], column: str, place: int | None
) -> Markup:
    """One column of a row, with how near it is to what is wanted; of slices the one at `place`."""
    pixels = row[column]
    words = ""
    if pixels.dtype.kind in "iu":
        if column != "labels":
            words = _dice(pixels, row["labels"])
    elif "clean" in row and column != "clean":
        clipped = np.clip(np.nan_to_num(pixels), 0, 1)
        found = psnr(torch.from_numpy(clipped), torch.from_numpy(row["clean"]))
        words = f" {found:.2f} dB" if isfinite(found) else " exact"
    label = name if not isinstance(name, Markup) else "what a run makes of it"
    if place is None:
        seen = [draw_sample(seen_pixels(pixels), label)]
    else:
        seen = [
            tag(
                "span",
                draw_sample(seen_pixels(pixels[..., k]), f"{label}, slice {k + 1}"),
                class_="slice",
                hidden=k != place,
            )
            for k in range(pixels.shape[-1])
        ]
    return tag("figure", seen, tag("figcaption", name, words))


def _dice(found: NDArray[Any], wanted: NDArray[Any]) -> str:
    """The mean Dice of the classes that are there or found."""
    classes = (set(np.unique(found)) | set(np.unique(wanted))) - {0}
    pairs = [(found == label, wanted == label) for label in classes]
    shares = [2 * (one & two).sum() / (one.sum() + two.sum()) for one, two in pairs]
    return f" {np.mean(shares):.1%}" if shares else ""
