"""How fast a network runs, never what it computes.

`accelerate` gives each block a propagator, and each stage around them a carrier, that computes by
fused kernels where these fit, else by compiled code where that is wanted and there is a GPU.
Neither knows its network: both survive copies, files and other devices, and decide at each call.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional

from pdecnn.errors import ConfigError
from pdecnn.fast.fused import fused_block, fused_steps, misfit, misfit_of_precision
from pdecnn.fast.kernels.symmetric_shear import CHANNELS_LAST
from pdecnn.fast.stages import fused_stage
from pdecnn.networks.stages import Carrier, Classifier, Connector, LinearOpening, Opening, Stage
from pdecnn.pde.backprop import REVERSING_MODES, Path, Propagator, TimeStepping
from pdecnn.pde.block import Block
from pdecnn.pde.convolution import Convolution
from pdecnn.pde.grid import is_followed
from pdecnn.pde.integrators import AbstractIntegrator, Layers, Shear, State, Weights
from pdecnn.pde.repeatability import has_foreign_code, refuse_memory
from pdecnn.pde.stable import looks_at_weights

Module = TypeVar("Module", bound=nn.Module)
_CHANNEL_GROUP = 8


def fast_layout(features: Tensor) -> Tensor:
    """The features with their channels last in memory, where convolutions are fastest.

    On a CPU a single channel too: by its strides alone torch then knows in which layout to go on.
    """
    layout = CHANNELS_LAST.get(features.dim())
    if layout is None:
        return features
    if features.device.type == "cpu":
        return features.to(memory_format=layout)
    return features.contiguous(memory_format=layout)


def accelerate(network: Module, *, enabled: bool = True) -> Module:
    """The network itself, which from now on runs faster on a GPU, in any loop.

    Any module with `Block`s will do. Under torch.autocast to bfloat16 blocks step by fused
    kernels where these fit their layers, else by code that torch.compile makes at the first call;
    `network.acceleration` says which, and why. Numbers are the same up to rounding; weights,
    files, copies and devices are as before, and so is all on a CPU. `enabled=False` undoes it.
    """
    if not any(isinstance(part, Block) for part in network.modules()):
        raise ConfigError(
            f"accelerate takes a module with blocks, but {type(network).__name__} has none; what "
            f"pdecnn makes fast are the time steps of pdecnn.Block"
        )
    _replace_ways(network, "inductor" if enabled else None)
    return network


def use_kernels(network: Module) -> Module:
    """The network itself, its blocks by fused kernels where these fit, and nothing compiled.

    For a few passes, whose time compiling would exceed.
    """
    _replace_ways(network, "")
    return network


def _replace_ways(module: nn.Module, backend: str | None) -> None:
    """Give blocks and stages ways with this backend, None: their own; those of others stay."""
    for part in module.modules():
        if isinstance(part, Block) and type(part.propagator) in (Propagator, FastPropagator):
            _set(part, "propagator", None if backend is None else FastPropagator(backend))
        elif isinstance(part, Stage) and type(part.carrier) in (type(None), FastCarrier):
            _set(part, "carrier", None if backend is None else FastCarrier(backend))


def _set(part: nn.Module, name: str, value: object) -> None:
    """Let an attribute of the object hide that of its class, or with None not hide it."""
    if value is None:
        vars(part).pop(name, None)
    else:
        vars(part)[name] = value


@contextmanager
def accelerated(module: nn.Module, backend: str = "inductor") -> Iterator[None]:
    """Within it the module is accelerated; afterwards it is what it was."""
    names = [
        (part, "propagator" if isinstance(part, Block) else "carrier")
        for part in module.modules()
        if isinstance(part, Block | Stage)
    ]
    before = [vars(part).get(name) for part, name in names]
    _replace_ways(module, backend)
    try:
        yield
    finally:
        for (part, name), way in zip(names, before, strict=True):
            _set(part, name, way)


@dataclass(frozen=True)
class FastPropagator(Propagator):
    """Steps by fused kernels where they fit the layers, else by code that `backend` compiles."""

    backend: str
    """Of torch.compile; 'inductor' is used on GPUs alone. Empty: nothing is compiled."""

    def path(self, stepping: TimeStepping) -> Path:
        """What holds under autocast to bfloat16, or to what is set where this is asked."""
        weight = next((w for layer in stepping.steps[0] for w in layer.parameters()), None)
        device = torch.device("cpu") if weight is None else weight.device
        reason = misfit(stepping.integrator, stepping.steps, device)
        if reason is None and torch.is_autocast_enabled(device.type):
            reason = misfit_of_precision(device)
        uncompiled = self._uncompiled(stepping, stepping.steps, device)
        if reason is None:
            other = "compiled" if uncompiled is None else "eager"
            return Path("fused", f"under torch.autocast to bfloat16; in other precisions {other}")
        if uncompiled is None:
            return Path("compiled", reason)
        return Path("eager", reason if uncompiled in reason else f"{reason}; {uncompiled}")

    def carry(self, stepping: TimeStepping, features: Tensor) -> Tensor:
        """By one function of features where fused kernels fit."""
        kept = stepping.backprop == "checkpointed" and torch.is_grad_enabled()
        if not _is_looked_at() and not kept:
            if stepping.backprop in REVERSING_MODES:
                self._refuse_memory(stepping)
            keep = stepping.backprop == "stored"
            outcome = fused_block(stepping, features, keep=keep)
            if outcome is not None:
                return outcome
        return super().carry(stepping, features)

    def start(self, stepping: TimeStepping, features: Tensor) -> State:
        """On a GPU channels last, whatever the opening left."""
        return super().start(stepping, fast_layout(features) if features.is_cuda else features)

    def advance(self, stepping: TimeStepping, state: State, steps: Sequence[Layers]) -> State:
        """Step by step, each compiled; never on a grid, where going back must meet the very
        kernels of going forward."""
        if _is_looked_at() or self._uncompiled(stepping, steps, state[0].device):
            return super().advance(stepping, state, steps)
        step = compiled(_step, self.backend)
        for layers in steps:
            state = step(stepping.integrator, layers, state, stepping.step_size)
        return state

    def stored(self, stepping: TimeStepping, state: State, steps: Sequence[Layers]) -> State:
        """By fused kernels that keep what the gradient needs, where they fit."""
        fused = self._fused(stepping, state, steps, keep=True)
        return self.advance(stepping, state, steps) if fused is None else fused

    def reversing(self, stepping: TimeStepping, state: State) -> State:
        """By fused kernels that keep the final state alone, where they fit."""
        self._refuse_memory(stepping)
        fused = self._fused(stepping, state, stepping.steps, keep=False)
        return super().reversing(stepping, state) if fused is None else fused

    def increment(
        self, stepping: TimeStepping, shear: Shear, sources: State, weights: Weights
    ) -> Tensor:
        """Compiled, but on a grid."""
        layer, device = shear.layer, sources[0].device
        if layer is None or self._uncompiled(stepping, [(layer,)], device):
            return super().increment(stepping, shear, sources, weights)
        increment: Tensor = compiled(_increment, self.backend)(
            shear, sources, stepping.step_size, weights
        )
        return increment

    def _uncompiled(
        self, stepping: TimeStepping, steps: Sequence[Layers], device: torch.device
    ) -> str | None:
        """Why these steps, where they are not fused, are not compiled either; None: they are."""
        if not self.backend:
            return "nothing is compiled for a few passes"
        if self.backend == "inductor" and device.type != "cuda":
            return "no GPU"
        if stepping.grid is not None:
            return "on a grid nothing is compiled"
        layers = dict.fromkeys(layer for layers in steps for layer in layers)
        if any(map(has_foreign_code, layers)):
            return "a hook, or a replaced method"
        if any(map(looks_at_weights, layers)):
            return "in evaluation a stable step looks at its weights"
        return None

    @staticmethod
    def _fused(
        stepping: TimeStepping, state: State, steps: Sequence[Layers], *, keep: bool
    ) -> State | None:
        if _is_looked_at():
            return None
        return fused_steps(
            stepping.integrator, steps, stepping.step_size, stepping.grid, state, keep=keep
        )

    @staticmethod
    def _refuse_memory(stepping: TimeStepping) -> None:
        layers = [layer for layers in stepping.steps for layer in layers]
        refuse_memory(layers, stepping.integrator)


@dataclass(frozen=True)
class FastCarrier(Carrier):
    """Stages by fused kernels where they fit, else by code that `backend` compiles."""

    backend: str
    """As that of `FastPropagator`."""

    def carry(self, stage: Stage, features: Tensor) -> Tensor:
        """By kernels or compiled code, but where hooks or PyTorch must meet plain operators."""
        if _is_looked_at() or has_foreign_code(stage):
            return stage.compute(features)
        # A block takes bfloat16 without a cast; the last connector, which does not pool, has none.
        if isinstance(stage, Opening | Connector | Classifier):
            last = isinstance(stage, Connector) and not stage.pool
            outcome = fused_stage(stage, features, torch.float32 if last else torch.bfloat16)
            if outcome is not None:
                return outcome
        if not self._compiles(stage, features):
            return _compute(stage, features)
        found: Tensor = compiled(_compute, self.backend)(stage, features)
        return found

    def _compiles(self, stage: Stage, features: Tensor) -> bool:
        # A mean and a small product: compiling them takes longer than it ever saves.
        if not self.backend or type(stage) is Classifier or looks_at_weights(stage):
            return False
        return self.backend != "inductor" or features.is_cuda


def _is_looked_at() -> bool:
    """Whether PyTorch follows every operator: compiles or exports it, or differentiates forwards.

    Then it meets plain ones, whose rules it knows.
    """
    return (
        torch.compiler.is_compiling()
        or torch.compiler.is_exporting()
        or is_followed()
        or forward_ad._current_level >= 0
    )


def _compute(stage: Stage, features: Tensor) -> Tensor:
    """What a stage computes, an image's few channels padded for matrix units."""
    if not isinstance(stage, Opening | LinearOpening) or not _is_padded(stage, features):
        return stage.compute(features)
    filtered = _convolve_padded(stage.convolution, features)
    return torch.relu(stage.normalization(filtered)) if isinstance(stage, Opening) else filtered


def _is_padded(stage: Opening | LinearOpening, features: Tensor) -> bool:
    convolution = stage.convolution  # which may have been exchanged for another kind
    return (
        type(stage) in (Opening, LinearOpening)
        and type(convolution) is Convolution
        and convolution.boundary == "zero"
        and features.is_cuda
        and features.shape[1] % _CHANNEL_GROUP != 0
    )


def _convolve_padded(convolution: Convolution, features: Tensor) -> Tensor:
    """K features with zeros for channels: matrix units take them by eights, an image has three."""
    pad = (0, 0) * convolution.dimension + (0, -convolution.in_channels % _CHANNEL_GROUP)
    convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[convolution.dimension - 1]
    features, stencil = functional.pad(features, pad), functional.pad(convolution.stencil, pad)
    return convolve(features, stencil, padding=convolution.padding)


def _step(integrator: AbstractIntegrator, layers: Layers, state: State, step_size: float) -> State:
    return integrator.step(layers, state, step_size)


def _increment(shear: Shear, sources: State, step_size: float, weights: Weights) -> Tensor:
    return shear.increment(*sources, step_size=step_size, weights=weights)


def compile_function(
    function: Callable[..., Any], backend: str, *, whole: bool = True, **options: bool
) -> Callable[..., Any]:
    """The function as compiled code, one graph for each shape of the arguments.

    What cannot be followed is an error where it is to be compiled as a whole.
    Kernels are chosen by rule, not by the clock: another process must get the same bits. This
    is an option of the call, since gradients are compiled in threads of autograd's own, where a
    patched setting does not hold. Other options are inductor's.
    """
    given: dict[str, Any] = {"deterministic": True, **options} if backend == "inductor" else {}
    made = torch.compile(
        function, backend=backend, fullgraph=whole, dynamic=False, options=given or None
    )
    from torch._dynamo import config as tracing  # takes long to import

    def call(*arguments: Any) -> Any:
        # Each width, network and training of a process has its own graph of the same function.
        with tracing.patch(recompile_limit=1000, accumulated_recompile_limit=100_000):
            return made(*arguments)

    return call


@cache
def compiled(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    """The same, made once for each function of the module."""
    return compile_function(function, backend, whole=False)
