"""The residual networks for CIFAR of He et al. (2016), in plain torch, to compare with."""

from torch import Tensor, nn
from torch.nn import functional

WIDTHS = (16, 32, 64)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm beside a shortcut without weights ("option A")."""

    def __init__(self, channels: int, new_channels: int, stride: int) -> None:
        super().__init__()
        self.stride, self.added_channels = stride, new_channels - channels
        self.conv1 = nn.Conv2d(channels, new_channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(new_channels)
        self.conv2 = nn.Conv2d(new_channels, new_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(new_channels)

    def forward(self, features: Tensor) -> Tensor:
        """relu(shortcut + residual); the shortcut drops pixels and adds channels of zeros."""
        residual = functional.relu(self.norm1(self.conv1(features)))
        residual = self.norm2(self.conv2(residual))
        shortcut = features[:, :, :: self.stride, :: self.stride]
        before = self.added_channels // 2
        after = self.added_channels - before
        shortcut = functional.pad(shortcut, (0, 0, 0, 0, before, after))
        return functional.relu(shortcut + residual)


class CifarResNet(nn.Module):
    """ResNet-20, -32, ...: three stages of 16, 32 and 64 channels, depth = 6 n + 2."""

    def __init__(self, depth: int, num_classes: int = 10) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"depth must be 6 n + 2 with n of at least 1, found {depth}")
        self.conv = nn.Conv2d(3, WIDTHS[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(WIDTHS[0])
        blocks: list[nn.Module] = []
        channels = WIDTHS[0]
        for width in WIDTHS:
            for _ in range((depth - 2) // 6):
                stride = 1 if width == channels else 2
                blocks.append(BasicBlock(channels, width, stride))
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores."""
        features = self.blocks(functional.relu(self.norm(self.conv(images))))
        scores: Tensor = self.classifier(features.mean((2, 3)))
        return scores
