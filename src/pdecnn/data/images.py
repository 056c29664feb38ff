"""Folders of image files: a subfolder a class, or pictures without; every bad file in one report.

And what folders of other files share with them: parts, groups, and one .npz file of all.
"""

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pdecnn.data.arrays import PARTS, Array, ArrayFiles
from pdecnn.data.image_file import SUFFIXES, Form, image_form, read_image
from pdecnn.data.image_set import (
    LARGEST_IN_MEMORY,
    DataSet,
    ImageSet,
    StoredImages,
    num_workers,
    number_groups,
)
from pdecnn.errors import BadFilesError, DataError, system_errors_as
from pdecnn.files import write_atomically

PACKED = ".npz"
"""How names of packed files end."""
PART_NAMES = ("train", "validation", "test")
_LIKE_PARTS = {*PARTS, "training", "valid", "dev", "testing", "eval"}
_NOT_MEANT = {"thumbs.db", "desktop.ini"}  # what systems leave in folders of images


def image_classes(folder: Path | str) -> tuple[str, ...]:
    """The class names: those of the subfolders, sorted."""
    where = find_parts(Path(folder))["train"]
    names = tuple(sorted(path.name for path in _subfolders(where)))
    if len(names) < 2:
        raise DataError(
            f"{where}: holds {len(names)} folders, but needs at least 2: one for each class, with "
            f"its images in it"
        )
    for name in names:
        if not _is_text(name):
            raise DataError(
                f"{where}: the folder name {name!a} is not text in UTF-8; rename the folder"
            )
    return names


def first_channels(forms: Iterable[Form]) -> int:
    """The channels of the first file that is not grey; 1: all are."""
    return next((form.channels for form in forms if form.channels != 1), 1)


def common_dtype(parts: Iterable[Iterable[Form]]) -> torch.dtype:
    """float32 where any file has more than 8 bits, else uint8."""
    return torch.float32 if any(form.is_deep for part in parts for form in part) else torch.uint8


def read_as(
    path: Path, *, dtype: torch.dtype, channels: int, size: tuple[int, int] | None = None
) -> Tensor:
    """`read_image` in that dtype: an image is the same beside others of more bits."""
    pixels = read_image(path, channels, size)
    return pixels.float() / 255 if pixels.dtype != dtype else pixels  # as `Preprocessing` would


def _form(path: Path) -> Form | None:
    """None for what cannot be read, which is reported when it is decoded."""
    try:
        return image_form(path)
    except DataError:
        return None


def image_names(folder: Path | str) -> Iterator[str]:
    """What groups are told by: the path of each file below the folder, or below its part."""
    for where in find_parts(Path(folder)).values():
        for path, _ in Scan(Path(folder), image_classes(folder)).list_part(where):
            yield path.relative_to(where).as_posix()


def read_image_folder(
    folder: Path | str,
    *,
    channels: int | None = None,
    size: int,
    stream: bool | None = None,
    group: str | None = None,
) -> DataSet:
    """The images of a folder, one subfolder a class, scaled and cropped to size x size.

    The subfolders may stand in `train`, `validation` (or `val`) and `test`; a test part that is
    missing is held out of the training images, alike in every run. Every file is decoded once:
    all that cannot be used are named in one BadFilesError. Links are followed within the folder
    only. With `stream` images stay on the disk; None: if they exceed `LARGEST_IN_MEMORY`.

    `channels` None: as many as the files have. If any file has more than 8 bits, all images are
    float32 in [0, 1]. `group` is a regular expression whose first group, found in the path below
    the folder, says what belongs together: no group is in two parts.
    """
    root = Path(folder)
    class_names, wheres = image_classes(root), find_parts(root)
    scan = Scan(root, class_names)
    parts = {part: scan.list_part(where) for part, where in wheres.items()}
    num_files = sum(len(files) for files in parts.values())
    names = {
        part: [path.relative_to(wheres[part]).as_posix() for path, _ in files]
        for part, files in parts.items()
    }
    groups = number_groups(
        {part: find_in_names(group, names[part], "group", wheres[part]) for part in parts}
    )
    forms = {part: scan.forms([path for path, _ in files]) for part, files in parts.items()}
    found = first_channels(forms["train"])
    channels = found if channels is None else channels
    if channels != found and {channels, found} != {1, 3}:
        raise DataError(
            f"{root}: data.channels is {channels}, but the files have {found}; leave it out"
        )
    dtype = common_dtype(forms.values())
    if stream is None:
        stream = num_files * channels * size * size * dtype.itemsize > LARGEST_IN_MEMORY
    read = partial(read_as, dtype=dtype, channels=channels, size=(size, size))
    shape = (channels, size, size)
    images = {
        part: scan.read_all([path for path, _ in files], read, shape, dtype, stream)
        for part, files in parts.items()
    }
    scan.report(num_files)
    sets = {
        part: ImageSet(
            images=images[part],
            labels=torch.tensor([label for _, label in files]),
            class_names=class_names,
            groups=None if group is None else groups[part],
        )
        for part, files in parts.items()
    }
    return DataSet.of_parts("images", sets)


def find_in_names(pattern: str | None, names: list[str], what: str, place: Path) -> list[str]:
    """What the pattern `data.<what>` finds in each name: its first group, or all if it has none.

    Nothing where there is no pattern.
    """
    found = []
    for name in names if pattern is not None else ():
        match = re.search(pattern or "", name)
        text = None if match is None else match[1 if match.re.groups else 0]
        if text is None:
            raise DataError(
                f"{place}: data.{what}={pattern!r} finds no {what} in {name!r}; change the pattern "
                f"so that it fits every file"
            )
        found.append(text)
    return found


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
        """The files of a folder at any depth, sorted by path; their names are kept in runs."""
        found = sorted(path for path in self._walk(where) if self._is_usable(path))
        for path in found:
            if not _is_text(str(path.relative_to(where))):
                self.complaints[path] = "has a name that is not text in UTF-8; rename it"
        return found

    def read_each(self, paths: list[Path], read: Callable[[Path], Tensor]) -> list[Tensor]:
        """What is read of each file that can be; what is wrong with the others is kept."""

        def attempt(path: Path) -> Tensor | str:
            try:
                return read(path)
            except DataError as error:
                return str(error).removeprefix(f"{path}: ")

        with ThreadPoolExecutor(num_workers()) as pool:
            found = dict(zip(paths, pool.map(attempt, paths), strict=True))
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

    def forms(self, paths: list[Path]) -> list[Form]:
        """What the files hold, by their headers, but for bad ones."""
        with ThreadPoolExecutor(num_workers()) as pool:
            return [form for form in pool.map(_form, paths) if form is not None]

    def reader(
        self, parts: Mapping[str, list[Path]], channels: int | None
    ) -> Callable[[Path], Tensor]:
        """What reads all files alike, by their headers: channels, and whether bytes or floats."""
        forms = {part: self.forms(files) for part, files in parts.items()}
        return partial(
            read_as,
            dtype=common_dtype(forms.values()),
            channels=first_channels(forms["train"]) if channels is None else channels,
        )

    def read_all(
        self,
        paths: list[Path],
        read: Callable[[Path], Tensor],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        stream: bool,
    ) -> Tensor | StoredImages:
        """Decode every file once; keep the pixels unless they are to stay on the disk."""
        images = torch.empty((0 if stream else len(paths), *shape), dtype=dtype)
        indices, nothing = {path: index for index, path in enumerate(paths)}, torch.empty(0)

        def decode(path: Path) -> Tensor:
            pixels = read(path)
            if not stream:
                images[indices[path]] = pixels
            return nothing  # pixels are not kept twice, nor where they stay on the disk

        self.read_each(paths, decode)
        if not stream:
            return images
        places = torch.arange(len(paths))
        return StoredImages(
            lambda place: read(paths[place]), places, image_shape=shape, dtype=dtype
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


def _is_text(name: str) -> bool:
    """Bytes that are no text come as lone surrogates, and the files of a run are in UTF-8."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _is_meant(name: str) -> bool:
    return not name.startswith(".") and name.lower() not in _NOT_MEANT


def find_parts(root: Path, *, flat: bool = False) -> dict[str, Path]:
    """Where each part is: all in the folder itself, or in subfolders that say so.

    Unless `flat`, a part has folders in it, one for each class, and nothing else stands beside.
    """
    folders = _subfolders(root)
    parts = {PARTS[path.name]: path for path in folders if path.name in PARTS}
    # A class may be called train too: its folder has images in it, not folders.
    if "train" not in parts or not (flat or _subfolders(parts["train"])):
        for path in folders:
            if path.name.lower() in _LIKE_PARTS and _subfolders(path):
                raise DataError(
                    f"{root}: {path.name!r} holds folders and would be taken for a class; call the "
                    f"parts train, validation and test, of which train must be there"
                )
        return {"train": root}
    others = sorted({path.name for path in folders} - {path.name for path in parts.values()})
    if flat:
        others = [name for name in others if name.lower() in _LIKE_PARTS]
    if others:
        raise DataError(
            f"{root}: holds {others[0]!r} beside 'train'; a folder has either all data in it, or "
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


# ------------------------------------------------------------------ any names, and packed files


def loose_parts(root: Path) -> dict[str, Path]:
    """Where each part is: all in the folder itself, or in subfolders that say so.

    As in folders of images, but a part may have its files in it without a folder for each class.
    """
    found = find_parts(root, flat=True) if root.is_dir() else {"train": root}
    return {part: found[part] for part in PART_NAMES if part in found}


def pad_together(images: Iterable[Tensor]) -> Tensor:
    """One tensor for images of any sizes, each at the beginning of every axis, zero beyond."""
    listed = list(images)
    largest = torch.tensor([image.shape for image in listed]).amax(0).tolist()
    pixels = torch.zeros((len(listed), *largest), dtype=listed[0].dtype)
    for row, image in zip(pixels, listed, strict=True):
        row[tuple(slice(0, n) for n in image.shape)] = image
    return pixels


def check_packed_name(file: Path) -> None:
    """Refuse what cannot become a file of packed data, before anything is read."""
    if file.suffix != PACKED:
        raise DataError(f"{file}: packed data is a {PACKED} file; call it {file.stem}{PACKED}")
    if not file.parent.is_dir():
        raise DataError(f"{file.parent}: no such folder; create it first")


def write_packed(file: Path, arrays: dict[str, Any]) -> None:
    """Write the arrays into one file, whole or not at all."""
    content = BytesIO()
    np.savez_compressed(content, **arrays)
    with system_errors_as(DataError, f"{file}: cannot be written"):
        write_atomically(file, content.getvalue())


def read_packed(files: ArrayFiles, kinds: tuple[str, ...]) -> dict[str, list[Array]]:
    """The arrays of these kinds of each part that has an `x`."""
    parts = [part for part in PART_NAMES if f"x_{part}" in files.names]
    wanted = [f"{kind}_{part}" for part in parts for kind in kinds]
    lacking = [name for name in wanted if name not in files.names]
    if "train" not in parts or lacking:
        raise DataError(
            f"{files.place}: lacks {', '.join(lacking) or 'x_train'}; make it with `pdecnn data "
            f"pack`"
        )
    return {part: [files.read(f"{kind}_{part}") for kind in kinds] for part in parts}


# ------------------------------------------------------------------ pictures

_CLASS = ("image",)


def read_pictures(place: Path | str, *, channels: int | None) -> DataSet:
    """The images of a folder at any depth, perhaps in `train`, `validation` and `test`, by name.

    Or what `pack_pictures` made of one. A test part that is missing is held out of the training
    images, alike in every run. All files that cannot be used are named in one BadFilesError.
    `channels` None: as many as the files have.
    """
    path = Path(place)
    sets = _read_packed(path) if path.suffix == PACKED else _read_folder(path, channels)
    found = sets["train"].channels
    if channels is not None and found != channels:
        raise DataError(
            f"{path}: was packed with {found} channels, but data.channels={channels}; pack it "
            f"again, or set data.channels={found}"
        )
    return DataSet.of_parts("pictures", sets)


def has_pictures(place: Path) -> bool:
    """Whether any file of a folder's parts, at any depth, is called like an image."""
    files = (path for where in loose_parts(place).values() for path in where.rglob("*"))
    return any(path.suffix.lower() in SUFFIXES for path in files)


def pack_pictures(place: Path | str, file: Path, *, channels: int | None) -> dict[str, int]:
    """Write the images of a folder as arrays `x`, `size` and `name` of each part; their numbers."""
    check_packed_name(file)
    sets = _read_folder(Path(place), channels)
    arrays: dict[str, Any] = {}
    for part, images in sets.items():
        assert isinstance(images.images, Tensor)
        assert images.sizes is not None
        arrays |= {
            f"x_{part}": images.images.numpy(),
            f"size_{part}": images.sizes.numpy(),
            f"name_{part}": np.array(images.names),
        }
    write_packed(file, arrays)
    return {part: len(images) for part, images in sets.items()}


def _read_folder(root: Path, channels: int | None) -> dict[str, ImageSet]:
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; pass one with images in it, or a {PACKED} file")
    scan = Scan(root, ())
    parts = {part: scan.list_files(where) for part, where in loose_parts(root).items()}
    read_one = scan.reader(parts, channels)
    read = {part: scan.read_each(files, read_one) for part, files in parts.items()}
    scan.report(sum(map(len, parts.values())))
    if not parts["train"]:
        raise DataError(f"{root}: holds no image; pass a folder with PNG or JPEG files in it")
    return {
        part: _image_set(
            pad_together(images),
            torch.tensor([image.shape[1:] for image in images]),
            [str(path.relative_to(root)) for path in parts[part]],
        )
        for part, images in read.items()
        if images
    }


def _image_set(pixels: Tensor, sizes: Tensor, names: list[str]) -> ImageSet:
    labels = torch.zeros(len(pixels), dtype=torch.int64)
    return ImageSet(
        images=pixels, labels=labels, class_names=_CLASS, sizes=sizes, names=tuple(names)
    )


def _read_packed(path: Path) -> dict[str, ImageSet]:
    sets = {}
    for part, (x, size, name) in read_packed(ArrayFiles(path), ("x", "size", "name")).items():
        fits = size.shape == (len(x), x.ndim - 2) and len(name) == len(x)
        if not fits or (size < 1).any() or (size > np.array(x.shape[2:])).any():
            raise DataError(f"{path}: the sizes or names of x_{part} do not fit it; pack it again")
        sets[part] = _image_set(torch.from_numpy(x), torch.from_numpy(size), list(map(str, name)))
    return sets
