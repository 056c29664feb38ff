"""Named regular files out of a published `.tar.gz`, into memory: nothing is ever unpacked."""

import gzip
import io
import tarfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from pdecnn.errors import DataError

MAX_MEMBER_BYTES = 3 * 2**30
"""The largest member that is passed over; STL-10's unlabelled images are 2.8 GB."""
MAX_READ_BYTES = 2**29
"""The largest member that is read; the largest published one has 221 MB."""
MAX_TOTAL_BYTES = 4 * 2**30
"""All that an archive may unpack to."""
MAX_MEMBERS = 10_000
"""Empty members take memory too; no published archive has 20."""
_MAX_HEADER_BYTES = 2**20
_BUFFER_BYTES = 2**16
_REMEDY = "fetch the archive again from where it is published"


def read_members(path: Path, names: Iterable[str]) -> dict[str, bytes]:
    """The files of these names, each a path inside the archive; a DataError where one is missing.

    An archive with anything in it but folders and regular files of harmless names and sizes is
    refused as a whole. It is read to its end, so that its checksum is checked too.
    """
    wanted = set(names)
    found: dict[str, bytes] = {}
    try:
        with gzip.open(path) as unpacked:
            stream = _CappedStream(unpacked, path)
            with tarfile.open(fileobj=stream, mode="r|", bufsize=_BUFFER_BYTES) as archive:
                for member in _members(archive, stream, path):
                    name = str(PurePosixPath(member.name))
                    if name not in wanted or member.isdir():
                        continue
                    if name in found:
                        raise DataError(f"{path}: holds {name} twice; {_REMEDY}")
                    if member.size > MAX_READ_BYTES:
                        raise DataError(
                            f"{path}: member {name!r} has {member.size:,} bytes, more than "
                            f"{MAX_READ_BYTES:,}; {_REMEDY}"
                        )
                    content = archive.extractfile(member)
                    assert content is not None  # it is a regular file
                    found[name] = content.read()
            stream.drain()
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; check the path") from None
    # On a damaged file the readers raise nearly anything.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"{path}: is no whole .tar.gz archive, or damaged ({reason}); {_REMEDY}"
        ) from error
    missing = sorted(wanted - found.keys())
    if missing:
        raise DataError(f"{path}: does not hold {missing[0]}; {_REMEDY}")
    return found


class _CappedStream(io.RawIOBase):
    """The unpacked bytes, no more of them than was granted: a header cannot ask for gigabytes."""

    def __init__(self, stream: gzip.GzipFile, path: Path) -> None:
        super().__init__()
        self.stream, self.path = stream, path
        self.granted = _MAX_HEADER_BYTES

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes; tarfile asks for a buffer at a time."""
        content = self.stream.read(size)
        self.granted -= len(content)
        if self.granted < -_BUFFER_BYTES:
            raise DataError(f"{self.path}: has headers of more than 1 MiB; {_REMEDY}")
        return content

    def drain(self) -> None:
        """Read what is left, blocks of zeros, and with it the checksum."""
        self.granted = _MAX_HEADER_BYTES
        while self.read(_BUFFER_BYTES):
            pass


def _members(
    archive: tarfile.TarFile, stream: _CappedStream, path: Path
) -> Iterable[tarfile.TarInfo]:
    """Every member, refused before its content is touched if it is not harmless."""
    total = count = 0
    while (member := archive.next()) is not None:
        complaint = _complaint(member)
        total, count = total + member.size, count + 1
        if complaint is None and member.size > MAX_MEMBER_BYTES:
            complaint = f"has {member.size:,} bytes, more than {MAX_MEMBER_BYTES:,}"
        if complaint is None and total > MAX_TOTAL_BYTES:
            complaint = f"makes the whole larger than {MAX_TOTAL_BYTES:,} bytes"
        if complaint is None and count > MAX_MEMBERS:
            complaint = f"comes after {MAX_MEMBERS:,} others"
        if complaint is not None:
            raise DataError(f"{path}: member {member.name!r} {complaint}; {_REMEDY}")
        stream.granted = member.size + _MAX_HEADER_BYTES
        yield member


def _complaint(member: tarfile.TarInfo) -> str | None:
    """What makes a member one that no published archive has."""
    if member.issym() or member.islnk():
        return "is a link"
    if member.issparse() or not (member.isreg() or member.isdir()):
        return "is neither a regular file nor a folder"
    name = member.name
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        return "points outside the archive"
    if "\\" in name or ":" in name or "\0" in name:
        return "has a name that some systems take for another place"
    return None
