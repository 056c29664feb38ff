"""Data sets by name."""

import pytest

import pdecnn.data
from pdecnn.data import registry
from pdecnn.data.registry import DATASETS, needs_folder, read_dataset
from pdecnn.errors import ConfigError, DataError


def test_the_names():
    assert DATASETS == ("digits", "stl10", "cifar10", "cifar100")
    assert [name for name in DATASETS if needs_folder(name)] == ["stl10", "cifar10", "cifar100"]


def test_the_digits_need_no_folder():
    assert read_dataset("digits").name == "digits"


@pytest.mark.parametrize("name", ["stl10", "cifar10", "cifar100"])
def test_a_folder_reaches_the_reader(name, tmp_path, monkeypatch):
    published, _ = registry._IN_FOLDER[name]
    monkeypatch.setitem(registry._IN_FOLDER, name, (published, lambda folder: (name, folder)))
    assert read_dataset(name, tmp_path) == (name, tmp_path)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("stl10", "stl10_binary/train_X.bin"),
        ("cifar10", "cifar-10-batches-bin/data_batch_1.bin"),
        ("cifar100", "cifar-100-binary/train.bin"),
    ],
)
def test_a_missing_folder_says_what_to_pass(name, file):
    with pytest.raises(DataError, match=f"pass --data DIR .* expects {file}"):
        read_dataset(name)


def test_an_unknown_name_names_the_nearest():
    with pytest.raises(ConfigError, match="unknown data set 'cifar-10'; did you mean 'cifar10'"):
        read_dataset("cifar-10")


def test_every_public_name_exists():
    assert all(hasattr(pdecnn.data, name) for name in pdecnn.data.__all__)
