"""CIFAR-10 and CIFAR-100 from their published binary or python files (Section 5)."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from pdecnn.data.image_set import DataSet, ImageSet
from pdecnn.data.numpy_pickle import read_pickle
from pdecnn.data.published_folder import PublishedFiles, PublishedFolder, open_files
from pdecnn.errors import DataError

SHAPE = (3, 32, 32)
NUM_PIXEL_BYTES = 3 * 32 * 32
_URL = "https://www.cs.toronto.edu/~kriz/"

CIFAR10 = PublishedFolder(
    name="cifar10",
    title="CIFAR-10",
    folder="cifar-10-batches-bin",
    train_files=tuple(f"data_batch_{batch}.bin" for batch in range(1, 6)),
    test_files=("test_batch.bin",),
    names_file="batches.meta.txt",
    num_classes=10,
    num_train=50_000,
    num_test=10_000,
    url=f"{_URL}cifar-10-binary.tar.gz",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    num_bytes=170_052_171,
)
CIFAR10_PYTHON = replace(
    CIFAR10,
    version="python",
    folder="cifar-10-batches-py",
    train_files=tuple(f"data_batch_{batch}" for batch in range(1, 6)),
    test_files=("test_batch",),
    names_file="batches.meta",
    url=f"{_URL}cifar-10-python.tar.gz",
    sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    num_bytes=170_498_071,
)
CIFAR100 = PublishedFolder(
    name="cifar100",
    title="CIFAR-100",
    folder="cifar-100-binary",
    train_files=("train.bin",),
    test_files=("test.bin",),
    names_file="fine_label_names.txt",
    num_classes=100,
    num_train=50_000,
    num_test=10_000,
    url=f"{_URL}cifar-100-binary.tar.gz",
    sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    num_bytes=168_513_733,
)
CIFAR100_PYTHON = replace(
    CIFAR100,
    version="python",
    folder="cifar-100-python",
    train_files=("train",),
    test_files=("test",),
    names_file="meta",
    url=f"{_URL}cifar-100-python.tar.gz",
    sha256="85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
    num_bytes=169_001_437,
)
CIFAR10_VERSIONS = (CIFAR10, CIFAR10_PYTHON)
CIFAR100_VERSIONS = (CIFAR100, CIFAR100_PYTHON)

Arrays = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


def read_cifar10(place: Path | str) -> DataSet:
    """CIFAR-10 from its folder or archive, or from the folder that holds one of them."""
    # The only label byte counts.
    return _read(open_files(CIFAR10_VERSIONS, Path(place)), 1, "labels", "label_names")


def read_cifar100(place: Path | str) -> DataSet:
    """CIFAR-100 with its fine labels, from its folder or archive or what holds one of them."""
    # The first label byte is the coarse class, the second the fine one.
    return _read(open_files(CIFAR100_VERSIONS, Path(place)), 2, "fine_labels", "fine_label_names")


def _read(files: PublishedFiles, num_label_bytes: int, labels_key: str, names_key: str) -> DataSet:
    version = files.version
    if version.version == "binary":
        class_names = files.read_names()
    else:
        meta = read_pickle(files.read(version.names_file), str(files.path(version.names_file)))
        class_names = files.check_names(meta.get(names_key))

    def image_set(names: tuple[str, ...]) -> ImageSet:
        if version.version == "binary":
            parts = [_read_binary(files, name, num_label_bytes) for name in names]
        else:
            parts = [_read_python(files, name, labels_key) for name in names]
        pixels, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return ImageSet(
            images=torch.from_numpy(pixels.reshape(-1, *SHAPE)),
            labels=torch.from_numpy(labels),
            class_names=class_names,
        )

    return DataSet(
        name=version.name,
        train=image_set(version.train_files),
        test=image_set(version.test_files),
    )


def _read_binary(files: PublishedFiles, name: str, num_label_bytes: int) -> Arrays:
    """Records of label bytes, the last of which counts, then red, green and blue by rows."""
    records = files.read_records(name, num_label_bytes + NUM_PIXEL_BYTES)
    labels = files.labels_from(name, records[:, num_label_bytes - 1], first=0)
    return records[:, num_label_bytes:], labels


def _read_python(files: PublishedFiles, name: str, labels_key: str) -> Arrays:
    """A pickled dictionary: `data`, rows of red, green and blue by rows, and a list of labels."""
    values = read_pickle(files.read(name), str(files.path(name)))
    pixels, numbers = values.get("data"), values.get(labels_key)
    if (
        not isinstance(pixels, np.ndarray)
        or not isinstance(numbers, list)
        or not numbers
        or pixels.shape != (len(numbers), NUM_PIXEL_BYTES)
        or not all(type(number) is int for number in numbers)
    ):
        raise DataError(
            f"{files.path(name)}: does not hold as many rows of {NUM_PIXEL_BYTES} bytes in 'data' "
            f"as whole numbers in {labels_key!r}; {files.remedy}"
        )
    # A pickled number has no limit, an int64 has.
    labels = np.array([min(max(number, -1), 2**31) for number in numbers], np.int64)
    return pixels, files.labels_from(name, labels, first=0)
