"""From pixels to features: the scaling that travels with a network (Sec. 5)."""

from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from pdecnn.errors import ConfigError
from pdecnn.pde.convolution import SUBJECTS
from pdecnn.settings import Settings, documented, setting

Pixels = Literal["uint8", "float32"]
Standardization = Literal["image", "dataset", "mean", "none"]
_COLOURS, _MOST_COLOURS = 3, 4
_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


@cache
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """These numbers as a tensor, copied to the device once: a copy would wait for a GPU."""
    return torch.tensor(values, dtype=dtype, device=device)


@documented
@dataclass(frozen=True, kw_only=True)
class Preprocessing(Settings):
    """How images become the input of a network; stored with it and applied alike everywhere."""

    section = "preprocessing"
    standardize: Standardization = setting(
        "image",
        "'image': minus its mean, divided by max(std, 1/sqrt(n)), over the n pixels and channels "
        "of each image; 'dataset': by `mean` and `std` per channel; 'mean': minus `mean`, which "
        "keeps distances; 'none'.",
        kind="standardization",
    )
    mean: tuple[float, ...] | None = setting(
        None, "Per channel, of pixels in [0, 1]; for 'dataset' and 'mean'."
    )
    std: tuple[float, ...] | None = setting(
        None, "Per channel, of pixels in [0, 1]; for 'dataset'.", "(0, inf)"
    )
    size: tuple[int, ...] | None = setting(
        None, "The spatial size images are resized to; None: as they come.", "[1, inf)"
    )
    pooling: int = setting(
        1,
        "Standardised images are averaged over cells of this many pixels an axis: the coarser "
        "levels of an image pyramid.",
        "[1, inf)",
    )
    emphasis: float = setting(
        0.0,
        "This share of the sample before is taken off each sample of sounds, before they are "
        "standardised.",
        "[0, 1]",
    )
    rate: int | None = setting(None, "The samples a second of sounds; None: no sounds.", "[1, inf)")
    class_names: tuple[str, ...] | None = setting(None, "What the outputs mean, in order.")
    pixels: Pixels | None = setting(
        None,
        "What the training samples were, 'uint8' for bytes or 'float32'; None: not known. Either "
        "is taken.",
        kind="type of pixels",
    )

    def check_together(self) -> None:
        """Mean and std where they are used, sizes that can be pooled."""
        needs_mean = self.standardize in ("dataset", "mean")
        needed = (needs_mean, self.standardize == "dataset")
        if (self.mean is not None, self.std is not None) != needed:
            raise ConfigError(
                f"mean and std belong to standardize='dataset', which needs both, mean alone to "
                f"'mean'; found "
                f"standardize={self.standardize!r}, mean={self.mean}, std={self.std}"
            )
        if self.size is not None:
            self._check_pooling(self.size)
        if self.mean is not None and self.std is not None and len(self.mean) != len(self.std):
            raise ConfigError(f"mean and std must be as many; found {self.mean}, {self.std}")

    def apply(
        self, images: Tensor | npt.NDArray[Any], dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Standardised images of shape (batch, channels, *spatial).

        uint8 pixels are divided by 255; floating ones are taken to be in [0, 1] already.
        """
        images = as_tensor(images)
        pixels = self._pixels(images, torch.promote_types(dtype, torch.float32))
        if self.size is not None and tuple(pixels.shape[2:]) != self.size:
            if self.rate is not None:  # stretched it would have another pitch
                raise ValueError(
                    f"sounds must have {self.size[0]} samples, found shape {tuple(pixels.shape)}; "
                    f"cut them, or pad them with zeros"
                )
            pixels = _resize(pixels, self.size)
        if self.emphasis:
            pixels = pixels - self.emphasis * functional.pad(pixels[..., :-1], (1, 0))
        if self.standardize == "image":
            pixels = _standardize_each(pixels)
        elif self.mean is not None:
            shape = (1, -1, *(1,) * (pixels.dim() - 2))
            pixels = pixels - constant(self.mean, pixels.dtype, pixels.device).view(shape)
            if self.std is not None:
                pixels = pixels / constant(self.std, pixels.dtype, pixels.device).view(shape)
        if self.pooling > 1:
            self._check_pooling(tuple(pixels.shape[2:]))
            pixels = average_pool(pixels, self.pooling)
        return pixels.to(dtype)

    def _check_pooling(self, size: tuple[int, ...]) -> None:
        if any(n % self.pooling for n in size):
            raise ConfigError(
                f"{SUBJECTS.get(len(size), 'sample')}s of size {size} cannot be averaged over "
                f"cells of {self.pooling} pixels an axis; take a pooling that divides every size"
            )

    def _pixels(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        if images.dim() < 3:
            raise ValueError(
                f"images must have axes (batch, channels, ...), found shape {tuple(images.shape)}"
            )
        samples = f"{SUBJECTS.get(images.dim() - 2, 'sample')}s"
        if 0 in images.shape[1:]:
            raise ValueError(f"{samples} have no pixels: found shape {tuple(images.shape)}")
        if self.mean is not None and len(self.mean) != images.shape[1]:
            raise ValueError(
                f"{samples} have {images.shape[1]} channels but mean and std {len(self.mean)}"
            )
        if images.dtype == torch.uint8:
            return images.to(dtype) / 255
        if not images.is_floating_point():
            raise ValueError(f"images must be uint8 or floating in [0, 1], found {images.dtype}")
        return images.to(dtype)


def as_tensor(images: Tensor | npt.NDArray[Any]) -> Tensor:
    """A tensor as it is; of a numpy array one, unless it is in a form that many others take."""
    if isinstance(images, Tensor):
        return images
    if not isinstance(images, np.ndarray):
        raise ValueError(
            f"images must be a tensor or a numpy array with axes (batch, channels, ...), found "
            f"{type(images).__name__}"
        )
    if images.dtype.kind not in "uif":
        raise ValueError(f"images must be uint8 or floating in [0, 1], found {images.dtype}")
    shape, axes = images.shape, range(1, images.ndim - 1)
    if images.ndim > 2 and shape[-1] <= _MOST_COLOURS < min(shape[1:-1]):
        turned = f"images.transpose{(0, images.ndim - 1, *axes)}"
        if images.ndim == 3:
            turned = f"of one image images.transpose(2, 0, 1)[None], of signals {turned}"
        raise ValueError(
            f"images seem to have their channels last, found shape {shape}; the axes are (batch, "
            f"channels, ...): pass {turned}"
        )
    # Signals and volumes come in units of their own, and so may grey images: but not as bytes do.
    if images.dtype.kind == "f" and images.ndim == 4 and images.size:
        low, high = float(images.min()), float(images.max())
        as_bytes = shape[1] == _COLOURS or np.array_equal(images, images.round())
        if low >= 0 and 1 < high <= 255 and as_bytes:
            raise ValueError(
                f"images must be uint8 or floating in [0, 1], found {low:g} to {high:g}; divide "
                f"them by 255, or pass them as uint8"
            )
    return torch.from_numpy(np.ascontiguousarray(images, images.dtype.newbyteorder("=")))


def average_pool(images: Tensor, factor: int) -> Tensor:
    """The means over cells of `factor` pixels an axis; the factor must divide every size."""
    if factor == 1:
        return images
    cells = [part for n in images.shape[2:] for part in (n // factor, factor)]
    axes = tuple(range(3, 3 + len(cells), 2))
    return images.reshape(*images.shape[:2], *cells).mean(axes)


def _standardize_each(pixels: Tensor) -> Tensor:
    axes = tuple(range(1, pixels.dim()))
    centred = pixels - pixels.mean(axes, keepdim=True)
    # Clamped before the root, whose slope at 0 is infinite: constant images have gradients too.
    variance = centred.square().mean(axes, keepdim=True).clamp(min=1 / prod(pixels.shape[1:]))
    return centred / variance.sqrt()


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
