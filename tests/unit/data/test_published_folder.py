"""Every published form of a data set gives the same images, bit for bit."""

import shutil

import pytest
import torch

from pdecnn.data.published import (
    CIFAR10,
    CIFAR10_PYTHON,
    CIFAR10_VERSIONS,
    CIFAR100_PYTHON,
    find_version,
)
from pdecnn.data.registry import find_dataset, read_dataset
from pdecnn.errors import DataError
from tests.published_data import VERSIONS, contents, python_2_pickle, write_archive, write_version

each = pytest.mark.parametrize("version", VERSIONS, ids=lambda v: f"{v.name}-{v.version}")


def assert_same(found, expected):
    for part in ("train", "test"):
        one, two = getattr(found, part), getattr(expected, part)
        assert torch.equal(one.images, two.images)
        assert torch.equal(one.labels, two.labels)
        assert one.class_names == two.class_names


@each
def test_folder_and_archive_are_read_to_the_same_bits(version, tmp_path):
    folder = write_version(tmp_path / "unpacked", version)
    expected = read_dataset(version.name, folder)
    assert_same(read_dataset(version.name, folder.parent), expected)
    archives = tmp_path / "archives"
    archives.mkdir()
    archive = write_archive(archives / version.archive, version)
    before = sorted(tmp_path.rglob("*"))
    assert_same(read_dataset(version.name, archive), expected)
    assert_same(read_dataset(version.name, archives), expected)
    renamed = shutil.copy(archive, tmp_path / "by another name.tgz")
    assert_same(read_dataset(version.name, renamed), expected)
    renamed.unlink()
    assert sorted(tmp_path.rglob("*")) == before  # reading unpacks nothing


@each
def test_a_root_of_torchvision_is_read(version, tmp_path):
    """It holds the archive beside the unpacked folder, of which the latter is read."""
    folder = write_version(tmp_path, version)
    (tmp_path / version.archive).write_bytes(b"never looked at")
    assert_same(read_dataset(version.name, tmp_path), read_dataset(version.name, folder))
    assert find_dataset(version.name, tmp_path) == folder


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_binary_and_the_python_version_are_the_same_images(name, tmp_path):
    binary, python = (v for v in VERSIONS if v.name == name)
    expected = read_dataset(name, write_version(tmp_path / "binary", binary))
    assert_same(read_dataset(name, write_version(tmp_path / "python", python)), expected)
    assert expected.train.labels.max() == min(binary.num_classes, 20) - 1


def test_an_unpacked_version_comes_before_an_archive(tmp_path):
    write_archive(tmp_path / CIFAR10.archive, CIFAR10)
    assert find_version(CIFAR10_VERSIONS, tmp_path)[1] == tmp_path / CIFAR10.archive
    folder = write_version(tmp_path, CIFAR10_PYTHON)
    assert find_version(CIFAR10_VERSIONS, tmp_path) == (CIFAR10_PYTHON, folder)


def test_a_folder_called_train_is_no_cifar100(tmp_path):
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match="holds neither cifar-100-binary"):
        read_dataset("cifar100", tmp_path)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"labels": [0, 1]}, "does not hold as many rows"),
        ({"data": [1, 2], "labels": [0, 1]}, "does not hold as many rows"),
        ({"labels": [0] * 19 + ["1"]}, "does not hold as many rows"),
        ({"labels": [0] * 19 + [10]}, "record 19 has label 10"),
        ({"labels": [0] * 19 + [-7]}, "record 19 has label -1, but labels start at 0"),
    ],
)
def test_a_python_file_of_other_content_is_named(values, complaint, tmp_path):
    folder = write_version(tmp_path, CIFAR10_PYTHON)
    good = read_dataset("cifar10", folder).test
    data = good.images.flatten(1).numpy()
    content = {"data": data, "labels": [0] * len(data)} | values
    (folder / "test_batch").write_bytes(python_2_pickle(content))
    with pytest.raises(DataError, match=complaint) as caught:
        read_dataset("cifar10", folder)
    assert str(folder / "test_batch") in str(caught.value)
    assert "unpack the python version of CIFAR-10" in str(caught.value)


def test_bad_names_in_a_python_file_are_counted(tmp_path):
    folder = write_version(tmp_path, CIFAR100_PYTHON)
    for names, complaint in ((["one"], "1 class names instead of 100"), (3, "no list of class")):
        (folder / "meta").write_bytes(python_2_pickle({"fine_label_names": names}))
        with pytest.raises(DataError, match=complaint):
            read_dataset("cifar100", folder)


def test_damage_inside_an_archive_names_file_and_remedy(tmp_path, monkeypatch):
    files = contents(CIFAR10) | {"test_batch.bin": b"short"}
    monkeypatch.setattr("tests.published_data.contents", lambda version: files)
    path = write_archive(tmp_path / CIFAR10.archive, CIFAR10)
    with pytest.raises(DataError, match="5 bytes are not one or more whole records") as caught:
        read_dataset("cifar10", path)
    assert str(path / CIFAR10.folder / "test_batch.bin") in str(caught.value)
    assert "pdecnn data download cifar10" in str(caught.value)
