"""Two images as one: mixup (Zhang et al. 2018) and cutmix (Yun et al. 2019).

An image is mixed with its neighbour in the batch, the first with the second and so on: batches are
random already, and pairs stay together whatever the ranks or parts a batch is divided into. Shares
are hashes of (seed, epoch, index), as augmentation is.
"""

from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from pdecnn.data.augmentation import stable_seed, uniform_integers
from pdecnn.learning.training_config import MixingConfig

_NUM_QUANTILES = 1025
_BOUND = 2**31


class MixedIn(NamedTuple):
    """What is in each example beside the first image."""

    labels: Tensor
    shares: Tensor
    """Of the first image."""
    main: Tensor
    """The label of the larger share."""


class Targets(NamedTuple):
    """What the scores of each example should say."""

    labels: Tensor
    mixed: MixedIn | None = None


class Mixing:
    """Mixes a batch as the config says, on its device."""

    def __init__(self, config: MixingConfig, *, seed: int, device: torch.device) -> None:
        self.seed = seed
        self.quantiles = {
            name: beta_quantiles(alpha).to(device)
            for name, alpha in (("mixup", config.mixup), ("cutmix", config.cutmix))
            if alpha is not None
        }

    def mix(
        self, images: Tensor, labels: Tensor, indices: Tensor, epoch: Tensor
    ) -> tuple[Tensor, Targets]:
        """The images (batch, channels, *spatial) mixed, and their targets."""
        partners = torch.arange(len(images), device=images.device) ^ 1
        pair = images, images[partners]
        ways = [self._mixup, self._cutmix]
        (mixed, shares), *second = [
            way(*pair, indices, epoch)
            for name, way in zip(("mixup", "cutmix"), ways, strict=True)
            if name in self.quantiles
        ]
        for other, other_shares in second:
            key = stable_seed(self.seed, "mixing")
            coins = uniform_integers(2, key, epoch, counters=indices).bool()
            mixed = torch.where(_over(coins, images), other, mixed)
            shares = torch.where(coins, other_shares, shares)
        others = labels[partners]
        main = torch.where(shares >= 0.5, labels, others)
        return mixed, Targets(labels, MixedIn(others, shares, main))

    def _mixup(
        self, images: Tensor, partners: Tensor, indices: Tensor, epoch: Tensor
    ) -> tuple[Tensor, Tensor]:
        """share * image + (1 - share) * partner."""
        shares = self._shares("mixup", indices, epoch)
        return torch.lerp(partners, images, _over(shares, images).to(images.dtype)), shares

    def _cutmix(
        self, images: Tensor, partners: Tensor, indices: Tensor, epoch: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The image outside a box around a random pixel, the partner within."""
        size = images.shape[2:]
        part = (1 - self._shares("cutmix", indices, epoch)) ** (1 / len(size))
        box, pixels = torch.ones_like(indices, dtype=torch.bool), torch.ones_like(part)
        for axis, length in enumerate(size):
            key = stable_seed(self.seed, "cutmix", axis)
            centres = uniform_integers(length, key, epoch, counters=indices)
            sides = (part * length).round().long()
            distances = torch.arange(length, device=images.device) - (centres - sides // 2)[:, None]
            within = (distances >= 0) & (distances < sides[:, None])
            box = box[..., None] & within.view(-1, *(1,) * axis, length)
            pixels = pixels * within.sum(1)
        # What lies beyond the border is not there: the share is that of the pixels.
        return torch.where(box[:, None], partners, images), 1 - pixels / prod(size)

    def _shares(self, name: str, indices: Tensor, epoch: Tensor) -> Tensor:
        """A number in [0, 1] for each image, from its distribution."""
        key, quantiles = stable_seed(self.seed, name, "share"), self.quantiles[name]
        draws = uniform_integers(_BOUND, key, epoch, counters=indices).double() / _BOUND
        places = draws * (len(quantiles) - 1)
        below = places.long()
        low, high = quantiles[below], quantiles[below + 1]
        return torch.lerp(low, high, (places - below).to(low.dtype))


def _over(numbers: Tensor, images: Tensor) -> Tensor:
    return numbers.view(-1, *(1,) * (images.dim() - 1))


def beta_quantiles(alpha: float) -> Tensor:
    """Where the distribution function of Beta(alpha, alpha) is 0, 1/1024, ..., 1.

    In v = x^p, p = min(alpha, 1), the density x^(alpha - p) (1 - x)^(alpha - 1) is bounded up to
    x = 1/2; the rest is symmetry.
    """
    power = min(alpha, 1.0)
    v = torch.linspace(0, 0.5**power, 8193, dtype=torch.float64)
    x = v ** (1 / power)
    density = x ** (alpha - power) * (1 - x) ** (alpha - 1)
    distribution = torch.cat([v.new_zeros(1), torch.cumulative_trapezoid(density, v)])
    distribution = distribution / (2 * distribution[-1])
    wanted = torch.linspace(0, 0.5, _NUM_QUANTILES // 2 + 1, dtype=torch.float64)
    above = torch.searchsorted(distribution, wanted).clamp(1, len(v) - 1)
    low, high = distribution[above - 1], distribution[above]
    found = torch.lerp(v[above - 1], v[above], ((wanted - low) / (high - low)).clamp(0, 1))
    half = (found ** (1 / power)).clamp(0, 0.5)
    return torch.cat([half, 1 - half[:-1].flip(0)]).float()
