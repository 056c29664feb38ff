"""TIFF files: any number of bands, 8 or 16 bits or floats, each number as it is in the file."""

import logging
import sys
from contextlib import suppress

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from pdecnn.data import image_file
from pdecnn.data.image_file import Form, image_form, read_image
from pdecnn.errors import DataError

HEIGHT, WIDTH = 5, 7
LARGEST = {"uint8": 255, "uint16": 65535, "float32": 1}


def values(bands, dtype="uint16"):
    """Pixels (height, width, bands) without any symmetry."""
    numbers = np.random.default_rng(0).integers(0, 65536, (HEIGHT, WIDTH, bands))
    if dtype == "float32":
        return (numbers / 65535).astype(dtype)
    return (numbers >> 8 if dtype == "uint8" else numbers).astype(dtype)


def write(path, pixels, *, planar="contig", **options):
    """Bands in one page, side by side or one after the other."""
    options = {"photometric": "minisblack"} | options
    if pixels.shape[-1] == 1:
        tifffile.imwrite(path, pixels[..., 0], **options)
    else:
        stored = pixels if planar == "contig" else np.moveaxis(pixels, -1, 0)
        tifffile.imwrite(path, stored, planarconfig=planar, **options)
    return path


def in_unit_range(pixels):
    """As they should be read."""
    tensor = torch.from_numpy(np.ascontiguousarray(np.moveaxis(pixels, -1, 0)))
    return tensor if pixels.dtype == np.uint8 else tensor.float() / LARGEST[str(pixels.dtype)]


def refusal(path, channels=3):
    with pytest.raises(DataError) as caught:
        read_image(path, channels)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value)


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("planar", ["contig", "separate"])
@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("bands", [1, 2, 3, 4, 5, 13])
def test_every_band_keeps_every_bit(tmp_path, bands, dtype, planar, compression):
    pixels = values(bands, dtype)
    path = write(tmp_path / "image.tif", pixels, planar=planar, compression=compression)
    assert image_form(path) == Form(bands, is_deep=dtype != "uint8")
    assert torch.equal(read_image(path, bands), in_unit_range(pixels))


@pytest.mark.parametrize("options", [{"byteorder": ">"}, {"bigtiff": True}, {"tile": (16, 16)}])
def test_big_endian_large_and_tiled_files_are_read(tmp_path, options):
    for bands in (1, 5):
        path = write(tmp_path / "image.tif", values(bands), **options)
        assert torch.equal(read_image(path, bands), in_unit_range(values(bands)))


def test_transparency_is_dropped_and_other_bands_are_not(tmp_path):
    pixels = values(4)
    path = write(tmp_path / "alpha.tif", pixels, photometric="rgb", extrasamples=["unassalpha"])
    assert image_form(path).channels == 3
    assert torch.equal(read_image(path, 3), in_unit_range(pixels[..., :3]))
    path = write(tmp_path / "infrared.tif", pixels, photometric="rgb", extrasamples=["unspecified"])
    assert torch.equal(read_image(path, 4), in_unit_range(pixels))


@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("bands", [1, 5])
def test_a_file_is_turned_upright(tmp_path, bands, number):
    pixels = values(bands)
    path = write(tmp_path / "image.tif", pixels, extratags=[(274, 3, 1, number, True)])
    Image.fromarray(pixels[..., 0]).save(tmp_path / "image.png", exif=orientation(number))
    found = read_image(path, bands)
    assert torch.equal(found[:1], read_image(tmp_path / "image.png", 1))


def orientation(number):
    exif = Image.Exif()
    exif[274] = number
    return exif


def test_white_may_be_0(tmp_path):
    path = write(tmp_path / "image.tif", values(1), photometric="miniswhite")
    assert torch.equal(read_image(path, 1), in_unit_range(65535 - values(1)))


def test_bands_are_scaled_like_images_of_their_own(tmp_path):
    pixels = values(5)
    whole = read_image(write(tmp_path / "all.tif", pixels), 5, (4, 4))
    for band in range(5):
        alone = write(tmp_path / "one.tif", pixels[..., band : band + 1])
        assert torch.equal(whole[band], read_image(alone, 1, (4, 4))[0])


@pytest.mark.parametrize("bands", [1, 5])
@pytest.mark.parametrize(("low", "high"), [(-0.5, 1.0), (0.0, 255.0), (0.0, np.nan)])
def test_floats_beyond_0_to_1_are_refused(tmp_path, bands, low, high):
    pixels = values(bands, "float32")
    pixels[0, 0], pixels[-1, -1] = low, high
    message = refusal(write(tmp_path / "image.tif", pixels), bands)
    assert "has floating values from" in message
    assert "scale them into [0, 1]" in message


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint32"])
@pytest.mark.parametrize("bands", [1, 5])
def test_numbers_without_a_place_in_0_to_1_are_refused(tmp_path, bands, dtype):
    path = write(tmp_path / "image.tif", values(bands).astype(dtype))
    assert "save it with whole numbers of 8 or 16 bits, or floating ones" in refusal(path, bands)


def test_bands_as_pages_are_refused_and_smaller_copies_are_not(tmp_path):
    path = tmp_path / "image.tif"
    pixels = np.moveaxis(values(5), -1, 0).copy()
    tifffile.imwrite(path, pixels, photometric="minisblack")
    assert "has several pages; save each as a file of its own" in refusal(path, 5)
    with tifffile.TiffWriter(path) as file:
        file.write(pixels[0], photometric="minisblack")
        file.write(pixels[0, ::2, ::2].copy(), photometric="minisblack", subfiletype=1)
    assert torch.equal(read_image(path, 1), in_unit_range(values(5)[..., :1]))


def test_other_bands_than_are_wanted_are_refused(tmp_path):
    path = write(tmp_path / "image.tif", values(5))
    assert "has 5 channels, but 3 are read" in refusal(path, 3)
    path = write(tmp_path / "image.tif", values(1))
    assert "has 1 channel, but 5 are read" in refusal(path, 5)


def test_without_tifffile_one_line_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tifffile", None)
    path = write(tmp_path / "image.tif", values(5))
    assert image_form(path) == Form(5, is_deep=True)
    assert "pip install 'pdecnn[tiff]'" in refusal(path, 5)
    # Grey needs nothing but Pillow.
    assert torch.equal(read_image(write(path, values(1)), 1), in_unit_range(values(1)))


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_a_file_cut_short_is_refused(tmp_path, compression):
    path = write(tmp_path / "image.tif", values(5), compression=compression)
    path.write_bytes(path.read_bytes()[:-20])
    assert "fetch it again" in refusal(path, 5)


def test_a_compression_without_bound_is_refused(tmp_path):
    path = write(tmp_path / "image.tif", values(5), compression="lzma")
    assert "is compressed by LZMA; save it with deflate" in refusal(path, 5)


def test_a_compression_that_needs_another_package_says_which(tmp_path):
    path = write(tmp_path / "image.tif", values(5))
    with tifffile.TiffFile(path, mode="r+") as file:
        file.pages.first.tags["Compression"].overwrite(5)
    message = refusal(path, 5)
    assert "imagecodecs" in message or "fetch it again" in message  # the latter if it is there


def test_fewer_than_8_bits_in_many_bands_are_refused(tmp_path):
    path = write(tmp_path / "image.tif", values(5, "uint8") >> 4)
    with tifffile.TiffFile(path, mode="r+") as file:
        file.pages.first.tags["BitsPerSample"].overwrite((4,) * 5)
    assert "has whole numbers of 4 bits; save it with whole numbers of 8" in refusal(path, 5)


def test_reading_many_files_adds_no_handlers(tmp_path):
    path, logger = write(tmp_path / "image.tif", values(5)), logging.getLogger("tifffile")
    read_image(path, 5)
    before = list(logger.handlers)
    read_image(path, 5)
    assert logger.handlers == before


def test_a_strip_that_unpacks_to_more_than_its_pixels_is_refused(tmp_path):
    path = write(tmp_path / "image.tif", np.zeros((64, 64, 5), np.uint16), compression="zlib")
    with tifffile.TiffFile(path, mode="r+") as file:
        for name in ("ImageWidth", "RowsPerStrip", "ImageLength"):
            file.pages.first.tags[name].overwrite(8)
    assert "unpacks to more than its pixels" in refusal(path, 5)


def test_the_cap_on_pixels_counts_bands_beyond_four(tmp_path, monkeypatch):
    few, many = write(tmp_path / "4.tif", values(4)), write(tmp_path / "5.tif", values(5))
    monkeypatch.setattr(image_file, "MAX_PIXELS", HEIGHT * WIDTH)
    assert read_image(few, 4).shape == (4, HEIGHT, WIDTH)
    assert "has more than 35 pixels; reduce it first" in refusal(many, 5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("bands", [1, 5])
def test_every_damage_is_an_image_or_refused(tmp_path, bands, compression):
    path = write(tmp_path / "image.tif", values(bands), compression=compression)
    whole, random = path.read_bytes(), np.random.default_rng(0)
    for place in range(0, len(whole), 5):
        changed = bytearray(whole)
        changed[place] ^= int(random.integers(1, 256))
        path.write_bytes(changed)
        with suppress(DataError):
            read_image(path, bands)
