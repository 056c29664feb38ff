"""Promise 15, against an HTTP server on this machine: whole, as published, or not there."""

import hashlib
import json
import resource
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pdecnn.data import registry
from pdecnn.data.download import download, verify
from pdecnn.data.published import CIFAR10, CIFAR10_PYTHON
from pdecnn.data.registry import read_dataset
from pdecnn.errors import ConfigError, DataError
from tests.published_data import write_archive, write_version
from tests.runs import call
from tests.umask import mode, user_mask


@pytest.fixture
def server():
    """Serves `server.content` in the manner of `server.manner`, and counts the requests."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.num_requests += 1
            content, manner = self.server.content, self.server.manner
            self.send_response(404 if manner == "missing" else 200)
            if manner == "encoded":
                self.send_header("Content-Encoding", "x-gzip")
            if manner != "endless":
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if manner == "cut" else content)
            if manner == "endless":
                self.wfile.write(content)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.num_requests, server.manner = 0, "whole"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def published(server, tmp_path, monkeypatch):
    """A small CIFAR-10 that the server publishes."""
    path = write_archive(tmp_path / "published.tar.gz", CIFAR10)
    server.content = path.read_bytes()
    small = replace(
        CIFAR10,
        url=f"http://127.0.0.1:{server.server_address[1]}/{CIFAR10.archive}",
        sha256=hashlib.sha256(server.content).hexdigest(),
        num_bytes=len(server.content),
        num_train=100,
        num_test=20,
    )
    monkeypatch.setitem(registry.PUBLISHED, "cifar10", (small, CIFAR10_PYTHON))
    return small


def test_an_archive_is_fetched_once_and_read(server, published, tmp_path):
    seen = []
    path = download("cifar10", tmp_path / "new", progress=lambda *pair: seen.append(pair))
    assert path == tmp_path / "new" / CIFAR10.archive
    assert path.read_bytes() == server.content
    assert seen[-1] == (len(server.content), len(server.content))
    assert len(read_dataset("cifar10", path.parent).train) == 100
    assert download("cifar10", tmp_path / "new") == path
    assert server.num_requests == 1
    path.write_bytes(b"damaged")
    assert download("cifar10", tmp_path / "new").read_bytes() == server.content
    assert server.num_requests == 2


@pytest.mark.usefixtures("published")
def test_who_may_read_an_archive_is_for_the_umask_to_say(tmp_path):
    for umask in (0o077, 0o022):
        with user_mask(umask):
            assert mode(download("cifar10", tmp_path / str(umask))) == 0o666 & ~umask


def test_another_address_serves_the_same_bytes(server, published, tmp_path, monkeypatch):
    mirror = published.url
    elsewhere = replace(published, url=f"http://127.0.0.1:9/{CIFAR10.archive}")
    monkeypatch.setitem(registry.PUBLISHED, "cifar10", (elsewhere,))
    assert download("cifar10", tmp_path / "new", url=mirror).read_bytes() == server.content
    with pytest.raises(DataError, match="could not be fetched"):
        download("cifar10", tmp_path / "other")


def test_a_server_that_calls_the_archive_an_encoding_does_not_matter(server, published, tmp_path):
    server.manner = "encoded"
    assert download("cifar10", tmp_path / "new").read_bytes() == server.content


@pytest.mark.parametrize("manner", ["wrong", "cut", "missing", "endless"])
@pytest.mark.parametrize("is_there", [False, True])
def test_whatever_goes_wrong_leaves_nothing_half_written(
    manner, is_there, server, published, tmp_path
):
    folder = tmp_path / "new"
    if is_there:
        folder.mkdir()
        (folder / CIFAR10.archive).write_bytes(b"an older file")
    if manner == "wrong":
        server.content = server.content[:-1] + b"x"
    server.manner = manner
    with pytest.raises(DataError) as caught:
        download("cifar10", folder)
    assert "\n" not in str(caught.value)
    assert published.url in str(caught.value)
    found = sorted(path.name for path in folder.iterdir())
    assert found == ([CIFAR10.archive] if is_there else [])
    if is_there:
        assert (folder / CIFAR10.archive).read_bytes() == b"an older file"


def test_a_full_disk_leaves_nothing(published, tmp_path):
    """The limit on the size of a file stands for the full disk: writing fails halfway."""
    kind = resource.RLIMIT_FSIZE
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (published.num_bytes // 2, before[1]))
    try:
        with pytest.raises(DataError, match="File too large"):
            download("cifar10", tmp_path / "new")
    finally:
        resource.setrlimit(kind, before)
    assert list((tmp_path / "new").iterdir()) == []


def test_without_pooch_it_is_said(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ConfigError, match="pip install pooch"):
        download("cifar10", tmp_path)


def test_an_unknown_name_is_named(tmp_path):
    for function in (download, verify):
        with pytest.raises(ConfigError, match="did you mean 'cifar10'"):
            function("cifar-10", tmp_path)
    with pytest.raises(ConfigError, match="unknown published data set 'digits'"):
        download("digits", tmp_path)


def test_verify_compares_the_archive_with_its_hash(published, server, tmp_path):
    path = download("cifar10", tmp_path / "new")
    assert "binary version of CIFAR-10, as published" in verify("cifar10", tmp_path / "new")
    content = bytearray(path.read_bytes())
    content[4] ^= 1  # a time in the header, which no reader would notice
    path.write_bytes(content)
    read_dataset("cifar10", path)
    with pytest.raises(DataError, match="none that is published for CIFAR-10; delete it"):
        verify("cifar10", path)


def test_verify_says_that_an_archive_cannot_be_read(published, tmp_path):
    (tmp_path / CIFAR10.archive).mkdir()
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory\)"):
        verify("cifar10", tmp_path)


def test_verify_counts_what_is_unpacked(published, tmp_path):
    folder = write_version(tmp_path, CIFAR10)
    assert "100 training and 20 test images of CIFAR-10, complete" in verify("cifar10", tmp_path)
    content = (folder / "data_batch_1.bin").read_bytes()
    (folder / "data_batch_1.bin").write_bytes(content[:-3073])
    with pytest.raises(DataError, match="99 training and 20 test images instead of 100 and 20"):
        verify("cifar10", tmp_path)


def test_from_the_command_line(published, server, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = call(capsys, monkeypatch, "data", "list")
    assert done.stdout.splitlines()[2].split()[:2] == ["cifar10", "CIFAR-10"]
    values = json.loads(call(capsys, monkeypatch, "data", "list", "--json").stdout)
    assert values["cifar10"]["sha256"] == published.sha256
    for quiet in ([], ["--quiet"]):
        done = call(capsys, monkeypatch, "data", "download", "cifar10", *quiet)
        assert (done.code, done.stdout, done.stderr) == (0, f"data/{CIFAR10.archive}\n", "")
    done = call(capsys, monkeypatch, "data", "verify", "cifar10")
    assert done.code == 0
    assert done.stdout.endswith("as published\n")
    server.manner = "cut"
    done = call(capsys, monkeypatch, "data", "download", "cifar10", "--output", "other")
    assert done.code == 3
    assert len(done.stderr.splitlines()) == 1
    assert call(capsys, monkeypatch, "data", "verify", "cifar10", "--data", "other").code == 3
    assert call(capsys, monkeypatch, "data", "download", "mnist").code == 2
