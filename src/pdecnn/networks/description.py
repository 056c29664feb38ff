"""Whether a network is what its config describes: nothing else can a file hold, or a new level."""

from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.errors import ConfigError
from pdecnn.networks.network import Network
from pdecnn.pde.normalization import BATCH_NORMS

_INTERNAL = frozenset(vars(nn.Module()))
# The preprocessing is kept beside the config. How the gradient is computed changes nothing else,
# but for the grid that it may bring, which is compared.
_FREE = frozenset({"preprocessing", "_backprop", "_grid_bits"})


def check_described(network: Network) -> None:
    """Raise a ConfigError where a network is not the one that would be made by its config.

    Compared are the parts and their types, every setting of theirs, the shapes of their tensors
    and methods replaced; not weights, dtype and device, nor what else was attached.
    """
    # The weights drawn here are not used: this must not use up random numbers.
    with torch.random.fork_rng(devices=()), torch.device("cpu"):
        made = Network(network.config, network.preprocessing)
    found, wanted = dict(network.named_modules()), dict(made.named_modules())
    differences = [_difference(name, found.get(name), part) for name, part in wanted.items()]
    differences += [f"{name} is not among its parts" for name in found if name not in wanted]
    for difference in filter(None, differences):
        raise ConfigError(
            f"the network was changed after it was made: {difference}; only networks as "
            f"NetworkConfig describes them can be saved or change their level: undo it, or keep "
            f"the state_dict() yourself"
        )


def refuse_hooks(network: Network) -> None:
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
