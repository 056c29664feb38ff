"""Promise 14: hostile archives are refused, and nothing is ever written."""

import gzip
import io
import struct
import tarfile
import tracemalloc

import pytest

from pdecnn.data import archive
from pdecnn.data.archive import read_members
from pdecnn.data.published import CIFAR10
from pdecnn.data.registry import read_dataset
from pdecnn.errors import DataError
from tests.published_data import write_archive


def member(name, kind=tarfile.REGTYPE, size=0, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, target
    return info


HOSTILE = {
    "parent": (member("../evil", size=4), "points outside"),
    "deep_parent": (member("cifar-10-batches-bin/../../evil", size=4), "points outside"),
    "absolute": (member("/tmp/evil", size=4), "points outside"),
    "backslash": (member("..\\evil", size=4), "some systems"),
    "drive": (member("C:evil", size=4), "some systems"),
    "link": (member("link", tarfile.SYMTYPE, target="/etc/passwd"), "is a link"),
    "hard_link": (member("link", tarfile.LNKTYPE, target="../../evil"), "is a link"),
    "folder_link": (member("cifar-10-batches-bin", tarfile.SYMTYPE, target="/tmp"), "is a link"),
    "device": (member("disk", tarfile.BLKTYPE), "neither a regular file nor a folder"),
    "terminal": (member("tty", tarfile.CHRTYPE), "neither a regular file nor a folder"),
    "pipe": (member("pipe", tarfile.FIFOTYPE), "neither a regular file nor a folder"),
    "twice": (member("cifar-10-batches-bin/test_batch.bin", size=4), "twice"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_member_is_refused_and_nothing_written(kind, tmp_path, monkeypatch):
    info, complaint = HOSTILE[kind]
    folder = tmp_path / "data"
    folder.mkdir()
    content = b"evil" if info.size else None
    write_archive(folder / CIFAR10.archive, CIFAR10, [(info, content)])
    monkeypatch.chdir(folder)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError, match=complaint) as caught:
        read_dataset("cifar10", folder)
    assert CIFAR10.archive in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["huge.bin", "cifar-10-batches-bin/test_batch.bin"])
def test_a_member_of_ten_gigabytes_is_refused_at_its_header(name, tmp_path):
    header = member(name, size=10 * 2**30).tobuf(tarfile.GNU_FORMAT)
    (tmp_path / "bomb.tar.gz").write_bytes(gzip.compress(header + bytes(2**20)))
    with pytest.raises(DataError, match="10,737,418,240 bytes, more than"):
        read_members(tmp_path / "bomb.tar.gz", [name])


def test_many_members_that_are_too_much_together_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MAX_TOTAL_BYTES", 3000)
    extra = [(member(f"file {k}", size=1000), bytes(1000)) for k in range(4)]
    path = write_archive(tmp_path / "many.tar.gz", CIFAR10, extra)
    with pytest.raises(DataError, match="makes the whole larger"):
        read_members(path, [])


def test_endless_empty_members_are_refused_before_they_fill_the_memory(tmp_path):
    headers = member("empty").tobuf(tarfile.GNU_FORMAT) * 50_000
    (tmp_path / "bomb.tar.gz").write_bytes(gzip.compress(headers, 1))
    with pytest.raises(DataError, match="comes after 10,000 others"):
        read_members(tmp_path / "bomb.tar.gz", [])


def test_a_file_that_is_wanted_has_a_cap_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MAX_READ_BYTES", 10)
    path = write_archive(tmp_path / "a.tar.gz", CIFAR10)
    with pytest.raises(DataError, match="more than 10;"):
        read_members(path, ["cifar-10-batches-bin/test_batch.bin"])


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_cannot_ask_for_gigabytes_of_memory(kind, tmp_path):
    size = 50 * 2**20
    header = member("header", kind, size=size).tobuf(tarfile.GNU_FORMAT)
    (tmp_path / "bomb.tar.gz").write_bytes(gzip.compress(header + bytes(size), 1))
    tracemalloc.start()
    with pytest.raises(DataError, match="headers of more than 1 MiB"):
        read_members(tmp_path / "bomb.tar.gz", [])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * 2**20


@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, -1000, -8, -1])
def test_a_cut_archive_is_refused(keep, tmp_path):
    path = write_archive(tmp_path / CIFAR10.archive, CIFAR10)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep) if isinstance(keep, float) else keep])
    with pytest.raises(DataError, match=r"is no whole|does not hold"):
        read_dataset("cifar10", tmp_path)


def test_a_flipped_bit_is_found_by_the_checksum(tmp_path):
    path = write_archive(tmp_path / CIFAR10.archive, CIFAR10)
    content = bytearray(path.read_bytes())
    content[-8] ^= 1  # the stored CRC itself: every byte before it is intact
    path.write_bytes(content)
    with pytest.raises(DataError, match="CRC"):
        read_dataset("cifar10", tmp_path)


def test_what_is_no_archive_is_refused(tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(b"some text" * 1000))
    with pytest.raises(DataError, match="is no whole"):
        read_members(tmp_path / "a.tar.gz", [])
    with pytest.raises(DataError, match="no such file"):
        read_members(tmp_path / "b.tar.gz", [])


def test_an_archive_packed_again_by_others_is_fine(tmp_path):
    """With `./` before the names and times in fractions of seconds, which take longer headers."""
    path = tmp_path / "again.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as packed:
        info = member("./folder/file", size=5)
        info.mtime = 1.5
        packed.addfile(info, io.BytesIO(b"hello"))
    assert read_members(path, ["folder/file"]) == {"folder/file": b"hello"}


def test_a_missing_member_is_named(tmp_path):
    path = write_archive(tmp_path / "a.tar.gz", CIFAR10)
    with pytest.raises(DataError, match="does not hold folder/none"):
        read_members(path, ["folder/none"])


def test_a_header_with_a_wrong_checksum_is_refused(tmp_path):
    header = bytearray(member("file", size=4).tobuf(tarfile.GNU_FORMAT))
    header[0:4] = struct.pack(">i", 7)
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(bytes(header) + bytes(2048)))
    with pytest.raises(DataError, match="is no whole"):
        read_members(tmp_path / "a.tar.gz", [])
