"""Published data sets on the disk, CIFAR and STL-10: unpacked, or the archives themselves."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from pdecnn.data.archive import read_members, read_pickle
from pdecnn.data.image_set import DataSet, ImageSet
from pdecnn.errors import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedFolder:
    """What one version of a data set is called, which files it has and where it is published."""

    name: str
    """How configs refer to the data set."""
    title: str
    """How people call it."""
    version: str = "binary"
    """'binary' or 'python'."""
    folder: str
    """The folder inside the published archive."""
    train_files: tuple[str, ...]
    """Files of the training images and labels, in order."""
    test_files: tuple[str, ...]
    """Files of the test images and labels, in order."""
    names_file: str
    """The file of class names."""
    num_classes: int
    """How many class names there are."""
    num_train: int
    """How many training images are published."""
    num_test: int
    """How many test images are published."""
    url: str
    """Where the archive is published; its last part is the archive's name."""
    sha256: str
    """Of the archive."""
    num_bytes: int
    """Of the archive."""

    @property
    def archive(self) -> str:
        """The file name of the published archive."""
        return self.url.rpartition("/")[2]

    @property
    def files(self) -> tuple[str, ...]:
        """Every file that is read."""
        return (*self.train_files, *self.test_files, self.names_file)

    def describe(self) -> dict[str, str | int]:
        """What there is to know before fetching it, as JSON values."""
        return {
            "title": self.title,
            "archive": self.archive,
            "bytes": self.num_bytes,
            "sha256": self.sha256,
            "url": self.url,
            "classes": self.num_classes,
            "training_images": self.num_train,
            "test_images": self.num_test,
        }

    def find(self, place: Path) -> Path | None:
        """Where this version lies: `place` itself, or the folder or archive inside it."""
        if place.is_file():
            return place if is_archive(place) else None
        names = _names_in(place, self.folder)
        if self.folder in names:
            return place / self.folder
        is_it = place.resolve().name == self.folder or (place / self.train_files[0]).is_file()
        if is_it:
            return place
        return place / self.archive if self.archive in names else None


def is_archive(path: Path) -> bool:
    """Whether a path is that of an archive, by its name."""
    return path.name.endswith((".tar.gz", ".tgz"))


def find_version(versions: Sequence[PublishedFolder], place: Path) -> tuple[PublishedFolder, Path]:
    """The version of a data set that lies there, and where: unpacked ones come first."""
    found = [(version, where) for version in versions if (where := version.find(place))]
    # An archive by another name comes last: only what is in it can tell its version.
    found.sort(key=lambda pair: is_archive(pair[1]) * (1 + (pair[1].name != pair[0].archive)))
    if found:
        return found[0]
    first = versions[0]
    if place.is_file():
        raise DataError(
            f"{place}: is a file, not a folder or .tar.gz archive; pass the folder that holds "
            f"{first.folder}"
        )
    archives = " nor ".join(version.archive for version in versions)
    raise DataError(
        f"{place}: holds neither {first.folder} nor {first.train_files[0]} nor {archives}; pass "
        f"the folder where {first.title} is unpacked, or fetch it with `pdecnn data download "
        f"{first.name}`"
    )


def open_files(versions: Sequence[PublishedFolder], place: Path) -> "PublishedFiles":
    """The files of the data set that lies there."""
    version, where = find_version(versions, place)
    if not is_archive(where):
        return PublishedFiles(version, where)
    candidates = [v for v in versions if v.archive == where.name] or list(versions)
    for candidate in candidates:
        try:
            members = {f"{candidate.folder}/{name}": name for name in candidate.files}
            found = read_members(where, members)
            return PublishedFiles(
                candidate, where, {members[member]: content for member, content in found.items()}
            )
        except DataError:
            if candidate is candidates[-1]:
                raise
    raise AssertionError("there is at least one version")


class PublishedFiles:
    """The files of one version, with what readers of them share."""

    def __init__(
        self, version: PublishedFolder, place: Path, members: dict[str, bytes] | None = None
    ) -> None:
        self.version, self.place = version, place
        self.members = members

    @property
    def remedy(self) -> str:
        """What to do when a file is missing or damaged."""
        version = self.version
        if self.members is None:
            return f"unpack the {version.version} version of {version.title} there again"
        return f"fetch the archive again with `pdecnn data download {version.name}`"

    def path(self, name: str) -> Path:
        """How an error calls a file."""
        return (
            self.place / name if self.members is None else self.place / self.version.folder / name
        )

    def read(self, name: str) -> bytes:
        """The whole file of that name."""
        if self.members is not None:
            return self.members[name]
        path = self.path(name)
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise DataError(f"{path}: no such file; {self.remedy}") from None
        except OSError as error:
            raise DataError(
                f"{path}: cannot be read ({error.strerror}); check its permissions"
            ) from error

    def read_names(self) -> tuple[str, ...]:
        """The class names of a text file, one a line."""
        path = self.path(self.version.names_file)
        try:
            lines = self.read(self.version.names_file).decode("utf-8").splitlines()
        except UnicodeDecodeError:
            raise DataError(f"{path}: is not text; {self.remedy}") from None
        return self.check_names([line.strip() for line in lines if line.strip()])

    def check_names(self, names: object) -> tuple[str, ...]:
        """The class names, of which there must be as many as classes."""
        path = self.path(self.version.names_file)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise DataError(f"{path}: holds no list of class names; {self.remedy}")
        if len(names) != self.version.num_classes:
            raise DataError(
                f"{path}: holds {len(names)} class names instead of {self.version.num_classes}; "
                f"{self.remedy}"
            )
        return tuple(names)

    def read_records(self, name: str, record_bytes: int) -> npt.NDArray[np.uint8]:
        """The file as read-only rows of `record_bytes` bytes, at least one."""
        content = self.read(name)
        if not content or len(content) % record_bytes:
            raise DataError(
                f"{self.path(name)}: {len(content)} bytes are not one or more whole records of "
                f"{record_bytes} bytes; the file is truncated or of another data set: "
                f"{self.remedy}"
            )
        return np.frombuffer(content, np.uint8).reshape(-1, record_bytes)

    def labels_from(
        self, name: str, numbers: npt.NDArray[np.integer], *, first: int
    ) -> npt.NDArray[np.int64]:
        """Labels from 0 for the class numbers of a file, which begin at `first`."""
        last = first + self.version.num_classes - 1
        wrong = np.flatnonzero((numbers < first) | (numbers > last))
        if len(wrong):
            found = numbers[wrong[0]]
            border = f"start at {first}" if found < first else f"end at {last}"
            raise DataError(
                f"{self.path(name)}: record {wrong[0]} has label {found}, but labels {border}; "
                f"the file is damaged or of another data set: {self.remedy}"
            )
        return numbers.astype(np.int64) - first


def _names_in(folder: Path, wanted: str) -> set[str]:
    try:
        return {entry.name for entry in folder.iterdir()}
    except FileNotFoundError:
        raise DataError(f"{folder}: no such folder; pass the one that holds {wanted}") from None
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be read ({error.strerror}); check its permissions"
        ) from error


_CIFAR_SHAPE, _STL10_SHAPE = (3, 32, 32), (3, 96, 96)
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
            images=torch.from_numpy(pixels.reshape(-1, *_CIFAR_SHAPE)),
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
    records = files.read_records(name, num_label_bytes + prod(_CIFAR_SHAPE))
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
        or pixels.shape != (len(numbers), prod(_CIFAR_SHAPE))
        or not all(type(number) is int for number in numbers)
    ):
        raise DataError(
            f"{files.path(name)}: does not hold as many rows of {prod(_CIFAR_SHAPE)} bytes in "
            f"'data' as whole numbers in {labels_key!r}; {files.remedy}"
        )
    # A pickled number has no limit, an int64 has.
    labels = np.array([min(max(number, -1), 2**31) for number in numbers], np.int64)
    return pixels, files.labels_from(name, labels, first=0)


STL10 = PublishedFolder(
    name="stl10",
    title="STL-10",
    folder="stl10_binary",
    train_files=("train_X.bin", "train_y.bin"),
    test_files=("test_X.bin", "test_y.bin"),
    names_file="class_names.txt",
    num_classes=10,
    num_train=5_000,
    num_test=8_000,
    url="http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    sha256="f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866",
    num_bytes=2_640_397_119,
)
STL10_VERSIONS = (STL10,)


def read_stl10(place: Path | str) -> DataSet:
    """The labelled images of STL-10 from its folder or archive, or from what holds one of them."""
    files = open_files(STL10_VERSIONS, Path(place))
    class_names = files.read_names()

    def image_set(names: tuple[str, ...]) -> ImageSet:
        images_file, labels_file = names
        # The small file first: what is wrong there shows before the large one is read.
        numbers = files.read_records(labels_file, 1)[:, 0]
        labels = files.labels_from(labels_file, numbers, first=1)
        records = files.read_records(images_file, prod(_STL10_SHAPE))
        if len(records) != len(labels):
            raise DataError(
                f"{files.path(images_file)}: holds {len(records)} images, but {labels_file} has "
                f"{len(labels)} labels; one of them is truncated or of another data set: "
                f"{files.remedy}"
            )
        # Red, green and blue each stand by columns, so the last two axes are exchanged.
        pixels = records.reshape(-1, *_STL10_SHAPE).swapaxes(-2, -1).copy()
        return ImageSet(
            images=torch.from_numpy(pixels),
            labels=torch.from_numpy(labels),
            class_names=class_names,
        )

    return DataSet(
        name=STL10.name,
        train=image_set(STL10.train_files),
        test=image_set(STL10.test_files),
    )
