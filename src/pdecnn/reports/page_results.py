"""What the page shows of training and test: curves, confusion matrix, images."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import isfinite, sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pdecnn.data.augmentation import cpu_generator
from pdecnn.reports.charts import (
    channels_words,
    commonest_errors,
    convergence_charts,
    distinct,
    lines_in_words,
    rates_in_words,
)
from pdecnn.reports.html import Markup, details, draw_sample, folded, join, scrolling, table, tag
from pdecnn.reports.page_runs import PageRun
from pdecnn.reports.page_summary import swatched, written
from pdecnn.reports.svg import draw_chart, legend
from pdecnn.runs.preparation import SHOWN_IMAGES

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
    panels = [
        tag(
            "figure",
            tag("figcaption", chart.title),
            draw_chart(replace(chart, title=f"{chart.title} against the epoch")),
        )
        for chart in charts
    ]
    return tag(
        "div",
        tag("div", panels, class_="charts"),
        legend(charts[-1]),
        [tag("p", _said(run, several=len(runs) > 1)) for run in runs],
        folded(_numbers(run) for run in trained),
    )


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
    if not several and (lines := lines_in_words(run.metrics)):
        words.append(lines)
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
    rows = [[written(entry.get(key), form) for _, key, form in columns] for entry in run.metrics]
    title = f"All epochs of {run.name}"
    return details(title, table([name for name, _, _ in columns], rows, caption=title))


_MOST_NUMBERED_CLASSES = 20
_MOST_MAPPED_CLASSES = 200
_NUM_LISTED = 15
_NUM_SHADES = 8
_SHORT = 3


def draw_classes(runs: Sequence[PageRun]) -> Markup:
    """Of one run the confusion matrix; of several how good each is at every class, then those."""
    if len(runs) == 1:
        return _confusion(runs[0])
    tested = [run for run in runs if run.test is not None]
    groups: dict[tuple[str, ...], list[PageRun]] = {}
    for run in tested:
        groups.setdefault(tuple(run.class_names), []).append(run)
    return tag(
        "div",
        [tag("p", f"{run.name}: ", no_test(run), class_="note") for run in runs if not run.test],
        [_classes(group, names) for names, group in groups.items()],
        folded(details(f"Confusion matrix of {run.name}", _confusion(run)) for run in tested),
    )


def _classes(runs: Sequence[PageRun], names: Sequence[str]) -> Markup:
    """A row a class that some run gets wrong, the hardest first; the best run is strong."""
    shares = [[(run.test or {})["per_class"][name] for run in runs] for name in names]
    hard = [k for k in range(len(names)) if set(shares[k]) - {1, None}]
    hard.sort(key=lambda k: sum(share or 0.0 for share in shares[k]))
    rows = []
    for k in hard[:_MOST_NUMBERED_CLASSES]:
        best = max(share or 0.0 for share in shares[k])
        told_apart = any(share != best for share in shares[k])
        cells = [
            tag("strong" if told_apart and share == best else "span", _share(share))
            for share in shares[k]
        ]
        rows.append((tag("span", names[k], title=names[k]), *cells))
    most = "" if len(rows) == len(hard) else f", the {len(rows)} hardest of them"
    words = f"{len(hard)} of {len(names)} classes that some run gets wrong{most}:"
    header = ("class", *(swatched(run) for run in runs))
    listed = table(header, rows, caption="Accuracy of the runs in each class", class_="listed")
    if not rows:
        return tag("p", f"Every run is right in all {len(names)} classes.")
    return tag("div", tag("p", words), listed)


def _confusion(run: PageRun) -> Markup:
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
            tag("code", f"pdecnn train --output {run.run.folder} --resume"),
            ".",
        ]
    )


def _matrix(counts: NDArray[np.int64], names: list[str], per_class: dict[str, Any]) -> Markup:
    class_ = "short" if max(map(len, names)) <= _SHORT else "long"
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
    rows = [
        (*(_numbered(names, k) for k in pair), number, f"{number / counts[pair[0]].sum():.1%}")
        for number, *pair in commonest_errors(counts, _NUM_LISTED)
    ]
    if not rows:
        return tag("p", "No errors.")
    header = ("true class", "taken for", "number", "of the class")
    return tag(
        "div",
        tag("h3", "Commonest errors"),
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


def draw_images(runs: Sequence[PageRun]) -> Markup:
    """A row an image with a bar a run; of runs on different images a list for each."""
    parts: list[object] = [
        tag(
            "p",
            f"{run.name}: " if len(runs) > 1 else None,
            f"The weights are no numbers, so that no {run.subject} can be tried."
            if run.notice is not None
            else no_test(run)
            if run.test is None
            else f"The run holds no {run.weights} weights any more, so that no {run.subject} can "
            f"be tried.",
            class_="note",
        )
        for run in runs
        if run.examination is None
    ]
    groups: dict[object, list[PageRun]] = {}
    for run in runs:
        if run.examination is not None:
            groups.setdefault(run.test_images, []).append(run)
    for group in groups.values():
        title = ", ".join(run.name for run in group)
        parts.append(tag("h3", title) if len(groups) > 1 else None)
        parts.append(_images(group))
    return tag("div", parts)


def _images(runs: Sequence[PageRun]) -> Markup:
    """Those first on which the runs disagree, then those all get wrong, then others at random."""
    found = [run.examination for run in runs if run.examination is not None]
    labels, subject = found[0].labels, runs[0].subject
    predicted = torch.stack([one.predicted for one in found])
    disagreed = (predicted != predicted[0]).any(0)
    wrong = (predicted != labels).all(0) & ~disagreed
    # Surest first: there is most to be learned from what a network is sure of.
    doubt = 1 - torch.stack([one.certainty for one in found]).nan_to_num().mean(0)
    chance = torch.randperm(len(labels), generator=cpu_generator(SHOWN_IMAGES)) / len(labels)
    rank = torch.where(disagreed, doubt, torch.where(wrong, 2 + doubt, 4 + chance))
    chosen = torch.argsort(rank, stable=True)[: runs[0].num_images]
    images = found[0].images[chosen].cpu() if len(chosen) else torch.empty(0)
    rows = [
        _row(runs, int(place), image.numpy())
        for place, image in zip(chosen.tolist(), images, strict=True)
    ]
    said = f"Of {len(labels):,} test {subject}s "
    if len(runs) > 1:
        said += f"the runs disagree on {int(disagreed.sum()):,} and get "
        said += f"{int(wrong.sum()):,} wrong in the same way. "
    else:
        number = int(wrong.sum())
        said += {0: "none is", 1: "1 is"}.get(number, f"{number:,} are") + " misclassified. "
    if not rows:
        return tag("p", f"{said}None are shown.")
    said += (
        "These come first, the most confident answers at the top; the others are drawn at random. "
        if (disagreed | wrong).any()
        else "Those shown are drawn at random. "
    )
    said += "Full bars are right answers, hatched ones wrong."
    names = tag("p", [swatched(run) for run in runs], class_="legend") if len(runs) > 1 else None
    class_ = "images several" if len(runs) > 1 else "images"
    return tag("div", tag("p", said), names, tag("ul", rows, class_=class_))


def _row(runs: Sequence[PageRun], place: int, image: NDArray[Any]) -> Markup:
    """An image, its true class, and what each run takes it for."""
    assert runs[0].examination is not None
    name = runs[0].class_names[int(runs[0].examination.labels[place])]
    words = ", ".join(filter(None, (f"no. {place}", channels_words(image.shape))))
    return tag(
        "li",
        draw_sample(image, f"test {runs[0].subject} {place}: {name}"),
        tag(
            "div",
            tag("p", tag("b", name, title=name), class_="truth"),
            tag("p", words, class_="place"),
        ),
        tag("div", [_answer(run, place) for run in runs], class_="answers"),
    )


def _answer(run: PageRun, place: int) -> Markup:
    """A bar as long as the run is sure, and the class it is sure of."""
    found = run.examination
    assert found is not None
    predicted, certainty = int(found.predicted[place]), float(found.certainty[place])
    right = predicted == int(found.labels[place])
    name = run.class_names[predicted]
    share = 100 * certainty if isfinite(certainty) else 0.0
    bar = tag("span", class_="bar right" if right else "bar wrong", style=f"--share:{share:.1f}%")
    mark = tag("span", "✓" if right else "✗", class_="good" if right else "bad")
    spoken = tag("span", f" {run.name}: {'right' if right else 'wrong'}, ", class_="unseen")
    truth = None if right else f", {_percent(float(found.truth[place]))} for the truth"
    said = [mark, spoken, " ", tag("b", name, title=name), f" {_percent(certainty)}", truth]
    return tag(
        "div",
        tag("span", bar, class_="track"),
        tag("p", said),
        class_=f"answer c{run.place % 6}",
        title=run.name,
    )


def _percent(value: float) -> str:
    return f"{value:.1%}" if isfinite(value) else "not finite"
