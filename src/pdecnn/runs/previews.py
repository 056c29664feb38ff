"""Pictures of a training whose network has an answer for each pixel, every few epochs."""

import re
from math import ceil
from pathlib import Path

import numpy as np
from torch import Tensor

from pdecnn.data.image_file import encode_png, seen_pixels
from pdecnn.files import write_atomically

_NUM_PREVIEWS = 6
_MOST_PIXELS = 256
"""An axis: six previews of a photograph must not make a report of 100 MB."""
_NAME = re.compile(r"preview-epoch-(\d+)\.png")
_GAP = 4


def is_due(epoch: int, num_epochs: int) -> bool:
    """After the first and the last epoch, and some between."""
    return epoch in (1, num_epochs) or epoch % ceil(num_epochs / _NUM_PREVIEWS) == 0


def write_preview(folder: Path, epoch: int, columns: list[Tensor]) -> None:
    """What goes in, what comes out and what is wanted, (channels, height, width), in a row.

    Of large images the middle; of a volume, with an axis more, the slice in the middle.
    """
    shown = []
    for column in columns:
        pixels = column.cpu().numpy()
        seen = seen_pixels(pixels if pixels.ndim == 3 else pixels[..., pixels.shape[-1] // 2])
        seen = seen[:, *(_middle(number) for number in seen.shape[1:])]
        shown.append(np.broadcast_to(seen, (3, *seen.shape[1:])))
        shown.append(np.full((3, seen.shape[1], _GAP), 255, np.uint8))
    row = np.ascontiguousarray(np.moveaxis(np.concatenate(shown[:-1], axis=2), 0, -1))
    folder.mkdir(exist_ok=True)
    write_atomically(folder / f"preview-epoch-{epoch:04d}.png", encode_png(row))


def _middle(number: int) -> slice:
    begin = max(0, (number - _MOST_PIXELS) // 2)
    return slice(begin, begin + _MOST_PIXELS)


def previews_in(folder: Path) -> dict[int, Path]:
    """Those that a training left there, by epoch."""
    matches = ((_NAME.fullmatch(path.name), path) for path in folder.glob("preview-*.png"))
    return dict(sorted((int(match[1]), path) for match, path in matches if match))
