"""What `pdecnn attack` left in a run, as the page shows it: accuracies and attacked images."""

import base64
import json
from pathlib import Path
from typing import Any, NamedTuple

from pdecnn.diagnostics.attacks import NORMS
from pdecnn.reports.charts import ATTACKS, Chart, Series
from pdecnn.reports.html import Markup, table, tag
from pdecnn.reports.svg import figure

FOLDER = "attack"
_PNG = b"\x89PNG\r\n\x1a\n"
_MOST_BYTES = 8_000_000


class RecordedAttack(NamedTuple):
    """The result for one norm."""

    values: dict[str, Any]
    pairs: bytes | None
    """A PNG with clean images above attacked ones; None: there is none."""


def read_attacks(run: Path, weights: str, *, pairs: bool = True) -> list[RecordedAttack]:
    """What was recorded for these weights, a norm each; nothing that cannot be read.

    Without `pairs` no image is taken along.
    """
    found = []
    for norm in NORMS:
        path = run / FOLDER / f"attack_{norm}.json"
        try:
            values = json.loads(path.read_bytes())
            # What is drawn of it is drawn here once, so that a page never fails of it.
            if values["weights"] == weights and _said(values, "") and _rows(values):
                _chart(values)
                found.append(RecordedAttack(values, _picture(path) if pairs else None))
        except (OSError, LookupError, ValueError, TypeError, RecursionError):
            continue
    return found


def _picture(path: Path) -> bytes | None:
    """The figure of pairs that was written beside the result, if it is one."""
    picture = path.with_name(f"{path.stem}_images.png")
    try:
        content = picture.read_bytes() if picture.stat().st_size <= _MOST_BYTES else b""
    except OSError:
        return None
    return content if content.startswith(_PNG) else None


def draw_attacks(found: list[RecordedAttack], subject: str) -> Markup:
    """For each norm the curves, the table and the pairs, as recorded."""
    if not found:
        return tag("p", "Nothing is recorded: ", tag("code", "pdecnn attack RUN"), class_="note")
    return tag("div", [_draw(attack, subject) for attack in found])


def _draw(attack: RecordedAttack, subject: str) -> Markup:
    values, pairs = attack
    norm = values["results"][0]["norm"]
    names = _names(values)
    header = ("epsilon", *(ATTACKS.get(name, name) for name in names))
    picture = None
    if pairs is not None:
        source = "data:image/png;base64," + base64.b64encode(pairs).decode()
        label = (
            f"Clean {subject}s in the first row, below what attacks of growing epsilon ({norm}) "
            f"make of them, each with the class that is found"
        )
        picture = tag("img", src=source, alt=label, class_="pairs", style="max-width:100%")
    return tag(
        "div",
        tag("p", _said(values, subject)),
        figure(_chart(values)),
        table(header, _rows(values), caption=f"Accuracy under attack, {norm}"),
        picture,
    )


def _said(values: dict[str, Any], subject: str) -> str:
    norm = values["results"][0]["norm"]
    return (
        f"On {values['num_images']:,} test {subject}s, {values['clean_accuracy']:.2%} right before "
        f"any attack; {norm}, {values['restarts']} x {values['num_steps']} steps of PGD and "
        f"APGD."
    )


def _names(values: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(row["attack"] for row in values["results"]))


def _rows(values: dict[str, Any]) -> list[tuple[str, ...]]:
    accuracies = {(row["epsilon"], row["attack"]): row["accuracy"] for row in values["results"]}
    epsilons = dict.fromkeys(row["epsilon"] for row in values["results"])
    return [
        (f"{epsilon:g}", *(f"{accuracies[epsilon, name]:.2%}" for name in _names(values)))
        for epsilon in epsilons
    ]


def _chart(values: dict[str, Any]) -> Chart:
    series = []
    for colour, name in enumerate(_names(values)):
        rows = [row for row in values["results"] if row["attack"] == name]
        series.append(
            Series(
                label=ATTACKS.get(name, name),
                xs=[0.0, *(row["epsilon"] for row in rows)],
                ys=[values["clean_accuracy"], *(row["accuracy"] for row in rows)],
                colour=colour % 6,
            )
        )
    return Chart(
        title="Accuracy under attack",
        series=series,
        x_label=f"epsilon ({values['results'][0]['norm']})",
        y_label="accuracy",
        percent=True,
        whole=False,
    )
