"""CIFAR's binary files: what is written comes back, and every damage is one clear line."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from pdecnn.data.published import CIFAR10, CIFAR100, read_cifar10, read_cifar100
from pdecnn.errors import DataError

READERS = {CIFAR10: read_cifar10, CIFAR100: read_cifar100}
NUM_LABEL_BYTES = {CIFAR10: 1, CIFAR100: 2}
both = pytest.mark.parametrize("layout", READERS, ids=lambda layout: layout.name)


def record_bytes(layout):
    return NUM_LABEL_BYTES[layout] + 3072


def write_files(parent, layout, records_per_file=4):
    """Small files in the published layout; returns the inner folder and the records by file."""
    inner = parent / layout.folder
    inner.mkdir()
    random = np.random.default_rng(0)
    records = {}
    for name in (*layout.train_files, *layout.test_files):
        content = random.integers(0, 256, (records_per_file, record_bytes(layout)), dtype=np.uint8)
        content[:, NUM_LABEL_BYTES[layout] - 1] %= layout.num_classes
        (inner / name).write_bytes(content.tobytes())
        records[name] = content
    names = "\n".join(f"class {label}" for label in range(layout.num_classes))
    (inner / layout.names_file).write_text(names + "\n\n")
    return inner, records


@both
@pytest.mark.parametrize("records_per_file", [1, 4])
def test_what_is_written_comes_back(tmp_path, layout, records_per_file):
    _, records = write_files(tmp_path, layout, records_per_file)
    data = READERS[layout](tmp_path)
    train = np.concatenate([records[name] for name in layout.train_files])
    for images, expected in ((data.train, train), (data.test, records[layout.test_files[0]])):
        pixels = expected[:, NUM_LABEL_BYTES[layout] :].reshape(-1, 3, 32, 32)
        assert np.array_equal(images.images.numpy(), pixels)
        assert images.labels.tolist() == expected[:, NUM_LABEL_BYTES[layout] - 1].tolist()
        assert images.images.is_contiguous()
    assert data.name == layout.name
    assert data.train.class_names[:2] == ("class 0", "class 1")
    assert data.train.num_classes == layout.num_classes


@both
def test_parent_and_inner_folder_give_the_same(tmp_path, layout, monkeypatch):
    inner, _ = write_files(tmp_path, layout)
    expected = READERS[layout](tmp_path).train.images
    assert torch.equal(READERS[layout](inner).train.images, expected)
    assert torch.equal(READERS[layout](str(inner)).train.images, expected)
    monkeypatch.chdir(inner)
    assert torch.equal(READERS[layout](Path()).train.images, expected)
    renamed = inner.rename(tmp_path / "renamed")
    assert torch.equal(READERS[layout](renamed).train.images, expected)


def assert_refused(layout, folder, *parts):
    with pytest.raises(DataError) as caught:
        READERS[layout](folder)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert str(part) in message


@both
def test_a_missing_file_is_named(tmp_path, layout):
    for name in (*layout.train_files, *layout.test_files, layout.names_file):
        parent = tmp_path / name
        parent.mkdir()
        inner, _ = write_files(parent, layout)
        (inner / name).unlink()
        assert_refused(layout, parent, inner / name, "no such file", "unpack the binary version")
        assert_refused(layout, inner, inner / name, "no such file", "unpack the binary version")


@both
@pytest.mark.parametrize("num_bytes", [0, 1, 3072, 7000])
def test_a_truncated_file_is_named(tmp_path, layout, num_bytes):
    inner, _ = write_files(tmp_path, layout)
    path = inner / layout.test_files[0]
    os.truncate(path, num_bytes)
    assert_refused(layout, tmp_path, path, f"{num_bytes} bytes", record_bytes(layout), "unpack")


@both
def test_a_label_out_of_range_is_named(tmp_path, layout):
    inner, records = write_files(tmp_path, layout)
    path = inner / layout.train_files[-1]
    content = records[layout.train_files[-1]]
    content[2, NUM_LABEL_BYTES[layout] - 1] = layout.num_classes
    path.write_bytes(content.tobytes())
    found = f"record 2 has label {layout.num_classes}"
    assert_refused(layout, tmp_path, path, found, f"end at {layout.num_classes - 1}", "unpack")


@both
def test_a_wrong_number_of_names_is_counted(tmp_path, layout):
    inner, _ = write_files(tmp_path, layout)
    path = inner / layout.names_file
    path.write_text("cat\ndog\n")
    assert_refused(layout, tmp_path, path, f"2 class names instead of {layout.num_classes}")


@both
def test_a_names_file_that_is_not_text_is_refused(tmp_path, layout):
    inner, _ = write_files(tmp_path, layout)
    path = inner / layout.names_file
    path.write_bytes(b"\xff\xfe\x00")
    assert_refused(layout, tmp_path, path, "is not text", "unpack")


@both
def test_a_folder_without_the_data_set_says_what_it_looked_for(tmp_path, layout):
    assert_refused(layout, tmp_path, tmp_path, layout.folder, layout.train_files[0], "unpacked")


@both
def test_a_missing_folder_is_named(tmp_path, layout):
    folder = tmp_path / "nowhere"
    assert_refused(layout, folder, folder, "no such folder", layout.folder)


@both
def test_a_file_in_place_of_the_folder_is_named(tmp_path, layout):
    path = tmp_path / "file"
    path.write_text("")
    assert_refused(layout, path, path, "is a file, not a folder")
    (tmp_path / layout.folder).write_text("")
    assert_refused(layout, tmp_path, layout.names_file, "cannot be read")


@both
def test_a_folder_in_place_of_a_file_is_named(tmp_path, layout):
    inner, _ = write_files(tmp_path, layout)
    path = inner / layout.test_files[0]
    path.unlink()
    path.mkdir()
    assert_refused(layout, tmp_path, path, "cannot be read")


@both
@pytest.mark.parametrize("method", ["iterdir", "read_bytes"])
def test_an_unreadable_path_is_named(tmp_path, layout, method, monkeypatch):
    inner, _ = write_files(tmp_path, layout)

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    # Patched rather than chmod: whoever runs the tests as root may read everything.
    monkeypatch.setattr(Path, method, refuse)
    assert_refused(layout, inner, inner, "cannot be read (Permission denied)", "permissions")
