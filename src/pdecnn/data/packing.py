"""What folders of pictures, of images with labels and of sounds share: parts, and one .npz file."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from pdecnn.data.images import find_parts
from pdecnn.errors import DataError, system_errors_as
from pdecnn.files import write_atomically

PART_NAMES = ("train", "validation", "test")
PACKED = ".npz"
"""How names of packed files end."""


def loose_parts(root: Path) -> dict[str, Path]:
    """Where each part is: all in the folder itself, or in subfolders that say so.

    As in folders of images, but a part may have its files in it without a folder for each class.
    """
    found = find_parts(root, flat=True) if root.is_dir() else {"train": root}
    return {part: found[part] for part in PART_NAMES if part in found}


def check_packed_name(file: Path) -> None:
    """Refuse a name that would not be taken for packed data, before anything is read."""
    if file.suffix != PACKED:
        raise DataError(f"{file}: packed data is a {PACKED} file; call it {file.stem}{PACKED}")


def write_packed(file: Path, arrays: dict[str, Any]) -> None:
    """Write the arrays into one file, whole or not at all."""
    content = BytesIO()
    np.savez_compressed(content, **arrays)
    with system_errors_as(DataError, f"{file}: cannot be written"):
        write_atomically(file, content.getvalue())
