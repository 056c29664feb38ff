"""Folders `images` and `labels`, of pictures or volumes, and the same packed into one file."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image

from pdecnn.data.image_file import read_label_image, write_label_image
from pdecnn.data.registry import recognize
from pdecnn.data.segmented import pack_segmented, read_segmented
from pdecnn.errors import BadFilesError, DataError
from tests.unit.data.test_pictures import write_picture
from tests.volumes import make_ball, write_ball, write_balls, write_volume


def write_labels(path, labels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(labels).save(path)


def write_pair(folder, name, size, seed=0, *, suffix=".png", colour=False):
    write_picture(folder / "images" / f"{name}{suffix}", *size, seed, colour=colour)
    labels = np.random.default_rng(seed).integers(0, 3, size, dtype=np.uint8)
    write_labels(folder / "labels" / f"{name}.png", labels)
    return labels


@pytest.fixture
def folder(tmp_path):
    for k in range(6):
        write_pair(tmp_path / "data", f"{k}", (5 + k, 8 - k % 3), k, suffix=".jpg", colour=True)
    return tmp_path / "data"


def test_images_and_labels_of_the_same_stem_belong_together(folder):
    data = read_segmented(folder, channels=None)
    assert (len(data.train), len(data.test)) == (5, 1)
    assert data.train.class_names == ("background", "1", "2")
    place = data.train.names.index("images/3.jpg")
    labels = np.array(Image.open(folder / "labels" / "3.png"))
    assert torch.equal(data.train.mask(place), torch.from_numpy(labels))
    assert data.train.picture(place).shape == (3, 8, 8)
    assert recognize(folder) == {"segmented": 2}


def test_groups_are_never_split(tmp_path):
    for k in range(12):
        write_pair(tmp_path, f"patient{k % 6}_{k}", (5, 6), k)
    data = read_segmented(tmp_path, channels=None, group="patient([0-9])")
    assert len(data.test) == 2
    assert not {name[:15] for name in data.test.names} & {name[:15] for name in data.train.names}
    with pytest.raises(DataError, match="finds no group in"):
        read_segmented(tmp_path, channels=None, group="scan([0-9])")


@pytest.mark.parametrize("group", [None, r"/(\d)"])
def test_packed_volumes_are_the_same_data_without_nibabel(group, tmp_path, monkeypatch):
    folder, file = write_balls(tmp_path / "data"), tmp_path / "packed.npz"
    assert pack_segmented(folder, file, channels=None, group=group) == {"train": 10, "test": 2}
    if group is not None:  # both parts have volumes of the same number
        with pytest.raises(DataError, match="has samples in the parts"):
            read_segmented(file, channels=None)
        return
    plain = read_segmented(folder, channels=None)
    monkeypatch.setitem(sys.modules, "nibabel", None)
    packed = read_segmented(file, channels=None)
    for part in ("train", "test"):
        one, two = getattr(plain, part), getattr(packed, part)
        for name in ("images", "masks", "sizes"):
            assert torch.equal(getattr(one, name), getattr(two, name))
        assert one.names == two.names
    with np.load(file, allow_pickle=False) as arrays:
        assert set(arrays) >= {"x_train", "y_train", "name_train", "spacing_train"}
    assert recognize(file) == {"segmented": 3}
    with pytest.raises(DataError, match=r"has 1 channels, but data\.channels=3"):
        read_segmented(file, channels=3)


def test_all_bad_files_are_named_at_once(tmp_path):
    for k in range(3):
        write_pair(tmp_path, f"{k}", (5, 6), k)
    write_picture(tmp_path / "images" / "alone.png", 4, 4)
    write_labels(tmp_path / "labels" / "orphan.png", np.zeros((4, 4), np.uint8))
    write_picture(tmp_path / "images" / "small.png", 4, 4)
    write_labels(tmp_path / "labels" / "small.png", np.zeros((4, 5), np.uint8))
    write_picture(tmp_path / "images" / "colour.png", 4, 4)
    write_picture(tmp_path / "labels" / "colour.png", 4, 4, colour=True)
    write_labels(tmp_path / "labels" / "empty.png", np.zeros((4, 4), np.uint8))
    (tmp_path / "images" / "empty.png").touch()
    with pytest.raises(BadFilesError) as caught:
        read_segmented(tmp_path, channels=None)
    said = str(caught.value)
    assert "images/alone.png: has no labels" in said
    assert "labels/orphan.png: has no image" in said
    assert "images/empty.png: is empty" in said
    assert "labels/empty.png" not in said
    assert "images/small.png: has 4 x 4 pixels, but labels/small.png 4 x 5" in said
    assert "images/colour.png: labels/colour.png is in colour" in said
    assert "5 files or folders" in said


@pytest.mark.parametrize(
    ("name", "kind", "complaint"),
    [
        ("1.jpg", np.uint8, "is a JPEG file, which changes numbers"),
        ("1.tif", np.float32, "holds floating numbers"),
    ],
)
def test_pictures_that_cannot_hold_classes_are_refused(name, kind, complaint, tmp_path):
    for k in range(3):
        write_pair(tmp_path, f"{k}", (5, 6), k)
    (tmp_path / "labels" / "1.png").unlink()
    Image.fromarray(np.zeros((5, 6), kind)).save(tmp_path / "labels" / name)
    with pytest.raises(BadFilesError, match=f"labels/{name} {complaint}"):
        read_segmented(tmp_path, channels=None)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (np.array([0, 1.5], np.float32), "has the label 1.5"),
        (np.array([0, -1], np.int16), "has the label -1"),
        (np.array([0, 300], np.int16), "has the label 300"),
    ],
)
def test_labels_that_are_no_classes_are_refused(values, complaint, tmp_path):
    image, labels = make_ball((4, 5, 6))
    for k in range(3):
        write_volume(tmp_path / "images" / f"{k}.nii", image)
        write_volume(tmp_path / "labels" / f"{k}.nii", labels)
    write_volume(tmp_path / "labels" / "1.nii", values[labels.clip(0, 1)])
    with pytest.raises(BadFilesError, match=f"images/1.nii: labels/1.nii {complaint}"):
        read_segmented(tmp_path, channels=None)


def test_masks_of_0_and_255_are_refused_in_one_line(tmp_path):
    for k in range(5):
        write_picture(tmp_path / "images" / f"{k}.png", 4, 4, k)
        write_labels(
            tmp_path / "labels" / f"{k}.png", np.uint8([[0, 255]]).repeat(4, 0).repeat(2, 1)
        )
    with pytest.raises(DataError, match=r"labels of the training images are 0, 255; number"):
        read_segmented(tmp_path, channels=None)


def test_a_class_that_only_the_test_has_is_refused(tmp_path):
    for part in ("train", "test"):
        write_picture(tmp_path / part / "images" / "a.png", 4, 4)
        labels = np.zeros((4, 4), np.uint8)
        labels[0], labels[1] = 1, 2 if part == "test" else 0
        write_labels(tmp_path / part / "labels" / "a.png", labels)
    with pytest.raises(DataError, match=r"test/images/a.png has the label 2, which no training"):
        read_segmented(tmp_path, channels=None)


def test_a_folder_without_labels_is_refused(tmp_path):
    write_picture(tmp_path / "a.png", 4, 4)
    with pytest.raises(DataError, match="holds no images with labels"):
        read_segmented(tmp_path, channels=None)
    with pytest.raises(DataError, match="no such folder"):
        read_segmented(tmp_path / "none", channels=None)


def test_images_beside_volumes_are_refused(tmp_path):
    write_balls(tmp_path)
    write_pair(tmp_path / "train", "a", (4, 4))
    with pytest.raises(DataError, match="holds images and volumes"):
        read_segmented(tmp_path, channels=None)


def test_volumes_of_other_channels_are_refused(tmp_path):
    image, labels = make_ball((4, 5, 6))
    for k, voxels in enumerate((image, image, np.stack([image, image], -1))):
        write_volume(tmp_path / "images" / f"{k}.nii", voxels)
        write_volume(tmp_path / "labels" / f"{k}.nii", labels)
    with pytest.raises(DataError, match=r"2.nii has 2 channels, but images/0.nii 1"):
        read_segmented(tmp_path, channels=None)


def test_label_images_keep_their_numbers_whatever_their_colours(tmp_path):
    labels = torch.arange(12).view(3, 4)
    write_label_image(tmp_path / "a.png", labels)
    assert np.array_equal(read_label_image(tmp_path / "a.png"), labels.numpy())
    with Image.open(tmp_path / "a.png") as image:
        assert image.mode == "P"
        assert (
            len({image.convert("RGB").getpixel((x, y)) for x in range(4) for y in range(3)}) == 12
        )


@pytest.mark.parametrize("missing", ["images", "labels"])
def test_a_folder_that_is_missing_is_said_once(missing, folder):
    (folder / missing).rename(folder.parent / "elsewhere")
    with pytest.raises(DataError, match=f"none called {missing}; put") as caught:
        read_segmented(folder, channels=None)
    assert "\n" not in str(caught.value)


def test_two_images_of_one_stem_are_not_taken_for_one(folder):
    write_picture(folder / "images" / "3.png", 8, 8, 0, colour=True)
    with pytest.raises(BadFilesError, match=r"3\.png: is called as 3\.jpg but for its ending"):
        read_segmented(folder, channels=None)


@pytest.mark.parametrize("sizes", [[(5, 6)] * 6, [(5 + k, 6) for k in range(6)]])
def test_labels_without_a_background_are_refused_whatever_the_sizes(sizes, tmp_path):
    for k, size in enumerate(sizes):
        write_labels(tmp_path / "labels" / f"{k}.png", write_pair(tmp_path, f"{k}", size, k) + 1)
    with pytest.raises(DataError, match="the labels of the training images are 1, 2, 3;"):
        read_segmented(tmp_path, channels=None)


def test_a_part_called_val_counts_and_one_without_train_is_refused(tmp_path):
    for part in ("train", "val", "test"):
        for k in range(3):
            write_pair(tmp_path / part, f"{k}", (5, 6), k)
    data = read_segmented(tmp_path, channels=None)
    assert data.validation is not None
    assert len(data.train) == len(data.validation) == len(data.test) == 3
    (tmp_path / "train").rename(tmp_path / "training")
    with pytest.raises(DataError, match="call the parts train, validation and test"):
        read_segmented(tmp_path, channels=None)
    assert recognize(tmp_path) == {}


def test_volumes_without_a_distance_between_their_voxels_are_refused(tmp_path):
    write_ball(tmp_path, "1.nii", (5, 6, 7))
    path = tmp_path / "images" / "1.nii"
    content = bytearray(path.read_bytes())
    content[88:92] = np.array(np.nan, "<f4").tobytes()  # pixdim of the third axis
    path.write_bytes(content)
    with pytest.raises(BadFilesError, match=r"images/1\.nii: says no distance"):
        read_segmented(tmp_path, channels=None)


def test_labels_that_lost_the_axes_of_their_volume_are_refused(tmp_path):
    for k in range(5):
        image, labels = make_ball((6, 7, 5), k)
        axes = np.diag([-1.0, -1, 1, 1])
        axes[:2, 3] = 100, 120
        write_volume(tmp_path / "images" / f"{k}.nii", image, axes)
        write_volume(tmp_path / "labels" / f"{k}.nii", labels, np.eye(4) if k == 3 else axes)
    with pytest.raises(BadFilesError, match=r"labels/3\.nii has its axes in another order") as said:
        read_segmented(tmp_path, channels=None)
    assert "1 files" in str(said.value)


def test_labels_in_another_order_of_axes_but_of_the_same_place_are_turned(tmp_path):
    for k in range(5):
        image, labels = make_ball((6, 7, 5), k)
        axes = np.diag([2.0, 2, 3, 1])
        axes[:3, 3] = 10, 20, 30
        other = axes @ np.array([[-1.0, 0, 0, 5], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
        write_volume(tmp_path / "images" / f"{k}.nii", image, axes)
        write_volume(tmp_path / "labels" / f"{k}.nii", np.ascontiguousarray(labels[::-1]), other)
    data = read_segmented(tmp_path, channels=None)
    _, labels = make_ball((6, 7, 5), int(data.train.names[0].split("/")[1][0]))
    assert torch.equal(data.train.mask(0), torch.from_numpy(labels.astype(np.uint8)))


@pytest.mark.parametrize("wrong", ["labels", "rows", "spacing"])
def test_a_packed_file_that_was_changed_is_named(wrong, folder, tmp_path):
    file = tmp_path / "packed.npz"
    pack_segmented(folder, file, channels=None)
    arrays = dict(np.load(file))
    if wrong == "labels":
        arrays["y_train"] = arrays["y_train"].astype(np.int64) - 1
    elif wrong == "spacing":
        arrays["spacing_train"] = 0 * arrays["spacing_train"]
    else:
        arrays = {name: array[:0] for name, array in arrays.items()}
    np.savez(file, **arrays)
    with pytest.raises(DataError, match=r"packed\.npz: .*pack it again"):
        read_segmented(file, channels=None)
