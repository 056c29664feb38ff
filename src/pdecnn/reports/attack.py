"""What `pdecnn attack` left in a run, as the page shows it: accuracies and attacked images."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pdecnn.diagnostics.attacks import NORMS
from pdecnn.reports.charts import ATTACKS, Chart, Series, overlaid
from pdecnn.reports.html import Markup, details, table, tag
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


def draw_attacks(runs: Sequence[tuple[str, int, list[RecordedAttack]]], subject: str) -> Markup:
    """Of runs by name and colour, for each norm the curves in one chart; tables and pairs below."""
    several = len(runs) > 1
    parts: list[object] = []
    for norm in NORMS:
        found = [
            (name, colour, attack)
            for name, colour, attacks in runs
            for attack in attacks
            if attack.values["results"][0]["norm"] == norm
        ]
        if found:
            charts = [(name, colour, _chart(attack.values)) for name, colour, attack in found]
            parts.append(figure(overlaid(charts)))
        for name, _, attack in found:
            parts.append(tag("p", f"{name}: " if several else None, _said(attack.values, subject)))
            shown = _draw(attack, subject)
            parts.append(details(f"Attacks on {name} ({norm})", shown) if several else shown)
    missing = [name for name, _, attacks in runs if not attacks]
    if missing:
        of = f" of {', '.join(missing)}" if several else ""
        command = tag("code", "pdecnn attack RUN")
        parts.append(tag("p", f"Nothing is recorded{of}: ", command, class_="note"))
    return tag("div", parts)


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
    rows = table(header, _rows(values), caption=f"Accuracy under attack, {norm}")
    return tag("div", rows, picture)


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
                main=name == _names(values)[-1],  # the worst comes last
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
