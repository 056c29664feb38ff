"""A training step around its network in a handful of kernels: batch, loss and update.

What there is to know of a training is said in plain tensors and numbers; what the numbers mean
is the business of `pdecnn.learning`.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import log, prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pdecnn.fast.kernels.symmetric_shear import _interpreting, misfit_of_device

_BLOCK = 1024
_IMAGE_BLOCK = 1024
_LOSS_BLOCK = 2048
MOST_CLASSES = 4096


def kernels_run_on(device: torch.device) -> bool:
    """Whether the kernels of this module run on a device."""
    return misfit_of_device(device) is None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How images of bytes become a batch: standardised, mirrored, shifted, with a hole."""

    each: bool
    """Whether each image has a mean and a deviation of its own."""
    means: Tensor | None
    """Of the channels; so are the deviations."""
    deviations: Tensor | None
    keys: Tensor
    """What the hashes of crop (y, x), flip and cutout (y, x) begin with."""
    flip: bool
    alternate: bool
    padding: tuple[int, int]
    reflect: bool
    cutout: int


def read_batch(
    images: Tensor,
    labels: Tensor,
    batches: Tensor,
    counts: Tensor,
    epoch: Tensor,
    reading: Reading,
    *,
    held: bool,
) -> tuple[Tensor, Tensor]:
    """The next batch, channels last, and its labels; counts[0] says which row of `batches` it is.

    Images that are `held` are those of the batch itself, not of the set. They are dense, their
    channels first or last.
    """
    number, shape = batches.shape[1], images.shape[1:]
    features = torch.empty(
        (number, *shape), device=images.device, memory_format=torch.channels_last
    )
    chosen = torch.empty(number, dtype=labels.dtype, device=labels.device)
    _launch(
        "batch_kernel",
        number,
        *(images, labels, batches, counts, epoch),
        *(reading.keys, reading.means, reading.deviations, features, chosen, number),
        CHANNELS=shape[0],
        HEIGHT=shape[1],
        WIDTH=shape[2],
        EACH=reading.each,
        SHIFTED=reading.means is not None,
        SCALED=reading.deviations is not None,
        FLIP=reading.flip,
        ALTERNATE=reading.alternate,
        PADDING_Y=reading.padding[0],
        PADDING_X=reading.padding[1],
        REFLECT=reading.reflect,
        CUTOUT=reading.cutout,
        HELD=held,
        LAST=not images.is_contiguous(),
        BLOCK=min(_IMAGE_BLOCK, _power(prod(shape))),
        num_warps=8,
    )
    return features, chosen


class Losses(NamedTuple):
    """What the scores of a batch come to."""

    measured: Tensor
    """Loss and right answers (0 or 1) of each example: (examples, 2), float32."""
    gradient: Tensor
    """Of the sum of all losses, times the factor."""


def cross_entropy(
    scores: Tensor,
    labels: Tensor,
    mixed: tuple[Tensor, Tensor, Tensor] | None,
    *,
    smoothing: float,
    temperature: float,
    factor: float,
) -> Losses:
    """T S(scores / T) of every example, `mixed` being other labels, shares and main labels."""
    scores = scores.detach().contiguous()
    number, classes = scores.shape
    others, shares, main = (labels, labels, labels) if mixed is None else mixed
    padded = _power(classes)
    rows = max(1, min(32, _LOSS_BLOCK // padded))
    found = Losses(torch.empty(number, 2, device=scores.device), torch.empty_like(scores))
    _launch(
        "loss_kernel",
        -(-number // rows),
        *(scores, labels, others, shares, main, found.gradient, found.measured),
        *(number, smoothing, temperature, factor),
        CLASSES=classes,
        PADDED=padded,
        ROWS=rows,
        MIXED=mixed is not None,
        EMULATE=_interpreting(),
    )
    return found


@dataclass(kw_only=True)
class FlatWeight:
    """A weight as the flat update needs it."""

    weight: Tensor
    first: Tensor
    """The velocity, or the mean of the gradients."""
    second: Tensor | None = None
    """The mean of their squares."""
    steps: Tensor | None = None
    average: Tensor | None = None
    earlier: Tensor | None = None
    """The same weight a step of the block before."""
    later: Tensor | None = None
    step_size: float = 1.0
    decay: float = 0.0
    """The factor of half its square in the loss."""
    bound: float = float("inf")
    """Of its box."""
    orthogonal: bool = False
    """Whether its moves are made so."""

    @property
    def matrix(self) -> tuple[int, int]:
        """Its shape as a matrix."""
        return self.weight.shape[0], prod(self.weight.shape[1:])


@dataclass(frozen=True, kw_only=True)
class FlatRule:
    """What all weights have in common."""

    name: str
    """'sgd', 'nesterov', 'adamw' or 'muon'."""
    momentum: float
    rate_inside: bool
    betas: tuple[float, float]
    weight_decay: float
    clip_norm: float | None
    average_share: float | None
    smoothness: float
    corner: float
    h1: bool
    patience: int
    """How many steps in a row may be skipped."""


class Bookkeeping(NamedTuple):
    """The tensors of a training in which a step is counted."""

    rates: Tensor
    counts: Tensor
    skipped: Tensor
    sums: Tensor


class FlatUpdate:
    """The update of all weights at once; it holds on to where everything lies.

    `buffers` are what a step that is not accepted must leave as it was, each with its average or
    None; `orthogonalize` does so with wide matrices (n, rows, columns).
    """

    def __init__(
        self,
        weights: Sequence[FlatWeight],
        buffers: Sequence[tuple[Tensor, Tensor | None]],
        rule: FlatRule,
        orthogonalize: Callable[[Tensor], Tensor],
    ) -> None:
        self.orthogonalize = orthogonalize
        self.weights, self.buffers, self.rule = list(weights), list(buffers), rule
        device = weights[0].weight.device
        self.device = device
        sizes = [one.weight.numel() for one in weights]
        self.offsets = _offsets(sizes)
        matrices = [one.matrix for one in weights if one.orthogonal]
        self.height = max((min(shape) for shape in matrices), default=1)
        self.width = max((max(shape) for shape in matrices), default=1)
        # Zero between and beyond the matrices for good: that is as if they were not there.
        self.matrices = torch.zeros(len(matrices), self.height, self.width, device=device)
        slots = iter(range(len(matrices)))
        self.addresses = _table([_addresses(one) for one in weights], torch.int64, device)
        self.numbers = _table(
            [
                [
                    size,
                    offset,
                    one.matrix[1],
                    next(slots) if one.orthogonal else -1,
                    one.matrix[0] > one.matrix[1],
                ]
                for one, size, offset in zip(weights, sizes, self.offsets, strict=False)
            ],
            torch.int32,
            device,
        )
        self.factors = _table(
            [[w.decay, w.step_size, w.bound, 0.2 * max(w.matrix) ** 0.5] for w in weights],
            torch.float32,
            device,
        )
        self.programs = _programs(sizes, device)
        self.tables = (self.addresses, self.numbers, self.factors, self.programs)
        words = [buffer.numel() * buffer.element_size() // 4 for buffer, _ in buffers]
        self.kept_offsets = _offsets(words)
        self.buffer_table = _table(
            [
                [_address(buffer), _address(average), size, offset, buffer.is_floating_point()]
                for (buffer, average), size, offset in zip(
                    buffers, words, self.kept_offsets, strict=False
                )
            ],
            torch.int64,
            device,
        )
        self.buffer_programs = _programs(words, device)
        self._layouts: dict[tuple[bool, ...], Tensor] = {}

    def keep_buffers(self) -> Tensor | None:
        """A copy of all buffers."""
        if not self.buffers:
            return None
        kept = torch.empty(self.kept_offsets[-1], dtype=torch.int32, device=self.device)
        table, programs = self.buffer_table, self.buffer_programs
        _launch("keep_kernel", len(programs), table, programs, kept, BLOCK=_BLOCK)
        return kept

    def __call__(
        self,
        gradients: Sequence[Tensor],
        measured: Tensor,
        divisor: int,
        outside: Tensor | None,
        kept: Tensor | None,
        book: Bookkeeping,
        number: int,
    ) -> None:
        """Take the step, unless something is not finite or a state is `outside` of its range.

        The data loss is the sum of the first column of `measured` over `divisor`, the second
        one counts right answers; the gradients are those of the data loss.
        """
        rule, num_programs = self.rule, len(self.programs)
        flat, layouts = self._flat(gradients)
        gradient = torch.empty_like(flat)
        sums = torch.empty(num_programs, 3, device=self.device)
        control = torch.empty(3, device=self.device)
        kinds = (rule.smoothness, rule.corner)
        _launch(
            "regularized_gradient_kernel",
            num_programs,
            *(*self.tables, layouts, flat, gradient, sums, *kinds),
            H1=rule.h1,
            BLOCK=_BLOCK,
        )
        sizes = (num_programs, len(measured), len(self.weights), float(divisor), float(number))
        _launch(
            "decide_kernel",
            1,
            *(self.addresses, sums, measured, book.rates, outside),
            *(book.counts, book.skipped, book.sums, control),
            *(*sizes, rule.clip_norm or 1.0, rule.patience),
            CLIPPED=rule.clip_norm is not None,
            RANGED=outside is not None,
            COUNTED=any(one.steps is not None for one in self.weights),
            BLOCK=_BLOCK,
        )
        self._update(gradient, control)
        if kept is not None:
            tables = (self.buffer_table, self.buffer_programs)
            share = rule.average_share or 0.0
            number = len(self.buffer_programs)
            _launch("buffers_kernel", number, *tables, kept, control, share, BLOCK=_BLOCK)

    def _update(self, gradient: Tensor, control: Tensor) -> None:
        rule, num_programs = self.rule, len(self.programs)
        shape = {"HEIGHT": self.height, "WIDTH": self.width, "BLOCK": _BLOCK}
        moves = self.matrices
        if len(self.matrices):
            _launch(
                "directions_kernel",
                num_programs,
                *(*self.tables, gradient, control, self.matrices, rule.momentum),
                **shape,
            )
            moves = self.orthogonalize(self.matrices)
        _launch(
            "update_kernel",
            num_programs,
            *(*self.tables, gradient, control, moves.contiguous()),
            *(rule.momentum, rule.weight_decay, rule.average_share or 0.0),
            RULE=rule.name,
            BETA_1=rule.betas[0],
            BETA_2=rule.betas[1],
            LOG_1=_logarithm(rule.betas[0]),
            LOG_2=_logarithm(rule.betas[1]),
            INSIDE=rule.rate_inside,
            AVERAGED=rule.average_share is not None,
            **shape,
        )

    def _flat(self, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """All gradients as one vector, each as it lies in memory, and how they lie."""
        turned = tuple(
            g.dim() == 4
            and not g.is_contiguous()
            and g.is_contiguous(memory_format=torch.channels_last)
            for g in gradients
        )
        if turned not in self._layouts:  # met before a graph is captured, which could not copy it
            layouts = [
                [g.shape[1], prod(g.shape[2:])] if last else [1, 1]
                for g, last in zip(gradients, turned, strict=True)
            ]
            self._layouts[turned] = _table(layouts, torch.int32, self.device)
        parts = [
            (g.permute(0, 2, 3, 1) if last else g).reshape(-1)
            for g, last in zip(gradients, turned, strict=True)
        ]
        return torch.cat(parts), self._layouts[turned]


def _launch(name: str, number: int, *values: Any, num_warps: int = 4, **constants: Any) -> None:
    device = next(value.device for value in values if isinstance(value, Tensor))
    kernel = getattr(_kernels(), name)
    with torch.cuda.device(device if device.type == "cuda" else -1):
        kernel[(number,)](*values, **constants, num_warps=num_warps, enable_fp_fusion=False)


@cache
def _kernels() -> Any:
    return importlib.import_module("pdecnn.fast.kernels.step_triton")


def _addresses(one: FlatWeight) -> list[int]:
    """In the order of the columns that the kernels know."""
    tensors = (one.weight, one.first, one.second, one.steps, one.average, one.earlier, one.later)
    return [_address(tensor) for tensor in tensors]


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _table(rows: Sequence[Sequence[float]], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(rows, dtype=dtype).to(device)


def _offsets(sizes: Sequence[int]) -> list[int]:
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + size)
    return offsets


def _programs(sizes: Sequence[int], device: torch.device) -> Tensor:
    """The tensor of each program and where in it the program begins."""
    rows = [[k, begin] for k, size in enumerate(sizes) for begin in range(0, size, _BLOCK)]
    return _table(rows, torch.int32, device)


def _power(number: int) -> int:
    """The power of two from the number on."""
    return 1 << (number - 1).bit_length()


def _logarithm(share: float) -> float:
    """Of a share; of none it is so low that its powers are zero."""
    return log(share) if share > 0 else -1e4
