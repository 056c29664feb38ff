"""Tensors as the page draws them: bytes on a fixed scale, in base64."""

from base64 import b64encode
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

LEVELS = 254
"""Bytes 0 to 254, so that 127 is the very middle: zero is drawn as zero."""
MOST_PIXELS = 128
"""Wider features are averaged; nobody sees more in a picture of a channel."""
MOST_POINTS = 512
"""The same for signals."""
_SHARE = 0.995


def picture(values: Tensor, low: float, high: float) -> dict[str, Any]:
    """(channels, *spatial) on the scale from `low` to `high`; what lies beyond is at its ends.

    `clipped` is the share of what lies beyond. A volume is shown by its middle slice along the
    first axis.
    """
    shown = _small(flat_slice(values.detach().float().cpu()))
    clipped = float(((shown < low) | (shown > high)).float().mean())
    middle = (low + high) / 2
    shown = torch.nan_to_num(shown, nan=middle, posinf=high, neginf=low)
    span = high - low if high > low else 1.0
    levels = ((shown - low) / span * LEVELS).round().clamp(0, LEVELS).to(torch.uint8)
    return {
        "shape": list(levels.shape),
        "data": b64encode(levels.contiguous().numpy().tobytes()).decode("ascii"),
        "low": low,
        "high": high,
        "clipped": clipped,
    }


def flat_slice(values: Tensor) -> Tensor:
    """The middle slice of a volume (channels, z, y, x); signals and images as they are."""
    return values[:, values.shape[1] // 2] if values.dim() == 4 else values


def symmetric_scale(frames: Iterable[Tensor]) -> float:
    """One scale for all frames: in each of them 99.5 % of the finite values lie within it."""
    largest = 0.0
    for frame in frames:
        sizes = frame.detach().cpu().abs().flatten()
        sizes = sizes[sizes.isfinite()]
        if sizes.numel():
            place = max(1, round(_SHARE * sizes.numel()))
            # Sparse features would vanish within a share of all values: then the largest counts.
            size = float(sizes.kthvalue(place).values) or float(sizes.max())
            largest = max(largest, size)
    return largest or 1.0


def _small(values: Tensor) -> Tensor:
    if values.dim() == 2:
        if values.shape[1] <= MOST_POINTS:
            return values
        return functional.adaptive_avg_pool1d(values, MOST_POINTS)
    factor = -(-max(values.shape[1:]) // MOST_PIXELS)
    return values if factor == 1 else functional.avg_pool2d(values, factor, ceil_mode=True)
