"""Random flips and shifts of standardised images, on their device (Section 5)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pdecnn.data.random_numbers import stable_seed, uniform_integers
from pdecnn.errors import ConfigError, DataError

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@dataclass(frozen=True, kw_only=True, slots=True)
class Augmentation:
    """What is done to a training image: a flip, then zero padding and a random crop."""

    flip: bool = True
    """Mirror the last axis with probability 1/2."""
    padding: float = 1 / 16
    """Zeros added on each side before the crop, as a fraction of the size of that axis."""

    def __post_init__(self) -> None:
        if not isinstance(self.flip, bool):
            raise ConfigError(f"flip must be true or false, found {self.flip!r}")
        is_number = isinstance(self.padding, int | float) and not isinstance(self.padding, bool)
        if not is_number or not 0 <= self.padding <= 0.5:
            raise ConfigError(
                f"padding is a fraction of the size in 0 to 0.5, found {self.padding!r}"
            )

    def padding_pixels(self, size: int) -> int:
        """The zeros on each side of an axis of that size, rounded half up."""
        return math.floor(size * self.padding + 0.5)

    def augment(self, images: Tensor, indices: Tensor, *, seed: int, epoch: int | Tensor) -> Tensor:
        """Augmented images, each a function of (seed, epoch, its index) and of nothing else.

        `images` (batch, channels, *spatial) are standardised already, so that the padding is
        the mean of an image; `indices` (batch,) are their places in the training set. An epoch
        in a 0-dim int64 tensor gives the same as an int. Nothing waits for the device.
        """
        _check_batch(images, indices)
        if not self.flip and self.padding == 0:
            return images
        sources, inside = [], []
        for axis, size in enumerate(images.shape[2:]):
            padding = self.padding_pixels(size)
            key = stable_seed(seed, "crop", axis)
            offsets = uniform_integers(2 * padding + 1, key, epoch, counters=indices)
            positions = torch.arange(size, device=images.device) + (offsets - padding)[:, None]
            inside.append((positions >= 0) & (positions < size))
            sources.append(positions.clamp(0, size - 1))
        if self.flip:
            # The flip comes first, so the cropped position is read in the mirrored image.
            coins = uniform_integers(2, stable_seed(seed, "flip"), epoch, counters=indices)
            mirrored = images.shape[-1] - 1 - sources[-1]
            sources[-1] = torch.where(coins[:, None] == 1, mirrored, sources[-1])
        return _read_pixels(images, sources, inside)


def _check_batch(images: Tensor, indices: Tensor) -> None:
    if images.dim() not in (3, 4, 5):
        raise DataError(
            f"images must have shape (batch, channels, *spatial) with 1 to 3 spatial axes, found "
            f"{tuple(images.shape)}"
        )
    if indices.dtype != torch.int64 or indices.shape != images.shape[:1]:
        raise DataError(
            f"{images.shape[0]} images need int64 indices of shape ({images.shape[0]},), found "
            f"{indices.dtype} of shape {tuple(indices.shape)}"
        )


def _read_pixels(images: Tensor, sources: list[Tensor], inside: list[Tensor]) -> Tensor:
    """The pixel at sources[axis][sample, position] of every axis, zero where not inside."""
    flat_source, is_inside = sources[0], inside[0]
    for size, source, is_inside_axis in zip(images.shape[3:], sources[1:], inside[1:], strict=True):
        flat_source = (flat_source[:, :, None] * size + source[:, None, :]).flatten(1)
        is_inside = (is_inside[:, :, None] & is_inside_axis[:, None, :]).flatten(1)
    pixels = images.flatten(2)
    pixels = pixels.gather(2, flat_source[:, None].expand_as(pixels))
    result = pixels.masked_fill(~is_inside[:, None], 0).view(images.shape)
    channels_last = _CHANNELS_LAST.get(images.dim())
    if (
        channels_last is None
        or images.is_contiguous()
        or not images.is_contiguous(memory_format=channels_last)
    ):
        return result
    return result.contiguous(memory_format=channels_last)
