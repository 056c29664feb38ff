"""What `pdecnn attack` found, in tables and charts, and what of it was left in a run."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pdecnn.diagnostics.attacks import NORMS
from pdecnn.learning.tasks import Classification, Denoising, Segmentation
from pdecnn.reports.charts import ATTACKS, Chart, Series, overlaid
from pdecnn.reports.html import Markup, details, table, tag
from pdecnn.reports.svg import figure
from pdecnn.reports.terminal import NORM_WORDS, make_console, number_table, print_files
from pdecnn.runs.field_attack import FieldAttackReport

FOLDER = "attack"
_PNG = b"\x89PNG\r\n\x1a\n"
_MOST_BYTES = 8_000_000
_TASKS = {task.score: task for task in (Classification, Denoising, Segmentation)}


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
            if values["weights"] == weights and _said(values, "") and attack_table(values)[1]:
                attack_chart(values)
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
            charts = [(name, colour, attack_chart(one.values)) for name, colour, one in found]
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


def print_field_attack(found: FieldAttackReport, files: Sequence[Path]) -> None:
    """The figures of the task without and under attack, and where the files are."""
    console = make_console()
    console.print(
        f"{found.run}: {found.recipe}, {found.weights} weights, {found.num_images:,} test "
        f"{found.subject}s",
        soft_wrap=True,
    )
    console.print(f"\nUnder attack, {found.norm}: changing {NORM_WORDS[found.norm]}", style="bold")
    header, rows = attack_table(found.to_dict())
    shown = number_table(*header, num_names=2)
    for row in rows:
        shown.add_row(*row)
    console.print(shown)
    console.print(
        f"{found.units} The loss is raised; PGD and APGD: {found.restarts} x {found.num_steps} "
        f"steps, seed {found.seed}. Amplification: the largest change of an answer as a multiple "
        f"of that of its {found.subject}, in L2.",
        style="dim",
    )
    print_files(console, files)


def _draw(attack: RecordedAttack, subject: str) -> Markup:
    values, pairs = attack
    norm = values["results"][0]["norm"]
    header, found = attack_table(values)
    picture = None
    if pairs is not None:
        source = "data:image/png;base64," + base64.b64encode(pairs).decode()
        label = (
            f"Clean {subject}s in the first row, below what attacks of growing epsilon ({norm}) "
            f"make of them, each with the class that is found"
        )
        picture = tag("img", src=source, alt=label, class_="pairs", style="max-width:100%")
    rows = table(header, found, caption=f"{_score(values)[1]} under attack, {norm}")
    return tag("div", rows, picture)


def _said(values: dict[str, Any], subject: str) -> str:
    norm = values["results"][0]["norm"]
    if "score" in values:
        key, label, percent = _score(values)
        before = f"{label} {format(values['clean'][key], '.2%' if percent else '.2f')}"
    else:
        before = f"{values['clean_accuracy']:.2%} right"
    return (
        f"On {values['num_images']:,} test {subject}s, {before} before "
        f"any attack; {norm}, {values['restarts']} x {values['num_steps']} steps of PGD and "
        f"APGD."
    )


def _score(values: dict[str, Any]) -> tuple[str, str, bool]:
    """The key of the score, what people call it, and whether it is a share."""
    task = _TASKS[values.get("score", Classification.score)]
    return task.score, task.label[0].upper() + task.label[1:], task.percent


def attack_table(values: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows: accuracies, an attack a column, or the figures of a task, one a row."""
    if "score" not in values:
        return ("epsilon", *(ATTACKS.get(name, name) for name in _names(values))), _rows(values)
    clean = {"epsilon": 0.0, "attack": None, "amplification": None, **values["clean"]}
    rows = [_figures(row) for row in (clean, *values["results"])]
    return tuple(rows[0]), [tuple(row.values()) for row in rows]


def _figures(row: dict[str, Any]) -> dict[str, str]:
    """The figures of a task under one attack, in words."""
    found = {"epsilon": f"{row['epsilon']:g}", "attack": ATTACKS.get(row["attack"], "none")}
    if "psnr" in row:
        found |= {"PSNR in dB": f"{row['psnr']:.2f}", "SSIM": _number(row["ssim"], ".4f")}
    for label, share in row.get("dice", {}).items():
        found[f"Dice of {label}"] = _number(share, ".1%")
    loss, amplification = _number(row["loss"], ".4g"), _number(row["amplification"], ".3f")
    return found | {"loss": loss, "amplification": amplification}


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _names(values: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(row["attack"] for row in values["results"]))


def _rows(values: dict[str, Any]) -> list[tuple[str, ...]]:
    accuracies = {(row["epsilon"], row["attack"]): row["accuracy"] for row in values["results"]}
    epsilons = dict.fromkeys(row["epsilon"] for row in values["results"])
    return [
        (f"{epsilon:g}", *(f"{accuracies[epsilon, name]:.2%}" for name in _names(values)))
        for epsilon in epsilons
    ]


def attack_chart(values: dict[str, Any]) -> Chart:
    """The score against epsilon, a curve for each attack."""
    key, label, percent = _score(values)
    clean = values["clean"][key] if "score" in values else values["clean_accuracy"]
    series = []
    for colour, name in enumerate(_names(values)):
        rows = [row for row in values["results"] if row["attack"] == name]
        series.append(
            Series(
                label=ATTACKS.get(name, name),
                xs=[0.0, *(row["epsilon"] for row in rows)],
                ys=[clean, *(row[key] for row in rows)],
                colour=colour % 6,
                main=name == _names(values)[-1],  # the worst comes last
            )
        )
    return Chart(
        title=f"{label} under attack",
        series=series,
        x_label=f"epsilon ({values['results'][0]['norm']})",
        y_label=label[0].lower() + label[1:] if percent else label,
        percent=percent,
        whole=False,
    )
