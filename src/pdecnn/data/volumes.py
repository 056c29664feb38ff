"""Volumes as NIfTI files, by nibabel: turned to the axes right, anterior, superior, and back."""

import gzip
import logging
from contextlib import AbstractContextManager
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pdecnn.errors import UnsuitableFile, bad_file_refused
from pdecnn.files import write_atomically

SUFFIXES = (".nii", ".nii.gz")
"""How names of volumes end."""
MAX_VOXELS = 2**28
_AXES = 3
# What is wrong with a file is said in one line, by whoever reads it.
logging.getLogger("nibabel.global").addHandler(logging.NullHandler())


class Volume(NamedTuple):
    """What a file holds."""

    voxels: Tensor
    """(channels, x, y, z), float32, in units of its own."""
    spacing: tuple[float, ...]
    """Between the voxels along each axis, as the file says it."""


def is_volume(path: Path) -> bool:
    """Whether the name is that of a NIfTI file."""
    return path.name.lower().endswith(SUFFIXES)


def stem_of(name: str) -> str:
    """The name without what says the kind of file."""
    for suffix in reversed(SUFFIXES):
        if name.lower().endswith(suffix):
            return name[: -len(suffix)]
    return str(Path(name).with_suffix(""))


def read_volume(path: Path) -> Volume:
    """A volume of 3 axes, of 4 with the last for the channels; axes from left to right, from
    posterior to anterior and from inferior to superior."""
    with _refused_in_words(path):
        image = _open(path)
        voxels = np.asarray(image.get_fdata(dtype=np.float32))
        voxels = voxels[None] if voxels.ndim == _AXES else np.moveaxis(voxels, -1, 0)
        if not np.isfinite(voxels).all():
            raise UnsuitableFile("has values that are not finite; mend it")
        spacing = tuple(float(step) for step in image.header.get_zooms()[:_AXES])
        return Volume(torch.from_numpy(np.ascontiguousarray(voxels)), spacing)


def read_label_volume(path: Path) -> npt.NDArray[Any]:
    """The numbers of a label file, (x, y, z), axes as in `read_volume`."""
    with _refused_in_words(path):
        labels: npt.NDArray[Any] = np.asanyarray(_open(path).dataobj)
        if labels.ndim > _AXES and labels.shape[_AXES] != 1:
            raise UnsuitableFile(
                f"has {labels.shape[_AXES]} labels a voxel; save one number for each voxel"
            )
        return labels if labels.ndim == _AXES else labels[..., 0]


def check_same_place(path: Path, labels: Path) -> None:
    """Refuse labels whose header turns them otherwise than their volume, to another place.

    Both are turned by their headers. Labels saved without one would be mirrored unseen.
    """
    with _refused_in_words(labels):
        nibabel = _nibabel()
        places, turns = [], []
        for file in (path, labels):
            image = nibabel.load(file)
            turn = nibabel.io_orientation(image.affine)
            size = image.shape[:_AXES]
            turned = image.affine @ nibabel.orientations.inv_ornt_aff(turn, size)
            ends = [[0, n - 1] for n in np.array(size)[np.argsort(turn[:, 0])]]
            places.append(nibabel.affines.apply_affine(turned, list(product(*ends))))
            turns.append(turn)
        apart = np.abs(places[0] - places[1]).max()
        if not np.array_equal(*turns) and apart > min(
            nibabel.load(path).header.get_zooms()[:_AXES]
        ):
            raise UnsuitableFile(
                "has its axes in another order than the image, and lies elsewhere; save it with "
                "the header of the image"
            )


def write_label_volume(path: Path, labels: Tensor, source: Path) -> None:
    """Write labels (x, y, z) of the volume `source`, with its header and its order of axes."""
    with _refused_in_words(source):
        nibabel = _nibabel()
        image = nibabel.load(source)
        orientations = nibabel.orientations
        standard = orientations.axcodes2ornt("RAS")
        own = nibabel.io_orientation(image.affine)
        turn = orientations.ornt_transform(standard, own)
        turned = orientations.apply_orientation(labels.cpu().numpy().astype(np.uint8), turn)
        header = image.header.copy()
        header.set_data_dtype(np.uint8)
        header.set_slope_inter(1, 0)
        header["cal_min"] = header["cal_max"] = 0  # the brightness of the scan, not of classes
        made = type(image)(np.ascontiguousarray(turned), image.affine, header)
        content = made.to_bytes()
    if path.name.lower().endswith(".gz"):
        content = gzip.compress(content, mtime=0)  # the same bytes each time
    write_atomically(path, content)


def _open(path: Path) -> Any:
    """The file with its header read, found to be of a size that can be held, and turned."""
    nibabel = _nibabel()
    image = nibabel.load(path)
    shape = tuple(image.shape)
    if len(shape) not in (_AXES, _AXES + 1) or 0 in shape:
        raise UnsuitableFile(
            f"has the shape {shape}; save it with 3 axes, or 4 of which the last is for channels"
        )
    if prod(shape) > MAX_VOXELS:
        raise UnsuitableFile(f"has more than {MAX_VOXELS:,} voxels; reduce it first")
    if image.get_data_dtype().kind not in "uif":
        raise UnsuitableFile(
            f"holds {image.get_data_dtype()}; save it as whole or floating numbers"
        )
    return nibabel.as_closest_canonical(image)


def _nibabel() -> Any:
    """Imported when it is needed: a machine with packed data does without."""
    try:
        import nibabel
    except ImportError:
        raise UnsuitableFile(
            "is read by nibabel, which is not installed; run pip install 'pdecnn[volumes]', or "
            "pack the data elsewhere with `pdecnn data pack`"
        ) from None
    return nibabel


def _refused_in_words(path: Path) -> AbstractContextManager[None]:
    remedy = "fetch it again or convert it"
    return bad_file_refused(path, "cannot be read as NIfTI", remedy)
