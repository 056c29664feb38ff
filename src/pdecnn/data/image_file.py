"""One image file as pixels: allow-listed formats, a cap on the pixels, honest errors."""

import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pdecnn.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image as OpenImage

FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
MAX_PIXELS = 50_000_000
_MODES = {1: "L", 3: "RGB"}
_WARNING_FILTERS = Lock()


def read_image(path: Path | str, channels: int, size: tuple[int, int] | None = None) -> Tensor:
    """The image as uint8 (channels, height, width), upright, grey for 1 channel, RGB for 3.

    Transparency is dropped, 16-bit values keep their high byte, and an animation is its first
    picture. With a `size` (height, width) it is scaled to cover that, by averages if it shrinks
    and linearly if it grows, and its middle is kept.
    """
    return _read(str(path), lambda: Path(path).open("rb"), channels, size)


def read_image_bytes(
    content: bytes, name: str, channels: int, size: tuple[int, int] | None = None
) -> Tensor:
    """`read_image` of a file's content; errors call it by that name."""
    return _read(name, lambda: BytesIO(content), channels, size)


def _read(
    name: str, open_file: Callable[[], BinaryIO], channels: int, size: tuple[int, int] | None
) -> Tensor:
    from PIL import Image

    if channels not in _MODES:
        raise DataError(f"image files have 1 or 3 channels, but the network takes {channels}")
    try:
        with open_file() as stream, _open(stream) as image:
            if image.width * image.height > MAX_PIXELS:
                raise Image.DecompressionBombError
            pixels = _decode(image, _MODES[channels], size)
    # On a damaged file the decoders raise nearly anything, struct.error and KeyError included.
    except Exception as error:
        raise DataError(f"{name}: {_complaint(error)}") from error
    tensor = torch.from_numpy(pixels)
    return tensor.unsqueeze(0) if channels == 1 else tensor.permute(2, 0, 1).contiguous()


def _open(stream: BinaryIO) -> "OpenImage":
    """The image with its header read, where Pillow warns of too many pixels: an error here."""
    from PIL import Image

    # Filters are the whole process's: threads that overlap here would leave them changed.
    with _WARNING_FILTERS, warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        return Image.open(stream, formats=FORMATS)


def _decode(image: "OpenImage", mode: str, size: tuple[int, int] | None) -> npt.NDArray[np.uint8]:
    from PIL import Image, ImageOps

    if size is not None:
        # A JPEG can be decoded at a half, a quarter or an eighth, still covering the size.
        image.draft(None, (max(size), max(size)))
    upright = ImageOps.exif_transpose(image)
    if upright.mode == "I;16":
        # Pillow would clip at 255 instead, which turns nearly every pixel white.
        upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    elif upright.mode == "P":
        # Straight to RGB or grey, Pillow warns where the palette has transparent colours.
        upright = upright.convert("RGBA")
    upright = upright.convert(mode)
    if size is not None and (upright.height, upright.width) != size:
        shrinks = min(upright.height / size[0], upright.width / size[1]) > 1
        method = Image.Resampling.BOX if shrinks else Image.Resampling.BILINEAR
        upright = ImageOps.fit(upright, (size[1], size[0]), method)
    return np.array(upright, dtype=np.uint8)


def _complaint(error: Exception) -> str:
    """What is wrong with the file and what to do about it, in one line."""
    from PIL import Image, UnidentifiedImageError

    if isinstance(error, FileNotFoundError):
        return "no such file; check the path"
    if isinstance(error, IsADirectoryError):
        return "is a folder; pass an image file"
    if isinstance(error, UnidentifiedImageError):
        formats = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        return f"not an image of format {formats}, or damaged; convert it or fetch it again"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"has more than {MAX_PIXELS:,} pixels; reduce it first"
    # An operating-system error in words, without its number and the path again.
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    reason = " ".join(reason.split()) or type(error).__name__
    return f"cannot be read as an image ({reason}); check its permissions or fetch it again"
