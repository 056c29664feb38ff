"""A certificate in words, tables and curves, as terminal, page and figure show it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from pdecnn.reports.charts import Chart, Series, overlaid
from pdecnn.reports.diagnosis import largest_factor_words
from pdecnn.reports.html import Markup, details, table, tag
from pdecnn.reports.svg import figure
from pdecnn.reports.terminal import make_console, number_table, print_files
from pdecnn.runs.certification import CertificateReport

FOLDER, FILE = "certificate", "certificate.json"
_NOTE = (
    "certified: right, and proved to stay so under any perturbation of at most that length (L2, in "
    "units of the input after resizing); attacked: no perturbation found by APGD. The truth lies "
    "between."
)


def certificate_chart(values: dict[str, Any]) -> Chart:
    """Accuracy against the radius: what is proved from below, what attacks leave from above."""
    curve, results = values["curve"], values["results"]
    attacked = [row for row in results if row["attacked_accuracy"] is not None]
    series = [
        Series(
            label="certified",
            xs=curve["radii"],
            ys=curve["certified_accuracies"],
            colour=0,
            main=True,
        )
    ]
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
    return Chart(
        title="Certified accuracy",
        series=series,
        x_label="radius (L2)",
        y_label="accuracy",
        percent=True,
        whole=False,
    )


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
    console.print(_results_table(found))
    console.print(_NOTE, style="dim")
    for notice in found.notices:
        console.print(notice, soft_wrap=True)
    print_files(console, files)


def _results_table(found: CertificateReport) -> Table:
    rows = number_table("radius", "certified", "attacked", num_names=0)
    for row in _rows(found.to_dict()):
        rows.add_row(*row)
    return rows


def _rows(values: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            radius_text(row["radius"]),
            f"{row['certified_accuracy']:.2%}",
            "-" if row["attacked_accuracy"] is None else f"{row['attacked_accuracy']:.2%}",
        )
        for row in values["results"]
    ]


def radius_text(radius: float) -> str:
    """Such as 36/255, or as a number."""
    steps = round(255 * radius)
    whole = 0 < steps < 255 and abs(steps / 255 - radius) < 1e-12
    return f"{steps}/255" if whole else f"{radius:.4g}"


def read_certificate(run: Path, weights: str) -> dict[str, Any] | None:
    """What `pdecnn certify` wrote into a run for these weights; None: nothing that can be read."""
    try:
        values = json.loads((run / FOLDER / FILE).read_bytes())
        return values if values["weights"] == weights and certificate_chart(values) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def draw_certificates(runs: Sequence[tuple[str, int, dict[str, Any] | None]]) -> Markup:
    """Of runs by name and colour, the curves in one chart and a table each, as recorded."""
    several = len(runs) > 1
    found = [(name, colour, values) for name, colour, values in runs if values is not None]
    parts: list[object] = [
        figure(overlaid([(name, colour, certificate_chart(one)) for name, colour, one in found]))
    ]
    for name, _, values in found:
        lipschitz = values["lipschitz"]
        said = (
            f"On {values['num_images']:,} of the test set; the Lipschitz constant of the network "
            f"is {'beyond all numbers' if lipschitz is None else format(lipschitz, '.6g')}."
        )
        title = f"Certified accuracy of {name}" if several else "Certified accuracy"
        rows = table(("radius", "certified", "attacked"), _rows(values), caption=title)
        notices = [tag("p", f"{notice}.", class_="note") for notice in values["notices"]]
        parts.append(tag("p", f"{name}: " if several else None, said))
        parts.append(details(title, rows, notices) if several else [rows, notices])
    parts.append(tag("p", _NOTE, class_="note"))
    missing = [name for name, _, values in runs if values is None]
    if missing:
        command = tag("code", "pdecnn certify RUN")
        words = f"Nothing is recorded of {', '.join(missing)}: "
        parts.append(tag("p", words, command, class_="note"))
    return tag("div", parts)
