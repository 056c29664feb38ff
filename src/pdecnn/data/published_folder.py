"""The folder a published archive unpacks to: where it is, its bytes, its class names."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pdecnn.errors import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedFolder:
    """What the binary version of one data set is called and which files it has."""

    name: str
    """How configs refer to the data set."""
    title: str
    """How people call it."""
    folder: str
    """The folder inside the published archive."""
    train_files: tuple[str, ...]
    """Files of the training images and labels, in order."""
    test_files: tuple[str, ...]
    """Files of the test images and labels, in order."""
    names_file: str
    """The file of class names, one a line."""
    num_classes: int
    """How many class names there are."""

    @property
    def remedy(self) -> str:
        """What to do when a file is missing or damaged."""
        return f"unpack the binary version of {self.title} there again"

    def find(self, folder: Path) -> Path:
        """The folder with the files: `folder` itself, or the one of the archive inside it."""
        try:
            names = {entry.name for entry in folder.iterdir()}
        except FileNotFoundError:
            raise DataError(
                f"{folder}: no such folder; pass the one that holds {self.folder}"
            ) from None
        except NotADirectoryError:
            raise DataError(
                f"{folder}: is a file, not a folder; pass the folder that holds {self.folder}"
            ) from None
        except OSError as error:
            raise DataError(
                f"{folder}: cannot be read ({error.strerror}); check its permissions"
            ) from error
        if self.folder in names:
            return folder / self.folder
        if folder.resolve().name == self.folder or self.train_files[0] in names:
            return folder
        raise DataError(
            f"{folder}: holds neither {self.folder} nor {self.train_files[0]}; pass the folder "
            f"where the binary version of {self.title} is unpacked"
        )

    def read_names(self, found: Path) -> tuple[str, ...]:
        """The class names, from the folder that `find` returned."""
        path = found / self.names_file
        try:
            lines = self._read_bytes(path).decode("utf-8").splitlines()
        except UnicodeDecodeError:
            raise DataError(f"{path}: is not text; {self.remedy}") from None
        names = tuple(line.strip() for line in lines if line.strip())
        if len(names) != self.num_classes:
            raise DataError(
                f"{path}: holds {len(names)} class names instead of {self.num_classes}; "
                f"{self.remedy}"
            )
        return names

    def read_records(self, path: Path, record_bytes: int) -> npt.NDArray[np.uint8]:
        """The file as read-only rows of `record_bytes` bytes, at least one."""
        content = self._read_bytes(path)
        if not content or len(content) % record_bytes:
            raise DataError(
                f"{path}: {len(content)} bytes are not one or more whole records of "
                f"{record_bytes} bytes; the file is truncated or of another data set: "
                f"{self.remedy}"
            )
        return np.frombuffer(content, np.uint8).reshape(-1, record_bytes)

    def labels_from(
        self, path: Path, numbers: npt.NDArray[np.uint8], *, first: int
    ) -> npt.NDArray[np.int64]:
        """Labels from 0 for the class numbers of the file at `path`, which begin at `first`."""
        last = first + self.num_classes - 1
        wrong = np.flatnonzero((numbers < first) | (numbers > last))
        if len(wrong):
            found = numbers[wrong[0]]
            border = f"start at {first}" if found < first else f"end at {last}"
            raise DataError(
                f"{path}: record {wrong[0]} has label {found}, but labels {border}; the file is "
                f"damaged or of another data set: {self.remedy}"
            )
        return numbers.astype(np.int64) - first

    def _read_bytes(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise DataError(f"{path}: no such file; {self.remedy}") from None
        except OSError as error:
            raise DataError(
                f"{path}: cannot be read ({error.strerror}); check its permissions"
            ) from error
