"""All steps of a block of symmetric layers by fused kernels, in either way of keeping (Sec. 3).

A kernel takes a convolution together with all that is pointwise around it, so that a shear
`target + factor F(source)` costs two launches and its gradient three. States are float32; what
convolutions read is a bfloat16 copy that the kernel before has left.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from pdecnn.fast.kernels import symmetric_shear as kernels
from pdecnn.fast.packing import (
    pack,
    pack_adjoints,
    pack_stencils,
    pixels_as_one,
    unpack,
    unpack_stencils,
)
from pdecnn.pde.backprop import TimeStepping
from pdecnn.pde.facts import declared
from pdecnn.pde.grid import Grid, largest_magnitude
from pdecnn.pde.integrators import (
    AbstractIntegrator,
    AbstractReversibleIntegrator,
    ForwardEuler,
    Layers,
    Leapfrog,
    Shear,
    State,
    Verlet,
)

BESIDE = False
"""Whether a graph has the gradients of stencils on a branch of their own."""
LATE = False
"""Whether that branch joins at the end of `joined_late` instead of the end of each block."""
LAZY = False
"""Whether components that begin at zero are not read before, nor written after they are used."""


class Update(NamedTuple):
    """state[target] += factor F(state[source]); F is the identity where layer is None."""

    target: int
    source: int
    layer: int | None
    """The place of the layer among the distinct ones."""
    factor: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What the steps do, in order."""

    updates: tuple[Update, ...]
    epsilons: tuple[float, ...]
    """Of each distinct layer's normalisation."""
    grid: Grid | None
    keep: bool
    """Whether all is kept for the gradient; else states are computed backwards."""
    parts: int | None = None
    """Where features go in and come out, not states: into how many components they are split."""
    pixels: int = 1
    """How many pixels side by side the kernels take as one."""

    @property
    def grid_scale(self) -> float | None:
        """1 / the mesh size of the grid."""
        return None if self.grid is None else float(2**self.grid.bits)

    @property
    def num_components(self) -> int:
        """Of a state."""
        return 1 + max(max(update.target, update.source) for update in self.updates)

    def split(self, inputs: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The components of inputs, or of their gradient, None where they have none."""
        features = inputs[0]
        if self.parts is None or features is None:
            return list(inputs)
        missing = self.num_components - self.parts
        return [*features.chunk(self.parts, 1), *[None] * missing]

    def begin(self, inputs: State, *, lazy: bool) -> State:
        """The state at the start; if `lazy` what is zero is not written."""
        if self.parts is None:
            return inputs
        known = [part for part in self.split(inputs) if part is not None]
        if self.grid is not None:  # bfloat16 numbers stay such, since a grid is of powers of two
            known = list(map(self.grid.round, known))
        make = torch.empty_like if lazy else torch.zeros_like
        return (*known, *map(make, known[: self.num_components - len(known)]))

    def is_used(self, component: int, updates: slice) -> bool:
        """Whether some of the updates need a component, or whoever gets the outcome does."""
        if self.parts is None or component < self.parts:
            return True
        return any(component in (u.target, u.source) for u in self.updates[updates])

    def taken_along(self, k: int, step: int) -> Update | None:
        """The neighbour of update k, +1 after or -1 before it, that its last kernel can do too.

        Afterwards what is added is the component just changed; before, going back, its gradient.
        """
        other = self.updates[k + step] if 0 <= k + step < len(self.updates) else None
        if other is None or other.layer is not None:
            return None
        changed = self.updates[k].target if step > 0 else self.updates[k].source
        given = other.source if step > 0 else other.target
        return other if given == changed else None

    def is_read(self, component: int) -> bool:
        """Whether a convolution reads the component."""
        return any(u.source == component for u in self.updates if u.layer is not None)

    def is_written(self, component: int) -> bool:
        """Whether a convolution adds to the component, so that its gradient is read by one."""
        return any(u.target == component for u in self.updates if u.layer is not None)


def misfit(
    integrator: AbstractIntegrator, steps: Sequence[Layers], device: torch.device
) -> str | None:
    """Why the kernels do not compute these steps there, in words; None: in bfloat16 they do."""
    found = kernels.misfit_of_device(device)
    if found is not None:
        return found
    shears = _shears(integrator, steps)
    if shears is None:
        return f"{integrator.name}: the kernels take the steps of forward_euler and of plain shears"
    reasons = (kernels.misfit(layer, device) for layer in _layers_of(shears))
    return next(filter(None, reasons), None)


def misfit_of_precision(device: torch.device) -> str | None:
    """Why the kernels do not compute in the precision that holds now; None: it is theirs."""
    if not torch.is_autocast_enabled(device.type):
        return "float32: the kernels compute in bfloat16, under torch.autocast"
    dtype = torch.get_autocast_dtype(device.type)
    if dtype != torch.bfloat16:
        return f"autocast to {str(dtype).removeprefix('torch.')}: the kernels compute in bfloat16"
    return None


def fused_steps(
    integrator: AbstractIntegrator,
    steps: Sequence[Layers],
    step_size: float,
    grid: Grid | None,
    state: State,
    *,
    keep: bool,
) -> State | None:
    """The state after the steps; None where the kernels do not compute what the layers do."""
    if _unfit(integrator, steps, state[0]):
        return None
    return _run(integrator, steps, step_size, grid, state, keep=keep)


def fused_block(stepping: TimeStepping, features: Tensor, *, keep: bool) -> Tensor | None:
    """All of a block from features to features, so that no other operator touches a state.

    None where the kernels do not compute what it does.
    """
    parts = _num_parts(stepping.integrator)
    if parts is None or _unfit(stepping.integrator, stepping.steps, features):
        return None
    (outcome,) = _run(
        stepping.integrator,
        stepping.steps,
        stepping.step_size,
        stepping.grid,
        (features,),
        keep=keep,
        parts=parts,
    )
    return outcome


def _num_parts(integrator: AbstractIntegrator) -> int | None:
    """Into how many components features are split, where all others start at zero."""
    if type(integrator) is Verlet:
        return 2
    plain = type(integrator) is Leapfrog and not integrator.second_order_start
    return 1 if plain or type(integrator) is ForwardEuler else None


def _unfit(integrator: AbstractIntegrator, steps: Sequence[Layers], features: Tensor) -> bool:
    device = features.device
    return bool(
        misfit_of_precision(device)
        or kernels.misfit_of_features(features)
        or misfit(integrator, steps, device)
    )


def _run(
    integrator: AbstractIntegrator,
    steps: Sequence[Layers],
    step_size: float,
    grid: Grid | None,
    inputs: State,
    *,
    keep: bool,
    parts: int | None = None,
) -> State:
    shears = _shears(integrator, steps) or []
    layers = _layers_of(shears)
    places = {id(layer): place for place, layer in enumerate(layers)}
    updates = tuple(
        Update(
            shear.target,
            cast(int, shear.source),
            None if shear.layer is None else places[id(shear.layer)],
            shear.sign * step_size,
        )
        for shear in shears
    )
    stencils, scales, biases = zip(*map(kernels.weights_of, layers), strict=True)
    epsilons = tuple(float(layer.normalization.epsilon) for layer in layers)  # type: ignore[union-attr, arg-type]
    pixels = pixels_as_one(stencils[0].shape[1], inputs[0].shape[2:])
    # Only here: within an autograd function gradients are always off.
    plan = Plan(updates, epsilons, grid, keep and torch.is_grad_enabled(), parts, pixels)
    tensors = (*inputs, *stencils, *scales, *biases)
    if kernels.needs_rehearsal():
        _rehearse(plan, len(inputs), tensors)
    outcome: tuple[Tensor, ...] = _FusedSteps.apply(plan, len(inputs), *tensors)  # type: ignore[no-untyped-call]
    if grid is None:
        return outcome
    return grid.checked(outcome[: len(inputs)], outcome[-1])


_rehearsed: set[Any] = set()


def _rehearse(plan: Plan, num_inputs: int, tensors: Sequence[Tensor]) -> None:
    """Compile all kernels of a plan together, the first time that its shapes are met."""
    features, differentiable = tensors[0], torch.is_grad_enabled()
    needed = (False, False, *(differentiable and tensor.requires_grad for tensor in tensors))
    key = (plan, features.shape, features.dtype, features.device, needed)
    if key in _rehearsed:
        return
    _rehearsed.add(key)
    context = _Rehearsal(needed)
    shapes = [torch.empty_like(tensor, device="meta") for tensor in tensors]
    with torch.no_grad(), kernels.rehearsal(features.device):
        outcome = _FusedSteps.forward(context, plan, num_inputs, *shapes)
        if any(needed):
            _FusedSteps.backward(context, *map(torch.empty_like, outcome))


class _Rehearsal:
    """What autograd gives to a function to remember things by."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Tensor, ...] = ()

    def save_for_backward(self, *tensors: Tensor) -> None:
        self.saved_tensors = tensors

    def set_materialize_grads(self, value: bool) -> None:
        del value

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        del tensors


def _layers_of(shears: Sequence[Shear]) -> list[nn.Module]:
    """The distinct layers, in order."""
    return list(dict.fromkeys(shear.layer for shear in shears if shear.layer is not None))


def _shears(integrator: AbstractIntegrator, steps: Sequence[Layers]) -> list[Shear] | None:
    kind = type(integrator)
    if kind is ForwardEuler:
        return [Shear(0, 0, layers[0], 1) for layers in steps]
    # A class that inherits its shears may have another step.
    if not isinstance(integrator, AbstractReversibleIntegrator) or not declared(kind, "shears"):
        return None
    shears = [shear for layers in steps for shear in integrator.shears(layers) or ()]
    plain = all(isinstance(shear.source, int) for shear in shears)
    return shears if plain and not declared(kind, "step") else None


class _Weights:
    """The weights of all distinct layers."""

    def __init__(
        self, plan: Plan, stencils: Tensor, scales: Sequence[Tensor], biases: Sequence[Tensor]
    ) -> None:
        self.plan, self.affine = plan, [*scales, *biases]
        self.stencils = pack_stencils(stencils, plan.pixels)
        self.adjoints = pack_adjoints(stencils, plan.pixels)
        if plan.pixels > 1:
            self.affine = list(torch.stack(self.affine).repeat(1, plan.pixels))

    def of(self, layer: int) -> kernels.Weights:
        """Those of one layer as the kernels take them."""
        scale, bias = self.affine[layer :: len(self.stencils)]
        return kernels.Weights(
            self.stencils[layer], self.adjoints[layer], scale, bias, self.plan.epsilons[layer]
        )


class _State:
    """Float32 components and, of those a convolution reads, bfloat16 copies.

    A component that came in bfloat16 is its own copy until it changes. All are held as the kernels
    take them, several pixels as one.
    """

    def __init__(self, components: Sequence[Tensor], copied: Sequence[bool], pixels: int) -> None:
        self.values = [pack(_dense(value), pixels) for value in components]
        self.copied, self.pixels = copied, pixels
        self.copies = [
            value.to(torch.bfloat16) if wanted else None
            for value, wanted in zip(self.values, copied, strict=True)
        ]

    def components(self) -> list[Tensor]:
        """All of them with a pixel for each pixel."""
        return [self._unpacked(value) for value in self.values]

    def given_back(
        self, plan: Plan, dtype: torch.dtype, components: Sequence[Tensor]
    ) -> list[Tensor]:
        """What goes out as the plan's inputs came in: features of the dtype, or all components."""
        if plan.parts is None:
            return list(components)
        found = [
            self._unpacked(copy)
            if copy is not None and dtype == torch.bfloat16
            else value.to(dtype)
            for value, copy in zip(components[: plan.parts], self.copies, strict=False)
        ]
        return found if plan.parts == 1 else [torch.cat(found, 1)]

    def _unpacked(self, values: Tensor) -> Tensor:
        # Autograd forbids to change a view in place that comes out of a function.
        return values if self.pixels == 1 else unpack(values, self.pixels).data

    def copy_of(self, component: int) -> Tensor:
        copy = self.copies[component]
        assert copy is not None, "no convolution reads this component"
        return copy

    def set(self, component: int, outcome: kernels.Sum) -> None:
        self.values[component], self.copies[component] = outcome

    def add(self, target: int, source: int, factor: float, grid: Grid | None) -> None:
        """Add a multiple of another component, rounded to the grid."""
        added = self.values[source].float()
        if grid is None:
            value = torch.add(self.values[target], added, alpha=factor)
        else:
            value = self.values[target] + grid.round(factor * added)
        copy = value.to(torch.bfloat16) if self.copied[target] else None
        self.set(target, kernels.Sum(value, copy))


def _dense(features: Tensor) -> Tensor:
    """Channels last without gaps, as the kernels read them."""
    return features.contiguous(memory_format=kernels.CHANNELS_LAST[features.dim()])


class _WeightGradients:
    """Gradients of all layers' weights: parts of sums, added up a few layers at a time.

    One sum over several layers is one launch; all of them at once would take memory that grows
    with the number of steps. In a graph the parts are computed on a second stream, beside the
    gradients of the states, which do not wait for them and leave much of the device idle.
    Outside of one the host would pay for that.
    """

    group_size = 6

    def __init__(self, stencils: Tensor, pixels: int, trained: Sequence[bool]) -> None:
        num_layers, *self.shape = stencils.shape
        self.pixels, self.trained = pixels, trained
        self.stencils: list[Tensor | None] = [None] * num_layers
        self.affine: list[Tensor | None] = [None] * num_layers
        self.layers: list[int] = []
        self.stencil_parts: Tensor | None = None
        self.affine_parts: list[Tensor] = []
        self.in_use: list[Tensor] = []
        """What the second stream still reads: memory that is freed is the first one's at once."""

    @contextmanager
    def adding(self, layer: int, *given: Any) -> Iterator[None]:
        """Add what one update gives: a branch before, all else after what is launched within."""
        if BESIDE and self.trained[layer]:
            self._add(layer, *given)
        yield
        if not BESIDE and self.trained[layer]:
            self._add(layer, *given)

    def _add(
        self,
        layer: int,
        stencil: Tensor,
        found: kernels.HiddenGradient,
        source: Tensor,
        target_gradient: Tensor,
        factor: float,
    ) -> None:
        if len(self.layers) == self.group_size:
            self._add_up()
        if self.stencil_parts is None:
            shape = (self.group_size, *kernels.stencil_gradient_shape(source, stencil))
            self.stencil_parts = source.new_empty(shape, dtype=torch.float32)
        with _beside(source.device):
            kernels.stencil_gradient_parts(
                found.gradient,
                source,
                found.activated,
                target_gradient,
                factor,
                out=self.stencil_parts[len(self.layers)],
                chained=not BESIDE,
            )
        if _is_beside(source.device):
            self.in_use += [found.gradient, source, found.activated, target_gradient]
        self.layers.append(layer)
        self.affine_parts.append(found.partial_sums)
        if len(self.layers) == self.group_size and not LATE:  # else the last ones join late
            self._add_up()

    def finish(self, late: bool) -> list[Tensor | None]:
        """The gradients of all stencils, then of all scales, then of all biases.

        If they may come `late`, they are there after `joined_late` has ended, not before.
        """
        if late and self.stencil_parts is not None and self.layers:
            assert _open is not None
            earlier = [g for g in (*self.stencils, *self.affine) if g is not None]
            _open.in_use += [*self.in_use, *self.affine_parts, self.stencil_parts, *earlier]
            with _beside(self.stencil_parts.device):
                self._sum()
        else:
            self._add_up()
        stencils = [None if g is None else g.movedim(-1, 1) for g in self.stencils]
        scales = [None if g is None else g[0] for g in self.affine]
        biases = [None if g is None else g[1] for g in self.affine]
        return [*stencils, *scales, *biases]

    def _add_up(self) -> None:
        if self.stencil_parts is None or not self.layers:
            return
        _wait_for_beside(self.stencil_parts.device)
        self.in_use = []
        self._sum()

    def _sum(self) -> None:
        assert self.stencil_parts is not None
        stencils = self.stencil_parts[: len(self.layers)].sum(1)
        stencils = unpack_stencils(stencils, self.shape)
        affine = torch.stack(self.affine_parts).sum(1)
        if self.pixels > 1:
            affine = affine.reshape(len(affine), 2, self.pixels, -1).sum(2)
        for layer, stencil, pair in zip(self.layers, stencils, affine, strict=True):
            self.stencils[layer] = _added(self.stencils[layer], stencil)
            self.affine[layer] = _added(self.affine[layer], pair)
        self.layers, self.affine_parts = [], []


def _is_beside(device: torch.device) -> bool:
    return BESIDE and device.type == "cuda" and torch.cuda.is_current_stream_capturing()


@contextmanager
def _beside(device: torch.device) -> Iterator[None]:
    """Within it kernels are launched on the second stream, after all that were launched before."""
    if not _is_beside(device):
        yield
        return
    stream = _second_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield


def _wait_for_beside(device: torch.device) -> None:
    """What is launched from now on comes after all that was launched there."""
    if _is_beside(device):
        torch.cuda.current_stream(device).wait_stream(_second_stream(device))


class _Open:
    """A branch that has not joined yet: what it reads, and whose gradients it computes."""

    def __init__(self) -> None:
        self.in_use: list[Tensor] = []
        self.weights: set[int] = set()

    def takes(self, weights: Sequence[Tensor]) -> bool:
        """Whether nobody touches the gradients of such weights until the branch joins.

        Autograd adds up those of a weight that is met twice, and differentiates what is no leaf.
        """
        places = {weight.data_ptr() for weight in weights}
        free = self.weights.isdisjoint(places)
        self.weights |= places
        leaves = all(w.is_leaf and not w._backward_hooks for w in weights)
        return bool(weights) and free and leaves


_open: _Open | None = None  # not a context variable: autograd goes back in a thread of its own


@contextmanager
def joined_late(device: torch.device) -> Iterator[None]:
    """Within it gradients of leaves are differentiated, and read by no one before it ends."""
    global _open
    if not (LATE and _is_beside(device)):
        yield
        return
    _open = _Open()
    try:
        yield
        if _open.in_use:
            _wait_for_beside(device)
    finally:
        _open = None


def first_stream() -> torch.cuda.Stream | None:
    """What to capture a graph on, so that its branch yields to the rest; None: torch's own."""
    return torch.cuda.Stream(priority=-1) if BESIDE else None  # type: ignore[no-untyped-call]


@cache
def _second_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _added(total: Tensor | None, part: Tensor) -> Tensor:
    return part if total is None else total + part


def _begin_back(gradients: Sequence[Tensor | None], plan: Plan) -> tuple[list[Tensor], int]:
    """The gradients of the outcome, and the number of updates whose gradient is still to come.

    Nobody uses the velocity of an outcome, and its gradient comes from the last position alone:
    that needs no zeros and no sum.
    """
    known, last, left = plan.split(gradients), plan.updates[-1], len(plan.updates)
    given = known[last.target]
    if last.layer is None and known[last.source] is None and given is not None:
        known[last.source] = given if last.factor == 1 else last.factor * given.float()
        left -= 1
    some = next(gradient for gradient in known if gradient is not None)
    return [torch.zeros_like(some) if g is None else g for g in known], left


def refuse_second_derivatives() -> None:
    """Raise an error where a gradient is to be differentiated again, which kernels cannot."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "second derivatives through fused kernels are not available; where "
            "create_graph=True is needed undo it with pdecnn.accelerate(network, enabled=False), "
            "with backprop='stored' or 'checkpointed'"
        )


class _FusedSteps(torch.autograd.Function):
    """The updates of a plan and their gradient."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, num_inputs: int, *tensors: Tensor) -> State:
        num_layers = len(plan.epsilons)
        inputs, rest = tensors[:num_inputs], tensors[num_inputs:]
        keep = plan.keep and any(ctx.needs_input_grad)
        lazy = LAZY and keep and plan.grid is None  # else what is not kept is computed backwards
        components = plan.begin(inputs, lazy=lazy)
        num_components = len(components)
        stencils = torch.stack([s.detach() for s in rest[:num_layers]]).movedim(2, -1)
        stencils = stencils.to(torch.bfloat16, memory_format=torch.contiguous_format)
        scales, biases = rest[num_layers : 2 * num_layers], rest[2 * num_layers :]
        weights = _Weights(plan, stencils, scales, biases)
        read_ones = [plan.is_read(k) for k in range(num_components)]
        state = _State(components, read_ones, plan.pixels)
        saved: list[Tensor] = []
        extents = []
        if plan.grid is not None:
            extents = [largest_magnitude(value).float() for value in state.values]
        done = -1
        for k, (target, source, layer, factor) in enumerate(plan.updates):
            if k == done:
                pass
            elif layer is None:
                state.add(target, source, factor, plan.grid)
            else:
                read = state.copy_of(source)
                own = weights.of(layer)
                # On a grid u is computed again in any mode, so that all give the same bits.
                activated, hidden = kernels.activate(read, own, keep=keep and plan.grid is None)
                along = plan.taken_along(k, 1)
                after = slice(k + 1 if along is None else k + 2, None)
                outcome, moved = kernels.add_adjoint(
                    state.values[target] if not lazy or plan.is_used(target, slice(k)) else None,
                    activated,
                    own.adjoint,
                    -factor,
                    grid_scale=plan.grid_scale,
                    copy=state.copied[target],
                    following=along and (state.values[along.target], along.factor),
                    store=not lazy or plan.is_used(target, after),
                )
                state.set(target, outcome)
                if along is not None and moved is not None:
                    state.set(along.target, moved)
                    done = k + 1
                if keep:
                    saved += [read] if hidden is None else [read, activated, hidden]
            if plan.grid is not None:
                extents.append(largest_magnitude(state.values[target]))
        ctx.plan, ctx.num_inputs, ctx.dtype = plan, num_inputs, inputs[0].dtype
        # Steps taken again on the way back hand their gradients to the block around them.
        ctx.weights = rest if LATE and _open is None else ()
        ctx.set_materialize_grads(False)
        final = state.components()
        kept = saved if keep else final
        ctx.save_for_backward(*kept, *scales, *biases, stencils)
        given_back = state.given_back(plan, ctx.dtype, final)
        if plan.grid is None:
            return tuple(given_back)
        extent = torch.stack(extents).amax()
        ctx.mark_non_differentiable(extent)
        return (*given_back, extent)

    @staticmethod
    def backward(ctx: Any, *outcome_gradients: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        plan: Plan = ctx.plan
        num_inputs: int = ctx.num_inputs
        num_layers = len(plan.epsilons)
        *kept, stencils = ctx.saved_tensors
        cut = len(kept) - 2 * num_layers
        kept, scales, biases = kept[:cut], kept[cut : cut + num_layers], kept[cut + num_layers :]
        weights = _Weights(plan, stencils, scales, biases)
        outcome_values, left = _begin_back(outcome_gradients[:num_inputs], plan)
        num_components = len(outcome_values)
        written = [plan.is_written(k) for k in range(num_components)]
        gradients = _State(outcome_values, written, plan.pixels)
        state = None
        if not plan.keep:
            read_ones = [plan.is_read(k) for k in range(num_components)]
            state = _State(kept, read_ones, plan.pixels)
        needed = ctx.needs_input_grad
        trained = [any(needed[2 + num_inputs + k :: num_layers]) for k in range(num_layers)]
        sums = _WeightGradients(stencils, plan.pixels, trained)
        done = len(plan.updates)
        for k, (target, source, layer, factor) in reversed(list(enumerate(plan.updates))):
            if k == done:
                continue
            if layer is None:
                if state is not None:
                    state.add(target, source, -factor, plan.grid)
                if k < left:
                    gradients.add(source, target, factor, None)
                continue
            own = weights.of(layer)
            gradient = gradients.copy_of(target)
            saved = None
            if state is None and plan.grid is None:
                saved = kernels.Activated(hidden=kept.pop(), activated=kept.pop())
            read = kept.pop() if state is None else state.copy_of(source)
            found = kernels.hidden_gradient(gradient, own, factor, saved=saved, source=read)
            with sums.adding(layer, own.stencil, found, read, gradient, factor):
                if state is None:
                    along = plan.taken_along(k, -1)
                    new_gradient, moved = kernels.add_adjoint(
                        gradients.values[source],
                        found.gradient,
                        own.adjoint,
                        1.0,
                        copy=written[source],
                        following=along and (gradients.values[along.source], along.factor),
                    )
                    if along is not None and moved is not None:
                        gradients.set(along.source, moved)
                        done = k - 1
                else:
                    before, new_gradient = kernels.undo_add_adjoint(
                        state.values[target],
                        found.activated,
                        gradients.values[source],
                        found.gradient,
                        own.adjoint,
                        factor,
                        grid_scale=plan.grid_scale,
                        copies=(state.copied[target], written[source]),
                    )
                    state.set(target, before)
            gradients.set(source, new_gradient)
        outcome = gradients.given_back(plan, ctx.dtype, gradients.components())
        late = _open is not None and _open.takes(ctx.weights)
        every = (None, None, *outcome, *sums.finish(late))
        return tuple(g if wanted else None for g, wanted in zip(every, needed, strict=True))
