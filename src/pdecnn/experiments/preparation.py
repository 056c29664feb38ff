"""From a config to the objects of a run: images, preprocessing, network."""

from pathlib import Path
from typing import NamedTuple

import torch

from pdecnn.data.image_set import ImageSet
from pdecnn.data.random_numbers import stable_seed
from pdecnn.data.registry import read_dataset
from pdecnn.data.split import balanced_fraction, balanced_split
from pdecnn.errors import ConfigError
from pdecnn.experiments.config import DataConfig, RunConfig
from pdecnn.networks.network import Network
from pdecnn.networks.preprocessing import Preprocessing


class Splits(NamedTuple):
    """The images of a run."""

    train: ImageSet
    validation: ImageSet
    test: ImageSet


def read_splits(config: DataConfig, seed: int) -> Splits:
    """Read the data and split it, class-balanced, as the seed says."""
    data = read_dataset(config.name, None if config.folder is None else Path(config.folder))
    kept, held_out = balanced_split(data.train.labels, config.validation_fraction, seed=seed)
    train = data.train.subset(kept)
    if config.fraction < 1:
        train = train.subset(balanced_fraction(train.labels, config.fraction, seed=seed))
    return Splits(train, data.train.subset(held_out), data.test)


def make_network(config: RunConfig, train: ImageSet) -> Network:
    """A fresh network for the first level, its weights drawn from the seed alone."""
    network = config.network
    if train.channels != network.in_channels or train.num_classes != network.num_classes:
        raise ConfigError(
            f"the data has {train.channels} channels and {train.num_classes} classes, the network "
            f"{network.in_channels} and {network.num_classes}; set network.in_channels and "
            f"network.num_classes"
        )
    if len(train.size) != network.dimension:
        raise ConfigError(
            f"the data has {len(train.size)} dimensions, the network {network.dimension}; set "
            f"network.dimension"
        )
    preprocessing = make_preprocessing(config.data, train)
    last_size = tuple(n // preprocessing.pooling for n in preprocessing.size or train.size)
    network, preprocessing = config.training.first_level(network, preprocessing, last_size)
    size = tuple(n // preprocessing.pooling for n in preprocessing.size or train.size)
    if min(size) < network.smallest_size:
        raise ConfigError(
            f"images of size {size} are too small for {network.num_blocks} blocks, which need "
            f"{network.smallest_size}; raise data.size or training.level_sizes, or shorten "
            f"network.channels"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stable_seed(config.seed, "weights"))
        return Network(network, preprocessing)


def make_preprocessing(config: DataConfig, train: ImageSet) -> Preprocessing:
    """What stands in the network's config.json; mean and std are those of the training images."""
    mean = std = None
    if config.standardize == "dataset":
        pixels = train.images.transpose(0, 1).flatten(1).double() / 255
        mean = tuple(pixels.mean(1).tolist())
        std = tuple(pixels.std(1, correction=0).clamp(min=1 / 255).tolist())
    dimensions = len(train.size)
    return Preprocessing(
        standardize=config.standardize,
        mean=mean,
        std=std,
        size=train.size if config.size is None else (config.size,) * dimensions,
        pooling=config.pooling,
        class_names=train.class_names,
    )
