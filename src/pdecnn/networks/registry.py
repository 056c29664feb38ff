"""Networks by name, with timm's manners: create_model, list_models, register_model."""

import logging
from collections.abc import Callable
from dataclasses import fields, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor

from pdecnn.errors import CheckpointError, ConfigError, unknown_name
from pdecnn.networks.config import STABLE, NetworkConfig
from pdecnn.networks.features import FeatureNetwork
from pdecnn.networks.network import Network
from pdecnn.networks.preprocessing import Preprocessing
from pdecnn.networks.pretrained import load_weights
from pdecnn.pde.activations import resolve_activation

log = logging.getLogger(__name__)

ConfigFunction = Callable[[], NetworkConfig]

# The three dynamics of the paper and the general residual network, each a choice of two axes.
DYNAMICS: dict[str, dict[str, Any]] = {
    "resnet": {"layer": "residual", "integrator": "forward_euler"},
    "parabolic": {"layer": "symmetric", "integrator": "forward_euler"},
    "hamiltonian": {"layer": "symmetric", "integrator": "verlet"},
    "second_order": {"layer": "symmetric", "integrator": "leapfrog"},
}
# Widths and classes per data set; those of the paper are pinned by its weight counts.
DATA_SETS: dict[str, dict[str, Any]] = {
    "digits": {"channels": (16, 32, 32), "in_channels": 1, "num_classes": 10},
    "stl10": {"channels": (16, 32, 64, 128, 128), "num_classes": 10},
    "cifar10": {"channels": (32, 64, 112, 112), "num_classes": 10},
    "cifar100": {"channels": (32, 64, 128, 256), "num_classes": 100},
    # Data of one's own; a run takes channels and classes from the data.
    "images": {"channels": (16, 32, 64, 64), "num_classes": 2},
    "signals": {"channels": (16, 32, 32, 32), "in_channels": 1, "num_classes": 2, "dimension": 1},
    "volumes": {"channels": (8, 16, 16), "in_channels": 1, "num_classes": 2, "dimension": 3},
}

# Networks for which Theorem 1 holds from pixels to scores: about half as many channels within a
# layer (by eights where a GPU is wanted, whose matrix units take them so), more steps, nothing that
# expands a distance. Sizes are replaced by those of data of one's own.
_STABLE_PARTS: dict[str, Any] = {
    "step_size": STABLE,
    "normalization": "bias",
    "opening": "pad",
    "connector": "bounded",
    "pooling": "space_to_depth",
    "classifier": "flat_unit_rows",
}
STABLE_NETWORKS: dict[str, dict[str, Any]] = {
    "digits": {
        "channels": (16, 16),
        "hidden_channels": (16,),
        "in_channels": 1,
        "num_classes": 10,
        "num_steps": 3,
        "certified_size": 8,
    },
    "cifar10": {
        "channels": (64, 88, 88),
        "hidden_channels": (32, 48),
        "num_classes": 10,
        "num_steps": (10, 6),
        "patch_size": 2,
        "certified_size": 32,
    },
    "large_cifar10": {
        "channels": (128, 160, 160),
        "hidden_channels": (64, 72),
        "num_classes": 10,
        "num_steps": (10, 6),
        "patch_size": 2,
        "certified_size": 32,
    },
    "images": {
        "channels": (32, 64, 96, 96),
        "hidden_channels": (16, 32, 48),
        "num_classes": 2,
        "num_steps": 4,
        "patch_size": 2,
        "certified_size": 64,
    },
    "signals": {
        "channels": (16, 32, 32, 32),
        "hidden_channels": (8, 16, 16),
        "in_channels": 1,
        "num_classes": 2,
        "num_steps": 4,
        "dimension": 1,
        "certified_size": 64,
    },
    "volumes": {
        "channels": (8, 32, 32),
        "hidden_channels": (4, 16),
        "in_channels": 1,
        "num_classes": 2,
        "num_steps": 3,
        "dimension": 3,
        "certified_size": 16,
    },
}

# Networks of the paper's three dynamics for training as people train today, within its numbers of
# weights: what differs from the paper's. That for CIFAR-10 is the best of docs/results/search.csv,
# where batch norm in the blocks gave heat and second-order waves a point more, others none.
_TWICE: dict[str, Any] = {"step_size": 2.0}
_WIDE = _TWICE | {"channels": (64, 64, 128, 128), "num_steps": (2, 2, 2)}
_SMALL_IMAGES: dict[str, dict[str, Any]] = {
    "parabolic": _WIDE,
    "hamiltonian": _TWICE | {"channels": (32, 64, 128, 128), "num_steps": (3, 4, 2)},
    "second_order": _WIDE,
}
_NORMS: dict[str, dict[str, Any]] = {
    "parabolic": {"normalization": "batch"},
    "hamiltonian": {},
    "second_order": {"normalization": "batch"},
}
TUNED_NETWORKS: dict[str, dict[str, dict[str, Any]]] = {
    dynamics: dict.fromkeys(("cifar10", "cifar100"), small | _NORMS[dynamics])
    | dict.fromkeys(("stl10", "images"), _TWICE | _NORMS[dynamics])
    for dynamics, small in _SMALL_IMAGES.items()
}

# From field to field: the whole state goes on from level to level.
_LEVELS: dict[str, Any] = {
    "opening": "linear",
    "connector": "invertible",
    "pooling": "space_to_depth",
}
_IMAGES: dict[str, Any] = {
    "in_channels": 1,
    "num_classes": 1,
    "classifier": "residual",
    "boundary": "reflect",
}
# From noisy images to clean ones, of any size: a few steps on the pixels, most on a level that is
# coarser, with thin layers. Steps of a quarter without normalisation are better than batch norm.
_DENOISER = {
    "channels": (24, 96, 24, 24),
    "num_steps": (2, 8, 2),
    "hidden_channels": 64,
    "step_size": 0.25,
    "normalization": "bias",
}
DENOISERS: dict[str, dict[str, Any]] = {
    "parabolic": _DENOISER,
    "hamiltonian": _DENOISER
    | {"channels": (32, 128, 32, 32), "hidden_channels": (32, 64, 32), "num_steps": (2, 6, 2)},
    "second_order": _DENOISER,
    "parabolic_stable": {
        "channels": (64, 64),
        "num_steps": 8,
        "step_size": STABLE,
        "normalization": "bias",
        "opening": "pad",
        "classifier": "transpose",
        "boundary": "zero",
        "certified_size": 64,
    },
}

# From raw waves to classes. Cells of 8 samples become channels before the first step, which loses
# nothing; six blocks, each twice as coarse as the one before it, then see half a second at 8 kHz,
# the hamiltonian ones, with two layers a step, a whole one.
SOUND_NETWORK: dict[str, Any] = {
    "channels": (32, 64, 64, 96, 96, 128, 128),
    "in_channels": 1,
    "num_classes": 2,
    "num_steps": 2,
    "dimension": 1,
    "opening": "pad",
    "patch_size": 8,
}
# From images or volumes to a class for each pixel, in levels: a pixel becomes channels of a
# coarser one, so that layers are thin where there are many channels.
SEGMENTERS: dict[int, dict[str, Any]] = {
    2: {
        "channels": (32, 128, 512, 128, 32, 32),
        "hidden_channels": (32, 64, 64, 64, 32),
        "in_channels": 3,
        "boundary": "reflect",
    },
    3: {
        "channels": (16, 128, 1024, 128, 16, 16),
        "hidden_channels": (32, 64, 32, 64, 32),
        "in_channels": 1,
    },
}

# The heat equation cannot be run backwards, and batch norm does what a step size would.
_WAVE_STEPS: dict[str, Any] = {"normalization": "bias", "step_size": 0.25, "backprop": "exact"}
SEGMENTER_STEPS: dict[str, dict[str, Any]] = {
    "parabolic": {"normalization": "batch"},
    "hamiltonian": _WAVE_STEPS,
    "second_order": _WAVE_STEPS,
}
_CLASSES_OF_PIXELS: dict[str, Any] = {"num_classes": 2, "num_steps": 2, "classifier": "field"}

# Trained networks that come with the package, one `save_pretrained` folder a model.
PUBLISHED_WEIGHTS = Path(__file__).parent / "weights"

_MODELS: dict[str, ConfigFunction] = {}


def register_model(function: ConfigFunction) -> ConfigFunction:
    """Make the config a function returns known by the function's name; a decorator."""
    name = getattr(function, "__name__", None)
    if not callable(function) or not isinstance(name, str):
        raise ConfigError(
            f"register_model takes a named function that returns a NetworkConfig, found "
            f"{function!r}"
        )
    if name in _MODELS:
        raise ConfigError(f"a model named {name!r} is registered already")
    _MODELS[name] = function
    return function


def list_models(pattern: str = "*", *, pretrained: bool = False) -> list[str]:
    """The names that match a shell pattern such as 'hamiltonian_*'.

    With `pretrained` only those that have published weights.
    """
    names = sorted(name for name in _MODELS if fnmatch(name, pattern))
    return [name for name in names if (PUBLISHED_WEIGHTS / name).is_dir() or not pretrained]


def published_name(source: str | Path) -> str | None:
    """The model whose published weights are meant; None: a path, which wins over such a name."""
    name = str(source)
    if name not in list_models(pretrained=True):
        return None
    if not Path(source).exists():
        return name
    log.warning(
        "%s: what lies there is taken, not the published weights of that name; rename it to get "
        "them",
        name,
    )
    return None


def model_config(name: str, **overrides: Any) -> NetworkConfig:
    """The config of a registered model, with some settings changed."""
    if name not in _MODELS:
        raise unknown_name("model", name, _MODELS)
    known = [field.name for field in fields(NetworkConfig)]
    for key in overrides:
        if key not in known:
            raise unknown_name("network setting", key, known)
    config = _MODELS[name]()
    if not isinstance(config, NetworkConfig):
        raise ConfigError(f"the function {name} must return a NetworkConfig, found {config!r}")
    return replace(config, **overrides)


@overload
def create_model(
    name: str,
    *,
    pretrained: str | Path | bool | None = None,
    features_only: Literal[False] = False,
    **overrides: Any,
) -> Network: ...


@overload
def create_model(
    name: str,
    *,
    pretrained: str | Path | bool | None = None,
    features_only: Literal[True],
    **overrides: Any,
) -> FeatureNetwork: ...


def create_model(
    name: str,
    *,
    pretrained: str | Path | bool | None = None,
    features_only: bool = False,
    **overrides: Any,
) -> Network | FeatureNetwork:
    """A network by name, fresh or with trained weights.

    `pretrained` is a `save_pretrained` folder, or True for the published weights of that name.
    `overrides` are fields of NetworkConfig. With `pretrained` all of them must be those of the
    folder, but for `backprop` and `grid_bits`, which unless given are the name's and the folder's,
    and

    - `num_classes`: another number of classes gets a fresh classifier, 0 none: the network returns
      the `num_features` numbers that its classifier would meet;
    - `in_channels`: another number of channels gets stencils of the opening that were made for the
      folder's. Of fewer channels each has the sum of all stencils divided by their number; of more,
      channel j has the stencil of channel j mod n of the n, divided among those that have it. An
      image that is grey gets the same scores in any number of equal channels.

    With `features_only` the result is a module that returns a list, the features after each block,
    with `feature_info.channels()` and `feature_info.reduction()`.
    """
    if features_only:
        return FeatureNetwork(create_model(name, pretrained=pretrained, **overrides))
    if pretrained is None or pretrained is False:
        return Network(model_config(name, **overrides))
    model_config(name)  # an unknown name is said first
    if pretrained is True:
        pretrained = _published_folder(name)
    if not isinstance(pretrained, str | Path) or pretrained == "":
        raise ConfigError(f"pretrained must be a folder, found {pretrained!r}")
    folder = Path(pretrained)
    source = Network.from_pretrained(folder)
    saved = {"grid_bits": source.config.grid_bits}
    network = Network(model_config(name, **saved | overrides))
    network.preprocessing = take_weights(network, source, folder)
    return network


def _published_folder(name: str) -> Path:
    if name in list_models(pretrained=True):
        return PUBLISHED_WEIGHTS / name
    there = ", ".join(list_models(pretrained=True)) or "none"
    raise ConfigError(
        f"no weights are published for {name} (there are: {there}); pass pretrained=FOLDER"
    )


def take_weights(network: Network, source: Network, folder: Path) -> Preprocessing:
    """Take over the weights of a network read from a folder; return the preprocessing they expect.

    The architecture must be the same. Where only the classes differ, in number or in their names
    if both are known, the network keeps its own classifier; where only the channels of the images
    do, the opening's stencils are made for them (`stencils_for`).
    """
    _check_same_architecture(network.config, source.config, folder)
    names, own = source.preprocessing.class_names, network.preprocessing.class_names
    renamed = names is not None and own is not None and names != own
    if source.num_classes != network.num_classes or renamed:
        source.reset_classifier(network.num_classes)
        source.classifier = network.classifier
    tensors, preprocessing = source.state_dict(), source.preprocessing
    in_channels = network.config.in_channels
    if in_channels != source.config.in_channels:
        tensors[_FIRST_STENCIL] = stencils_for(in_channels, tensors[_FIRST_STENCIL])
        preprocessing = _statistics_for(in_channels, preprocessing)
    load_weights(network, tensors, folder)
    return preprocessing


_FIRST_STENCIL = "opening.convolution.stencil"


def stencils_for(in_channels: int, stencil: Tensor) -> Tensor:
    """An opening's stencil (out, in, ...) for images of another number of channels.

    Summed over the channels it is the same, so that equal channels are answered alike: of fewer
    channels each has an equal part of the sum, of more the n there were are repeated, j mod n, and
    divided among those that have them.
    """
    known = stencil.shape[1]
    if in_channels < known:
        part = stencil.sum(1, keepdim=True) / in_channels
        return part.expand(-1, in_channels, *stencil.shape[2:]).contiguous()
    places = torch.arange(in_channels, device=stencil.device) % known
    shares = torch.bincount(places)[places].to(stencil.dtype)
    return stencil[:, places] / shares.view(1, -1, *(1,) * (stencil.dim() - 2))


def _statistics_for(in_channels: int, preprocessing: Preprocessing) -> Preprocessing:
    """The preprocessing with mean and deviation of as many channels, repeated or averaged."""

    def fitted(values: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if values is None:
            return None
        if in_channels < len(values):
            return (sum(values) / len(values),) * in_channels
        return tuple(values[j % len(values)] for j in range(in_channels))

    return replace(preprocessing, mean=fitted(preprocessing.mean), std=fitted(preprocessing.std))


def _check_same_architecture(
    wanted: NetworkConfig, found: NetworkConfig, folder: str | Path
) -> None:
    """Shapes alone do not tell a heat equation from a wave equation."""
    wanted_values, found_values = _architecture(wanted), _architecture(found)
    if wanted.opening == "convolution":  # whose stencils can be made for other channels
        del wanted_values["in_channels"]
    for name in wanted_values:
        if wanted_values[name] != found_values[name]:
            raise CheckpointError(
                f"{folder}: belongs to another architecture: {name} is {getattr(found, name)!r} "
                f"in the folder but {getattr(wanted, name)!r} was asked for; pass {name}=... (with "
                f"the command --set network.{name}=...), or take the folder as it is with "
                f"Network.from_pretrained"
            )


def _architecture(config: NetworkConfig) -> dict[str, Any]:
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    del values["num_classes"], values["backprop"], values["grid_bits"]
    return values | {
        "num_steps": config.block_num_steps,
        "step_size": config.block_step_sizes,
        "activation": resolve_activation(config.activation),
    }


def _register_all(networks: dict[str, dict[str, Any]]) -> None:
    """Make the network of each of these settings known by its name."""
    for name, settings in networks.items():

        def config(settings: dict[str, Any] = settings) -> NetworkConfig:
            return NetworkConfig(**settings)

        config.__name__ = name
        register_model(config)


_register_all(
    {
        f"{dynamics}_{data_set}": axes | sizes
        for dynamics, axes in DYNAMICS.items()
        for data_set, sizes in DATA_SETS.items()
    }
)
_register_all(
    {
        f"{dynamics}_{data_set}_tuned": DYNAMICS[dynamics] | DATA_SETS[data_set] | changes
        for dynamics, data_sets in TUNED_NETWORKS.items()
        for data_set, changes in data_sets.items()
    }
)
_register_all(
    {
        f"parabolic_stable_{data_set}": _STABLE_PARTS | DYNAMICS["parabolic"] | sizes
        for data_set, sizes in STABLE_NETWORKS.items()
    }
)
_register_all(
    {
        f"{name}_denoising": _LEVELS | DYNAMICS[name.removesuffix("_stable")] | _IMAGES | settings
        for name, settings in DENOISERS.items()
    }
)
_register_all(
    {
        f"{name}_sounds": DYNAMICS[name] | SOUND_NETWORK
        for name in ("parabolic", "hamiltonian", "second_order")
    }
)
_register_all(
    {
        f"{name}_segmentation{'_volumes' * (dimension == 3)}": _LEVELS
        | DYNAMICS[name]
        | _CLASSES_OF_PIXELS
        | steps
        | sizes
        | {"dimension": dimension}
        for name, steps in SEGMENTER_STEPS.items()
        for dimension, sizes in SEGMENTERS.items()
    }
)
