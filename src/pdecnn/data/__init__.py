"""Readers, splits, batches and augmentation of images (Section 5)."""

from pdecnn.data.arrays import read_arrays
from pdecnn.data.augmentation import (
    Augmentation,
    cpu_generator,
    random_bits,
    stable_seed,
    uniform_integers,
)
from pdecnn.data.image_set import DataSet, ImageSet, StoredImages
from pdecnn.data.images import read_image, read_image_folder
from pdecnn.data.published import read_cifar10, read_cifar100, read_stl10
from pdecnn.data.registry import DATASETS, find_dataset, needs_folder, read_dataset, read_digits
from pdecnn.data.split import (
    balanced_fraction,
    balanced_split,
    epoch_order,
    evaluation_batches,
    training_batches,
)

__all__ = [
    "DATASETS",
    "Augmentation",
    "DataSet",
    "ImageSet",
    "StoredImages",
    "balanced_fraction",
    "balanced_split",
    "cpu_generator",
    "epoch_order",
    "evaluation_batches",
    "find_dataset",
    "needs_folder",
    "random_bits",
    "read_arrays",
    "read_cifar10",
    "read_cifar100",
    "read_dataset",
    "read_digits",
    "read_image",
    "read_image_folder",
    "read_stl10",
    "stable_seed",
    "training_batches",
    "uniform_integers",
]
