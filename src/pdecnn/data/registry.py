"""The data sets a config can name: those of Section 5, and the digits."""

from pathlib import Path

from pdecnn.data.cifar import CIFAR10_VERSIONS, CIFAR100_VERSIONS, read_cifar10, read_cifar100
from pdecnn.data.digits import read_digits
from pdecnn.data.image_set import DataSet
from pdecnn.data.published_folder import PublishedFiles, PublishedFolder, find_version, is_archive
from pdecnn.data.stl10 import STL10_VERSIONS, read_stl10
from pdecnn.errors import DataError, unknown_name

_BUILT_IN = {"digits": read_digits}
_IN_FOLDER = {
    "stl10": (STL10_VERSIONS, read_stl10),
    "cifar10": (CIFAR10_VERSIONS, read_cifar10),
    "cifar100": (CIFAR100_VERSIONS, read_cifar100),
}
PUBLISHED: dict[str, tuple[PublishedFolder, ...]] = {
    name: versions for name, (versions, _) in _IN_FOLDER.items()
}
"""What is published of each data set, the version to fetch first."""
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
    versions, read = _IN_FOLDER[name]
    if folder is None:
        first = versions[0]
        raise DataError(
            f"data set {name!r} is not built in and no folder was given; pass --data DIR with "
            f"{first.title} in it: it expects {first.folder}/{first.train_files[0]} and the files "
            f"beside that, or {first.archive}, which `pdecnn data download {name}` fetches"
        )
    return read(folder)


def published_versions(name: str) -> tuple[PublishedFolder, ...]:
    """What is published of a data set, by name."""
    if name not in PUBLISHED:
        raise unknown_name("published data set", name, PUBLISHED)
    return PUBLISHED[name]


def find_dataset(name: str, folder: Path) -> Path:
    """Where a data set that needs files lies: in `folder`, or in `folder/name`.

    So one folder may hold several data sets, each under its own name or as published. A file that
    is missing in an unpacked one is a DataError here already, before anything is read.
    """
    if not needs_folder(name):
        raise DataError(f"data set {name!r} is built in; it has no folder")
    versions = published_versions(name)
    try:
        version, found = find_version(versions, folder)
    except DataError:
        if not (folder / name).is_dir():
            raise
        version, found = find_version(versions, folder / name)
    if not is_archive(found):
        for file in version.files:
            if not (found / file).is_file():
                remedy = PublishedFiles(version, found).remedy
                raise DataError(f"{found / file}: no such file; {remedy}")
    return found
