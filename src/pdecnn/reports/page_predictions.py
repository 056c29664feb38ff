"""Test images on the page, each with the probabilities the network gives."""

from math import isfinite
from typing import Any

from pdecnn.reports.page_confusion import no_test
from pdecnn.reports.page_html import Markup, tag
from pdecnn.reports.page_images import draw_sample
from pdecnn.reports.page_runs import PageRun
from pdecnn.runs.evaluation import Sample

_NUM_BARS = 4


def draw_predictions(run: PageRun) -> Markup:
    """Images at random, the same for every run on a data set."""
    if run.examination is None:
        return tag("p", _without_weights(run), class_="note")
    found, total = run.examination.shown, run.examination.evaluation.num_images
    if not found.places:
        return tag("p", "No images are shown.", class_="note")
    said = f"{len(found.places)} of {total:,} test images, drawn at random."
    return tag("div", tag("p", said), _cards(found, run.class_names))


def draw_wrong(run: PageRun) -> Markup:
    """What the network gets wrong, the most certain first."""
    if run.examination is None:
        return tag("p", _without_weights(run), class_="note")
    found, number = run.examination.wrong, run.examination.num_wrong
    if not number:
        return tag("p", "Every test image is right.")
    if not found.places:
        return tag("p", f"{number:,} images are misclassified; none are shown.", class_="note")
    shown = "All" if len(found.places) == number else f"{len(found.places)} of"
    said = f"{shown} {number:,} misclassified images, those first that the network is surest of."
    return tag("div", tag("p", said), _cards(found, run.class_names))


def _without_weights(run: PageRun) -> str | Markup:
    if run.notice is not None:
        return "The weights are no numbers, so that no image can be tried."
    if run.test is None:
        return no_test(run)
    return f"The run holds no {run.weights} weights any more, so that no image can be tried."


def _cards(sample: Sample, names: list[str]) -> Markup:
    cards = []
    for k, place in enumerate(sample.places):
        label, probabilities = int(sample.labels[k]), sample.probabilities[k].tolist()
        predicted = int(sample.probabilities[k].argmax())
        right = predicted == label
        said = f"test image {place}: {names[label]}"
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
                    tag("p", f"no. {place}", class_="place"),
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
