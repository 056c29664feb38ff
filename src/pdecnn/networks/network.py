"""The whole network: opening, blocks and connectors in turn, classifier (Sec. 5)."""

from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from pdecnn.checks import check_count
from pdecnn.errors import CheckpointError, ConfigError
from pdecnn.networks import pretrained
from pdecnn.networks.config import NetworkConfig
from pdecnn.networks.preprocessing import Preprocessing, as_tensor
from pdecnn.pde.block import Block
from pdecnn.pde.convolution import Convolution, check_features
from pdecnn.pde.layers import AbstractLayer
from pdecnn.pde.normalization import make_batch_norm

_AVERAGE_POOL = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


class Opening(nn.Module):
    """3-point convolution, batch norm, ReLU: from image channels to the first width."""

    def __init__(self, in_channels: int, channels: int, *, dimension: int = 2) -> None:
        super().__init__()
        self.convolution = Convolution(in_channels, channels, dimension=dimension)
        self.normalization = make_batch_norm(channels, dimension=dimension)

    def forward(self, images: Tensor) -> Tensor:
        """The initial features of the first block."""
        return torch.relu(self.normalization(self.convolution(images)))


class Connector(nn.Module):
    """1-point convolution, batch norm, ReLU and, but for the last one, average pooling by 2.

    Pooling drops the last row of an odd size.
    """

    def __init__(
        self, channels: int, new_channels: int, *, dimension: int = 2, pool: bool = True
    ) -> None:
        super().__init__()
        self.convolution = Convolution(channels, new_channels, stencil_size=1, dimension=dimension)
        self.normalization = make_batch_norm(new_channels, dimension=dimension)
        self.pool = pool

    def forward(self, features: Tensor) -> Tensor:
        """The features of the next block."""
        features = torch.relu(self.normalization(self.convolution(features)))
        if not self.pool:
            return features
        if min(features.shape[2:]) < 2:
            raise ValueError(
                f"pooling needs at least 2 pixels in each dimension, found shape "
                f"{tuple(features.shape)}; use larger images or pool=False"
            )
        return _AVERAGE_POOL[features.dim() - 2](features, 2)


class Classifier(nn.Module):
    """W y + mu on the mean y of the features over all pixels (eq. 4)."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.channels = check_count("channels", channels)
        self.num_classes = check_count("num_classes", num_classes)
        self.weight = nn.Parameter(torch.empty(self.num_classes, self.channels))
        self.bias = nn.Parameter(torch.zeros(self.num_classes))
        with torch.no_grad():
            self.weight.normal_(0, 0.1).clamp_(-0.2, 0.2)

    def forward(self, features: Tensor) -> Tensor:
        """Class scores of features (batch, channels, *spatial), in the dtype of the weights.

        Outside autocast: one small matrix product gains nothing from half precision, and in
        bfloat16 it ends the process with an illegal instruction on virtual machines that
        announce AMX without having it.
        """
        if features.dim() < 3 or features.shape[1] != self.channels:
            raise ValueError(
                f"features must have shape (batch, {self.channels}, ...), found "
                f"{tuple(features.shape)}"
            )
        pooled = pool_features(features.to(self.weight.dtype))
        with torch.autocast(features.device.type, enabled=False):
            return functional.linear(pooled, self.weight, self.bias)


def pool_features(features: Tensor) -> Tensor:
    """The mean over all pixels, which makes the network translation-invariant."""
    return features.flatten(2).mean(2)


class Network(nn.Module):
    """A classifier of signals, images or volumes whose blocks are discretised PDEs.

    `network(x)` takes standardised images; `network.preprocess(images)` makes them from pixels.
    Weights are drawn from torch's generator; all steps of a block start equal, where the
    smoothness regulariser has its minimum.
    """

    def __init__(self, config: NetworkConfig, preprocessing: Preprocessing | None = None) -> None:
        super().__init__()
        if not isinstance(config, NetworkConfig):
            raise ConfigError(
                f"a Network takes a NetworkConfig, found {config!r}; for a network by name use "
                f"create_model"
            )
        self.config = config = config.with_grid()
        self.preprocessing = Preprocessing() if preprocessing is None else preprocessing
        _check_fit(config, self.preprocessing)
        channels, dimension = config.channels, config.dimension
        self.opening = Opening(config.in_channels, channels[0], dimension=dimension)
        self.blocks = nn.ModuleList(_make_block(config, k) for k in range(config.num_blocks))
        self.connectors = nn.ModuleList(
            Connector(old, new, dimension=dimension, pool=k < config.num_blocks - 1)
            for k, (old, new) in enumerate(pairwise(channels))
        )
        self.classifier = Classifier(channels[-1], config.num_classes)

    @property
    def num_classes(self) -> int:
        """Outputs of the classifier."""
        return self.classifier.num_classes

    @property
    def num_weights(self) -> int:
        """The number of trainable weights."""
        return sum(weight.numel() for weight in self.parameters() if weight.requires_grad)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores (batch, num_classes) of standardised images."""
        return self.forward_head(self.forward_features(images))

    def forward_features(self, images: Tensor) -> Tensor:
        """The last connector's output, (batch, channels[-1], *spatial)."""
        self._check_images(images)
        features: Tensor = self.opening(images)
        for block, connector in zip(self.blocks, self.connectors, strict=True):
            features = connector(block(features))
        return features

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Class scores of `forward_features`' result, or its mean over the pixels."""
        check_features(
            features, self.config.channels[-1], self.config.dimension, self.classifier.weight
        )
        if pre_logits:
            return pool_features(features)
        scores: Tensor = self.classifier(features)
        return scores

    def forward_intermediates(self, images: Tensor) -> list[Tensor]:
        """The features after each block, before its connector."""
        self._check_images(images)
        features: Tensor = self.opening(images)
        intermediates = []
        for block, connector in zip(self.blocks, self.connectors, strict=True):
            features = block(features)
            intermediates.append(features)
            features = connector(features)
        return intermediates

    def preprocess(self, images: Tensor | npt.NDArray[Any]) -> Tensor:
        """Standardised images, on the device and in the dtype of the weights."""
        weight, images = self.classifier.weight, as_tensor(images)
        shape, channels = images.shape, self.config.in_channels
        if len(shape) == self.config.dimension + 2 and shape[1] != channels == shape[-1]:
            turned = (0, len(shape) - 1, *range(1, len(shape) - 1))
            raise ValueError(
                f"images seem to have their channels last, found shape {tuple(shape)}; pass "
                f"images.permute{turned}"
            )
        return self.preprocessing.apply(images.to(weight.device), weight.dtype)

    def reset_classifier(self, num_classes: int) -> None:
        """Replace the classifier by a fresh one; class names are forgotten."""
        self.config = replace(self.config, num_classes=num_classes)
        self.preprocessing = replace(self.preprocessing, class_names=None)
        old = self.classifier.weight
        classifier = Classifier(self.config.channels[-1], num_classes)
        self.classifier = classifier.to(old.device, old.dtype).train(self.classifier.training)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json, model.safetensors, a model card and their SHA-256 to a folder.

        A ConfigError refuses what its config does not describe: exchanged parts, forward hooks.
        """
        pretrained.refuse_hooks(self)
        pretrained.write(Path(folder), self.folder_contents())

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> "Network":
        """Read a network that `save_pretrained` wrote; anything amiss is a CheckpointError."""
        place = Path(folder)
        config, preprocessing, tensors = pretrained.read(place)
        try:
            with torch.device("meta"):  # before memory is taken
                made = Network(config, preprocessing)
                pretrained.check_shapes(made, tensors, place / pretrained.WEIGHTS)
        except (ConfigError, TypeError, RuntimeError) as error:
            raise CheckpointError(f"{place / pretrained.CONFIG}: {error}") from error
        # The weights drawn here are overwritten: reading a file must not use up random numbers.
        with torch.random.fork_rng(devices=()):
            network = Network(config, preprocessing)
        pretrained.load_weights(network, tensors, place / pretrained.WEIGHTS)
        return network

    def folder_contents(self) -> dict[str, bytes]:
        """The files that `save_pretrained` writes, but for the manifest; hooks do not matter."""
        self.check_described()
        card = pretrained.model_card(self.config, self.preprocessing, self.num_weights)
        return pretrained.contents_of(self.config, self.preprocessing, self.state_dict(), card)

    def check_described(self) -> None:
        """Raise a ConfigError where this is not the network that its config describes."""
        # The weights drawn here are not used: this must not use up random numbers.
        with torch.random.fork_rng(devices=()), torch.device("cpu"):
            made = Network(self.config, self.preprocessing)
        pretrained.check_described(self, made)

    def _check_images(self, images: Tensor) -> None:
        config = self.config
        if not images.is_floating_point():
            raise ValueError(
                f"images are {images.dtype}, but a network takes standardised ones: "
                f"network(network.preprocess(images))"
            )
        stencil = self.opening.convolution.stencil
        check_features(images, config.in_channels, config.dimension, stencil)
        if min(images.shape[2:]) < config.smallest_size:
            raise ValueError(
                f"images of size {tuple(images.shape[2:])} are too small: {config.num_blocks} "
                f"blocks with pooling between them need at least {config.smallest_size} pixels "
                f"in each dimension; use larger images or fewer blocks"
            )


def _check_fit(config: NetworkConfig, preprocessing: Preprocessing) -> None:
    for name, wanted, kind in (
        ("class_names", config.num_classes, "classes"),
        ("mean", config.in_channels, "channels"),
        ("size", config.dimension, "dimensions"),
    ):
        values = getattr(preprocessing, name)
        if values is not None and len(values) != wanted:
            raise ConfigError(
                f"the preprocessing's {name} has {len(values)} entries, but the network has "
                f"{wanted} {kind}"
            )


def _make_block(config: NetworkConfig, index: int) -> Block:
    integrator = config.resolved_integrator
    first_step = [_make_layer(config, index) for _ in range(integrator.layers_per_step)]
    num_steps = config.block_num_steps[index]
    copies = 1 if config.share_weights else num_steps
    layers = first_step + [deepcopy(layer) for _ in range(copies - 1) for layer in first_step]
    return Block(
        layers,
        integrator,
        num_steps=num_steps,
        step_size=config.block_step_sizes[index],
        backprop=config.backprop,
        exact_bits=config.grid_bits,
    )


def _make_layer(config: NetworkConfig, index: int) -> AbstractLayer:
    return config.resolved_layer(
        config.resolved_integrator.layer_channels(config.channels[index]),
        dimension=config.dimension,
        activation=config.activation,
        normalization=config.normalization,
        epsilon=config.epsilon,
    )
