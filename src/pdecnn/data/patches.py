"""Training examples where every pixel has an answer: random crops, with noise or with classes.

As in `augmentation.py` every random number is the hash of (seed, epoch, place): no state, hence
the same examples for any batch size and after any restart.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import pi, prod

import numpy as np
import torch
from torch import Tensor

from pdecnn.data.augmentation import random_bits, stable_seed, standard_normal, uniform_numbers
from pdecnn.data.image_set import ImageSet
from pdecnn.errors import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class AbstractPatches(ABC):
    """How images become examples of `size` pixels an axis: an epoch takes `repeats` of each."""

    size: tuple[int, ...]
    repeats: int

    @abstractmethod
    def check_fit(self, images: ImageSet) -> None:
        """Refuse images of which no patch can be cut."""

    @abstractmethod
    def prepared(self, images: ImageSet, prepare: Callable[[Tensor], Tensor]) -> ImageSet:
        """The images as `examples` takes them; `prepare` is a network's preprocessing."""

    @abstractmethod
    def examples(
        self,
        images: ImageSet,
        places: Tensor,
        prepare: Callable[[Tensor], Tensor],
        *,
        seed: int,
        epoch: int | Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Inputs and targets; place p is one of the image p modulo their number.

        Nothing waits for the device.
        """

    def _begins(
        self, sizes: Tensor, places: Tensor, *, seed: int, epoch: int | Tensor
    ) -> list[Tensor]:
        """Where along each axis the patches begin, in images of these sizes (batch, axes).

        Below 0 where an image is smaller than a patch, so that all of it is in there.
        """
        begins = []
        for axis, size in enumerate(self.size):
            key = stable_seed(seed, "patch", axis)
            bits = (random_bits(key, epoch, counters=places) >> 32) & (2**32 - 1)
            room = sizes[:, axis] - size
            begins.append(room.clamp(max=0) + ((bits * (room.abs() + 1)) >> 32))
        return begins


@dataclass(frozen=True, kw_only=True, slots=True)
class NoisyPatches(AbstractPatches):
    """Examples (noisy, clean), each mirrored along every axis with probability 1/2 if `flip`, and
    in two dimensions turned."""

    flip: bool
    noise: tuple[float, float]
    """The standard deviation of the noise in units of 255, drawn between these for each example."""

    def check_fit(self, images: ImageSet) -> None:
        """Refuse images of which no patch can be cut."""
        assert images.sizes is not None, "pictures have sizes"
        short = (images.sizes < torch.tensor(self.size)).any(1).nonzero().flatten().tolist()
        if short:
            size = " x ".join(map(str, images.sizes[short[0]].tolist()))
            raise DataError(
                f"{images.name_of(short[0])}: has {size} pixels, and data.patch={self.size[0]} "
                f"needs more along each axis; lower data.patch or leave the image out"
            )

    def prepared(self, images: ImageSet, prepare: Callable[[Tensor], Tensor]) -> ImageSet:
        """As they are: bytes take less memory."""
        del prepare
        return images

    def examples(
        self,
        images: ImageSet,
        places: Tensor,
        prepare: Callable[[Tensor], Tensor],
        *,
        seed: int,
        epoch: int | Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Noisy and clean patches; `prepare` makes numbers in [0, 1] of pixels."""
        clean = prepare(self.crop(images, places, seed=seed, epoch=epoch))
        low, high = self.noise
        key = stable_seed(seed, "noise level")
        levels = low + (high - low) * uniform_numbers(random_bits(key, epoch, counters=places))
        first = random_bits(stable_seed(seed, "noise"), epoch, counters=places)
        numbers = torch.arange(prod(clean.shape[1:]), device=places.device)
        noise = standard_normal(first[:, None] + numbers).view(clean.shape).to(clean.dtype)
        levels = levels.to(clean.dtype).view(-1, *(1,) * (clean.dim() - 1))
        return clean + levels / 255 * noise, clean

    def crop(self, images: ImageSet, places: Tensor, *, seed: int, epoch: int | Tensor) -> Tensor:
        """The patches as pixels, (batch, channels, *size)."""
        pixels, sizes = images.images, images.sizes
        assert isinstance(pixels, Tensor)
        assert sizes is not None
        rows = places % len(pixels)
        flat = torch.zeros((len(places), 1), dtype=torch.int64, device=places.device)
        begins = self._begins(sizes[rows], places, seed=seed, epoch=epoch)
        for axis, (begin, stride) in enumerate(zip(begins, pixels.shape[2:], strict=True)):
            positions = begin[:, None] + torch.arange(self.size[axis], device=places.device)
            if self.flip:
                coin = random_bits(stable_seed(seed, "mirror", axis), epoch, counters=places) < 0
                positions = torch.where(coin[:, None], positions.flip(1), positions)
            flat = (flat[:, :, None] * stride + positions[:, None, :]).flatten(1)
        if self.flip and images.dimension == 2:
            coin = random_bits(stable_seed(seed, "turn"), epoch, counters=places) < 0
            grid = flat.view(-1, *self.size)
            flat = torch.where(coin[:, None], grid.transpose(1, 2).flatten(1), flat)
        shape = (len(places), pixels.shape[1], *self.size)
        return _gathered(pixels, rows, flat).view(shape)


LEFT_RIGHT = "left_right"


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledPatches(AbstractPatches):
    """Examples (standardised pixels, classes), turned, scaled and mirrored at random.

    Outside an image both are mirrored at its edge, so that it may be smaller than a patch.
    """

    flip: bool | str
    """Along every axis, or LEFT_RIGHT: the first of volumes, the last of images."""
    turn: float = 0.0
    """In degrees, the most in the plane of any two axes."""
    zoom: float = 0.0
    """Lengths are multiplied by 1 - zoom to 1 + zoom."""
    intensity: float = 0.0
    """Standardised pixels are multiplied by 1 - intensity to 1 + intensity; so much is added."""

    def check_fit(self, images: ImageSet) -> None:
        """Any image has patches; their number of axes is that of the images."""
        if len(self.size) != images.dimension:
            raise DataError(
                f"data.patch has {len(self.size)} numbers, and the data {images.dimension} axes; "
                f"give one for each"
            )

    def prepared(self, images: ImageSet, prepare: Callable[[Tensor], Tensor]) -> ImageSet:
        """Standardised, each by all of its pixels and not by those of a patch."""
        assert isinstance(images.images, Tensor)
        pixels = torch.zeros_like(images.images, dtype=torch.float32)
        for place, row in enumerate(pixels):
            image = prepare(images.picture(place)[None])[0]
            row[tuple(slice(0, n) for n in image.shape)] = image
        return replace(images, images=pixels)

    def examples(
        self,
        images: ImageSet,
        places: Tensor,
        prepare: Callable[[Tensor], Tensor],
        *,
        seed: int,
        epoch: int | Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Patches of images that are `prepared`, and the classes of their pixels."""
        del prepare
        pixels, masks, sizes = images.images, images.masks, images.sizes
        assert isinstance(pixels, Tensor)
        assert masks is not None
        assert sizes is not None
        rows = places % len(pixels)

        def signed(*name: int | str) -> Tensor:
            """A number in [-1, 1) for each example."""
            bits = random_bits(stable_seed(seed, *name), epoch, counters=places)
            return 2 * uniform_numbers(bits) - 1

        spacings = None if images.spacings is None else images.spacings[rows]
        positions = self._positions(sizes[rows], spacings, places, signed, seed=seed, epoch=epoch)
        stored = tuple(pixels.shape[2:])
        shape = (len(places), pixels.shape[1], *self.size)
        if self.turn or self.zoom:
            inputs = _interpolated(pixels, rows, positions, sizes[rows]).view(shape)
        else:
            inputs = _gathered(pixels, rows, _flat(positions, sizes[rows], stored)).view(shape)
        classes = _gathered(masks[:, None], rows, _flat(positions, sizes[rows], stored))
        if self.intensity:
            each = (-1, *(1,) * (inputs.dim() - 1))
            factor, offset = signed("intensity", 0).view(each), signed("intensity", 1).view(each)
            inputs = inputs * (1 + self.intensity * factor) + self.intensity * offset
        return inputs, classes.view(len(places), *self.size).long()

    def _positions(
        self,
        sizes: Tensor,
        spacings: Tensor | None,
        places: Tensor,
        signed: Callable[..., Tensor],
        *,
        seed: int,
        epoch: int | Tensor,
    ) -> Tensor:
        """Where in its image each pixel of a patch lies, (batch, axes, pixels): A c + centre."""
        axes = range(len(self.size))
        begins = self._begins(sizes, places, seed=seed, epoch=epoch)
        half = [(size - 1) / 2 for size in self.size]
        lines = [
            torch.arange(size, device=places.device) - middle
            for size, middle in zip(self.size, half, strict=True)
        ]
        grid = torch.stack([line.flatten() for line in torch.meshgrid(*lines, indexing="ij")])
        moved = [grid[axis].expand(len(places), -1) for axis in axes]
        for axis in self._mirrored():
            coin = random_bits(stable_seed(seed, "mirror", axis), epoch, counters=places) < 0
            moved[axis] = torch.where(coin[:, None], -moved[axis], moved[axis])
        if self.turn:
            for one, two in combinations(axes, 2):
                angle = (signed("turn", one, two) * (self.turn * pi / 180))[:, None]
                cosine, sine = angle.cos(), angle.sin()
                # Turned are lengths, not numbers of pixels: a head stays as broad as it is.
                ratio = (
                    sine.new_ones(()) if spacings is None else spacings[:, two] / spacings[:, one]
                )
                ratio = ratio.view(-1, 1)
                moved[one], moved[two] = (
                    cosine * moved[one] - ratio * sine * moved[two],
                    sine / ratio * moved[one] + cosine * moved[two],
                )
        scale = 1 + self.zoom * signed("zoom")[:, None] if self.zoom else 1
        return torch.stack(
            [scale * moved[axis] + (begins[axis] + half[axis])[:, None] for axis in axes], 1
        )

    def _mirrored(self) -> tuple[int, ...]:
        if self.flip == LEFT_RIGHT:
            return (0,) if len(self.size) == 3 else (len(self.size) - 1,)
        return tuple(range(len(self.size))) if self.flip else ()


def _folded(positions: Tensor, sizes: Tensor) -> Tensor:
    """Positions (batch, axes, pixels) within images of these sizes, mirrored at their edges."""
    n = sizes[:, :, None]
    inside = (positions + 0.5) % (2 * n)
    inside = torch.where(inside < n, inside, 2 * n - inside) - 0.5
    return inside.clamp(min=0).minimum(n - 1.0)


def _flat(positions: Tensor, sizes: Tensor, stored: tuple[int, ...]) -> Tensor:
    """The pixel nearest to each position as one number, (batch, pixels)."""
    nearest = _folded(positions, sizes).round().long()
    return _joined(list(nearest.unbind(1)), stored)


def _joined(positions: list[Tensor], stored: tuple[int, ...]) -> Tensor:
    flat = positions[0]
    for line, stride in zip(positions[1:], stored[1:], strict=True):
        flat = flat * stride + line
    return flat


def _interpolated(pixels: Tensor, rows: Tensor, positions: Tensor, sizes: Tensor) -> Tensor:
    """The linear interpolation between the 2^d pixels around each position."""
    inside = _folded(positions, sizes)
    low = torch.minimum(inside.floor(), (sizes[:, :, None] - 2.0).clamp(min=0))
    share = inside - low
    corners = low.long()
    total: Tensor | None = None
    for offsets in product((0, 1), repeat=positions.shape[1]):
        lines, weight = [], torch.ones_like(share[:, 0])
        for axis, offset in enumerate(offsets):
            # Of an axis of one pixel the second corner does not exist, and its share is 0.
            lines.append((corners[:, axis] + offset).minimum(sizes[:, axis, None] - 1))
            weight = weight * (share[:, axis] if offset else 1 - share[:, axis])
        values = _gathered(pixels, rows, _joined(lines, tuple(pixels.shape[2:])))
        part = weight[:, None] * values
        total = part if total is None else total + part
    assert total is not None
    return total


def _gathered(pixels: Tensor, rows: Tensor, flat: Tensor) -> Tensor:
    """Of each row's image the pixels at these places, (batch, channels, pixels)."""
    channels, num_pixels = pixels.shape[1], prod(pixels.shape[2:])
    planes = rows[:, None] * channels + torch.arange(channels, device=rows.device)
    where = planes[:, :, None] * num_pixels + flat[:, None, :]
    return pixels.flatten()[where]


def with_test_noise(images: list[Tensor], level: float) -> list[Tensor]:
    """Images of [0, 1] with the noise they are measured with: numpy's seed 0, one draw an image.

    The same numbers whatever the network, the device and the number of images after one.
    """
    generator = np.random.default_rng(0)
    return [
        image + torch.from_numpy(level / 255 * generator.standard_normal(image.shape)).to(image)
        for image in images
    ]
