"""What stands around stable blocks: parts that never expand a distance, each with its constant.

Opening, connectors and classifier of a network whose Lipschitz constant is known. Where a part
shrinks distances by a known factor it is multiplied by the inverse, so that nothing is lost.
"""

from collections.abc import Sequence
from math import prod, sqrt

import torch
from torch import Tensor
from torch.nn import functional

from pdecnn.networks.config import Pooling
from pdecnn.networks.stages import Classifier, Stage, pool_by_2
from pdecnn.pde.resolution import depth_to_space, space_to_depth
from pdecnn.pde.stable import BoundedConvolution


def haar(features: Tensor) -> Tensor:
    """Sums and differences of the pixels of each cell of 2 an axis, as channels: orthonormal."""
    dimension = features.dim() - 2
    cells = space_to_depth(features, 2)
    shape = (len(cells), -1, *(2,) * dimension, *cells.shape[2:])
    values = cells.reshape(shape)
    for axis in range(2, 2 + dimension):
        first, second = values.unbind(axis)
        values = torch.stack([first + second, first - second], axis)
    return values.reshape(cells.shape) * 2 ** (-dimension / 2)


def pool(features: Tensor, pooling: Pooling) -> Tensor:
    """Half as many pixels an axis, without expanding a distance.

    The mean of 2^d numbers has norm 2^(-d/2), by whose inverse it is multiplied.
    """
    if pooling == "average":
        dimension = features.dim() - 2
        return pool_by_2(features) * 2 ** (dimension / 2)
    return haar(features) if pooling == "haar" else space_to_depth(features, 2)


def pooled_channels(channels: int, pooling: Pooling, dimension: int) -> int:
    """The channels of pooled features."""
    return channels if pooling == "average" else channels * 2**dimension


class PaddedOpening(Stage):
    """Cells of `patch_size` pixels an axis as channels, then zeros for the channels that lack."""

    deterministic = True

    def __init__(
        self, in_channels: int, channels: int, *, dimension: int = 2, patch_size: int = 1
    ) -> None:
        super().__init__()
        self.in_channels, self.channels, self.dimension = in_channels, channels, dimension
        self.patch_size = patch_size
        self.missing = channels - in_channels * patch_size**dimension

    def compute(self, images: Tensor) -> Tensor:
        """The initial features of the first block."""
        features = space_to_depth(images, self.patch_size)
        return functional.pad(features, (0, 0) * self.dimension + (0, self.missing))


class PaddedClosing(Stage):
    """The transpose of `PaddedOpening`: the channels it padded are dropped, cells are pixels again.

    The opening is an isometry, so that this expands no distance and undoes it.
    """

    deterministic = True

    def __init__(self, in_channels: int, *, dimension: int = 2, patch_size: int = 1) -> None:
        super().__init__()
        self.num_classes, self.dimension, self.patch_size = in_channels, dimension, patch_size

    def compute(self, features: Tensor) -> Tensor:
        """The field of the features."""
        kept = features.narrow(1, 0, self.num_classes * self.patch_size**self.dimension)
        return depth_to_space(kept, self.patch_size)


class BoundedOpening(Stage):
    """Cells of `patch_size` pixels as channels, then a convolution divided by its norm."""

    deterministic = True

    def __init__(
        self,
        in_channels: int,
        channels: int,
        *,
        size: Sequence[int],
        dimension: int = 2,
        patch_size: int = 1,
    ) -> None:
        super().__init__()
        self.in_channels, self.dimension, self.patch_size = in_channels, dimension, patch_size
        self.convolution = BoundedConvolution(
            in_channels * patch_size**dimension, channels, size=size, dimension=dimension
        )

    def compute(self, images: Tensor) -> Tensor:
        """The initial features of the first block."""
        features: Tensor = self.convolution(space_to_depth(images, self.patch_size))
        return features


class BoundedConnector(Stage):
    """Pooling, then a matrix of norm 1 at each pixel; the last one does nothing.

    After a last block a matrix would be one more linear map before the classifier's.
    """

    deterministic = True

    def __init__(
        self, channels: int, new_channels: int, *, dimension: int, pooling: Pooling, is_last: bool
    ) -> None:
        super().__init__()
        self.pooling, self.is_last = pooling, is_last
        if not is_last:
            self.convolution = BoundedConvolution(
                pooled_channels(channels, pooling, dimension),
                new_channels,
                size=(1,) * dimension,
                stencil_size=1,
                dimension=dimension,
            )

    def compute(self, features: Tensor) -> Tensor:
        """The features of the next block."""
        if self.is_last:
            return features
        connected: Tensor = self.convolution(pool(features, self.pooling))
        return connected


class UnitRowsClassifier(Classifier):
    """Scores w_k . y + mu_k with |w_k| = 1: no score changes by more than the features do.

    y is the mean of the features over their P pixels times sqrt(P), or with `size` all of them,
    for images that have this size at the end.

    w_k = `weight`_k/|`weight`_k|.
    """

    deterministic = True

    def __init__(
        self, channels: int, num_classes: int, *, size: Sequence[int] | None = None
    ) -> None:
        super().__init__(channels, num_classes, num_pixels=1 if size is None else prod(size))
        self.size = None if size is None else tuple(size)
        with torch.no_grad():
            self.weight.normal_()

    @property
    def rows(self) -> Tensor:
        """The w_k."""
        return functional.normalize(self.weight, dim=1, eps=1e-30)

    def pool(self, features: Tensor) -> Tensor:
        """y."""
        if self.size is None:
            pixels = features.flatten(2)
            return pixels.mean(2) * sqrt(pixels.shape[2])
        if tuple(features.shape[2:]) != self.size:
            raise ValueError(
                f"the classifier takes features of size {self.size}, found "
                f"{tuple(features.shape[2:])}; resize the images, or set "
                f"network.classifier=unit_rows, which takes any"
            )
        return features.flatten(1)
