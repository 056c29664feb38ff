"""Folders of images without classes, of any sizes, and the same packed into one file."""

import numpy as np
import pytest
import torch
from PIL import Image

from pdecnn.data.images import pack_pictures, read_pictures
from pdecnn.errors import BadFilesError, DataError


def write_picture(path, height, width, seed=0, *, colour=False):
    shape = (height, width, 3) if colour else (height, width)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return torch.from_numpy(pixels)


@pytest.fixture
def folder(tmp_path):
    for seed, (name, height, width) in enumerate(
        [("train/b", 5, 7), ("train/sub/a", 6, 4), ("train/c", 3, 9), ("test/x", 8, 8)]
    ):
        write_picture(tmp_path / "data" / f"{name}.png", height, width, seed)
    return tmp_path / "data"


def test_pictures_keep_their_sizes_and_come_by_name(folder):
    data = read_pictures(folder, channels=1)
    assert data.train.names == ("train/b.png", "train/c.png", "train/sub/a.png")
    assert data.train.sizes.tolist() == [[5, 7], [3, 9], [6, 4]]
    assert data.test.names == ("test/x.png",)
    wanted = torch.from_numpy(np.array(Image.open(folder / "train/c.png")))
    assert torch.equal(data.train.picture(1), wanted[None])
    chosen = data.train.subset(torch.tensor([2, 0]))
    assert chosen.names == ("train/sub/a.png", "train/b.png")
    assert chosen.picture(0).shape == (1, 6, 4)


def test_without_parts_a_test_set_is_held_out(tmp_path):
    for k in range(10):
        write_picture(tmp_path / f"{k}.png", 4, 4, k)
    data = read_pictures(tmp_path, channels=3)
    assert (len(data.train), len(data.test)) == (8, 2)
    assert data.train.channels == 3


def test_a_packed_folder_is_the_same_data(folder, tmp_path):
    file = tmp_path / "packed.npz"
    assert pack_pictures(folder, file, channels=1) == {"train": 3, "test": 1}
    plain, packed = read_pictures(folder, channels=1), read_pictures(file, channels=1)
    for part in ("train", "test"):
        one, two = getattr(plain, part), getattr(packed, part)
        assert torch.equal(one.images, two.images)
        assert torch.equal(one.sizes, two.sizes)
        assert one.names == two.names
    with pytest.raises(DataError, match=r"packed with 1 channels.*data\.channels=1"):
        read_pictures(file, channels=3)
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(DataError, match=r"folder\.npz: cannot be written .*another --output"):
        pack_pictures(folder, tmp_path / "folder.npz", channels=1)


def test_all_files_that_cannot_be_read_are_named_at_once(folder):
    (folder / "train" / "bad.png").write_bytes(b"no image")
    (folder / "test" / "empty.png").write_bytes(b"")
    with pytest.raises(BadFilesError, match=r"(?s)2 files.*test/empty\.png.*train/bad\.png"):
        read_pictures(folder, channels=1)


def test_what_is_no_place_of_pictures_is_refused(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        read_pictures(tmp_path / "nowhere", channels=1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no image"):
        read_pictures(tmp_path / "empty", channels=1)
    np.savez(tmp_path / "other.npz", x_train=np.zeros((2, 1, 4, 4), np.uint8))
    with pytest.raises(DataError, match=r"lacks size_train.*pdecnn data pack"):
        read_pictures(tmp_path / "other.npz", channels=1)
    with pytest.raises(DataError, match=r"call it packed\.npz"):
        pack_pictures(tmp_path, tmp_path / "packed.zip", channels=1)
    with pytest.raises(DataError, match="missing: no such folder; create it first"):
        pack_pictures(tmp_path, tmp_path / "missing" / "packed.npz", channels=1)
