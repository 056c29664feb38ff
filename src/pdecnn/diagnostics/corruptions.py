"""Images made worse without malice: Gaussian noise, blur and loss of contrast, in [0, 1]."""

from collections.abc import Callable
from math import ceil

import torch
from torch import Tensor, nn
from torch.nn import functional

from pdecnn.checks import check_count, check_number
from pdecnn.diagnostics.attacks import Classifier
from pdecnn.diagnostics.robustness import (
    checked_images,
    in_batches,
    is_right,
    scores_of_pixels,
)

_BLUR_RADIUS = 4.0


def gaussian_noise(pixels: Tensor, deviation: float, *, seed: int = 0) -> Tensor:
    """clip(x + deviation n), n standard normal, the same for the same seed and shape."""
    check_number("deviation", deviation, smallest=0.0)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(pixels.shape, generator=generator, dtype=torch.float64)
    return (pixels + deviation * noise.to(pixels)).clamp(0, 1)


def gaussian_blur(pixels: Tensor, deviation: float) -> Tensor:
    """x convolved along each axis with a Gaussian of that many pixels, edges repeated."""
    check_number("deviation", deviation, smallest=0.0)
    if deviation == 0:
        return pixels
    radius = ceil(_BLUR_RADIUS * deviation)
    offsets = torch.arange(-radius, radius + 1, dtype=pixels.dtype, device=pixels.device)
    weights = torch.exp(-(offsets**2) / (2 * deviation**2))
    weights = (weights / weights.sum()).view(1, 1, -1)
    for axis in range(2, pixels.dim()):
        last = pixels.movedim(axis, -1)
        rows = last.reshape(-1, 1, last.shape[-1])
        padded = functional.pad(rows, (radius, radius), mode="replicate")
        pixels = functional.conv1d(padded, weights).view(last.shape).movedim(-1, axis)
    return pixels.clamp(0, 1)


def reduce_contrast(pixels: Tensor, factor: float) -> Tensor:
    """clip(m + factor (x - m)), m the mean of each image; 1 leaves it, 0 makes it flat."""
    check_number("factor", factor, smallest=0.0)
    mean = pixels.mean(tuple(range(1, pixels.dim())), keepdim=True)
    return (mean + factor * (pixels - mean)).clamp(0, 1)


def accuracy_under(
    corruption: Callable[[Tensor], Tensor],
    classifier: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    preprocess: Classifier | None = None,
    batch_size: int = 250,
) -> float:
    """The accuracy on images after a corruption of pixels in [0, 1], in evaluation mode.

    All images are corrupted at once, so that noise does not depend on the batch size.
    """
    check_count("batch_size", batch_size)
    pixels, labels = checked_images(images, labels)
    worse = corruption(pixels)
    with scores_of_pixels(classifier, preprocess) as scores:
        right = [is_right(scores, *batch) for batch in in_batches(worse, labels, batch_size)]
    return float(torch.cat(right).double().mean())
