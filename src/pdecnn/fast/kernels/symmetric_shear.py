"""A shear with a symmetric layer, target + f F(source), in two kernels; its gradient in three.

F(Y) = -K^T relu(N(K Y)) with a stencil of 3x3 or 3x3x3 points and total-variation normalisation,
the layer of the paper's networks. States and sums are float32, the operands of products bfloat16:
of the stencil's dtype, to be exact. All features are laid out channels last. With the notation of
the kernels, x the source and G the gradient of the target after the shear:

    u = K x, n = r u, r = 1/sqrt(A u^2 + epsilon), z = s n + b, a = relu(z) `activate`
    target' = target - f K^T a                                              `add_adjoint`
    ga = -f K G, gz = ga [z > 0], gn = s gz, gu = r (gn - n A(gn n))        `hidden_gradient`
    the gradient of x is K^T gu                                             `add_adjoint`
    that of the stencil is gu * x - f a * G over all pixels and taps        `stencil_gradient_parts`

Sums over pixels are taken in an order that depends on the shape alone: the same inputs give the
same bits. Nothing is read back by the host, so that all of it can be captured in a CUDA graph.
"""

import importlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pdecnn.errors import ConfigError
from pdecnn.pde.convolution import Convolution
from pdecnn.pde.layers import SymmetricLayer
from pdecnn.pde.normalization import ChannelAffine, TotalVariationNorm
from pdecnn.pde.repeatability import has_foreign_code

MOST_CHANNELS = 128
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""The layout of features with so many axes."""
ASKED_FOR = "PDECNN_KERNELS"
"""The environment variable that names kernels to be used though no GPU has run them yet."""
_VOLUMES = "volumes"
CHAINED = False
"""Whether a kernel may be launched before the last one has ended, which GPUs from Hopper on do."""


class Blocks(NamedTuple):
    """How a kernel is cut up."""

    pixels: int
    """Pixels to a program, or to a step of the stencil's gradient."""
    width: int
    """Pairs (tap, channel) to a step, or to a program of the stencil's gradient."""
    num_warps: int
    num_stages: int


Table = dict[str, dict[int, Blocks]]

# By kernel and padded number of channels; measured on an H200, see docs/results/speed-notes.md.
_BLOCKS: Table = {
    "activate": {
        16: Blocks(128, 16, 4, 3),
        32: Blocks(128, 32, 4, 3),
        64: Blocks(128, 64, 4, 3),
        128: Blocks(128, 64, 8, 3),
    },
    "activate_kept": {
        16: Blocks(128, 16, 4, 3),
        32: Blocks(128, 32, 8, 4),
        64: Blocks(128, 64, 8, 3),
        128: Blocks(128, 64, 8, 3),
    },
    "add_adjoint": {
        16: Blocks(128, 16, 4, 3),
        32: Blocks(128, 32, 4, 4),
        64: Blocks(64, 64, 4, 3),
        128: Blocks(128, 64, 4, 3),
    },
    "hidden_gradient": {
        16: Blocks(256, 16, 4, 3),
        32: Blocks(128, 32, 4, 3),
        64: Blocks(64, 64, 4, 3),
        128: Blocks(64, 64, 4, 3),
    },
    "stencil_gradient": {
        16: Blocks(128, 128, 4, 3),
        32: Blocks(128, 128, 4, 3),
        64: Blocks(64, 128, 4, 4),
        128: Blocks(64, 256, 8, 4),
    },
}
# Entries that hold instead where features are few numbers, as those of 125 small images: then a
# kernel has hardly more programs than a large GPU has processors.
_BLOCKS_OF_FEW: Table = {}
_FEW_NUMBERS = 2**22
# The same of volumes. Without stages, so that loads go through the first cache: a stencil of 27
# points reads every number 27 times. Not measured yet, see docs/results/speed-notes.md.
_VOLUME_BLOCKS: Table = {
    "activate": {
        16: Blocks(128, 32, 4, 1),
        32: Blocks(128, 32, 4, 1),
        64: Blocks(128, 64, 8, 1),
        128: Blocks(64, 64, 8, 1),
    },
    "activate_kept": {
        16: Blocks(128, 32, 4, 1),
        32: Blocks(128, 32, 4, 1),
        64: Blocks(128, 64, 8, 1),
        128: Blocks(128, 64, 8, 1),
    },
    "add_adjoint": {
        16: Blocks(128, 32, 4, 1),
        32: Blocks(128, 32, 4, 1),
        64: Blocks(64, 64, 4, 1),
        128: Blocks(64, 64, 4, 1),
    },
    "hidden_gradient": {
        16: Blocks(128, 32, 4, 1),
        32: Blocks(128, 32, 4, 1),
        64: Blocks(64, 64, 4, 1),
        128: Blocks(64, 64, 8, 1),
    },
    "stencil_gradient": {
        16: Blocks(64, 128, 4, 1),
        32: Blocks(64, 128, 4, 1),
        64: Blocks(64, 128, 4, 1),
        128: Blocks(64, 128, 8, 1),
    },
}
# Programs to aim at when sums over pixels are split: one or two for each multiprocessor of a large
# GPU, but the same number on all, so that the order of the sums is.
_NUM_PROGRAMS = {16: 264, 32: 264, 64: 264, 128: 132}


_MOST_COMPILERS = 8
_is_rehearsal: ContextVar[bool] = ContextVar("is_rehearsal", default=False)


def choose_blocks(kernel: str, features: Tensor) -> Blocks:
    """The blocks of a kernel for such features.

    What is computed a second time on the way back must have the bits of the first: 'activate'
    also holds where u is computed again, 'add_adjoint' also where a shear is undone.
    'activate_kept' is for u that is kept and therefore computed once.
    """
    padded = _padded(features.shape[1])
    if features.dim() == 5:
        return _VOLUME_BLOCKS[kernel][padded]
    few = features.numel() <= _FEW_NUMBERS
    return (few and _BLOCKS_OF_FEW.get(kernel, {}).get(padded)) or _BLOCKS[kernel][padded]


class Weights(NamedTuple):
    """A layer's weights as the kernels take them."""

    stencil: Tensor
    """In the operands' dtype, dense: (out, 3, 3, in) or, of volumes, as `packing` makes them."""
    adjoint: Tensor
    """What K^T is computed with: of images the same."""
    scale: Tensor
    bias: Tensor
    epsilon: float


class Activated(NamedTuple):
    """What `activate` computes."""

    activated: Tensor
    hidden: Tensor | None


class Sum(NamedTuple):
    """A float32 state or gradient, and the same in the operands' dtype if asked for."""

    value: Tensor
    copy: Tensor | None


class HiddenGradient(NamedTuple):
    """What `hidden_gradient` computes."""

    gradient: Tensor
    activated: Tensor
    partial_sums: Tensor
    """(programs, 2, channels): parts of the gradients of scale and bias."""


def misfit_of_device(device: torch.device) -> str | None:
    """Why the kernels do not run there; None: they do."""
    if device.type != "cuda" and not (device.type == "cpu" and _interpreting()):
        return "no GPU"
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        return "this GPU has no products of bfloat16"
    return None if _has_triton() else "triton is not installed"


def misfit_of_features(features: Tensor) -> str | None:
    """Why the kernels do not take a state of such features; None: they do."""
    if features.dim() not in CHANNELS_LAST:
        return f"{features.dim() - 2}D features: the kernels take 2D and 3D ones"
    if features.dtype not in (torch.float32, torch.bfloat16):
        return f"features in {_name(features.dtype)}: the kernels keep a state in float32"
    if not 0 < features.numel() < 2**31:
        return f"{features.numel()} numbers in a state: the kernels take 1 to 2^31 - 1"
    return None


def misfit(layer: nn.Module, device: torch.device) -> str | None:
    """Why the kernels do not compute what `layer` computes, up to rounding; None: they do."""
    if type(layer) is not SymmetricLayer:
        return f"the kernels compute a SymmetricLayer, this is a {type(layer).__name__}"
    if has_foreign_code(layer):
        return "a hook, or a replaced method, which kernels would pass by"
    convolution, norm, activation = layer.convolution, layer.normalization, layer.activation
    if type(convolution) is not Convolution:
        return f"its convolution is a {type(convolution).__name__}"
    size = " x ".join(map(str, convolution.stencil_size))
    smallest = 4 if layer.dimension == 3 else 8
    needs = {
        f"stencils of {size} points: the kernels have 3 x 3 and 3 x 3 x 3": (
            size in ("3 x 3", "3 x 3 x 3")
        ),
        f"boundary={convolution.boundary}: the kernels have zeros outside the image": (
            convolution.boundary == "zero"
        ),
        f"hidden_channels={layer.hidden_channels}: the kernels have {layer.channels}, as many as "
        f"channels": layer.hidden_channels == layer.channels,
        f"{layer.channels} channels: in {layer.dimension}D the kernels take {smallest} to "
        f"{MOST_CHANNELS}, by {'fours' if smallest == 4 else 'eights'}": (
            layer.channels % smallest == 0 and layer.channels <= MOST_CHANNELS
        ),
        f"activation={activation.name}: the kernels have relu": (
            (activation.name, activation.function) == ("relu", torch.relu)
        ),
        f"normalization={layer.normalization_name}: the kernels have tv": (
            type(norm) is TotalVariationNorm
        ),
        "a normalisation without scale and bias: the kernels have both": (
            type(getattr(norm, "affine", None)) is ChannelAffine
        ),
    }
    missing = next((reason for reason, is_met in needs.items() if not is_met), None)
    return (
        missing
        or _misfit_of_measurements(layer.dimension, device)
        or _misfit_of_weights(weights_of(layer), device)
    )


def weights_of(layer: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Stencil, scale and bias of a layer that fits."""
    affine = layer.normalization.affine
    return layer.convolution.stencil, affine.scale, affine.bias


def _misfit_of_weights(weights: Sequence[Tensor], device: torch.device) -> str | None:
    for weight in weights:
        if weight.dtype != torch.float32:
            return f"weights in {_name(weight.dtype)}: the kernels take float32"
        if weight.device != device:
            return f"weights on {weight.device}, not {device}"
    return None


def _misfit_of_measurements(dimension: int, device: torch.device) -> str | None:
    if dimension == 2 or device.type != "cuda":
        return None
    asked_for = os.environ.get(ASKED_FOR, "")
    if asked_for not in ("", _VOLUMES):
        raise ConfigError(f"{ASKED_FOR} may be {_VOLUMES!r} or empty, found {asked_for!r}")
    if asked_for == _VOLUMES:
        return None
    return f"3D kernels have not been measured; {ASKED_FOR}={_VOLUMES} uses them"


def activate(source: Tensor, weights: Weights, *, keep: bool) -> Activated:
    """a = relu(N(K source)) and, if it is to be kept, u = K source."""
    blocks = choose_blocks("activate_kept" if keep else "activate", source)
    activated = _empty(source, weights.stencil.dtype)
    hidden = _empty(source, weights.stencil.dtype) if keep else None
    _launch(
        "activate_kernel",
        (_num_blocks(source, blocks),),
        blocks,
        source,
        weights.stencil,
        weights.scale,
        weights.bias,
        activated,
        hidden,
        _num_pixels(source),
        weights.epsilon,
        **_constants(source, weights.stencil, blocks),
        KEEP=keep,
    )
    return Activated(activated, hidden)


def add_adjoint(
    base: Tensor | None,
    hidden: Tensor,
    adjoint: Tensor,
    factor: float,
    *,
    grid_scale: float | None = None,
    copy: bool = False,
    following: tuple[Tensor, float] | None = None,
    store: bool = True,
) -> tuple[Sum, Sum | None]:
    """base, or zero, + factor K^T hidden, the increment rounded to multiples of 1/grid_scale.

    Where it is not to be stored its memory stays as it was. With `following` = (other, number) also
    other + number times that, rounded alike and copied.
    """
    blocks = choose_blocks("add_adjoint", hidden)
    outcome = _sum(hidden, copy)
    other, number = (None, 0.0) if following is None else following
    following_outcome = None if following is None else _sum(hidden, True)
    _launch(
        "add_adjoint_kernel",
        (_num_blocks(hidden, blocks),),
        blocks,
        base,
        hidden,
        adjoint,
        *(outcome if store else (None, None)),
        other,
        number,
        *(following_outcome or (None, None)),
        _num_pixels(hidden),
        factor,
        *_grid(grid_scale),
        **_constants(hidden, adjoint, blocks),
        ROUND=grid_scale is not None,
        COPY=copy and store,
        NEXT=following is not None,
    )
    return outcome, following_outcome


def undo_add_adjoint(
    target_after: Tensor,
    activated: Tensor,
    source_gradient: Tensor,
    gradient: Tensor,
    adjoint: Tensor,
    factor: float,
    *,
    grid_scale: float | None = None,
    copies: tuple[bool, bool] = (False, False),
) -> tuple[Sum, Sum]:
    """target_after + factor K^T activated and source_gradient + K^T gradient in one launch.

    The first is what `add_adjoint` with the opposite factor started from, bit for bit on a grid.
    """
    blocks = choose_blocks("add_adjoint", activated)
    target, new_gradient = (_sum(activated, copy) for copy in copies)
    _launch(
        "undo_kernel",
        (_num_blocks(activated, blocks), 2),
        blocks,
        target_after,
        activated,
        *target,
        source_gradient,
        gradient,
        *new_gradient,
        adjoint,
        _num_pixels(activated),
        -factor,
        *_grid(grid_scale),
        **_constants(activated, adjoint, blocks),
        ROUND=grid_scale is not None,
        COPY_TARGET=copies[0],
        COPY_GRADIENT=copies[1],
    )
    return target, new_gradient


def hidden_gradient(
    target_gradient: Tensor,
    weights: Weights,
    factor: float,
    *,
    saved: Activated | None = None,
    source: Tensor | None = None,
) -> HiddenGradient:
    """The gradient of u, and parts of those of scale and bias, from G.

    From what `activate` kept, or else from the source, in which case a is computed again.
    """
    again = saved is None
    name = "activate" if again else "hidden_gradient"
    blocks = choose_blocks(name, target_gradient)
    dtype = weights.stencil.dtype
    gradient = _empty(target_gradient, dtype)
    activated = _empty(target_gradient, dtype) if saved is None else saved.activated
    num_blocks, channels = _num_blocks(target_gradient, blocks), target_gradient.shape[1]
    partial_sums = target_gradient.new_empty((num_blocks, 2, channels), dtype=torch.float32)
    _launch(
        "hidden_gradient_kernel",
        (num_blocks,),
        blocks,
        target_gradient,
        source,
        weights.stencil,
        weights.scale,
        weights.bias,
        None if saved is None else saved.hidden,
        activated,
        gradient,
        partial_sums,
        _num_pixels(target_gradient),
        weights.epsilon,
        factor,
        **_constants(target_gradient, weights.stencil, blocks),
        AGAIN=again,
    )
    return HiddenGradient(gradient, activated, partial_sums)


def stencil_gradient_parts(
    gradient: Tensor,
    source: Tensor,
    activated: Tensor,
    target_gradient: Tensor,
    factor: float,
    *,
    out: Tensor,
    chained: bool = True,
) -> None:
    """Parts of the gradient of the stencil from both places where it stands, to be added up.

    They are written to `out`, dense float32 of `stencil_gradient_shape`. Not `chained`, it begins
    when all that it waits for has ended.
    """
    blocks = choose_blocks("stencil_gradient", source)
    constants = _constants(source, out[0], blocks)
    constants["BLOCK_N"] = constants.pop("BLOCK_K")
    _launch(
        "stencil_gradient_kernel",
        (_num_tiles(out[0], blocks), len(out)),
        blocks,
        gradient,
        source,
        activated,
        target_gradient,
        out,
        _num_pixels(source),
        factor,
        **constants,
        NUM_STEPS=_num_steps(source, out[0], blocks),
        chained=chained,
    )


def stencil_gradient_shape(source: Tensor, stencil: Tensor) -> tuple[int, ...]:
    """(chunks, *that of the stencil)."""
    blocks = choose_blocks("stencil_gradient", source)
    num_chunks = _ceil(_num_blocks(source, blocks), _num_steps(source, stencil, blocks))
    return num_chunks, *stencil.shape


def _num_steps(source: Tensor, stencil: Tensor, blocks: Blocks) -> int:
    """Blocks of pixels to a chunk."""
    num_programs = _NUM_PROGRAMS[_padded(source.shape[1])]
    if blocks.num_stages == 1:  # where nothing is loaded ahead, others compute in the meantime
        num_programs *= 2 if source.dim() == 4 else 4
    num_chunks = max(1, num_programs // _num_tiles(stencil, blocks))
    return _ceil(_num_blocks(source, blocks), num_chunks)


def _num_tiles(stencil: Tensor, blocks: Blocks) -> int:
    return _ceil(stencil[0].numel(), blocks.width)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


@contextmanager
def rehearsal(device: torch.device) -> Iterator[None]:
    """Within it no kernel runs, but those that would are compiled, side by side.

    One after the other they take several times as long. Tensors may be on the meta device.
    """
    triton = importlib.import_module("triton")
    token = _is_rehearsal.set(True)
    try:
        with (
            ThreadPoolExecutor(_MOST_COMPILERS) as executor,
            triton.AsyncCompileMode(executor),
            torch.cuda.device(device),
        ):
            yield
    finally:
        _is_rehearsal.reset(token)


def needs_rehearsal() -> bool:
    """Whether all kernels of a block are to be compiled together before the first runs.

    The interpreter takes them as they are.
    """
    return not _interpreting()


def _interpreting() -> bool:
    """Whether Triton's interpreter stands in for a GPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def _kernels() -> Any:
    return importlib.import_module("pdecnn.fast.kernels.symmetric_shear_triton")


def _launch(
    name: str,
    grid: tuple[int, ...],
    blocks: Blocks,
    *values: Any,
    chained: bool = True,
    **constants: Any,
) -> None:
    kernel = getattr(_kernels(), name)
    call = partial(kernel.warmup, grid=grid) if _is_rehearsal.get() else kernel[grid]
    (device,) = {value.device for value in values if isinstance(value, Tensor)}
    # Fused multiply-adds may come out differently in two kernels that compute the same thing.
    with torch.cuda.device(device if device.type == "cuda" else -1):
        call(
            *values,
            **constants,
            **(chain() if chained else {}),
            EMULATE=_interpreting(),
            num_warps=blocks.num_warps,
            num_stages=blocks.num_stages,
            enable_fp_fusion=False,
        )


def chain() -> dict[str, bool]:
    """What a kernel is launched with so that it gets ready while the last one is at work."""
    if not CHAINED or _interpreting() or not torch.cuda.is_available():
        return {}
    if torch.cuda.get_device_capability() < (9, 0):
        return {}
    return {"CHAINED": True, "launch_pdl": True}


def _constants(features: Tensor, stencil: Tensor, blocks: Blocks) -> dict[str, Any]:
    _, channels, *depth, height, width = features.shape
    group = (stencil.shape[-1] - channels) // 2 if depth else channels
    return {
        "DEPTH": depth[0] if depth else 0,
        "HEIGHT": height,
        "WIDTH": width,
        "CHANNELS": channels,
        "GROUP": group,
        "PADDED": _padded(channels),
        "BLOCK_P": blocks.pixels,
        "BLOCK_K": blocks.width,
    }


def _padded(channels: int) -> int:
    """The power of two the channels are padded to."""
    return max(16, 1 << (channels - 1).bit_length())


def _num_pixels(features: Tensor) -> int:
    return features.numel() // features.shape[1]


def _num_blocks(features: Tensor, blocks: Blocks) -> int:
    return _ceil(_num_pixels(features), blocks.pixels)


def _ceil(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def _grid(grid_scale: float | None) -> tuple[float, float]:
    return (1.0, 1.0) if grid_scale is None else (grid_scale, 1 / grid_scale)


def _sum(operand: Tensor, copy: bool) -> Sum:
    return Sum(_empty(operand, torch.float32), _empty(operand, operand.dtype) if copy else None)


def _empty(like: Tensor, dtype: torch.dtype) -> Tensor:
    layout = CHANNELS_LAST[like.dim()]
    return torch.empty(like.shape, dtype=dtype, device=like.device, memory_format=layout)
