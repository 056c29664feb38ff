"""What PDE theory says of a run, on the page: verdicts, curves, the learned equations."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from rich.table import Table

from pdecnn.diagnostics.coefficients import KINDS, OperatorCoefficients, term_kind
from pdecnn.diagnostics.diagnosis import BlockDiagnosis
from pdecnn.diagnostics.jacobians import has_symmetric_layers
from pdecnn.diagnostics.json_values import derivative_name
from pdecnn.pde.facts import HEAT
from pdecnn.reports.diagnosis import (
    bounds_chart,
    diagnosis_sections,
    energy_chart,
    growth_chart,
    lipschitz_words,
    missing_notes,
    reversal_note,
    spectrum_chart,
)
from pdecnn.reports.html import (
    Markup,
    details,
    equation_to_html,
    equations_of,
    scrolling,
    table,
    tag,
)
from pdecnn.reports.page_runs import PageRun
from pdecnn.reports.svg import figure

_VERDICT_SIGNS = {"guaranteed": "✓", "bounded": "✓", "measured": "≈", "unstable": "✗"}


def draw_diagnosis(run: PageRun) -> Markup:
    """A verdict with its curves for every block, then the tables."""
    if run.diagnosis is None:
        return tag("p", run.diagnosis_missing, class_="note")
    blocks = run.diagnosis.blocks
    said = [
        f"Measured on {run.diagnosis.num_images} test {run.subject}s in float64, {run.weights} "
        f"weights, as ",
        tag("code", "pdecnn diagnose"),
        " does.",
    ]
    sections = diagnosis_sections(blocks)[:-1]
    notice = run.diagnosis.notice
    return tag(
        "div",
        tag("p", said),
        tag("p", f"{lipschitz_words(run.diagnosis)}."),
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
        None if verdict.remedy is None else tag("p", f"What to do: {verdict.remedy}."),
        details("Assumptions of the theorem", tag("ul", assumptions, class_="assumptions")),
        tag("p", reversal_words(found)),
        [tag("p", note, class_="note") for note in missing_notes(index, found)],
        tag("div", _figures(index, found), class_="charts"),
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
        largest = max(errors.feature_gradient, errors.weight_gradient)
        name = str(errors.dtype).removeprefix("torch.")
        parts.append(f"{f'{largest:.1e}' if largest else '0'} in {name}")
    said = (
        f"Reversibility: run backwards, the relative error of the gradient is {', '.join(parts)}."
    )
    return f"{said} {reversal_note([found])}".strip()


def _figures(index: int, found: BlockDiagnosis) -> Iterable[Markup]:
    if found.stability.steps:
        yield figure(spectrum_chart(index, found))
        yield figure(bounds_chart(index, found))
    yield figure(growth_chart(index, found))
    none = tag("p", "No conserved energy is known.", class_="note")
    without = none if found.energy.raw is None else None
    yield tag("div", figure(energy_chart(index, found)), without)


_NUM_STRONGEST = 8
_MOST_STEPS = 16
_MEANINGS = {
    "reaction": "no derivative",
    "convection": "first derivatives",
    "diffusion": "second derivatives along an axis",
    "mixed": "second derivatives across axes",
    "higher order": "three derivatives or more",
}


def draw_pde(run: PageRun) -> Markup:
    """For every block its equation and what its stencils are made of."""
    if run.diagnosis is None:
        return tag("p", run.diagnosis_missing, class_="note")
    title, found, _ = diagnosis_sections(run.diagnosis.blocks)[-1]
    note = [
        "random: what is expected of weights as they are initialised; learned is what differs "
        "from it. change: how much coefficients differ from step to step (0: constant in time, "
        "1.4: unrelated). ",
        tag("code", f"pdecnn diagnose {run.folder}"),
        " writes all coefficients, and the equations as LaTeX.",
    ]
    return tag(
        "div",
        _kinds(),
        [_equations(index, block) for index, block in enumerate(run.diagnosis.blocks)],
        details(title, rich_to_html(found, title), tag("p", note, class_="note")),
    )


def _kinds() -> Markup:
    """What the colours of the shares mean."""
    items = [
        tag("li", tag("span", class_=f"swatch k{k}", aria_hidden="true"), f"{kind}: {meaning}")
        for k, (kind, meaning) in enumerate(_MEANINGS.items())
    ]
    return tag("ul", items, class_="legend")


def _equations(index: int, found: BlockDiagnosis) -> Markup:
    # Of a layer of one's own the operators are known, but not how F is made of them.
    lines = equations_of(found.latex[0]) if found.latex else []
    equations = [equation_to_html(line) for line in lines]
    names = "K" if len(found.coefficients.steps[0]) == 1 else "Each K"
    size = " x ".join(map(str, found.size))
    said = (
        f"{names} is a differential operator, a sum of the terms below between all channels, on "
        f"{size} points of the unit {('interval', 'square', 'cube')[len(found.size) - 1]}."
    )
    return tag(
        "section",
        tag("h4", f"Block {index}"),
        scrolling(tag("div", equations, class_="equations"), f"Equation of block {index}"),
        tag("p", said),
        _shares(index, found),
        details(f"Coefficients of block {index}", _terms(index, found), _strongest(index, found)),
        class_="block",
    )


def _shares(index: int, found: BlockDiagnosis) -> Markup:
    """A bar for the block, one for random weights, and one for each step while they are few."""
    steps = found.coefficients.steps
    rows = [
        ("all steps", found.coefficients.shares),
        ("random", found.coefficients.random_shares),
    ]
    if 1 < len(steps) <= _MOST_STEPS:
        rows += [(f"step {k}", _mean_shares(operators)) for k, operators in enumerate(steps)]
    items = []
    for label, shares in rows:
        said = ", ".join(f"{kind} {share:.1%}" for kind, share in shares.items())
        parts = [
            tag("span", title=f"{kind} {share:.1%}", class_=f"k{k}", style=f"flex-grow:{share:.4f}")
            for k, (kind, share) in enumerate(shares.items())
        ]
        bar = tag("span", parts, class_="stack", role="img", aria_label=said)
        items.append(tag("li", tag("span", label, class_="name"), bar))
    caption = f"Shares of the stencils of block {index}, beside those of random weights"
    return tag("figure", tag("figcaption", caption), tag("ul", items, class_="shares"))


def _mean_shares(operators: Sequence[OperatorCoefficients]) -> dict[str, float]:
    return {kind: sum(one.shares[kind] for one in operators) / len(operators) for kind in KINDS}


def _terms(index: int, found: BlockDiagnosis) -> Markup:
    """The root mean square of each coefficient, and of its part in the stencils."""
    operators = [operator for step in found.coefficients.steps for operator in step]
    coefficients = _rms([operator.derivatives for operator in operators])
    parts = _rms([operator.contributions for operator in operators])
    rows = [
        (_symbol(term), term_kind(term), f"{coefficient:.3g}", f"{part:.3g}")
        for term, coefficient, part in zip(operators[0].terms, coefficients, parts, strict=True)
    ]
    header = ("term", "kind", "rms coefficient", "rms part of the stencils")
    caption = f"Terms of the operators of block {index}"
    return table(header, rows, num_names=2, caption=caption)


def _rms(values: Sequence[torch.Tensor]) -> list[float]:
    squares = torch.stack([value.square().mean((0, 1)) for value in values])
    found: list[float] = squares.mean(0).sqrt().tolist()
    return found


def _strongest(index: int, found: BlockDiagnosis) -> Markup:
    """The largest parts of the stencils of the first step."""
    rows = [
        (name, f"{source} → {output}", f"{value:+.3g} {_symbol(term)}", f"{size:.3g}")
        for size, name, output, source, value, term in sorted(
            _entries(found.coefficients.steps[0]), reverse=True
        )[:_NUM_STRONGEST]
    ]
    caption = f"Largest terms in step 0 of block {index}"
    return tag(
        "div",
        tag("h5", caption),
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


def _symbol(term: tuple[int, ...]) -> str:
    name = derivative_name(term)
    return "1" if name == "1" else f"∂{name}"
