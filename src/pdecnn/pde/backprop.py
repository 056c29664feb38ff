"""What is kept for the gradient of a block: all, some, or one state (Sec. 3.2).

stored        every intermediate result, as PyTorch does by itself
checkpointed  O(sqrt N) states; each segment is computed again when its gradient is due
reversible    the final state; earlier ones are computed backwards, up to rounding
exact         the same on a grid where going back is exact to the last bit
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from pdecnn.errors import ConfigError
from pdecnn.pde.acceleration import compiled, is_captured
from pdecnn.pde.fused import fused_steps
from pdecnn.pde.grid import Extent, Grid, has_left_range
from pdecnn.pde.integrators import (
    AbstractIntegrator,
    AbstractReversibleIntegrator,
    Layers,
    Shear,
    State,
)
from pdecnn.pde.randomness import HostGenerators, refused_random_numbers, suspects_among

BACKPROP_MODES = ("stored", "checkpointed", "reversible", "exact")
REVERSING_MODES = ("reversible", "exact")

_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}

Slots = dict[int, dict[str, int]]
"""For each layer, by identity, the place of each of its weights among the block's."""


@dataclass(frozen=True, slots=True)
class TimeStepping:
    """Everything a backprop mode needs to know of a block."""

    integrator: AbstractIntegrator
    steps: tuple[Layers, ...]
    """The layers of each step, in time order."""
    step_size: float
    grid: Grid | None

    def round(self, increment: Tensor) -> Tensor:
        """The increment as it is added to the state."""
        return increment if self.grid is None else self.grid.round(increment)

    def advance(self, state: State, steps: Sequence[Layers]) -> Iterator[State]:
        """Yield the state after each of the given steps; raise at the end if it left the grid."""
        extent = None if self.grid is None else Extent(self.grid, state)
        for layers in steps:
            state = self._step(layers, state, extent)
            yield state
        if extent is not None:
            extent.check()

    def run(self, state: State, steps: Sequence[Layers]) -> State:
        """The state after the given steps, under PyTorch's own bookkeeping."""
        fused = self.run_fused(state, steps, keep=True)
        if fused is not None:
            return fused
        for later in self.advance(state, steps):
            state = later
        return state

    def run_fused(self, state: State, steps: Sequence[Layers], *, keep: bool) -> State | None:
        """The same by fused kernels, keeping all or the final state; None where they do not fit."""
        return fused_steps(self.integrator, steps, self.step_size, self.grid, state, keep=keep)

    def _step(self, layers: Layers, state: State, extent: Extent | None) -> State:
        if extent is None:
            return cast(State, compiled(_step)(self.integrator, layers, state, self.step_size))
        # Never compiled: going back must meet the very kernels of going forward.
        integrator = cast(AbstractReversibleIntegrator, self.integrator)
        return integrator.step(
            layers, state, self.step_size, rounding=self.round, watch=extent.watch
        )

    def undo(
        self,
        shear: Shear,
        state: list[Tensor],
        gradients: list[Tensor],
        weights: dict[str, Tensor],
        trained: Sequence[Tensor],
    ) -> Sequence[Tensor | None]:
        """Take a shear back from the state and through the gradients, in place.

        `weights` are leaves, all those of the shear's layer; the gradients of the `trained` ones
        are returned.
        """
        with torch.enable_grad():
            source = state[shear.source].detach().requires_grad_()
            increment = self._increment(shear, source, weights)
        # Within a caller's autocast the leaves' casts would be kept until its end.
        torch.clear_autocast_cache()
        state[shear.target] = state[shear.target] - self.round(increment.detach())
        if not increment.requires_grad:  # the layer ignores its input
            return [None] * len(trained)
        source_gradient, *weight_gradients = torch.autograd.grad(
            increment, (source, *trained), gradients[shear.target], allow_unused=True
        )
        if source_gradient is not None:
            gradients[shear.source] = gradients[shear.source] + source_gradient
        return weight_gradients

    def _increment(self, shear: Shear, source: Tensor, weights: dict[str, Tensor]) -> Tensor:
        if self.grid is not None or shear.layer is None:
            return shear.increment(source, self.step_size, weights)
        return cast(Tensor, compiled(_increment)(shear, source, self.step_size, weights))


def _step(integrator: AbstractIntegrator, layers: Layers, state: State, step_size: float) -> State:
    return integrator.step(layers, state, step_size)


def _increment(
    shear: Shear, source: Tensor, step_size: float, weights: dict[str, Tensor]
) -> Tensor:
    return shear.increment(source, step_size, weights)


def propagate_stored(stepping: TimeStepping, state: State) -> State:
    """All steps under PyTorch's own bookkeeping."""
    return stepping.run(state, stepping.steps)


# Where a user compiles the block this stays as it is: the compiler cannot trace it.
@_disable_dynamo
def propagate_checkpointed(stepping: TimeStepping, state: State) -> State:
    """About sqrt(N) segments of sqrt(N) steps, each computed again during backward."""
    length = ceil(sqrt(len(stepping.steps)))
    for begin in range(0, len(stepping.steps), length):
        segment = _Segment(stepping, stepping.steps[begin : begin + length])
        state = segment.propagate_checkpointed(state)
    return state


class _Segment(nn.Module):
    """Some steps of a block as one module, so that weights can be handed to it."""

    def __init__(self, stepping: TimeStepping, steps: Sequence[Layers]) -> None:
        super().__init__()
        self.stepping, self.steps = stepping, steps
        self.layers = nn.ModuleList(dict.fromkeys(layer for layers in steps for layer in layers))

    def forward(self, *state: Tensor) -> State:
        """The state after the steps."""
        return self.stepping.run(state, self.steps)

    def propagate_checkpointed(self, state: State) -> State:
        """The same, computed again during backward."""
        weights = dict(self.named_parameters(remove_duplicate=False))
        is_random = bool(suspects_among(self.layers))

        # Weights are inputs like the state: by the time of backward the layers may hold others,
        # and those of now may have changed, which autograd notices.
        def run(*tensors: Tensor) -> State:
            given = dict(zip(weights, tensors[len(state) :], strict=True))
            after: State = functional_call(self, given, tensors[: len(state)], tie_weights=False)
            return after

        after: State = checkpoint(
            run,
            *state,
            *weights.values(),
            use_reentrant=False,
            context_fn=lambda: (nullcontext(), _AsNow(self, generators=is_random)),
            preserve_rng_state=is_random,
        )
        return after


def propagate_reversible(stepping: TimeStepping, state: State) -> State:
    """All steps as one function that keeps only the final state and the weights."""
    layers = dict.fromkeys(layer for layers in stepping.steps for layer in layers)
    # Again, though the block did it: a parametrisation may have come to the layers since.
    refuse_buffers(layers, stepping.integrator)
    fused = stepping.run_fused(state, stepping.steps, keep=False)
    if fused is not None:
        return fused
    weights = _distinct_weights(stepping)
    suspects = suspects_among(layers) if torch.is_grad_enabled() else ""
    with refused_random_numbers(suspects, stepping.integrator, state[0].device):
        final: State = _ReversibleSteps.apply(  # type: ignore[no-untyped-call]
            stepping, suspects, weights.slots, len(state), *state, *weights.tensors
        )
    return final


def refuse_buffers(layers: Iterable[nn.Module], integrator: AbstractIntegrator) -> None:
    """Refuse layers with a memory where states are to be computed backwards."""
    if not integrator.reversible:
        return
    for layer in dict.fromkeys(layers):
        for name, _ in layer.named_buffers():
            raise ConfigError(
                f"{type(layer).__name__} has the buffer {name!r}, which a step may change: in a "
                f"reversible block ({integrator.name}) it is refused, since states computed "
                f"backwards would differ; use layers whose only tensors are parameters"
            )


PROPAGATE: dict[str, Callable[[TimeStepping, State], State]] = {
    "stored": propagate_stored,
    "checkpointed": propagate_checkpointed,
    "reversible": propagate_reversible,
    "exact": propagate_reversible,
}


class _ReversibleSteps(torch.autograd.Function):
    """The steps of a reversible integrator with O(1) memory in their number.

    Backward walks the shears in the opposite order. Each layer is evaluated once: its value
    undoes the shear and its graph gives the vector-Jacobian products.
    """

    @staticmethod
    def forward(
        ctx: Any,
        stepping: TimeStepping,
        suspects: str,
        slots: Slots,
        num_components: int,
        *tensors: Tensor,
    ) -> State:
        state, weights = tensors[:num_components], tensors[num_components:]
        ctx.stepping, ctx.slots, ctx.num_components = stepping, slots, num_components
        ctx.autocast = _autocast_settings(state[0].device.type)
        ctx.suspects = suspects if stepping.grid is not None else ""
        # Only on a grid is what comes back the very start, by which suspects can be judged.
        start = [_checksum(state)] if ctx.suspects else []
        for later in stepping.advance(state, stepping.steps):
            state = later
        final = state
        ctx.save_for_backward(*start, *final, *weights)
        return final

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "second derivatives through backprop='reversible' or 'exact' are not available; "
                "use backprop='stored' or 'checkpointed' where create_graph=True is needed"
            )
        stepping: TimeStepping = ctx.stepping
        integrator = cast(AbstractReversibleIntegrator, stepping.integrator)
        num_components: int = ctx.num_components
        saved: list[Tensor] = list(ctx.saved_tensors)
        start = saved.pop(0) if ctx.suspects else None
        state, weights = saved[:num_components], saved[num_components:]
        needed = ctx.needs_input_grad[4 + num_components :]
        state_gradients = list(gradients)
        sums = _GradientSums(weights, needed)
        for layers in reversed(stepping.steps):
            for shear in reversed(integrator.shears(layers)):
                slots = {} if shear.layer is None else ctx.slots[id(shear.layer)]
                # Fresh leaves: on the originals a nested gradient would run users' hooks twice.
                leaves = {
                    slot: weights[slot].detach().requires_grad_(needed[slot])
                    for slot in slots.values()
                }
                trained = {slot: leaf for slot, leaf in leaves.items() if needed[slot]}
                with torch.autocast(**ctx.autocast):
                    found = stepping.undo(
                        shear,
                        state,
                        state_gradients,
                        {name: leaves[slot] for name, slot in slots.items()},
                        tuple(trained.values()),
                    )
                for slot, gradient in zip(trained, found, strict=True):
                    if gradient is not None:
                        sums.add(slot, gradient)
        if start is not None:
            _check_start(state, start, ctx.suspects, integrator)
        return None, None, None, None, *state_gradients, *sums.finish()


def _checksum(state: Sequence[Tensor]) -> Tensor:
    """A number for each component that another one hardly has."""
    # Adding 0 makes -0 a 0, which it may have become on the way.
    bits = ((part + 0).view(_BITS[part.dtype]) for part in state)
    return torch.stack([numbers.sum() for numbers in bits])


def _check_start(
    state: Sequence[Tensor], start: Tensor, suspects: str, integrator: AbstractIntegrator
) -> None:
    """Raise if the state that was computed backwards is not the one at the start."""
    # A capture cannot wait for the answer; there were trial runs before.
    if is_captured(start.device) or torch.equal(_checksum(state), start):
        return
    if has_left_range():
        return  # this is why, and whoever deferred the check will say it
    raise ConfigError(
        f"the states computed backwards do not lead back to the start: in a reversible block "
        f"({integrator.name}) {suspects} gave another value the second time, by chance, a memory "
        f"of its own or kernels that round differently; use layers that compute the same twice, "
        f"or backprop='stored'"
    )


class _GradientSums:
    """The gradient of each weight, added up over the steps that use it.

    Their memory is there before the walk back. Made one by one, such small tensors would stay
    between the large ones of each step, which on a CPU could then not use the same memory again.
    """

    def __init__(self, weights: Sequence[Tensor], needed: Sequence[bool]) -> None:
        self._sums = [
            torch.empty_like(weight) if wanted else None
            for weight, wanted in zip(weights, needed, strict=True)
        ]
        self._begun: set[int] = set()

    def add(self, slot: int, gradient: Tensor) -> None:
        """Add to the gradient of the weight in that place."""
        total = self._sums[slot]
        assert total is not None, "this weight is not trained"
        if slot in self._begun:
            total.add_(gradient)
        else:
            total.copy_(gradient)
            self._begun.add(slot)

    def finish(self) -> list[Tensor | None]:
        """The gradients, None where none came."""
        return [total if slot in self._begun else None for slot, total in enumerate(self._sums)]


class _Weights(NamedTuple):
    tensors: list[Tensor]
    slots: Slots


def _distinct_weights(stepping: TimeStepping) -> _Weights:
    """Each weight of the block once, though steps may share layers, and who uses which."""
    tensors: list[Tensor] = []
    slot_of: dict[int, int] = {}
    slots: Slots = {}
    for layers in stepping.steps:
        for layer in layers:
            for name, weight in layer.named_parameters(remove_duplicate=False):
                if id(weight) not in slot_of:
                    slot_of[id(weight)] = len(tensors)
                    tensors.append(weight)
                slots.setdefault(id(layer), {})[name] = slot_of[id(weight)]
            slots.setdefault(id(layer), {})
    return _Weights(tensors, slots)


def _autocast_settings(device_type: str) -> dict[str, Any]:
    """The arguments with which torch.autocast restores what holds now."""
    return {
        "device_type": device_type,
        "enabled": torch.is_autocast_enabled(device_type),
        "dtype": torch.get_autocast_dtype(device_type),
        "cache_enabled": torch.is_autocast_cache_enabled(),
    }


class _AsNow(AbstractContextManager[None]):
    """Within it a module has the buffers it has now, and changes none.

    Recomputed norms, say, are as they were and do not count the batch a second time: modules
    work on copies meanwhile. If asked, the generators of the host too are as they are now and
    do not move. Can be entered again: a graph that is retained is recomputed at each backward.
    """

    def __init__(self, module: nn.Module, *, generators: bool) -> None:
        self._met = [(part, _copied(part._buffers)) for part in module.modules() if part._buffers]
        self._kept: list[tuple[nn.Module, dict[str, Tensor | None]]] = []
        self._generators = HostGenerators() if generators else None
        self._kept_generators: HostGenerators | None = None

    def __enter__(self) -> None:
        # All copies first: where memory ends meanwhile, nothing has been exchanged.
        copies = [_copied(buffers) for _, buffers in self._met]
        if self._generators is not None:
            self._kept_generators = HostGenerators()
            self._generators.restore()
        self._kept = [(part, dict(part._buffers)) for part, _ in self._met]
        for (part, _), buffers in zip(self._met, copies, strict=True):
            part._buffers.update(buffers)

    def __exit__(self, *exception: object) -> None:
        for part, buffers in self._kept:
            part._buffers.update(buffers)
        self._kept.clear()
        if self._kept_generators is not None:
            self._kept_generators.restore()


def _copied(buffers: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
    return {name: None if buffer is None else buffer.clone() for name, buffer in buffers.items()}
