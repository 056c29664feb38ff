"""Images without classes, of any sizes: folders of files, or the same packed into one .npz file."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pdecnn.data.arrays import ArrayFiles
from pdecnn.data.image_set import DataSet, ImageSet
from pdecnn.data.images import (
    PACKED,
    Scan,
    check_packed_name,
    common_dtype,
    first_channels,
    loose_parts,
    pad_together,
    read_as,
    read_packed,
    write_packed,
)
from pdecnn.errors import DataError

_CLASS = ("image",)


def read_pictures(place: Path | str, *, channels: int | None) -> DataSet:
    """The images of a folder at any depth, perhaps in `train`, `validation` and `test`, by name.

    Or what `pack_pictures` made of one. A test part that is missing is held out of the training
    images, alike in every run. All files that cannot be used are named in one BadFilesError.
    `channels` None: as many as the files have.
    """
    path = Path(place)
    sets = _read_packed(path) if path.suffix == PACKED else _read_folder(path, channels)
    found = sets["train"].channels
    if channels is not None and found != channels:
        raise DataError(
            f"{path}: was packed with {found} channels, but data.channels={channels}; pack it "
            f"again, or set data.channels={found}"
        )
    return DataSet.of_parts("pictures", sets)


def pack_pictures(place: Path | str, file: Path, *, channels: int | None) -> dict[str, int]:
    """Write the images of a folder as arrays `x`, `size` and `name` of each part; their numbers."""
    check_packed_name(file)
    sets = _read_folder(Path(place), channels)
    arrays: dict[str, Any] = {}
    for part, images in sets.items():
        assert isinstance(images.images, Tensor)
        assert images.sizes is not None
        arrays |= {
            f"x_{part}": images.images.numpy(),
            f"size_{part}": images.sizes.numpy(),
            f"name_{part}": np.array(images.names),
        }
    write_packed(file, arrays)
    return {part: len(images) for part, images in sets.items()}


def _read_folder(root: Path, channels: int | None) -> dict[str, ImageSet]:
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; pass one with images in it, or a {PACKED} file")
    scan = Scan(root, ())
    parts = {part: scan.list_files(where) for part, where in loose_parts(root).items()}
    forms = {part: scan.forms(files) for part, files in parts.items()}
    read_one = partial(
        read_as,
        dtype=common_dtype(forms.values()),
        channels=first_channels(forms["train"]) if channels is None else channels,
    )
    read = {part: scan.read_each(files, read_one) for part, files in parts.items()}
    scan.report(sum(map(len, parts.values())))
    if not parts["train"]:
        raise DataError(f"{root}: holds no image; pass a folder with PNG or JPEG files in it")
    return {
        part: _image_set(
            pad_together(images),
            torch.tensor([image.shape[1:] for image in images]),
            [str(path.relative_to(root)) for path in parts[part]],
        )
        for part, images in read.items()
        if images
    }


def _image_set(pixels: Tensor, sizes: Tensor, names: list[str]) -> ImageSet:
    labels = torch.zeros(len(pixels), dtype=torch.int64)
    return ImageSet(
        images=pixels, labels=labels, class_names=_CLASS, sizes=sizes, names=tuple(names)
    )


def _read_packed(path: Path) -> dict[str, ImageSet]:
    sets = {}
    for part, (x, size, name) in read_packed(ArrayFiles(path), ("x", "size", "name")).items():
        fits = size.shape == (len(x), x.ndim - 2) and len(name) == len(x)
        if not fits or (size < 1).any() or (size > np.array(x.shape[2:])).any():
            raise DataError(f"{path}: the sizes or names of x_{part} do not fit it; pack it again")
        sets[part] = _image_set(torch.from_numpy(x), torch.from_numpy(size), list(map(str, name)))
    return sets
