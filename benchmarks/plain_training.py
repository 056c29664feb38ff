"""A training step in ordinary torch that does all that ours does."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import get_total_norm

from pdecnn.runs.plain_twin import PlainBlock, PlainNetwork


class PlainTraining:
    """All that a training step does, written plainly.

    Gathering a batch of bytes, standardising it, augmentation where there is any, forward, cross
    entropy, the regulariser of eq. 13, backward, a look whether loss and gradient are finite, SGD
    with momentum, projection of the stencils onto the box, and the sums of loss, right answers
    and images. Stencils and images lie in memory as `layout` says; `half` is bfloat16 autocast,
    but for the classifier.
    """

    def __init__(
        self,
        network: PlainNetwork,
        images: Tensor,
        labels: Tensor,
        batches: Tensor,
        *,
        learning_rate: float = 1e-3,
        half: bool = False,
        layout: torch.memory_format = torch.contiguous_format,
        augment: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.network = network.train().to(memory_format=layout)  # type: ignore[call-overload]
        self.half, self.layout, self.augment = half, layout, augment
        self.images, self.labels, self.batches = images, labels, batches
        self.optimizer = torch.optim.SGD(network.parameters(), lr=learning_rate, momentum=0.9)
        self.sums = torch.zeros(3, dtype=torch.float64)
        self.count = 0

    def __call__(self) -> None:
        """Train on the next batch."""
        indices = self.batches[self.count % len(self.batches)]
        self.count += 1
        pixels = self.images[indices].float() / 255
        deviation, mean = torch.std_mean(pixels, (1, 2, 3), correction=0, keepdim=True)
        images = (pixels - mean) / deviation.clamp(min=pixels[0].numel() ** -0.5)
        if self.augment is not None:
            images = self.augment(images)
        images = images.contiguous(memory_format=self.layout)
        labels = self.labels[indices]
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.half):
            means = self.network.pooled(images)
        scores = self.network.classifier(means.float())
        loss = functional.cross_entropy(scores, labels) + regularizer(self.network)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = get_total_norm([w.grad for w in self.network.parameters() if w.grad is not None])
        if not torch.isfinite(loss + norm):
            raise RuntimeError("the loss or its gradient is not finite")
        self.optimizer.step()
        with torch.no_grad():
            for kernel in block_kernels(self.network):
                kernel.clamp_(-1, 1)
            self.sums[0] += loss * len(labels)
            self.sums[1] += (scores.argmax(1) == labels).sum()
            self.sums[2] += len(labels)


def mirror_and_crop(images: Tensor, padding: int) -> Tensor:
    """Images mirrored by a coin each, padded with zeros and cropped back at random."""
    number, channels, height, width = images.shape
    padded = functional.pad(images, (padding,) * 4)
    rows = torch.randint(2 * padding + 1, (number, 1)) + torch.arange(height)
    columns = torch.randint(2 * padding + 1, (number, 1)) + torch.arange(width)
    columns = torch.where(torch.rand(number, 1) < 0.5, columns.flip(1), columns)
    which = torch.arange(number).view(-1, 1, 1, 1), torch.arange(channels).view(1, -1, 1, 1)
    return padded[*which, rows.view(number, 1, -1, 1), columns.view(number, 1, 1, -1)]


def regularizer(network: PlainNetwork, smoothness: float = 2e-4, decay: float = 2e-4) -> Tensor:
    """Eq. 13 for steps of size 1: total variation in time of the blocks' weights, and decay."""
    variation = torch.zeros(())
    squares = torch.zeros(())
    for block in network.blocks:
        assert isinstance(block, PlainBlock)
        weights = [torch.cat([w.flatten() for w in x.parameters()]) for x in block.layers]
        steps = torch.stack(weights).view(-1, block.layers_per_step * weights[0].numel())
        changes = steps[1:] - steps[:-1]
        variation = variation + torch.sqrt(changes * changes + 1e-3).sum()
    for weight in [*block_kernels(network), *outer_weights(network)]:
        squares = squares + (weight * weight).sum()
    return smoothness * variation + decay / 2 * squares


def block_kernels(network: PlainNetwork) -> list[nn.Parameter]:
    """The stencils of all blocks."""
    return [weight for weight in network.blocks.parameters() if weight.dim() == 4]


def outer_weights(network: PlainNetwork) -> list[nn.Parameter]:
    """The stencils of opening and connectors, and the classifier's weights."""
    stages = [*network.opening.parameters(), *network.connectors.parameters()]
    return [w for w in stages if w.dim() == 4] + list(network.classifier.parameters())
