"""Images or volumes with a class for each pixel: folders `images` and `labels`, or one .npz file.

Both are of any sizes. Labels are whole numbers from 0 on, 0 for what is of no class: pictures of
one channel, or NIfTI files beside volumes.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pdecnn.data.arrays import ArrayFiles
from pdecnn.data.image_file import read_label_image
from pdecnn.data.image_set import DataSet, ImageSet, number_groups
from pdecnn.data.images import (
    PACKED,
    Scan,
    check_packed_name,
    find_in_names,
    loose_parts,
    pad_together,
    read_packed,
    write_packed,
)
from pdecnn.data.volumes import check_same_place, is_volume, read_label_volume, read_volume, stem_of
from pdecnn.errors import DataError

IMAGES, LABELS = "images", "labels"
_KINDS = ("x", "y", "size", "name", "spacing")
_LARGEST_LABEL = 255
_NOTHING = "background"


class _Pair(NamedTuple):
    image: Path
    labels: Path


class _Part(NamedTuple):
    """The images of one part, each at the beginning of every axis."""

    images: Tensor
    masks: Tensor
    sizes: Tensor
    names: list[str]
    spacing: Tensor
    groups: list[str]
    """What each belongs to; empty: no groups were asked for."""


def read_segmented(place: Path | str, *, channels: int | None, group: str | None = None) -> DataSet:
    """`images/NAME` with `labels/NAME`, perhaps within `train`, `validation` and `test`, by name.

    Or what `pack_segmented` made of it. A test part that is missing is held out of the training
    images, alike in every run. All files that cannot be used are named in one BadFilesError.
    The classes are the labels of the training images: 0, 1, 2, ... without a gap. `group` is a
    regular expression on the names, as for folders of images.
    """
    path = Path(place)
    parts = _read(path, channels, group)
    found = parts["train"].images.shape[1]
    if channels is not None and found != channels:
        raise DataError(
            f"{path}: has {found} channels, but data.channels={channels}; set data.channels={found}"
        )
    class_names = _class_names(path, parts)
    groups = number_groups({part: found.groups for part, found in parts.items()})
    sets = {
        part: ImageSet(
            images=found.images,
            labels=torch.zeros(len(found.names), dtype=torch.int64),
            class_names=class_names,
            groups=groups[part] if found.groups else None,
            sizes=found.sizes,
            spacings=found.spacing.float(),
            names=tuple(found.names),
            masks=found.masks,
        )
        for part, found in parts.items()
    }
    return DataSet.of_parts("segmented", sets)


def dimension_of(folder: Path) -> int | None:
    """2 for a folder of images with labels, or a packed one, 3 of volumes; None: it is neither."""
    if folder.suffix == PACKED:
        arrays = ArrayFiles(folder)
        known = {f"{kind}_train" for kind in _KINDS} <= arrays.names
        return len(arrays.shape("x_train")) - 2 if known else None
    try:
        parts = loose_parts(folder)
    except DataError:  # which is said by whoever reads it
        return None
    for where in parts.values():
        if (where / IMAGES).is_dir() and (where / LABELS).is_dir():
            files = [path for path in (where / IMAGES).rglob("*") if path.is_file()]
            return 3 if any(map(is_volume, files)) else 2
    return None


def pack_segmented(
    place: Path | str, file: Path, *, channels: int | None, group: str | None = None
) -> dict[str, int]:
    """Write a folder as arrays `x`, `y`, `size`, `name`, `spacing` and perhaps `group` of each
    part; their numbers."""
    check_packed_name(file)
    parts = _read_folder(Path(place), channels, group)
    _class_names(Path(place), parts)
    arrays: dict[str, Any] = {}
    for part, found in parts.items():
        arrays |= {
            f"x_{part}": found.images.numpy(),
            f"y_{part}": found.masks.numpy(),
            f"size_{part}": found.sizes.numpy(),
            f"name_{part}": np.array(found.names),
            f"spacing_{part}": found.spacing.numpy(),
        }
        if found.groups:
            arrays[f"group_{part}"] = np.array(found.groups)
    write_packed(file, arrays)
    return {part: len(found.names) for part, found in parts.items()}


def checked_labels(labels: npt.NDArray[Any]) -> Tensor:
    """The labels of one image as bytes; a DataError says which are none."""
    values = np.asarray(labels)
    if values.dtype.kind == "f" and not np.array_equal(values, np.round(values)):
        wrong = float(values[values != np.round(values)].flat[0])
        raise DataError(f"has the label {wrong:g}; labels are whole numbers from 0 on")
    if values.dtype.kind not in "uifb":
        raise DataError(f"holds {values.dtype}; labels are whole numbers from 0 on")
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > _LARGEST_LABEL:
        raise DataError(
            f"has the label {low if low < 0 else high:g}; labels are whole numbers from 0 to "
            f"{_LARGEST_LABEL}"
        )
    return torch.from_numpy(values.astype(np.uint8))


def _class_names(path: Path, parts: dict[str, _Part]) -> tuple[str, ...]:
    """Of the labels of the training images; those of other parts must be among them."""
    found = {part: _counted(one) for part, one in parts.items()}
    known = found["train"]
    class_names = _known_classes(path, known)
    for part, labels in found.items():
        if new := sorted(labels - known):
            masks = parts[part].masks
            first = next(k for k, mask in enumerate(masks) if (mask == new[0]).any())
            raise DataError(
                f"{path}: {parts[part].names[first]} has the label {new[0]}, which no training "
                f"image has; correct it, or put such images into train"
            )
    return class_names


def _known_classes(path: Path, known: set[int]) -> tuple[str, ...]:
    """The names of the classes that the training images have."""
    if known != set(range(len(known))) or len(known) < 2:
        listed = ", ".join(map(str, sorted(known)))
        raise DataError(
            f"{path}: the labels of the training images are {listed}; number the classes 0, 1, 2, "
            f"... without a gap, 0 for what is of none"
        )
    return (_NOTHING, *(str(label) for label in range(1, len(known))))


def _counted(part: _Part) -> set[int]:
    """The labels of a part, but not what stands beyond the sizes of its images."""
    found: set[int] = set()
    for mask, size in zip(part.masks, part.sizes.tolist(), strict=True):
        found.update(mask[tuple(slice(0, n) for n in size)].unique().tolist())
    return found


def _read(path: Path, channels: int | None, group: str | None) -> dict[str, _Part]:
    if path.suffix == PACKED:
        return _read_packed(path, group)
    return _read_folder(path, channels, group)


def _read_folder(root: Path, channels: int | None, group: str | None) -> dict[str, _Part]:
    if not root.is_dir():
        raise DataError(
            f"{root}: no such folder; pass one with {IMAGES} and {LABELS} in it, or a {PACKED} file"
        )
    scan = Scan(root, ())
    pairs = {part: _pairs(scan, where) for part, where in loose_parts(root).items()}
    number = sum(map(len, pairs.values()))
    files = [pair.image for part in pairs.values() for pair in part]
    kinds = {is_volume(path) for path in files}
    if len(kinds) > 1:
        raise DataError(f"{root}: holds images and volumes; put them into two folders")
    read_image = _read_scan if True in kinds else _image_reader(scan, pairs, channels)
    read = {part: _read_pairs(scan, found, read_image) for part, found in pairs.items()}
    scan.report(number)
    if not pairs["train"]:
        raise DataError(
            f"{root}: holds no images with labels; put NAME into {IMAGES} and its labels, with the "
            f"same name, into {LABELS}"
        )
    _check_channels(root, [image for part in read.values() for image, _, _ in part], files)
    parts = {}
    for part, found in read.items():
        if not found:
            continue
        names = [pair.image.relative_to(root).as_posix() for pair in pairs[part]]
        groups = find_in_names(group, names, "group", root)
        images, masks, spacing = zip(*found, strict=True)
        parts[part] = _Part(
            pad_together(images),
            pad_together([mask[None] for mask in masks])[:, 0],
            torch.tensor([mask.shape for mask in masks]),
            names,
            torch.tensor(spacing, dtype=torch.float64),
            groups,
        )
    return parts


def _pairs(scan: Scan, where: Path) -> list[_Pair]:
    """The images of a part and their labels, by name; what has no partner is complained of."""
    for name, other in ((IMAGES, LABELS), (LABELS, IMAGES)):
        if (where / other).is_dir() and not (where / name).is_dir():
            raise DataError(
                f"{where}: has a folder {other}, but none called {name}; put {name} into one, each "
                f"under the name of its partner in {other}"
            )
    images, labels = (_by_stem(scan, where / name) for name in (IMAGES, LABELS))
    # What is there, but cannot be used, is complained of itself.
    broken = {
        stem_of(path.relative_to(where).as_posix())
        for path in scan.complaints
        if where in path.parents
    }
    for name, path in images.items():
        if name not in labels and f"{LABELS}/{name}" not in broken:
            scan.complaints[path] = f"has no labels; put them into {LABELS} under the same name"
    for name, path in labels.items():
        if name not in images and f"{IMAGES}/{name}" not in broken:
            scan.complaints[path] = f"has no image; put it into {IMAGES} under the same name"
    return [_Pair(images[name], labels[name]) for name in images if name in labels]


def _by_stem(scan: Scan, folder: Path) -> dict[str, Path]:
    """The files of a folder by their names without endings, of which each may be there once."""
    found: dict[str, Path] = {}
    for path in scan.list_files(folder) if folder.is_dir() else ():
        first = found.setdefault(stem_of(path.relative_to(folder).as_posix()), path)
        if first != path:
            scan.complaints[path] = f"is called as {first.name} but for its ending; remove one"
    return found


Read = tuple[Tensor, Tensor, tuple[float, ...]]
"""Image, labels and spacing."""
ReadImage = Callable[[Path], tuple[Tensor, tuple[float, ...]]]


def _read_scan(path: Path) -> tuple[Tensor, tuple[float, ...]]:
    volume = read_volume(path)
    if not np.isfinite(volume.spacing).all():  # turns would go nowhere
        raise DataError("says no distance between its voxels; mend pixdim in its header")
    return volume.voxels, volume.spacing


def _image_reader(scan: Scan, pairs: dict[str, list[_Pair]], channels: int | None) -> ReadImage:
    files = {part: [pair.image for pair in found] for part, found in pairs.items()}
    read = scan.reader(files, channels)
    return lambda path: (read(path), (1.0, 1.0))


def _read_pairs(scan: Scan, pairs: list[_Pair], read_image: ReadImage) -> list[Read]:
    """What is read of the pairs that can be; what is wrong with the others is kept."""
    labels = {pair.image: pair.labels for pair in pairs}
    found: dict[Path, Read] = {}

    def read(path: Path) -> Tensor:
        image, spacing = read_image(path)
        other = labels[path]
        name = other.relative_to(scan.root)
        try:
            mask = _labels(other)
            if is_volume(path) and is_volume(other) and mask.shape == image.shape[1:]:
                check_same_place(path, other)
        except DataError as error:
            raise DataError(f"{name} {str(error).removeprefix(f'{other}: ')}") from error
        if mask.shape != image.shape[1:]:
            raise DataError(
                f"has {_size(image.shape[1:])} pixels, but {name} {_size(mask.shape)}; give each "
                f"pixel one label"
            )
        found[path] = image, mask, spacing
        return mask

    scan.read_each([pair.image for pair in pairs], read)
    return [found[pair.image] for pair in pairs if pair.image in found]


def _labels(path: Path) -> Tensor:
    return checked_labels(read_label_volume(path) if is_volume(path) else read_label_image(path))


def _size(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape))


def _check_channels(root: Path, images: list[Tensor], files: list[Path]) -> None:
    """Refuse volumes of different channels; image files were read alike."""
    for image, path in zip(images, files, strict=True):
        if len(image) != len(images[0]):
            raise DataError(
                f"{root}: {path.relative_to(root)} has {len(image)} channels, but "
                f"{files[0].relative_to(root)} {len(images[0])}; save all alike"
            )


def _read_packed(path: Path, group: str | None) -> dict[str, _Part]:
    files = ArrayFiles(path)
    parts = {}
    for part, (x, y, size, name, spacing) in read_packed(files, _KINDS).items():
        fits = (
            size.shape == (len(x), x.ndim - 2)
            and y.shape == (len(x), *x.shape[2:])
            and len(name) == len(x)
            and spacing.shape == size.shape
            and bool((np.isfinite(spacing) & (spacing > 0)).all())
        )
        if not fits or not x.size or (size < 1).any() or (size > np.array(x.shape[2:])).any():
            raise DataError(
                f"{path}: y, size, name or spacing of x_{part} do not fit it; pack it again"
            )
        names = [str(text) for text in name]
        groups = find_in_names(group, names, "group", path)
        if group is None and f"group_{part}" in files.names:
            groups = [str(text) for text in files.read(f"group_{part}")]
        try:
            masks = checked_labels(y)
        except DataError as error:
            raise DataError(f"{path}: y_{part} {error}; pack it again") from error
        parts[part] = _Part(
            torch.from_numpy(x),
            masks,
            torch.from_numpy(size),
            names,
            torch.from_numpy(spacing),
            groups,
        )
    return parts
