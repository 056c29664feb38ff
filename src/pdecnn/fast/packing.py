"""Volumes as the kernels take them: pixels side by side as one, stencils by rows of taps.

A product of matrices has 16 columns at least, a volume often 4 or 8 channels. Channels last the
pixels (p_1, ..., p_n) of a row lie as one pixel with n times the channels, so that features only
need another view. What K at all of them meets in one of its 9 rows of taps lies in one piece too:
the channels of p_1 to p_n and of a neighbour on either side. A stencil therefore becomes
(out channels of p_1 to p_n, 3, 3, numbers in a row), with zeros where a p_i meets nothing.
"""

from collections.abc import Sequence
from math import gcd

import torch
from torch import Tensor
from torch.nn import functional

_CHANNELS = 16


def pixels_as_one(channels: int, size: Sequence[int]) -> int:
    """How many pixels of such features are taken as one."""
    if len(size) != 3 or _CHANNELS % channels:
        return 1
    return gcd(_CHANNELS // channels, size[-1])


def pack(features: Tensor, pixels: int) -> Tensor:
    """Features that are dense, channels last, with so many pixels as one; no copy."""
    if pixels == 1:
        return features
    rows = features.movedim(1, -1)
    *outer, width, channels = rows.shape
    return rows.view(*outer, width // pixels, channels * pixels).movedim(-1, 1)


def unpack(features: Tensor, pixels: int) -> Tensor:
    """The inverse of `pack`."""
    if pixels == 1:
        return features
    rows = features.movedim(1, -1)
    *outer, width, channels = rows.shape
    return rows.view(*outer, width * pixels, channels // pixels).movedim(-1, 1)


def pack_stencils(stencils: Tensor, pixels: int) -> Tensor:
    """(layers, out, *taps, in) as K takes them; those of images stay as they are."""
    if stencils.dim() == 5:
        return stencils
    layers, out_channels, *taps, channels = stencils.shape
    rows = stencils.flatten(-2)
    shifted = [
        functional.pad(rows, (p * channels, (pixels - 1 - p) * channels)) for p in range(pixels)
    ]
    return torch.stack(shifted, 1).view(layers, pixels * out_channels, *taps[:2], -1)


def pack_adjoints(stencils: Tensor, pixels: int) -> Tensor:
    """The same as K^T takes them: mirrored, out and in exchanged; those of images stay."""
    if stencils.dim() == 5:
        return stencils
    return pack_stencils(stencils.flip(2, 3, 4).transpose(1, -1), pixels)


def unpack_stencils(gradients: Tensor, shape: Sequence[int]) -> Tensor:
    """The gradients of stencils (layers, *shape) from those of `pack_stencils` of them."""
    out_channels, *taps, channels = shape
    if len(taps) == 2:
        return gradients
    layers, packed_channels, *rows, _ = gradients.shape
    parts = gradients.view(layers, packed_channels // out_channels, out_channels, *rows, -1)
    total = torch.zeros_like(parts[:, 0, ..., : 3 * channels])
    for p, part in enumerate(parts.unbind(1)):
        total = total + part.narrow(-1, p * channels, 3 * channels)
    return total.view(layers, *shape)
