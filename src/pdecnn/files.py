"""Files that are whole or absent: one way to write them all, and SHA-256 manifests.

What is written is made under another name beside its place, flushed to the disk, and renamed.
"""

import csv
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from math import isfinite
from pathlib import Path

from pdecnn.errors import CheckpointError, in_one_line

MANIFEST = "manifest.json"
_BAD_MANIFEST = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}")


def read_bytes(path: Path) -> bytes:
    """What a regular file holds; to read a pipe or a device may never end."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file")
    return path.read_bytes()


def write_atomically(path: Path, content: bytes) -> None:
    """Write so that a reader, or a crash, meets the old file or the new one, never half.

    A file that holds the content already is left alone.
    """
    if os.path.isfile(path) and path.read_bytes() == content:
        return
    temporary = temporary_beside(path)
    try:
        _write_new(temporary, content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_all(folder: Path, contents: Mapping[str, bytes]) -> list[Path]:
    """Write files of a folder, each atomically; their paths."""
    for name, content in contents.items():
        write_atomically(folder / name, content)
    return [folder / name for name in contents]


def write_folder(
    folder: Path, contents: Mapping[str, bytes], *, removed_first: Iterable[str] = ()
) -> None:
    """Write the files of a folder, none of which takes its place before all are on the disk.

    A new folder appears whole. Into one that is there the files are renamed one by one:
    `removed_first` go before the first of them comes, in the order given, so that who is killed
    between leaves no mixture that looks whole.
    """
    is_new = not os.path.lexists(folder)
    if is_new:
        make_folder(folder.parent)
    staging = temporary_beside(folder if is_new else folder / "saving")
    try:
        staging.mkdir()
        for name, content in contents.items():
            _write_new(staging / name, content)
        if is_new:
            sync_folder(staging)
            staging.rename(folder)
        else:
            for name in removed_first:
                (folder / name).unlink(missing_ok=True)
            for name in contents:
                os.replace(staging / name, folder / name)
    finally:
        if staging.exists():
            shutil.rmtree(staging, ignore_errors=True)
    sync_folder(folder.parent if is_new else folder)


def _write_new(path: Path, content: bytes) -> None:
    with os.fdopen(new_file(path), "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def temporary_beside(path: Path) -> Path:
    """A name in the same folder that nothing has, for what is to take the path's place."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def remove_temporaries(folder: Path) -> None:
    """Remove what killed processes were writing in the folder; nobody may be at work there."""
    if not folder.is_dir() or folder.is_symlink():
        return
    for path in folder.iterdir():
        if is_temporary(path.name):
            remove(path)


def remove(path: Path) -> None:
    """Remove a file, a folder with all in it or a link, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def is_temporary(name: str) -> bool:
    """Whether a file of that name was to take the place of another."""
    return _TEMPORARY.fullmatch(name) is not None


def new_file(path: Path) -> int:
    """The descriptor of a new file; the user's umask says who may read it, unlike with mkstemp."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)


def make_folder(folder: Path) -> None:
    """Make the folder and those it lies in, however deep: pathlib would recurse."""
    for path in reversed((folder, *folder.parents)):
        if not path.is_dir():
            path.mkdir(exist_ok=True)


def sync_folder(folder: Path) -> None:
    """Make renames in the folder survive a power cut."""
    if os.name == "nt":  # which opens no folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: object) -> None:
    """Write readable JSON atomically, with keys in the order given."""
    write_atomically(path, json_bytes(value))


def finite_number(value: float | None) -> float | None:
    """JSON has no infinity and no NaN; None stands for both."""
    return value if value is not None and isfinite(value) else None


def json_bytes(value: object) -> bytes:
    """Readable JSON, as `write_json` writes it; NaN and infinity, which it has not, are errors."""
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


def csv_bytes(header: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    """A table with a line for its columns."""
    stream = StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return stream.getvalue().encode()


def manifest_bytes(contents: Mapping[str, bytes]) -> bytes:
    """The manifest of files with these contents: the SHA-256 of each."""
    hashes = {name: hashlib.sha256(contents[name]).hexdigest() for name in sorted(contents)}
    return json_bytes({"sha256": hashes})


def verify_manifest(folder: Path, required: Iterable[str] = ()) -> None:
    """Raise a CheckpointError unless every file has the SHA-256 its manifest says.

    `required` files must be among those it names.
    """
    path = folder / MANIFEST
    try:
        hashes = json.loads(read_bytes(path))["sha256"]
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
