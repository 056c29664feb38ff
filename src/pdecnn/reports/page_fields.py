"""The page of denoisers: what they recorded, and some of their answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pdecnn.learning.image_quality import psnr
from pdecnn.learning.tasks import Denoising
from pdecnn.reports.charts import convergence_charts
from pdecnn.reports.html import Markup, draw_sample, tag
from pdecnn.reports.page_summary import draw_facts, duration, network_words, swatched
from pdecnn.reports.recorded import entry, named, read_answers, read_seconds
from pdecnn.reports.svg import draw_chart, legend
from pdecnn.runs.config import RunConfig
from pdecnn.runs.runs import METRICS, SUMMARY, Run

_SCORES = ("psnr", "validation_psnr", "data_loss", "validation_loss")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FieldRun:
    """A run as the page shows it: nothing is measured anew."""

    name: str
    place: int
    folder: Path
    config: RunConfig
    metrics: list[dict[str, Any]]
    summary: dict[str, Any] | None
    """None: not finished."""
    seconds: float | None
    answers: dict[str, NDArray[Any]] | None
    """'noisy', 'denoised' and 'clean', (n, channels, *spatial)."""


def read_field_runs(runs: Sequence[Run], names: Sequence[str]) -> list[FieldRun]:
    """Read every run, and check what is shown of it."""
    found = []
    for place, (run, name) in enumerate(zip(runs, names, strict=True)):
        with named(run.folder / METRICS):
            metrics = run.metrics
            for epoch in metrics:
                entry(epoch, int, "epoch")
                for key in _SCORES:
                    entry(epoch, int | float | None, key)
        with named(run.folder / SUMMARY):
            summary = run.summary
            if summary is not None:
                _check_summary(summary)
        found.append(
            FieldRun(
                name=name,
                place=place,
                folder=run.folder,
                config=run.config,
                metrics=metrics,
                summary=summary,
                seconds=read_seconds(run, len(metrics)),
                answers=None if summary is None else read_answers(run, Denoising.columns),
            )
        )
    return found


def _check_summary(summary: dict[str, Any]) -> None:
    entry(summary, int, "num_weights")
    entry(summary, int | float, "test", "psnr")
    entry(summary, int | float | None, "test", "ssim")
    entry(summary, int, "test", "num_images")


def draw_field_summary(runs: Sequence[FieldRun]) -> Markup:
    """What came of the runs, as they recorded it."""
    facts = [_facts(run) for run in runs]
    hero = None
    if len(runs) == 1:
        said = tag("span", "test PSNR, best weights, as the run recorded it")
        hero = tag("p", tag("strong", facts[0]["test PSNR"]), " ", said, class_="hero")
    return tag("div", hero, draw_facts(runs, facts, always="test PSNR"))


def _facts(run: FieldRun) -> dict[str, str | None]:
    summary: dict[str, Any] = run.summary or {}
    test = summary.get("test", {})
    similar = test.get("ssim")
    noise = run.config.data.noise_range
    return {
        "data": f"{run.config.data.name}, {run.config.data.folder}",
        "network": network_words(run.config),
        "test PSNR": f"{test['psnr']:.2f} dB" if test else "not finished",
        "SSIM": None if similar is None else f"{similar:.4f}",
        "test images": f"{test['num_images']:,}" if test else None,
        "noise": None if noise is None else " to ".join(f"{one:g}" for one in dict.fromkeys(noise)),
        "weights": f"{summary['num_weights']:,}" if summary else None,
        "epochs": f"{len(run.metrics)} of {run.config.training.epochs}",
        "time": duration(run.seconds),
        "seed": str(run.config.seed),
    }


def draw_field_convergence(runs: Sequence[FieldRun]) -> Markup:
    """PSNR and loss, all runs in one chart."""
    trained = [run for run in runs if run.metrics]
    if not trained:
        return tag("p", "No epoch is finished yet.", class_="note")
    charts = convergence_charts(
        [(run.name, run.metrics, None, run.place) for run in trained],
        several=len(runs) > 1,
        score=("PSNR", "psnr", "PSNR in dB"),
    )
    panels = [tag("figure", tag("figcaption", one.title), draw_chart(one)) for one in charts]
    return tag("div", tag("div", panels, class_="charts"), legend(charts[-1]))


def draw_field_images(runs: Sequence[FieldRun], number: int) -> Markup:
    """A row an image: with noise, what each run makes of it, and without."""
    groups: list[list[FieldRun]] = []
    for run in runs:
        if run.answers is None:
            continue
        for group in groups:
            if _same_images(group[0], run):
                group.append(run)
                break
        else:
            groups.append([run])
    if not groups:
        return tag("p", "Images are there when a run is finished.", class_="note")
    return tag("div", [_images(group, number) for group in groups])


def _same_images(one: FieldRun, other: FieldRun) -> bool:
    first, second = one.answers or {}, other.answers or {}
    return all(np.array_equal(first[name], second[name]) for name in ("clean", "noisy"))


def _images(runs: Sequence[FieldRun], number: int) -> Markup:
    answers = [run.answers or {} for run in runs]
    clean = answers[0]["clean"]
    rows = []
    for k in range(min(number, len(clean))):
        shown = [_picture("noisy", answers[0]["noisy"][k], clean[k])]
        shown += [
            _picture(swatched(run), found["denoised"][k], clean[k])
            for run, found in zip(runs, answers, strict=True)
        ]
        rows.append(tag("li", shown, _picture("clean", clean[k], None)))
    if not rows:
        return tag("p", "No images are shown.", class_="note")
    said = f"{len(rows)} test images of {', '.join(run.name for run in runs)}, with their PSNR."
    return tag("div", tag("p", said), tag("ul", rows, class_="fields"))


def _picture(name: str | Markup, pixels: NDArray[Any], clean: NDArray[Any] | None) -> Markup:
    clipped = np.clip(np.nan_to_num(pixels), 0, 1)
    seen = np.round(255 * clipped).astype(np.uint8)
    words = ""
    if clean is not None:
        found = psnr(torch.from_numpy(clipped), torch.from_numpy(clean))
        words = f" {found:.2f} dB" if isfinite(found) else " exact"
    label = name if not isinstance(name, Markup) else "what a run makes of it"
    return tag("figure", draw_sample(seen, label), tag("figcaption", name, words))
