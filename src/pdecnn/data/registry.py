"""The data sets a config can name: those of Section 5, and the digits."""

from pathlib import Path

from pdecnn.data.cifar import CIFAR10, CIFAR100, read_cifar10, read_cifar100
from pdecnn.data.digits import read_digits
from pdecnn.data.image_set import DataSet
from pdecnn.data.stl10 import STL10, read_stl10
from pdecnn.errors import DataError, unknown_name

_BUILT_IN = {"digits": read_digits}
_IN_FOLDER = {
    STL10.name: (STL10, read_stl10),
    CIFAR10.name: (CIFAR10, read_cifar10),
    CIFAR100.name: (CIFAR100, read_cifar100),
}
DATASETS: tuple[str, ...] = (*_BUILT_IN, *_IN_FOLDER)


def needs_folder(name: str) -> bool:
    """Whether the data set of that name is read from a folder of the user's."""
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    return name in _IN_FOLDER


def read_dataset(name: str, folder: Path | str | None = None) -> DataSet:
    """The data set of that name, read from `folder` if it is not built in."""
    if not needs_folder(name):
        return _BUILT_IN[name]()
    published, read = _IN_FOLDER[name]
    if folder is None:
        raise DataError(
            f"data set {name!r} is not built in and no folder was given; pass --data DIR with the "
            f"binary version of {published.title} in it: it expects "
            f"{published.folder}/{published.train_files[0]} and the files beside that"
        )
    return read(folder)


def find_dataset(name: str, folder: Path) -> Path:
    """Where a data set that needs files lies: in `folder`, or in `folder/name`.

    So one folder may hold several data sets, each under its own name or as published. A file that
    is missing is a DataError here already, before anything is read.
    """
    if not needs_folder(name):
        raise DataError(f"data set {name!r} is built in; it has no folder")
    published, _ = _IN_FOLDER[name]
    try:
        found = published.find(folder)
    except DataError:
        if not (folder / name).is_dir():
            raise
        found = published.find(folder / name)
    for file in (*published.train_files, *published.test_files, published.names_file):
        if not (found / file).is_file():
            raise DataError(f"{found / file}: no such file; {published.remedy}")
    return found
