"""CIFAR-10 and CIFAR-100 from their published binary files (Section 5), without pickle."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from pdecnn.data.image_set import DataSet, ImageSet
from pdecnn.errors import DataError

_SHAPE = (3, 32, 32)
_NUM_PIXEL_BYTES = 3 * 32 * 32


@dataclass(frozen=True, kw_only=True, slots=True)
class CifarLayout:
    """Where the published archive of one data set keeps what, and how long a record is."""

    name: str
    """How configs refer to the data set."""
    title: str
    """How people call it."""
    folder: str
    """The folder inside the published archive."""
    train_files: tuple[str, ...]
    """Files of training records, in order."""
    test_file: str
    """The file of test records."""
    names_file: str
    """The file of class names, one a line."""
    num_classes: int
    """How many class names there are."""
    num_label_bytes: int
    """Bytes before the pixels of a record; the last of them is the label."""

    @property
    def record_bytes(self) -> int:
        """Length of one record: the label bytes, then red, green and blue by rows."""
        return self.num_label_bytes + _NUM_PIXEL_BYTES

    @property
    def remedy(self) -> str:
        """What to do when a file is missing or damaged."""
        return f"unpack the binary version of {self.title} there again"


CIFAR10 = CifarLayout(
    name="cifar10",
    title="CIFAR-10",
    folder="cifar-10-batches-bin",
    train_files=tuple(f"data_batch_{batch}.bin" for batch in range(1, 6)),
    test_file="test_batch.bin",
    names_file="batches.meta.txt",
    num_classes=10,
    num_label_bytes=1,
)
# The first label byte is the coarse class, the second the fine one.
CIFAR100 = CifarLayout(
    name="cifar100",
    title="CIFAR-100",
    folder="cifar-100-binary",
    train_files=("train.bin",),
    test_file="test.bin",
    names_file="fine_label_names.txt",
    num_classes=100,
    num_label_bytes=2,
)


def read_cifar10(folder: Path | str) -> DataSet:
    """CIFAR-10 from `cifar-10-batches-bin`, or from the folder that holds it."""
    return _read(CIFAR10, Path(folder))


def read_cifar100(folder: Path | str) -> DataSet:
    """CIFAR-100 with its fine labels from `cifar-100-binary`, or from the folder that holds it."""
    return _read(CIFAR100, Path(folder))


def _read(layout: CifarLayout, folder: Path) -> DataSet:
    inner = _inner_folder(layout, folder)
    class_names = _read_names(layout, inner / layout.names_file)

    def image_set(files: tuple[str, ...]) -> ImageSet:
        records = np.concatenate([_read_records(layout, inner / name) for name in files])
        labels = records[:, layout.num_label_bytes - 1].astype(np.int64)
        images = records[:, layout.num_label_bytes :].reshape(-1, *_SHAPE)
        return ImageSet(
            images=torch.from_numpy(images).contiguous(),
            labels=torch.from_numpy(labels),
            class_names=class_names,
        )

    return DataSet(
        name=layout.name,
        train=image_set(layout.train_files),
        test=image_set((layout.test_file,)),
    )


def _inner_folder(layout: CifarLayout, folder: Path) -> Path:
    try:
        names = {entry.name for entry in folder.iterdir()}
    except FileNotFoundError:
        raise DataError(
            f"{folder}: no such folder; pass the one that holds {layout.folder}"
        ) from None
    except NotADirectoryError:
        raise DataError(
            f"{folder}: is a file, not a folder; pass the folder that holds {layout.folder}"
        ) from None
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be read ({error.strerror}); check its permissions"
        ) from error
    if layout.folder in names:
        return folder / layout.folder
    if folder.resolve().name == layout.folder or layout.train_files[0] in names:
        return folder
    raise DataError(
        f"{folder}: holds neither {layout.folder} nor {layout.train_files[0]}; pass the folder "
        f"where the binary version of {layout.title} is unpacked"
    )


def _read_bytes(layout: CifarLayout, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; {layout.remedy}") from None
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); check its permissions"
        ) from error


def _read_names(layout: CifarLayout, path: Path) -> tuple[str, ...]:
    try:
        lines = _read_bytes(layout, path).decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise DataError(f"{path}: is not text; {layout.remedy}") from None
    names = tuple(line.strip() for line in lines if line.strip())
    if len(names) != layout.num_classes:
        raise DataError(
            f"{path}: holds {len(names)} class names instead of {layout.num_classes}; "
            f"{layout.remedy}"
        )
    return names


def _read_records(layout: CifarLayout, path: Path) -> np.ndarray:
    content = _read_bytes(layout, path)
    if not content or len(content) % layout.record_bytes:
        raise DataError(
            f"{path}: {len(content)} bytes are not one or more whole records of "
            f"{layout.record_bytes} bytes; the file is truncated or of another data set: "
            f"{layout.remedy}"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, layout.record_bytes)
    labels = records[:, layout.num_label_bytes - 1]
    wrong = np.flatnonzero(labels >= layout.num_classes)
    if len(wrong):
        raise DataError(
            f"{path}: record {wrong[0]} has label {labels[wrong[0]]}, but labels end at "
            f"{layout.num_classes - 1}; the file is damaged or of another data set: {layout.remedy}"
        )
    return records
