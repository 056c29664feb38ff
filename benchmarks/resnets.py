"""The residual networks for CIFAR of He et al. (2016), plain and for our trainer."""

from torch import Tensor, nn
from torch.nn import functional

from pdecnn.networks.config import NetworkConfig
from pdecnn.networks.network import Network
from pdecnn.networks.preprocessing import Preprocessing
from pdecnn.networks.stages import Classifier, Stage

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


class Sequence(Stage):
    """Modules one after the other, which a captured step compiles together."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def compute(self, features: Tensor) -> Tensor:
        """The features after all of them."""
        for part in self.parts:
            features = part(features)
        return features


class TrainableResNet(Network):
    """ResNet-20, -32, ... as `Trainer` takes a network, so that it is trained by our recipes.

    It has no blocks in time: its stages stand where connectors do.
    Its config says widths, input and output alone; the work counted from it is not the network's.
    """

    def __init__(
        self, depth: int, num_classes: int = 10, preprocessing: Preprocessing | None = None
    ) -> None:
        nn.Module.__init__(self)
        plain = CifarResNet(depth, num_classes)
        self.config = NetworkConfig(channels=(*WIDTHS, WIDTHS[-1]), num_classes=num_classes)
        self.preprocessing = Preprocessing() if preprocessing is None else preprocessing
        self.opening = Sequence(plain.conv, plain.norm, nn.ReLU())
        self.blocks = nn.ModuleList()
        each = len(plain.blocks) // len(WIDTHS)
        self.connectors = nn.ModuleList(
            Sequence(*list(plain.blocks)[each * k : each * (k + 1)]) for k in range(len(WIDTHS))
        )
        self.classifier = Classifier(WIDTHS[-1], num_classes)
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")

    def forward_features(self, images: Tensor) -> Tensor:
        """The last stage's output."""
        features: Tensor = self.opening(images)
        for stage in self.connectors:
            features = stage(features)
        return features
