"""Image files: the pixels a person sees, or one clear line (promise 16)."""

import struct
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
import torch
from PIL import Image

from pdecnn.data import image_file as images_module
from pdecnn.data.image_file import Form, image_form, read_image, write_image
from pdecnn.errors import DataError

ORIENTATION_TAG = 0x0112
HEIGHT, WIDTH = 4, 6


@pytest.fixture
def colours():
    """Pixels (height, width, 3) without any symmetry."""
    return np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)


@pytest.fixture
def smooth():
    """Colours that a lossy format keeps nearly, brighter to the right and to the bottom."""
    rows, columns = np.mgrid[0:32, 0:48]
    return np.stack([2 * rows, 4 * columns, rows + columns], 2).astype(np.uint8)


def assert_pixels(path, expected, tolerance=0):
    """The file is `expected` (height, width, 3) in colour, and its luminance in grey."""
    colour = read_image(path, 3)
    grey = read_image(path, 1)
    expected = torch.from_numpy(expected).permute(2, 0, 1).double()
    weights = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)
    luminance = (weights[:, None, None] * expected).sum(0, keepdim=True)
    for image, values in ((colour, expected), (grey, luminance)):
        assert image.dtype == torch.uint8
        assert image.is_contiguous()
        assert image.shape == values.shape
        # Half a level for the rounding of the luminance.
        assert (image - values).abs().max() <= tolerance + 0.51


@pytest.mark.parametrize("suffix", ["png", "bmp", "tif"])
def test_a_lossless_file_gives_back_every_pixel(tmp_path, colours, suffix):
    path = tmp_path / f"image.{suffix}"
    Image.fromarray(colours).save(path)
    assert_pixels(path, colours)
    assert torch.equal(read_image(path, 3), torch.from_numpy(colours).permute(2, 0, 1))


def test_lossless_webp_gives_back_every_pixel(tmp_path, colours):
    path = tmp_path / "image.webp"
    Image.fromarray(colours).save(path, lossless=True)
    assert_pixels(path, colours)


@pytest.mark.parametrize("suffix", ["jpg", "webp"])
def test_a_lossy_file_gives_nearly_the_pixels(tmp_path, smooth, suffix):
    path = tmp_path / f"image.{suffix}"
    Image.fromarray(smooth).save(path, quality=100)
    assert_pixels(path, smooth, tolerance=6)


@pytest.mark.parametrize("suffix", ["png", "bmp"])
def test_a_grey_file_is_grey_in_every_channel(tmp_path, colours, suffix):
    path = tmp_path / f"image.{suffix}"
    grey = colours[..., 0]
    Image.fromarray(grey).save(path)
    assert_pixels(path, np.repeat(grey[..., None], 3, 2))


def test_black_and_white_is_0_and_255(tmp_path, colours):
    path = tmp_path / "image.png"
    white = colours[..., 0] > 127
    Image.fromarray(white).save(path)
    assert_pixels(path, np.repeat(white[..., None], 3, 2).astype(np.uint8) * 255)


@pytest.mark.parametrize("suffix", ["png", "webp"])
def test_transparency_is_dropped(tmp_path, colours, suffix):
    path = tmp_path / f"image.{suffix}"
    alpha = np.arange(colours[..., 0].size, dtype=np.uint8).reshape(HEIGHT, WIDTH, 1)
    rgba = Image.fromarray(np.concatenate([colours, alpha], 2))
    rgba.save(path, **({"lossless": True, "exact": True} if suffix == "webp" else {}))
    assert_pixels(path, colours)


def test_transparency_of_grey_is_dropped(tmp_path, colours):
    path = tmp_path / "image.png"
    Image.fromarray(colours[..., :2].copy(), mode="LA").save(path)
    assert_pixels(path, np.repeat(colours[..., :1], 3, 2))


@pytest.mark.parametrize("transparency", [None, 1, b"\x00\x80\xff"])
@pytest.mark.parametrize("suffix", ["png", "bmp"])
def test_a_palette_becomes_its_colours(tmp_path, transparency, suffix):
    path = tmp_path / f"image.{suffix}"
    palette = np.array([[250, 10, 20], [30, 240, 40], [50, 60, 230]], dtype=np.uint8)
    indices = (np.arange(HEIGHT * WIDTH) % 3).astype(np.uint8).reshape(HEIGHT, WIDTH)
    image = Image.fromarray(indices, mode="P")
    image.putpalette(palette.tobytes())
    image.save(path, **({} if transparency is None else {"transparency": transparency}))
    assert_pixels(path, palette[indices])


def test_16_bit_grey_keeps_its_16_bits(tmp_path):
    path = tmp_path / "image.png"
    values = np.array([[0, 255, 256, 1000], [32768, 40000, 65279, 65535]], dtype=np.uint16)
    Image.fromarray(values).save(path)
    assert image_form(path) == Form(channels=1, is_deep=True)
    expected = torch.from_numpy(values.astype(np.float32) / 65535)
    assert torch.equal(read_image(path, 1), expected[None])
    assert torch.equal(read_image(path, 3), expected.expand(3, -1, -1))


def test_3000_grey_levels_of_a_dark_picture_stay_3000(tmp_path):
    path = tmp_path / "image.png"
    Image.fromarray(np.arange(3000, dtype=np.uint16).reshape(50, 60)).save(path)
    assert len(read_image(path, 1).unique()) == 3000


def test_16_bit_grey_is_turned_upright_too(tmp_path):
    path = tmp_path / "image.png"
    values = np.array([[0, 256, 512]], dtype=np.uint16)
    Image.fromarray(values).save(path, exif=orientation(3))
    assert (read_image(path, 1) * 65535).round().tolist() == [[[512, 256, 0]]]


def png_chunk(kind, content):
    body = kind + content
    return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))


def png_bytes(width, height, rows, depth=8, colour_type=2):
    """A PNG by hand, for what Pillow does not write."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", header)
        + png_chunk(b"IDAT", zlib.compress(rows))
        + png_chunk(b"IEND", b"")
    )


# Of a PNG file: grey, grey and transparency, colours, colours and transparency.
@pytest.mark.parametrize(
    ("colour_type", "numbers", "bands"), [(0, 1, 1), (4, 2, 1), (2, 3, 3), (6, 4, 3)]
)
def test_16_bit_png_files_of_every_kind_keep_their_16_bits(tmp_path, colour_type, numbers, bands):
    path = tmp_path / "image.png"
    values = np.random.default_rng(0).integers(0, 2**16, (HEIGHT, WIDTH, numbers), dtype=np.uint16)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    path.write_bytes(png_bytes(WIDTH, HEIGHT, rows, depth=16, colour_type=colour_type))
    assert image_form(path) == Form(bands, is_deep=True)
    expected = torch.from_numpy(np.moveaxis(values[..., :bands], -1, 0).astype(np.float32) / 65535)
    assert torch.equal(read_image(path, bands), expected)
    if bands == 3:
        weights = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
        grey = (weights * expected).sum(0, keepdim=True)
        torch.testing.assert_close(read_image(path, 1), grey, atol=1e-6, rtol=0)


@pytest.mark.parametrize("size", [(3, 3), (4, 4), (9, 11)])
def test_16_bits_are_scaled_as_8_bits_are(tmp_path, colours, size):
    grey = colours[..., 0]
    Image.fromarray(grey).save(tmp_path / "8.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "16.png")
    low, high = (read_image(tmp_path / name, 1, size) for name in ("8.png", "16.png"))
    assert (low.float() - 255 * high).abs().max() <= 1.01  # bytes are rounded along each axis


def orientation(number):
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = number
    return exif


# How the pixels as stored become upright ones, for each of the orientations EXIF defines.
UPRIGHT = {
    1: lambda stored: stored,
    2: lambda stored: stored[:, ::-1],
    3: lambda stored: stored[::-1, ::-1],
    4: lambda stored: stored[::-1],
    5: lambda stored: stored.swapaxes(0, 1),
    6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: np.rot90(stored, 2).swapaxes(0, 1),
    8: lambda stored: np.rot90(stored, 1),
}


@pytest.mark.parametrize("number", UPRIGHT)
def test_the_orientation_of_a_photograph_is_followed(tmp_path, colours, smooth, number):
    path = tmp_path / "image.png"
    Image.fromarray(colours).save(path, exif=orientation(number))
    assert_pixels(path, UPRIGHT[number](colours).copy())
    path = tmp_path / "image.jpg"
    Image.fromarray(smooth).save(path, quality=100, exif=orientation(number))
    assert_pixels(path, UPRIGHT[number](smooth).copy(), tolerance=6)


def test_cmyk_is_read_as_colours(tmp_path, smooth):
    path = tmp_path / "image.jpg"
    Image.fromarray(smooth).convert("CMYK").save(path, quality=100)
    assert_pixels(path, smooth, tolerance=6)


def test_an_animation_is_its_first_picture(tmp_path, colours):
    path = tmp_path / "image.png"
    first, second = Image.fromarray(colours), Image.fromarray(255 - colours)
    first.save(path, save_all=True, append_images=[second])
    assert_pixels(path, colours)


def test_the_content_decides_and_not_the_suffix(tmp_path, colours):
    path = tmp_path / "image.txt"
    Image.fromarray(colours).save(path, format="PNG")
    assert_pixels(str(path), colours)


def assert_refused(path, *parts, channels=3):
    with pytest.raises(DataError) as caught:
        read_image(path, channels)
    message = str(caught.value)
    assert "\n" not in message
    for part in (path, *parts):
        assert str(part) in message


def test_text_with_the_suffix_of_an_image_is_refused(tmp_path):
    path = tmp_path / "image.png"
    path.write_text("not an image\nat all\n")
    assert_refused(path, "not an image of format PNG, JPEG, WEBP, BMP or TIFF")


def test_an_empty_file_is_refused(tmp_path):
    path = tmp_path / "image.png"
    path.write_bytes(b"")
    assert_refused(path, "not an image of format PNG, JPEG, WEBP, BMP or TIFF, or damaged")


@pytest.mark.parametrize("suffix", ["gif", "ppm"])
def test_another_format_is_refused(tmp_path, colours, suffix):
    path = tmp_path / "image.png"
    Image.fromarray(colours).save(path, format=suffix)
    assert_refused(path, "not an image of format", "convert it")


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "bmp", "tif"])
def test_a_file_cut_in_the_middle_is_refused(tmp_path, suffix):
    path = tmp_path / f"image.{suffix}"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert_refused(path, "fetch it again")


def refusal(path):
    """What is said against the file; None if it is read."""
    try:
        read_image(path, 3)
    except DataError as error:
        return str(error)
    return None


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "bmp", "tif"])
@pytest.mark.filterwarnings("ignore")
def test_every_damage_is_an_image_or_one_line(tmp_path, colours, suffix):
    path = tmp_path / f"image.{suffix}"
    Image.fromarray(colours).save(path, exif=orientation(6))
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    damaged = [whole[:length] for length in range(0, len(whole), 5)]
    for place in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[place] ^= int(random.integers(1, 256))
        damaged.append(bytes(changed))
    for content in damaged:
        path.write_bytes(content)
        message = refusal(path)
        assert message is None or message.startswith(f"{path}: ")
        assert message is None or "\n" not in message


def test_a_missing_file_is_named(tmp_path):
    assert_refused(tmp_path / "nowhere.png", "no such file")


def test_a_folder_is_named(tmp_path):
    assert_refused(tmp_path, "is a folder; pass an image file")


def test_a_path_no_file_can_have_is_refused():
    assert_refused("a\0b", "cannot be read")


def test_an_unreadable_file_is_named(tmp_path, colours, monkeypatch):
    path = tmp_path / "image.png"
    Image.fromarray(colours).save(path)

    def refuse(path, mode):
        raise PermissionError(13, "Permission denied", str(path))

    # Patched rather than chmod: whoever runs the tests as root may read everything.
    monkeypatch.setattr(Path, "open", refuse)
    assert_refused(path, "cannot be read as an image (Permission denied); check its permissions")


def test_more_pixels_than_the_cap_are_refused(tmp_path, colours, monkeypatch):
    path = tmp_path / "image.png"
    Image.fromarray(colours).save(path)
    monkeypatch.setattr(images_module, "MAX_PIXELS", HEIGHT * WIDTH)
    assert_pixels(path, colours)
    monkeypatch.setattr(images_module, "MAX_PIXELS", HEIGHT * WIDTH - 1)
    assert_refused(path, "more than 23 pixels; reduce it first")


# Pillow itself says nothing about the first, warns of the second and refuses the third.
@pytest.mark.parametrize(("width", "height"), [(8000, 8000), (10_000, 10_000), (60_000, 60_000)])
@pytest.mark.filterwarnings("ignore")
def test_a_decompression_bomb_is_refused_before_it_is_unpacked(tmp_path, width, height):
    path = tmp_path / "image.png"
    path.write_bytes(png_bytes(width, height, b"\x00" * 100))
    assert_refused(path, "more than 50,000,000 pixels; reduce it first")


@pytest.mark.parametrize("channels", [0, 2, 4, 5])
def test_channels_that_the_file_does_not_have_are_refused(tmp_path, colours, channels):
    path = tmp_path / "image.png"
    Image.fromarray(colours).save(path)
    assert_refused(path, f"has 3 channels, but {channels} are read", channels=channels)


def test_threads_that_read_at_once_leave_the_warning_filters_alone(tmp_path, colours, monkeypatch):
    paths = [tmp_path / f"{index}.png" for index in range(8)]
    for path in paths:
        Image.fromarray(colours).save(path)
    before, both = list(warnings.filters), Barrier(2)
    decode, found = images_module._decode, []

    def decode_together(*arguments):
        both.wait(timeout=100)
        found.append(list(warnings.filters))  # both have opened their files, neither is done
        both.wait(timeout=100)
        return decode(*arguments)

    monkeypatch.setattr(images_module, "_decode", decode_together)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda path: read_image(path, 3), paths))
    assert found == [before] * len(paths)
    assert warnings.filters == before


@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("deep", [False, True])
def test_what_is_written_is_read_again_to_the_last_bit(channels, width, deep, tmp_path):
    generator = torch.Generator().manual_seed(channels)
    most = 2**16 - 1 if deep else 255
    values = torch.randint(0, most + 1, (channels, 7, width), generator=generator)
    write_image(tmp_path / "image.png", values.double() / most, deep=deep)
    again = read_image(tmp_path / "image.png", channels)
    assert again.dtype == (torch.float32 if deep else torch.uint8)
    assert torch.equal((again.double() * most).round() if deep else again.double(), values.double())
