"""What the page shows of training and test: curves, confusion matrix, images."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import isfinite, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdecnn.reports.charts import (
    Chart,
    channels_words,
    convergence_charts,
    distinct,
    rates_in_words,
)
from pdecnn.reports.html import Markup, details, draw_sample, join, scrolling, table, tag
from pdecnn.reports.page_runs import PageRun
from pdecnn.reports.svg import draw_chart, legend
from pdecnn.runs.evaluation import Sample

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
    charts = convergence_charts(
        [(run.name, run.metrics, run.best_place, run.place) for run in trained],
        several=len(runs) > 1,
    )
    return tag(
        "div",
        tag("div", [_panel(chart) for chart in charts], class_="charts"),
        legend(charts[-1]),
        [tag("p", _said(run, several=len(runs) > 1)) for run in runs],
        [_numbers(run) for run in trained],
    )


def _panel(chart: Chart) -> Markup:
    drawn = draw_chart(replace(chart, title=f"{chart.title} against the epoch"))
    return tag("figure", tag("figcaption", chart.title), drawn)


def _said(run: PageRun, *, several: bool) -> str:
    """The best epoch, the learning rates and the levels in words."""
    name = f"{run.name}: " if several else ""
    if run.best is None:
        return f"{name}no epoch is finished yet."
    best = f"no validation: the weights are those of epoch {run.best['epoch']}, the last"
    if run.best["validation_accuracy"] is not None:
        best = (
            f"best validation accuracy {run.best['validation_accuracy']:.2%} in epoch "
            f"{run.best['epoch']} (starred)"
        )
    words = [f"{name}{best}"]
    words.append(f"learning rate {rates_in_words(run.metrics)}")
    levels = distinct(run.metrics, "level")
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


def _numbers(run: PageRun) -> Markup:
    validated = run.config.data.validation_fraction > 0
    columns = [one for one in _COLUMNS if validated or not one[1].startswith("validation")]
    rows = [[_written(entry.get(key), form) for _, key, form in columns] for entry in run.metrics]
    title = f"All epochs of {run.name}"
    return details(title, table([name for name, _, _ in columns], rows, caption=title))


def _written(value: Any, form: str) -> str:
    return "not finite" if value is None else form.format(value)


_MOST_NUMBERED_CLASSES = 20
_MOST_MAPPED_CLASSES = 200
_NUM_LISTED = 15
_NUM_SHADES = 8
_SHORT = 3


def draw_confusion(run: PageRun) -> Markup:
    """Which classes are taken for which.

    Up to 20 classes have a table with every count; up to 200 a map in shades; with more than 20
    the commonest errors and the worst classes are listed by name.
    """
    test, names = run.test, run.class_names
    if test is None:
        return tag("p", no_test(run), class_="note")
    counts = np.array(test["confusion"], dtype=np.int64)
    correct, total = int(np.trace(counts)), int(counts.sum())
    said = tag(
        "p",
        f"{correct:,} of {total:,} test {run.subject}s are right: {test['accuracy']:.2%}. Rows are "
        f"true classes, columns predicted ones; the stronger the colour, the larger the share of a "
        f"row.",
    )
    if len(names) <= _MOST_NUMBERED_CLASSES:
        return tag("div", said, _matrix(counts, names, test["per_class"]))
    picture = _map(counts) if len(names) <= _MOST_MAPPED_CLASSES else None
    numbers = "classes by their numbers" if picture else "too many for a picture"
    note = f"{len(names)} classes: {numbers}."
    return tag(
        "div",
        said,
        tag("p", note, class_="note"),
        picture,
        _commonest(counts, names),
        _per_class(counts, names, test["per_class"]),
    )


def no_test(run: PageRun) -> Markup:
    """Why a run has no test figures."""
    if run.notice is not None:
        return tag("span", "Not tested: the weights are no numbers.")
    return join(
        [
            f"Not tested: this run has no {run.weights} weights yet. Go on with ",
            tag("code", f"pdecnn train --output {run.folder} --resume"),
            ".",
        ]
    )


def _matrix(counts: NDArray[np.int64], names: list[str], per_class: dict[str, Any]) -> Markup:
    is_short = max(map(len, names)) <= _SHORT
    class_ = "short" if is_short else "long"
    head = [
        tag("th", tag("span", name, title=name), scope="col", class_=f"class {class_}")
        for name in names
    ]
    rows = []
    for k, (name, row) in enumerate(zip(names, counts, strict=True)):
        total = max(int(row.sum()), 1)
        cells = [_cell(int(n), int(n) / total, correct=k == j) for j, n in enumerate(row)]
        rows.append(
            tag(
                "tr",
                tag("th", tag("span", name, title=name), scope="row", class_="class"),
                cells,
                tag("td", _share(per_class[name]), class_="n"),
            )
        )
    caption = "Confusion matrix: rows are true, columns predicted classes"
    return scrolling(
        tag(
            "table",
            tag("caption", caption, class_="unseen"),
            tag("thead", tag("tr", tag("td"), head, tag("th", "right", scope="col", class_="n"))),
            tag("tbody", rows),
            class_="confusion",
        ),
        caption,
    )


def _cell(count: int, share: float, *, correct: bool) -> Markup:
    if not count:
        return tag("td", tag("span", "0", class_="unseen"))
    # The square root lifts a few errors out of the ground.
    heat = sqrt(share)
    class_ = ("hot " if heat > 0.55 else "") + ("right" if correct else "wrong")
    return tag("td", str(count), class_=class_, style=f"--share:{100 * heat:.0f}%")


def _map(counts: NDArray[np.int64]) -> Markup:
    """A path for each shade: small however many classes there are."""
    size = len(counts)
    shares = np.sqrt(counts / np.maximum(counts.sum(1, keepdims=True), 1))
    shades = np.ceil(shares * _NUM_SHADES).astype(int)
    paths = []
    for shade in range(1, _NUM_SHADES + 1):
        where = np.argwhere(shades == shade)
        if len(where):
            squares = "".join(f"M{column} {row}h1v1h-1z" for row, column in where)
            paths.append(tag("path", d=squares, style=f"--share:{100 * shade / _NUM_SHADES:.0f}%"))
    every = 10 if size <= 100 else 20
    texts = [
        tag("text", str(k), x=x, y=y, class_=anchor, style=f"font-size:{size / 36:.2g}px")
        for k in range(0, size, every)
        for x, y, anchor in (
            (f"{k + 0.5}", f"{-0.012 * size:.3g}", "middle"),
            (f"{-0.012 * size:.3g}", f"{k + 0.5 + 0.01 * size:.4g}", "end"),
        )
    ]
    margin = 0.07 * size
    frame = tag("path", d=f"M0 0h{size}v{size}h-{size}z", class_="frame")
    box = f"{-margin:.3g} {-margin:.3g} {size + 1.2 * margin:.5g} {size + 1.2 * margin:.5g}"
    label = f"Confusion matrix of {size} classes as a map; the numbers are in the lists below it"
    return tag("svg", frame, paths, texts, viewBox=box, role="img", aria_label=label, class_="map")


def _commonest(counts: NDArray[np.int64], names: list[str]) -> Markup:
    errors = counts - np.diag(np.diag(counts))
    order = np.argsort(-errors, axis=None, kind="stable")[:_NUM_LISTED]
    rows = []
    for row, column in zip(*np.unravel_index(order, errors.shape), strict=True):
        if errors[row, column]:
            total = int(counts[row].sum())
            pair = [_numbered(names, int(k)) for k in (row, column)]
            rows.append((*pair, int(errors[row, column]), f"{errors[row, column] / total:.1%}"))
    if not rows:
        return tag("p", "No errors.")
    header = ("true class", "taken for", "number", "of the class")
    return tag(
        "div",
        tag("h4", "Commonest errors"),
        table(header, rows, num_names=2, caption="Commonest errors", class_="listed"),
    )


def _per_class(counts: NDArray[np.int64], names: list[str], per_class: dict[str, Any]) -> Markup:
    """All classes, the worst first."""
    order = sorted(
        range(len(names)), key=lambda k: (per_class[names[k]] is None, per_class[names[k]] or 0.0)
    )
    rows = [(_numbered(names, k), int(counts[k].sum()), _share(per_class[names[k]])) for k in order]
    header = ("class", "number", "right")
    caption = "Accuracy of every class, the worst first"
    listed = table(header, rows, caption=caption, class_="listed")
    return details(f"All {len(names)} classes, the worst first", listed)


def _numbered(names: list[str], k: int) -> Markup:
    """The number first: long names are cut off at their end."""
    return tag("span", f"{k} · {names[k]}", title=names[k])


def _share(value: float | None) -> str:
    return "none there" if value is None else f"{value:.1%}"


_NUM_BARS = 4


def draw_predictions(run: PageRun) -> Markup:
    """Images at random, the same for every run on a data set."""
    if run.examination is None:
        return tag("p", _without_weights(run), class_="note")
    found, total = run.examination.shown, run.examination.evaluation.num_images
    if not found.places:
        return tag("p", f"No {run.subject}s are shown.", class_="note")
    said = f"{len(found.places)} of {total:,} test {run.subject}s, drawn at random."
    return tag("div", tag("p", said), _cards(found, run.class_names, run.subject))


def draw_wrong(run: PageRun) -> Markup:
    """What the network gets wrong, the most certain first."""
    if run.examination is None:
        return tag("p", _without_weights(run), class_="note")
    found, number = run.examination.wrong, run.examination.num_wrong
    if not number:
        return tag("p", f"Every test {run.subject} is right.")
    if not found.places:
        said = f"{number:,} {run.subject}s are misclassified; none are shown."
        return tag("p", said, class_="note")
    shown = "All" if len(found.places) == number else f"{len(found.places)} of"
    said = (
        f"{shown} {number:,} misclassified {run.subject}s, those first that the network is surest "
        f"of."
    )
    return tag("div", tag("p", said), _cards(found, run.class_names, run.subject))


def _without_weights(run: PageRun) -> str | Markup:
    if run.notice is not None:
        return f"The weights are no numbers, so that no {run.subject} can be tried."
    if run.test is None:
        return no_test(run)
    return (
        f"The run holds no {run.weights} weights any more, so that no {run.subject} can be tried."
    )


def _cards(sample: Sample, names: list[str], subject: str) -> Markup:
    cards, seen = [], channels_words(sample.images.shape[1:])
    for k, place in enumerate(sample.places):
        label, probabilities = int(sample.labels[k]), sample.probabilities[k].tolist()
        predicted = int(sample.probabilities[k].argmax())
        right = predicted == label
        said = f"test {subject} {place}: {names[label]}"
        mark = tag("span", "✓" if right else "✗", class_="good" if right else "bad")
        verdict = [mark, tag("span", " right," if right else " wrong,", class_="unseen"), " true: "]
        cards.append(
            tag(
                "li",
                draw_sample(sample.images[k].numpy(), said),
                tag(
                    "div",
                    tag("p", verdict, tag("b", names[label], title=names[label]), class_="truth"),
                    _bars(probabilities, label, predicted, names),
                    tag("p", ", ".join(filter(None, (f"no. {place}", seen))), class_="place"),
                    class_="said",
                ),
            )
        )
    return tag("ul", cards, class_="cards")


def _bars(probabilities: list[float], label: int, predicted: int, names: list[str]) -> Markup:
    """The most probable classes, with the true one among them."""
    order = sorted(range(len(names)), key=lambda k: -_finite(probabilities[k]))
    shown = order[:_NUM_BARS]
    if label not in shown:
        shown = [*order[: _NUM_BARS - 1], label]
    rows: list[Any] = []
    for k in shown:
        kind = "true" if k == label else "wrong" if k == predicted else "other"
        share = _finite(probabilities[k])
        bar = tag("span", class_=f"bar {kind}", style=f"--share:{100 * share:.1f}%")
        name = tag("span", names[k], class_="name", title=names[k])
        number = tag("span", _percent(probabilities[k]), class_="n")
        rows.append(tag("li", name, tag("span", bar, class_="track"), number, class_=kind))
    return tag("ol", rows, class_="bars")


def _finite(value: float) -> float:
    return value if isfinite(value) else 0.0


def _percent(value: float) -> str:
    if not isfinite(value):
        return "not finite"
    return f"{value:.1%}"
