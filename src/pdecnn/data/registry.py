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
