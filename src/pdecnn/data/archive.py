"""What a published archive holds, read so that no file can do harm: tar and pickle.

Named regular files of a `.tar.gz` go into memory, nothing is ever unpacked. The python version of
CIFAR is a pickle of a dictionary: a pickle may name any function of any module and have it called,
but this unpickler knows few names, those by which numpy pickles an array in any protocol, and what
it puts in their place are classes of its own: numpy is never called by a file.
"""

import gzip
import io
import pickle
import tarfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pdecnn.errors import DataError, bad_file_refused

MAX_MEMBER_BYTES = 3 * 2**30
"""The largest member that is passed over; STL-10's unlabelled images are 2.8 GB."""
MAX_READ_BYTES = 2**29
"""The largest member that is read; the largest published one has 221 MB."""
MAX_TOTAL_BYTES = 4 * 2**30
"""All that an archive may unpack to."""
MAX_MEMBERS = 10_000
"""Empty members take memory too; no published archive has 20."""
_MAX_HEADER_BYTES = 2**20
_BUFFER_BYTES = 2**16
_REMEDY = "fetch the archive again from where it is published"


def read_members(path: Path, names: Iterable[str]) -> dict[str, bytes]:
    """The files of these names, each a path inside the archive; a DataError where one is missing.

    An archive with anything in it but folders and regular files of harmless names and sizes is
    refused as a whole. It is read to its end, so that its checksum is checked too.
    """
    wanted = set(names)
    found: dict[str, bytes] = {}
    problem = "is no whole .tar.gz archive, or damaged"
    with bad_file_refused(path, problem, _REMEDY), gzip.open(path) as unpacked:
        stream = _CappedStream(unpacked, path)
        with tarfile.open(fileobj=stream, mode="r|", bufsize=_BUFFER_BYTES) as archive:
            for member in _members(archive, stream, path):
                name = str(PurePosixPath(member.name))
                if name not in wanted or member.isdir():
                    continue
                if name in found:
                    raise DataError(f"{path}: holds {name} twice; {_REMEDY}")
                if member.size > MAX_READ_BYTES:
                    raise DataError(
                        f"{path}: member {name!r} has {member.size:,} bytes, more than "
                        f"{MAX_READ_BYTES:,}; {_REMEDY}"
                    )
                content = archive.extractfile(member)
                assert content is not None  # it is a regular file
                found[name] = content.read()
        stream.drain()
    missing = sorted(wanted - found.keys())
    if missing:
        raise DataError(f"{path}: does not hold {missing[0]}; {_REMEDY}")
    return found


class _CappedStream(io.RawIOBase):
    """The unpacked bytes, no more of them than was granted: a header cannot ask for gigabytes."""

    def __init__(self, stream: gzip.GzipFile, path: Path) -> None:
        super().__init__()
        self.stream, self.path = stream, path
        self.granted = _MAX_HEADER_BYTES

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes; tarfile asks for a buffer at a time."""
        content = self.stream.read(size)
        self.granted -= len(content)
        if self.granted < -_BUFFER_BYTES:
            raise DataError(f"{self.path}: has headers of more than 1 MiB; {_REMEDY}")
        return content

    def drain(self) -> None:
        """Read what is left, blocks of zeros, and with it the checksum."""
        self.granted = _MAX_HEADER_BYTES
        while self.read(_BUFFER_BYTES):
            pass


def _members(
    archive: tarfile.TarFile, stream: _CappedStream, path: Path
) -> Iterable[tarfile.TarInfo]:
    """Every member, refused before its content is touched if it is not harmless."""
    total = count = 0
    while (member := archive.next()) is not None:
        complaint = _complaint(member)
        total, count = total + member.size, count + 1
        if complaint is None and member.size > MAX_MEMBER_BYTES:
            complaint = f"has {member.size:,} bytes, more than {MAX_MEMBER_BYTES:,}"
        if complaint is None and total > MAX_TOTAL_BYTES:
            complaint = f"makes the whole larger than {MAX_TOTAL_BYTES:,} bytes"
        if complaint is None and count > MAX_MEMBERS:
            complaint = f"comes after {MAX_MEMBERS:,} others"
        if complaint is not None:
            raise DataError(f"{path}: member {member.name!r} {complaint}; {_REMEDY}")
        stream.granted = member.size + _MAX_HEADER_BYTES
        yield member


def _complaint(member: tarfile.TarInfo) -> str | None:
    """What makes a member one that no published archive has."""
    if member.issym() or member.islnk():
        return "is a link"
    if member.issparse() or not (member.isreg() or member.isdir()):
        return "is neither a regular file nor a folder"
    name = member.name
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        return "points outside the archive"
    if "\\" in name or ":" in name or "\0" in name:
        return "has a name that some systems take for another place"
    return None


def read_pickle(content: bytes, path: str) -> dict[str, Any]:
    """The dictionary in a pickle, its arrays of bytes as uint8; `path` is for the error."""
    problem = "cannot be read as a pickle of arrays and lists"
    with bad_file_refused(path, problem, "fetch it again from where it is published"):
        value = _Unpickler(io.BytesIO(content), encoding="latin1").load()
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise ValueError("it is no dictionary of named values")
        return {
            key: entry.to_numpy() if isinstance(entry, _Array) else entry
            for key, entry in value.items()
        }


class _Dtype:
    def __init__(self, code: object, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """The order of the bytes, of which a byte has one."""


class _Array:
    """What numpy's `ndarray` leaves in a pickle, uninterpreted until it is asked for."""

    def __init__(self, *_: object) -> None:
        self.shape: object = None
        self.content: object = None
        self.by_columns: object = False

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, self.shape, dtype, self.by_columns, self.content = state
        if not isinstance(dtype, _Dtype) or dtype.code not in ("u1", "|u1"):
            raise ValueError("an array in it is not of bytes")

    def to_numpy(self) -> npt.NDArray[np.uint8]:
        content = self.content
        if isinstance(content, str):  # a text of Python 2
            content = content.encode("latin1")
        if not isinstance(content, bytes) or not isinstance(self.shape, tuple):
            raise ValueError("an array in it has no content")
        order: Literal["F", "C"] = "F" if self.by_columns else "C"
        return np.frombuffer(content, np.uint8).reshape(self.shape, order=order)


class _BufferedArray(_Array):
    """An array as protocol 5 has it: the bytes first, then what they mean."""

    def __init__(self, content: object, dtype: object, shape: object, order: object) -> None:
        super().__init__()
        if order not in ("C", "F"):
            raise ValueError("an array in it is neither by rows nor by columns")
        self.__setstate__((1, shape, dtype, order == "F", content))


class _Bytes(bytes):
    """Bytes as protocol 2 has them: a text of the letters of these codes."""

    def __new__(cls, text: str, encoding: str) -> "_Bytes":
        if not isinstance(text, str) or encoding != "latin1":
            raise ValueError("bytes in it are not written as Python writes them")
        return super().__new__(cls, text, "latin1")

    def __setstate__(self, state: object) -> None:
        """Bytes have none, nor has this class: a pickle could change it otherwise."""
        raise ValueError("bytes in it have a state")


_KNOWN: dict[tuple[str, str], type] = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.numeric", "_frombuffer"): _BufferedArray,
    ("numpy._core.numeric", "_frombuffer"): _BufferedArray,
    ("_codecs", "encode"): _Bytes,
}


def _load_bytearray(unpickler: Any) -> None:
    """As bytes: Python's own unpickler, too, would take the memory that a file asks for here."""
    length = int.from_bytes(unpickler.read(8), "little")
    content = unpickler.read(length)
    if len(content) < length:
        raise pickle.UnpicklingError("it ends within an array")
    unpickler.append(content)


# Python's own unpickler, not the one in C, which takes as much memory as a file asks for.
class _Unpickler(pickle._Unpickler):
    dispatch = pickle._Unpickler.dispatch | {pickle.BYTEARRAY8[0]: _load_bytearray}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _KNOWN:
            return _KNOWN[module, name]
        raise pickle.UnpicklingError(f"it wants to call {module}.{name}")
