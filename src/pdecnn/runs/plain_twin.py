"""The paper's networks once more in ordinary torch, to measure and to check ours against.

Nothing here uses the rest of pdecnn: functional convolutions, a module for the norm of eq. 9,
Python loops over the time steps, autograd's own bookkeeping.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

_CONVOLUTIONS = {
    2: (functional.conv2d, functional.conv_transpose2d),
    3: (functional.conv3d, functional.conv_transpose3d),
}


class PlainLayer(nn.Module):
    """-K^T relu(N_tv(K x)) (eqs. 7 and 9)."""

    def __init__(self, channels: int, dimension: int = 2) -> None:
        super().__init__()
        size = (3,) * dimension
        self.kernel = nn.Parameter(
            torch.randn(channels, channels, *size) * (2 / 3**dimension / channels) ** 0.5
        )
        self.scale = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.shape = (-1, *(1,) * dimension)
        self.convolve, self.transposed = _CONVOLUTIONS[dimension]

    def forward(self, features: Tensor) -> Tensor:
        """The rate of change of the features."""
        hidden = self.convolve(features, self.kernel, padding=1)
        length = torch.sqrt((hidden * hidden).sum(1, keepdim=True) + 1e-3)
        hidden = hidden / length * self.scale.view(self.shape) + self.bias.view(self.shape)
        return -self.transposed(functional.relu(hidden), self.kernel, padding=1)


class PlainBlock(nn.Module):
    """Time steps of size 1 of one of the paper's three dynamics (eqs. 8, 10 and 11)."""

    def __init__(self, dynamics: str, channels: int, num_steps: int, dimension: int = 2) -> None:
        super().__init__()
        self.dynamics = dynamics
        self.layers_per_step = 2 if dynamics == "hamiltonian" else 1
        self.layers = nn.ModuleList(
            PlainLayer(channels // self.layers_per_step, dimension)
            for _ in range(num_steps * self.layers_per_step)
        )

    def forward(self, features: Tensor) -> Tensor:
        """The features after all steps."""
        if self.dynamics == "hamiltonian":
            first, second = features.chunk(2, dim=1)
            for k in range(0, len(self.layers), 2):
                first = first + self.layers[k](second)
                second = second - self.layers[k + 1](first)
            return torch.cat((first, second), dim=1)
        if self.dynamics == "second_order":
            velocity = torch.zeros_like(features)
            for layer in self.layers:
                velocity = velocity + layer(features)
                features = features + velocity
            return features
        for layer in self.layers:
            features = features + layer(features)
        return features


class PlainNetwork(nn.Module):
    """Opening, blocks with connectors, classifier (Sec. 5); weights in the order of ours."""

    def __init__(
        self,
        dynamics: str,
        channels: Sequence[int],
        *,
        in_channels: int = 3,
        num_classes: int = 10,
        num_steps: int = 3,
        dimension: int = 2,
    ) -> None:
        super().__init__()
        self.opening = _convolution_with_norm(in_channels, channels[0], 3, dimension)
        self.blocks = nn.ModuleList(
            PlainBlock(dynamics, width, num_steps, dimension) for width in channels[:-1]
        )
        self.connectors = nn.ModuleList(
            _convolution_with_norm(old, new, 1, dimension) for old, new in pairwise(channels)
        )
        self.classifier = nn.Linear(channels[-1], num_classes)
        self.pool = {2: functional.avg_pool2d, 3: functional.avg_pool3d}[dimension]
        self.pixels = tuple(range(2, 2 + dimension))

    def forward(self, images: Tensor) -> Tensor:
        """Class scores."""
        scores: Tensor = self.classifier(self.pooled(images))
        return scores

    def pooled(self, images: Tensor) -> Tensor:
        """The means over the pixels that the classifier takes."""
        features = functional.relu(self.opening(images))
        for k, (block, connector) in enumerate(zip(self.blocks, self.connectors, strict=True)):
            features = functional.relu(connector(block(features)))
            if k < len(self.blocks) - 1:
                features = self.pool(features, 2)
        return features.mean(self.pixels)


def _convolution_with_norm(
    channels: int, new_channels: int, size: int, dimension: int
) -> nn.Sequential:
    convolution = {2: nn.Conv2d, 3: nn.Conv3d}[dimension]
    norm = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[dimension]
    return nn.Sequential(
        convolution(channels, new_channels, size, padding=size // 2, bias=False),
        norm(new_channels, eps=1e-4),
    )


@torch.no_grad()
def copy_weights_(target: nn.Module, source: nn.Module) -> None:
    """Give `target` the weights of `source`, which must come in the same order and shapes."""
    for mine, theirs in zip(target.parameters(), source.parameters(), strict=True):
        if mine.shape != theirs.shape:
            raise ValueError(
                f"weights do not match: {tuple(mine.shape)} against {tuple(theirs.shape)}"
            )
        mine.copy_(theirs)


class PlainStep:
    """Forward, cross entropy, backward and torch's SGD with momentum on batches made before.

    No gathering, no augmentation, no regulariser, no projection, no metrics. Stencils and
    images lie in memory as `layout` says.
    """

    def __init__(
        self,
        network: nn.Module,
        batches: list[tuple[Tensor, Tensor]],
        *,
        half: bool,
        layout: torch.memory_format = torch.contiguous_format,
    ) -> None:
        network.train().to(memory_format=layout)  # type: ignore[call-overload]
        self.network, self.half = network, half
        self.batches = [(images.contiguous(memory_format=layout), y) for images, y in batches]
        self.optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)
        self.count = 0

    def __call__(self) -> None:
        """Train on the next batch."""
        images, labels = self.batches[self.count % len(self.batches)]
        self.count += 1
        self.optimizer.zero_grad()
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=self.half):
            loss = functional.cross_entropy(self.network(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
