"""What is kept for the gradient of a block: all, some, or one state (Sec. 3.2).

stored        every intermediate result, as PyTorch does by itself
checkpointed  O(sqrt N) states; each segment is computed again when its gradient is due
reversible    the final state; earlier ones are computed backwards, up to rounding
exact         the same on a grid where going back is exact to the last bit
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any, Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from pdecnn.errors import ConfigError
from pdecnn.pde.grid import Extent, Grid, has_left_range, is_followed
from pdecnn.pde.integrators import (
    AbstractIntegrator,
    AbstractReversibleIntegrator,
    Layers,
    Shear,
    State,
    Weights,
)
from pdecnn.pde.places import at_place
from pdecnn.pde.repeatability import (
    AsNow,
    is_captured,
    refuse_memory,
    refuse_replicas,
    refused_random_numbers,
    suspects_among,
)
from pdecnn.pde.resolution import Resolution

Backprop = Literal["stored", "checkpointed", "reversible", "exact"]
BACKPROP_MODES: tuple[Backprop, ...] = get_args(Backprop)
Reversing = Literal["reversible", "exact"]
REVERSING_MODES: tuple[Reversing, ...] = get_args(Reversing)

# Where autograd looks, as anywhere but within an operator.
_PLAIN = (torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set())
_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}

Slots = dict[int, dict[str, int]]
"""For each layer, by identity, the place of each of its weights among the block's."""


@dataclass(frozen=True, slots=True)
class TimeStepping:
    """What the steps of a block are."""

    integrator: AbstractIntegrator
    steps: tuple[Layers, ...]
    """The layers of each step, in time order."""
    step_size: float
    grid: Grid | None
    backprop: str
    place: str
    """Where operators find the block."""

    @property
    def reversible(self) -> AbstractReversibleIntegrator:
        """The integrator, known to have a step back."""
        return cast(AbstractReversibleIntegrator, self.integrator)

    def walk_on_grid(self, state: State, steps: Sequence[Layers], *, back: bool = False) -> State:
        """The state after the steps, or before them, every increment rounded to the grid.

        Raises where a state left the range in which that is exact.
        """
        assert self.grid is not None
        extent = Extent(self.grid, state)
        components = list(state)
        step_size = -self.step_size if back else self.step_size
        for layers in reversed(steps) if back else steps:
            shears = self.reversible.shears(layers) or ()
            for shear in reversed(shears) if back else shears:
                increment = shear.increment(*shear.sources(components), step_size=step_size)
                changed = components[shear.target] + self.grid.round(increment)
                components[shear.target] = changed
                extent.watch(changed)
        return extent.checked(tuple(components))


class Link(NamedTuple):
    """The steps of a block and the change of resolution after them, one of a chain of such."""

    stepping: TimeStepping
    change: Resolution
    layout: torch.memory_format = torch.contiguous_format
    """Of all states: recomputation must meet the one that the forward pass had."""

    def leave(self, component: Tensor) -> Tensor:
        """A part of the state on the level of the next link."""
        if self.change.levels == 0:
            return component
        changed = self.change.apply(component, self.stepping.grid)
        return changed.contiguous(memory_format=self.layout)

    def return_to(self, component: Tensor) -> Tensor:
        """What `leave` was given."""
        if self.change.levels == 0:
            return component
        changed = self.change.undo(component, self.stepping.grid)
        return changed.contiguous(memory_format=self.layout)


_STAY = Resolution(0)


class Path(NamedTuple):
    """In which way the steps of a block are carried out."""

    path: str
    """'fused', 'compiled' or 'eager'."""
    reason: str
    """Why, in words."""


class Propagator:
    """How the steps of a block are carried out: here one operator after the other, as written.

    A block has one, `Block.propagator`, which may be replaced by another with the same results.
    """

    def path(self, stepping: TimeStepping) -> Path:
        """The way that `carry` takes."""
        del stepping
        return Path("eager", "not accelerated")

    def carry(self, stepping: TimeStepping, features: Tensor) -> Tensor:
        """The features at the final time, in the dtype they came in."""
        return self.finish(stepping, self.propagate(stepping, features), features.dtype)

    def propagate(self, stepping: TimeStepping, features: Tensor) -> State:
        """The state at the final time, differentiated as the block's mode says.

        Where torch.func or an export follows every operator nothing is computed again: vmap and
        jvp need no second look, and grad, which does, is refused.
        """
        state = self.start(stepping, features)
        if stepping.backprop == "stored":
            return self.stored(stepping, state, stepping.steps)
        followed = is_followed()
        if followed:
            _refuse_grad(stepping.backprop)
        if followed or torch.compiler.is_exporting():
            return self.stored(stepping, state, stepping.steps)
        if stepping.backprop == "checkpointed":
            return _propagate_checkpointed(self, stepping, state)
        return self.reversing(stepping, state)

    def start(self, stepping: TimeStepping, features: Tensor) -> State:
        """The initial state, float32 or wider, on the grid if there is one."""
        integrator, layers, grid = stepping.integrator, stepping.steps[0], stepping.grid
        wide = features.to(torch.promote_types(features.dtype, torch.float32))
        if grid is None:
            return integrator.start(wide, layers, stepping.step_size)
        state = integrator.start(grid.round(wide), layers, stepping.step_size)
        return tuple(grid.round(component) for component in state)

    def finish(self, stepping: TimeStepping, state: State, dtype: torch.dtype) -> Tensor:
        """The features of a state in that dtype."""
        return stepping.integrator.finish(state).to(dtype)

    def advance(self, stepping: TimeStepping, state: State, steps: Sequence[Layers]) -> State:
        """The state after the given steps."""
        if stepping.grid is not None:
            return stepping.walk_on_grid(state, steps)
        step, step_size = stepping.integrator.step, stepping.step_size
        for layers in steps:
            state = step(layers, state, step_size)
        return state

    stored = advance
    """The same, kept by PyTorch for the gradient."""

    def chain(self, links: Sequence[Link], state: State) -> State:
        """The state after all links, each differentiated as its block's mode says.

        Neighbours that are computed backwards keep one state together. For torch.func and exports
        see `propagate`.
        """
        followed = is_followed()
        if followed:
            for mode in {link.stepping.backprop for link in links} - {"stored"}:
                _refuse_grad(mode)
        if followed or torch.compiler.is_exporting():
            for link in links:
                state = self.stored(link.stepping, state, link.stepping.steps)
                state = tuple(map(link.leave, state))
            return state
        reversing: list[Link] = []
        for link in links:
            if link.stepping.backprop in REVERSING_MODES:
                reversing.append(link)
                continue
            state = self._reversing_links(reversing, state)
            reversing = []
            stepping = link.stepping
            if stepping.backprop == "stored":
                state = self.stored(stepping, state, stepping.steps)
            else:
                state = _propagate_checkpointed(self, stepping, state)
            state = tuple(map(link.leave, state))
        return self._reversing_links(reversing, state)

    def _reversing_links(self, links: Sequence[Link], state: State) -> State:
        if not links:
            return state
        if len(links) == 1 and links[0].change.levels == 0:
            return self.reversing(links[0].stepping, state)
        if torch.compiler.is_compiling():  # an operator a block: one state a level is kept
            for link in links:
                state = tuple(map(link.leave, self.reversing(link.stepping, state)))
            return state
        return self.reversing_chain(links, state)

    def reversing(self, stepping: TimeStepping, state: State) -> State:
        """All steps as one function that keeps only the final state and the weights."""
        if torch.compiler.is_compiling():
            return _as_operator(stepping, state)
        return self.reversing_chain([Link(stepping, _STAY)], state)

    def reversing_chain(self, links: Sequence[Link], state: State) -> State:
        """The same for all steps of all links, changes of resolution included."""
        integrator = links[0].stepping.integrator
        steps = [layers for link in links for layers in link.stepping.steps]
        layers = dict.fromkeys(layer for layers in steps for layer in layers)
        if torch.is_grad_enabled():
            refuse_replicas(layers)
        # Again, though the block did it: a parametrisation may have come to the layers since.
        norms = refuse_memory(layers, integrator)
        weights = _distinct_weights(steps)
        suspects = suspects_among(layers) if torch.is_grad_enabled() else ""
        now = AsNow(norms) if torch.is_grad_enabled() else nullcontext()
        with refused_random_numbers(suspects, integrator, state[0].device):
            final: State = _ReversibleSteps.apply(  # type: ignore[no-untyped-call]
                self,
                tuple(links),
                now,
                suspects,
                weights.slots,
                len(state),
                *state,
                *weights.tensors,
            )
        return final

    def increment(
        self, stepping: TimeStepping, shear: Shear, sources: State, weights: Weights
    ) -> Tensor:
        """What a shear adds, with these weights in place of its layer's."""
        return shear.increment(*sources, step_size=stepping.step_size, weights=weights)


def _refuse_grad(backprop: str) -> None:
    """Refuse torch.func.grad and its kin, which cannot compute states again."""
    stack = torch._C._functorch.get_interpreter_stack() or ()
    if any(level.key() == torch._C._functorch.TransformType.Grad for level in stack):
        raise ConfigError(
            f"torch.func.grad, vjp, jacrev and hessian need backprop='stored', found {backprop!r}: "
            f"they cannot compute states again; set block.backprop = 'stored' for each of "
            f"network.blocks, or use torch.autograd.grad"
        )


def _propagate_checkpointed(propagator: Propagator, stepping: TimeStepping, state: State) -> State:
    """About sqrt(N) segments of sqrt(N) steps, each computed again during backward."""
    length = ceil(sqrt(len(stepping.steps)))
    for begin in range(0, len(stepping.steps), length):
        segment = _Segment(propagator.stored, stepping, stepping.steps[begin : begin + length])
        if torch.compiler.is_compiling():  # which keeps weights and buffers as they are by itself
            state = checkpoint(segment, *state, use_reentrant=False)
        else:
            state = segment.propagate_checkpointed(state)
    return state


class _Segment(nn.Module):
    """Some steps of a block as one module, so that weights can be handed to it."""

    def __init__(
        self,
        run: Callable[[TimeStepping, State, Sequence[Layers]], State],
        stepping: TimeStepping,
        steps: Sequence[Layers],
    ) -> None:
        super().__init__()
        self.run, self.stepping, self.steps = run, stepping, steps
        self.layers = nn.ModuleList(dict.fromkeys(layer for layers in steps for layer in layers))

    def forward(self, *state: Tensor) -> State:
        """The state after the steps."""
        return self.run(self.stepping, state, self.steps)

    # The compiler, which comes by where a layer broke its graph, does not know `context_fn`.
    @_disable_dynamo
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
            context_fn=lambda: (nullcontext(), AsNow(self.modules(), generators=is_random)),
            preserve_rng_state=is_random,
        )
        return after


class _ReversibleSteps(torch.autograd.Function):
    """The steps of a reversible integrator with O(1) memory in their number.

    Backward walks the steps in the opposite order. Of shears each layer is evaluated once: its
    value undoes the shear and its graph gives the vector-Jacobian products. A step of another kind
    is undone by `step_back`, then taken again for its gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        propagator: Propagator,
        links: tuple[Link, ...],
        now: AbstractContextManager[None],
        suspects: str,
        slots: Slots,
        num_components: int,
        *tensors: Tensor,
    ) -> State:
        state, weights = tensors[:num_components], tensors[num_components:]
        ctx.propagator, ctx.links, ctx.now, ctx.slots = propagator, links, now, slots
        ctx.num_components = num_components
        ctx.autocast = _autocast_settings(state[0].device.type)
        ctx.suspects = suspects if links[0].stepping.grid is not None else ""
        # Only on a grid is what comes back the very start, by which suspects can be judged.
        start = [_checksum(state)] if ctx.suspects else []
        final = state
        for link in links:
            final = propagator.advance(link.stepping, final, link.stepping.steps)
            final = tuple(map(link.leave, final))
        ctx.save_for_backward(*start, *final, *weights)
        return final

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "second derivatives through backprop='reversible' or 'exact' are not available; "
                "use backprop='stored' or 'checkpointed' where create_graph=True is needed"
            )
        links: tuple[Link, ...] = ctx.links
        num_components: int = ctx.num_components
        saved: list[Tensor] = list(ctx.saved_tensors)
        start = saved.pop(0) if ctx.suspects else None
        state, weights = saved[:num_components], saved[num_components:]
        sums = _GradientSums(weights, ctx.needs_input_grad[6 + num_components :], ctx.slots)
        walk = _WayBack(ctx.propagator, state, list(gradients), sums)
        with ctx.now:
            for link in reversed(links):
                walk.return_to(link)
                walk.undo_all(ctx.autocast)
        if start is not None:
            _check_start(walk.state, start, ctx.suspects, links[0].stepping.integrator)
        return None, None, None, None, None, None, *walk.gradients, *sums.finish()


class _WayBack:
    """A state and its gradient on the way back."""

    def __init__(
        self,
        propagator: Propagator,
        state: list[Tensor],
        gradients: list[Tensor],
        sums: "_GradientSums",
    ) -> None:
        self.propagator, self.sums = propagator, sums
        self.state, self.gradients = state, gradients
        self.stepping: TimeStepping

    def return_to(self, link: Link) -> None:
        """Go to where the steps of a link ended, and take them back from now on."""
        self.stepping = link.stepping
        if link.change.levels == 0:
            return
        for place, (part, gradient) in enumerate(zip(self.state, self.gradients, strict=True)):
            before = link.return_to(part)
            # By autograd, not by the inverse: the very bits of a gradient that was stored.
            with torch.enable_grad():
                leaf = before.detach().requires_grad_()
                after = link.leave(leaf)
            self.state[place] = before
            (self.gradients[place],) = torch.autograd.grad(after, leaf, gradient)

    def undo_all(self, autocast: dict[str, Any]) -> None:
        """Take all steps back, the last one first, under the autocast of the way there."""
        for layers in reversed(self.stepping.steps):
            shears = self.stepping.reversible.shears(layers)
            with torch.autocast(**autocast):
                if shears is None:
                    self.undo_step(layers)
                else:
                    for shear in reversed(shears):
                        self.undo(shear)

    def undo(self, shear: Shear) -> None:
        """Take a shear back from the state and through the gradients."""
        (weights,) = self.sums.leaves([] if shear.layer is None else [shear.layer]) or [{}]
        target, grid = shear.target, self.stepping.grid
        with torch.enable_grad():
            sources = tuple(part.detach().requires_grad_() for part in shear.sources(self.state))
            increment = self.propagator.increment(self.stepping, shear, sources, weights)
        # Within a caller's autocast the leaves' casts would be kept until its end.
        torch.clear_autocast_cache()
        amount = increment.detach()
        self.state[target] = self.state[target] - (amount if grid is None else grid.round(amount))
        if not increment.requires_grad:  # the layer ignores its input
            return
        found = self.sums.differentiate((increment,), (self.gradients[target],), sources)
        places = shear.source if isinstance(shear.source, tuple) else (shear.source,)
        for place, gradient in zip(places, found, strict=True):
            if gradient is not None:
                self.gradients[place] = self.gradients[place] + gradient

    def undo_step(self, layers: Layers) -> None:
        """Take a step of the integrator's own back, then its gradient by taking it again."""
        stepping = self.stepping
        before = stepping.reversible.step_back(layers, tuple(self.state), stepping.step_size)
        segment = _Segment(Propagator().advance, stepping, [layers])
        weights = {
            f"layers.{k}.{name}": leaf
            for k, given in enumerate(self.sums.leaves(segment.layers))
            for name, leaf in given.items()
        }
        with torch.enable_grad():
            leaves = tuple(part.detach().requires_grad_() for part in before)
            after: State = functional_call(segment, weights, leaves, tie_weights=False)
        torch.clear_autocast_cache()
        known = [k for k, part in enumerate(after) if part.requires_grad]
        found = self.sums.differentiate(
            [after[k] for k in known], [self.gradients[k] for k in known], leaves
        )
        self.state = [part.detach() for part in before]
        self.gradients = [
            torch.zeros_like(leaf) if gradient is None else gradient
            for leaf, gradient in zip(leaves, found, strict=True)
        ]


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

    def __init__(self, weights: Sequence[Tensor], needed: Sequence[bool], slots: Slots) -> None:
        self._weights, self._needed, self._slots = weights, needed, slots
        self._sums = [
            torch.empty_like(weight) if wanted else None
            for weight, wanted in zip(weights, needed, strict=True)
        ]
        self._begun: set[int] = set()
        self._leaves: dict[int, Tensor] = {}

    def leaves(self, layers: Iterable[nn.Module]) -> list[Weights]:
        """The weights of each layer by name, as fresh leaves of the next `differentiate`.

        On the originals a nested gradient would run users' hooks twice.
        """
        names = [self._slots[id(layer)] for layer in layers]
        slots = dict.fromkeys(slot for given in names for slot in given.values())
        self._leaves = {
            slot: self._weights[slot].detach().requires_grad_(self._needed[slot]) for slot in slots
        }
        return [{name: self._leaves[slot] for name, slot in given.items()} for given in names]

    def differentiate(
        self, outputs: Sequence[Tensor], gradients: Sequence[Tensor], inputs: State
    ) -> Sequence[Tensor | None]:
        """The gradients of the inputs; those of the leaves that are trained are added up."""
        trained = {slot: leaf for slot, leaf in self._leaves.items() if self._needed[slot]}
        self._leaves = {}
        found = torch.autograd.grad(
            outputs, (*inputs, *trained.values()), gradients, allow_unused=True
        )
        for slot, gradient in zip(trained, found[len(inputs) :], strict=True):
            if gradient is not None:
                self._add(slot, gradient)
        return found[: len(inputs)]

    def _add(self, slot: int, gradient: Tensor) -> None:
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


def _distinct_weights(steps: Sequence[Layers]) -> _Weights:
    """Each weight once, though steps may share layers, and who uses which."""
    tensors: list[Tensor] = []
    slot_of: dict[int, int] = {}
    slots: Slots = {}
    for layers in steps:
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
    if device_type == "meta":  # which has no autocast
        device_type = "cpu"
    return {
        "device_type": device_type,
        "enabled": torch.is_autocast_enabled(device_type),
        "dtype": torch.get_autocast_dtype(device_type),
        "cache_enabled": torch.is_autocast_cache_enabled(),
    }


def _as_operator(stepping: TimeStepping, state: State) -> State:
    """`Propagator.reversing` where PyTorch compiles: one operator, at which it does not look.

    It runs the very kernels that run without a compiler. Compiled code would round otherwise on
    the way back than on the way there, by which mode 'exact' would not be exact.
    """
    layers = dict.fromkeys(layer for layers in stepping.steps for layer in layers)
    if torch.is_grad_enabled():
        refuse_replicas(layers)
    weights = [weight for layer in layers for _, weight in _weights_of(layer)]
    norms = refuse_memory(layers, stepping.integrator)
    training = [norm.training for norm in norms]
    buffers = [(buffer, norm) for norm in norms for buffer in norm.buffers(recurse=False)]
    statistics = [buffer for buffer, _ in buffers]
    device_type = state[0].device.type
    enabled = torch.is_autocast_enabled(device_type)
    dtype = torch.get_autocast_dtype(device_type) if enabled else None
    results = _operate(stepping.place, list(state), weights, statistics, training, dtype)
    counted = results[len(results) - len(buffers) :]
    for (buffer, norm), now in zip(buffers, counted, strict=True):
        if norm.training:
            # Unseen by autograd: a norm that `start` ran saved it, for a gradient without it.
            buffer.data.copy_(now.detach())
    return tuple(results[: len(state)])


def _weights_of(layer: nn.Module) -> list[tuple[str, Tensor]]:
    return list(layer.named_parameters(remove_duplicate=False))


class _Operation:
    """The steps of a block and which of the weights that an operator is given are whose.

    Batch norms work on copies of the statistics that an operator is given, in those modes.
    """

    def __init__(self, place: str, device: torch.device, autocast: torch.dtype | None) -> None:
        self.stepping: TimeStepping = at_place(place).stepping()
        layers = dict.fromkeys(layer for layers in self.stepping.steps for layer in layers)
        self.norms = refuse_memory(layers, self.stepping.integrator)
        self.suspects = suspects_among(layers)
        self.slots: Slots = {}
        number = 0
        for layer in layers:
            names = [name for name, _ in _weights_of(layer)]
            self.slots[id(layer)] = {name: number + k for k, name in enumerate(names)}
            number += len(names)
        self.autocast: dict[str, Any] = {
            "device_type": device.type,
            "enabled": autocast is not None,
            "dtype": autocast,
        }

    @property
    def keeps_start(self) -> bool:
        """Whether a checksum of the start is kept, to judge layers that may be random."""
        return bool(self.suspects) and self.stepping.grid is not None

    @contextmanager
    def met(self, statistics: Sequence[Tensor], training: Sequence[bool]) -> Iterator[list[Tensor]]:
        """Within it the norms are as a graph met them; their own statistics."""
        with AsNow(self.norms):
            own = [buffer for norm in self.norms for buffer in norm.buffers(recurse=False)]
            for buffer, value in zip(own, statistics, strict=True):
                buffer.copy_(value)
            for norm, was_training in zip(self.norms, training, strict=True):
                norm.training = was_training
            yield own

    def advance(self, state: State, weights: Sequence[Tensor]) -> State:
        """The final state with these weights."""
        stepping = self.stepping
        segment = _Segment(Propagator().advance, stepping, stepping.steps)
        given = {
            f"layers.{k}.{name}": weights[slot]
            for k, layer in enumerate(segment.layers)
            for name, slot in self.slots[id(layer)].items()
        }
        guarded = refused_random_numbers(self.suspects, stepping.integrator, state[0].device)
        with guarded, torch.autocast(**self.autocast):
            final: State = functional_call(segment, given, state, tie_weights=False)
        return final


@torch.library.custom_op("pdecnn::reversing", mutates_args=())
def _operate(
    place: str,
    state: list[Tensor],
    weights: list[Tensor],
    statistics: list[Tensor],
    training: list[bool],
    autocast: torch.dtype | None,
) -> list[Tensor]:
    """The final state, a checksum of the start where it is kept, and the statistics after it."""
    operation = _Operation(place, state[0].device, autocast)
    start = [_checksum(state)] if operation.keeps_start else []
    with operation.met(statistics, training) as counted:
        final = operation.advance(tuple(state), weights)
    return [*map(_as_new, final, state), *start, *counted]


def _as_new(part: Tensor, like: Tensor) -> Tensor:
    """A result as a compiled graph expects it: no input, and laid out in memory like the input."""
    result = torch.empty_like(like)
    same = part.stride() == result.stride() and part.data_ptr() != like.data_ptr()
    return part if same else result.copy_(part)


@_operate.register_fake
def _(
    place: str,
    state: list[Tensor],
    weights: list[Tensor],
    statistics: list[Tensor],
    training: list[bool],
    autocast: torch.dtype | None,
) -> list[Tensor]:
    del weights, training
    start = _Operation(place, state[0].device, autocast).keeps_start
    checksum = [state[0].new_empty(len(state), dtype=torch.int64)] if start else []
    return [*map(torch.empty_like, state), *checksum, *map(torch.empty_like, statistics)]


@torch.library.custom_op("pdecnn::reversing_backward", mutates_args=())
def _operate_backward(
    place: str,
    results: list[Tensor],
    gradients: list[Tensor],
    weights: list[Tensor],
    needed: list[bool],
    training: list[bool],
    autocast: torch.dtype | None,
) -> list[Tensor]:
    operation = _Operation(place, results[0].device, autocast)
    state, kept = results[: len(gradients)], results[len(gradients) :]
    start, statistics = (kept[:1], kept[1:]) if operation.keeps_start else ([], kept)
    # In training they are not those of then, but norms compute with those of the batch.
    # Operators run where autograd does not look, but this one differentiates.
    with (
        operation.met(statistics, training),
        torch._C._ForceDispatchKeyGuard(*_PLAIN),
    ):
        sums = _GradientSums(weights, needed, operation.slots)
        walk = _WayBack(Propagator(), state, list(gradients), sums)
        walk.return_to(Link(operation.stepping, _STAY))
        walk.undo_all(operation.autocast)
        found = sums.finish()
    if start:
        _check_start(walk.state, start[0], operation.suspects, operation.stepping.integrator)
    return [*map(_as_new, walk.gradients, gradients)] + [
        torch.zeros_like(weight) if gradient is None else gradient
        for weight, gradient, wanted in zip(weights, found, needed, strict=True)
        if wanted
    ]


@_operate_backward.register_fake
def _(
    place: str,
    results: list[Tensor],
    gradients: list[Tensor],
    weights: list[Tensor],
    needed: list[bool],
    training: list[bool],
    autocast: torch.dtype | None,
) -> list[Tensor]:
    del place, results, training, autocast
    trained = [weight for weight, wanted in zip(weights, needed, strict=True) if wanted]
    return [torch.empty_like(part) for part in (*gradients, *trained)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.place, state, weights, statistics, ctx.training, ctx.autocast = inputs
    ctx.num_components, ctx.num_statistics = len(state), len(statistics)
    ctx.num_results = len(output)
    ctx.save_for_backward(*output, *weights)


def _differentiate(ctx: Any, gradients: list[Tensor | None]) -> tuple[Any, ...]:
    saved = list(ctx.saved_tensors)
    results, weights = saved[: ctx.num_results], saved[ctx.num_results :]
    components = ctx.num_components
    given = [
        torch.zeros_like(part) if gradient is None else gradient
        for part, gradient in zip(results[:components], gradients[:components], strict=True)
    ]
    needed = list(ctx.needs_input_grad[2])
    found = _operate_backward(
        ctx.place, results, given, weights, needed, ctx.training, ctx.autocast
    )
    of_weights = iter(found[components:])
    of_state = found[:components]
    by_weight = [next(of_weights) if wanted else None for wanted in needed]
    # To PyTorch an empty list is one of tensors.
    of_training: list[None] | None = None if ctx.training else []
    return None, of_state, by_weight, [None] * ctx.num_statistics, of_training, None


_operate.register_autograd(_differentiate, setup_context=_keep)
