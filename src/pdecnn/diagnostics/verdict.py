"""What can be said of a block's stability, in plain words (eq. 6).

guaranteed  proved for all features: no step expands any distance (Theorem 1)
bounded     proved for all features: distances stay below a constant at any depth (linear waves)
measured    nothing is proved; the growth was measured on the given features
unstable    growth without limit is proved, or a local bound is exceeded and growth was measured
"""

from dataclasses import dataclass
from math import ceil, isfinite, sqrt

import torch
from torch import Tensor, nn

from pdecnn.diagnostics.growth import Growth
from pdecnn.diagnostics.guarantees import (
    Assumption,
    departure,
    is_linear,
    monotone_assumptions,
    scaled_convolution,
    sufficient_linear_bound,
)
from pdecnn.diagnostics.jacobians import convolution_map, is_wave
from pdecnn.diagnostics.spectra import (
    NormBounds,
    Spectrum,
    convolution_norm_bound,
    largest_eigenvalue,
)
from pdecnn.errors import DivergedError
from pdecnn.networks.pretrained import nonfinite_weights
from pdecnn.pde.block import Block
from pdecnn.pde.facts import declared
from pdecnn.pde.layers import AbstractLayer

VERDICTS = ("guaranteed", "bounded", "measured", "unstable")
UNSTABLE_GROWTH = 10.0
"""Measured growth beyond this, with a local bound exceeded, is called unstable."""
_THEOREMS = {
    False: "Theorem 1 in discrete time",
    True: "linear waves with weights constant in time (Theorem 2 is false in general)",
}
# Singular values below this share of the largest one count as zero.
_INJECTIVE = 1e-6
_ABOVE = 1 + 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class MissingNumber:
    """A number that is not known, and why."""

    number: str
    """'local bound', 'amplification', 'spectrum of the system', or of a layer: 'spectrum of layer
    0', 'largest symmetric eigenvalue of layer 0', 'norm of K of layer 0'."""
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StepStability:
    """What is known of one time step, at the features it meets; `missing` says what is not."""

    step_size: float
    guaranteed_bound: float | None
    """None: nothing is guaranteed at any step size."""
    local_bound: float | None
    """At these features only; 0: something grows at every step size; None: missing."""
    norms: tuple[NormBounds | None, ...]
    """|K| of each layer; None: missing."""
    symmetric_eigenvalues: tuple[float | None, ...]
    """lambda_max((J + J^T)/2) of each layer; positive: F is not monotone here; None: missing."""
    amplification: float | None
    """The largest |eigenvalue| found of the Jacobian of the step; None: missing."""
    layer_spectra: tuple[Spectrum | None, ...]
    """Of dF/dY of each layer, at what it is applied to; None: missing."""
    system_spectrum: Spectrum | None
    """Of the Jacobian of the differential equation; None: missing."""
    missing: tuple[MissingNumber, ...]
    """What of the above is not known, and why."""

    def why_missing(self, number: str) -> str | None:
        """The reason; None if that number is known."""
        return {entry.number: entry.reason for entry in self.missing}.get(number)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """One of `VERDICTS`, with the theorem asked and which of its assumptions hold."""

    name: str
    theorem: str
    assumptions: tuple[Assumption, ...]
    reason: str
    """Why, in plain words."""
    remedy: str | None = None
    """What to change, where it is 'unstable'."""

    @property
    def failing(self) -> tuple[str, ...]:
        """The assumptions that do not hold."""
        return tuple(found.statement for found in self.assumptions if not found.holds)


def judge(
    block: Block,
    steps: tuple[StepStability, ...],
    growth: tuple[Growth, ...],
    size: tuple[int, ...],
    dense_size: int,
    changed: str | None = None,
    *,
    of_piece: bool = False,
) -> Verdict:
    """The verdict on a block in float64 without a grid, given what was measured of it.

    `changed` says how the block that is meant departs from its plain copy, which was measured;
    with `of_piece` local bounds are those of a piece of a signal, and the reason says so.
    """
    wave = is_wave(block.integrator)
    # What diffuses grows backwards in time, however stable it is.
    growth = tuple(found for found in growth if wave or not found.backward)
    largest = max(found.constant for found in growth)
    assumptions = (
        _wave_assumptions(block, steps, size, dense_size)
        if wave
        else _monotone_assumptions(block, steps, largest)
    )
    if changed is not None:
        unchanged = Assumption(
            statement="the block is pdecnn's own, unchanged",
            holds=False,
            otherwise=f"the block was changed: {changed}",
        )
        assumptions = (*assumptions, unchanged)
    failing = "; ".join(found.words for found in assumptions if not found.holds)
    instability = _instability(block, steps, growth, of_piece) if failing else None
    name = "unstable" if instability is not None else "measured"
    alone = "" if changed is None else " in its steps alone"
    reason = instability or (
        f"nothing is proved, since {failing}. On these features perturbations grew at most "
        f"{largest:.3g}-fold{alone}"
    )
    if not failing:
        name, reason = "guaranteed", "no step expands the distance of any two features"
    if not failing and wave:
        name = "bounded"
        reason = (
            "perturbations stay below a constant, which may be large, at any depth: every "
            f"eigenvalue of a step has magnitude 1. On these features they grew at most "
            f"{largest:.3g}-fold"
        )
    return Verdict(
        name=name,
        theorem=_THEOREMS[wave],
        assumptions=assumptions,
        reason=reason,
        remedy=_remedy(block, steps) if name == "unstable" else None,
    )


def _monotone_assumptions(
    block: Block, steps: tuple[StepStability, ...], largest: float
) -> tuple[Assumption, ...]:
    found = _merged([monotone_assumptions(layer) for layers in block.steps for layer in layers])
    if not all(assumption.holds for assumption in found):
        return found
    pairs = [(step.step_size, step.guaranteed_bound) for step in steps]
    known = [(size, bound) for size, bound in pairs if bound is not None]
    if len(known) < len(pairs):
        return *found, _no_bound(block, "guaranteed step bound")
    size, bound = max(known, key=lambda pair: pair[0] / pair[1])
    name = (
        "step_size" if len({size for size, _ in known}) == 1 else "the step nearest to its bound,"
    )
    below = Assumption(
        statement=f"{name} {size:.4g} is at most the guaranteed bound {bound:.4g}",
        holds=size <= bound,
        otherwise=f"{name} {size:.4g} is above the guaranteed bound {bound:.4g}",
    )
    if not below.holds:
        return *found, below
    contradicted = Assumption(
        statement="no perturbation of these features grew",
        holds=largest <= _ABOVE,
        otherwise=f"perturbations of these features grew {largest:.6g}-fold, which the theorem "
        f"excludes: a part is not what it is declared to be (the slopes of an activation?)",
    )
    return *found, below, contradicted


def _wave_assumptions(
    block: Block, steps: tuple[StepStability, ...], size: tuple[int, ...], dense_size: int
) -> tuple[Assumption, ...]:
    layers = [layer for step in block.steps for layer in step]
    own = all(departure(layer) is None for layer in layers)
    found = (
        *_merged([monotone_assumptions(layer) for layer in layers]),
        Assumption(
            statement="the layers are linear",
            holds=all(map(is_linear, layers)),
            otherwise=f"the layers are not {'' if own else 'known to be '}linear",
        ),
        Assumption(
            statement="the weights are constant in time",
            holds=_is_constant(block),
            otherwise="the weights change from step to step",
        ),
    )
    if not all(assumption.holds for assumption in found):
        return found
    first = [layer for layer in block.steps[0] if isinstance(layer, AbstractLayer)]
    sufficient = sufficient_linear_bound(
        block.integrator, block.steps[0], size, dense_size=dense_size
    )
    # The system is linear: its local bound is that of all features. Where it is known it counts,
    # though no smaller than the sufficient one but for activations that are not as declared.
    dt, bound = steps[0].step_size, steps[0].local_bound
    if bound is None and sufficient is not None:
        bound = (
            sufficient * dt / block.step_size
        )  # which is for steps without a factor of their own
    if bound is None:
        return *found, _no_bound(block, "step bound")
    return (
        *found,
        _injective(first, size, dense_size),
        Assumption(
            statement=f"step_size {dt:.4g} is below the bound {bound:.4g}",
            holds=dt * _ABOVE < bound,
            otherwise=f"step_size {dt:.4g} is not below the bound {bound:.4g}",
        ),
    )


def _no_bound(block: Block, kind: str) -> Assumption:
    name = type(block.integrator).__name__
    return Assumption(
        statement=f"a {kind} is known for {name}",
        holds=False,
        otherwise=f"no {kind} is known for {name}",
    )


def _instability(
    block: Block, steps: tuple[StepStability, ...], growth: tuple[Growth, ...], of_piece: bool
) -> str | None:
    """Why the block is unstable; None if it cannot be said to be."""
    largest = max(found.constant for found in growth)
    if not isfinite(largest):
        return "the growth of perturbations overflowed"
    ruled = declared(type(block.integrator), "stability") is not None
    linear = ruled and all(is_linear(layer) for layers in block.steps for layer in layers)
    factor = steps[0].amplification or 0.0
    if linear and _is_constant(block) and factor > 1 + 1e-6:
        return (
            f"every step multiplies some perturbation by {factor:.7g}, so it grows without limit "
            f"with depth"
        )
    exceeded = [
        index
        for index, step in enumerate(steps)
        if step.local_bound is not None and step.step_size > step.local_bound * _ABOVE
    ]
    if exceeded and largest > UNSTABLE_GROWTH:
        return (
            f"step_size {block.step_size:.4g} exceeds the local bound of step "
            f"{', '.join(map(str, exceeded))}{' on its loudest piece' if of_piece else ''}, and "
            f"perturbations grew {largest:.3g}-fold"
        )
    return None


def _remedy(block: Block, steps: tuple[StepStability, ...]) -> str:
    """What to change in an unstable block: smaller steps, where some are small enough."""
    stable = (
        ""
        if is_wave(block.integrator)
        else ", or with network.step_size=stable, network.normalization=bias and "
        "network.certified_size, by which no distance grows"
    )
    bounds = [
        step.local_bound * block.step_size / step.step_size
        for step in steps
        if step.local_bound is not None
    ]
    if not bounds or min(bounds) <= 0:
        return (
            f"some perturbation grows at every step size here: train with symmetric layers "
            f"(network.layer=symmetric), a normalisation (network.normalization=tv) or a larger "
            f"training.decay_weight{stable}"
        )
    size = min(bounds)
    number = ceil(block.final_time / size)
    return (
        f"train anew with steps below {size:.3g}, say network.step_size="
        f"{block.final_time / number:.3g} and network.num_steps={number}, to the same final time "
        f"(`pdecnn refine RUN --time {ceil(number / block.num_steps)}` begins with these weights)"
        f"{stable}"
    )


def diverged_verdict(block: Block, features: Tensor) -> Verdict:
    """The verdict on a block whose states are not finite, having begun with `features`."""
    reason = "the features left the range of floating-point numbers within the block"
    remedy = (
        f"train anew with steps smaller than network.step_size={block.step_size:g}, or with a "
        f"normalisation (network.normalization=tv)"
    )
    weights = nonfinite_weights(block)
    if not bool(features.isfinite().all()):
        reason = "the features that reach the block are not finite"
        remedy = "look at the blocks before this one first"
    if weights is not None:
        reason, remedy = f"{weights} of the block", "take other weights, such as --weights best"
    return Verdict(
        name="unstable",
        theorem=_THEOREMS[is_wave(block.integrator)],
        assumptions=(),
        reason=reason,
        remedy=remedy,
    )


def _merged(found: list[tuple[Assumption, ...]]) -> tuple[Assumption, ...]:
    """Each statement once; it holds if it does for all layers, else the first says why not."""
    merged: dict[str, Assumption] = {}
    for assumption in (assumption for layer in found for assumption in layer):
        if merged.setdefault(assumption.statement, assumption).holds:
            merged[assumption.statement] = assumption
    return tuple(merged.values())


def _is_constant(block: Block) -> bool:
    """Whether all steps are of one kind and have equal weights, be they shared or not."""
    first = block.steps[0]
    return all(
        _is_equal(layer, twin)
        for layers in block.steps[1:]
        for layer, twin in zip(layers, first, strict=True)
    )


def _is_equal(layer: nn.Module, other: nn.Module) -> bool:
    """Whether two layers are known to be one function: the same parts with the same weights."""
    weights, others = layer.state_dict(), other.state_dict()
    return (
        [type(part) for part in layer.modules()] == [type(part) for part in other.modules()]
        and getattr(layer, "activation", None) == getattr(other, "activation", None)
        and weights.keys() == others.keys()
        and all(torch.equal(weight, others[name]) for name, weight in weights.items())
    )


def _injective(layers: list[AbstractLayer], size: tuple[int, ...], dense_size: int) -> Assumption:
    """Whether no S^(1/2) K has a null vector; where Lanczos finds no answer it is not known."""
    statement = "every K is injective"
    for layer in layers:
        convolution = scaled_convolution(layer)
        gram = convolution_map(convolution, size).gram()
        try:
            smallest = largest_eigenvalue(gram, smallest=True, dense_size=dense_size)
        except DivergedError as error:
            unknown = f"it is not known whether every K is injective ({error})"
            return Assumption(statement=statement, holds=False, otherwise=unknown)
        largest = convolution_norm_bound(convolution, size, dense_size=dense_size)
        if sqrt(max(smallest, 0.0)) <= _INJECTIVE * largest:
            return Assumption(statement=statement, holds=False, otherwise="a K is not injective")
    return Assumption(statement=statement, holds=True)
