"""Training examples where every pixel has an answer: random crops of images, and noise on them.

As in `augmentation.py` every random number is the hash of (seed, epoch, place): no state, hence
the same examples for any batch size and after any restart.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from pdecnn.data.augmentation import random_bits, stable_seed, standard_normal, uniform_numbers
from pdecnn.data.image_set import ImageSet
from pdecnn.errors import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class Patches:
    """How a clean image becomes examples (noisy, clean) of `size` pixels an axis.

    An epoch takes `repeats` crops of each image, each mirrored along every axis with probability
    1/2 if `flip`, and in two dimensions turned.
    """

    size: int
    repeats: int
    flip: bool
    noise: tuple[float, float]
    """The standard deviation of the noise in units of 255, drawn between these for each example."""

    def check_fit(self, images: ImageSet) -> None:
        """Refuse images of which no patch can be cut."""
        assert images.sizes is not None, "pictures have sizes"
        short = (images.sizes < self.size).any(1).nonzero().flatten().tolist()
        if short:
            size = " x ".join(map(str, images.sizes[short[0]].tolist()))
            raise DataError(
                f"{images.name_of(short[0])}: has {size} pixels, and data.patch={self.size} needs "
                f"more along each axis; lower data.patch or leave the image out"
            )

    def examples(
        self,
        images: ImageSet,
        places: Tensor,
        prepare: Callable[[Tensor], Tensor],
        *,
        seed: int,
        epoch: int | Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Noisy and clean patches; place p is one of the image p modulo their number.

        `prepare` makes numbers in [0, 1] of pixels. Nothing waits for the device.
        """
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
        """The patches as pixels, (batch, channels, *(size,) * dimension)."""
        pixels, sizes = images.images, images.sizes
        assert isinstance(pixels, Tensor)
        assert sizes is not None
        rows = places % len(pixels)
        along = torch.arange(self.size, device=places.device)
        flat = torch.zeros((len(places), 1), dtype=torch.int64, device=places.device)
        for axis, stride_size in enumerate(pixels.shape[2:]):
            key = stable_seed(seed, "patch", axis)
            bits = (random_bits(key, epoch, counters=places) >> 32) & (2**32 - 1)
            begin = (bits * (sizes[rows, axis] - self.size + 1)) >> 32
            positions = begin[:, None] + along
            if self.flip:
                coin = random_bits(stable_seed(seed, "mirror", axis), epoch, counters=places) < 0
                positions = torch.where(coin[:, None], positions.flip(1), positions)
            flat = (flat[:, :, None] * stride_size + positions[:, None, :]).flatten(1)
        if self.flip and images.dimension == 2:
            coin = random_bits(stable_seed(seed, "turn"), epoch, counters=places) < 0
            grid = flat.view(-1, self.size, self.size)
            flat = torch.where(coin[:, None], grid.transpose(1, 2).flatten(1), flat)
        channels, num_pixels = pixels.shape[1], prod(pixels.shape[2:])
        planes = rows[:, None] * channels + torch.arange(channels, device=places.device)
        where = planes[:, :, None] * num_pixels + flat[:, None, :]
        shape = (len(places), channels, *(self.size,) * images.dimension)
        return pixels.flatten()[where].view(shape)


def with_test_noise(images: list[Tensor], level: float) -> list[Tensor]:
    """Images of [0, 1] with the noise they are measured with: numpy's seed 0, one draw an image.

    The same numbers whatever the network, the device and the number of images after one.
    """
    generator = np.random.default_rng(0)
    return [
        image + torch.from_numpy(level / 255 * generator.standard_normal(image.shape)).to(image)
        for image in images
    ]
