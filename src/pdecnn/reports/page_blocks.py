"""What PDE theory says of a run, on the page: verdicts, curves, the learned equations."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from pdecnn.diagnostics.coefficients import BlockCoefficients, OperatorCoefficients, term_kind
from pdecnn.diagnostics.diagnosis import BlockDiagnosis
from pdecnn.diagnostics.jacobians import has_symmetric_layers
from pdecnn.pde.facts import HEAT
from pdecnn.reports.charts import overlaid
from pdecnn.reports.diagnosis import (
    bounds_chart,
    derivative_symbol,
    diagnosis_tables,
    energy_chart,
    growth_chart,
    lipschitz_words,
    missing_notes,
    pieces_in_words,
    reversal_note,
    rms_by_term,
    screen_table,
    spectrum_chart,
)
from pdecnn.reports.html import (
    Markup,
    details,
    equation_to_html,
    equations_of,
    folded,
    scrolling,
    table,
    tag,
)
from pdecnn.reports.page_runs import PageRun
from pdecnn.reports.page_summary import swatched
from pdecnn.reports.svg import figure
from pdecnn.reports.terminal import Table
from pdecnn.runs.diagnosis import Diagnosis

_VERDICT_SIGNS = {"guaranteed": "✓", "bounded": "✓", "measured": "≈", "unstable": "✗"}


def draw_diagnosis(runs: Sequence[PageRun]) -> Markup:
    """A row a block; its curves, what the verdicts rest on and all numbers open below."""
    found = [(run, run.diagnosis) for run in runs if run.diagnosis is not None]
    if not found:
        return tag("div", _without(runs))
    (run, first), several = found[0], len(runs) > 1
    said = (
        f"Measured on {first.num_images} test {run.subject}s in float64, {run.weights} weights, as "
    )
    parts: list[object] = [tag("p", said, tag("code", "pdecnn diagnose"), " does.")]
    screens = [(run, screen_table(diagnosis.blocks)) for run, diagnosis in found]
    rows = [
        ((swatched(run),) if several else ()) + (block, _badge(verdict), *numbers)
        for run, screen in screens
        for block, verdict, *numbers in screen.rows
    ]
    screen = screens[0][1]
    header = ["run", *screen.header] if several else screen.header
    parts.append(table(header, rows, num_names=3 if several else 2, caption=screen.title))
    parts.append(tag("p", screen.note, class_="note"))
    for run, diagnosis in found:
        name = tag("b", f"{run.name}: ") if several else None
        parts.append(tag("p", name, f"{lipschitz_words(diagnosis)}."))
        if pieces := pieces_in_words(diagnosis.blocks):
            parts.append(tag("p", name, pieces))
        if diagnosis.notice is not None:
            parts.append(tag("p", name, f"{diagnosis.notice}.", class_="warning"))
    curves = [
        details(f"Curves of block {index}", tag("div", _figures(index, found), class_="charts"))
        for index in range(max(len(diagnosis.blocks) for _, diagnosis in found))
    ]
    grounds = [
        details(
            f"Verdicts and numbers of {run.name}" if several else "Verdicts and numbers",
            [_verdict(index, block) for index, block in enumerate(diagnosis.blocks)],
            [_part(one) for one in diagnosis_tables(diagnosis.blocks)],
        )
        for run, diagnosis in found
    ]
    return tag("div", _without(runs), parts, folded(curves), folded(grounds))


def _without(runs: Sequence[PageRun]) -> list[Markup]:
    """Why there is no diagnosis, of each run that has none."""
    return [
        tag("p", f"{run.name}: " if len(runs) > 1 else None, run.diagnosis_missing, class_="note")
        for run in runs
        if run.diagnosis is None
    ]


def _badge(verdict: str) -> Markup:
    sign = tag("span", _VERDICT_SIGNS[verdict], aria_hidden="true")
    return tag("span", sign, f" {verdict}", class_=f"badge {verdict}")


def _part(one: Table) -> Markup:
    notes = [tag("p", line, class_="note") for line in one.note.split("\n")]
    inner = table(one.header, one.rows, num_names=one.num_names, caption=one.title)
    return tag("div", tag("h3", one.title), inner, notes)


def _verdict(index: int, found: BlockDiagnosis) -> Markup:
    verdict = found.stability.verdict
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
        tag("h3", f"Block {index} ", _badge(verdict.name)),
        tag("p", f"{found.channels} channels of {size}, {found.block.num_steps} steps."),
        tag("p", f"{verdict.theorem[0].upper()}{verdict.theorem[1:]}: {verdict.reason}."),
        None if verdict.remedy is None else tag("p", f"What to do: {verdict.remedy}."),
        tag("ul", assumptions, class_="assumptions"),
        tag("p", reversal_words(found)),
        class_="block",
    )


def reversal_words(found: BlockDiagnosis) -> str:
    """How well the block runs backwards, in a sentence."""
    if not found.reversibility:
        block = found.block
        is_heat = has_symmetric_layers(block) and block.integrator.equations == HEAT
        why = "heat flows one way only" if is_heat else "its steps have no exact step back"
        return f"Reversibility: it cannot be run backwards; {why}."
    parts = []
    for errors in found.reversibility:
        error = f"{errors.gradient:.1e}" if errors.gradient else "0"
        parts.append(f"{error} in {errors.precision}")
    said = (
        f"Reversibility: run backwards, the relative error of the gradient is {', '.join(parts)}."
    )
    return f"{said} {reversal_note([found])}".strip()


def _figures(index: int, found: Sequence[tuple[PageRun, Diagnosis]]) -> Iterator[Markup]:
    """The curves of a block, those of all runs that have it in the same charts."""
    blocks = [
        (run, diagnosis.blocks[index]) for run, diagnosis in found if index < len(diagnosis.blocks)
    ]
    with_steps = [(run, block) for run, block in blocks if block.stability.steps]
    for draw, shown in (
        (spectrum_chart, with_steps),
        (bounds_chart, with_steps),
        (growth_chart, blocks),
        (energy_chart, blocks),
    ):
        if shown:
            yield figure(overlaid([(run.name, run.place, draw(index, one)) for run, one in shown]))
    if any(block.energy.raw is None for _, block in blocks):
        yield tag("p", "No conserved energy is known where none is drawn.", class_="note")
    for run, block in blocks:
        name = f"{run.name}: " if len(blocks) > 1 else None
        yield from (tag("p", name, note, class_="note") for note in missing_notes(index, block))


_NUM_STRONGEST = 8
_MOST_STEPS = 16
_MEANINGS = {
    "reaction": "no derivative",
    "convection": "first derivatives",
    "diffusion": "second derivatives along an axis",
    "mixed": "second derivatives across axes",
    "higher order": "three derivatives or more",
}


def draw_pde(runs: Sequence[PageRun]) -> Markup:
    """The equations of each run and, a row a block, what its stencils are made of."""
    found = [(run, run.diagnosis) for run in runs if run.diagnosis is not None]
    if not found:
        return tag("div", _without(runs))
    several = len(runs) > 1
    kinds = [
        tag("li", tag("span", class_=f"swatch k{k}", aria_hidden="true"), f"{kind}: {meaning}")
        for k, (kind, meaning) in enumerate(_MEANINGS.items())
    ]
    note = tag(
        "p",
        "Each K is a differential operator, a sum of these kinds of terms between all channels. "
        "Ticks: where the kinds would meet with weights as they are initialised; what was learned "
        "differs from them.",
    )
    rows = [
        _share_bar(
            swatched(run) if several else None,
            f"block {index}",
            block.coefficients.shares,
            block.coefficients.random_shares,
        )
        for run, diagnosis in found
        for index, block in enumerate(diagnosis.blocks)
    ]
    return tag(
        "div",
        [_equations(run, diagnosis, several=several) for run, diagnosis in found],
        note,
        tag("ul", kinds, class_="legend"),
        tag("ul", rows, class_="shares"),
        folded(
            details(
                f"Coefficients of {run.name}" if several else "Coefficients",
                [_coefficients(index, block) for index, block in enumerate(diagnosis.blocks)],
            )
            for run, diagnosis in found
        ),
        tag(
            "p",
            tag("code", "pdecnn diagnose RUN"),
            " writes all of them, and LaTeX.",
            class_="note",
        ),
    )


def _equations(run: PageRun, diagnosis: Diagnosis, *, several: bool) -> Markup:
    """The equations of a run, each once: blocks mostly have the same."""
    # Of a layer of one's own the operators are known, but not how F is made of them.
    lines = dict.fromkeys(
        line for block in diagnosis.blocks if block.latex for line in equations_of(block.latex[0])
    )
    written = tag("div", [equation_to_html(line) for line in lines], class_="equations")
    return tag(
        "div",
        tag("p", swatched(run)) if several else None,
        scrolling(written, f"Equations of {run.name}"),
        class_="equation",
    )


def _share_bar(
    name: Markup | None, label: str, shares: dict[str, float], random: dict[str, float]
) -> Markup:
    """How much of the stencils each kind of term is, and ticks where random weights have it."""
    said = ", ".join(
        f"{kind} {share:.1%} (random {random[kind]:.1%})" for kind, share in shares.items()
    )
    parts = [
        tag(
            "span",
            title=f"{kind} {share:.1%}, of random weights {random[kind]:.1%}",
            class_=f"part k{k}",
            style=f"flex-grow:{share:.4f}",
        )
        for k, (kind, share) in enumerate(shares.items())
    ]
    borders = list(accumulate(random.values()))[:-1]
    ticks = [tag("span", class_="tick", style=f"left:{100 * place:.1f}%") for place in borders]
    bar = tag("span", parts, ticks, class_="stack", role="img", aria_label=said)
    return tag("li", tag("span", name, " " if name else None, label, class_="name"), bar)


def _coefficients(index: int, found: BlockDiagnosis) -> Markup:
    """The shares of each step while they are few, and the largest terms."""
    steps = found.coefficients.steps
    bars = [
        _share_bar(
            None,
            f"step {k}",
            BlockCoefficients(steps=(operators,)).shares,
            found.coefficients.random_shares,
        )
        for k, operators in enumerate(steps)
        if 1 < len(steps) <= _MOST_STEPS
    ]
    return tag(
        "section",
        tag("h3", f"Block {index}"),
        tag("ul", bars, class_="shares") if bars else None,
        _terms(index, found),
        _strongest(index, found),
        class_="block",
    )


def _terms(index: int, found: BlockDiagnosis) -> Markup:
    """The root mean square of each coefficient, and of its part in the stencils."""
    sizes = (rms_by_term(found.coefficients, name) for name in ("derivatives", "contributions"))
    rows = [
        (derivative_symbol(term), term_kind(term), f"{coefficient:.3g}", f"{part:.3g}")
        for term, coefficient, part in zip(
            found.coefficients.steps[0][0].terms, *(size.tolist() for size in sizes), strict=True
        )
    ]
    header = ("term", "kind", "rms coefficient", "rms part of the stencils")
    caption = f"Terms of the operators of block {index}"
    return table(header, rows, num_names=2, caption=caption)


def _strongest(index: int, found: BlockDiagnosis) -> Markup:
    """The largest parts of the stencils of the first step."""
    rows = [
        (name, f"{source} → {output}", f"{value:+.3g} {derivative_symbol(term)}", f"{size:.3g}")
        for size, name, output, source, value, term in sorted(
            _entries(found.coefficients.steps[0]), reverse=True
        )[:_NUM_STRONGEST]
    ]
    caption = f"Largest terms in step 0 of block {index}"
    return tag(
        "div",
        tag("h4", caption),
        table(("operator", "channels", "term", "part"), rows, num_names=2, caption=caption),
    )


def _entries(
    operators: Sequence[OperatorCoefficients],
) -> Iterator[tuple[float, str, int, int, float, tuple[int, ...]]]:
    """Part, operator, output and input channel (from 1), coefficient and term: the largest ones."""
    for place, operator in enumerate(operators, start=1):
        sizes = operator.contributions
        largest = sizes.flatten().topk(min(_NUM_STRONGEST, sizes.numel())).indices.tolist()
        name = "K" if len(operators) == 1 else f"K{place}"
        for flat in largest:
            output, rest = divmod(flat, sizes.shape[1] * sizes.shape[2])
            source, term = divmod(rest, sizes.shape[2])
            value = float(operator.derivatives[output, source, term])
            size = float(sizes[output, source, term])
            yield size, name, output + 1, source + 1, value, operator.terms[term]
