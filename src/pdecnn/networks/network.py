"""The whole network: opening, blocks and connectors in turn, classifier (Sec. 5)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from pdecnn.errors import CheckpointError, ConfigError
from pdecnn.networks import pretrained
from pdecnn.networks.bounded import (
    BoundedConnector,
    BoundedOpening,
    PaddedClosing,
    PaddedOpening,
    UnitRowsClassifier,
)
from pdecnn.networks.config import STABLE, NetworkConfig
from pdecnn.networks.preprocessing import Preprocessing, as_tensor
from pdecnn.networks.stages import (
    Classifier,
    Closing,
    Connector,
    InvertibleConnector,
    LinearOpening,
    Opening,
)
from pdecnn.pde.block import Block
from pdecnn.pde.chain import chain_intermediates, finish_chain, propagate_chain, reverse_chain
from pdecnn.pde.convolution import SUBJECTS, check_features
from pdecnn.pde.integrators import State
from pdecnn.pde.layers import AbstractLayer, TimedLayer
from pdecnn.pde.repeatability import refuse_replicas
from pdecnn.pde.resolution import Resolution
from pdecnn.pde.stable import StableLayer


class BlockPath(NamedTuple):
    """In which way a block of a network steps."""

    block: str
    """Its name among the network's modules."""
    path: str
    """'fused', 'compiled' or 'eager'."""
    reason: str
    """Why, in words."""


class Network(nn.Module):
    """A classifier of signals, images or volumes whose blocks are discretised PDEs.

    With a closing instead of a classifier it goes from field to field: every pixel has an answer.
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
        if preprocessing is None:  # fields are in the units of the images
            preprocessing = Preprocessing(standardize="none" if config.is_field else "image")
        self.preprocessing = preprocessing
        _check_fit(config, self.preprocessing)
        self.opening = _make_opening(config)
        self.blocks = nn.ModuleList(_make_block(config, k) for k in range(config.num_blocks))
        self.connectors = nn.ModuleList(
            _make_connector(config, k) for k in range(config.num_blocks)
        )
        self.classifier = _make_classifier(config)

    @property
    def num_classes(self) -> int:
        """Outputs of the classifier, or of the closing at each pixel; 0: the network returns its
        features."""
        return self.classifier.num_classes

    @property
    def weight(self) -> nn.Parameter:
        """One of the weights, all of which have one device and dtype."""
        return next(self.parameters())

    @property
    def subject(self) -> str:
        """What its samples are: 'signal', 'sound', 'image' or 'volume'."""
        is_sound = self.preprocessing.rate is not None
        return "sound" if is_sound else SUBJECTS[self.config.dimension]

    @property
    def num_features(self) -> int:
        """How many numbers of an image the classifier meets, the outputs where it has 0 classes;
        of a field those of a pixel."""
        if isinstance(self.classifier, Classifier):
            return self.classifier.weight.shape[1]
        return self.config.channels[-1]

    @property
    def num_weights(self) -> int:
        """The number of trainable weights."""
        return sum(weight.numel() for weight in self.parameters() if weight.requires_grad)

    @property
    def acceleration(self) -> list[BlockPath]:
        """In which way each block steps, 'fused', 'compiled' or 'eager', and why; see
        `pdecnn.accelerate`."""
        named = self.named_modules()
        return [BlockPath(name, *b.acceleration) for name, b in named if isinstance(b, Block)]

    def forward(self, images: Tensor) -> Tensor:
        """Class scores (batch, num_classes) of standardised images, or of each of their pixels.

        Without classes the features that they would be made of, (batch, num_features).
        """
        features = self.forward_features(images)
        return self.close(features, images) if self.config.is_field else self.forward_head(features)

    def forward_features(self, images: Tensor) -> Tensor:
        """The last connector's output, (batch, channels[-1], *spatial)."""
        features: Tensor
        if self.config.connector == "invertible":
            features = self.open(images)
            blocks, changes = self._chain()
            state = propagate_chain(blocks, changes, features)
            return finish_chain(blocks, state, features.dtype)
        self._check_images(images)
        features = self.opening(images)
        for block, connector in zip(self.blocks, self.connectors, strict=True):
            features = connector(block(features))
        return features

    def open(self, images: Tensor) -> Tensor:
        """The features of the first block; with invertible levels of images padded for them."""
        self._check_images(images)
        if self.config.connector == "invertible":
            images = self._padded(images)
        features: Tensor = self.opening(images)
        return features

    def close(self, features: Tensor, images: Tensor) -> Tensor:
        """What the network says of `forward_features`' result; a field has the images' size."""
        answer = self.forward_head(features)
        if not self.config.is_field:
            return answer
        for axis, size in enumerate(images.shape[2:], start=2):
            answer = answer.narrow(axis, 0, size)
        return images - answer if self.config.classifier == "residual" else answer

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Class scores of `forward_features`' result, or its mean over the pixels.

        Of a closing the field, not cropped.
        """
        weight = next(self.parameters())
        check_features(features, self.config.channels[-1], self.config.dimension, weight)
        if pre_logits:
            if not isinstance(self.classifier, Classifier):
                raise ConfigError("a field has no mean over the pixels before its closing")
            return self.classifier.pool(features)
        scores: Tensor = self.classifier(features)
        return scores

    def padded_size(self, size: Sequence[int]) -> tuple[int, ...]:
        """The size to which images are padded for invertible levels, and from which fields are
        cropped: the next multiple of the pixels that are one on the coarsest level."""
        cell = self.config.cell if self.config.connector == "invertible" else 1
        return tuple(n + -n % cell for n in size)

    def _padded(self, images: Tensor) -> Tensor:
        size = tuple(images.shape[2:])
        pairs = zip(self.padded_size(size), size, strict=True)
        missing = [number for new, old in reversed(list(pairs)) for number in (0, new - old)]
        if not any(missing):
            return images
        mode = "constant" if self.config.boundary == "zero" else "replicate"
        return functional.pad(images, missing, mode=mode)

    def propagate(self, features: Tensor) -> State:
        """The state after all blocks of invertible levels, from the features of `open`."""
        return propagate_chain(*self._chain(), features)

    def reverse(self, state: State) -> Tensor:
        """The features from which `propagate` reaches `state`.

        In mode 'exact' bit for bit through all levels: the features rounded to the grid.
        """
        return reverse_chain(*self._chain(), state)

    def _chain(self) -> tuple[list[Block], list[Resolution]]:
        """The blocks, and the change of resolution after each."""
        blocks = [block for block in self.blocks if isinstance(block, Block)]
        parts = (part for part in self.connectors if isinstance(part, InvertibleConnector))
        changes = [part.change for part in parts]
        if len(changes) < len(blocks):
            raise ConfigError(
                "only with invertible connectors a state goes on from block to block; set "
                "network.connector=invertible"
            )
        return blocks, changes

    def forward_intermediates(self, images: Tensor) -> list[Tensor]:
        """The features after each block, before its connector; as in `forward` a state goes on."""
        if self.config.connector == "invertible":
            return chain_intermediates(*self._chain(), self.open(images))
        intermediates = [self.blocks[0](self.open(images))]
        for connector, block in zip(self.connectors[:-1], self.blocks[1:], strict=True):
            intermediates.append(block(connector(intermediates[-1])))
        return intermediates

    def preprocess(self, images: Tensor | npt.NDArray[Any]) -> Tensor:
        """Standardised images, on the device and in the dtype of the weights."""
        weight = next(self.parameters())
        images = images if isinstance(images, Tensor) else as_tensor(images)
        shape, channels = images.shape, self.config.in_channels
        if len(shape) == self.config.dimension + 2 and shape[1] != channels == shape[-1]:
            turned = (0, len(shape) - 1, *range(1, len(shape) - 1))
            samples = f"{self.subject}s"
            raise ValueError(
                f"{samples} seem to have their channels last, found shape {tuple(shape)}; pass "
                f"{samples}.permute{turned}"
            )
        return self.preprocessing.apply(images.to(weight.device), weight.dtype)

    def get_classifier(self) -> nn.Module:
        """The classifier, as timm's models name it, or the closing of a field."""
        return self.classifier

    def reset_classifier(self, num_classes: int) -> None:
        """Replace the classifier by a fresh one, with 0 by none; class names are forgotten."""
        self.config = replace(self.config, num_classes=num_classes)
        self.preprocessing = replace(self.preprocessing, class_names=None)
        old = self.weight
        classifier = _make_classifier(self.config)
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
        card = pretrained.model_card(
            self.config, self.preprocessing, self.num_weights, self.num_features
        )
        return pretrained.contents_of(self.config, self.preprocessing, self.state_dict(), card)

    def check_described(self) -> None:
        """Raise a ConfigError where this is not the network that its config describes."""
        # The weights drawn here are not used: this must not use up random numbers.
        with torch.random.fork_rng(devices=()), torch.device("cpu"):
            made = Network(self.config, self.preprocessing)
        pretrained.check_described(self, made)

    def _check_images(self, images: Tensor) -> None:
        if "_is_replica" in vars(self):  # asked here, since a call costs more
            refuse_replicas([self])
        config = self.config
        if not images.is_floating_point():
            raise ValueError(
                f"{self.subject}s are {images.dtype}, but a network takes standardised ones: "
                f"network(network.preprocess({self.subject}s))"
            )
        weight = next(self.parameters())
        check_features(images, config.in_channels, config.dimension, weight)
        if min(images.shape[2:]) < config.smallest_size:
            raise ValueError(
                f"{self.subject}s of size {tuple(images.shape[2:])} are too small: "
                f"{config.num_blocks} blocks with pooling between them need at least "
                f"{config.smallest_size} pixels in each dimension; use larger {self.subject}s or "
                f"fewer blocks"
            )


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Within it a module is in evaluation mode; every part goes back to the mode it had."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, was_training in modes:
            part.training = was_training


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


def _make_opening(config: NetworkConfig) -> nn.Module:
    widths, dimension = (config.in_channels, config.channels[0]), config.dimension
    if config.opening in ("convolution", "linear"):
        kind = Opening if config.opening == "convolution" else LinearOpening
        return kind(*widths, dimension=dimension, boundary=config.boundary)
    patch = config.patch_size
    if config.opening == "pad":
        return PaddedOpening(*widths, dimension=dimension, patch_size=patch)
    size = config.block_sizes[0]
    return BoundedOpening(*widths, size=size, dimension=dimension, patch_size=patch)


def _make_connector(config: NetworkConfig, index: int) -> nn.Module:
    widths, is_last = config.channels[index : index + 2], index == config.num_blocks - 1
    if config.connector == "invertible":
        levels = config.levels
        return InvertibleConnector(Resolution(levels[index + 1] - levels[index], config.pooling))
    if config.connector == "batch_norm":
        return Connector(*widths, dimension=config.dimension, pool=not is_last)
    return BoundedConnector(
        *widths, dimension=config.dimension, pooling=config.pooling, is_last=is_last
    )


def _make_classifier(config: NetworkConfig) -> Classifier | Closing | PaddedClosing:
    widths, dimension = (config.channels[-1], config.num_classes), config.dimension
    if config.classifier == "transpose":
        return PaddedClosing(config.in_channels, dimension=dimension, patch_size=config.patch_size)
    if config.is_field:
        return Closing(*widths, dimension=dimension, boundary=config.boundary)
    if config.classifier == "linear":
        return Classifier(*widths)
    size = config.block_sizes[-1] if config.classifier == "flat_unit_rows" else None
    return UnitRowsClassifier(*widths, size=size)


def _make_block(config: NetworkConfig, index: int) -> Block:
    integrator = config.resolved_integrator
    num_steps = config.block_num_steps[index]
    copies = 1 if config.share_weights else num_steps
    first_step = [_make_layer(config, index) for _ in range(integrator.layers_per_step)]
    if config.step_size == STABLE:
        # Equal steps would do nothing but the first: it reflects what the next would take away.
        others: list[nn.Module] = [_make_layer(config, index) for _ in range(copies - 1)]
    else:
        others = [deepcopy(layer) for _ in range(copies - 1) for layer in first_step]
    return Block(
        [*first_step, *others],
        integrator,
        num_steps=num_steps,
        step_size=config.block_step_sizes[index],
        backprop=config.backprop,
        exact_bits=config.grid_bits,
    )


def _make_layer(config: NetworkConfig, index: int) -> AbstractLayer:
    channels = config.resolved_integrator.layer_channels(config.channels[index])
    hidden = config.block_hidden_channels[index]
    if config.step_size == STABLE:
        return StableLayer(
            channels,
            size=config.block_sizes[index],
            hidden_channels=hidden,
            dimension=config.dimension,
            boundary=config.boundary,
            activation=config.activation,
            normalization=config.normalization,
            any_size=config.is_field,
        )
    # Layers of others are made as `register_layer` says, without what was not asked for.
    asked: dict[str, Any] = {} if hidden is None else {"hidden_channels": hidden}
    if config.boundary != "zero":
        asked["boundary"] = config.boundary
    kind = TimedLayer if config.train_step_size else config.resolved_layer
    return kind(
        channels,
        **asked,
        dimension=config.dimension,
        activation=config.activation,
        normalization=config.normalization,
        epsilon=config.epsilon,
    )
