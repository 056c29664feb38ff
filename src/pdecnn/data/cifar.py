"""CIFAR-10 and CIFAR-100 from their published binary files (Section 5), without pickle."""

from pathlib import Path

import numpy as np
import torch

from pdecnn.data.image_set import DataSet, ImageSet
from pdecnn.data.published_folder import PublishedFolder

SHAPE = (3, 32, 32)
NUM_PIXEL_BYTES = 3 * 32 * 32

CIFAR10 = PublishedFolder(
    name="cifar10",
    title="CIFAR-10",
    folder="cifar-10-batches-bin",
    train_files=tuple(f"data_batch_{batch}.bin" for batch in range(1, 6)),
    test_files=("test_batch.bin",),
    names_file="batches.meta.txt",
    num_classes=10,
)
CIFAR100 = PublishedFolder(
    name="cifar100",
    title="CIFAR-100",
    folder="cifar-100-binary",
    train_files=("train.bin",),
    test_files=("test.bin",),
    names_file="fine_label_names.txt",
    num_classes=100,
)


def read_cifar10(folder: Path | str) -> DataSet:
    """CIFAR-10 from `cifar-10-batches-bin`, or from the folder that holds it."""
    return _read(CIFAR10, Path(folder), num_label_bytes=1)


def read_cifar100(folder: Path | str) -> DataSet:
    """CIFAR-100 with its fine labels from `cifar-100-binary`, or from the folder that holds it."""
    # The first label byte is the coarse class, the second the fine one.
    return _read(CIFAR100, Path(folder), num_label_bytes=2)


def _read(published: PublishedFolder, folder: Path, *, num_label_bytes: int) -> DataSet:
    """Records of label bytes, the last of which counts, then red, green and blue by rows."""
    found = published.find(folder)
    class_names = published.read_names(found)

    def image_set(files: tuple[str, ...]) -> ImageSet:
        pixels, labels = [], []
        for name in files:
            path = found / name
            records = published.read_records(path, num_label_bytes + NUM_PIXEL_BYTES)
            labels.append(published.labels_from(path, records[:, num_label_bytes - 1], first=0))
            pixels.append(records[:, num_label_bytes:])
        return ImageSet(
            images=torch.from_numpy(np.concatenate(pixels).reshape(-1, *SHAPE)),
            labels=torch.from_numpy(np.concatenate(labels)),
            class_names=class_names,
        )

    return DataSet(
        name=published.name,
        train=image_set(published.train_files),
        test=image_set(published.test_files),
    )
