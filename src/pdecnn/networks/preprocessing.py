"""From pixels to features: the scaling that travels with a network (notes on Sec. 5)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from math import prod, sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pdecnn.errors import ConfigError, unknown_name

STANDARDIZATIONS = ("image", "dataset", "none")
_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Preprocessing:
    """How images become the input of a network; stored with it and applied alike everywhere."""

    standardize: str = "image"
    """'image': minus its mean, divided by max(std, 1/sqrt(n)), over the n pixels and channels of
    each image; 'dataset': by `mean` and `std` per channel; 'none'."""
    mean: tuple[float, ...] | None = None
    """Per channel, of pixels in [0, 1]; for 'dataset'."""
    std: tuple[float, ...] | None = None
    """Per channel, of pixels in [0, 1]; for 'dataset'."""
    size: tuple[int, ...] | None = None
    """The spatial size images are resized to; None: as they come."""
    class_names: tuple[str, ...] | None = None
    """What the outputs mean, in order."""

    def __post_init__(self) -> None:
        for name in ("mean", "std", "size", "class_names"):
            value = getattr(self, name)
            if isinstance(value, Sequence) and not isinstance(value, str):
                object.__setattr__(self, name, tuple(value))
        if self.standardize not in STANDARDIZATIONS:
            raise unknown_name("standardization", self.standardize, STANDARDIZATIONS)
        given = self.mean is not None and self.std is not None
        if (self.standardize == "dataset") != given:
            raise ConfigError(
                f"mean and std belong to standardize='dataset', which needs both; found "
                f"standardize={self.standardize!r}, mean={self.mean}, std={self.std}"
            )
        if self.std is not None and not all(value > 0 for value in self.std):
            raise ConfigError(f"std must be positive in each channel, found {self.std}")
        if self.size is not None and not all(isinstance(n, int) and n > 0 for n in self.size):
            raise ConfigError(f"size must be positive whole numbers, found {self.size}")

    def apply(self, images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Standardised images of shape (batch, channels, *spatial).

        uint8 pixels are divided by 255; floating ones are taken to be in [0, 1] already.
        """
        pixels = self._pixels(images, torch.promote_types(dtype, torch.float32))
        if self.size is not None and tuple(pixels.shape[2:]) != self.size:
            pixels = _resize(pixels, self.size)
        if self.standardize == "image":
            pixels = _standardize_each(pixels)
        elif self.mean is not None and self.std is not None:
            shape = (1, -1, *(1,) * (pixels.dim() - 2))
            mean = pixels.new_tensor(self.mean).view(shape)
            pixels = (pixels - mean) / pixels.new_tensor(self.std).view(shape)
        return pixels.to(dtype)

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    def _pixels(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        if images.dim() < 3:
            raise ValueError(
                f"images must have axes (batch, channels, ...), found shape {tuple(images.shape)}"
            )
        if self.mean is not None and len(self.mean) != images.shape[1]:
            raise ValueError(
                f"images have {images.shape[1]} channels but mean and std {len(self.mean)}"
            )
        if images.dtype == torch.uint8:
            return images.to(dtype) / 255
        if not images.is_floating_point():
            raise ValueError(f"images must be uint8 or floating in [0, 1], found {images.dtype}")
        return images.to(dtype)


def _standardize_each(pixels: Tensor) -> Tensor:
    axes = tuple(range(1, pixels.dim()))
    smallest = 1 / sqrt(prod(pixels.shape[1:]))
    centred = pixels - pixels.mean(axes, keepdim=True)
    deviation = centred.square().mean(axes, keepdim=True).sqrt()
    return centred / deviation.clamp(min=smallest)


def _resize(pixels: Tensor, size: tuple[int, ...]) -> Tensor:
    """Averages when shrinking (exact for whole factors), linear interpolation when growing."""
    if len(size) != pixels.dim() - 2:
        raise ValueError(f"size {size} does not fit images of shape {tuple(pixels.shape)}")
    shrunk = tuple(min(new, old) for new, old in zip(size, pixels.shape[2:], strict=True))
    if shrunk != tuple(pixels.shape[2:]):
        pixels = functional.interpolate(pixels, size=shrunk, mode="area")
    if shrunk != size:
        pixels = functional.interpolate(
            pixels, size=size, mode=_LINEAR[len(size)], align_corners=False
        )
    return pixels


def preprocessing_from_dict(values: object) -> Preprocessing:
    """The preprocessing of JSON values; unknown keys are errors."""
    if not isinstance(values, dict):
        raise ConfigError(f"preprocessing must be an object, found {type(values).__name__}")
    known = [field.name for field in fields(Preprocessing)]
    for key in values:
        if key not in known:
            raise unknown_name("preprocessing setting", key, known)
    return Preprocessing(**values)
