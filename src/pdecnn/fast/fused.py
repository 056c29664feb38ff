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
from pdecnn.pde.facts import declared
from pdecnn.pde.grid import Grid, largest_magnitude
from pdecnn.pde.integrators import (
    AbstractIntegrator,
    AbstractReversibleIntegrator,
    ForwardEuler,
    Layers,
    Shear,
    State,
)


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

    @property
    def grid_scale(self) -> float | None:
        """1 / the mesh size of the grid."""
        return None if self.grid is None else float(2**self.grid.bits)

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
    if not _computes_in_bfloat16(state[0]):
        return None
    shears = _shears(integrator, steps)
    if shears is None:
        return None
    layers: dict[int, nn.Module] = {
        id(shear.layer): shear.layer for shear in shears if shear.layer is not None
    }
    if not all(kernels.fits(layer, state[0]) for layer in layers.values()):
        return None
    places = {key: place for place, key in enumerate(layers)}
    updates = tuple(
        Update(
            shear.target,
            cast(int, shear.source),
            None if shear.layer is None else places[id(shear.layer)],
            shear.sign * step_size,
        )
        for shear in shears
    )
    weights = [dict(layer.named_parameters()) for layer in layers.values()]
    epsilons = tuple(float(layer.normalization.epsilon) for layer in layers.values())  # type: ignore[union-attr, arg-type]
    # Only here: within an autograd function gradients are always off.
    plan = Plan(updates, epsilons, grid, keep and torch.is_grad_enabled())
    outcome: tuple[Tensor, ...] = _FusedSteps.apply(  # type: ignore[no-untyped-call]
        plan,
        len(state),
        *state,
        *(weight[kernels.STENCIL] for weight in weights),
        *(weight[kernels.SCALE] for weight in weights),
        *(weight[kernels.BIAS] for weight in weights),
    )
    final, extents = outcome[: len(state)], outcome[len(state) :]
    if grid is not None:
        grid.check_extent(extents[0], state[0].dtype)
    return final


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


def _computes_in_bfloat16(features: Tensor) -> bool:
    kind = features.device.type
    return torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16


class _Weights(NamedTuple):
    """The weights of all distinct layers."""

    stencils: Tensor
    """(layers, out, 3, 3, in) in bfloat16."""
    scales: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]

    def of(self, plan: Plan, layer: int) -> kernels.Weights:
        """Those of one layer as the kernels take them."""
        stencil = self.stencils[layer].permute(0, 3, 1, 2)
        return kernels.Weights(
            stencil, self.scales[layer], self.biases[layer], plan.epsilons[layer]
        )


class _State:
    """Float32 components and, of those a convolution reads, bfloat16 copies."""

    def __init__(self, components: Sequence[Tensor], copied: Sequence[bool]) -> None:
        layout = torch.channels_last
        self.values = [value.contiguous(memory_format=layout) for value in components]
        self.copied = copied
        self.copies = [
            value.to(torch.bfloat16) if wanted else None
            for value, wanted in zip(self.values, copied, strict=True)
        ]

    def copy_of(self, component: int) -> Tensor:
        copy = self.copies[component]
        assert copy is not None, "no convolution reads this component"
        return copy

    def set(self, component: int, outcome: kernels.Sum) -> None:
        self.values[component], self.copies[component] = outcome

    def add(self, target: int, source: int, factor: float, grid: Grid | None) -> None:
        """Add a multiple of another component, rounded to the grid."""
        if grid is None:
            value = torch.add(self.values[target], self.values[source], alpha=factor)
        else:
            value = self.values[target] + grid.round(factor * self.values[source])
        copy = value.to(torch.bfloat16) if self.copied[target] else None
        self.set(target, kernels.Sum(value, copy))


class _WeightGradients:
    """Gradients of all layers' weights: parts of sums, added up a few layers at a time.

    One sum over several layers is one launch; all of them at once would take memory that grows
    with the number of steps. On a GPU the parts are computed on a stream of their own, beside
    the gradients of the states, which do not wait for them and leave much of the device idle.
    """

    group_size = 6

    def __init__(self, num_layers: int) -> None:
        self.stencils: list[Tensor | None] = [None] * num_layers
        self.affine: list[Tensor | None] = [None] * num_layers
        self.layers: list[int] = []
        self.stencil_parts: Tensor | None = None
        self.affine_parts: list[Tensor] = []
        self.in_use: list[Tensor] = []
        """What the stream still reads, which must not be freed before it has."""

    def add(
        self,
        layer: int,
        found: kernels.HiddenGradient,
        source: Tensor,
        target_gradient: Tensor,
        factor: float,
    ) -> None:
        """Add what one update gives."""
        if self.stencil_parts is None:
            shape = (self.group_size, *kernels.stencil_gradient_shape(source))
            self.stencil_parts = source.new_empty(shape, dtype=torch.float32)
        with _beside(source.device):
            kernels.stencil_gradient_parts(
                found.gradient,
                source,
                found.activated,
                target_gradient,
                factor,
                out=self.stencil_parts[len(self.layers)],
            )
        self.in_use += [found.gradient, source, found.activated, target_gradient]
        self.layers.append(layer)
        self.affine_parts.append(found.partial_sums)
        if len(self.layers) == self.group_size:
            self._add_up()

    def finish(self) -> list[Tensor | None]:
        """The gradients of all stencils, then of all scales, then of all biases."""
        self._add_up()
        stencils = [None if g is None else g.permute(0, 3, 1, 2) for g in self.stencils]
        scales = [None if g is None else g[0] for g in self.affine]
        biases = [None if g is None else g[1] for g in self.affine]
        return [*stencils, *scales, *biases]

    def _add_up(self) -> None:
        if self.stencil_parts is None or not self.layers:
            return
        if self.stencil_parts.is_cuda:
            torch.cuda.current_stream().wait_stream(_second_stream(self.stencil_parts.device))
        self.in_use = []
        stencils = self.stencil_parts[: len(self.layers)].sum(1)
        affine = torch.stack(self.affine_parts).sum(1)
        for layer, stencil, pair in zip(self.layers, stencils, affine, strict=True):
            self.stencils[layer] = _added(self.stencils[layer], stencil)
            self.affine[layer] = _added(self.affine[layer], pair)
        self.layers, self.affine_parts = [], []


@contextmanager
def _beside(device: torch.device) -> Iterator[None]:
    """Within it kernels are launched on a second stream, after all that were launched before."""
    if device.type != "cuda":
        yield
        return
    stream = _second_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield


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
    known, last, left = list(gradients), plan.updates[-1], len(plan.updates)
    given = known[last.target]
    if last.layer is None and known[last.source] is None and given is not None:
        known[last.source] = given if last.factor == 1 else last.factor * given
        left -= 1
    some = next(gradient for gradient in known if gradient is not None)
    return [torch.zeros_like(some) if g is None else g for g in known], left


def _refuse_second_derivatives() -> None:
    if torch.is_grad_enabled():
        raise RuntimeError(
            "second derivatives through fused kernels are not available; where "
            "create_graph=True is needed compute outside of `accelerated`, with "
            "backprop='stored' or 'checkpointed'"
        )


class _FusedSteps(torch.autograd.Function):
    """The updates of a plan and their gradient."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, num_components: int, *tensors: Tensor) -> State:
        num_layers = len(plan.epsilons)
        components, rest = tensors[:num_components], tensors[num_components:]
        stencils = torch.stack([s.detach() for s in rest[:num_layers]]).permute(0, 1, 3, 4, 2)
        stencils = stencils.to(torch.bfloat16, memory_format=torch.contiguous_format)
        weights = _Weights(stencils, rest[num_layers : 2 * num_layers], rest[2 * num_layers :])
        keep = plan.keep and any(ctx.needs_input_grad)
        state = _State(components, [plan.is_read(k) for k in range(num_components)])
        saved: list[Tensor] = []
        extents = [] if plan.grid is None else [largest_magnitude(v) for v in state.values]
        done = -1
        for k, (target, source, layer, factor) in enumerate(plan.updates):
            if k == done:
                pass
            elif layer is None:
                state.add(target, source, factor, plan.grid)
            else:
                read = state.copy_of(source)
                own = weights.of(plan, layer)
                # On a grid u is computed again in any mode, so that all give the same bits.
                activated, hidden = kernels.activate(read, own, keep=keep and plan.grid is None)
                along = plan.taken_along(k, 1)
                outcome, moved = kernels.add_adjoint(
                    state.values[target],
                    activated,
                    own.stencil,
                    -factor,
                    grid_scale=plan.grid_scale,
                    copy=state.copied[target],
                    following=along and (state.values[along.target], along.factor),
                )
                state.set(target, outcome)
                if along is not None and moved is not None:
                    state.set(along.target, moved)
                    done = k + 1
                if keep:
                    saved += [read] if hidden is None else [read, activated, hidden]
            if plan.grid is not None:
                extents.append(largest_magnitude(state.values[target]))
        ctx.plan, ctx.num_components = plan, num_components
        ctx.set_materialize_grads(False)
        kept = saved if keep else state.values
        ctx.save_for_backward(*kept, *weights.scales, *weights.biases, stencils)
        if plan.grid is None:
            return tuple(state.values)
        extent = torch.stack(extents).amax()
        ctx.mark_non_differentiable(extent)
        return (*state.values, extent)

    @staticmethod
    def backward(ctx: Any, *outcome_gradients: Tensor) -> tuple[Tensor | None, ...]:
        _refuse_second_derivatives()
        plan: Plan = ctx.plan
        num_components: int = ctx.num_components
        num_layers = len(plan.epsilons)
        *kept, stencils = ctx.saved_tensors
        cut = len(kept) - 2 * num_layers
        kept, scales, biases = kept[:cut], kept[cut : cut + num_layers], kept[cut + num_layers :]
        weights = _Weights(stencils, tuple(scales), tuple(biases))
        written = [plan.is_written(k) for k in range(num_components)]
        outcome_values, left = _begin_back(outcome_gradients[:num_components], plan)
        gradients = _State(outcome_values, written)
        state = None
        if not plan.keep:
            state = _State(kept, [plan.is_read(k) for k in range(num_components)])
        needed = ctx.needs_input_grad
        trained = [any(needed[2 + num_components + k :: num_layers]) for k in range(num_layers)]
        sums = _WeightGradients(num_layers)
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
            own = weights.of(plan, layer)
            gradient = gradients.copy_of(target)
            if state is None:
                again = plan.grid is not None
                saved = (
                    None if again else kernels.Activated(hidden=kept.pop(), activated=kept.pop())
                )
                read = kept.pop()
                found = kernels.hidden_gradient(gradient, own, factor, saved=saved, source=read)
                along = plan.taken_along(k, -1)
                new_gradient, moved = kernels.add_adjoint(
                    gradients.values[source],
                    found.gradient,
                    own.stencil,
                    1.0,
                    copy=written[source],
                    following=along and (gradients.values[along.source], along.factor),
                )
                if along is not None and moved is not None:
                    gradients.set(along.source, moved)
                    done = k - 1
            else:
                read = state.copy_of(source)
                found = kernels.hidden_gradient(gradient, own, factor, source=read)
                before, new_gradient = kernels.undo_add_adjoint(
                    state.values[target],
                    found.activated,
                    gradients.values[source],
                    found.gradient,
                    own.stencil,
                    factor,
                    grid_scale=plan.grid_scale,
                    copies=(state.copied[target], written[source]),
                )
                state.set(target, before)
            if trained[layer]:
                sums.add(layer, found, read, gradient, factor)
            gradients.set(source, new_gradient)
        every = (None, None, *gradients.values, *sums.finish())
        return tuple(g if wanted else None for g, wanted in zip(every, needed, strict=True))
