"""Folders of sound files with a class and perhaps a group each, or the same packed into one file.

A sound is what `read_sound` makes of a file, in 16 bits whatever the file had: so packed ones are
the same bits.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pdecnn.data.arrays import ArrayFiles
from pdecnn.data.image_set import LARGEST_IN_MEMORY, DataSet, ImageSet, number_groups
from pdecnn.data.images import (
    PACKED,
    PART_NAMES,
    Scan,
    check_packed_name,
    find_in_names,
    loose_parts,
    write_packed,
)
from pdecnn.data.sound_file import SOUNDS, read_sound, strict_wave_files
from pdecnn.errors import DataError

SCALE = 2**15
"""16-bit samples are divided by it."""


@dataclass(frozen=True, kw_only=True)
class SoundSettings:
    """How sounds are read: the `data` settings of the same names."""

    seconds: float
    rate: int
    label: str | None = None
    group: str | None = None
    test_groups: tuple[str, ...] | None = None
    validation_groups: tuple[str, ...] | None = None

    @property
    def length(self) -> int:
        """Samples of a sound."""
        return round(self.seconds * self.rate)


@dataclass(frozen=True, kw_only=True)
class _Sounds:
    """Waves as they are kept, int16 (n, 1, length), with what is known of each."""

    waves: Tensor
    names: list[str]
    classes: list[str]
    groups: list[str] | None

    def subset(self, chosen: list[int]) -> "_Sounds":
        return _Sounds(
            waves=self.waves[chosen],
            names=[self.names[k] for k in chosen],
            classes=[self.classes[k] for k in chosen],
            groups=None if self.groups is None else [self.groups[k] for k in chosen],
        )


def read_sounds(place: Path | str, settings: SoundSettings) -> DataSet:
    """The sounds of a folder at any depth, perhaps in `train`, `validation` and `test`.

    Or what `pack_sounds` made of one. A class is the first folder on the way to a file, or what
    `label` finds in its path. The groups of `test_groups` and `validation_groups` are those parts;
    a test part that is missing is held out of the training sounds, alike in every run. All files
    that cannot be used are named in one BadFilesError.
    """
    path = Path(place)
    parts = _named_parts(_read_parts(path, settings), settings, path)
    class_names = _class_names(parts["train"].classes, path)
    groups = number_groups({part: sounds.groups or [] for part, sounds in parts.items()})
    sets = {}
    for part, sounds in parts.items():
        strange = sorted(set(sounds.classes) - set(class_names))
        if strange:
            raise DataError(
                f"{path}: {strange[0]!r} is a class of the {part} part, but of no training sound; "
                f"the classes are {', '.join(class_names)}"
            )
        sets[part] = ImageSet(
            images=_as_numbers(sounds.waves),
            labels=torch.tensor([class_names.index(name) for name in sounds.classes]),
            class_names=class_names,
            groups=None if sounds.groups is None else groups[part],
            names=tuple(sounds.names),
        )
    return DataSet.of_parts("sounds", sets)


def read_wave(path: Path, *, rate: int, length: int) -> Tensor:
    """A sound file as numbers in [-1, 1], float32 (1, length)."""
    with strict_wave_files():
        return _as_numbers(read_sound(path, rate=rate, length=length))


def _as_numbers(waves: Tensor) -> Tensor:
    return waves.to(torch.float32) / SCALE


def pack_sounds(place: Path | str, file: Path, settings: SoundSettings) -> dict[str, int]:
    """Write the sounds of a folder as `x`, `y`, `name` and `group` of each part; their numbers."""
    check_packed_name(file)
    path = Path(place)
    parts = _read_folder(path, settings)
    class_names = _class_names([name for part in parts.values() for name in part.classes], path)
    arrays: dict[str, Any] = {"class_names": np.array(class_names), "rate": settings.rate}
    for part, sounds in parts.items():
        end = f"_{part}" if len(parts) > 1 else ""
        arrays |= {
            f"x{end}": sounds.waves.numpy(),
            f"y{end}": np.array([class_names.index(name) for name in sounds.classes]),
            f"name{end}": np.array(sounds.names),
        }
        if sounds.groups is not None:
            arrays[f"group{end}"] = np.array(sounds.groups)
    write_packed(file, arrays)
    return {part: len(sounds.names) for part, sounds in parts.items()}


def has_sounds(place: Path) -> bool:
    """Whether any file of a folder, at any depth, is called like a sound."""
    return any(path.suffix.lower() in SOUNDS for path in place.rglob("*"))


def sound_names(place: Path | str) -> list[str]:
    """The path of each file of a folder below it, or below its part."""
    path = Path(place)
    return [name for names in _list_names(Scan(path, ()), path).values() for name in names]


def _read_parts(path: Path, settings: SoundSettings) -> dict[str, _Sounds]:
    read = _read_packed if path.suffix == PACKED else _read_folder
    return read(path, settings)


def _read_folder(root: Path, settings: SoundSettings) -> dict[str, _Sounds]:
    scan = Scan(root, ())
    wheres, parts = _find_parts(root), _list_names(scan, root)
    number = sum(map(len, parts.values()))
    size = 4 * number * settings.length
    if size > LARGEST_IN_MEMORY:
        raise DataError(
            f"{root}: {number:,} sounds of {settings.seconds:g} s are {size:,} bytes, more than "
            f"{LARGEST_IN_MEMORY:,}; lower data.seconds or data.rate"
        )
    read_one = partial(read_sound, rate=settings.rate, length=settings.length)
    with strict_wave_files():
        waves = {
            part: scan.read_each([wheres[part] / name for name in names], read_one)
            for part, names in parts.items()
        }
    scan.report(number)
    return {
        part: _Sounds(
            waves=torch.stack(waves[part]),
            names=names,
            classes=_find_classes(names, settings.label, wheres[part]),
            groups=_find_groups(names, settings.group, wheres[part]),
        )
        for part, names in parts.items()
        if names
    }


def _find_classes(names: list[str], label: str | None, place: Path) -> list[str]:
    if label is not None:
        return find_in_names(label, names, "label", place)
    for name in names:
        if "/" not in name:
            raise DataError(
                f"{place}: {name!r} is in no folder of a class; make one for each class, or say by "
                f"data.label where the name of a file has its class, e.g. data.label='^([^_]+)'"
            )
    return [name.split("/")[0] for name in names]


def _find_groups(names: list[str], group: str | None, place: Path) -> list[str] | None:
    return None if group is None else find_in_names(group, names, "group", place)


def _list_names(scan: Scan, root: Path) -> dict[str, list[str]]:
    """The path of each file below its part, sorted; at least one to train on."""
    parts = {
        part: [path.relative_to(where).as_posix() for path in scan.list_files(where)]
        for part, where in _find_parts(root).items()
    }
    if not parts["train"] and not scan.complaints:
        raise DataError(f"{root}: holds no sound; pass a folder with WAV, FLAC or OGG files in it")
    return parts


def _find_parts(root: Path) -> dict[str, Path]:
    """Where each part is: all in the folder itself, or in subfolders that say so."""
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; pass one with sounds in it, or a {PACKED} file")
    return loose_parts(root)


def _class_names(classes: list[str], place: Path) -> tuple[str, ...]:
    names = tuple(sorted(set(classes)))
    if len(names) < 2:
        raise DataError(
            f"{place}: the training sounds are of {len(names)} class, but need at least 2; a class "
            f"is the first folder on the way to a file, or what data.label finds in its path"
        )
    return names


def _named_parts(
    parts: dict[str, _Sounds], settings: SoundSettings, place: Path
) -> dict[str, _Sounds]:
    """The parts with the groups of `test_groups` and `validation_groups` taken out."""
    twice = sorted(set(settings.test_groups or ()) & set(settings.validation_groups or ()))
    if twice:
        raise DataError(
            f"{place}: {twice[0]!r} is in data.test_groups and data.validation_groups; leave it "
            f"out of one"
        )
    for part in ("test", "validation"):
        chosen = getattr(settings, f"{part}_groups")
        if chosen is None:
            continue
        train = parts["train"]
        if train.groups is None:
            raise DataError(
                f"{place}: data.{part}_groups needs groups; say by data.group what they are"
            )
        if part in parts:
            raise DataError(
                f"{place}: has a {part} part of its own; leave out data.{part}_groups, or put all "
                f"into one folder"
            )
        unknown = sorted(set(chosen) - set(train.groups))
        if unknown:
            raise DataError(
                f"{place}: data.{part}_groups names {unknown[0]!r}, and the groups are "
                f"{', '.join(sorted(set(train.groups)))}"
            )
        inside = [k for k, group in enumerate(train.groups) if group in chosen]
        outside = [k for k, group in enumerate(train.groups) if group not in chosen]
        if not outside:
            raise DataError(f"{place}: data.{part}_groups leaves no group to train on; drop one")
        parts = parts | {"train": train.subset(outside), part: train.subset(inside)}
    return parts


def _read_packed(path: Path, settings: SoundSettings) -> dict[str, _Sounds]:
    files = ArrayFiles(path)
    ends = {"train": ""} if "x" in files.names else {part: f"_{part}" for part in PART_NAMES}
    ends = {part: end for part, end in ends.items() if f"x{end}" in files.names}
    wanted = {"rate", *(f"{kind}{end}" for kind in ("y", "name") for end in ends.values())}
    lacking = sorted(wanted - files.names)
    known = files.class_names()
    if "train" not in ends or lacking or known is None:
        raise DataError(
            f"{path}: lacks {', '.join(lacking) or 'x or class_names'}; make it with `pdecnn data "
            f"pack`, or train *_signals on arrays of your own"
        )
    rate = int(files.read("rate"))
    return {part: _unpacked(files, end, known, rate, settings) for part, end in ends.items()}


def _unpacked(
    files: ArrayFiles, end: str, known: tuple[str, ...], rate: int, settings: SoundSettings
) -> _Sounds:
    """The sounds of one part of a packed file."""
    path, waves = files.place, torch.from_numpy(files.read(f"x{end}"))
    labels, names = files.read(f"y{end}").tolist(), files.read(f"name{end}").tolist()
    fits = waves.dtype == torch.int16 and waves.dim() == 3 and waves.shape[1] == 1
    fits = fits and len(labels) == len(names) == len(waves) > 0
    if not fits or min(labels) < 0 or max(labels) >= len(known):
        raise DataError(f"{path}: x{end}, y{end} and name{end} do not fit; pack it again")
    length = waves.shape[2]
    if (rate, length) != (settings.rate, settings.length):
        raise DataError(
            f"{path}: was packed with {length / rate:g} s at {rate:,} samples a second; set "
            f"data.seconds={length / rate:g} and data.rate={rate}, or pack it again"
        )
    groups = _find_groups(names, settings.group, path)
    if groups is None and f"group{end}" in files.names:
        groups = [str(group) for group in files.read(f"group{end}").tolist()]
    classes = [known[label] for label in labels]
    if settings.label is not None:
        classes = _find_classes(names, settings.label, path)
    return _Sounds(waves=waves, names=names, classes=classes, groups=groups)
