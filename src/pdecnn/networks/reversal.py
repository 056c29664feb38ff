"""The drift guard: how wrong are the gradients of blocks that run backwards (Sec. 3.2)?

States may come back to the last digit and gradients be wrong all the same, where a pre-activation
is exactly 0 and the slope of ReLU flips: so gradients are compared, not states. Only mode
'reversible' needs a guard; 'exact' has the gradient of 'stored' on its grid, up to the order of
a sum where steps share weights.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import inf, isfinite

import torch
from torch import Tensor

from pdecnn.errors import ConfigError
from pdecnn.networks.network import Network
from pdecnn.pde.backprop import Backprop
from pdecnn.pde.block import Block

GUARDED: Backprop = "reversible"
SAFE: Backprop = "checkpointed"
Context = Callable[[], AbstractContextManager[object]]


class DriftGuard:
    """Watches the blocks of a network that are in mode 'reversible' when it is made.

    A block that is switched stays in mode 'checkpointed', whose gradient is that of 'stored'.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.watched = tuple(
            index for index, block in enumerate(_blocks(network)) if block.backprop == GUARDED
        )

    @property
    def switched(self) -> list[int]:
        """The watched blocks that are checkpointed by now."""
        blocks = _blocks(self.network)
        return [index for index in self.watched if blocks[index].backprop == SAFE]

    def carry_over(self, other: Network) -> None:
        """Put the watched blocks of a network made from this one back into mode 'reversible'."""
        for index in self.watched:
            _blocks(other)[index].backprop = GUARDED

    def measure(
        self, images: Tensor, loss: Callable[[Tensor], Tensor], *, autocast: Context = nullcontext
    ) -> dict[int, float]:
        """The gradient error of each watched block, switched or not, on standardised images.

        `loss` makes a number of the class scores; `autocast` is what the network computes under.
        Neither weights nor running statistics change.
        """
        return gradient_errors(self.network, images, loss, self.watched, autocast=autocast)

    def switch(self, indices: Iterable[int]) -> list[int]:
        """Checkpoint these blocks; return those that were not."""
        blocks = _blocks(self.network)
        fresh = [index for index in indices if index not in self.switched]
        for index in fresh:
            if index not in self.watched:
                raise ConfigError(f"block {index} is not in mode {GUARDED!r}: nothing to switch")
            blocks[index].backprop = SAFE
        return fresh


def gradient_errors(
    network: Network,
    images: Tensor,
    loss: Callable[[Tensor], Tensor],
    indices: Sequence[int],
    *,
    autocast: Context = nullcontext,
) -> dict[int, float]:
    """The relative error of the gradients that blocks compute backwards, each by itself.

    A block is given the features that `images` bring to it and the gradient of `loss` with
    respect to its result, both found with all of these blocks 'checkpointed', and differentiated
    in both modes. The error is the larger one of features and weights; 0 where the gradient
    itself is not finite.
    """
    blocks = _blocks(network)
    with _unchanged(network, [blocks[index] for index in indices]):
        inputs, outputs = [], []
        with torch.enable_grad():
            with autocast():
                # So that every block has a gradient, whatever weights are trained.
                images = images.detach().requires_grad_()
                features = network.open(images)
                for block, connector in zip(blocks, network.connectors, strict=True):
                    inputs.append(features.detach())
                    outputs.append(block(features))
                    features = connector(outputs[-1])
                scores = network.close(features, images)
            value = loss(scores)
        wanted = [outputs[index] for index in indices]
        cotangents = torch.autograd.grad(value, wanted) if wanted else ()
        return {
            index: _gradient_error(blocks[index], inputs[index], cotangent, autocast)
            for index, cotangent in zip(indices, cotangents, strict=True)
        }


def _gradient_error(block: Block, features: Tensor, cotangent: Tensor, autocast: Context) -> float:
    block.backprop = SAFE
    expected = block_gradients(block, features, cotangent, autocast=autocast)
    if not all(bool(gradient.isfinite().all()) for gradient in expected):
        return 0.0  # not for going backwards; a training notices by itself
    block.backprop = GUARDED
    found = block_gradients(block, features, cotangent, autocast=autocast)
    return max(
        relative_error(found[:1], expected[:1]),
        relative_error(found[1:], expected[1:]),
    )


def block_gradients(
    block: Block, features: Tensor, cotangent: Tensor, *, autocast: Context = nullcontext
) -> list[Tensor]:
    """The gradient of <cotangent, block(features)>: of the features, then of trained weights."""
    leaf = features.detach().clone().requires_grad_()
    leaves = [leaf, *(weight for weight in block.parameters() if weight.requires_grad)]
    with torch.enable_grad(), autocast():
        result = block(leaf)
    gradients = torch.autograd.grad(result, leaves, cotangent.to(result), allow_unused=True)
    return [
        torch.zeros_like(weight) if gradient is None else gradient
        for weight, gradient in zip(leaves, gradients, strict=True)
    ]


def relative_error(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """|found - expected| / |expected| of all tensors together, in float64; 0 where both are 0.

    Infinite where only `expected` is 0, and where one of them is not finite.
    """
    # On the CPU: not every device has float64.
    first, second = ([tensor.cpu().double() for tensor in part] for part in (found, expected))
    difference = _norm([one - other for one, other in zip(first, second, strict=True)])
    if difference == 0:
        return 0.0
    size = _norm(second)
    return difference / size if isfinite(difference) and size > 0 else inf


def _norm(tensors: Sequence[Tensor]) -> float:
    return float(torch.stack([tensor.norm() for tensor in tensors]).norm()) if tensors else 0.0


def _blocks(network: Network) -> list[Block]:
    return [block for block in network.blocks if isinstance(block, Block)]


@contextmanager
def _unchanged(network: Network, blocks: Sequence[Block]) -> Iterator[None]:
    """Within it the blocks are checkpointed; their modes and all statistics come back."""
    modes = [block.backprop for block in blocks]
    before = [(buffer, buffer.clone()) for buffer in network.buffers()]
    try:
        for block in blocks:
            block.backprop = SAFE
        yield
    finally:
        for block, mode in zip(blocks, modes, strict=True):
            block.backprop = mode
        with torch.no_grad():
            for buffer, kept in before:
                buffer.copy_(kept)
