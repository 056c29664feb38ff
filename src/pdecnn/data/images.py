"""Image files, and folders of them: a subfolder a class, every bad file in one report."""

import os
import stat
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pdecnn.data.image_set import LARGEST_IN_MEMORY, DataSet, ImageSet, StoredImages, num_workers
from pdecnn.data.split import hold_out_test
from pdecnn.errors import BadFilesError, DataError
from pdecnn.files import write_atomically

if TYPE_CHECKING:
    from PIL.Image import Image as OpenImage

FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
MAX_PIXELS = 50_000_000
_MODES = {1: "L", 3: "RGB"}
_WARNING_FILTERS = Lock()


def read_image(path: Path | str, channels: int, size: tuple[int, int] | None = None) -> Tensor:
    """The image as uint8 (channels, height, width), upright, grey for 1 channel, RGB for 3.

    Transparency is dropped, 16-bit values keep their high byte, and an animation is its first
    picture. With a `size` (height, width) it is scaled to cover that, by averages if it shrinks
    and linearly if it grows, and its middle is kept.
    """
    return _read(str(path), lambda: Path(path).open("rb"), channels, size)


def read_image_bytes(
    content: bytes, name: str, channels: int, size: tuple[int, int] | None = None
) -> Tensor:
    """`read_image` of a file's content; errors call it by that name."""
    return _read(name, lambda: BytesIO(content), channels, size)


def write_image(path: Path, image: Tensor) -> None:
    """Write an image (channels, height, width), clipped to [0, 1], as PNG."""
    from PIL import Image

    pixels = (image.detach().float().cpu().clamp(0, 1) * 255).round().to(torch.uint8)
    array = pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).numpy()
    content = BytesIO()
    Image.fromarray(array).save(content, "PNG")
    write_atomically(path, content.getvalue())


def _read(
    name: str, open_file: Callable[[], BinaryIO], channels: int, size: tuple[int, int] | None
) -> Tensor:
    from PIL import Image

    if channels not in _MODES:
        raise DataError(f"image files have 1 or 3 channels, but the network takes {channels}")
    try:
        with open_file() as stream, _open(stream) as image:
            if image.width * image.height > MAX_PIXELS:
                raise Image.DecompressionBombError
            pixels = _decode(image, _MODES[channels], size)
    # On a damaged file the decoders raise nearly anything, struct.error and KeyError included.
    except Exception as error:
        raise DataError(f"{name}: {_complaint(error)}") from error
    tensor = torch.from_numpy(pixels)
    return tensor.unsqueeze(0) if channels == 1 else tensor.permute(2, 0, 1).contiguous()


def _open(stream: BinaryIO) -> "OpenImage":
    """The image with its header read, where Pillow warns of too many pixels: an error here."""
    from PIL import Image

    # Filters are the whole process's: threads that overlap here would leave them changed.
    with _WARNING_FILTERS, warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        return Image.open(stream, formats=FORMATS)


def _decode(image: "OpenImage", mode: str, size: tuple[int, int] | None) -> npt.NDArray[np.uint8]:
    from PIL import Image, ImageOps

    if size is not None:
        # A JPEG can be decoded at a half, a quarter or an eighth, still covering the size.
        image.draft(None, (max(size), max(size)))
    upright = ImageOps.exif_transpose(image)
    if upright.mode == "I;16":
        # Pillow would clip at 255 instead, which turns nearly every pixel white.
        upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    elif upright.mode == "P":
        # Straight to RGB or grey, Pillow warns where the palette has transparent colours.
        upright = upright.convert("RGBA")
    upright = upright.convert(mode)
    if size is not None and (upright.height, upright.width) != size:
        shrinks = min(upright.height / size[0], upright.width / size[1]) > 1
        method = Image.Resampling.BOX if shrinks else Image.Resampling.BILINEAR
        upright = ImageOps.fit(upright, (size[1], size[0]), method)
    return np.array(upright, dtype=np.uint8)


def _complaint(error: Exception) -> str:
    """What is wrong with the file and what to do about it, in one line."""
    from PIL import Image, UnidentifiedImageError

    if isinstance(error, FileNotFoundError):
        return "no such file; check the path"
    if isinstance(error, IsADirectoryError):
        return "is a folder; pass an image file"
    if isinstance(error, UnidentifiedImageError):
        formats = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        return f"not an image of format {formats}, or damaged; convert it or fetch it again"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"has more than {MAX_PIXELS:,} pixels; reduce it first"
    # An operating-system error in words, without its number and the path again.
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    reason = " ".join(reason.split()) or type(error).__name__
    return f"cannot be read as an image ({reason}); check its permissions or fetch it again"


_PARTS = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}
_LIKE_PARTS = {*_PARTS, "training", "valid", "dev", "testing", "eval"}
_NOT_MEANT = {"thumbs.db", "desktop.ini"}  # what systems leave in folders of images


def image_classes(folder: Path | str) -> tuple[str, ...]:
    """The class names: those of the subfolders, sorted."""
    where = _find_parts(Path(folder))["train"]
    names = tuple(sorted(path.name for path in _subfolders(where)))
    if len(names) < 2:
        raise DataError(
            f"{where}: holds {len(names)} folders, but needs at least 2: one for each class, with "
            f"its images in it"
        )
    for name in names:
        # Bytes that are no text come as lone surrogates, and the files of a run are in UTF-8.
        if any("\ud800" <= letter <= "\udfff" for letter in name):
            raise DataError(
                f"{where}: the folder name {name!a} is not text in UTF-8; rename the folder"
            )
    return names


def read_image_folder(
    folder: Path | str, *, channels: int, size: int, stream: bool | None = None
) -> DataSet:
    """The images of a folder, one subfolder a class, scaled and cropped to size x size.

    The subfolders may stand in `train`, `validation` (or `val`) and `test`; a test part that is
    missing is held out of the training images, alike in every run. Every file is decoded once:
    all that cannot be used are named in one BadFilesError. Links are followed within the folder
    only. With `stream` images stay on the disk; None: if they exceed `LARGEST_IN_MEMORY`.
    """
    root = Path(folder)
    class_names = image_classes(root)
    scan = Scan(root, class_names)
    parts = {part: scan.list_part(where) for part, where in _find_parts(root).items()}
    num_files = sum(len(files) for files in parts.values())
    if stream is None:
        stream = num_files * channels * size * size > LARGEST_IN_MEMORY
    read = partial(read_image, channels=channels, size=(size, size))
    images = {
        part: scan.read_all([path for path, _ in files], read, (channels, size, size), stream)
        for part, files in parts.items()
    }
    scan.report(num_files)
    sets = {
        part: ImageSet(
            images=images[part],
            labels=torch.tensor([label for _, label in files]),
            class_names=class_names,
        )
        for part, files in parts.items()
    }
    train, test = sets["train"], sets.get("test")
    if test is None:
        kept, held_out = hold_out_test(train.labels)
        train, test = train.subset(kept), train.subset(held_out)
    return DataSet(name="images", train=train, test=test, validation=sets.get("validation"))


class Scan:
    """Goes through a folder and keeps what is wrong with its entries."""

    def __init__(self, root: Path, class_names: tuple[str, ...]) -> None:
        self.root, self.inside = root, root.resolve()
        self.class_names = class_names
        self.complaints: dict[Path, str] = {}

    def list_part(self, where: Path) -> list[tuple[Path, int]]:
        """The files of a part with their labels, sorted by class and path."""
        files = []
        for folder in sorted(_subfolders(where)):
            if folder.name not in self.class_names:
                self.complaints[folder] = "is no class of the training images"
                continue
            label = self.class_names.index(folder.name)
            found = [path for path in self._walk(folder) if self._is_usable(path)]
            if not found:
                self.complaints.setdefault(folder, "holds no image")
            files += [(path, label) for path in sorted(found)]
        return files

    def list_files(self, where: Path) -> list[Path]:
        """The files of a folder at any depth, sorted by path."""
        return sorted(path for path in self._walk(where) if self._is_usable(path))

    def read_each(self, paths: list[Path], read: Callable[[Path], Tensor]) -> list[Tensor]:
        """What is read of each file that can be."""

        def decode(path: Path) -> Tensor | str:
            try:
                return read(path)
            except DataError as error:
                return str(error).removeprefix(f"{path}: ")

        with ThreadPoolExecutor(num_workers()) as pool:
            found = dict(zip(paths, pool.map(decode, paths), strict=True))
        self.complaints |= {path: got for path, got in found.items() if isinstance(got, str)}
        return [got for got in found.values() if isinstance(got, Tensor)]

    def _walk(self, folder: Path) -> list[Path]:
        if folder.is_symlink():
            self.complaints[folder] = "is a link to a folder, which is not followed"
            return []
        found = []
        for place, folders, names in os.walk(folder, onerror=self._note_folder):
            for name in folders:
                if (path := Path(place, name)).is_symlink():
                    self.complaints[path] = "is a link to a folder, which is not followed"
            folders[:] = [name for name in folders if not name.startswith(".")]
            found += [Path(place, name) for name in names if _is_meant(name)]
        return found

    def _note_folder(self, error: OSError) -> None:
        self.complaints[Path(error.filename)] = f"cannot be read ({error.strerror})"

    def _is_usable(self, path: Path) -> bool:
        """Whether it may be opened: a pipe would wait for ever, a link may lead anywhere."""
        try:
            target = Path(os.path.realpath(path, strict=True))
            status = target.stat()
        except OSError as error:
            self.complaints[path] = f"cannot be read ({error.strerror})"
            return False
        if not target.is_relative_to(self.inside):
            self.complaints[path] = "is a link out of the folder, which is not followed"
        elif not stat.S_ISREG(status.st_mode):
            self.complaints[path] = "is no regular file"
        elif status.st_size == 0:
            self.complaints[path] = "is empty"
        return path not in self.complaints

    def read_all(
        self,
        paths: list[Path],
        read: Callable[[Path], Tensor],
        shape: tuple[int, ...],
        stream: bool,
    ) -> Tensor | StoredImages:
        """Decode every file once; keep the pixels unless they are to stay on the disk."""
        images = torch.empty((0 if stream else len(paths), *shape), dtype=torch.uint8)

        def decode(index: int) -> str | None:
            try:
                pixels = read(paths[index])
            except DataError as error:
                return str(error).removeprefix(f"{paths[index]}: ")
            if not stream:
                images[index] = pixels
            return None

        with ThreadPoolExecutor(num_workers()) as pool:
            complaints = list(pool.map(decode, range(len(paths))))
        for path, complaint in zip(paths, complaints, strict=True):
            if complaint is not None:
                self.complaints[path] = complaint
        if not stream:
            return images
        places = torch.arange(len(paths))
        return StoredImages(
            lambda place: read(paths[place]), places, image_shape=shape, dtype=torch.uint8
        )

    def report(self, num_listed: int) -> None:
        """Raise what was found, all of it at once."""
        if not self.complaints:
            return
        lines = [
            f"  {_printable(path.relative_to(self.root))}: {complaint}"
            for path, complaint in sorted(self.complaints.items())
        ]
        raise BadFilesError(
            f"{self.root}: {len(lines)} files or folders cannot be used ({num_listed:,} were "
            f"looked into); mend or remove them:\n" + "\n".join(lines)
        )


def _printable(path: Path) -> str:
    """The path on one line: what moves or colours a terminal is written as an escape."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(path))


def _is_meant(name: str) -> bool:
    return not name.startswith(".") and name.lower() not in _NOT_MEANT


def _find_parts(root: Path) -> dict[str, Path]:
    """Where each part is: all in the folder itself, or in subfolders that say so."""
    folders = _subfolders(root)
    parts = {_PARTS[path.name]: path for path in folders if path.name in _PARTS}
    # A class may be called train too: its folder has images in it, not folders.
    if "train" not in parts or not _subfolders(parts["train"]):
        for path in folders:
            if path.name.lower() in _LIKE_PARTS and _subfolders(path):
                raise DataError(
                    f"{root}: {path.name!r} holds folders and would be taken for a class; call the "
                    f"parts train, validation and test, of which train must be there"
                )
        return {"train": root}
    others = sorted({path.name for path in folders} - {path.name for path in parts.values()})
    if others:
        raise DataError(
            f"{root}: holds {others[0]!r} beside 'train'; a folder has either classes in it, or "
            f"train, validation and test, each once"
        )
    return parts


def _subfolders(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_dir() and _is_meant(path.name)]
    except FileNotFoundError:
        raise DataError(
            f"{folder}: no such folder; pass one with a folder for each class"
        ) from None
    except NotADirectoryError:
        raise DataError(
            f"{folder}: is a file; pass a folder with a folder for each class, or, for an array "
            f"file, add --set data.name=arrays"
        ) from None
    except OSError as error:
        raise DataError(f"{folder}: cannot be read ({error.strerror}); check it") from error
