"""How fast a network runs, never what it computes.

Within `accelerated` a block steps by compiled code, or by fused kernels where these fit its layers,
and so do opening and connectors; outside the operators of PyTorch run one by one.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from pdecnn.fast.fused import fused_steps
from pdecnn.fast.stages import Stage, fused_stage
from pdecnn.networks.stages import Classifier, Connector, Opening
from pdecnn.pde.backprop import Propagator, TimeStepping, refuse_buffers, start_state
from pdecnn.pde.block import Block
from pdecnn.pde.convolution import Convolution
from pdecnn.pde.integrators import AbstractIntegrator, Layers, Shear, State, Verlet, Weights

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_CHANNEL_GROUP = 8


def fast_layout(features: Tensor) -> Tensor:
    """The features with their channels last in memory, where convolutions are fastest."""
    layout = _CHANNELS_LAST.get(features.dim())
    return features if layout is None else features.contiguous(memory_format=layout)


@contextmanager
def accelerated(module: nn.Module, backend: str = "inductor") -> Iterator[None]:
    """Within it the blocks of a module, and the stages around them, run by compiled code or fused
    kernels."""
    from torch._dynamo import config as tracing

    with ExitStack() as stack:
        # Each width and each network of a process has its own graph of the same function.
        stack.enter_context(
            tracing.patch(recompile_limit=1000, accumulated_recompile_limit=100_000)
        )
        propagator = FastPropagator(backend)
        blocks = [part for part in module.modules() if isinstance(part, Block)]
        for block in blocks:
            stack.enter_context(_attribute(block, "propagator", propagator))
        # The halves of a Hamiltonian state are copied out of the features: of fewer bytes.
        halved = any(isinstance(block.integrator, Verlet) for block in blocks)
        dtype = torch.bfloat16 if halved else torch.float32
        stages = [part for part in module.modules() if is_fusible(part)]
        for stage in stages:
            fast = _FastStage(stage, backend, dtype)
            stack.enter_context(_attribute(stage, "forward", fast))
        # Not in blocks, whose steps share a graph: each such function would have one of its own.
        done = {part for own in (*blocks, *stages) for part in own.modules()}
        for part in set(module.modules()) - done:
            if isinstance(part, Convolution) and part.in_channels % _CHANNEL_GROUP:
                stack.enter_context(_attribute(part, "forward", partial(_padded, part)))
        yield


@contextmanager
def _attribute(module: nn.Module, name: str, value: object) -> Iterator[None]:
    """Within it an attribute of the object hides that of its class."""
    before = vars(module).get(name)
    vars(module)[name] = value
    try:
        yield
    finally:
        if before is None:
            del vars(module)[name]
        else:
            vars(module)[name] = before


def is_fusible(part: nn.Module) -> TypeGuard[Stage]:
    """Whether a part is a stage that `accelerated` runs by fused kernels where these fit, and else
    compiles: it is not to be compiled a second time."""
    return type(part) in (Opening, Connector, Classifier) and "forward" not in vars(part)


class _FastStage:
    """A stage's forward: by fused kernels where they fit, else compiled."""

    def __init__(self, stage: Stage, backend: str, dtype: torch.dtype) -> None:
        self.stage, self.backend = stage, backend
        # A connector that does not pool is the last one: no block copies what it gives.
        self.dtype = torch.float32 if getattr(stage, "pool", None) is False else dtype
        self.padded: partial[Tensor] | None = None
        if isinstance(stage, Opening) and stage.convolution.in_channels % _CHANNEL_GROUP:
            self.padded = partial(_padded, stage.convolution)

    def __call__(self, features: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return _plain_stage(self.stage, features)
        outcome = fused_stage(self.stage, features, self.dtype)
        if outcome is not None:
            return outcome
        plain = compiled(_plain_stage, self.backend)
        if self.padded is None:
            return cast(Tensor, plain(self.stage, features))
        with _attribute(self.padded.args[0], "forward", self.padded):
            return cast(Tensor, plain(self.stage, features))


def _plain_stage(stage: Any, features: Tensor) -> Tensor:
    outcome: Tensor = type(stage).forward(stage, features)
    return outcome


def _padded(convolution: Convolution, features: Tensor) -> Tensor:
    if features.is_cuda and convolution.boundary == "zero":
        return _convolve_padded(convolution, features)
    return Convolution.forward(convolution, features)


def _convolve_padded(convolution: Convolution, features: Tensor) -> Tensor:
    """K features with zeros for channels: matrix units take them by eights, an image has three."""
    pad = (0, 0) * convolution.dimension + (0, -convolution.in_channels % _CHANNEL_GROUP)
    convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[convolution.dimension - 1]
    features, stencil = functional.pad(features, pad), functional.pad(convolution.stencil, pad)
    return convolve(features, stencil, padding=convolution.padding)


@dataclass(frozen=True)
class FastPropagator(Propagator):
    """Steps by fused kernels where they fit the layers, else by code that `backend` compiles."""

    backend: str

    def start(self, stepping: TimeStepping, features: Tensor) -> State:
        """As one compiled function; on a GPU channels last, whatever the opening left."""
        features = fast_layout(features) if features.is_cuda else features
        start = compiled(start_state, self.backend)
        return cast(
            State,
            start(
                stepping.integrator, features, stepping.steps[0], stepping.step_size, stepping.grid
            ),
        )

    def finish(self, stepping: TimeStepping, state: State, dtype: torch.dtype) -> Tensor:
        """As one compiled function."""
        finish = compiled(_finish, self.backend)
        return cast(Tensor, finish(stepping.integrator, state, dtype))

    def advance(self, stepping: TimeStepping, state: State, steps: Sequence[Layers]) -> State:
        """Step by step, each compiled; never on a grid, where going back must meet the very
        kernels of going forward."""
        if stepping.grid is not None:
            return stepping.walk_on_grid(state, steps)
        step = compiled(_step, self.backend)
        for layers in steps:
            state = step(stepping.integrator, layers, state, stepping.step_size)
        return state

    def stored(self, stepping: TimeStepping, state: State, steps: Sequence[Layers]) -> State:
        """By fused kernels that keep what the gradient needs, where they fit."""
        fused = _fused(stepping, state, steps, keep=True)
        return self.advance(stepping, state, steps) if fused is None else fused

    def reversing(self, stepping: TimeStepping, state: State) -> State:
        """By fused kernels that keep the final state alone, where they fit."""
        layers = [layer for layers in stepping.steps for layer in layers]
        refuse_buffers(layers, stepping.integrator)
        fused = _fused(stepping, state, stepping.steps, keep=False)
        return super().reversing(stepping, state) if fused is None else fused

    def increment(
        self, stepping: TimeStepping, shear: Shear, sources: State, weights: Weights
    ) -> Tensor:
        """Compiled, but on a grid."""
        if stepping.grid is not None or shear.layer is None:
            return super().increment(stepping, shear, sources, weights)
        increment = compiled(_increment, self.backend)
        return cast(Tensor, increment(shear, sources, stepping.step_size, weights))


def _fused(
    stepping: TimeStepping, state: State, steps: Sequence[Layers], *, keep: bool
) -> State | None:
    return fused_steps(
        stepping.integrator, steps, stepping.step_size, stepping.grid, state, keep=keep
    )


def _step(integrator: AbstractIntegrator, layers: Layers, state: State, step_size: float) -> State:
    return integrator.step(layers, state, step_size)


def _increment(shear: Shear, sources: State, step_size: float, weights: Weights) -> Tensor:
    return shear.increment(*sources, step_size=step_size, weights=weights)


def _finish(integrator: AbstractIntegrator, state: State, dtype: torch.dtype) -> Tensor:
    return integrator.finish(state).to(dtype)


def compile_settings(backend: str, **options: bool) -> dict[str, Any]:
    """What torch.compile is told: one graph for each shape of the arguments, no break in it.

    Kernels are chosen by rule, not by the clock: another process must get the same bits. This
    is an option of the call, since gradients are compiled in threads of autograd's own, where a
    patched setting does not hold. Other options are inductor's.
    """
    options = {"deterministic": True, **options} if backend == "inductor" else {}
    return {"backend": backend, "fullgraph": True, "dynamic": False, "options": options or None}


def compile_function(
    function: Callable[..., Any], backend: str, **options: bool
) -> Callable[..., Any]:
    """The function as compiled code."""
    compiled: Callable[..., Any] = torch.compile(function, **compile_settings(backend, **options))
    return compiled


@cache
def compiled(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    """The same, made once for each function of the module."""
    return compile_function(function, backend)


@contextmanager
def compiled_modules(modules: Iterable[nn.Module], backend: str) -> Iterator[None]:
    """Within it calls of these modules run compiled."""
    before = [(module, module._compiled_call_impl) for module in modules]
    for module, _ in before:
        module.compile(**compile_settings(backend))
    try:
        yield
    finally:
        for module, own in before:
            module._compiled_call_impl = own
