"""A diagnosis in words, tables and curves, as terminal, page and figures show it."""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path

import torch
from rich.console import Console

from pdecnn.diagnostics.coefficients import KINDS, BlockCoefficients, derivative_name
from pdecnn.diagnostics.diagnosis import BlockDiagnosis
from pdecnn.diagnostics.energy import CURVES, block_times, relative_change
from pdecnn.diagnostics.growth import PERTURBATIONS
from pdecnn.diagnostics.lipschitz import Factor
from pdecnn.diagnostics.stability import NUM_LONG
from pdecnn.diagnostics.verdict import StepStability, Verdict
from pdecnn.reports.charts import Chart, Series
from pdecnn.reports.terminal import Table, make_console, print_files, terminal_table
from pdecnn.runs.diagnosis import Diagnosis

_CURVE_NAMES = {
    "norms": "|{symbol}|",
    "raw": "energy, stored states",
    "centred": "energy, centred states",
    "printed_raw": "eq. 12, stored states",
    "printed_centred": "eq. 12, centred states",
}
_PERTURBATIONS = {"worst": 1, "noise": 0, "random": 2}
_ENERGIES = {
    # Equation 12 first and broad: for ReLU it is the energy itself, which lies on top of it.
    "printed_raw": (2, False),
    "printed_centred": (2, True),
    "norms": (0, False),
    "raw": (1, False),
    "centred": (1, True),
}
_MOST_STEPS = 12
_ROUNDING = 1e-12
_TELLING = 1e6  # of a larger bound no image has a radius that anyone could see


def lipschitz_words(found: Diagnosis) -> str:
    """What is proved of the whole network, or why nothing is."""
    if found.lipschitz is None:
        reason = "" if found.lipschitz_missing is None else f": {found.lipschitz_missing}"
        return f"By how much the network expands distances at most, L, is not known{reason}"
    vain = found.lipschitz > _TELLING
    bound = f"{found.lipschitz:.2g}" if vain else f"{found.lipschitz:.6g}"
    judged = ", a bound too large to prove anything" if vain else ""
    return (
        f"The network expands distances at most L = {bound}-fold, from the input to "
        f"the classifier{judged}{largest_factor_words(found.factors)}"
    )


def largest_factor_words(factors: Sequence[Factor]) -> str:
    """Which part expands distances most, if any does."""
    name, value = max(factors, key=lambda factor: factor.value)
    return f"; its largest factor is that of {name}, {value:.3g}" if value > 1 else ""


def print_diagnosis(
    found: Diagnosis,
    files: Sequence[Path],
    *,
    full: bool = False,
    console: Console | None = None,
) -> None:
    """A screen: a line a block and its verdict. `full` has every table, and what proofs rest on."""
    console = console or make_console()
    console.print(
        f"{found.run}: {found.recipe}, {found.weights} weights ({found.num_weights:,}), measured "
        f"on {found.num_images} test {found.subject}s",
        soft_wrap=True,
    )
    console.print(lipschitz_words(found))
    if pieces := pieces_in_words(found.blocks):
        console.print(pieces)
    console.print()
    screen = screen_table(found.blocks)
    console.print(terminal_table(screen))
    console.print(screen.note if full else f"{screen.note} --full has every table.", style="dim")
    console.print()
    for index, block in enumerate(found.blocks):
        _print_verdict(console, index, block.stability.verdict, full=full)
    for table in diagnosis_tables(found.blocks) if full else ():
        console.print(f"\n{table.title}", style="bold")
        console.print(terminal_table(table))
        console.print(table.note, style="dim")
    print_files(console, files)


def pieces_in_words(blocks: Sequence[BlockDiagnosis]) -> str:
    """Of which points of long signals the spectra are; '' where they are of all."""
    pieces = [
        f"{end - begin} of {block.size[0]:,} points from {begin} in block {index}"
        for index, block in enumerate(blocks)
        if block.stability.piece is not None
        for begin, end in (block.stability.piece,)
    ]
    if not pieces:
        return ""
    return (
        f"Local bounds, factors and spectra are those of the loudest piece of the first signal: "
        f"{', '.join(pieces)}. Guaranteed bounds and norms there are those of whole signals, "
        f"growth that of the first {NUM_LONG}."
    )


def _print_verdict(console: Console, index: int, verdict: Verdict, *, full: bool) -> None:
    console.print(f"Block {index} is {verdict.name}: {verdict.reason}.")
    if verdict.remedy is not None:
        console.print(f"What to do: {verdict.remedy}.")
    if not full:
        return
    console.print(f"Asked: {verdict.theorem}.", style="dim")
    for word, holds in (("Holds", True), ("In the way", False)):
        words = [found.words for found in verdict.assumptions if found.holds == holds]
        said = verdict.name == "measured" and not holds  # the reason names them
        if words and not said:
            console.print(f"{word}: {'; '.join(words)}.", style="dim")


def screen_table(blocks: Sequence[BlockDiagnosis]) -> Table:
    """A row a block: its verdict and the number that says most of each question."""
    header = ("block", "verdict", "dt", "bound", "growth", "norm", "backwards", "learned")
    rows = list(map(_screen_row, range(len(blocks)), blocks))
    return Table("Stability of every block", header, rows, _SCREEN_NOTE, num_names=2)


def _screen_row(index: int, block: BlockDiagnosis) -> tuple[str, ...]:
    steps = block.stability.steps
    sizes = sorted({f"{step.step_size:.3g}" for step in steps}, key=float)
    known = [step.guaranteed_bound for step in steps if step.guaranteed_bound is not None]
    bounds: list[float | None] = [None]
    if known and len(known) == len(steps):
        # Of equal steps the least bound decides; of others each has its own.
        bounds = [min(known)] if len(sizes) < 2 else [min(known), max(known)]
    single = [one for one in block.reversibility if one.dtype == torch.float32]
    shares, random = block.coefficients.shares, block.coefficients.random_shares
    kind = max(KINDS, key=lambda one: abs(shares[one] - random[one]))
    return (
        str(index),
        block.stability.verdict.name,
        " to ".join(dict.fromkeys((sizes[0], sizes[-1]))) if sizes else "overflow",
        " to ".join(dict.fromkeys(_number(bound, none="none", infinite="any") for bound in bounds)),
        _number(max(one.constant for one in block.stability.growth)),
        f"{relative_change(block.energy.norms):.0%}",
        f"{single[0].weight_gradient:.0e}" if single else "cannot",
        f"{kind} {shares[kind] - random[kind]:+.1%}",
    )


_SCREEN_NOTE = (
    "bound: up to this dt no step expands any distance. growth: by what factor a small change of "
    "the block's input grew at most. norm: how much the features' norm changes. backwards: "
    "relative error of the gradient when features are recomputed backwards, in float32. learned: "
    "the kind of term whose share differs most from that of random weights."
)


def diagnosis_tables(blocks: Sequence[BlockDiagnosis]) -> list[Table]:
    """Everything that was measured, part by part."""
    missing = [note for index, block in enumerate(blocks) for note in missing_notes(index, block)]
    random = blocks[0].coefficients.random_shares
    return [
        Table(
            "Step sizes and spectra",
            ("block", "step", "dt", "guaranteed", "local", "factor", "|K|", "Re", "Im", "sym"),
            _rows(_stability_rows, blocks),
            "\n".join([_STABILITY_NOTE, *missing]),
            num_names=2,
        ),
        Table(
            "Growth of perturbations (M of eq. 6)",
            ("block", "direction", *PERTURBATIONS),
            _rows(_growth_rows, blocks),
            _GROWTH_NOTE,
            num_names=2,
        ),
        Table(
            "Energy along the blocks",
            ("block", "quantity", "start", "end", "change"),
            _rows(_energy_rows, blocks),
            "Means over the samples; change: the largest of any one at any time.",
            num_names=2,
        ),
        Table(
            "Running backwards",
            ("block", "precision", "states", "gradient: features", "gradient: weights"),
            _rows(_reversal_rows, blocks),
            f"{_REVERSAL_NOTE} {reversal_note(blocks)}".strip(),
            num_names=2,
        ),
        Table(
            "The learned PDE: shares of the stencils",
            ("block", *KINDS, "change"),
            [
                *_rows(_pde_rows, blocks),
                ("random", *(f"{random[kind]:.1%}" for kind in KINDS), "0"),
            ],
            _PDE_NOTE,
        ),
    ]


def _rows(
    rows_of: Callable[[BlockDiagnosis], Iterator[tuple[str, ...]]],
    blocks: Sequence[BlockDiagnosis],
) -> list[tuple[str, ...]]:
    """Those of every block, with its number before them."""
    return [(str(index), *row) for index, block in enumerate(blocks) for row in rows_of(block)]


_STABILITY_NOTE = (
    "dt: the actual step. guaranteed: up to here no step expands any distance; local: up to here "
    "nothing grows at the first sample (0: something grows at every step). factor: the largest "
    "that a step multiplies a perturbation by. |K|: the largest norm of a convolution. Re, Im: of "
    "the system's eigenvalues, the largest found. sym: the largest eigenvalue of a layer's "
    "symmetric part (> 0: not monotone)."
)
_GROWTH_NOTE = (
    "The largest over all depths and samples; worst: by power iteration, from below. relative: of "
    "the distance as a share of the features' own norm, which may grow where the distance shrinks."
)
_REVERSAL_NOTE = "Relative errors against what is stored. What matters is the gradient."
_COARSE_NOTE = (
    "bfloat16 may come back nearer than float32, even without any error: its layers read and add "
    "numbers of 8 significant bits, whose sums the float32 state keeps exactly, or nearer than "
    "the layers can tell."
)
_PDE_NOTE = (
    "random: what is expected of weights as they are initialised; learned is what differs from it. "
    "change: how much coefficients differ from step to step (0: constant in time, 1.4: unrelated). "
    "All coefficients are in coefficients.csv, the equations in pde.tex."
)


def curve_name(name: str, found: BlockDiagnosis) -> str:
    """What a field of the energy curves is."""
    return _CURVE_NAMES[name].format(symbol=found.block.integrator.features_symbol)


def _stability_rows(block: BlockDiagnosis) -> Iterator[tuple[str, ...]]:
    steps = block.stability.steps
    if not steps:
        yield "-", f"{block.block.step_size:g}", *["overflow"] * 7
    # All of them, or the first and last ones of many.
    half, places = _MOST_STEPS // 2, list(range(len(steps)))
    for place in places if len(steps) <= _MOST_STEPS else places[:half] + places[-half:]:
        step = steps[place]
        system = step.system_spectrum
        yield (
            str(place),
            f"{step.step_size:.4g}",
            _number(step.guaranteed_bound, none="none", infinite="any"),
            _number(step.local_bound, infinite="any"),
            _number(step.amplification),
            _largest([None if norm is None else norm.upper for norm in step.norms]),
            _number(None if system is None else system.largest_real_part),
            _number(None if system is None else system.largest_imaginary_part),
            _largest(step.symmetric_eigenvalues),
        )


def reversal_note(blocks: Sequence[BlockDiagnosis]) -> str:
    """Why an error of bfloat16 is below that of float32; nothing where none is."""
    for block in blocks:
        errors = {entry.dtype: entry for entry in block.reversibility}
        single, half = errors.get(torch.float32), errors.get(torch.bfloat16)
        if single is None or half is None:
            continue
        if half.gradient < single.gradient or half.reconstruction < single.reconstruction:
            return _COARSE_NOTE
    return ""


def missing_notes(index: int, block: BlockDiagnosis) -> list[str]:
    """A sentence for each reason why numbers of a block are missing."""
    found: dict[str, tuple[list[str], list[int]]] = {}
    for place, step in enumerate(block.stability.steps):
        for missing in step.missing:
            numbers, places = found.setdefault(missing.reason, ([], []))
            numbers += [] if missing.number in numbers else [missing.number]
            places += [] if place in places else [place]
    return [
        f"Missing in block {index}, {_steps(places)}: {', '.join(numbers)} ({reason})."
        for reason, (numbers, places) in found.items()
    ]


def bound_label(steps: Sequence[StepStability], name: str) -> str:
    """What a legend calls 'local_bound' or 'guaranteed_bound', and what of it cannot be drawn."""
    label, absent = name.replace("_", " "), "missing" if name == "local_bound" else "none"
    values = [getattr(step, name) for step in steps]
    known = [value for value in values if value is not None]
    if not known:
        return f"{label}: {absent}"
    if min(known) == inf:
        return f"{label}: any step"
    if max(known) == 0:
        label += ": 0 (something grows)"
    places = [place for place, value in enumerate(values) if value is None]
    return f"{label} ({absent} in {_steps(places)})" if places else label


def _steps(places: Sequence[int]) -> str:
    """'step 3', 'steps 0 to 4' or 'steps 0, 2'."""
    if len(places) == 1:
        return f"step {places[0]}"
    if places[-1] - places[0] == len(places) - 1:
        return f"steps {places[0]} to {places[-1]}"
    return f"steps {', '.join(map(str, places))}"


def _growth_rows(block: BlockDiagnosis) -> Iterator[tuple[str, ...]]:
    for backward in (False, True):
        found = {
            one.perturbation: one for one in block.stability.growth if one.backward == backward
        }
        if found:
            direction = "backwards" if backward else "forwards"
            growth = [found[name] for name in PERTURBATIONS]
            yield direction, *(_number(one.constant) for one in growth)
            yield f"{direction}, relative", *(_number(one.relative_constant) for one in growth)


def _energy_rows(block: BlockDiagnosis) -> Iterator[tuple[str, ...]]:
    for name in CURVES:
        curve = getattr(block.energy, name)
        if curve is not None:
            start, *_, end = curve.mean(1).tolist()
            change = f"{relative_change(curve):.2%}"
            yield curve_name(name, block), _number(start), _number(end), change
    if block.energy.raw is None:
        yield "no conserved energy is known", "-", "-", "-"


def _reversal_rows(block: BlockDiagnosis) -> Iterator[tuple[str, ...]]:
    for one in block.reversibility:
        errors = (one.reconstruction, one.feature_gradient, one.weight_gradient)
        yield one.precision, *(f"{error:.1e}" for error in errors)
    if not block.reversibility:
        yield "cannot be run backwards", "-", "-", "-"


def _pde_rows(block: BlockDiagnosis) -> Iterator[tuple[str, ...]]:
    found = block.coefficients
    shares, change = found.shares, max(found.changes.values())
    yield *(f"{shares[kind]:.1%}" for kind in KINDS), f"{change:.2g}"


def derivative_symbol(term: tuple[int, ...]) -> str:
    """'∂xxy', or '1' for no derivative."""
    name = derivative_name(term)
    return "1" if name == "1" else f"∂{name}"


def rms_by_term(found: BlockCoefficients, name: str) -> torch.Tensor:
    """The root mean square of the 'derivatives' or the 'contributions' of each term."""
    operators = [operator for step in found.steps for operator in step]
    squares = [getattr(operator, name).square().mean((0, 1)) for operator in operators]
    return torch.stack(squares).mean(0).sqrt()


def _largest(values: Sequence[float | None]) -> str:
    """The largest number; missing if one of them is."""
    known = [value for value in values if value is not None]
    return _number(max(known) if len(known) == len(values) else None)


def _number(value: float | None, none: str = "missing", infinite: str = "overflow") -> str:
    if value is None:
        return none
    if abs(value) < _ROUNDING:
        return "0"
    return infinite if value == inf else f"{value:.3g}"


# The curves of a block, which the page and the figures show.


def spectrum_chart(index: int, found: BlockDiagnosis) -> Chart:
    """Eigenvalues of the first, a middle and the last step of a block."""
    steps = found.stability.steps
    clouds = []
    for colour, step in enumerate(sorted({0, len(steps) // 2, len(steps) - 1})):
        spectrum = steps[step].system_spectrum
        label, values = f"step {step}: missing", tuple[complex, ...]()
        if spectrum is not None:
            label = f"step {step}" + ("" if spectrum.complete else " (outermost)")
            values = spectrum.eigenvalues
        xs, ys = [value.real for value in values], [value.imag for value in values]
        clouds.append(Series(label=label, xs=xs, ys=ys, colour=colour, line=False, main=step == 0))
    return Chart(
        title=f"Eigenvalues of block {index}",
        series=clouds,
        x_label="real part (> 0: grows)",
        y_label="imaginary part",
        whole=False,
        plane=True,
    )


def bounds_chart(index: int, found: BlockDiagnosis) -> Chart:
    """The step of a block beside the bounds that theory sets it."""
    steps = found.stability.steps
    sizes = [step.step_size for step in steps]
    curves = [
        Series(
            label=bound_label(steps, name),
            xs=range(len(steps)),
            ys=[getattr(step, name) for step in steps],
            colour=colour,
            line=False,
            main=name == "guaranteed_bound",
        )
        for name, colour in (("local_bound", 0), ("guaranteed_bound", 1))
    ]
    same = f" {sizes[0]:g}" if len(set(sizes)) == 1 else ""
    actual = Series(label=f"actual step{same}", xs=range(len(sizes)), ys=sizes, colour=2, main=True)
    return Chart(
        title=f"Step size and bounds of block {index}",
        series=[*curves, actual],
        x_label="step",
        y_label="step size",
    )


def growth_chart(index: int, found: BlockDiagnosis) -> Chart:
    """M against the depth, forwards and, for waves, backwards (eq. 6)."""
    curves = []
    for growth in found.stability.growth:
        name = f"{growth.perturbation}, {'backwards' if growth.backward else 'forwards'}"
        is_noise = growth.perturbation == "noise"
        shown = [(name, growth.constants, _PERTURBATIONS[growth.perturbation])]
        shown += [(f"{name}, relative", growth.relative_constants, 3)] if is_noise else []
        how = {"dashed": growth.backward, "main": is_noise and not growth.backward}
        curves += [
            Series(label=label, xs=growth.depths, ys=ys, colour=colour, **how)
            for label, ys, colour in shown
        ]
    return Chart(
        title=f"Growth of perturbations in block {index}",
        series=curves,
        x_label="steps",
        y_label="growth",
        may_be_log=True,
        level=1.0,
    )


def energy_chart(index: int, found: BlockDiagnosis) -> Chart:
    """Each energy as a share of its start, the mean over the images (eq. 12)."""
    curves = []
    for name, (colour, dashed) in _ENERGIES.items():
        curve = getattr(found.energy, name)
        if curve is None or not float(curve[0].mean()):
            continue
        mean = curve.mean(1).tolist()
        curves.append(
            Series(
                label=curve_name(name, found),
                xs=block_times(found.block),
                ys=[value / mean[0] for value in mean],
                colour=colour,
                dashed=dashed,
                broad=name.startswith("printed"),
                main=name in ("norms", "raw"),
            )
        )
    return Chart(
        title=f"Norm and energy along block {index}",
        series=curves,
        x_label="time",
        y_label="share of the start",
        whole=False,
        level=1.0,
    )
