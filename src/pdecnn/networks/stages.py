"""What stands around the blocks: opening, connectors, classifier (Sec. 5), or a closing."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from pdecnn.pde.convolution import Boundary, Convolution, without_autocast
from pdecnn.pde.normalization import make_batch_norm
from pdecnn.pde.resolution import Resolution
from pdecnn.settings import check_count

_AVERAGE_POOL = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


class Carrier(ABC):
    """Another way to carry out a stage, with the same results."""

    @abstractmethod
    def carry(self, stage: "Stage", features: Tensor) -> Tensor:
        """What the stage makes of the features."""


class Stage(nn.Module):
    """A part of a network around its blocks."""

    carrier: Carrier | None = None
    """What carries it out in place of `compute`, as a block's propagator does its steps."""

    def forward(self, features: Tensor) -> Tensor:
        """What it makes of the features, or of images where it is an opening."""
        carrier = self.carrier
        return self.compute(features) if carrier is None else carrier.carry(self, features)

    def compute(self, features: Tensor) -> Tensor:
        """The same by the operators of PyTorch."""
        raise NotImplementedError


class Opening(Stage):
    """3-point convolution, batch norm, ReLU: from image channels to the first width."""

    def __init__(
        self, in_channels: int, channels: int, *, dimension: int = 2, boundary: Boundary = "zero"
    ) -> None:
        super().__init__()
        self.convolution = Convolution(
            in_channels, channels, dimension=dimension, boundary=boundary
        )
        self.normalization = make_batch_norm(channels, dimension=dimension)

    def compute(self, images: Tensor) -> Tensor:
        """The initial features of the first block."""
        return torch.relu(self.normalization(self.convolution(images)))


class LinearOpening(Stage):
    """A 3-point convolution and nothing else."""

    deterministic = True

    def __init__(
        self, in_channels: int, channels: int, *, dimension: int = 2, boundary: Boundary = "zero"
    ) -> None:
        super().__init__()
        self.convolution = Convolution(
            in_channels, channels, dimension=dimension, boundary=boundary
        )

    def compute(self, images: Tensor) -> Tensor:
        """The initial features of the first block."""
        features: Tensor = self.convolution(images)
        return features


class InvertibleConnector(nn.Module):
    """A change of resolution that loses nothing: the whole state goes on to the next block.

    On features alone it is what the parts of a state go through.
    """

    deterministic = True

    def __init__(self, change: Resolution) -> None:
        super().__init__()
        self.change = change

    def forward(self, features: Tensor) -> Tensor:
        """The features of the next block."""
        return self.change.apply(features)

    def extra_repr(self) -> str:
        """The change."""
        return f"levels={self.change.levels}, kind={self.change.kind}"


class Connector(Stage):
    """1-point convolution, batch norm, ReLU and, but for the last one, average pooling by 2.

    Pooling drops the last row of an odd size.
    """

    def __init__(
        self, channels: int, new_channels: int, *, dimension: int = 2, pool: bool = True
    ) -> None:
        super().__init__()
        self.convolution = Convolution(channels, new_channels, stencil_size=1, dimension=dimension)
        self.normalization = make_batch_norm(new_channels, dimension=dimension)
        self.pool = pool

    def compute(self, features: Tensor) -> Tensor:
        """The features of the next block."""
        features = torch.relu(self.normalization(self.convolution(features)))
        return pool_by_2(features) if self.pool else features


def pool_by_2(features: Tensor) -> Tensor:
    """Means over 2 pixels an axis."""
    if min(features.shape[2:]) < 2:
        raise ValueError(
            f"pooling needs at least 2 pixels in each dimension, found shape "
            f"{tuple(features.shape)}; use larger images or pool=False"
        )
    return _AVERAGE_POOL[features.dim() - 2](features, 2)


class Classifier(Stage):
    """W y + mu on the mean y of the features over all pixels (eq. 4); y itself of 0 classes."""

    deterministic = True

    def __init__(self, channels: int, num_classes: int, *, num_pixels: int = 1) -> None:
        super().__init__()
        self.channels = check_count("channels", channels)
        self.num_classes = check_count("num_classes", num_classes, smallest=0)
        self.weight = nn.Parameter(torch.empty(self.num_classes, num_pixels * self.channels))
        self.bias = nn.Parameter(torch.zeros(self.num_classes))
        with torch.no_grad():
            self.weight.normal_(0, 0.1).clamp_(-0.2, 0.2)
        if self.num_classes == 0:  # they never have a gradient, for which DDP would wait
            self.requires_grad_(False)

    def compute(self, features: Tensor) -> Tensor:
        """Class scores of features (batch, channels, *spatial), in the dtype of the weights.

        Outside autocast: one small matrix product gains nothing from half precision, and in
        bfloat16 it ends the process with an illegal instruction on virtual machines that
        announce AMX without having it.
        """
        if features.dim() < 3 or features.shape[1] != self.channels:
            raise ValueError(
                f"features must have shape (batch, {self.channels}, ...), found "
                f"{tuple(features.shape)}"
            )
        pooled = self.pool(features.to(self.weight.dtype))
        if self.num_classes == 0:
            return pooled
        with without_autocast(features.device):
            return functional.linear(pooled, self.rows, self.bias)

    @property
    def rows(self) -> Tensor:
        """W."""
        return self.weight

    def pool(self, features: Tensor) -> Tensor:
        """y: the mean over all pixels, which makes the network translation-invariant."""
        return features.flatten(2).mean(2)


class Closing(Stage):
    """A 3-point convolution and a bias: from features to `num_classes` numbers a pixel."""

    deterministic = True

    def __init__(
        self, channels: int, num_classes: int, *, dimension: int = 2, boundary: Boundary = "zero"
    ) -> None:
        super().__init__()
        self.num_classes = check_count("num_classes", num_classes)
        self.convolution = Convolution(
            channels, num_classes, dimension=dimension, boundary=boundary
        )
        self.bias = nn.Parameter(torch.zeros(num_classes))
        stencil = self.convolution.stencil
        with torch.no_grad():  # small numbers, whatever the features: nothing is known yet
            stencil.normal_(0, 0.1 * stencil[0].numel() ** -0.5)

    def compute(self, features: Tensor) -> Tensor:
        """The field of features (batch, channels, *spatial), in the dtype of the weights."""
        field: Tensor = self.convolution(features)
        shape = (-1, *(1,) * (field.dim() - 2))
        return field.to(self.bias.dtype) + self.bias.view(shape)
