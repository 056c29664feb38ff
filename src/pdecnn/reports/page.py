"""`pdecnn report`: runs as one HTML file that opens from the disk and asks for nothing else."""

import base64
import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from pdecnn.errors import ConfigError, system_errors_as
from pdecnn.files import write_atomically
from pdecnn.reports.html import Markup, tag
from pdecnn.reports.page_blocks import draw_diagnosis, draw_pde
from pdecnn.reports.page_fields import (
    draw_field_convergence,
    draw_field_images,
    draw_field_summary,
    read_field_runs,
)
from pdecnn.reports.page_results import draw_classes, draw_convergence, draw_images
from pdecnn.reports.page_runs import PageRun, ShownRun, names_of, read_page_runs
from pdecnn.reports.page_summary import draw_config, draw_summary
from pdecnn.reports.robustness import draw_attacks, draw_certificates
from pdecnn.runs.preparation import Device, make_run_task
from pdecnn.runs.runs import Run, Weights, as_run
from pdecnn.version import __version__

log = logging.getLogger(__name__)
_FOLDERS = {
    ("pictures", 2): ("of clean images", "hamiltonian_denoising"),
    ("segmented", 2): ("with images and labels in it", "hamiltonian_segmentation"),
    ("segmented", 3): ("with images and labels in it", "hamiltonian_segmentation_volumes"),
    ("sounds", 1): ("one subfolder a class", "hamiltonian_sounds"),
}
_OF_IMAGES = ("one subfolder a class", "hamiltonian_images")
_ICON = "data:image/svg+xml," + (
    "%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath d='M1 8q3.5-9 7 0t7 "
    "0' fill='none' stroke='%23E8850C' stroke-width='2'/%3E%3C/svg%3E"
)


def report(
    runs: str | Path | Run | Sequence[str | Path | Run],
    output: str | Path = "report.html",
    *,
    data: str | Path | Sequence[str | Path] = (),
    weights: Weights = "best",
    num_images: int = 12,
    diagnosis: bool = True,
    device: Device = "auto",
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Write runs side by side as one HTML file, and return its path.

    `data` says where the data of the runs lie now: nothing, one place for all, or one for each.
    What is wrong with the weights of a run is logged as a warning.
    """
    runs = [runs] if isinstance(runs, str | Path | Run) else runs
    data = [data] if isinstance(data, str | Path) else data
    if not runs:
        raise ConfigError("a report is of one run at least, found none")
    output = Path(output)
    check_output(output)
    opened = [as_run(run) for run in runs]
    tasks = [make_run_task(run.config) for run in opened]
    if not any(task.has_classes for task in tasks):
        if len({type(task) for task in tasks}) > 1:
            raise ConfigError(
                "denoisers and networks that segment do not share a report; make one of each kind"
            )
        if data or weights != "best":
            raise ConfigError(
                "of answers for each pixel the report shows what runs recorded; leave out --data "
                "and --weights, or use `pdecnn evaluate`"
            )
        fields = read_field_runs(opened, names_of(opened), num_images=num_images)
        parts = [
            ("summary", "Summary", draw_field_summary(fields)),
            ("convergence", "Convergence", draw_field_convergence(fields)),
            ("images", "Test images", draw_field_images(fields, num_images)),
            *_attacks(fields),
            ("configuration", "Configuration", draw_config(fields)),
        ]
        _write(_make_document(fields, parts), output)
        return output
    found = read_page_runs(
        [run.folder for run in opened],
        data=[Path(place) for place in data],
        weights=weights,
        device=device,
        num_images=num_images,
        diagnosis=diagnosis,
        say=say,
    )
    write_page(found, output)
    for notice in filter(None, (run.notice for run in found)):
        log.warning(notice)
    return output


def check_output(path: Path) -> None:
    """Refuse what cannot become the page before anything is computed."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"{path}: the report is a page; choose a name that ends in .html")
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder; choose another --output")
    with system_errors_as(ConfigError, f"{path}: cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)


def write_page(runs: Sequence[PageRun], path: Path) -> None:
    """Write the page of some runs; the same runs give the same bytes."""
    _write(make_page(runs), path)


def _write(page: str, path: Path) -> None:
    with system_errors_as(ConfigError, f"{path}: cannot be written"):
        write_atomically(path, page.encode(errors="replace"))


Part = tuple[str, str, Markup]
"""Anchor, title and content of a part."""


def make_page(runs: Sequence[PageRun]) -> str:
    """The whole document of runs with classes."""
    (subject, *others) = dict.fromkeys(run.subject for run in runs)
    parts = [
        ("summary", "Summary", draw_summary(runs)),
        ("convergence", "Convergence", draw_convergence(runs)),
        ("images", f"Test {'samples' if others else f'{subject}s'}", draw_images(runs)),
        ("classes", "Classes", draw_classes(runs)),
        *_attacks(runs),
    ]
    if any(run.certificate is not None for run in runs):
        certificates = [(run.name, run.place, run.certificate) for run in runs]
        parts.append(("certificate", "Certificate", draw_certificates(certificates)))
    parts += [
        ("diagnostics", "Diagnostics", draw_diagnosis(runs)),
        ("pde", "Learned PDE", draw_pde(runs)),
        ("configuration", "Configuration", draw_config(runs)),
    ]
    return _make_document(runs, parts)


def _attacks(runs: Sequence[ShownRun]) -> list[Part]:
    """The part of what is recorded of any of them, if something is."""
    if not any(run.attacks for run in runs):
        return []
    recorded = [(run.name, run.place, run.attacks) for run in runs]
    return [("attacks", "Attacks", draw_attacks(recorded, runs[0].subject))]


def _make_document(runs: Sequence[ShownRun], parts: Sequence[Part]) -> str:
    style, script = (_read(name) for name in ("page.css", "page.js"))
    title = "Report: " + ", ".join(run.name for run in runs)
    config = runs[0].config
    kind, recipe = _FOLDERS.get((config.data.name, config.network.dimension), _OF_IMAGES)
    command = f"pdecnn train {recipe} --data FOLDER"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Whatever a run may hold: nothing is fetched, and no script but ours runs.
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        Markup(f'<link rel="icon" href="{_ICON}">'),
        tag("style", Markup(style)),
    )
    sections = [
        tag(
            "section",
            tag("h2", title, id=f"{key}-title"),
            content,
            id=key,
            aria_labelledby=f"{key}-title",
        )
        for key, title, content in parts
    ]
    body = tag(
        "body",
        tag("a", "Skip to the results", href="#content", class_="skip"),
        _header(runs, parts),
        tag("main", sections, id="content", tabindex="-1"),
        tag(
            "footer",
            tag("p", f"Made by pdecnn {__version__} from the run directories."),
            tag("p", f"To train on a folder of yours, {kind}: ", tag("code", command)),
        ),
        tag("script", Markup(script)),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _header(runs: Sequence[ShownRun], parts: Sequence[Part]) -> Markup:
    themes = [
        tag(
            "label",
            tag("input", type="radio", name="theme", value=value, checked=value == "system"),
            tag("span", value.capitalize()),
        )
        for value in ("system", "light", "dark")
    ]
    switch = tag("fieldset", tag("legend", "Theme", class_="unseen"), themes, class_="theme")
    links = [tag("li", tag("a", title, href=f"#{key}")) for key, title, _ in parts]
    several = f"{len(runs)} runs: " if len(runs) > 1 else ""
    return tag(
        "header",
        tag("div", tag("h1", several, ", ".join(run.name for run in runs)), switch, class_="top"),
        tag("nav", tag("ul", links), aria_label="Parts of the report"),
    )


def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
