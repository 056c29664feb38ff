"""Files that are whole or absent: atomic writes and SHA-256 manifests."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from pdecnn.errors import CheckpointError, in_one_line

MANIFEST = "manifest.json"
_BAD_MANIFEST = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


def write_atomically(path: Path, content: bytes) -> None:
    """Write so that a reader, or a crash, meets the old file or the new one, never half.

    A unique temporary file in the same folder, flushed to the disk, replaces the old one; a file
    that holds the content already is left alone.
    """
    if os.path.isfile(path) and path.read_bytes() == content:
        return
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in the folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: object) -> None:
    """Write readable JSON atomically, with keys in the order given."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def write_manifest(folder: Path, names: Iterable[str]) -> None:
    """Record the SHA-256 of each named file of the folder."""
    hashes = {name: _sha256(folder / name) for name in sorted(names)}
    write_json(folder / MANIFEST, {"sha256": hashes})


def verify_manifest(folder: Path, required: Iterable[str] = ()) -> None:
    """Raise a CheckpointError unless every file has the SHA-256 its manifest says.

    `required` files must be among those it names.
    """
    path = folder / MANIFEST
    try:
        hashes = json.loads(path.read_bytes())["sha256"]
        expected = {str(name): str(value) for name, value in hashes.items()}
    except _BAD_MANIFEST as error:
        raise CheckpointError(
            f"{path}: unreadable manifest ({in_one_line(error)}); save it again"
        ) from error
    for name in required:
        if name not in expected:
            raise CheckpointError(f"{path}: does not name {name}; save it again")
    for name, value in expected.items():
        # A manifest names files of its own folder; a path in it is damage or malice.
        if Path(name).name != name or not (folder / name).is_file():
            raise CheckpointError(f"{folder / name}: missing, though the manifest names it")
        if _sha256(folder / name) != value:
            raise CheckpointError(
                f"{folder / name}: damaged (SHA-256 differs from the manifest); restore it from "
                f"a copy or save it again"
            )


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
