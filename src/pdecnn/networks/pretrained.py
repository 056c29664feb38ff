"""A network as a folder: config.json, model.safetensors, a model card. No pickle."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor, nn

from pdecnn.errors import CheckpointError, ConfigError, DivergedError, in_one_line
from pdecnn.files import (
    MANIFEST,
    json_bytes,
    manifest_bytes,
    read_bytes,
    verify_manifest,
    write_folder,
)
from pdecnn.networks.config import CLOSINGS, NetworkConfig
from pdecnn.networks.preprocessing import Preprocessing
from pdecnn.pde.convolution import SPATIAL_AXES, SUBJECTS
from pdecnn.pde.normalization import BATCH_NORMS

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
FORMAT_VERSION = 1
# What a network can compute in; torch has more floating-point numbers, of 8 bits for one.
_WEIGHT_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def write(folder: Path, contents: dict[str, bytes]) -> None:
    """Write the files of `Network.save_pretrained` with their manifest."""
    manifest = manifest_bytes({name: contents[name] for name in (WEIGHTS, CONFIG)})
    # The config goes first and comes last but for the manifest: a save killed over an older folder
    # must neither look verified nor mix the weights of one network with the config of another.
    try:
        write_folder(folder, contents | {MANIFEST: manifest}, removed_first=(MANIFEST, CONFIG))
    except (FileExistsError, NotADirectoryError) as error:
        raise CheckpointError(f"{folder}: is, or lies in, a file; pass a folder") from error


def contents_of(
    config: NetworkConfig, preprocessing: Preprocessing, tensors: dict[str, Tensor], card: str
) -> dict[str, bytes]:
    """The files of a network's folder, but for the manifest."""
    values = {
        "library_name": "pdecnn",
        "format_version": FORMAT_VERSION,
        "network": config.to_dict(),
        "preprocessing": preprocessing.to_dict(),
    }
    return {WEIGHTS: serialize(tensors), CARD: card.encode(), CONFIG: json_bytes(values)}


def read(folder: Path) -> tuple[NetworkConfig, Preprocessing, dict[str, Tensor]]:
    """What a folder of `Network.save_pretrained` holds, verified where it has a manifest."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; pass one that save_pretrained wrote")
    if (folder / MANIFEST).exists():
        verify_manifest(folder, (CONFIG, WEIGHTS))
    path = folder / CONFIG
    try:
        values = json.loads(read_bytes(path))
        version = values["format_version"]
        network_values, preprocessing_values = values["network"], values["preprocessing"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a pdecnn config ({in_one_line(error)})") from error
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: format version {version!r}, but this pdecnn reads {FORMAT_VERSION}; use "
            f"the version of pdecnn that wrote it"
        )
    tensors = deserialize(folder / WEIGHTS)
    try:
        config = NetworkConfig.from_dict(network_values)
        preprocessing = Preprocessing.from_dict(preprocessing_values)
        # A config may ask for more than the machine has: compare before memory is taken.
        if sum(config.block_num_steps) > len(tensors) and not config.share_weights:
            raise ConfigError(f"{config.num_steps} steps a block need more than the weights saved")
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error
    return config, preprocessing, tensors


def load_weights(network: nn.Module, tensors: dict[str, Tensor], origin: Path) -> None:
    """Copy tensors into the network; a CheckpointError names the first that does not fit."""
    check_shapes(network, tensors, origin)
    for name, tensor in network.state_dict(keep_vars=True).items():
        # Each comes back in the dtype it was saved in; torch would convert in silence.
        tensor.data = tensor.data.to(tensors[name].dtype)
    network.load_state_dict(tensors)


def check_shapes(network: nn.Module, tensors: dict[str, Tensor], origin: Path) -> None:
    """Refuse tensors that are not those of the network, by a CheckpointError."""
    own = network.state_dict()
    for name in [*own, *tensors]:
        found = tuple(tensors[name].shape) if name in tensors else None
        wanted = tuple(own[name].shape) if name in own else None
        if found != wanted:
            raise CheckpointError(
                f"{origin}: belongs to another architecture: {name} has shape {found} in the "
                f"file but {wanted} in the network"
            )
        kind = tensors[name].dtype
        if own[name].is_floating_point() != (kind in _WEIGHT_DTYPES):
            raise CheckpointError(f"{origin}: {name} has the wrong type {kind}")


def serialize(tensors: dict[str, Tensor]) -> bytes:
    """The bytes of a safetensors file."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return safetensors.save(plain, metadata={"format": "pt"})


def deserialize(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; any fault is a CheckpointError."""
    try:
        return safetensors.load(read_bytes(path))
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{path}: cannot be read as safetensors ({error}); restore it from a copy"
        ) from error


def model_card(
    config: NetworkConfig, preprocessing: Preprocessing, num_weights: int, num_features: int
) -> str:
    """What README.md of a saved network says."""
    names = preprocessing.class_names
    subject = SUBJECTS[config.dimension]
    axes = SPATIAL_AXES[config.dimension]
    pixels = preprocessing.pixels or "uint8"
    task, answer = "classification", f"{config.num_classes or num_features} "
    answer += "classes" if config.num_classes else "features"
    if config.is_field:
        denoises = config.classifier in CLOSINGS[1:]
        task = "to-image" if denoises else "segmentation"
        kind = f"{subject}s of {config.num_classes} channel(s)"
        answer = kind if denoises else f"scores of {config.num_classes} classes at every pixel"
    return f"""---
library_name: pdecnn
license: mit
tags: [{subject}-{task}, pde, {config.integrator}]
---

# A {config.layer} network stepped by {config.integrator}

A convolutional network that is a discretised partial differential equation (Ruthotto & Haber,
*Deep Neural Networks Motivated by Partial Differential Equations*): blocks of width
{", ".join(map(str, config.channels[:-1]))} with {config.num_steps} time steps of size
{config.step_size}, {num_weights:,} trainable weights.

Input: {config.in_channels} channel(s) in {config.dimension}D, standardised by
`{preprocessing.standardize}`. Output: {answer}{": " + ", ".join(names) if names else ""}.

```python
import pdecnn

network = pdecnn.Network.from_pretrained("FOLDER").eval()
scores = network(network.preprocess({subject}s))  # {pixels}, (batch, channels, {axes})
```

Saved with torch {torch.__version__.split("+")[0]}; `config.json` holds every setting.
"""


_INTERNAL = frozenset(vars(nn.Module()))
# The preprocessing is kept beside the config. How the gradient is computed changes nothing else,
# but for the grid that it may bring, which is compared. What was seen of weights is no setting.
_FREE = frozenset(
    {"preprocessing", "_backprop", "_grid_bits", "_place", "_seen", "_values", "_filled", "_number"}
)


def check_described(network: nn.Module, made: nn.Module) -> None:
    """Raise a ConfigError where a network is not the one `made` by its config.

    Compared are the parts and their types, every setting of theirs, the shapes of their tensors
    and methods replaced; not weights, dtype and device, nor what else was attached.
    """
    found, wanted = dict(network.named_modules()), dict(made.named_modules())
    differences = [_difference(name, found.get(name), part) for name, part in wanted.items()]
    differences += [f"{name} is not among its parts" for name in found if name not in wanted]
    if len(list(network.parameters())) < len(list(made.parameters())):
        differences.append("some of its weights are one tensor")
    for difference in filter(None, differences):
        raise ConfigError(
            f"the network was changed after it was made: {difference}; only networks as "
            f"NetworkConfig describes them can be saved or change their level: undo it, or keep "
            f"the state_dict() yourself"
        )


def refuse_hooks(network: nn.Module) -> None:
    """Raise a ConfigError where forward hooks may change what a network computes."""
    for name, part in network.named_modules():
        if part._forward_hooks or part._forward_pre_hooks:
            raise ConfigError(
                f"{name or 'the network'} has a forward hook, which no file can hold and which may "
                f"change what the network computes; remove it first, with remove() of the handle "
                f"that registering it returned"
            )


def _difference(name: str, found: nn.Module | None, wanted: nn.Module) -> str | None:
    """What distinguishes a part from the one that the config describes, if anything."""
    where, prefix = name or "the network", f"{name}." if name else ""
    if found is None:
        return f"{where} is missing, or there twice"
    if _kind(found) is not _kind(wanted):
        return f"{where} is {type(found).__name__}, not {type(wanted).__name__}"
    settings, shapes, wanted_shapes = _settings(found), _shapes(found), _shapes(wanted)
    for key, value in _settings(wanted).items():
        if isinstance(settings.get(key), Tensor) or settings.get(key) != value:
            return f"{prefix}{key.lstrip('_')} is {settings.get(key)!r}, not {value!r}"
    for key in settings:
        if callable(getattr(type(found), key, None)):
            return f"{prefix}{key} is replaced"
    for key in [*wanted_shapes, *shapes]:
        if shapes.get(key) != wanted_shapes.get(key):
            return f"{prefix}{key} has shape {shapes.get(key)}, not {wanted_shapes.get(key)}"
    return None


def _kind(module: nn.Module) -> type[nn.Module]:
    # Batch norms of several processes are those of one.
    return nn.BatchNorm2d if isinstance(module, BATCH_NORMS) else type(module)


def _settings(module: nn.Module) -> dict[str, Any]:
    return {key: value for key, value in vars(module).items() if key not in _INTERNAL | _FREE}


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Those of its own tensors."""
    own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    return {key: tuple(tensor.shape) for key, tensor in own}


def nonfinite_weights(module: nn.Module) -> str | None:
    """How many weights and statistics are NaN or infinite, and where the first is; None: none."""
    tensors = {
        name: tensor for name, tensor in module.state_dict().items() if tensor.is_floating_point()
    }
    counts = {name: int((~tensor.isfinite()).sum()) for name, tensor in tensors.items()}
    first = next((name for name, count in counts.items() if count), None)
    if first is None:
        return None
    number, total = sum(counts.values()), sum(tensor.numel() for tensor in tensors.values())
    verb = "is" if number == 1 else "are"
    return f"{number:,} of {total:,} weights {verb} NaN or infinite, the first in {first}"


def refuse_nonfinite(module: nn.Module, origin: Path) -> None:
    """Raise a DivergedError where weights are no numbers, before anything is made of them."""
    found = nonfinite_weights(module)
    if found is not None:
        raise DivergedError(
            f"{origin}: {found}, so that nothing it computes means anything; take other weights, "
            f"or look at what is left with `pdecnn diagnose`"
        )
