"""A plain 3D U-Net (Cicek et al. 2016) for our trainer, to stand beside our segmenters."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from pdecnn.networks.config import NetworkConfig
from pdecnn.networks.network import Network
from pdecnn.networks.preprocessing import Preprocessing
from pdecnn.networks.stages import Closing

NUM_LEVELS = 4
SLOPE = 0.01


class Convolutions(nn.Module):
    """Twice a 3x3x3 convolution, instance norm and leaky ReLU, perhaps after pooling by 2."""

    def __init__(self, channels: int, new_channels: int, *, pool: bool = False) -> None:
        super().__init__()
        self.pool = pool
        self.conv1 = nn.Conv3d(channels, new_channels, 3, padding=1, bias=False)
        self.norm1 = nn.InstanceNorm3d(new_channels, affine=True)
        self.conv2 = nn.Conv3d(new_channels, new_channels, 3, padding=1, bias=False)
        self.norm2 = nn.InstanceNorm3d(new_channels, affine=True)

    def forward(self, features: Tensor) -> Tensor:
        """The features of a level."""
        if self.pool:
            features = functional.max_pool3d(features, 2)
        features = functional.leaky_relu(self.norm1(self.conv1(features)), SLOPE)
        return functional.leaky_relu(self.norm2(self.conv2(features)), SLOPE)


class Refinement(nn.Module):
    """Up by a transposed convolution, beside the features that were there on the way down."""

    def __init__(self, channels: int, new_channels: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose3d(channels, new_channels, 2, stride=2)
        self.convolutions = Convolutions(2 * new_channels, new_channels)

    def forward(self, features: Tensor, before: Tensor) -> Tensor:
        """The features of the finer level."""
        joined = torch.cat([before, self.up(features)], 1)
        refined: Tensor = self.convolutions(joined)
        return refined


class TrainableUNet(Network):
    """The U-Net as `Trainer` takes a network, so that it is trained by our recipes.

    It has no blocks in time: its levels stand where connectors do, which a captured step compiles.
    Its config says widths, input and output alone; the work counted from it is not the network's.
    """

    def __init__(
        self,
        width: int,
        *,
        in_channels: int,
        num_classes: int,
        preprocessing: Preprocessing | None = None,
    ) -> None:
        nn.Module.__init__(self)
        widths = [width * 2**level for level in range(NUM_LEVELS)]
        down = [width * 8**level for level in range(NUM_LEVELS)]
        self.config = NetworkConfig(
            channels=(*down, *down[-2::-1], width),
            hidden_channels=1,
            num_steps=1,
            in_channels=in_channels,
            num_classes=num_classes,
            dimension=3,
            opening="linear",
            connector="invertible",
            pooling="space_to_depth",
            classifier="field",
        )
        self.preprocessing = Preprocessing() if preprocessing is None else preprocessing
        self.opening = Convolutions(in_channels, width)
        self.blocks = nn.ModuleList()
        pairs = list(pairwise(widths))
        coarser = [Convolutions(fine, coarse, pool=True) for fine, coarse in pairs]
        finer = [Refinement(coarse, fine) for fine, coarse in reversed(pairs)]
        self.connectors = nn.ModuleList([*coarser, *finer])
        self.classifier = Closing(width, num_classes, dimension=3)
        for part in self.modules():
            if isinstance(part, nn.Conv3d):
                nn.init.kaiming_normal_(part.weight, a=SLOPE, nonlinearity="leaky_relu")

    def forward_features(self, images: Tensor) -> Tensor:
        """The features of every voxel."""
        levels = [self.open(images)]
        for part in self.connectors[: NUM_LEVELS - 1]:
            levels.append(part(levels[-1]))
        features = levels.pop()
        for part in self.connectors[NUM_LEVELS - 1 :]:
            features = part(features, levels.pop())
        return features
