"""Weights out of a file that torch.save wrote, which is a pickle: only if asked for by name.

torch reads it with `weights_only=True`, by an unpickler that knows tensors and containers and calls
nothing else.
"""

import pickletools
import zipfile
from pathlib import Path

import torch
from torch import Tensor

from pdecnn.errors import CheckpointError, in_one_line, quoted
from pdecnn.networks.network import Network
from pdecnn.networks.pretrained import load_weights

_LARGEST_FACTOR, _ALWAYS_ALLOWED_BYTES = 16, 2**24
"""How much larger than the weights a file may be: it may hold an optimiser's state too."""
_INNER_NAMES = ("state_dict", "model")
_LONGEST_PROGRAM = 2**24
# Of what torch's unpickler may call: not bytearray, torch.Tensor or sparse tensors, which take as
# much memory as a file asks for, nor tensors without numbers.
_CALLED = {
    *("collections OrderedDict", "collections Counter", "__builtin__ set"),
    *("torch Size", "torch device", "torch.serialization _get_layout"),
    *("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter"),
}


def take_foreign_weights(network: Network, path: Path) -> None:
    """Copy the state dict of the file, or the one under 'state_dict' or 'model', to the network.

    Names and shapes must be those of the network; anything amiss is a CheckpointError.
    """
    own = network.state_dict()
    num_bytes = sum(tensor.nbytes for tensor in own.values())
    _check_size(path, _LARGEST_FACTOR * num_bytes + _ALWAYS_ALLOWED_BYTES)
    _check_calls(path)
    try:
        values = torch.load(path, map_location="cpu", weights_only=True)
    # On a hostile or damaged file torch raises nearly anything.
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise CheckpointError(
            f"{path}: cannot be read as tensors alone ({reason}); save its state_dict() anew"
        ) from error
    for name in _INNER_NAMES:
        if isinstance(values, dict) and isinstance(values.get(name), dict):
            values = values[name]
    if not isinstance(values, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in values.items()
    ):
        raise CheckpointError(f"{path}: holds no state dict; save its state_dict() anew")
    # Others are refused as they are: a view of one number may claim any shape.
    fitting = {k for k, v in values.items() if k in own and v.shape == own[k].shape}
    tensors = {
        k: v.to(own[k].dtype) if k in fitting and not v.is_complex() else v
        for k, v in values.items()
    }
    load_weights(network, tensors, path)


def _check_size(path: Path, most: int) -> None:
    """Refuse what would unpack to more than the network can use, before it does."""
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(member.file_size for member in archive.infolist())
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise CheckpointError(
            f"{path}: is no file of torch.save in its present format ({error}); save it anew"
        ) from error
    if total > most:
        raise CheckpointError(
            f"{path}: unpacks to {total:,} bytes, many times the weights of the network; save its "
            f"state_dict() alone"
        )


def _check_calls(path: Path) -> None:
    """Refuse what is more than a description of tensors, by a look at its instructions."""
    try:
        with zipfile.ZipFile(path) as archive:
            # Of two, or with other letters, torch might take the one that was not looked at.
            (name,) = (n for n in archive.namelist() if n.lower().endswith("data.pkl"))
            with archive.open(name) as stream:
                program = stream.read(_LONGEST_PROGRAM)
        called = {str(arg) for op, arg, _ in pickletools.genops(program) if op.name == "GLOBAL"}
        others = {op.name for op, _, _ in pickletools.genops(program)} & {"STACK_GLOBAL", "INST"}
    # On a damaged file zipfile, zlib and pickletools raise nearly anything.
    except Exception as error:
        raise CheckpointError(
            f"{path}: is no file of torch.save in its present format ({in_one_line(error)}); save "
            f"it anew"
        ) from error
    strange = [name for name in sorted(called - _CALLED) if not _is_kind(name)]
    if strange or others:
        raise CheckpointError(
            f"{path}: holds more than plain tensors ({quoted(', '.join([*strange, *others]))}); "
            f"save its state_dict() alone"
        )


def _is_kind(name: str) -> bool:
    """Whether 'torch FloatStorage' or 'torch float32' is meant, which are not called."""
    module, _, kind = name.partition(" ")
    is_dtype = isinstance(getattr(torch, kind, None), torch.dtype)
    return module == "torch" and (is_dtype or kind.endswith("Storage"))
