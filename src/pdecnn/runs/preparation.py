"""From a config to the objects of a run: images, preprocessing, network."""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pdecnn.data.arrays import ArrayForm
from pdecnn.data.augmentation import stable_seed
from pdecnn.data.image_set import ImageSet, StoredImages, channel_statistics
from pdecnn.data.registry import OWN, own_form, read_dataset
from pdecnn.data.split import balanced_fraction, balanced_split
from pdecnn.errors import ConfigError, DataError
from pdecnn.learning.tasks import AbstractTask, make_task
from pdecnn.networks.config import NetworkConfig
from pdecnn.networks.network import Network
from pdecnn.networks.preprocessing import Pixels, Preprocessing
from pdecnn.networks.pretrained import CONFIG
from pdecnn.networks.registry import list_models, model_config
from pdecnn.pde.convolution import SUBJECTS
from pdecnn.runs.config import RunConfig
from pdecnn.runs.data_config import VALIDATION_FRACTION, DataConfig
from pdecnn.runs.recipes import recipe

log = logging.getLogger(__name__)
_NUM_SAMPLED = 64
"""Images of a set on the disk that its fingerprint looks at."""


class Splits(NamedTuple):
    """The images of a run."""

    train: ImageSet
    validation: ImageSet | None
    """None: all training images are trained on."""
    test: ImageSet

    def fingerprint(self) -> str:
        """The SHA-256 of classes, labels and images; of images on the disk, of some of them."""
        digest = hashlib.sha256()
        for part in (part for part in self if part is not None):
            digest.update(repr((tuple(part.images.shape), part.class_names)).encode())
            if part.sizes is not None:
                digest.update(repr(part.sizes.tolist()).encode())
            images = part.images
            if isinstance(images, StoredImages):
                images = images[_sampled(len(images))]
            masks = () if part.masks is None else (part.masks,)
            for tensor in (part.labels, images, *masks):
                digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def check_same(self, fingerprint: str) -> None:
        """Refuse other data than that of rank 0."""
        if self.fingerprint() != fingerprint:
            raise DataError(
                "this rank reads other data than rank 0; give every machine the same --data"
            )


def _sampled(number: int) -> torch.Tensor:
    """Places spread over so many."""
    return torch.linspace(0, number - 1, _NUM_SAMPLED, dtype=torch.float64).long()


def read_splits(config: DataConfig, seed: int, arrays: Mapping[str, Any] | None = None) -> Splits:
    """Read the data and split it, class-balanced, as the seed says.

    `arrays` are the data itself, by name, where it is in memory.
    """
    data = read_dataset(
        config.name,
        config.folder if arrays is None else arrays,
        channels=config.channels,
        size=config.size,
        stream=config.stream,
        group=config.group,
        sounds=config.sounds(),
    )
    train, validation = data.train, data.validation
    if validation is None and config.validation_fraction > 0:
        kept, held_out = balanced_split(
            train.labels, config.validation_fraction, seed=seed, groups=train.groups
        )
        train, validation = train.subset(kept), train.subset(held_out)
    elif validation is not None and config.validation_fraction != VALIDATION_FRACTION:
        raise ConfigError(
            f"the data has validation samples of its own; leave out data.validation_fraction, "
            f"found {config.validation_fraction}"
        )
    if config.fraction < 1:
        train = train.subset(balanced_fraction(train.labels, config.fraction, seed=seed))
    return Splits(train, validation, data.test)


_WIDTHS = ("channels", "num_steps", "step_size")


def fit_network(config: RunConfig, arrays: Mapping[str, Any] | None = None) -> RunConfig:
    """The config with the channels, classes and size of data of one's own in its network.

    From published weights it takes the widths and steps. What was set to something else than in
    the recipe stays; `make_network` and `take_weights` compare it.
    """
    if config.initial in list_models(pretrained=True):
        usual, published = recipe(config.recipe).network, model_config(config.initial)
        taken = {
            name: getattr(published, name)
            for name in _WIDTHS
            if getattr(config.network, name) == getattr(usual, name)
        }
        config = replace(config, network=replace(config.network, **taken))
    if config.data.name not in OWN:
        return config
    source = config.data.folder if arrays is None else arrays
    data = config.data
    found = own_form(data.name, source, channels=data.channels, sounds=data.sounds())
    if config.data.name in ("images", "pictures", "segmented"):
        found = _as_weights_take(found, config)
        config = replace(config, data=replace(config.data, channels=found.channels))
    usual, network = recipe(config.recipe).network, config.network
    taken = {"in_channels": found.channels, "num_classes": found.num_classes}
    taken = {k: value for k, value in taken.items() if getattr(network, k) == getattr(usual, k)}
    network = replace(network, **taken)
    if network.certified_size is not None and network.certified_size == usual.certified_size:
        side = config.data.size
        size = found.size if side is None else (side,) * found.dimension
        if size is not None:
            size = tuple(n // config.data.pooling for n in size)
            network = replace(network, certified_size=size)
    return replace(config, network=network)


def _as_weights_take(found: ArrayForm, config: RunConfig) -> ArrayForm:
    """Grey images for weights that take colours, or the other way round, are read as these."""
    taken = _channels_of(config.initial)
    if config.data.channels is not None or {taken, found.channels} != {1, 3}:
        return found
    assert taken is not None
    how = "grey" if taken == 1 else "in colour"
    log.info("images are read %s, as the weights of %s take them", how, config.initial)
    return found._replace(channels=taken)


def _channels_of(initial: str | None) -> int | None:
    """How many channels the weights take that a run begins with, where that can be told."""
    if initial is None:
        return None
    if initial in list_models(pretrained=True):
        return model_config(initial).in_channels
    try:  # of a run as of a save_pretrained folder; what is wrong with it is said when it is read
        values = json.loads((Path(initial) / CONFIG).read_bytes())
        return int(values["network"]["in_channels"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def make_run_task(config: RunConfig, *, noise: float | None = None) -> AbstractTask:
    """What a run is trained for; measured with another `noise` than it was trained with if said."""
    levels = config.data.noise_range if noise is None else (noise, noise)
    return make_task(config.task, noise=levels)


def refuse_without_classes(run: object, config: RunConfig) -> None:
    """Refuse a run whose samples have no classes where those are needed."""
    if not make_run_task(config).has_classes:
        raise ConfigError(
            f"{run} has an answer for each pixel, and this needs a class for each image; use "
            f"`pdecnn evaluate {run}`, or `pdecnn predict {run} FILE --output DIR`"
        )


def make_network(config: RunConfig, train: ImageSet) -> Network:
    """A fresh network for the first level, its weights drawn from the seed alone."""
    network = config.network
    num_outputs = make_run_task(config).num_outputs(train)
    if train.channels != network.in_channels or num_outputs != network.num_classes:
        raise ConfigError(
            f"the data has {train.channels} channels and {num_outputs} classes, the network "
            f"{network.in_channels} and {network.num_classes}; set network.in_channels and "
            f"network.num_classes"
        )
    if len(train.size) != network.dimension:
        remedy = (
            "set network.dimension, or give arrays without channels an axis of 1 after the first"
        )
        if train.masks is not None:
            remedy = "take a recipe *_segmentation for images, *_segmentation_volumes for volumes"
        raise ConfigError(
            f"the data has {len(train.size)} dimensions after samples and channels, the network "
            f"{network.dimension}; {remedy}"
        )
    preprocessing = make_preprocessing(config.data, train)
    own_size = config.data.patch_size(len(train.size)) or train.size
    last_size = tuple(n // preprocessing.pooling for n in preprocessing.size or own_size)
    network, preprocessing = config.training.first_level(network, preprocessing, last_size)
    size = tuple(n // preprocessing.pooling for n in preprocessing.size or own_size)
    if min(size) < network.smallest_size:
        kinds = {"sounds": "data.seconds", "pictures": "data.patch", "segmented": "data.patch"}
        larger = kinds.get(config.data.name, "data.size")
        raise ConfigError(
            f"{config.subject}s of size {size} are too small for {network.num_blocks} blocks, "
            f"which need {network.smallest_size}; raise {larger} or training.level_sizes, or "
            f"shorten network.channels"
        )
    _check_certified_size(network, size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stable_seed(config.seed, "weights"))
        return Network(network, preprocessing)


def _check_certified_size(network: NetworkConfig, size: tuple[int, ...]) -> None:
    """Refuse images for which the steps would not be stable, or the classifier has no weights."""
    certified = network.certified_size
    if certified is None:
        return
    larger = any(n > most for n, most in zip(size, certified, strict=True))
    ends = replace(network, certified_size=size).block_sizes[-1], network.block_sizes[-1]
    if larger or (network.classifier == "flat_unit_rows" and ends[0] != ends[1]):
        raise ConfigError(
            f"{SUBJECTS[len(size)]}s of size {size} do not fit network.certified_size={certified}; "
            f"set network.certified_size={list(size)}, or data.size"
        )


def make_preprocessing(config: DataConfig, train: ImageSet) -> Preprocessing:
    """What stands in the network's config.json; mean and std are those of the training images."""
    mean = std = None
    if config.standardize in ("dataset", "mean"):
        mean, std = channel_statistics(train)
    if config.standardize == "mean":
        std = None
    pixels: Pixels = "uint8" if train.dtype == torch.uint8 else "float32"
    if train.sizes is not None:  # pictures, which stay as large as they are
        return Preprocessing(
            standardize=config.standardize,
            pooling=config.pooling,
            class_names=None if train.masks is None else train.class_names,
            pixels=pixels,
        )
    dimensions = len(train.size)
    return Preprocessing(
        standardize=config.standardize,
        mean=mean,
        std=std,
        size=train.size if config.size is None else (config.size,) * dimensions,
        pooling=config.pooling,
        emphasis=config.emphasis,
        rate=config.rate,
        class_names=train.class_names,
        pixels=pixels,
    )
