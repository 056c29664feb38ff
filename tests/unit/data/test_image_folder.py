"""Folders of images: every picture as seen, every bad file in one report (promise 17)."""

import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from pdecnn.data import images as images_module
from pdecnn.data.image_file import read_image
from pdecnn.data.image_set import StoredImages
from pdecnn.data.images import image_classes, read_image_folder
from pdecnn.errors import BadFilesError, DataError
from tests.image_folders import stripes, write_folder


def read(folder, **options):
    return read_image_folder(folder, **{"channels": 3, "size": 16} | options)


def in_unit_range(pixels):
    """As in a folder where some file has more than 8 bits."""
    return pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels


def test_a_flat_folder_is_classes_with_a_test_part_held_out(tmp_path):
    paths = write_folder(tmp_path, 40)
    data = read(tmp_path)
    assert data.train.class_names == ("across", "down")
    assert (len(data.train), len(data.test)) == (32, 8)
    assert data.test.labels.bincount().tolist() == [4, 4]
    assert data.validation is None
    assert data.train.images.shape == (32, 3, 16, 16)
    again = read(tmp_path)
    assert torch.equal(again.train.images, data.train.images)
    assert torch.equal(again.test.labels, data.test.labels)
    # All the images of the folder are there, each once.
    found = torch.cat([data.train.images, data.test.images]).flatten(1)
    wanted = torch.stack([in_unit_range(read_image(path, 3, (16, 16))) for path in paths]).flatten(
        1
    )
    assert sorted(found.tolist()) == sorted(wanted.tolist())


@pytest.mark.parametrize("name", ["validation", "val"])
def test_parts_are_taken_as_they_are(name, tmp_path):
    for part, count in (("train", 10), (name, 6), ("test", 4)):
        write_folder(tmp_path / part, count, seed=count)
    data = read(tmp_path)
    assert (len(data.train), len(data.validation), len(data.test)) == (10, 6, 4)
    shutil.rmtree(tmp_path / "test")
    data = read(tmp_path)
    assert (len(data.train), len(data.validation), len(data.test)) == (8, 6, 2)
    (tmp_path / "other").mkdir()
    with pytest.raises(DataError, match="holds 'other' beside 'train'"):
        read(tmp_path)


def test_a_class_may_be_called_train(tmp_path):
    write_folder(tmp_path, 12, classes=("train", "plane"))
    assert image_classes(tmp_path) == ("plane", "train")
    assert len(read(tmp_path).train) == 10


@pytest.mark.parametrize(
    "parts", [("Train", "Test"), ("training", "testing"), ("val", "test"), ("learn", "valid")]
)
def test_parts_by_other_names_are_not_taken_for_classes(parts, tmp_path):
    for part in parts:
        write_folder(tmp_path / part, 4)
    with pytest.raises(DataError, match="call the parts train, validation and test"):
        image_classes(tmp_path)


def test_a_class_may_be_called_testing(tmp_path):
    write_folder(tmp_path, 12, classes=("testing", "Valid"))
    assert image_classes(tmp_path) == ("Valid", "testing")


def test_a_folder_name_that_is_no_text_is_refused(tmp_path):
    for name in (b"caf\xe9", b"b"):
        os.mkdir(os.path.join(os.fsencode(tmp_path), name))
    with pytest.raises(DataError, match=r"'caf\\udce9' is not text"):
        image_classes(tmp_path)


def test_two_images_cannot_spare_a_test_part(tmp_path):
    write_folder(tmp_path, 2)
    with pytest.raises(DataError, match="2 samples are too few to hold a test part out of"):
        read(tmp_path)


def test_folders_within_a_class_belong_to_it(tmp_path):
    write_folder(tmp_path, 20)
    (tmp_path / "down" / "more").mkdir()
    image = Image.new("RGB", (20, 20))
    image.save(tmp_path / "down" / "more" / "one.png")
    (tmp_path / "down" / ".hidden").write_text("not meant")
    (tmp_path / "down" / "Thumbs.db").write_text("not meant")
    (tmp_path / "notes.txt").write_text("no part of a class")
    data = read(tmp_path)
    assert len(data.train) + len(data.test) == 21


def test_the_middle_of_an_image_is_kept(tmp_path):
    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[:, 20:60] = 200
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    assert (read_image(tmp_path / "wide.png", 3, (20, 20)) == 200).all()
    Image.fromarray(pixels.transpose(1, 0, 2)).save(tmp_path / "high.png")
    assert (read_image(tmp_path / "high.png", 3, (20, 20)) == 200).all()


def test_an_image_shrinks_by_averages_and_grows_linearly(tmp_path):
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (8, 8), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    means = pixels.reshape(4, 2, 4, 2).mean((1, 3))
    shrunk = read_image(tmp_path / "image.png", 1, (4, 4))[0].double()
    assert np.abs(shrunk.numpy() - means).max() <= 1  # rounded along each axis
    grown = read_image(tmp_path / "image.png", 1, (16, 16))[None].double()
    image = torch.from_numpy(pixels)[None, None].double()
    wanted = torch.nn.functional.interpolate(image, size=(16, 16), mode="bilinear")
    assert (grown - wanted).abs().max() <= 1


@pytest.mark.parametrize("shape", [(480, 640), (301, 200), (64, 64), (40, 90)])
def test_a_jpeg_decoded_small_is_the_picture(shape, tmp_path):
    """Compared with all of it decoded, then averaged; smooth, so that nothing is lost by JPEG."""
    rows, columns = np.mgrid[0 : shape[0], 0 : shape[1]]
    pixels = np.stack([rows / shape[0], columns / shape[1], rows / rows.max()], 2) * 250
    image = Image.fromarray(pixels.astype(np.uint8))
    image.save(tmp_path / "image.jpg", quality=95)
    image.save(tmp_path / "image.png")
    found = read_image(tmp_path / "image.jpg", 3, (32, 32)).int()
    wanted = read_image(tmp_path / "image.png", 3, (32, 32)).int()
    assert (found - wanted).abs().max() <= 6
    assert (found - wanted).abs().float().mean() <= 1.5


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "I;16", "rotated"])
def test_every_mode_shows_the_same_picture(mode, tmp_path):
    grey = stripes(np.random.default_rng(0), vertical=True, height=32, width=32).mean(2)
    grey = grey.astype(np.uint8)
    image = Image.fromarray(grey)
    options = {}
    if mode == "I;16":
        image = Image.fromarray(grey.astype(np.uint16) * 257)
    elif mode == "rotated":
        image = image.transpose(Image.Transpose.ROTATE_90)
        exif = Image.Exif()
        exif[0x0112] = 6
        options["exif"] = exif
    else:
        image = image.convert(mode)
    image.save(tmp_path / "image.png", **options)
    found = read_image(tmp_path / "image.png", 3)
    assert torch.equal(in_unit_range(found), torch.from_numpy(grey).expand(3, -1, -1) / 255)


@pytest.fixture
def damaged(tmp_path):
    """A folder with every kind of bad file; returns it and what the report must say of each."""
    root = tmp_path / "data"
    paths = write_folder(root, 30)
    expected = {}

    def bad(name, reason):
        expected[name] = reason
        return root / name

    bad("across/empty.png", "is empty").write_bytes(b"")
    bad("down/text.png", "not an image of format").write_text("this is no image")
    bad("across/notes.txt", "not an image of format").write_text("nor is this")
    content = paths[2].read_bytes()
    bad("down/cut.png", "cannot be read as an image").write_bytes(content[: len(content) // 2])
    Image.new("RGB", (8, 8)).save(bad("down/image.gif", "not an image of format"))
    outside = tmp_path / "outside.png"
    Image.new("RGB", (8, 8)).save(outside)
    bad("across/link.png", "link out of the folder").symlink_to(outside)
    bad("across/broken.png", "cannot be read").symlink_to(root / "nowhere.png")
    bad("across/loop.png", "cannot be read").symlink_to(root / "across" / "loop.png")
    bad("down/folder", "link to a folder").symlink_to(tmp_path)
    os.mkfifo(bad("down/pipe.png", "no regular file"))
    bad("empty", "holds no image").mkdir()
    (root / "down" / "inside.png").symlink_to(paths[0])  # which is fine
    return root, expected


@pytest.mark.parametrize("stream", [False, True])
def test_all_bad_files_are_in_one_report(damaged, stream):
    """Promise 17."""
    root, expected = damaged
    with pytest.raises(BadFilesError) as caught:
        read(root, stream=stream)
    first, *lines = str(caught.value).splitlines()
    assert first.startswith(f"{root}: {len(expected)} files or folders cannot be used")
    assert [line.strip().partition(": ")[0] for line in lines] == sorted(expected)
    for line in lines:
        name, _, reason = line.strip().partition(": ")
        assert expected[name] in reason, line
    for name in expected:
        path = root / name
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    assert len(read(root, stream=stream).train) == 25


def test_a_bomb_is_in_the_report(tmp_path, monkeypatch):
    """Promise 16."""
    write_folder(tmp_path, 10)
    Image.new("L", (200, 200)).save(tmp_path / "down" / "bomb.png")
    monkeypatch.setattr("pdecnn.data.image_file.MAX_PIXELS", 10_000)
    with pytest.raises(BadFilesError, match=r"bomb\.png: has more than 10,000 pixels") as caught:
        read(tmp_path)
    assert len(str(caught.value).splitlines()) == 2


def test_an_unreadable_folder_is_in_the_report(tmp_path, monkeypatch):
    write_folder(tmp_path, 10)
    (tmp_path / "down" / "locked").mkdir()
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    # Patched rather than chmod: whoever runs the tests as root may read everything.
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(BadFilesError, match=r"locked: cannot be read .Permission denied"):
        read(tmp_path)


def test_a_class_the_training_images_lack_is_in_the_report(tmp_path):
    write_folder(tmp_path / "train", 10)
    write_folder(tmp_path / "test", 10)
    (tmp_path / "test" / "third").mkdir()
    with pytest.raises(BadFilesError, match="test/third: is no class of the training images"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no such folder"),
        (lambda path: path.write_text("x"), "is a file; pass a folder .* data.name=arrays"),
        (lambda path: path.mkdir(), "holds 0 folders, but needs at least 2"),
        (lambda path: (path / "one").mkdir(parents=True), "holds 1 folders"),
    ],
)
def test_what_is_no_folder_of_images_is_said_so(make, message, tmp_path):
    make(tmp_path / "data")
    with pytest.raises(DataError, match=message):
        read(tmp_path / "data")


def test_a_large_folder_stays_on_the_disk(tmp_path, monkeypatch):
    write_folder(tmp_path, 10)
    assert isinstance(read(tmp_path).train.images, torch.Tensor)
    monkeypatch.setattr(images_module, "LARGEST_IN_MEMORY", 10 * 3 * 16 * 16 * 4 - 1)
    assert isinstance(read(tmp_path).train.images, StoredImages)
    assert isinstance(read(tmp_path, stream=False).train.images, torch.Tensor)
    monkeypatch.setattr(images_module, "LARGEST_IN_MEMORY", 10 * 3 * 16 * 16 * 4)
    assert isinstance(read(tmp_path).train.images, torch.Tensor)


def test_on_the_disk_and_in_memory_are_the_same_bits(tmp_path):
    write_folder(tmp_path, 30)
    stored, held = read(tmp_path, stream=True), read(tmp_path, stream=False)
    for part in ("train", "test"):
        one, two = getattr(stored, part), getattr(held, part)
        assert torch.equal(one.images[:], two.images)
        assert torch.equal(one.labels, two.labels)


def test_a_name_that_steers_a_terminal_is_one_harmless_line_of_the_report(tmp_path):
    write_folder(tmp_path, 10)
    (tmp_path / "down" / "two\nlines \x1b[31mred é.png").write_text("no image")
    with pytest.raises(BadFilesError) as caught:
        read(tmp_path)
    _, line = str(caught.value).splitlines()
    assert line.startswith(r"  down/two\nlines \x1b[31mred é.png: not an image")


def write_greys(folder, depths, *, names=None):
    """A grey image for each depth, of the bits it says, in two classes in turn."""
    random = np.random.default_rng(0)
    for k, bits in enumerate(depths):
        values = random.integers(0, 2**bits, (16, 16)).astype(np.uint8 if bits == 8 else np.uint16)
        path = folder / "ab"[k % 2] / (f"{k:02d}.png" if names is None else names[k])
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values).save(path)


def test_a_folder_of_bytes_stays_bytes(tmp_path):
    write_greys(tmp_path, [8] * 10)
    assert read(tmp_path, channels=None).train.dtype == torch.uint8


@pytest.mark.parametrize("stream", [False, True])
def test_each_image_is_scaled_by_its_own_depth(tmp_path, stream):
    write_greys(tmp_path, [8, 8, 16, 8, 8, 16, 8, 8, 8, 8])
    data = read(tmp_path, channels=None, stream=stream)
    found = torch.cat([data.train.images[:], data.test.images[:]])
    assert found.dtype == torch.float32
    assert (found.amin(), found.amax()) >= (0, 0.99)
    paths = sorted(tmp_path.rglob("*.png"))
    wanted = torch.stack([in_unit_range(read_image(path, 1)) for path in paths])
    assert sorted(found.flatten(1).tolist()) == sorted(wanted.flatten(1).tolist())


def test_one_deep_image_of_the_test_part_makes_all_parts_float(tmp_path):
    write_greys(tmp_path / "train", [8] * 6)
    write_greys(tmp_path / "test", [8, 16])
    data = read(tmp_path)
    assert data.train.dtype == data.test.dtype == torch.float32


def test_channels_are_those_of_the_files(tmp_path):
    write_greys(tmp_path, [8] * 6)
    assert read(tmp_path, channels=None).train.channels == 1
    # Grey images can be shown in colour, so that one in colour decides.
    Image.new("RGB", (16, 16), "red").save(tmp_path / "b" / "red.png")
    assert read(tmp_path, channels=None).train.channels == 3


def test_files_of_other_bands_are_reported_together(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    for k in range(8):
        bands = 3 if k == 5 else 6
        pixels = np.zeros((bands, 16, 16), np.uint16)
        path = tmp_path / "ab"[k % 2] / f"{k}.tif"
        path.parent.mkdir(exist_ok=True)
        tifffile.imwrite(path, pixels, photometric="minisblack", planarconfig="separate")
    with pytest.raises(BadFilesError, match=r"b/5\.tif: has 3 channels, but 6 are read") as caught:
        read(tmp_path, channels=None)
    assert len(str(caught.value).splitlines()) == 2
    (tmp_path / "b" / "5.tif").unlink()
    assert read(tmp_path, channels=None).train.images.shape[1:] == (6, 16, 16)


def scenes(number, images_each):
    return [f"scene{k // images_each:02d}_{k:03d}.png" for k in range(number * images_each)]


def test_no_group_is_in_training_and_test(tmp_path):
    names = scenes(10, 4)
    write_greys(tmp_path, [8] * len(names), names=names)
    data = read(tmp_path, group=r"scene(\d+)")
    assert not set(data.train.groups.tolist()) & set(data.test.groups.tolist())
    assert len(data.test) == 8
    assert data.train.groups.unique().numel() == 8
    again = read(tmp_path, group=r"scene(\d+)_")
    assert torch.equal(again.test.images, data.test.images)


def test_a_group_in_two_given_parts_is_refused(tmp_path):
    names = scenes(4, 2)
    write_greys(tmp_path / "train", [8] * 8, names=names)
    write_greys(tmp_path / "test", [8] * 2, names=["scene03_a.png", "scene09_b.png"])
    with pytest.raises(DataError, match="the group '03' has samples in the parts test and train"):
        read(tmp_path, group=r"scene(\d+)")
    assert read(tmp_path).train.groups is None


def test_a_name_without_a_group_is_said(tmp_path):
    write_greys(tmp_path, [8] * 8, names=[*scenes(3, 2), "other.png", "more.png"])
    with pytest.raises(DataError, match=r"data\.group='scene.*' finds no group in 'a/other.png'"):
        read(tmp_path, group=r"scene(\d+)")
