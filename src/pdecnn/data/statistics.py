"""The mean and the standard deviation of each channel of a set of images."""

import torch
from torch import Tensor

from pdecnn.data.batches import evaluation_batches
from pdecnn.data.image_set import ImageSet
from pdecnn.data.stored_images import image_batches

_AT_A_TIME = 1024


def channel_statistics(image_set: ImageSet) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and population standard deviation per channel; bytes count as pixels in [0, 1].

    Images are taken in portions of one size, so that the result has the same bits whether they
    are in memory or on the disk.
    """
    portions = evaluation_batches(len(image_set), _AT_A_TIME)
    mean = _mean(image_set, portions, torch.zeros(image_set.channels, dtype=torch.float64), 1)
    variance = _mean(image_set, portions, mean, 2)
    std = variance.sqrt()
    if image_set.images.dtype == torch.uint8:
        std = std.clamp(min=1 / 255)
    else:  # numbers in units of their own: only what is constant is not scaled
        std = torch.where(std > 0, std, 1.0)
    return tuple(mean.tolist()), tuple(std.tolist())


def _mean(image_set: ImageSet, portions: list[slice], centre: Tensor, power: int) -> Tensor:
    total = torch.zeros(image_set.channels, dtype=torch.float64)
    for images in image_batches(image_set.images, portions):
        values = images.cpu().transpose(0, 1).flatten(1).double()
        if images.dtype == torch.uint8:
            values = values / 255
        total += (values - centre[:, None]).pow(power).sum(1)
    count = len(image_set)
    for size in image_set.size:
        count *= size
    return total / count
