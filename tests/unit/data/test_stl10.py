"""STL-10's binary files: by columns, labels from 1, and every damage is one clear line."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from pdecnn.data.published import STL10, read_stl10
from pdecnn.data.registry import read_dataset
from pdecnn.errors import DataError

NAMES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
IMAGE_BYTES = 27648
IMAGES = [STL10.train_files[0], STL10.test_files[0]]
LABELS = [STL10.train_files[1], STL10.test_files[1]]


def write_images(path, images):
    """Images (n, 3, 96, 96) as published: a channel after the other, each by columns."""
    by_columns = [channel.tobytes(order="F") for image in images for channel in image]
    path.write_bytes(b"".join(by_columns))


def write_files(parent, num_train=3, num_test=2):
    """Small files in the published layout; returns the inner folder and what stands in them."""
    inner = parent / "stl10_binary"
    inner.mkdir()
    random = np.random.default_rng(0)
    written = {}
    for part, count in (("train", num_train), ("test", num_test)):
        images = random.integers(0, 256, (count, 3, 96, 96), dtype=np.uint8)
        labels = random.integers(1, 11, count, dtype=np.uint8)
        write_images(inner / f"{part}_X.bin", images)
        (inner / f"{part}_y.bin").write_bytes(labels.tobytes())
        written[part] = (images, labels)
    (inner / "class_names.txt").write_text("\n".join(NAMES) + "\n")
    return inner, written


@pytest.mark.parametrize(("num_train", "num_test"), [(3, 2), (1, 1)])
def test_what_is_written_comes_back(tmp_path, num_train, num_test):
    _, written = write_files(tmp_path, num_train, num_test)
    data = read_stl10(tmp_path)
    assert data.name == "stl10"
    for part, found in (("train", data.train), ("test", data.test)):
        images, labels = written[part]
        assert np.array_equal(found.images.numpy(), images)
        assert found.images.is_contiguous()
        assert found.labels.tolist() == [label - 1 for label in labels.tolist()]
        assert found.class_names == NAMES


def test_a_channel_is_stored_by_columns(tmp_path):
    inner, _ = write_files(tmp_path, num_train=1)
    # The file's first 96 bytes run down the left column; red, green, blue follow each other.
    content = np.zeros(IMAGE_BYTES, np.uint8)
    content[:96] = range(96)
    content[9216 + 95 * 96] = 200
    content[2 * 9216 + 95] = 201
    (inner / "train_X.bin").write_bytes(content.tobytes())
    image = read_stl10(tmp_path).train.images[0]
    assert image[0, :, 0].tolist() == list(range(96))
    assert image[1, 0, 95] == 200
    assert image[2, 95, 0] == 201
    assert image.count_nonzero() == 95 + 2


def test_labels_1_to_10_become_0_to_9(tmp_path):
    inner, _ = write_files(tmp_path, num_train=10)
    (inner / "train_y.bin").write_bytes(bytes(range(1, 11)))
    labels = read_stl10(tmp_path).train.labels
    assert labels.dtype == torch.int64
    assert labels.tolist() == list(range(10))


def test_parent_inner_and_renamed_folder_give_the_same(tmp_path, monkeypatch):
    inner, written = write_files(tmp_path)
    expected = torch.from_numpy(written["train"][0])
    assert torch.equal(read_dataset("stl10", tmp_path).train.images, expected)
    assert torch.equal(read_stl10(str(inner)).train.images, expected)
    monkeypatch.chdir(inner)
    assert torch.equal(read_stl10(Path()).train.images, expected)
    renamed = inner.rename(tmp_path / "renamed")
    assert torch.equal(read_stl10(renamed).train.images, expected)


def test_the_unlabelled_images_of_the_archive_are_left_alone(tmp_path):
    inner, _ = write_files(tmp_path)
    (inner / "unlabeled_X.bin").write_bytes(b"not read")
    assert len(read_stl10(tmp_path).train) == 3


def assert_refused(folder, *parts):
    with pytest.raises(DataError) as caught:
        read_stl10(folder)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert str(part) in message


@pytest.mark.parametrize("name", [*IMAGES, *LABELS, STL10.names_file])
def test_a_missing_file_is_named(tmp_path, name):
    inner, _ = write_files(tmp_path)
    (inner / name).unlink()
    remedy = "unpack the binary version of STL-10 there again"
    assert_refused(tmp_path, inner / name, "no such file", remedy)
    assert_refused(inner, inner / name, "no such file", remedy)


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("num_bytes", [0, 1, IMAGE_BYTES - 1, IMAGE_BYTES + 1])
def test_a_truncated_file_of_images_is_named(tmp_path, name, num_bytes):
    inner, _ = write_files(tmp_path)
    os.truncate(inner / name, num_bytes)
    assert_refused(
        tmp_path, inner / name, f"{num_bytes} bytes are not", f"{IMAGE_BYTES} bytes", "unpack"
    )


@pytest.mark.parametrize("name", LABELS)
def test_an_empty_file_of_labels_is_named(tmp_path, name):
    inner, _ = write_files(tmp_path)
    os.truncate(inner / name, 0)
    assert_refused(tmp_path, inner / name, "0 bytes are not one or more whole records", "unpack")


def test_counts_of_images_and_labels_that_differ_are_named(tmp_path):
    inner, _ = write_files(tmp_path)
    os.truncate(inner / "train_X.bin", 2 * IMAGE_BYTES)
    assert_refused(
        tmp_path, inner / "train_X.bin", "2 images", "train_y.bin has 3 labels", "unpack"
    )


def test_a_missing_label_is_counted(tmp_path):
    inner, _ = write_files(tmp_path)
    os.truncate(inner / "test_y.bin", 1)
    assert_refused(tmp_path, inner / "test_X.bin", "2 images", "test_y.bin has 1 labels", "unpack")


@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize(
    ("label", "border"), [(0, "start at 1"), (11, "end at 10"), (255, "end at 10")]
)
def test_a_label_out_of_range_is_named(tmp_path, name, label, border):
    inner, _ = write_files(tmp_path, num_test=3)
    (inner / name).write_bytes(bytes([1, label, 10]))
    assert_refused(tmp_path, inner / name, f"record 1 has label {label}, but labels {border}")


def test_a_wrong_number_of_names_is_counted(tmp_path):
    inner, _ = write_files(tmp_path)
    path = inner / "class_names.txt"
    path.write_text("cat\ndog\n")
    assert_refused(tmp_path, path, "2 class names instead of 10", "unpack")


def test_a_names_file_that_is_not_text_is_refused(tmp_path):
    inner, _ = write_files(tmp_path)
    path = inner / "class_names.txt"
    path.write_bytes(b"\xff\xfe\x00")
    assert_refused(tmp_path, path, "is not text", "unpack")


def test_a_folder_without_the_data_set_says_what_it_looked_for(tmp_path):
    assert_refused(tmp_path, tmp_path, "neither stl10_binary nor train_X.bin", "STL-10")


def test_a_missing_folder_is_named(tmp_path):
    folder = tmp_path / "nowhere"
    assert_refused(folder, folder, "no such folder", "stl10_binary")


def test_a_file_in_place_of_the_folder_is_named(tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    assert_refused(path, path, "is a file, not a folder", "stl10_binary")


def test_a_folder_in_place_of_a_file_is_named(tmp_path):
    inner, _ = write_files(tmp_path)
    path = inner / "test_X.bin"
    path.unlink()
    path.mkdir()
    assert_refused(tmp_path, path, "cannot be read")
