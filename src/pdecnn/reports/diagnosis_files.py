"""What `pdecnn diagnose` and `pdecnn attack` leave behind: JSON, CSV, LaTeX and figures."""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

from pdecnn.diagnostics.diagnosis import LATEX_THRESHOLD, BlockDiagnosis
from pdecnn.diagnostics.json_values import derivative_name, kind_name
from pdecnn.errors import ConfigError, system_errors_as
from pdecnn.files import write_all
from pdecnn.reports.figures import without_matplotlib_notices
from pdecnn.runs.diagnosis import AttackReport, Diagnosis

_SPECTRA = ("block", "step", "of", "real", "imaginary")
_COEFFICIENTS = (
    "block", "step", "operator", "name", "output", "input", "derivative", "kind", "coefficient",
)  # fmt: skip


def write_diagnosis(found: Diagnosis, folder: Path) -> list[Path]:
    """diagnosis.json, the spectra and coefficients as CSV, the PDE as LaTeX, and the figures."""
    with _writable(folder):
        return write_all(folder, _diagnosis_contents(found))


def _diagnosis_contents(found: Diagnosis) -> dict[str, bytes]:
    with without_matplotlib_notices():
        from pdecnn.reports import style
    from pdecnn.reports import diagnosis_figures
    from pdecnn.reports.pde_figure import draw_pde
    from pdecnn.reports.stability_figure import draw_stability

    contents = {
        "diagnosis.json": _json(found.to_dict()),
        "spectra.csv": _csv(_SPECTRA, _spectra(found.blocks)),
        "coefficients.csv": _csv(_COEFFICIENTS, _coefficients(found.blocks)),
        "pde.tex": _latex(found).encode(),
    }
    with style.journal_style():
        figures = {
            "stability": draw_stability,
            "growth": diagnosis_figures.draw_growth,
            "energy": diagnosis_figures.draw_energy,
            "learned_pde": draw_pde,
        }
        if all(block.reversibility for block in found.blocks):
            figures["reversibility"] = diagnosis_figures.draw_reversibility
        for name, draw in figures.items():
            figure = draw(found.blocks)
            figure.suptitle(f"{found.recipe}, {found.weights} weights")
            contents |= style.render(name, figure)
    return contents


def write_attack(found: AttackReport, folder: Path) -> list[Path]:
    """attack_linf.json or attack_l2.json, and the curve of the accuracy."""
    with without_matplotlib_notices():
        from pdecnn.reports import style
    from pdecnn.reports.robustness_figure import draw_robustness

    name = f"attack_{found.results[0].norm}"
    with _writable(folder), style.journal_style():
        figure = style.render(name, draw_robustness(found))
        return write_all(folder, {f"{name}.json": _json(found.to_dict()), **figure})


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    """Make the folder, and say in one line where it cannot be written."""
    with system_errors_as(ConfigError, f"{folder}: cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
        yield


def _spectra(blocks: Sequence[BlockDiagnosis]) -> Iterable[tuple[Any, ...]]:
    """Every eigenvalue that was found."""
    for index, block in enumerate(blocks):
        for place, step in enumerate(block.stability.steps):
            named = {f"layer {k}": found for k, found in enumerate(step.layer_spectra)}
            named["system"] = step.system_spectrum
            for name, spectrum in named.items():
                for value in () if spectrum is None else spectrum.eigenvalues:
                    yield index, place, name, repr(value.real), repr(value.imag)


def _coefficients(blocks: Sequence[BlockDiagnosis]) -> Iterable[tuple[Any, ...]]:
    """Every coefficient of every derivative, then the scale and the bias, as a source."""
    for index, block in enumerate(blocks):
        for step, operators in enumerate(block.coefficients.steps):
            for place, operator in enumerate(operators):
                key = (index, step, place, operator.name)
                values = operator.derivatives.tolist()
                for output, row in enumerate(values):
                    for source, entries in enumerate(row):
                        for term, value in zip(operator.terms, entries, strict=True):
                            name = derivative_name(term)
                            yield *key, output, source, name, kind_name(term), repr(value)
                for kind in ("scale", "source"):
                    weights = getattr(operator, kind)
                    for output, value in enumerate([] if weights is None else weights.tolist()):
                        yield *key, output, "", "", kind, repr(value)


def _latex(found: Diagnosis) -> str:
    domain = {1: "interval", 2: "square", 3: "cube"}[len(found.blocks[0].size)]
    lines = [
        f"% The PDEs learned by {found.recipe} on the unit {domain}: for \\input in a document",
        "% with amsmath. Terms whose part of the stencil is below "
        f"{LATEX_THRESHOLD:g} times the largest of",
        "% their operator are left out; all of them are in coefficients.csv.",
    ]
    for index, block in enumerate(found.blocks):
        for step, equation in enumerate(block.latex):
            lines += [f"% Block {index}, step {step}", rf"\[{equation}\]"]
    return "\n".join(lines) + "\n"


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    stream = StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return stream.getvalue().encode()


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()
