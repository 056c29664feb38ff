"""The server hands questions to the explorer and answers to the page."""

import json
import re
import socket

import pytest

from pdecnn.errors import ConfigError, DivergedError
from pdecnn.explorer import server as module
from pdecnn.explorer.answers import Explorer, describe
from pdecnn.explorer.server import ExplorerServer, serve
from tests.explorers import make_subject, png, request, serving, serving_subject


@pytest.fixture(scope="module")
def server():
    with serving_subject() as server:
        yield server


def test_the_page_and_its_parts(server):
    page = request(server)
    assert page.status == 200
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    named = set(re.findall(rb'(?:src|href)="([^"]+)"', page.content)) - {b"data:,"}
    assert named == {b"explorer.css", b"explorer.js"}
    for name in ("explorer.css", "explorer.js", "charts.js", "pictures.js"):
        part = request(server, name)
        assert part.status == 200
        assert len(part.content) > 1000
        assert b"http://" not in part.content.replace(b"http://www.w3.org/2000/svg", b"")
        assert b"https://" not in part.content


def test_answers_are_those_of_the_explorer(server):
    explorer = Explorer(make_subject())
    plain = json.loads(json.dumps(describe([explorer])))
    assert request(server, "describe").json == plain
    assert request(server, "sample", sample=2).json == explorer.sample("2")
    assert request(server, "noise", sample=2, amount=0.1).json == explorer.noise("2", 0.1)
    asked = {"sample": 2, "block": 1, "step": 3, "view": "difference", "amount": 0.1}
    wanted = explorer.frame("2", 1, 3, view="difference", amount=0.1)
    assert request(server, "frame", **asked).json == wanted
    assert request(server, "reverse", sample=2, block=0, step=1).json == explorer.reverse("2", 0, 1)


def test_an_upload_can_be_asked_for(server):
    uploaded = request(server, "upload", method="POST", body=png())
    assert uploaded.status == 200
    found = request(server, "sample", sample=uploaded.json["sample"])
    assert found.status == 200
    assert found.json["label"] is None


@pytest.mark.parametrize(
    ("path", "query", "message"),
    [
        ("sample", {}, "sample is missing"),
        ("sample", {"sample": ""}, "there is no sample ''"),
        ("sample", {"sample": "../../etc/passwd"}, "there is no sample '../../etc/passwd'"),
        ("frame", {"sample": 0, "block": 0}, "step is missing"),
        ("frame", {"sample": 0, "block": "x", "step": 0}, "block must be a whole number"),
        ("noise", {"sample": 0, "amount": "much"}, "amount must be a number"),
        ("noise", {"sample": 0, "amount": "nan"}, "noise must be in 0 to 2"),
        ("reverse", {"sample": 0, "block": 99, "step": 0}, "found 99"),
        ("sample", {"sample": 0, "network": 1}, "there are the networks 0 to 0, found 1"),
    ],
)
def test_wrong_questions_get_a_message(server, path, query, message):
    found = request(server, path, **query)
    assert found.status == 422
    assert message in found.json["error"]


def test_a_bad_upload_gets_a_message(server):
    for body in (b"", b"GIF89a", b"\x89PNG\r\n\x1a\n broken"):
        found = request(server, "upload", method="POST", body=body)
        assert found.status == 422
        assert found.json["error"].startswith("the file: ")


def test_too_many_fields_and_other_methods_are_refused(server):
    assert request(server, "sample", **{f"a{k}": k for k in range(20)}).status == 400
    assert request(server, "upload").status == 405
    assert request(server, "describe", method="POST", body=b"").status == 405
    assert request(server, "describe", method="DELETE").status == 501


def test_an_unexpected_error_is_a_line_in_the_terminal_and_no_traceback(monkeypatch, capfd):
    explorer = Explorer(make_subject())
    with serving(explorer) as server:

        def fail():
            raise RuntimeError("out of order")

        monkeypatch.setattr(explorer, "describe", fail)
        found = request(server, "describe")
        assert (found.status, found.json) == (
            500,
            {"error": "an unexpected error; see the terminal"},
        )
        assert capfd.readouterr().err == "pdecnn: unexpected RuntimeError: out of order\n"

        def diverge():
            raise DivergedError("left its range")

        monkeypatch.setattr(explorer, "describe", diverge)
        assert request(server, "describe").json == {"error": "left its range"}
        assert capfd.readouterr().err == ""


def test_a_browser_that_goes_away_leaves_no_traceback(server, capfd):
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", server.server_port)) as connection:
            connection.sendall(
                f"GET /{server.token}/describe HTTP/1.1\r\n"
                f"Host: 127.0.0.1:{server.server_port}\r\n\r\n".encode()
            )
            linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # a reset instead of a goodbye
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    assert request(server, "describe").status == 200
    assert capfd.readouterr().err == ""


def test_a_port_can_be_chosen_unless_it_is_taken():
    explorer = Explorer(make_subject())
    with ExplorerServer([explorer]) as first:
        with pytest.raises(ConfigError, match=rf"port {first.server_port} cannot be used"):
            ExplorerServer([explorer], first.server_port)
        port = first.server_port
    with ExplorerServer([explorer], port) as second:
        assert second.server_port == port
        assert second.token != first.token
    for wrong in (-1, 80, 65536):
        with pytest.raises(ConfigError, match=r"--port must be 0 .* or 1024 to 65535"):
            ExplorerServer([explorer], wrong)


def test_the_browser_is_opened_where_it_is_asked_for(monkeypatch):
    opened, said = [], []
    monkeypatch.setattr(module.webbrowser, "open", opened.append)
    monkeypatch.setattr(module.threading, "Thread", AtOnce)
    monkeypatch.setattr(ExplorerServer, "serve_forever", lambda server: None)
    explorer = Explorer(make_subject())
    serve([explorer], port=0, browser=False, say=said.append)
    assert opened == []
    serve([explorer], port=0, browser=True, say=said.append)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{43}/", opened[0])
    assert said[1] == f"exploring hamiltonian at {opened[0]} (Ctrl-C ends it)"


class AtOnce:
    """A thread that has run before anybody looks."""

    def __init__(self, target, args, daemon):
        assert daemon
        self.start = lambda: target(*args)
