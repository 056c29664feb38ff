"""What TIFF files hold, by their header; those that Pillow cannot read whole, by tifffile."""

import logging
import zlib
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from pdecnn.errors import UnsuitableFile

ORIENTATION = 0x0112
_WIDTH, _HEIGHT, _BITS, _PHOTOMETRIC, _SAMPLES = 256, 257, 258, 262, 277
_NEW_SUBFILE_TYPE, _EXTRA_SAMPLES, _SAMPLE_FORMAT = 254, 338, 339
_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB = 0, 1, 2
_ALPHA = (1, 2)
_REDUCED_OR_MASK = 1 | 4
_UNSIGNED, _FLOATING = 1, 3
_DEFLATE = (8, 32946)
_READ_COMPRESSIONS = (1, 5, 32773, *_DEFLATE)
"""None, LZW, PackBits, deflate."""


# What is wrong with a file is said in one line, by whoever reads it.
logging.getLogger("tifffile").addHandler(logging.NullHandler())


class TiffHeader(NamedTuple):
    """What the first page of a TIFF file says of itself."""

    width: int
    height: int
    bits: int
    """The most of a number of its pixels."""
    samples: int
    """Numbers a pixel."""
    alphas: tuple[int, ...]
    """Which of them are transparency."""
    sample_format: int
    photometric: int
    orientation: int
    has_unnamed_bands: bool
    """Bands that are neither colours nor transparency, as far as the file says."""

    @property
    def channels(self) -> int:
        """1 for grey, 3 for colours, else the number of bands."""
        return self.samples - len(self.alphas)

    @property
    def is_deep(self) -> bool:
        """Whether its numbers need more than a byte."""
        return self.bits > 8

    @property
    def largest(self) -> int:
        """The largest number a pixel may have: what stands for 1."""
        return 1 if self.sample_format == _FLOATING else int(2**self.bits) - 1

    @property
    def is_inverted(self) -> bool:
        """Whether 0 is white."""
        return self.photometric == _WHITE_IS_ZERO

    @property
    def needs_tifffile(self) -> bool:
        """Whether Pillow would drop bands or bits."""
        return self.has_unnamed_bands or (self.is_deep and self.samples > 1)


def is_tiff(stream: BinaryIO) -> bool:
    """Whether a TIFF or BigTIFF file begins here; the stream is left at its beginning."""
    begin = stream.read(4)
    stream.seek(0)
    return begin in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def read_header(stream: BinaryIO) -> TiffHeader:
    """The header of the first page; the stream is left at its beginning."""
    from PIL.TiffImagePlugin import ImageFileDirectory_v2

    begin = stream.read(8)
    begin += stream.read(8) if b"+" in begin[:4] else b""
    page = ImageFileDirectory_v2(begin)
    stream.seek(page.next)
    page.load(stream)
    if page.next:  # a reduced copy or a mask may follow
        second = ImageFileDirectory_v2(begin)
        stream.seek(page.next)
        second.load(stream)
        if not second.get(_NEW_SUBFILE_TYPE, 0) & _REDUCED_OR_MASK:
            raise UnsuitableFile(
                "has several pages; save each as a file of its own, or the bands of one image in "
                "one page (with tifffile photometric='minisblack', planarconfig='separate')"
            )
    stream.seek(0)
    samples, photometric = page.get(_SAMPLES, 1), page[_PHOTOMETRIC]
    bits, formats = page.get(_BITS, (1,)), page.get(_SAMPLE_FORMAT, (_UNSIGNED,))
    extras = page.get(_EXTRA_SAMPLES, ())
    if photometric == _RGB and samples == 4 and not extras:
        extras = _ALPHA[:1]
    header = TiffHeader(
        width=page[_WIDTH],
        height=page[_HEIGHT],
        bits=max(bits),
        samples=samples,
        alphas=tuple(
            samples - len(extras) + k for k, extra in enumerate(extras) if extra in _ALPHA
        ),
        sample_format=formats[0],
        photometric=photometric,
        orientation=page.get(ORIENTATION, 1),
        has_unnamed_bands=any(extra not in _ALPHA for extra in extras)
        or samples > 4
        or (photometric in (_WHITE_IS_ZERO, _BLACK_IS_ZERO) and samples - len(extras) > 1),
    )
    _check(header, len(set(bits)) == 1 and len(set(formats)) == 1)
    return header


def _check(header: TiffHeader, are_alike: bool) -> None:
    """Refuse numbers that have no place in [0, 1]."""
    least = 8 if header.needs_tifffile else 1
    whole = header.sample_format == _UNSIGNED and least <= header.bits <= 16
    if not are_alike or not (whole or header.sample_format == _FLOATING):
        kind = {_UNSIGNED: "whole", 2: "signed", _FLOATING: "floating"}
        raise UnsuitableFile(
            f"has {kind.get(header.sample_format, 'other')} numbers of {header.bits} bits; save "
            f"it with whole numbers of 8 or 16 bits, or floating ones in [0, 1]"
        )
    if header.needs_tifffile and header.photometric not in (_BLACK_IS_ZERO, _RGB):
        raise UnsuitableFile(
            f"has more than 8 bits or 4 bands, and colours of a kind that is not read "
            f"(photometric interpretation {header.photometric}); save it as RGB or min-is-black"
        )


def read_bands(stream: BinaryIO, header: TiffHeader) -> tuple[npt.NDArray[Any], int]:
    """The pixels (height, width, bands), upright and without transparency, and the largest one."""
    try:
        import tifffile
    except ImportError as error:
        raise UnsuitableFile(
            f"has {header.channels} bands of {header.bits} bits, which tifffile reads; install it "
            f"with: pip install 'pdecnn[tiff]'"
        ) from error
    with tifffile.TiffFile(stream) as file:
        page = file.pages.first
        _check_content(page, stream.seek(0, 2), file.filehandle)
        try:
            values: npt.NDArray[Any] = page.asarray(maxworkers=1)
        except ValueError as error:
            if "imagecodecs" not in str(error):
                raise
            raise UnsuitableFile(
                f"is compressed by {page.compression.name}, which needs imagecodecs: pip install "
                f"imagecodecs, or save it with deflate, or uncompressed"
            ) from error
        axes = page.axes
    if axes == "SYX":
        values = np.moveaxis(values, 0, -1)
    elif axes != "YXS":
        raise UnsuitableFile(f"has the axes {axes}; save it with height, width and bands alone")
    if header.alphas:
        values = np.delete(values, header.alphas, axis=-1)
    return upright(values, header.orientation), header.largest


def _check_content(page: Any, num_bytes: int, file: Any) -> None:
    """Refuse what would take more memory than its pixels do, and what ends before them."""
    if page.compression not in _READ_COMPRESSIONS:
        raise UnsuitableFile(
            f"is compressed by {page.compression.name}; save it with deflate, or uncompressed"
        )
    ends = [a + n for a, n in zip(page.dataoffsets, page.databytecounts, strict=True)]
    if max(ends, default=0) > num_bytes:
        raise UnsuitableFile("ends before its pixels do; fetch it again")
    if page.compression in _DEFLATE:
        limit = int(np.prod(page.chunks)) * page.dtype.itemsize
        for content, _ in file.read_segments(page.dataoffsets, page.databytecounts):
            if content and len(zlib.decompressobj().decompress(content, limit + 1)) > limit:
                raise UnsuitableFile("unpacks to more than its pixels; fetch it again")


_TURNS = {
    2: lambda values: values[:, ::-1],
    3: lambda values: values[::-1, ::-1],
    4: lambda values: values[::-1],
    5: lambda values: values.swapaxes(0, 1),
    6: lambda values: np.rot90(values, -1),
    7: lambda values: np.rot90(values, 2).swapaxes(0, 1),
    8: lambda values: np.rot90(values, 1),
}


def upright(values: npt.NDArray[Any], orientation: int) -> npt.NDArray[Any]:
    """The pixels (height, width, bands) turned as the tag of that name says."""
    return _TURNS[orientation](values) if orientation in _TURNS else values
