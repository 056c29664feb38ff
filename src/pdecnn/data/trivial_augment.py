"""TrivialAugment (Müller & Hutter 2021): one change of colour or geometry an image, at random.

Every image gets one of 14 changes at one of 31 strengths, in the ranges of RandAugment. All changes
are computed for all images, and each image keeps its own: a choice on the host would wait for the
device.
"""

import torch
from torch import Tensor
from torch.nn import functional

from pdecnn.data.image_file import LUMINANCE

CHANGES = (
    "identity",
    "auto_contrast",
    "equalize",
    "solarize",
    "posterize",
    "color",
    "contrast",
    "brightness",
    "sharpness",
    "rotate",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
)
NUM_STRENGTHS = 31
_LARGEST = {"rotate": torch.pi / 6, "shear": 0.3, "translate": 10 / 32, "blend": 0.9}
_POSTERIZED_BITS = 4


def apply_changes(images: Tensor, change: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    """Images of bytes (batch, 3, height, width) as pixels in [0, 1], each changed in one way.

    Of each image: the place of its change in `CHANGES`, a strength in [0, 1] and a sign, 1 or -1.
    """
    which = {name: (change == k).view(-1, 1, 1, 1) for k, name in enumerate(CHANGES)}
    pixels = images.float() / 255
    amount = strength.view(-1, 1, 1, 1)
    blended = _blended(pixels, which, 1 + _LARGEST["blend"] * (sign * strength).view(-1, 1, 1, 1))
    pixels = torch.where(which["auto_contrast"], _auto_contrast(pixels), pixels)
    pixels = torch.where(which["equalize"], _equalized(images), pixels)
    solarized = torch.where(pixels >= 1 - amount, 1 - pixels, pixels)
    pixels = torch.where(which["solarize"], solarized, pixels)
    cells = torch.exp2((_POSTERIZED_BITS * amount).round())
    posterized = (images.float() / cells).floor() * cells / 255
    pixels = torch.where(which["posterize"], posterized, pixels)
    is_blended = which["color"] | which["contrast"] | which["brightness"] | which["sharpness"]
    pixels = torch.where(is_blended, blended, pixels)
    return _moved(pixels, which, sign * strength)


def _auto_contrast(pixels: Tensor) -> Tensor:
    """Every channel stretched to [0, 1]; a constant one stays."""
    low, high = pixels.amin((2, 3), keepdim=True), pixels.amax((2, 3), keepdim=True)
    stretched = (pixels - low) / (high - low).clamp(min=1 / 255)
    return torch.where(high > low, stretched, pixels)


def _equalized(images: Tensor) -> Tensor:
    """Every channel with an even histogram, by the rule of PIL; by counting, not by scattering."""
    values = images.flatten(2).int()
    ordered = values.sort(2).values
    below = torch.searchsorted(ordered, values.contiguous())
    # How many pixels are below the brightest ones, a 255th of which makes a grey level.
    level = torch.searchsorted(ordered, ordered[..., -1:].contiguous()) // 255
    equal = ((below + level // 2) // level.clamp(min=1)).clamp(max=255)
    return torch.where(level > 0, equal, values).view(images.shape).float() / 255


def _blended(pixels: Tensor, which: dict[str, Tensor], factor: Tensor) -> Tensor:
    """d + factor (pixels - d), d being grey, its mean, black or the blurred image."""
    red, green, blue = (pixels[:, k : k + 1] for k in range(3))
    grey = LUMINANCE[0] * red + LUMINANCE[1] * green + LUMINANCE[2] * blue
    base = torch.where(which["color"], grey, torch.zeros_like(pixels))
    base = torch.where(which["contrast"], grey.mean((2, 3), keepdim=True), base)
    base = torch.where(which["sharpness"], _blurred(pixels), base)
    return (base + factor * (pixels - base)).clamp(0, 1)


def _blurred(pixels: Tensor) -> Tensor:
    """(4 pixel + sum of 3 x 3)/13 within, the pixel itself on the rim."""
    if min(pixels.shape[2:]) < 3:
        return pixels
    inner = (9 * functional.avg_pool2d(pixels, 3, stride=1) + 4 * pixels[..., 1:-1, 1:-1]) / 13
    rim = torch.ones(pixels.shape[2:], dtype=torch.bool, device=pixels.device)
    rim[1:-1, 1:-1] = False
    return torch.where(rim, pixels, functional.pad(inner, (1, 1, 1, 1)))


def _moved(pixels: Tensor, which: dict[str, Tensor], amount: Tensor) -> Tensor:
    """The nearest pixel of the image turned, sheared or shifted about its centre; else black."""
    height, width = pixels.shape[2:]
    chosen = {name: flags.view(-1) * amount for name, flags in which.items()}
    angle = _LARGEST["rotate"] * chosen["rotate"]
    down = torch.arange(height, device=pixels.device).view(1, -1, 1) - (height - 1) / 2
    right = torch.arange(width, device=pixels.device).view(1, 1, -1) - (width - 1) / 2
    cosine, sine = angle.cos(), angle.sin()
    shear_x, shear_y = (_LARGEST["shear"] * chosen[name] for name in ("shear_x", "shear_y"))
    shift_x = (_LARGEST["translate"] * width * chosen["translate_x"]).round()
    shift_y = (_LARGEST["translate"] * height * chosen["translate_y"]).round()

    def rows(values: Tensor) -> Tensor:
        return values.view(-1, 1, 1)

    column = rows(cosine) * right + rows(shear_x - sine) * down + rows(shift_x)
    row = rows(cosine) * down + rows(shear_y + sine) * right + rows(shift_y)
    column = (column + (width - 1) / 2).round().long()
    row = (row + (height - 1) / 2).round().long()
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    places = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
    flat = pixels.flatten(2)
    moved = flat.gather(2, places.flatten(1)[:, None].expand_as(flat)).view_as(pixels)
    return moved.masked_fill(~inside[:, None], 0)
