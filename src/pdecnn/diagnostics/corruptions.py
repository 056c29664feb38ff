"""Images made worse without malice: Gaussian noise, blur and loss of contrast, in [0, 1]."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pdecnn.diagnostics.attacks import PIXELS, Bounds, Classifier, clip, is_right
from pdecnn.diagnostics.robustness import (
    batches_for,
    bounds_of,
    checked_images,
    scores_of_pixels,
)
from pdecnn.errors import unknown_name
from pdecnn.settings import check_count, check_number

_BLUR_RADIUS = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class CorruptionResult:
    """The accuracy on images made worse."""

    corruption: str
    """'noise', 'blur' or 'contrast'."""
    amount: float
    """The deviation of the noise in pixel values, that of the blur in pixels, or the factor of
    the contrast."""
    accuracy: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def gaussian_noise(
    pixels: Tensor, deviation: float, *, seed: int = 0, bounds: Bounds = PIXELS
) -> Tensor:
    """clip(x + deviation n), n standard normal, the same for the same seed and shape."""
    check_number("deviation", deviation, smallest=0.0)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(pixels.shape, generator=generator, dtype=torch.float64)
    return clip(pixels + deviation * noise.to(pixels), bounds)


def gaussian_blur(pixels: Tensor, deviation: float, *, bounds: Bounds = PIXELS) -> Tensor:
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
    return clip(pixels, bounds)


def reduce_contrast(pixels: Tensor, factor: float, *, bounds: Bounds = PIXELS) -> Tensor:
    """clip(m + factor (x - m)), m the mean of each image; 1 leaves it, 0 makes it flat."""
    check_number("factor", factor, smallest=0.0)
    mean = pixels.mean(tuple(range(1, pixels.dim())), keepdim=True)
    return clip(mean + factor * (pixels - mean), bounds)


CORRUPTIONS: dict[str, Callable[..., Tensor]] = {
    "noise": gaussian_noise,
    "blur": gaussian_blur,
    "contrast": reduce_contrast,
}
AMOUNTS = {
    "noise": (0.05, 0.1, 0.2, 0.4),
    "blur": (0.5, 1.0, 2.0),
    "contrast": (0.5, 0.25, 0.1),
}
"""From weak to strong."""


def measure_corruptions(
    classifier: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    amounts: Mapping[str, Sequence[float]] = AMOUNTS,
    preprocess: Classifier | None = None,
    batch_size: int = 250,
) -> list[CorruptionResult]:
    """`accuracy_under` each of `CORRUPTIONS`, by each of its amounts."""
    for name in amounts:
        if name not in CORRUPTIONS:
            raise unknown_name("corruption", name, CORRUPTIONS)
    return [
        CorruptionResult(
            corruption=name,
            amount=amount,
            accuracy=accuracy_under(
                partial(_corrupt, name, amount),
                classifier,
                images,
                labels,
                preprocess=preprocess,
                batch_size=batch_size,
            ),
        )
        for name in amounts
        for amount in amounts[name]
    ]


def _corrupt(name: str, amount: float, pixels: Tensor) -> Tensor:
    return CORRUPTIONS[name](pixels, amount, bounds=bounds_of(pixels))


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
    batches = batches_for(classifier, corruption(pixels), labels, batch_size)
    with scores_of_pixels(classifier, preprocess) as scores:
        right = [is_right(scores, *batch) for batch in batches]
    return float(torch.cat(right).cpu().double().mean())
