"""The data sets a config can name: those of Section 5, the digits, and the user's own."""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch
from torch.nn.functional import interpolate

from pdecnn.data.arrays import (
    KINDS,
    PARTS,
    ArrayFiles,
    Source,
    array_dimension,
    array_names,
    read_arrays,
)
from pdecnn.data.image_set import DataSet, ImageSet, balanced_split
from pdecnn.data.images import (
    PACKED,
    has_pictures,
    image_classes,
    image_names,
    read_image_folder,
    read_pictures,
)
from pdecnn.data.published import (
    CIFAR10_VERSIONS,
    CIFAR100_VERSIONS,
    STL10_VERSIONS,
    PublishedFiles,
    PublishedFolder,
    find_version,
    is_archive,
    read_cifar10,
    read_cifar100,
    read_stl10,
)
from pdecnn.data.segmented import dimension_of, read_segmented
from pdecnn.data.sounds import SoundSettings, has_sounds, read_sounds, sound_names
from pdecnn.errors import DataError, unknown_name

NUM_TEST_IMAGES = 360
_LARGEST_PIXEL = 16
# Part of the definition of this data set: another number is another test set.
_SPLIT_SEED = 0


def read_digits(size: int | None = None) -> DataSet:
    """Grey images 8 x 8, 1,437 to train and 360 to test; the same split in every run.

    scikit-learn's pixels 0 .. 16 become round(255 v / 16). With a `size` they are resized to it,
    by cubic interpolation: nothing more to see, but room for waves to travel in.
    """
    # Imported here because it takes longer than the rest of the package together.
    from sklearn.datasets import load_digits

    pixels, targets = load_digits(return_X_y=True)
    values = torch.from_numpy(pixels).double() * 255 / _LARGEST_PIXEL
    images = values.round().view(-1, 1, 8, 8)
    if size is not None:
        images = interpolate(images, (size, size), mode="bicubic").round().clamp(0, 255)
    everything = ImageSet(
        images=images.to(torch.uint8),
        labels=torch.from_numpy(targets).long(),
        class_names=tuple(str(digit) for digit in range(10)),
    )
    train, test = balanced_split(
        everything.labels, NUM_TEST_IMAGES, seed=_SPLIT_SEED, purpose="digits test set"
    )
    return DataSet(name="digits", train=everything.subset(train), test=everything.subset(test))


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
OWN = ("images", "arrays", "pictures", "sounds", "segmented")
"""Data of one's own, which says itself how many channels and classes it has."""
DATASETS: tuple[str, ...] = (*_BUILT_IN, *_IN_FOLDER, *OWN)


def needs_folder(name: str) -> bool:
    """Whether the data set of that name is read from a folder of the user's."""
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    return name not in _BUILT_IN


def read_dataset(
    name: str,
    folder: Source | None = None,
    *,
    channels: int | None = None,
    size: int | None = None,
    stream: bool | None = None,
    group: str | None = None,
    sounds: SoundSettings | None = None,
) -> DataSet:
    """The data set of that name, read from `folder` if it is not built in.

    `channels`, None for those of the files, `size`, which digits have too, and the pattern `group`
    are those that images of one's own are read with, `sounds` says how sounds are; `stream` leaves
    data of one's own on the disk, None if it is large.
    """
    if not needs_folder(name):
        return _BUILT_IN[name](size)
    if folder is None:
        raise DataError(_wanted(name))
    if name == "arrays":
        return read_arrays(folder, stream=stream)
    if isinstance(folder, Mapping):
        raise DataError(f"data set {name!r} is read from a folder; arrays are data.name=arrays")
    if name == "pictures":
        return read_pictures(folder, channels=channels)
    if name == "sounds":
        assert sounds is not None, "a DataConfig for sounds has a length and a rate"
        return read_sounds(folder, sounds)
    if name == "segmented":
        return read_segmented(folder, channels=channels, group=group)
    if name == "images":
        assert size is not None, "a DataConfig for images has a size"
        return read_image_folder(folder, channels=channels, size=size, stream=stream, group=group)
    return _IN_FOLDER[name][1](folder)


_SOURCES = "speaker|patient|subject|scene"
_SOURCE_ARRAY = re.compile(rf"({_SOURCES})(s|_?ids?)?(_train)?", re.IGNORECASE)
_SOURCE_NAME = re.compile(rf"(?<![A-Za-z])({_SOURCES})[ _-]*([A-Za-z0-9]+)", re.IGNORECASE)


def suggested_groups(name: str, folder: Source) -> str | None:
    """A line where names speak of speakers, patients, subjects or scenes, but no groups are set."""
    if name == "arrays":
        names = sorted(array_names(folder))
        found = [match for match in map(_SOURCE_ARRAY.fullmatch, names) if match is not None]
        if not found or any(other.startswith("group") for other in names):
            return None
        return (
            f"note: the array {found[0].string!r} suggests groups: samples of one "
            f"{found[0][1].lower()} may stand in training and test alike; save it as group beside "
            f"x and y to keep them apart"
        )
    if name in ("pictures", "segmented"):  # whose names say nothing of classes
        return None
    assert not isinstance(folder, Mapping)
    if name == "sounds" and Path(folder).suffix == PACKED:  # groups were said when it was packed
        return None
    paths = sound_names(folder) if name == "sounds" else image_names(folder)
    matches = [_SOURCE_NAME.search(path) for path in paths]
    found = [match for match in matches if match is not None]
    number = len({match[2] for match in found})
    if len(found) < len(matches) or not 1 < number < len(found):
        return None
    word = found[0][1]
    return (
        f"note: names such as {found[0].string} suggest {number} groups: {name} of one "
        f"{word.lower()} may stand in training and test alike; keep them apart with "
        f"--set 'data.group={word}[ _-]*([A-Za-z0-9]+)'"
    )


def recognize(place: Path) -> dict[str, int]:
    """The data sets that `place` may hold, by name, with their dimensions; {}: none that is known.

    A DataError says what is wrong with arrays, or that nothing is there.
    """
    if not os.path.exists(place):
        raise DataError(f"{place}: no such file or folder; pass the place where the data lies")
    dimension = dimension_of(place)
    if dimension is not None:
        return {"segmented": dimension}
    if place.suffix == PACKED and (packed := _recognize_packed(place)):
        return packed
    if place.suffix in (".npz", ".safetensors") or any(place.glob("*.npy")):
        return {"arrays": array_dimension(place)}
    found = {
        name: 2
        for name, versions in PUBLISHED.items()
        if any(_holds(where, versions) for where in (place, place / name) if where.exists())
    }
    if not found and place.is_dir() and has_sounds(place):
        return {"sounds": 1}
    if not found and place.is_dir():
        with suppress(DataError):
            # Classes that are all called so are parts with pictures in them.
            found = {} if set(image_classes(place)) <= PARTS.keys() else {"images": 2}
    if not found and place.is_dir():
        with suppress(DataError):
            found = {"pictures": 2} if has_pictures(place) else {}
    return found


def _recognize_packed(file: Path) -> dict[str, int]:
    """What `pdecnn data pack` made of pictures or sounds; {}: arrays of other kinds."""
    arrays = ArrayFiles(file)
    if {"rate", "class_names"} < arrays.names:
        return {"sounds": 1}
    if {"x_train", "size_train", "name_train"} <= arrays.names:
        return {"pictures": len(arrays.shape("x_train")) - 2}
    return {}


def _holds(place: Path, versions: tuple[PublishedFolder, ...]) -> bool:
    archives = {version.archive for known in PUBLISHED.values() for version in known}
    if place.name in archives:
        return any(version.archive == place.name for version in versions)
    return any(version.find(place) is not None for version in versions)


_WANTED = {
    "images": "no images were given; pass --data DIR with a folder for each class in it",
    "pictures": "no images were given; pass --data DIR with images in it, of any names and sizes",
    "sounds": "no sounds were given; pass --data DIR with WAV, FLAC or OGG files in it",
    "segmented": (
        "no images were given; pass --data DIR with images in DIR/images, labels in DIR/labels"
    ),
    "arrays": f"no arrays were given; pass --data with x and y in them: {KINDS}",
}


def _wanted(name: str) -> str:
    """What to pass for a data set that needs files."""
    if name in _WANTED:
        return _WANTED[name]
    first = published_versions(name)[0]
    return (
        f"data set {name!r} is not built in and no folder was given; pass --data DIR with "
        f"{first.title} in it: it expects {first.folder}/{first.train_files[0]} and the files "
        f"beside that, or {first.archive}, which `pdecnn data download {name}` fetches"
    )


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
