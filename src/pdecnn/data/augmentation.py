"""Random changes of images, on their device: flips and shifts (Section 5), holes, colours; of
sounds: speed, colour, noise and loudness.

A generator with a state gives a sample numbers that depend on who drew before it. Here every
number is the hash of (seed, epoch, sample index, ...): no state, hence the same augmentation
for any batch size, any number of workers and after any restart.
"""

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from pdecnn.data.trivial_augment import CHANGES, NUM_STRENGTHS, apply_changes
from pdecnn.errors import ConfigError, DataError
from pdecnn.settings import Settings, documented, setting

MAX_BOUND = 2**31
ALTERNATE = "alternate"
PaddingMode = Literal["zero", "reflect"]
_MANTISSA = 24
_NUM_TAPS = 8


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


def standard_normal(counters: Tensor) -> Tensor:
    """A standard normal number for every counter: of its hash, by Box and Muller (1958)."""
    bits = random_bits(counters=counters)
    radius = (-2 * (1 - uniform_numbers(bits)).log()).sqrt()
    angle = 2 * math.pi * uniform_numbers(bits << _MANTISSA)
    return radius * angle.cos()


def uniform_numbers(bits: Tensor) -> Tensor:
    """The highest 24 bits as a float32 in [0, 1)."""
    high = (bits >> (64 - _MANTISSA)) & (2**_MANTISSA - 1)
    uniform: Tensor = high.to(torch.float32) / 2**_MANTISSA
    return uniform


_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@documented
@dataclass(frozen=True, kw_only=True)
class Augmentation(Settings):
    """What is done to a training image: a flip, then padding and a random crop, then a cutout.

    `change_colours` comes before images are standardised, `augment` and `cut_out` after it.
    """

    section = "data"
    flip: bool | Literal["alternate"] = setting(
        True,
        "Mirror the last axis with probability 1/2; 'alternate': every image in every other epoch, "
        "half of them in the first.",
    )
    padding: float = setting(
        1 / 16,
        "The share of the size that is padded on each side before cropping back at random.",
        "[0, 0.5]",
    )
    padding_mode: PaddingMode = setting(
        "zero",
        "What images are padded with: zeros, or their mirror image ('reflect').",
    )
    cutout: int = setting(
        0,
        "The side of a square around a random pixel that is cut out of images, as the network "
        "sees them; 0: none.",
        "[0, inf)",
    )
    trivial_augment: bool = setting(
        False,
        "Whether every image is changed in one of 14 ways at a random strength: colour, contrast, "
        "turned, sheared and so on (TrivialAugment); for colour images.",
    )
    speed: tuple[float, ...] | None = setting(
        None,
        "The range of the factors by which sounds are played faster, their pitch with them, such "
        "as [0.85, 1.15]; None: as they are.",
        "[0.5, 2]",
    )
    gain: float = setting(
        0.0, "Sounds become louder or softer by up to so many decibels.", "[0, 40]"
    )
    colour: float = setting(
        0.0,
        "Sounds are filtered as by other microphones and rooms: each of the 8 samples before one "
        "is added to it with a random weight of this standard deviation.",
        "[0, 1]",
    )
    hiss: float = setting(
        0.0,
        "Sounds get white noise of a standard deviation of up to this share of their own.",
        "[0, 10]",
    )

    def check_together(self) -> None:
        """A range where there is one."""
        if self.speed is not None and (len(self.speed) != 2 or self.speed[0] > self.speed[1]):
            raise ConfigError(
                f"data.speed must be a range of two factors, such as [0.85, 1.15], "
                f"found {list(self.speed)}"
            )

    def check_images(self, channels: int, size: tuple[int, ...], dtype: torch.dtype) -> None:
        """Refuse images, of that size when they are augmented, to which it cannot be done."""
        if self.cutout >= min(size):
            raise ConfigError(
                f"data.cutout={self.cutout} would cut out whole images of size {size}; lower it"
            )
        if self.trivial_augment and (channels, len(size), dtype) != (3, 2, torch.uint8):
            raise ConfigError(
                f"data.trivial_augment changes colours: it needs images of 3 channels of bytes, "
                f"found {len(size)}D samples of {channels} of {str(dtype).removeprefix('torch.')}"
            )

    def change_colours(
        self, images: Tensor, indices: Tensor, *, seed: int, epoch: int | Tensor
    ) -> Tensor:
        """Pixels changed by `trivial_augment`, before they are standardised."""

        def draw(bound: int, what: str) -> Tensor:
            key = stable_seed(seed, "trivial_augment", what)
            return uniform_integers(bound, key, epoch, counters=indices)

        change, strength = draw(len(CHANGES), "change"), draw(NUM_STRENGTHS, "strength")
        sign = 1 - 2 * draw(2, "sign")
        return apply_changes(images, change, strength / (NUM_STRENGTHS - 1), sign)

    @property
    def changes_sounds(self) -> bool:
        """Whether `change_sounds` does anything."""
        return self.speed is not None or any((self.gain, self.colour, self.hiss))

    def change_sounds(
        self, waves: Tensor, indices: Tensor, *, seed: int, epoch: int | Tensor
    ) -> Tensor:
        """Standardised sounds played at another speed, coloured, with noise, louder or softer.

        As in `augment` each is a function of (seed, epoch, its index), and nothing waits.
        """

        def draw(what: str) -> Tensor:
            bits = random_bits(stable_seed(seed, "sound", what), epoch, counters=indices)
            return uniform_numbers(bits).to(waves.dtype)[:, None, None]

        def normal(what: str, number: int) -> Tensor:
            first = random_bits(stable_seed(seed, "sound", what), epoch, counters=indices)
            numbers = torch.arange(number, device=waves.device)
            return standard_normal(first[:, None] + numbers).to(waves.dtype)

        if self.speed is not None:
            low, high = map(math.log, self.speed)
            waves = change_speed(waves, (low + (high - low) * draw("speed")).exp())
        original = waves
        if self.colour:
            taps = self.colour * normal("colour", _NUM_TAPS)
            for k in range(min(_NUM_TAPS, waves.shape[2] - 1)):
                earlier = functional.pad(original[..., : -(k + 1)], (k + 1, 0))
                waves = waves + taps[:, k, None, None] * earlier
        if self.hiss:
            noise = normal("hiss", math.prod(waves.shape[1:])).view(waves.shape)
            waves = waves + self.hiss * draw("hiss level") * noise
        if self.gain:
            waves = waves * 10 ** (self.gain / 20 * (2 * draw("gain") - 1))
        return waves

    def padding_pixels(self, size: int) -> int:
        """The pixels on each side of an axis of that size, rounded half up."""
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
        sources: list[Tensor] = []
        inside: list[Tensor] = []
        for axis, size in enumerate(images.shape[2:]):
            padding = self.padding_pixels(size)
            key = stable_seed(seed, "crop", axis)
            offsets = uniform_integers(2 * padding + 1, key, epoch, counters=indices)
            positions = torch.arange(size, device=images.device) + (offsets - padding)[:, None]
            if self.padding_mode == "reflect":
                positions = (size - 1) - ((size - 1) - positions.abs()).abs()
            else:
                inside.append((positions >= 0) & (positions < size))
            sources.append(positions.clamp(0, size - 1))
        if self.flip:
            # The flip comes first, so the cropped position is read in the mirrored image.
            key = stable_seed(seed, "flip")
            if self.flip == ALTERNATE:
                coins = (uniform_integers(2, key, counters=indices) + epoch) % 2
            else:
                coins = uniform_integers(2, key, epoch, counters=indices)
            mirrored = images.shape[-1] - 1 - sources[-1]
            sources[-1] = torch.where(coins[:, None] == 1, mirrored, sources[-1])
        return _read_pixels(images, sources, inside)

    def cut_out(self, images: Tensor, indices: Tensor, *, seed: int, epoch: int | Tensor) -> Tensor:
        """Augmented images with a hole of side `cutout` each."""
        hole = torch.ones_like(indices, dtype=torch.bool)
        for axis, size in enumerate(images.shape[2:]):
            key = stable_seed(seed, "cutout", axis)
            centres = uniform_integers(size, key, epoch, counters=indices)
            positions = torch.arange(size, device=images.device)
            distances = positions - (centres - self.cutout // 2)[:, None]
            within = (distances >= 0) & (distances < self.cutout)
            hole = hole[..., None] & within.view(-1, *(1,) * axis, size)
        return images.masked_fill(hole[:, None], 0)


def change_speed(waves: Tensor, factors: Tensor) -> Tensor:
    """Waves (batch, channels, length) played so many times as fast about their middle.

    By cubic interpolation (Catmull and Rom 1974); zero beyond their ends.
    """
    length = waves.shape[2]
    middle = (length - 1) / 2
    along = torch.arange(length, device=waves.device, dtype=waves.dtype) - middle
    positions = (middle + factors.view(-1, 1) * along)[:, None]
    begin = positions.floor()
    t = positions - begin
    weights = (
        ((2 - t) * t - 1) * t / 2,
        ((3 * t - 5) * t * t + 2) / 2,
        ((4 - 3 * t) * t + 1) * t / 2,
        (t - 1) * t * t / 2,
    )
    changed = torch.zeros_like(waves)
    for offset, weight in enumerate(weights, start=-1):
        source = begin.long() + offset
        inside = (source >= 0) & (source < length)
        values = waves.gather(2, source.clamp(0, length - 1).expand_as(waves))
        changed = changed + torch.where(inside, weight, 0) * values
    return changed


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
    """The pixel at sources[axis][sample, position] of every axis, zero where not inside.

    An empty `inside` means that all are.
    """
    flat_source = sources[0]
    for size, source in zip(images.shape[3:], sources[1:], strict=True):
        flat_source = (flat_source[:, :, None] * size + source[:, None, :]).flatten(1)
    pixels = images.flatten(2)
    pixels = pixels.gather(2, flat_source[:, None].expand_as(pixels))
    if inside:
        is_inside = inside[0]
        for is_inside_axis in inside[1:]:
            is_inside = (is_inside[:, :, None] & is_inside_axis[:, None, :]).flatten(1)
        pixels = pixels.masked_fill(~is_inside[:, None], 0)
    result = pixels.view(images.shape)
    channels_last = _CHANNELS_LAST.get(images.dim())
    if (
        channels_last is None
        or images.is_contiguous()
        or not images.is_contiguous(memory_format=channels_last)
    ):
        return result
    return result.contiguous(memory_format=channels_last)
