"""Random flips and shifts of standardised images, on their device (Section 5).

A generator with a state gives a sample numbers that depend on who drew before it. Here every
number is the hash of (seed, epoch, sample index, ...): no state, hence the same augmentation
for any batch size, any number of workers and after any restart.
"""

import hashlib
import json
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pdecnn.errors import DataError
from pdecnn.settings import Settings, documented, setting

MAX_BOUND = 2**31


def _signed(number: int) -> int:
    """The int64 with the same lowest 64 bits."""
    return (number + 2**63) % 2**64 - 2**63


# The constants of SplitMix64 (Steele, Lea & Flood 2014).
_INCREMENT = _signed(0x9E3779B97F4A7C15)
_FACTORS = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def stable_seed(*parts: int | str) -> int:
    """A seed of 63 bits from these parts: the same in every process and on every machine.

    Any change of a part, or of the borders between parts, gives an unrelated seed.
    """
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def cpu_generator(*parts: int | str) -> torch.Generator:
    """A generator on the CPU that starts from `stable_seed(*parts)`."""
    return torch.Generator().manual_seed(stable_seed(*parts))


def random_bits(*keys: int | Tensor, counters: Tensor) -> Tensor:
    """64 random bits (int64) for every counter: SplitMix64 of the keys, then of the counter.

    A key is an int or a 0-dim int64 tensor; both give the same bits. The result has the shape
    and device of the counters. No host synchronisation and a fixed number of operations.
    """
    state = torch.zeros((), dtype=torch.int64, device=counters.device)
    for key in (*keys, counters):
        advance = (key + 1) * _INCREMENT
        # With key k this is output number k of the SplitMix64 sequence that starts at `state`.
        bits = state + (advance if isinstance(advance, Tensor) else _signed(advance))
        # torch repeats the sign bit when it shifts int64; the masks take those copies away.
        bits = (bits ^ ((bits >> 30) & (2**34 - 1))) * _FACTORS[0]
        bits = (bits ^ ((bits >> 27) & (2**37 - 1))) * _FACTORS[1]
        state = bits ^ ((bits >> 31) & (2**33 - 1))
    return state


def uniform_integers(bound: int, *keys: int | Tensor, counters: Tensor) -> Tensor:
    """An integer in 0 .. bound - 1 for every counter, each with probability 1/bound.

    No probability is off by more than 2^-32.
    """
    assert 1 <= bound <= MAX_BOUND, f"bound must be in 1 to {MAX_BOUND}, found {bound}"
    # Multiply and shift: no rejection loop, and the product stays below 2^63.
    high = (random_bits(*keys, counters=counters) >> 32) & (2**32 - 1)
    return (high * bound) >> 32


_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@documented
@dataclass(frozen=True, kw_only=True)
class Augmentation(Settings):
    """What is done to a training image: a flip, then zero padding and a random crop."""

    section = "augmentation"
    flip: bool = setting(True, "Mirror the last axis with probability 1/2.")
    padding: float = setting(
        1 / 16,
        "Zeros added on each side before the crop, as a fraction of the size of that axis.",
        "[0, 0.5]",
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
