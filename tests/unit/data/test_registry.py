"""Data sets by name."""

import pytest

from pdecnn.data import registry
from pdecnn.data.published import CIFAR10, CIFAR100
from pdecnn.data.registry import DATASETS, find_dataset, needs_folder, read_dataset
from pdecnn.errors import ConfigError, DataError
from tests.unit.data import test_cifar, test_stl10


def test_the_names():
    published, own = DATASETS[:4], DATASETS[4:]
    assert published == ("digits", "stl10", "cifar10", "cifar100")
    assert own == ("images", "arrays", "pictures", "sounds", "segmented")
    assert [name for name in DATASETS if not needs_folder(name)] == ["digits"]


def test_the_digits_need_no_folder():
    assert read_dataset("digits").name == "digits"


@pytest.mark.parametrize("name", ["stl10", "cifar10", "cifar100"])
def test_a_folder_reaches_the_reader(name, tmp_path, monkeypatch):
    versions, _ = registry._IN_FOLDER[name]
    monkeypatch.setitem(registry._IN_FOLDER, name, (versions, lambda folder: (name, folder)))
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


@pytest.mark.parametrize("place", ["", "cifar100", "cifar-100-binary"])
def test_one_folder_may_hold_several_data_sets(place, tmp_path):
    test_cifar.write_files(tmp_path, CIFAR10)
    test_stl10.write_files(tmp_path)
    parent = tmp_path / "cifar100" if place == "cifar100" else tmp_path
    parent.mkdir(exist_ok=True)
    inner, _ = test_cifar.write_files(parent, CIFAR100)
    given = inner if place == "cifar-100-binary" else tmp_path
    assert find_dataset("cifar100", given) == inner
    assert find_dataset("cifar10", tmp_path) == tmp_path / "cifar-10-batches-bin"
    assert find_dataset("stl10", tmp_path) == tmp_path / "stl10_binary"


def test_a_data_set_that_is_not_in_the_folder_is_named(tmp_path):
    inner, _ = test_cifar.write_files(tmp_path, CIFAR10)
    with pytest.raises(DataError, match=r"neither stl10_binary nor train_X\.bin"):
        find_dataset("stl10", tmp_path)
    (inner / "test_batch.bin").unlink()
    with pytest.raises(DataError, match=r"test_batch\.bin: no such file; unpack"):
        find_dataset("cifar10", tmp_path)
    with pytest.raises(DataError, match="built in"):
        find_dataset("digits", tmp_path)
