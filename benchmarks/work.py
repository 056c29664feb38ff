"""What a step has to do: floating-point operations and bytes, counted as it runs.

flops          those of convolutions and matrix products, forward and backward, a multiplication
               and an addition each counting one; elementwise ones are left out
minimum_bytes  each convolution and matrix product reads its inputs once and writes its outputs
               once, forward and backward; all between them is taken to be fused and free
moved_bytes    every operation reads its inputs and writes its outputs, as eager torch does
"""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from pdecnn.learning.metrics import count_flops

_aten = torch.ops.aten
_PRODUCTS = (
    _aten.convolution,
    _aten.convolution_backward,
    _aten.mm,
    _aten.addmm,
    _aten.bmm,
)
_ALLOCATIONS = (_aten.empty, _aten.empty_like, _aten.new_empty, _aten.empty_strided)


class Work(NamedTuple):
    """What one call computes and moves."""

    flops: int
    minimum_bytes: int
    moved_bytes: int


def count_work(call: Callable[[], object]) -> Work:
    """Run the call once and count."""
    with _ByteCounter() as counter:
        flops = count_flops(call)
    return Work(flops, counter.minimum_bytes, counter.moved_bytes)


class _ByteCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the sizes of what each operation reads and writes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.minimum_bytes = 0
        self.moved_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        outputs = func(*args, **(kwargs or {}))
        operation = func.overloadpacket
        if func.is_view or operation in _ALLOCATIONS:
            return outputs
        moved = _num_bytes((args, kwargs)) + _num_bytes(_written(func, args, outputs))
        self.moved_bytes += moved
        if operation in _PRODUCTS:
            self.minimum_bytes += moved
        return outputs


def _written(func: Any, args: Any, outputs: Any) -> Any:
    """The new tensors, or those changed in place."""
    if not func._schema.is_mutable:
        return outputs
    changed = zip(func._schema.arguments, args, strict=False)
    return [arg for about, arg in changed if about.alias_info and about.alias_info.is_write]


def _num_bytes(values: Any) -> int:
    """The bytes of all tensors among the values; a number expanded along an axis is read once."""
    return sum(
        leaf.itemsize
        * prod(n for n, stride in zip(leaf.shape, leaf.stride(), strict=True) if stride)
        for leaf in tree_iter(values)
        if isinstance(leaf, Tensor)
    )
