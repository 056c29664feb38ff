"""What `pdecnn certify` leaves behind: JSON, CSV and the figure of both curves."""

import csv
import json
from io import StringIO
from pathlib import Path

from pdecnn.errors import ConfigError, system_errors_as
from pdecnn.files import write_all
from pdecnn.reports.certificate import FILE, certificate_chart
from pdecnn.reports.style import draw_charts, journal_style, render
from pdecnn.runs.certification import CertificateReport


def write_certificate(found: CertificateReport, folder: Path) -> list[Path]:
    """certificate.json, images.csv with a radius for every image, and the figure of both curves."""
    values = found.to_dict()
    contents = {
        FILE: (json.dumps(values, indent=2, allow_nan=False) + "\n").encode(),
        "images.csv": _csv(found),
    }
    with system_errors_as(ConfigError, f"{folder}: cannot be written"), journal_style():
        folder.mkdir(parents=True, exist_ok=True)
        drawn = draw_charts([certificate_chart(values)])
        drawn.suptitle(f"{found.recipe}, {found.certificate.num_images:,} test {found.subject}s")
        return write_all(folder, contents | render("certificate", drawn))


def _csv(found: CertificateReport) -> bytes:
    stream = StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("index", "label", "prediction", "radius"))
    certificate = found.certificate
    columns = (part.tolist() for part in (certificate.labels, certificate.predictions))
    radii = map(repr, certificate.radii.tolist())
    writer.writerows(zip(found.places, *columns, radii, strict=True))
    return stream.getvalue().encode()
