"""The confusion matrix on the page: a table of few classes, a map and lists of many."""

from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdecnn.reports.page_html import Markup, details, join, scrolling, table, tag
from pdecnn.reports.page_runs import PageRun

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
        f"{correct:,} of {total:,} test images are right: {test['accuracy']:.2%}. Rows are true "
        f"classes, columns predicted ones; the stronger the colour, the larger the share of a row.",
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
    header = ("true class", "taken for", "images", "of the class")
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
    header = ("class", "images", "right")
    caption = "Accuracy of every class, the worst first"
    listed = table(header, rows, caption=caption, class_="listed")
    return details(f"All {len(names)} classes, the worst first", listed)


def _numbered(names: list[str], k: int) -> Markup:
    """The number first: long names are cut off at their end."""
    return tag("span", f"{k} · {names[k]}", title=names[k])


def _share(value: float | None) -> str:
    return "no images" if value is None else f"{value:.1%}"
