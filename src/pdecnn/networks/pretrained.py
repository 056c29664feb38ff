"""A network as a folder: config.json, model.safetensors, a model card. No pickle."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor

from pdecnn.errors import CheckpointError, ConfigError, in_one_line
from pdecnn.files import (
    MANIFEST,
    json_bytes,
    manifest_bytes,
    read_bytes,
    verify_manifest,
    write_folder,
)
from pdecnn.networks.config import config_from_dict
from pdecnn.networks.description import check_described
from pdecnn.networks.network import Network
from pdecnn.networks.preprocessing import preprocessing_from_dict
from pdecnn.pde.convolution import SPATIAL_AXES

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
FORMAT_VERSION = 1
# What a network can compute in; torch has more floating-point numbers, of 8 bits for one.
_WEIGHT_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def save(network: Network, folder: Path) -> None:
    """Write the folder; `Network.save_pretrained`."""
    contents = folder_contents(network)
    manifest = manifest_bytes({name: contents[name] for name in (WEIGHTS, CONFIG)})
    # The config goes first and comes last but for the manifest: a save killed over an older folder
    # must neither look verified nor mix the weights of one network with the config of another.
    try:
        write_folder(folder, contents | {MANIFEST: manifest}, removed_first=(MANIFEST, CONFIG))
    except (FileExistsError, NotADirectoryError) as error:
        raise CheckpointError(f"{folder}: is, or lies in, a file; pass a folder") from error


def folder_contents(network: Network) -> dict[str, bytes]:
    """The files of a network's folder, but for the manifest."""
    check_described(network)
    config = {
        "library_name": "pdecnn",
        "format_version": FORMAT_VERSION,
        "network": network.config.to_dict(),
        "preprocessing": network.preprocessing.to_dict(),
    }
    return {
        WEIGHTS: serialize(network.state_dict()),
        CARD: _model_card(network).encode(),
        CONFIG: json_bytes(config),
    }


def load(folder: Path) -> Network:
    """Read the folder; `Network.from_pretrained`."""
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
        config = config_from_dict(network_values)
        preprocessing = preprocessing_from_dict(preprocessing_values)
        # A config may ask for more than the machine has: compare before memory is taken.
        if sum(config.block_num_steps) > len(tensors) and not config.share_weights:
            raise ConfigError(f"{config.num_steps} steps a block need more than the weights saved")
        with torch.device("meta"):
            _check_shapes(Network(config, preprocessing), tensors, folder / WEIGHTS)
    except (ConfigError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    # The weights drawn here are overwritten: reading a file must not use up random numbers.
    with torch.random.fork_rng(devices=()):
        network = Network(config, preprocessing)
    load_weights(network, tensors, folder / WEIGHTS)
    return network


def load_weights(network: Network, tensors: dict[str, Tensor], origin: Path) -> None:
    """Copy tensors into the network; a CheckpointError names the first that does not fit."""
    _check_shapes(network, tensors, origin)
    for name, tensor in network.state_dict(keep_vars=True).items():
        # Each comes back in the dtype it was saved in; torch would convert in silence.
        tensor.data = tensor.data.to(tensors[name].dtype)
    network.load_state_dict(tensors)


def _check_shapes(network: Network, tensors: dict[str, Tensor], origin: Path) -> None:
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


def _model_card(network: Network) -> str:
    config = network.config
    names = network.preprocessing.class_names
    subject = {1: "signal", 2: "image", 3: "volume"}[config.dimension]
    axes = SPATIAL_AXES[config.dimension]
    return f"""---
library_name: pdecnn
license: mit
tags: [{subject}-classification, pde, {config.integrator}]
---

# A {config.layer} network stepped by {config.integrator}

A convolutional network that is a discretised partial differential equation (Ruthotto & Haber,
*Deep Neural Networks Motivated by Partial Differential Equations*): blocks of width
{", ".join(map(str, config.channels[:-1]))} with {config.num_steps} time steps of size
{config.step_size}, {network.num_weights:,} trainable weights.

Input: {config.in_channels} channel(s) in {config.dimension}D, standardised by
`{network.preprocessing.standardize}`. Output: {config.num_classes} classes\
{": " + ", ".join(names) if names else ""}.

```python
import pdecnn

network = pdecnn.Network.from_pretrained("FOLDER").eval()
scores = network(network.preprocess({subject}s))  # uint8, (batch, channels, {axes})
```

Saved with torch {torch.__version__.split("+")[0]}; `config.json` holds every setting.
"""
