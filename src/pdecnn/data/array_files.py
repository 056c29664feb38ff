"""Named arrays in a file or folder, without pickle: .npz, .safetensors, or a folder of .npy."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import safe_open
from torch import Tensor

from pdecnn.data.stored_images import LARGEST_IN_MEMORY
from pdecnn.errors import DataError

Array = npt.NDArray[Any]
KINDS = ".npz, .safetensors or a folder of .npy files"


class FileArray:
    """An array in a .npy file, of which some samples are read at a time.

    By calls to the file, not by mapping it: where a mapped file has become shorter the system ends
    the process, here it is an error.
    """

    def __init__(
        self, path: Path, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self.path, self.offset, self.shape, self.dtype = path, offset, shape, dtype
        self.nbytes = prod(shape) * dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, where: int | slice) -> Array:
        if isinstance(where, slice):
            first, last, _ = where.indices(len(self))
        else:
            first, last = where, where + 1
        size = self.nbytes // max(len(self), 1)
        try:
            with self.path.open("rb") as stream:
                stream.seek(self.offset + first * size)
                content = stream.read((last - first) * size)
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read any more ({error.strerror})") from error
        if len(content) < (last - first) * size:
            raise DataError(
                f"{self.path}: has become shorter since it was opened; restore it, and leave it "
                f"alone while it is used"
            )
        samples = np.frombuffer(content, self.dtype).reshape(last - first, *self.shape[1:])
        return samples if isinstance(where, slice) else samples[0]


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
            if self.is_folder:
                return self._open(name).shape
            if self.place.suffix == ".safetensors":
                with safe_open(self.place, framework="np") as file:
                    return tuple(file.get_slice(name).get_shape())
            with zipfile.ZipFile(self.place) as archive:
                return _zipped_header(archive, name)[0]

    def read(self, name: str) -> Array:
        """The array of that name, which must be there."""
        with self._reading(self.place):
            if self.is_folder:
                return self._open(name)[:]
            if self.place.suffix == ".safetensors":
                with safe_open(self.place, framework="pt") as file:
                    return _to_numpy(file.get_tensor(name))
            with zipfile.ZipFile(self.place) as archive:
                shape, dtype = _zipped_header(archive, name)
                # Numpy would take the memory that a header asks for before it reads on.
                if prod(shape) * dtype.itemsize > archive.getinfo(f"{name}.npy").file_size:
                    raise ValueError(f"{name} is shorter than its header says")
                with archive.open(f"{name}.npy") as stream:
                    array: Array = np.lib.format.read_array(stream, allow_pickle=False)
                    return array

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

    def open(self, name: str) -> "Array | FileArray":
        """The array of that name; one of a folder is read a part at a time, as it is indexed."""
        if not self.is_folder:
            return self.read(name)
        with self._reading(self.place):
            return self._open(name)

    def _open(self, name: str) -> "Array | FileArray":
        path = self.place / f"{name}.npy"
        _check_header_length(path)
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        if mapped.ndim == 0 or not mapped.flags.c_contiguous:  # its samples do not lie together
            array: Array = np.load(path, allow_pickle=False)
            return array
        return FileArray(path, mapped.offset, mapped.shape, mapped.dtype)

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

    @contextmanager
    def _reading(self, path: Path) -> Iterator[None]:
        try:
            yield
        except DataError:
            raise
        # On a damaged file the readers raise nearly anything, NotImplementedError included.
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise DataError(
                f"{path}: cannot be read as arrays ({reason}); save it again, without objects"
            ) from error


def _to_numpy(tensor: Tensor) -> Array:
    """The tensor as an array; as float32 where numpy has no such numbers, bfloat16 for one."""
    try:
        array: Array = tensor.numpy()
    except TypeError:
        array = tensor.float().numpy()
    return array


def _check_header_length(path: Path) -> None:
    """Numpy would take the memory that the length of a header asks for before it reads on."""
    with path.open("rb") as stream:
        version = np.lib.format.read_magic(stream)
        length = int.from_bytes(stream.read(2 if version == (1, 0) else 4), "little")
    if length > path.stat().st_size:
        raise ValueError(f"{path.name} is shorter than its header says")


def _zipped_header(
    archive: zipfile.ZipFile, name: str
) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    """Shape and dtype of an array in a .npz file."""
    with archive.open(f"{name}.npy") as stream:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        else:
            shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
        return shape, dtype
