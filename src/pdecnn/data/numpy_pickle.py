"""The arrays, lists and texts of a python pickle, by an unpickler that can call nothing else.

The python version of CIFAR is a pickle of a dictionary. A pickle may name any function of any
module and have it called; this one knows few names, those by which numpy pickles an array in any
protocol, and what it puts in their place are classes of its own: numpy is never called by a file.
"""

import io
import pickle
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pdecnn.errors import DataError


def read_pickle(content: bytes, path: str) -> dict[str, Any]:
    """The dictionary in a pickle, its arrays of bytes as uint8; `path` is for the error."""
    try:
        value = _Unpickler(io.BytesIO(content), encoding="latin1").load()
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise ValueError("it is no dictionary of named values")
        return {key: _plain(entry) for key, entry in value.items()}
    # On a damaged file an unpickler raises nearly anything, struct.error and KeyError included.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"{path}: cannot be read as a pickle of arrays and lists ({reason}); fetch it again "
            f"from where it is published"
        ) from error


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


def _plain(value: object) -> object:
    return value.to_numpy() if isinstance(value, _Array) else value
