"""A published data set on the disk: an unpacked folder or the archive itself, read alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pdecnn.data.archive import read_members
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
            return PublishedFiles(candidate, where, _read_archive(candidate, where))
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


def _read_archive(version: PublishedFolder, path: Path) -> dict[str, bytes]:
    members = {f"{version.folder}/{name}": name for name in version.files}
    return {members[member]: content for member, content in read_members(path, members).items()}


def _names_in(folder: Path, wanted: str) -> set[str]:
    try:
        return {entry.name for entry in folder.iterdir()}
    except FileNotFoundError:
        raise DataError(f"{folder}: no such folder; pass the one that holds {wanted}") from None
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be read ({error.strerror}); check its permissions"
        ) from error
