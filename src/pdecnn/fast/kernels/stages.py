"""A convolution with batch norm, ReLU and mean pooling in three kernels, its gradient in two.

What stands around the blocks of the paper's networks, in two dimensions. Features are channels
last, operands of products bfloat16, sums float32. With the notation of the kernels, x the source,
G the gradient of the outcome, P the mean over a window of pixels (1: that of the pixel itself):

    u = K x, and parts of its mean m and variance v over all pixels         `multiply`
    m and v; the running ones follow                                        `merge`
    outcome = P relu(z), z = s n + b, n = r (u - m), r = 1/sqrt(v + epsilon) `activate`
    gz = P^T G [z > 0], parts of the sums of gz n and gz                    `affine_gradient`
    gu = s r (gz - A gz - n A(gz n)), A the mean over all pixels;
    K^T gu, the gradient of x, and parts of that of K                       `stencil_gradient`

In evaluation m and v are the running ones, which do not depend on u: `activate` alone computes
everything, and the terms with A are not there. Sums over pixels are taken in an order that depends
on the shape alone: the same inputs give the same bits. Nothing is read back by the host, so that
all of it can be captured in a CUDA graph.
"""

import importlib
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pdecnn.fast.kernels.symmetric_shear import _ceil, _empty, _interpreting, _padded, chain

_MOST_NUMBERS = 2**15
"""Of a stencil: a program holds the gradient of all of them in registers."""


class Blocks(NamedTuple):
    """How a kernel is cut up."""

    pixels: int
    """Pixels to a step."""
    num_programs: int
    """To aim at where each sums over the pixels of its steps: the same number on all GPUs, so
    that the order of the sums is. Elsewhere a program has one step."""
    num_warps: int
    num_stages: int


# By kernel and the larger of the padded numbers of channels and of numbers that a product sums up.
_BLOCKS = {
    "multiply": {
        16: Blocks(128, 528, 4, 3),
        32: Blocks(128, 528, 4, 3),
        64: Blocks(128, 528, 4, 3),
        128: Blocks(64, 264, 4, 3),
        256: Blocks(64, 264, 8, 2),
    },
    "activate": {
        16: Blocks(128, 0, 4, 1),
        32: Blocks(128, 0, 4, 1),
        64: Blocks(32, 0, 4, 1),
        128: Blocks(32, 0, 4, 1),
        256: Blocks(16, 0, 8, 1),
    },
    # Without u, in evaluation.
    "evaluate": {
        16: Blocks(128, 0, 4, 3),
        32: Blocks(128, 0, 4, 3),
        64: Blocks(64, 0, 4, 3),
        128: Blocks(64, 0, 8, 3),
        256: Blocks(32, 0, 8, 2),
    },
    "affine_gradient": {
        16: Blocks(128, 528, 4, 2),
        32: Blocks(64, 528, 4, 2),
        64: Blocks(32, 528, 4, 2),
        128: Blocks(16, 528, 4, 2),
        256: Blocks(16, 264, 8, 2),
    },
    "stencil_gradient": {
        16: Blocks(64, 528, 4, 2),
        32: Blocks(64, 528, 4, 2),
        64: Blocks(64, 264, 4, 2),
        128: Blocks(32, 264, 8, 2),
        256: Blocks(16, 132, 16, 2),
    },
}
_MERGED_CHANNELS = 8


class Stage(NamedTuple):
    """What is done to a source."""

    stencil: Tensor
    """Dense, (channels, source's channels, height, width): 1x1 or 3x3."""
    scale: Tensor
    bias: Tensor
    epsilon: float
    window: int
    """Pixels a side that the outcome has one for."""


class Statistics(NamedTuple):
    """Mean and variance of each channel."""

    mean: Tensor
    variance: Tensor


class Running(NamedTuple):
    """Those that follow the batches, changed in place."""

    statistics: Statistics
    num_batches: Tensor
    momentum: float


def choose_blocks(kernel: str, stencil: Tensor) -> Blocks:
    """The blocks of a kernel."""
    return _BLOCKS[kernel][max(map(_padded, (stencil[0].numel(), len(stencil))))]


def fits(stencil: Tensor) -> bool:
    """Whether there are kernels for that many channels."""
    sides = [_padded(stencil[0].numel()), _padded(len(stencil))]
    return max(sides) in _BLOCKS["multiply"] and sides[0] * sides[1] <= _MOST_NUMBERS


def multiply(source: Tensor, stencil: Tensor) -> tuple[Tensor, Tensor]:
    """u = K source in bfloat16, and parts of its statistics: (chunks, 2, channels)."""
    chunks = _Chunks("multiply", source, stencil)
    hidden = _outcome(source, stencil, 1, torch.bfloat16)
    parts = source.new_empty((chunks.number, 2, len(stencil)), dtype=torch.float32)
    _launch(
        "multiply_kernel",
        (chunks.number,),
        chunks.blocks,
        source,
        stencil,
        hidden,
        parts,
        chunks.num_pixels,
        chunks.num_steps,
        **_constants(source, stencil),
        BLOCK_P=chunks.blocks.pixels,
    )
    return hidden, parts


def merge(parts: Tensor, source: Tensor, stencil: Tensor, running: Running) -> Statistics:
    """The statistics of the batch from the parts that `multiply` found of the source."""
    chunks = _Chunks("multiply", source, stencil)
    channels = len(stencil)
    mean, variance = parts.new_empty((2, channels)).unbind()
    blocks = Blocks(0, 0, 4, 1)
    _launch(
        "merge_kernel",
        (_ceil(channels, _MERGED_CHANNELS),),
        blocks,
        parts,
        mean,
        variance,
        *running.statistics,
        running.num_batches,
        chunks.num_pixels,
        chunks.number,
        chunks.num_steps * chunks.blocks.pixels,
        running.momentum,
        CHANNELS=channels,
        BLOCK_C=_MERGED_CHANNELS,
        PADDED_CHUNKS=_padded(chunks.number),
    )
    return Statistics(mean, variance)


def activate(
    source: Tensor,
    stage: Stage,
    statistics: Statistics,
    dtype: torch.dtype,
    *,
    hidden: Tensor | None = None,
) -> Tensor:
    """The outcome, from u where that is given."""
    blocks = choose_blocks("evaluate" if hidden is None else "activate", stage.stencil)
    outcome = _outcome(source, stage.stencil, stage.window, dtype)
    num_outputs = _num_pixels(outcome)
    _launch(
        "activate_kernel",
        (_ceil(num_outputs, blocks.pixels),),
        blocks,
        hidden,
        source,
        stage.stencil,
        *statistics,
        stage.scale,
        stage.bias,
        outcome,
        _num_pixels(source),
        num_outputs,
        stage.epsilon,
        **_constants(source, stage.stencil),
        WINDOW=stage.window,
        BLOCK_P=blocks.pixels,
        KEPT=hidden is not None,
    )
    return outcome


def affine_gradient(
    hidden: Tensor, gradient: Tensor, stage: Stage, statistics: Statistics
) -> Tensor:
    """The gradients of scale and bias, (2, channels), from that of the outcome: channels last, or
    where it is the same at all pixels expanded from (images, channels)."""
    chunks = _Chunks("affine_gradient", hidden, stage.stencil)
    constants = _constants(hidden, stage.stencil)
    parts = hidden.new_empty((chunks.number, 2, hidden.shape[1]), dtype=torch.float32)
    _launch(
        "affine_gradient_kernel",
        (chunks.number,),
        chunks.blocks,
        hidden,
        gradient,
        *statistics,
        stage.scale,
        stage.bias,
        parts,
        chunks.num_pixels,
        chunks.num_steps,
        stage.epsilon,
        **{name: constants[name] for name in ("HEIGHT", "WIDTH", "CHANNELS", "PADDED")},
        WINDOW=stage.window,
        LEVEL=is_level(gradient),
        BLOCK_P=chunks.blocks.pixels,
    )
    return parts.sum(0)


def stencil_gradient(
    source: Tensor,
    hidden: Tensor,
    gradient: Tensor,
    stage: Stage,
    statistics: Statistics,
    affine: Tensor,
    *,
    of_batch: bool,
    back: bool,
) -> tuple[Tensor, Tensor | None]:
    """The gradients of the stencil and, with `back`, of the source, for a stencil of 1x1.

    `affine` is what `affine_gradient` found; `of_batch` says whether the statistics are u's own.
    """
    chunks = _Chunks("stencil_gradient", source, stage.stencil)
    parts = source.new_empty((chunks.number, *stage.stencil.shape), dtype=torch.float32)
    source_gradient = _empty(source, source.dtype) if back else None
    _launch(
        "stencil_gradient_kernel",
        (chunks.number,),
        chunks.blocks,
        hidden,
        gradient,
        source,
        stage.stencil,
        *statistics,
        stage.scale,
        stage.bias,
        affine,
        source_gradient,
        parts,
        chunks.num_pixels,
        chunks.num_steps,
        stage.epsilon,
        **_constants(source, stage.stencil),
        WINDOW=stage.window,
        LEVEL=is_level(gradient),
        BLOCK_P=chunks.blocks.pixels,
        OF_BATCH=of_batch,
        BACK=back,
    )
    return parts.sum(0), source_gradient


def is_level(features: Tensor) -> bool:
    """Whether features are expanded from dense (images, channels)."""
    return features.stride()[1:] == (1, 0, 0) and features.stride(0) == features.shape[1]


class _Chunks:
    """The pixels in runs of whole blocks, one for each program."""

    def __init__(self, kernel: str, features: Tensor, stencil: Tensor) -> None:
        self.blocks = choose_blocks(kernel, stencil)
        self.num_pixels = _num_pixels(features)
        num_blocks = _ceil(self.num_pixels, self.blocks.pixels)
        self.num_steps = _ceil(num_blocks, self.blocks.num_programs)
        self.number = _ceil(num_blocks, self.num_steps)


def _num_pixels(features: Tensor) -> int:
    return features.numel() // features.shape[1]


def _outcome(source: Tensor, stencil: Tensor, window: int, dtype: torch.dtype) -> Tensor:
    images, _, height, width = source.shape
    return torch.empty(
        (images, len(stencil), height // window, width // window),
        dtype=dtype,
        device=source.device,
        memory_format=torch.channels_last,
    )


def _constants(features: Tensor, stencil: Tensor) -> dict[str, int]:
    length, channels = stencil[0].numel(), len(stencil)
    return {
        "HEIGHT": features.shape[2],
        "WIDTH": features.shape[3],
        "TAPS": stencil[0, 0].numel(),
        "LENGTH": length,
        "PADDED_LENGTH": _padded(length),
        "CHANNELS": channels,
        "PADDED": _padded(channels),
    }


@cache
def _kernels() -> Any:
    return importlib.import_module("pdecnn.fast.kernels.stages_triton")


def _launch(
    name: str, grid: tuple[int, ...], blocks: Blocks, *values: Any, **constants: Any
) -> None:
    (device,) = {value.device for value in values if isinstance(value, Tensor)}
    with torch.cuda.device(device if device.type == "cuda" else -1):
        getattr(_kernels(), name)[grid](
            *values,
            **constants,
            **chain(),
            EMULATE=_interpreting(),
            num_warps=blocks.num_warps,
            num_stages=blocks.num_stages,
        )
