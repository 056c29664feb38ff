"""Accuracy and loss against the epoch on the page, for one run or several together."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from pdecnn.reports.page_charts import Series, draw_chart, legend
from pdecnn.reports.page_html import Markup, details, table, tag
from pdecnn.reports.page_runs import PageRun

_MOST_LINES = 6
_COLUMNS = (
    ("epoch", "epoch", "{}"),
    ("learning rate", "learning_rate", "{:.4g}"),
    ("loss", "loss", "{:.4f}"),
    ("data loss", "data_loss", "{:.4f}"),
    ("accuracy", "accuracy", "{:.2%}"),
    ("validation loss", "validation_loss", "{:.4f}"),
    ("validation accuracy", "validation_accuracy", "{:.2%}"),
)


def draw_convergence(runs: Sequence[PageRun]) -> Markup:
    """Both panels, what the curves are, and every number in a table that opens."""
    trained = [run for run in runs if run.metrics]
    if not trained:
        return tag("p", "No epoch is finished yet.", class_="note")
    panels = []
    curves: list[Series] = []
    for title, keys, label, options in (
        ("Accuracy", ("accuracy", "validation_accuracy"), "accuracy", {"percent": True}),
        ("Loss", ("data_loss", "validation_loss"), "loss (data term)", {"may_be_log": True}),
    ):
        curves = [
            _series(run, key, place, several=len(runs) > 1)
            for run in trained
            for place, key in enumerate(keys)
        ]
        chart = draw_chart(
            curves,
            title=f"{title} against the epoch",
            x_label="epoch",
            y_label=label,
            lines=_changes(trained[0]) if len(trained) == 1 else (),
            **options,
        )
        panels.append(tag("figure", tag("figcaption", title), chart))
    return tag(
        "div",
        tag("div", panels, class_="charts"),
        legend(curves),
        [tag("p", _said(run, several=len(runs) > 1)) for run in runs],
        [_numbers(run) for run in trained],
    )


def _series(run: PageRun, key: str, place: int, *, several: bool) -> Series:
    """Of one run training and validation have colours; of several each run has one."""
    name = ("training", "validation")[place]
    epochs = [entry["epoch"] for entry in run.metrics]
    best = epochs.index(run.best["epoch"]) if run.best is not None and place else None
    return Series(
        label=f"{run.name}, {name}" if several else name,
        xs=epochs,
        ys=[entry.get(key) for entry in run.metrics],
        colour=run.place % 6 if several else place,
        dashed=several and not place,
        starred=best,
    )


def _changes(run: PageRun) -> list[float]:
    """Where the learning rate or the level changes, unless that is all the time."""
    found = [
        second["epoch"] - 0.5
        for first, second in pairwise(run.metrics)
        if any(first.get(key) != second.get(key) for key in ("learning_rate", "level"))
    ]
    return found if len(found) <= _MOST_LINES else []


def _said(run: PageRun, *, several: bool) -> str:
    """The best epoch, the learning rates and the levels in words."""
    name = f"{run.name}: " if several else ""
    if run.best is None:
        return f"{name}no epoch is finished yet."
    words = [
        f"{name}best validation accuracy {run.best['validation_accuracy']:.2%} in epoch "
        f"{run.best['epoch']} (starred)"
    ]
    rates = _distinct(run, "learning_rate")
    if len(rates) - 1 > _MOST_LINES:
        words.append(f"learning rate {rates[0]:.3g} to {rates[-1]:.3g}, changing steadily")
    else:
        words.append("learning rate " + " → ".join(f"{rate:.3g}" for rate in rates))
    levels = _distinct(run, "level")
    if len(levels) > 1:
        words.append(f"{len(levels)} levels: {_levels(run)}")
    skipped = sum(run.metrics[-1].get(key, 0) for key in ("nonfinite_steps", "overflow_steps"))
    if skipped:
        words.append(f"{skipped:,} steps skipped")
    text = "; ".join(words)
    return f"{text[0].upper() if not several else text[0]}{text[1:]}."


def _levels(run: PageRun) -> str:
    training = run.config.training
    begins = [run.metrics[0]["epoch"]] + [
        second["epoch"]
        for first, second in pairwise(run.metrics)
        if first.get("level") != second.get("level")
    ]
    words = []
    for level, epoch in enumerate(begins):
        sizes = [
            f"{values[level]} {unit}"
            for values, unit in ((training.level_sizes, "pixels"), (training.level_steps, "steps"))
            if values is not None and level < len(values)
        ]
        words.append(f"{' and '.join(sizes)} from epoch {epoch}")
    return ", ".join(words)


def _distinct(run: PageRun, key: str) -> list[Any]:
    """The values in their order, each once where it stays."""
    values: list[Any] = []
    for entry in run.metrics:
        if not values or entry.get(key) != values[-1]:
            values.append(entry.get(key))
    return values


def _numbers(run: PageRun) -> Markup:
    rows = [[_written(entry.get(key), form) for _, key, form in _COLUMNS] for entry in run.metrics]
    title = f"All epochs of {run.name}"
    return details(title, table([name for name, _, _ in _COLUMNS], rows, caption=title))


def _written(value: Any, form: str) -> str:
    return "not finite" if value is None else form.format(value)
