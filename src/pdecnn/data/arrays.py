"""Signals, images and volumes of one's own as arrays `x` with whole numbers `y` for labels."""

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open
from torch import Tensor

from pdecnn.data.image_set import LARGEST_IN_MEMORY, DataSet, ImageSet, StoredImages, number_groups
from pdecnn.errors import DataError, bad_file_refused, in_one_line

Array = npt.NDArray[Any]
Source = Path | str | Mapping[str, Any]
"""Where arrays are: a file, a folder, or the arrays themselves by name."""
KINDS = ".npz, .safetensors or a folder of .npy files"


class ArrayFiles:
    """The arrays of a file or folder by name; those of a folder stay on the disk."""

    def __init__(self, place: Path) -> None:
        self.place = place
        if not place.exists():
            raise DataError(f"{place}: no such file or folder; pass {KINDS}")
        self.is_folder = place.is_dir()
        is_known = place.is_file() and place.suffix in (".npz", ".safetensors")
        if not self.is_folder and not is_known:
            raise DataError(f"{place}: is none of the kinds that are read; pass {KINDS}")
        with self._reading(place):
            self.names = self._find_names()
            if not self.is_folder:
                self._check_size()

    def path(self, name: str) -> str:
        """How an error calls an array."""
        return str(self.place / f"{name}.npy") if self.is_folder else f"{self.place}: array {name}"

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of an array, from its header alone."""
        with self._reading(self.place):
            if self.place.suffix == ".safetensors" and not self.is_folder:
                with safe_open(self.place, framework="np") as file:
                    return tuple(file.get_slice(name).get_shape())
            with self._stream(name) as (stream, size):
                return _header(stream, size)[0]

    def read(self, name: str) -> Array:
        """The array of that name, which must be there."""
        with self._reading(self.place):
            if self.place.suffix == ".safetensors" and not self.is_folder:
                with safe_open(self.place, framework="pt") as file:
                    return _to_numpy(file.get_tensor(name))
            with self._stream(name) as (stream, size):
                _header(stream, size)
            with self._stream(name) as (stream, _):
                array: Array = np.lib.format.read_array(stream, allow_pickle=False)
                return array

    def rows(self, name: str) -> "Array | Rows":
        """The array of that name; that of a folder stays on the disk if it is stored by rows."""
        with self._reading(self.place):
            if self.is_folder:
                with self._stream(name) as (stream, size):
                    shape, by_columns, dtype = _header(stream, size)
                    if not by_columns and shape:
                        return Rows(self.place / f"{name}.npy", shape, dtype, stream.tell())
        return self.read(name)

    @contextmanager
    def _stream(self, name: str) -> Iterator[tuple[IO[bytes], int]]:
        """The .npy file of an array, in a folder or a .npz archive, with its size."""
        if self.is_folder:
            path = self.place / f"{name}.npy"
            with path.open("rb") as stream:
                yield stream, path.stat().st_size
        else:
            with zipfile.ZipFile(self.place) as archive, archive.open(f"{name}.npy") as stream:
                yield stream, archive.getinfo(f"{name}.npy").file_size

    def class_names(self) -> tuple[str, ...] | None:
        """What `class_names.txt` of a folder, or the texts in the array `class_names` say."""
        path = self.place / "class_names.txt"
        if self.is_folder and path.is_file():
            with self._reading(path):
                lines = path.read_text(encoding="utf-8").splitlines()
            return tuple(line.strip() for line in lines if line.strip())
        if "class_names" not in self.names:
            return None
        names = self.read("class_names")
        if names.ndim != 1 or names.dtype.kind != "U":
            raise DataError(f"{self.path('class_names')} must be a list of texts")
        return tuple(names.tolist())

    def _find_names(self) -> set[str]:
        if self.is_folder:
            return {path.stem for path in self.place.glob("*.npy") if path.is_file()}
        if self.place.suffix == ".safetensors":
            with safe_open(self.place, framework="np") as file:
                return set(file.keys())
        with zipfile.ZipFile(self.place) as archive:
            members = archive.namelist()
        return {name.removesuffix(".npy") for name in members if name.endswith(".npy")}

    def _check_size(self) -> None:
        """Refuse what would not fit in memory before any of it is unpacked."""
        size = self.place.stat().st_size
        if self.place.suffix == ".npz":
            with zipfile.ZipFile(self.place) as archive:
                size = sum(member.file_size for member in archive.infolist())
        if size > LARGEST_IN_MEMORY:
            raise DataError(
                f"{self.place}: unpacks to {size:,} bytes, more than {LARGEST_IN_MEMORY:,}; save "
                f"each array as a .npy file in one folder, from which it can be read bit by bit"
            )

    def _reading(self, path: Path) -> AbstractContextManager[None]:
        problem, remedy = "cannot be read as arrays", "save it again, without objects"
        return bad_file_refused(path, problem, remedy)


class HeldArrays(ArrayFiles):
    """Tensors or numpy arrays of a program, by name, in the place of files."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self.place, self.is_folder = Path("the arrays given"), False
        self._names = arrays.get("class_names")
        self.arrays = {
            name: _held(values, self.path(name), may_be_text=name.startswith("group"))
            for name, values in arrays.items()
            if name != "class_names"
        }
        self.names = set(self.arrays)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of an array."""
        return self.arrays[name].shape

    def read(self, name: str) -> Array:
        """The array of that name, which must be there."""
        return self.arrays[name]

    def class_names(self) -> tuple[str, ...] | None:
        """What was given as `class_names`."""
        return None if self._names is None else tuple(map(str, self._names))


def _held(values: Any, path: str, *, may_be_text: bool) -> Array:
    if isinstance(values, np.ndarray) or (may_be_text and not isinstance(values, Tensor)):
        return np.asarray(values)
    try:
        return _to_numpy(torch.as_tensor(values).detach().cpu())
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{path} must be a tensor or an array of numbers, found {type(values).__name__}; "
            f"{in_one_line(error)}"
        ) from error


def _to_numpy(tensor: Tensor) -> Array:
    """The tensor as an array; as float32 where numpy has no such numbers, bfloat16 for one."""
    try:
        array: Array = tensor.numpy()
    except TypeError:
        array = tensor.float().numpy()
    return array


def _header(stream: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Shape, order and dtype of the .npy file, which must be as long as they say.

    Numpy would take the memory that a header asks for before it reads on.
    """
    version = np.lib.format.read_magic(stream)
    begin = stream.tell()
    width = 2 if version == (1, 0) else 4
    length = int.from_bytes(stream.read(width), "little")
    if length > size:
        raise ValueError("it is shorter than its header says")
    stream.seek(begin)
    read = np.lib.format.read_array_header_1_0
    shape, by_columns, dtype = (
        read(stream) if width == 2 else np.lib.format.read_array_header_2_0(stream)
    )
    if dtype.hasobject:
        raise ValueError("it holds objects")
    if prod(shape) * dtype.itemsize > size:
        raise ValueError("it is shorter than its header says")
    return shape, by_columns, dtype


class Rows:
    """An array of a .npy file that is read row by row: a file that shrinks is an error in words."""

    def __init__(
        self, path: Path, shape: tuple[int, ...], dtype: np.dtype[np.generic], offset: int
    ) -> None:
        self.path, self.shape, self.dtype, self.offset = path, shape, dtype, offset
        self.nbytes = prod(shape) * dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, where: int | slice) -> Array:
        rows = range(len(self))[where]
        first, number = (rows, 1) if isinstance(rows, int) else (rows.start, len(rows))
        width = self.nbytes // len(self)
        with self.path.open("rb") as stream:
            stream.seek(self.offset + first * width)
            content = stream.read(number * width)
        if len(content) < number * width:
            raise DataError(
                f"{self.path}: has become shorter than its header says; restore it, then go on"
            )
        array = np.frombuffer(content, self.dtype).reshape(number, *self.shape[1:])
        return array[0] if isinstance(rows, int) else array


PARTS = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}
_AT_A_TIME = 1024
_MOST_COLOURS = 4


def array_dimension(place: Source) -> int:
    """1 for signals, 2 for images, 3 for volumes."""
    files = _files(place)
    x = next(iter(_find_parts(files).values()))[0]
    return len(_with_channels(files.shape(x), files.path(x))) - 2


def read_arrays(place: Source, *, stream: bool | None = None) -> DataSet:
    """The arrays `x` and `y`, or `x_train`, `y_train`, `x_test`, ... of a file or folder.

    Instead of a place, the tensors or numpy arrays themselves may be given by these names.

    `x` has the axes (n, channels, *spatial), or (n, length) for signals of one channel: bytes
    are pixels 0 to 255, all other numbers become float32. A test part that is missing is held
    out of the training part, alike in every run. An array `group` (`group_train`, ...) says by a
    whole number or text for each sample which of them belong together: no group is in two parts.
    With `stream` arrays of a folder stay on the disk; None: if they exceed `LARGEST_IN_MEMORY`.
    """
    files = _files(place)
    class_names = _class_names(files)
    arrays = {part: (files.rows(x), x, y) for part, (x, y) in _find_parts(files).items()}
    for array, x, _ in arrays.values():
        _with_channels(array.shape, files.path(x))
    if stream is None:
        stream = sum(array.nbytes for array, _, _ in arrays.values()) > LARGEST_IN_MEMORY
    if stream and not files.is_folder:
        raise DataError(
            f"{files.place}: only arrays in .npy files can stay on the disk; save each as one in "
            f"a folder, or leave data.stream out"
        )
    groups = number_groups(
        {part: _group_names(files, x, len(array)) for part, (array, x, _) in arrays.items()}
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
            groups=groups[part] if len(groups[part]) else None,
        )
    return DataSet.of_parts("arrays", sets)


def _group_names(files: ArrayFiles, x: str, number: int) -> list[str]:
    """What the array `group` beside x has for each sample; nothing where there is none."""
    name = f"group{x.removeprefix('x')}"
    if name not in files.names:
        return []
    groups = files.read(name)
    if groups.shape != (number,) or groups.dtype.kind not in "uiU":
        raise DataError(
            f"{files.path(name)} must have a whole number or a text for each of the {number} "
            f"samples of {x}; found {groups.dtype} of shape {groups.shape}"
        )
    return [str(group) for group in groups.tolist()]


def array_names(place: Source) -> set[str]:
    """The names of the arrays there."""
    return _files(place).names


SAMPLES = (".npy", ".npz", ".safetensors")
"""How names of files of arrays end."""


def read_samples(path: Path) -> Tensor:
    """The samples of a .npy file, or of the array `x` or the only one of another, unlabelled."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; pass the place where it lies")
    alone = path.suffix == ".npy"
    files = ArrayFiles(path.parent if alone else path)
    names = files.names if len(files.names) == 1 else files.names & {"x"}
    name = path.stem if alone else next(iter(names), None)
    if name is None:
        raise DataError(
            f"{path}: holds no array x (found: {', '.join(sorted(files.names))}); save the samples "
            f"alone, or as x"
        )
    return samples_of(files.read(name), files.path(name))


def samples_of(array: Array, path: str) -> Tensor:
    """An array of samples, (n, channels, *spatial), checked; errors call it by that path."""
    images = _images(array, path, stream=False)
    assert isinstance(images, Tensor)
    return images


def _files(place: Source) -> ArrayFiles:
    return HeldArrays(place) if isinstance(place, Mapping) else ArrayFiles(Path(place))


def _find_parts(files: ArrayFiles) -> dict[str, tuple[str, str]]:
    """The names of the arrays of each part."""
    names = files.names
    if "x" in names:
        parts = {"train": ("x", "y")}
    else:
        parts = {
            part: (f"x_{name}", f"y_{name}") for name, part in PARTS.items() if f"x_{name}" in names
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


def _images(array: Array | Rows, path: str, stream: bool) -> Tensor | StoredImages:
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
