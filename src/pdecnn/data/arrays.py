"""Signals, images and volumes of one's own as arrays `x` with whole numbers `y` for labels."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pdecnn.data.array_files import Array, ArrayFiles, FileArray
from pdecnn.data.image_set import DataSet, ImageSet
from pdecnn.data.split import hold_out_test
from pdecnn.data.stored_images import LARGEST_IN_MEMORY, StoredImages
from pdecnn.errors import DataError

_PARTS = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}
_AT_A_TIME = 1024
_MOST_COLOURS = 4


class ArrayForm(NamedTuple):
    """What a network must fit."""

    channels: int
    num_classes: int
    dimension: int
    """1 for signals, 2 for images, 3 for volumes."""


def array_form(place: Path | str) -> ArrayForm:
    """The channels, classes and dimension of the arrays there, without reading them all."""
    files = ArrayFiles(Path(place))
    parts = _find_parts(files)
    x = next(iter(parts.values()))[0]
    _, channels, *spatial = _with_channels(files.shape(x), files.path(x))
    return ArrayForm(channels, len(_class_names(files)), len(spatial))


def read_arrays(place: Path | str, *, stream: bool | None = None) -> DataSet:
    """The arrays `x` and `y`, or `x_train`, `y_train`, `x_test`, ... of a file or folder.

    `x` has the axes (n, channels, *spatial), or (n, length) for signals of one channel: bytes
    are pixels 0 to 255, all other numbers become float32. A test part that is missing is held
    out of the training part, alike in every run. With `stream` arrays of a folder stay on the
    disk; None: if they exceed `LARGEST_IN_MEMORY`.
    """
    files = ArrayFiles(Path(place))
    class_names = _class_names(files)
    arrays = {part: (files.open(x), x, y) for part, (x, y) in _find_parts(files).items()}
    for array, x, _ in arrays.values():
        _with_channels(array.shape, files.path(x))
    if stream is None:
        stream = sum(array.nbytes for array, _, _ in arrays.values()) > LARGEST_IN_MEMORY
    if stream and not files.is_folder:
        raise DataError(
            f"{files.place}: only arrays in .npy files can stay on the disk; save each as one in "
            f"a folder, or leave data.stream out"
        )
    sets = {}
    for part, (array, x, y) in arrays.items():
        labels = _labels(files, y)
        if len(labels) != len(array):
            raise DataError(
                f"{files.path(x)} has {len(array)} samples, but {y} {len(labels)} labels; save one "
                f"for each"
            )
        sets[part] = ImageSet(
            images=_images(array, files.path(x), stream),
            labels=torch.from_numpy(labels.astype(np.int64)),
            class_names=class_names,
        )
    train, test = sets["train"], sets.get("test")
    if test is None:
        kept, held_out = hold_out_test(train.labels)
        train, test = train.subset(kept), train.subset(held_out)
    return DataSet(name="arrays", train=train, test=test, validation=sets.get("validation"))


def _find_parts(files: ArrayFiles) -> dict[str, tuple[str, str]]:
    """The names of the arrays of each part."""
    names = files.names
    if "x" in names:
        parts = {"train": ("x", "y")}
    else:
        parts = {
            part: (f"x_{name}", f"y_{name}")
            for name, part in _PARTS.items()
            if f"x_{name}" in names
        }
    if "train" not in parts:
        found = ", ".join(sorted(names)) or "none"
        raise DataError(
            f"{files.place}: holds neither an array x nor x_train (found: {found}); save x and y, "
            f"or x_train, y_train, x_test and y_test"
        )
    for x, y in parts.values():
        if y not in names:
            raise DataError(f"{files.place}: holds {x} but not {y}, its labels; save both")
    used = {x for x, _ in parts.values()}
    for name in sorted(names - used):
        # What has labels is meant as a part, and would be left out without a word.
        if name.startswith("x_") and f"y_{name.removeprefix('x_')}" in names:
            raise DataError(
                f"{files.place}: holds {name} beside {', '.join(sorted(used))}; call the parts "
                f"x_train, x_validation and x_test, each once"
            )
    return parts


def _class_names(files: ArrayFiles) -> tuple[str, ...]:
    labels = [_labels(files, y) for _, y in _find_parts(files).values()]
    largest, num_samples = max(int(part.max()) for part in labels), sum(map(len, labels))
    names = files.class_names()
    if names is None:
        if largest >= num_samples:  # one number astray would make a classifier of millions
            raise DataError(
                f"{files.place}: has the label {largest} among {num_samples} samples; number the "
                f"classes 0, 1, 2, ..."
            )
        names = tuple(str(label) for label in range(largest + 1))
    if len(names) <= max(largest, 1):
        raise DataError(
            f"{files.place}: has labels up to {largest} and {len(names)} class names; there must "
            f"be at least 2 classes, and a name for each"
        )
    if len(set(names)) < len(names):
        raise DataError(f"{files.place}: has two classes of one name; give each its own")
    return names


def _labels(files: ArrayFiles, name: str) -> Array:
    labels = files.read(name)
    if labels.ndim != 1 or labels.dtype.kind not in "ui" or labels.size == 0 or labels.min() < 0:
        raise DataError(
            f"{files.path(name)} must be whole numbers from 0 on, one for each sample; found "
            f"{labels.dtype} of shape {labels.shape}"
        )
    return labels


def _with_channels(shape: tuple[int, ...], path: str) -> tuple[int, ...]:
    if len(shape) not in (2, 3, 4, 5) or 0 in shape:
        raise DataError(
            f"{path} must have the axes (samples, channels, *spatial) with 1 to 3 spatial axes; "
            f"found shape {shape}"
        )
    if len(shape) > 2 and shape[-1] <= _MOST_COLOURS < min(shape[1:-1]):
        axes = ", ".join(map(str, (0, len(shape) - 1, *range(1, len(shape) - 1))))
        raise DataError(
            f"{path} seems to have its channels last, found shape {shape}; save it "
            f"as .transpose({axes}), with the axes (samples, channels, *spatial)"
        )
    return (shape[0], 1, shape[1]) if len(shape) == 2 else shape


def _images(array: Array | FileArray, path: str, stream: bool) -> Tensor | StoredImages:
    """The samples, checked to be finite."""
    shape = _with_channels(array.shape, path)
    if array.dtype.kind not in "uif":
        raise DataError(f"{path} must hold numbers, found {array.dtype}")
    dtype = torch.uint8 if array.dtype == np.uint8 else torch.float32
    images = torch.empty((0 if stream else len(array), *shape[1:]), dtype=dtype)
    for begin in range(0, len(array), _AT_A_TIME):
        samples = _convert(array[begin : begin + _AT_A_TIME], dtype).view(-1, *shape[1:])
        finite = samples.flatten(1).isfinite().all(1)
        if not finite.all():
            first = begin + int(finite.int().argmin())
            raise DataError(f"{path}: sample {first} is not finite in float32; mend or remove it")
        if not stream:
            images[begin : begin + len(samples)] = samples
    if not stream:
        return images
    return StoredImages(
        lambda place: _convert(array[place], dtype).view(shape[1:]),
        torch.arange(len(array)),
        image_shape=shape[1:],
        dtype=dtype,
    )


def _convert(samples: Array, dtype: torch.dtype) -> Tensor:
    kind = np.uint8 if dtype == torch.uint8 else np.float32
    with np.errstate(over="ignore"):  # infinite then, which is refused
        return torch.from_numpy(np.array(samples, kind))
