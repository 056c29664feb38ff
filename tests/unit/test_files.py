"""Files are whole or absent, and one flipped bit is noticed."""

import json
import os

import pytest

from pdecnn.errors import CheckpointError
from pdecnn.files import (
    MANIFEST,
    make_folder,
    remove_temporaries,
    temporary_beside,
    verify_manifest,
    write_atomically,
    write_folder,
    write_json,
)
from tests.manifests import write_manifest
from tests.umask import mode, user_mask


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(range(256)))
    (tmp_path / "b.txt").write_text("text\n")
    write_manifest(tmp_path, ("b.txt", "a.bin"))
    return tmp_path


def test_a_write_leaves_one_readable_file(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o027])
def test_who_may_read_a_file_is_for_the_umask_to_say(tmp_path, umask):
    with user_mask(umask):
        write_atomically(tmp_path / "alone", b"x")
        write_folder(tmp_path, {"a": b"x", "b": b"y"})
    assert {mode(path) for path in tmp_path.iterdir()} == {0o666 & ~umask}


@pytest.mark.parametrize("function", ["replace", "fsync"])
def test_a_failed_write_leaves_the_old_file_and_no_temporary(tmp_path, monkeypatch, function):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, function, fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_an_interrupted_write_leaves_the_old_file_and_no_temporary(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_the_old_file_is_there_until_the_new_one_is_on_the_disk(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    events = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda fd: (events.append(("fsync", path.read_bytes())), fsync(fd))[1]
    )
    monkeypatch.setattr(
        os,
        "replace",
        lambda a, b: (events.append(("replace", path.read_bytes())), replace(a, b))[1],
    )
    write_atomically(path, b"new")
    assert events == [("fsync", b"old"), ("replace", b"old"), ("fsync", b"new")]


def test_json_keeps_the_order_of_keys_and_ends_with_a_newline(tmp_path):
    write_json(tmp_path / "x.json", {"b": 1, "a": [1.5, "ä"]})
    text = (tmp_path / "x.json").read_text()
    assert list(json.loads(text)) == ["b", "a"]
    assert json.loads(text)["a"] == [1.5, "ä"]
    assert text.endswith("}\n")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_never_holds_what_is_no_number(tmp_path, value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "values.json", {"loss": value})
    assert not (tmp_path / "values.json").exists()


def test_an_intact_folder_verifies(folder):
    verify_manifest(folder)
    verify_manifest(folder, ("a.bin", "b.txt"))
    assert list(json.loads((folder / MANIFEST).read_text())["sha256"]) == ["a.bin", "b.txt"]


@pytest.mark.parametrize("bit", range(0, 256 * 8, 97))
def test_one_flipped_bit_is_noticed(folder, bit):
    content = bytearray((folder / "a.bin").read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    (folder / "a.bin").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"a\.bin: damaged"):
        verify_manifest(folder)


def test_a_missing_file_is_noticed(folder):
    (folder / "b.txt").unlink()
    with pytest.raises(CheckpointError, match=r"b\.txt: missing"):
        verify_manifest(folder)


def test_a_file_the_manifest_leaves_out_is_noticed_when_required(folder):
    write_manifest(folder, ("a.bin",))
    verify_manifest(folder, ("a.bin",))
    with pytest.raises(CheckpointError, match=r"does not name b\.txt"):
        verify_manifest(folder, ("a.bin", "b.txt"))


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "sub/file", "..", ".", "", "\0"])
def test_a_manifest_cannot_name_files_elsewhere(tmp_path, name):
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "secret").write_text("x")
    write_json(folder / MANIFEST, {"sha256": {name: "0" * 64}})
    with pytest.raises(CheckpointError, match="missing"):
        verify_manifest(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b'{"sha256": []}',
        b'{"sha256": null}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"sha256": {"a.bin": null, "b.txt": 3}}',
    ],
)
def test_a_damaged_manifest_is_a_checkpoint_error(folder, content):
    (folder / MANIFEST).write_bytes(content)
    with pytest.raises(CheckpointError):
        verify_manifest(folder)


def test_a_missing_manifest_is_a_checkpoint_error(folder):
    (folder / MANIFEST).unlink()
    with pytest.raises(CheckpointError, match=r"manifest\.json: unreadable"):
        verify_manifest(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", [MANIFEST, "a.bin"])
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(CheckpointError, match=name):
        verify_manifest(folder)


def test_a_folder_appears_whole_and_leaves_nothing_beside_it(tmp_path, monkeypatch):
    write_folder(tmp_path / "a" / "new", {"x": b"1", "y": b"2"})
    assert sorted(os.listdir(tmp_path / "a" / "new")) == ["x", "y"]
    assert os.listdir(tmp_path / "a") == ["new"]

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_folder(tmp_path / "a" / "other", {"x": b"1"})
    with pytest.raises(OSError, match="No space left"):
        write_folder(tmp_path / "a" / "new", {"x": b"3"})
    assert os.listdir(tmp_path / "a") == ["new"]
    assert (tmp_path / "a" / "new" / "x").read_bytes() == b"1"


def test_what_killed_writes_have_left_is_removed_and_nothing_else(tmp_path):
    left = temporary_beside(tmp_path / "x.json")
    left.write_text("half")
    folder = temporary_beside(tmp_path / "epoch-0001")
    folder.mkdir()
    (folder / "file").write_text("x")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".link.0123abcd").symlink_to(tmp_path / "elsewhere")
    for name in (".mine", "x.json", ".x.json.swp", "a.0123abcd"):
        (tmp_path / name).write_text("x")
    remove_temporaries(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [
        ".mine",
        ".x.json.swp",
        "a.0123abcd",
        "elsewhere",
        "x.json",
    ]


def test_below_a_file_there_is_no_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        make_folder(tmp_path / "file" / "x")
