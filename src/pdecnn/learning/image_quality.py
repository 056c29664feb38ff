"""How near an image of [0, 1] is to another: PSNR and SSIM."""

from math import log10

import torch
from torch import Tensor
from torch.nn import functional

_CONVOLVE = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_WINDOW, _DEVIATION = 11, 1.5
_FLOORS = 0.01**2, 0.03**2
SMALLEST_ERROR = 1e-10
"""No PSNR is above 100 dB, which is far below what eight bits tell apart."""


def psnr(found: Tensor, wanted: Tensor) -> float:
    """-10 log10 of the mean squared error, in dB, at most 100."""
    error = float((found.double() - wanted.double()).square().mean())
    return -10 * log10(max(error, SMALLEST_ERROR))


def ssim(found: Tensor, wanted: Tensor) -> float | None:
    """The mean structural similarity (Wang et al. 2004) of images (channels, *spatial).

    Gaussian windows of 11 pixels an axis and deviation 1.5, wherever they fit; None: nowhere.
    """
    if min(wanted.shape[1:]) < _WINDOW:
        return None
    first, second = found.double(), wanted.double()
    means = [_smooth(first), _smooth(second)]
    squares = [_smooth(image * image) for image in (first, second)]
    variances = [square - mean * mean for square, mean in zip(squares, means, strict=True)]
    covariance = _smooth(first * second) - means[0] * means[1]
    product = means[0] * means[1]
    likeness = (2 * product + _FLOORS[0]) * (2 * covariance + _FLOORS[1])
    whole = (means[0] ** 2 + means[1] ** 2 + _FLOORS[0]) * (sum(variances) + _FLOORS[1])
    return float((likeness / whole).mean())


def _smooth(image: Tensor) -> Tensor:
    """Means over the windows, channel by channel."""
    places = torch.arange(_WINDOW, dtype=image.dtype, device=image.device) - _WINDOW // 2
    weights = (-places.square() / (2 * _DEVIATION**2)).exp()
    weights = weights / weights.sum()
    dimension = image.dim() - 1
    smoothed = image.unsqueeze(1)  # (channels, 1, *spatial)
    for axis in range(dimension):
        shape = [1, 1, *(_WINDOW if k == axis else 1 for k in range(dimension))]
        smoothed = _CONVOLVE[dimension](smoothed, weights.view(shape))
    return smoothed.squeeze(1)
