"""What `pdecnn attack` found and `pdecnn certify` proved: in the terminal, and on the page."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from pdecnn.diagnostics.attacks import NORMS
from pdecnn.files import read_bytes
from pdecnn.learning.tasks import AbstractTask, Classification, Denoising, Segmentation
from pdecnn.reports.charts import ATTACKS, Chart, Series, overlaid
from pdecnn.reports.diagnosis import largest_factor_words
from pdecnn.reports.html import Markup, data_uri, details, table, tag
from pdecnn.reports.svg import figure
from pdecnn.reports.terminal import Table, make_console, print_files, terminal_table
from pdecnn.runs.certification import CertificateReport
from pdecnn.runs.diagnosis import AttackReport
from pdecnn.runs.field_attack import FieldAttackReport

ATTACK, CERTIFICATE = "attack", "certificate"
"""The folders of a run that the commands write into."""
_PNG, _MOST_BYTES = b"\x89PNG\r\n\x1a\n", 8_000_000
_NORMS = {"linf": "each number by at most epsilon", "l2": "all numbers by at most epsilon (L2)"}
_TASKS: dict[str, type[AbstractTask]] = {
    task.score: task for task in (Classification, Denoising, Segmentation)
}
_CERTIFIED = ("radius", "certified", "attacked")
_NOTE = (
    "certified: right, and proved to stay so under any perturbation of at most that length (L2, in "
    "units of the input after resizing); attacked: no perturbation found by APGD. The truth lies "
    "between."
)


class RecordedAttack(NamedTuple):
    """The result for one norm."""

    values: dict[str, Any]
    pairs: bytes | None
    """A PNG with clean images above attacked ones; None: there is none."""


def print_attack(
    found: AttackReport, files: Sequence[Path], console: Console | None = None
) -> None:
    """The tables of accuracies, and where the files are."""
    console = console or make_console()
    console.print(
        f"{found.run}: {found.recipe}, {found.weights} weights, {found.clean_accuracy:.2%} of "
        f"{found.num_images:,} test {found.subject}s right",
        soft_wrap=True,
    )
    norm = found.results[0].norm
    console.print(f"\nUnder attack, {norm}: changing {_NORMS[norm]}", style="bold")
    console.print(terminal_table(_attack_table(found.to_dict())))
    if found.notice is not None:
        console.print(found.notice)
    console.print(
        f"{found.units} PGD and APGD: {found.restarts} x {found.num_steps} steps, seed "
        f"{found.seed}. One counts if it is right as it is, and so is everything that an attack "
        f"tries; for 'worst', that all attacks try.",
        style="dim",
    )
    console.print(f"\nOn {found.subject}s made worse", style="bold")
    rows = [(one.corruption, f"{one.amount:g}", f"{one.accuracy:.2%}") for one in found.corruptions]
    console.print(terminal_table(Table("", ("corruption", "amount", "accuracy"), rows)))
    console.print(
        "noise: deviation in the numbers; blur: deviation in grid points; contrast: what is left.",
        style="dim",
    )
    print_files(console, files)


def print_field_attack(found: FieldAttackReport, files: Sequence[Path]) -> None:
    """The figures of the task without and under attack, and where the files are."""
    console = make_console()
    console.print(
        f"{found.run}: {found.recipe}, {found.weights} weights, {found.num_images:,} test "
        f"{found.subject}s",
        soft_wrap=True,
    )
    console.print(f"\nUnder attack, {found.norm}: changing {_NORMS[found.norm]}", style="bold")
    console.print(terminal_table(_attack_table(found.to_dict())))
    console.print(
        f"{found.units} The loss is raised; PGD and APGD: {found.restarts} x {found.num_steps} "
        f"steps, seed {found.seed}. Amplification: the largest change of an answer as a multiple "
        f"of that of its {found.subject}, in L2.",
        style="dim",
    )
    print_files(console, files)


def print_certificate(found: CertificateReport, files: Sequence[Path]) -> None:
    """The table of both accuracies, L with its factors, and where the files are."""
    console, certificate = make_console(), found.certificate
    console.print(
        f"{found.run}: {found.recipe}, {found.weights} weights, "
        f"{certificate.clean_accuracy:.2%} of {certificate.num_images:,} test "
        f"{found.subject}s right",
        soft_wrap=True,
    )
    largest = largest_factor_words(certificate.factors)
    console.print(f"L = {certificate.lipschitz:.6g}{largest}")
    rows = _certified_rows(found.to_dict())
    console.print(terminal_table(Table("", _CERTIFIED, rows, num_names=0)))
    console.print(_NOTE, style="dim")
    for notice in found.notices:
        console.print(notice, soft_wrap=True)
    print_files(console, files)


def read_attacks(run: Path, weights: str, *, pairs: bool = True) -> list[RecordedAttack]:
    """What was recorded for these weights, a norm each; nothing that cannot be read.

    Without `pairs` no image is taken along.
    """
    found = []
    for norm in NORMS:
        path = run / ATTACK / f"attack_{norm}.json"
        try:
            values = json.loads(read_bytes(path))
            # What is drawn of it is drawn here once, so that a page never fails of it.
            if values["weights"] == weights and _said(values, "") and _attack_table(values).rows:
                attack_chart(values)
                images = path.with_name(f"{path.stem}_images.png")
                found.append(RecordedAttack(values, read_png(images) if pairs else None))
        except (OSError, LookupError, ValueError, TypeError, RecursionError):
            continue
    return found


def read_certificate(run: Path, weights: str) -> dict[str, Any] | None:
    """What `pdecnn certify` wrote into a run for these weights; None: nothing that can be read."""
    try:
        values = json.loads(read_bytes(run / CERTIFICATE / "certificate.json"))
        return values if values["weights"] == weights and certificate_chart(values) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def read_png(path: Path) -> bytes | None:
    """A picture of no more than a few megabytes; None where there is none."""
    try:
        content = read_bytes(path) if path.stat().st_size <= _MOST_BYTES else b""
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
        charts = [(name, colour, attack_chart(attack.values)) for name, colour, attack in found]
        parts.append(figure(overlaid(charts)) if found else None)
        for name, _, attack in found:
            parts.append(tag("p", f"{name}: " if several else None, _said(attack.values, subject)))
            shown = _draw_attack(attack, subject)
            parts.append(details(f"Attacks on {name} ({norm})", shown) if several else shown)
    parts.append(_missing("attack", [name for name, _, attacks in runs if not attacks]))
    return tag("div", parts)


def draw_certificates(runs: Sequence[tuple[str, int, dict[str, Any] | None]]) -> Markup:
    """Of runs by name and colour, the curves in one chart and a table each, as recorded."""
    several = len(runs) > 1
    found = [(name, colour, values) for name, colour, values in runs if values is not None]
    charts = [(name, colour, certificate_chart(values)) for name, colour, values in found]
    parts: list[object] = [figure(overlaid(charts))]
    for name, _, values in found:
        lipschitz = values["lipschitz"]
        said = (
            f"On {values['num_images']:,} of the test set; the Lipschitz constant of the network "
            f"is {'beyond all numbers' if lipschitz is None else format(lipschitz, '.6g')}."
        )
        title = f"Certified accuracy of {name}" if several else "Certified accuracy"
        rows = table(_CERTIFIED, _certified_rows(values), caption=title)
        notices = [tag("p", f"{notice}.", class_="note") for notice in values["notices"]]
        parts.append(tag("p", f"{name}: " if several else None, said))
        parts.append(details(title, rows, notices) if several else [rows, notices])
    parts.append(tag("p", _NOTE, class_="note"))
    parts.append(_missing("certify", [name for name, _, values in runs if values is None]))
    return tag("div", parts)


def _missing(command: str, names: Sequence[str]) -> Markup | None:
    if not names:
        return None
    words = f"Nothing is recorded of {', '.join(names)}: "
    return tag("p", words, tag("code", f"pdecnn {command} RUN"), class_="note")


def _draw_attack(attack: RecordedAttack, subject: str) -> Markup:
    values, pairs = attack
    norm = values["results"][0]["norm"]
    picture = None
    if pairs is not None:
        answers = "their answers" if "score" in values else "the class that is found"
        label = (
            f"Clean {subject}s in the first row, below what attacks of growing epsilon ({norm}) "
            f"make of them, each with {answers}"
        )
        picture = tag("img", src=data_uri(pairs), alt=label, class_="pairs", style="max-width:100%")
    shown = _attack_table(values)
    return tag("div", table(shown.header, shown.rows, caption=shown.title), picture)


def _said(values: dict[str, Any], subject: str) -> str:
    norm = values["results"][0]["norm"]
    if "score" in values:
        task = _task_of(values)
        clean = format(values["clean"][task.score], ".2%" if task.percent else ".2f")
        before = f"{task.label} {clean}"
    else:
        before = f"{values['clean_accuracy']:.2%} right"
    return (
        f"On {values['num_images']:,} test {subject}s, {before} before any attack; {norm}, "
        f"{values['restarts']} x {values['num_steps']} steps of each attack but FGSM."
    )


def _task_of(values: dict[str, Any]) -> type[AbstractTask]:
    return _TASKS[values.get("score", Classification.score)]


def _title(task: type[AbstractTask]) -> str:
    return task.label[0].upper() + task.label[1:]


def _names(values: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(row["attack"] for row in values["results"]))


def _attack_table(values: dict[str, Any]) -> Table:
    """Accuracies, an attack a column, or the figures of another task, an attack a row."""
    results, names = values["results"], _names(values)
    title = f"{_title(_task_of(values))} under attack, {results[0]['norm']}"
    if "score" in values:
        clean = {"epsilon": 0.0, "attack": None, "amplification": None, **values["clean"]}
        figures = [_figures(row) for row in (clean, *results)]
        return Table(
            title, tuple(figures[0]), [tuple(row.values()) for row in figures], num_names=2
        )
    accuracies = {(row["epsilon"], row["attack"]): row["accuracy"] for row in results}
    rows = [
        (f"{epsilon:g}", *(f"{accuracies[epsilon, name]:.2%}" for name in names))
        for epsilon in dict.fromkeys(row["epsilon"] for row in results)
    ]
    return Table(title, ("epsilon", *(ATTACKS.get(name, name) for name in names)), rows)


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


def _certified_rows(values: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            _radius_text(row["radius"]),
            f"{row['certified_accuracy']:.2%}",
            "-" if row["attacked_accuracy"] is None else f"{row['attacked_accuracy']:.2%}",
        )
        for row in values["results"]
    ]


def _radius_text(radius: float) -> str:
    """Such as 36/255, or as a number."""
    steps = round(255 * radius)
    whole = 0 < steps < 255 and abs(steps / 255 - radius) < 1e-12
    return f"{steps}/255" if whole else f"{radius:.4g}"


def attack_chart(values: dict[str, Any]) -> Chart:
    """The score against epsilon, a curve for each attack."""
    task, names, series = _task_of(values), _names(values), []
    clean = values["clean"][task.score] if "score" in values else values["clean_accuracy"]
    for colour, name in enumerate(names):
        rows = [row for row in values["results"] if row["attack"] == name]
        series.append(
            Series(
                label=ATTACKS.get(name, name),
                xs=[0.0, *(row["epsilon"] for row in rows)],
                ys=[clean, *(row[task.score] for row in rows)],
                colour=colour % 6,
                main=name == names[-1],  # the worst comes last
            )
        )
    label = f"epsilon ({values['results'][0]['norm']})"
    return _curves(f"{_title(task)} under attack", series, label, task)


def certificate_chart(values: dict[str, Any]) -> Chart:
    """Accuracy against the radius: what is proved from below, what attacks leave from above."""
    curve = values["curve"]
    radii, shares = curve["radii"], curve["certified_accuracies"]
    series = [Series(label="certified", xs=radii, ys=shares, colour=0, main=True)]
    attacked = [row for row in values["results"] if row["attacked_accuracy"] is not None]
    if attacked:
        series.append(
            Series(
                label="attacked (APGD)",
                xs=[0.0, *(row["radius"] for row in attacked)],
                ys=[values["clean_accuracy"], *(row["attacked_accuracy"] for row in attacked)],
                colour=1,
                dashed=True,
                main=True,
            )
        )
    return _curves("Certified accuracy", series, "radius (L2)", Classification)


def _curves(title: str, series: Sequence[Series], x_label: str, task: type[AbstractTask]) -> Chart:
    return Chart(
        title=title,
        series=series,
        x_label=x_label,
        y_label=task.label,
        percent=task.percent,
        whole=False,
    )
