"""Readers, splits, batches and augmentation of images (Section 5)."""

from pdecnn.data.arrays import read_arrays as read_arrays
from pdecnn.data.augmentation import Augmentation as Augmentation
from pdecnn.data.augmentation import cpu_generator as cpu_generator
from pdecnn.data.augmentation import random_bits as random_bits
from pdecnn.data.augmentation import stable_seed as stable_seed
from pdecnn.data.augmentation import uniform_integers as uniform_integers
from pdecnn.data.image_file import read_image as read_image
from pdecnn.data.image_set import DataSet as DataSet
from pdecnn.data.image_set import ImageSet as ImageSet
from pdecnn.data.image_set import StoredImages as StoredImages
from pdecnn.data.image_set import balanced_fraction as balanced_fraction
from pdecnn.data.image_set import balanced_split as balanced_split
from pdecnn.data.image_set import epoch_order as epoch_order
from pdecnn.data.image_set import evaluation_batches as evaluation_batches
from pdecnn.data.image_set import training_batches as training_batches
from pdecnn.data.images import read_image_folder as read_image_folder
from pdecnn.data.published import read_cifar10 as read_cifar10
from pdecnn.data.published import read_cifar100 as read_cifar100
from pdecnn.data.published import read_stl10 as read_stl10
from pdecnn.data.registry import DATASETS as DATASETS
from pdecnn.data.registry import find_dataset as find_dataset
from pdecnn.data.registry import needs_folder as needs_folder
from pdecnn.data.registry import read_dataset as read_dataset
from pdecnn.data.registry import read_digits as read_digits
