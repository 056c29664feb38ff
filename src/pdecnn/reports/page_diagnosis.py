"""What PDE theory says of a run, on the page: verdicts, curves, and the tables of `diagnose`."""

from collections.abc import Iterable

from rich.table import Table

from pdecnn.diagnostics.diagnosis import BlockDiagnosis
from pdecnn.pde.layers import SymmetricLayer
from pdecnn.reports.diagnosis import (
    bound_label,
    curve_name,
    diagnosis_sections,
    missing_notes,
    reversal_note,
)
from pdecnn.reports.page_charts import Series, draw_chart, draw_plane, legend
from pdecnn.reports.page_html import Markup, details, table, tag
from pdecnn.reports.page_runs import PageRun

_VERDICT_SIGNS = {"guaranteed": "✓", "bounded": "✓", "measured": "≈", "unstable": "✗"}
_PERTURBATIONS = {"worst": 1, "noise": 0, "random": 2}


def draw_diagnosis(run: PageRun) -> Markup:
    """A verdict with its curves for every block, then the tables."""
    if run.diagnosis is None:
        return tag("p", run.diagnosis_missing, class_="note")
    blocks = run.diagnosis.blocks
    said = [
        f"Measured on {run.diagnosis.num_images} test images in float64, {run.weights} weights, "
        f"as ",
        tag("code", "pdecnn diagnose"),
        " does.",
    ]
    sections = diagnosis_sections(blocks)[:-1]
    notice = run.diagnosis.notice
    return tag(
        "div",
        tag("p", said),
        None if notice is None else tag("p", f"{notice}.", class_="warning"),
        [_block(index, block) for index, block in enumerate(blocks)],
        [
            details(title, rich_to_html(found, title), tag("p", note, class_="note"))
            for title, found, note in sections
        ],
    )


def rich_to_html(found: Table, caption: str) -> Markup:
    """A table of the terminal with the same words and numbers."""
    header = [str(column.header) for column in found.columns]
    num_names = sum(column.justify == "left" for column in found.columns)
    rows = zip(*(list(map(str, column.cells)) for column in found.columns), strict=True)
    return table(header, rows, num_names=num_names, caption=caption)


def _block(index: int, found: BlockDiagnosis) -> Markup:
    verdict = found.stability.verdict
    sign = tag("span", _VERDICT_SIGNS[verdict.name], aria_hidden="true")
    badge = tag("span", sign, f" {verdict.name}", class_=f"badge {verdict.name}")
    size = " x ".join(map(str, found.size))
    assumptions = [
        tag(
            "li",
            tag("span", "✓" if one.holds else "✗", class_="good" if one.holds else "bad"),
            tag("span", " holds: " if one.holds else " in the way: ", class_="unseen"),
            f" {one.words}",
        )
        for one in verdict.assumptions
    ]
    return tag(
        "section",
        tag("h4", f"Block {index} ", badge),
        tag("p", f"{found.channels} channels of {size}, {found.block.num_steps} steps."),
        tag("p", f"{verdict.theorem[0].upper()}{verdict.theorem[1:]}: {verdict.reason}."),
        details("Assumptions of the theorem", tag("ul", assumptions, class_="assumptions")),
        tag("p", reversal_words(found)),
        [tag("p", note, class_="note") for note in missing_notes(index, found)],
        tag("div", _figures(index, found), class_="charts"),
        class_="block",
    )


def reversal_words(found: BlockDiagnosis) -> str:
    """How well the block runs backwards, in a sentence."""
    if not found.reversibility:
        is_heat = all(isinstance(layer, SymmetricLayer) for layer in found.block.layers)
        why = "heat flows one way only" if is_heat else "its steps have no exact step back"
        return f"Reversibility: it cannot be run backwards; {why}."
    parts = []
    for errors in found.reversibility:
        largest = max(errors.feature_gradient, errors.weight_gradient)
        name = str(errors.dtype).removeprefix("torch.")
        parts.append(f"{f'{largest:.1e}' if largest else '0'} in {name}")
    said = (
        f"Reversibility: run backwards, the relative error of the gradient is {', '.join(parts)}."
    )
    return f"{said} {reversal_note([found])}".strip()


def _figures(index: int, found: BlockDiagnosis) -> Iterable[Markup]:
    steps = found.stability.steps
    if steps:
        yield _spectrum(index, found)
        yield _bounds(index, found)
    yield _growth(index, found)
    yield _energy(index, found)


def _figure(caption: str, chart: Markup, curves: Iterable[Series]) -> Markup:
    return tag("figure", tag("figcaption", caption), chart, legend(curves))


def _spectrum(index: int, found: BlockDiagnosis) -> Markup:
    """Eigenvalues of the first, a middle and the last step."""
    steps = found.stability.steps
    shown = sorted({0, len(steps) // 2, len(steps) - 1})
    clouds, keys = [], []
    for colour, step in enumerate(shown):
        spectrum = steps[step].system_spectrum
        if spectrum is not None:
            label = f"step {step}" + ("" if spectrum.complete else " (outermost)")
            clouds.append((label, spectrum.eigenvalues, colour))
        else:
            label = f"step {step}: missing"
        keys.append(Series(label=label, xs=(), ys=(), colour=colour, line=False, marker=0))
    title = f"Eigenvalues of block {index}"
    chart = draw_plane(clouds, title=title) if clouds else tag("p", "Missing.", class_="note")
    return _figure(title, chart, keys)


def _bounds(index: int, found: BlockDiagnosis) -> Markup:
    steps = found.stability.steps
    numbers = list(range(len(steps)))
    curves = [
        Series(
            label=bound_label(steps, name),
            xs=numbers,
            ys=[getattr(step, name) for step in steps],
            colour=colour,
            line=False,
        )
        for name, colour in (("local_bound", 0), ("guaranteed_bound", 1))
    ]
    actual = Series(
        label=f"actual step {found.block.step_size:g}",
        xs=[0, len(steps) - 1],
        ys=[found.block.step_size] * 2,
        colour=2,
    )
    title = f"Step size and bounds of block {index}"
    drawn = [curve for curve in curves if curve.points]
    chart = draw_chart([*drawn, actual], title=title, x_label="step", y_label="step size")
    return _figure(title, chart, [*curves, actual])


def _growth(index: int, found: BlockDiagnosis) -> Markup:
    curves = [
        Series(
            label=f"{growth.perturbation}, {'backwards' if growth.backward else 'forwards'}",
            xs=growth.depths,
            ys=growth.constants,
            colour=_PERTURBATIONS[growth.perturbation],
            dashed=growth.backward,
        )
        for growth in found.stability.growth
    ]
    curves += [
        Series(
            label=f"noise, {'backwards' if growth.backward else 'forwards'}, relative",
            xs=growth.depths,
            ys=growth.relative_constants,
            colour=3,
            dashed=growth.backward,
        )
        for growth in found.stability.growth
        if growth.perturbation == "noise"
    ]
    title = f"Growth of perturbations in block {index}"
    chart = draw_chart(
        curves, title=title, x_label="steps", y_label="growth", may_be_log=True, level=1.0
    )
    return _figure(title, chart, curves)


def _energy(index: int, found: BlockDiagnosis) -> Markup:
    """Each as a share of its start, the mean over the images."""
    curves = []
    for name, colour, dashed in (
        ("norms", 0, False),
        ("raw", 1, False),
        ("centred", 1, True),
        ("printed_raw", 2, False),
        ("printed_centred", 2, True),
    ):
        curve = getattr(found.energy, name)
        if curve is None or not float(curve[0].mean()):
            continue
        mean = curve.mean(1).tolist()
        times = [found.block.step_size * step for step in range(len(mean))]
        ys = [value / mean[0] for value in mean]
        label = curve_name(name, found)
        curves.append(Series(label=label, xs=times, ys=ys, colour=colour, dashed=dashed))
    title = f"Norm and energy along block {index}"
    chart = draw_chart(
        curves,
        title=title,
        x_label="time",
        y_label="share of the start",
        whole=False,
        level=1.0,
    )
    none = tag("p", "No conserved energy is known.", class_="note")
    return tag("div", _figure(title, chart, curves), none if found.energy.raw is None else None)
