"""One image file as pixels: bytes of ordinary ones, float32 in [0, 1] of those of more bits."""

import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pdecnn.data.tiff import (
    ORIENTATION,
    TiffHeader,
    is_tiff,
    read_bands,
    read_header,
    upright,
)
from pdecnn.errors import DataError, UnsuitableFile, bad_file_refused
from pdecnn.files import write_atomically

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
MAX_PIXELS = 50_000_000
_MOST_IN_A_PIXEL = 4
_MODES = {1: "L", 3: "RGB"}
_LABEL_MODES = ("1", "L", "P", "I", "I;16", "I;16B")
_GREY_MODES = ("1", "L", "LA", "La", "I;16", "I;16B", "F")
LUMINANCE = (0.299, 0.587, 0.114)
"""Shares of red, green and blue in grey."""
_LARGEST_BYTE, _LARGEST_WORD = 255, 2**16 - 1
_WARNING_FILTERS = Lock()

Pixels = npt.NDArray[Any]
Size = tuple[int, int]


class Form(NamedTuple):
    """What a file holds, as its header says."""

    channels: int
    """1 for grey, 3 for colours, else the bands of a TIFF file; transparency does not count."""
    is_deep: bool
    """Whether its numbers need more than a byte."""


def read_image(path: Path | str, channels: int, size: Size | None = None) -> Tensor:
    """The image as (channels, height, width), upright: uint8, or float32 of 16 bits and floats.

    float32 is in [0, 1], whole numbers having been divided by the largest of their bits. Grey and
    colours become each other; other bands must be as many as channels. Transparency is dropped,
    and an animation is its first picture. With a `size` (height, width) the image is scaled to
    cover that, by averages if it shrinks and linearly if it grows, and its middle is kept.
    """
    return _read(str(path), lambda: Path(path).open("rb"), channels, size)


def write_image(path: Path, image: Tensor, *, deep: bool = False) -> None:
    """Write an image (channels, height, width), clipped to [0, 1], as PNG of 8 bits, or of 16."""
    if len(image) not in (1, 3):
        raise DataError(
            f"{path}: a PNG file has 1 or 3 channels, and the network gives {len(image)}; take its "
            f"numbers from Python instead, network(network.preprocess(images))"
        )
    most, kind = (_LARGEST_WORD, np.uint16) if deep else (_LARGEST_BYTE, np.uint8)
    values = image.detach().cpu().double().clamp(0, 1) * most
    write_atomically(path, encode_png(values.round().permute(1, 2, 0).numpy().astype(kind)))


def encode_png(pixels: Pixels) -> bytes:
    """Bytes or words (height, width, 1 or 3) as a PNG file; Pillow writes no colours of 16 bits."""
    height, width, channels = pixels.shape
    bits, colour_type = 8 * pixels.itemsize, {1: 0, 3: 2}[channels]
    written = pixels.astype(pixels.dtype.newbyteorder(">"), order="C")
    lines = written.reshape(height, -1).view(np.uint8)
    # Each line begins with its filter: 1, differences to the pixel before.
    step = channels * pixels.itemsize
    lines[:, step:] -= lines[:, :-step].copy()
    filtered = np.insert(lines, 0, 1, axis=1)
    header = struct.pack(">IIBBBBB", width, height, bits, colour_type, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(filtered.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def read_label_image(path: Path) -> Pixels:
    """The numbers (height, width) of a picture of one channel; of a palette, not its colours."""
    from PIL import Image

    with _refused_in_words(str(path)), path.open("rb") as stream, _open_by_pillow(stream) as image:
        _check_pixels(image.width, image.height)
        problem = None
        if image.format in ("JPEG", "MPO"):
            problem = "is a JPEG file, which changes numbers"
        elif image.mode == "F":
            problem = "holds floating numbers"
        elif image.mode not in _LABEL_MODES:
            problem = "is in colour"
        if problem is not None:
            raise UnsuitableFile(
                f"{problem} (mode {image.mode}); save the classes of the pixels as the numbers "
                f"0, 1, 2, ... of one channel, as a PNG file"
            )
        assert isinstance(image, Image.Image)
        return np.asarray(image)


def write_label_image(path: Path, labels: Tensor) -> None:
    """Write classes (height, width) as PNG whose numbers they are, with a colour for each."""
    from PIL import Image

    image = Image.fromarray(labels.cpu().numpy().astype(np.uint8))
    image.putpalette(label_palette())
    content = BytesIO()
    image.save(content, "PNG")
    write_atomically(path, content.getvalue())


def seen_pixels(image: npt.NDArray[Any]) -> Pixels:
    """Numbers (channels, height, width) as bytes to look at: classes in the colours of their files,
    numbers of [0, 1] grey or in colour, of other than 1 or 3 channels their mean."""
    if image.dtype.kind in "iu":
        colours = np.array(label_palette(), dtype=np.uint8).reshape(-1, 3)
        return np.moveaxis(colours[image[0].astype(np.int64) % len(colours)], -1, 0)
    image = image if len(image) in (1, 3) else image.mean(0, keepdims=True)
    levels: Pixels = np.round(_LARGEST_BYTE * np.clip(np.nan_to_num(image), 0, 1))
    return levels.astype(np.uint8)


def label_palette() -> list[int]:
    """Black for 0, then colours far apart: the bits of a number, each third one for a colour."""
    return [
        sum((number >> (3 * bit + colour) & 1) << (7 - bit) for bit in range(3))
        for number in range(256)
        for colour in range(3)
    ]


def read_image_bytes(content: bytes, name: str, channels: int, size: Size | None = None) -> Tensor:
    """`read_image` of a file's content; errors call it by that name."""
    return _read(name, lambda: BytesIO(content), channels, size)


def image_form(path: Path | str) -> Form:
    """What is in the file, from its header alone."""
    with _refused_in_words(str(path)), Path(path).open("rb") as stream, _open(stream) as picture:
        return picture.form


def _read(name: str, open_file: Callable[[], BinaryIO], channels: int, size: Size | None) -> Tensor:
    with _refused_in_words(name), open_file() as stream, _open(stream) as picture:
        found = picture.form.channels
        if channels != found and {channels, found} != {1, 3}:
            raise UnsuitableFile(
                f"has {found} {'channel' if found == 1 else 'channels'}, but {channels} are read; "
                f"only grey and colours can stand for each other"
            )
        return torch.from_numpy(picture.read(channels, size))


@contextmanager
def _refused_in_words(name: str) -> Iterator[None]:
    from PIL import Image, UnidentifiedImageError

    remedy = "check its permissions or fetch it again"
    with bad_file_refused(name, "cannot be read as an image", remedy):
        try:
            yield
        except IsADirectoryError as error:
            raise UnsuitableFile("is a folder; pass an image file") from error
        except UnidentifiedImageError as error:
            raise UnsuitableFile(
                f"not an image of format {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, or damaged; "
                f"convert it or fetch it again"
            ) from error
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise UnsuitableFile(f"has more than {MAX_PIXELS:,} pixels; reduce it first") from error


class _Picture(NamedTuple):
    form: Form
    read: Callable[[int, Size | None], Pixels]
    """The pixels (channels, height, width) for these channels and this size."""


@contextmanager
def _open(stream: BinaryIO) -> Iterator[_Picture]:
    """The picture with its header read and found to be of a size that can be held."""
    header = read_header(stream) if is_tiff(stream) else None
    if header is not None:
        _check_pixels(header.width, header.height, header.channels)
        if header.needs_tifffile:
            form = Form(header.channels, header.is_deep)
            yield _Picture(form, partial(_fit_bands, partial(read_bands, stream, header)))
            return
    with _open_by_pillow(stream) as image:
        _check_pixels(image.width, image.height)
        raw = image.tile[0].args if image.format == "PNG" and image.tile else None
        is_grey = image.mode in _GREY_MODES or raw == "LA;16B"
        if header is not None and header.is_deep:
            read = partial(_fit_bands, partial(_grey_values, image, header))
        elif str(raw).endswith(";16B"):
            read = partial(_fit_bands, partial(_png_values, image, stream))
        else:
            read = partial(_decode, image)
        yield _Picture(Form(1 if is_grey else 3, read.func is _fit_bands), read)


def _check_pixels(width: int, height: int, channels: int = 1) -> None:
    from PIL import Image

    if width * height * max(1, channels / _MOST_IN_A_PIXEL) > MAX_PIXELS:
        raise Image.DecompressionBombError


def _open_by_pillow(stream: BinaryIO) -> "ImageFile":
    """The image with its header read, where Pillow warns of too many pixels: an error here."""
    from PIL import Image

    # Filters are the whole process's: threads that overlap here would leave them changed.
    with _WARNING_FILTERS, warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        return Image.open(stream, formats=FORMATS)


def _decode(image: "ImageFile", channels: int, size: Size | None) -> Pixels:
    """An image of 8 bits, by Pillow alone."""
    from PIL import ImageOps

    if size is not None:
        # A JPEG can be decoded at a half, a quarter or an eighth, still covering the size.
        image.draft(None, (max(size), max(size)))
    turned = ImageOps.exif_transpose(image)
    if turned.mode == "P":
        # Straight to RGB or grey, Pillow warns where the palette has transparent colours.
        turned = turned.convert("RGBA")
    pixels = np.array(_fit(turned.convert(_MODES[channels]), size), dtype=np.uint8)
    return pixels[None] if channels == 1 else np.ascontiguousarray(np.moveaxis(pixels, -1, 0))


def _fit(image: Any, size: Size | None) -> Any:
    from PIL import Image, ImageOps

    if size is None or (image.height, image.width) == size:
        return image
    shrinks = min(image.height / size[0], image.width / size[1]) > 1
    method = Image.Resampling.BOX if shrinks else Image.Resampling.BILINEAR
    return ImageOps.fit(image, (size[1], size[0]), method)


def _grey_values(image: "ImageFile", header: TiffHeader) -> tuple[Pixels, int]:
    """The numbers of a TIFF file of one band, which Pillow has turned upright."""
    values = np.asarray(image)[..., None]
    return (header.largest - values if header.is_inverted else values), header.largest


def _png_values(image: "ImageFile", stream: BinaryIO) -> tuple[Pixels, int]:
    """The numbers of 16 bits, upright; of colours Pillow keeps but one of two bytes at a time."""
    tile = image.tile[0]
    if image.mode == "I;16":
        values = np.asarray(image)[..., None]
    elif tile.args == "LA;16B":  # four bytes a pixel, like those of RGBA
        image.tile = [tile._replace(args="RGBA")]
        high, low = np.moveaxis(np.asarray(image)[..., :2].astype(np.uint16), -1, 0)
        values = (high << 8 | low)[..., None]
    else:
        high = np.asarray(image)[..., :3].astype(np.uint16)
        stream.seek(0)
        with _open_by_pillow(stream) as again:
            # As if the low byte came first in the file: then that is the high one, and is kept.
            again.tile = [tile._replace(args=f"{again.mode};16L")]
            values = high << 8 | np.asarray(again)[..., :3]
    return upright(values, image.getexif().get(ORIENTATION, 1)), 2**16 - 1


def _fit_bands(read: Callable[[], tuple[Pixels, int]], channels: int, size: Size | None) -> Pixels:
    """Values (height, width, bands), of which the largest possible is 1, fitted band by band."""
    values, largest = read()
    if values.dtype.kind == "f":
        low, high = float(values.min()), float(values.max())
        if not (low >= 0 and high <= 1):
            raise UnsuitableFile(
                f"has floating values from {low:g} to {high:g}; scale them into [0, 1], or save "
                f"them as whole numbers of 16 bits"
            )
    pixels = np.stack([_fit_band(band, largest, size) for band in np.moveaxis(values, -1, 0)])
    if len(pixels) == channels:
        return pixels
    if channels == 3:
        return np.repeat(pixels, 3, 0)
    grey = np.tensordot(np.array(LUMINANCE, np.float32), pixels, 1)[None]
    return grey.clip(0, 1) if pixels.dtype == np.float32 else grey.round().astype(np.uint8)


def _fit_band(values: Pixels, largest: int, size: Size | None) -> Pixels:
    from PIL import Image

    if largest == _LARGEST_BYTE and values.dtype == np.uint8:
        return np.array(_fit(Image.fromarray(np.ascontiguousarray(values)), size))
    scaled = values.astype(np.float32)
    if values.dtype.kind == "u":
        scaled /= largest
    # Averages of numbers in [0, 1] may leave it by a rounding error.
    return np.array(_fit(Image.fromarray(scaled), size)).clip(0, 1)
