"""Promise 12: pages answer on 127.0.0.1 only, need the token, check the Host, cap uploads."""

import os
import socket
import time
from contextlib import suppress
from random import Random

import pytest

from pdecnn.explorer import server as module
from pdecnn.explorer.answers import MAX_UPLOAD_BYTES, Explorer
from tests.explorers import make_subject, origin, png, request, serving, serving_subject

PATHS = ("", "describe", "explorer.js", "sample?sample=0", "frame", "nowhere")


@pytest.fixture(scope="module")
def server():
    with serving_subject() as server:
        yield server


def raw(server, text, *, patience=30.0, close=False):
    """What the server answers to these bytes."""
    with socket.create_connection(("127.0.0.1", server.server_port), patience) as connection:
        connection.sendall(text if isinstance(text, bytes) else text.encode())
        if close:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer


def head(server, path="upload", method="POST", *lines):
    common = (f"Host: 127.0.0.1:{server.server_port}", f"Origin: {origin(server)}")
    return "\r\n".join([f"{method} /{server.token}/{path} HTTP/1.1", *common, *lines, "", ""])


def status(answer):
    return int(answer.split()[1])


def test_promise_12_only_this_machine_can_connect(server):
    assert server.server_address[0] == "127.0.0.1"
    assert server.socket.getsockname() == ("127.0.0.1", server.server_port)
    # Of all that Linux says is listening on the port, nothing has another address.
    if os.path.exists("/proc/net/tcp"):
        port = f"{server.server_port:04X}"
        with open("/proc/net/tcp") as table:
            listening = [row.split() for row in table if f":{port} 00000000:0000 0A" in row]
        assert [row[1] for row in listening] == [f"0100007F:{port}"]
        # Linux owns all of 127/8, but the server none of it but 127.0.0.1.
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.2", server.server_port), 5)


@pytest.mark.parametrize("path", PATHS)
def test_promise_12_nothing_is_answered_without_the_token(server, path):
    wrong = server.token[:-1] + ("A" if server.token[-1] != "A" else "B")
    for token in ("", "x", wrong, server.token + "x", server.token.swapcase(), "%00", "é"):
        found = raw(
            server,
            f"GET /{token}/{path} HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n",
        )
        assert status(found) == 403, token
        assert server.token.encode() not in found
    assert request(server, path.partition("?")[0], token="x", method="POST", body=b"").status == 403


def test_promise_12_the_root_and_the_bare_token_are_no_pages(server):
    place = f"Host: 127.0.0.1:{server.server_port}\r\n\r\n"
    assert status(raw(server, f"GET / HTTP/1.1\r\n{place}")) == 403
    found = raw(server, f"GET /{server.token} HTTP/1.1\r\n{place}")
    assert status(found) == 404
    assert b"Location" not in found  # nothing redirects anywhere


def test_promise_12_tokens_are_long_and_differ():
    explorer = Explorer(make_subject())
    with serving(explorer) as one, serving(explorer) as other:
        assert one.token != other.token
        assert len(one.token) >= 43  # 256 bits


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "0.0.0.0:{port}"]
)
def test_promise_12_another_host_name_is_refused(server, host):
    """DNS rebinding: the browser is on our port, but thinks it is on another page's."""
    headers = {"Host": host.format(port=server.server_port)}
    assert request(server, headers=headers).status == 421
    assert request(server, "describe", headers=headers).status == 421
    refused = request(server, "upload", method="POST", body=png(), headers=headers)
    assert refused.status == 421


def test_promise_12_no_host_and_two_hosts_are_refused(server):
    port = server.server_port
    start = f"GET /{server.token}/ HTTP/1.1\r\n"
    assert status(raw(server, f"{start}\r\n")) == 421
    twice = f"Host: 127.0.0.1:{port}\r\nHost: evil.example\r\n\r\n"
    assert status(raw(server, start + twice)) == 421
    assert request(server, headers={"Host": f"localhost:{port}"}).status == 200


@pytest.mark.parametrize("other", ["http://evil.example", "null", "http://127.0.0.1:1", ""])
def test_promise_12_a_post_from_another_page_is_refused(server, other):
    found = request(server, "upload", method="POST", body=png(), headers={"Origin": other})
    assert found.status == 403
    own = request(server, "upload", method="POST", body=png(), headers={"Origin": origin(server)})
    assert own.status == 200


def test_promise_12_a_post_without_an_origin_is_refused(server):
    text = head(server, "upload", "POST", "Content-Length: 0")
    assert status(raw(server, text.replace("Origin", "X-Origin"))) == 403


def test_promise_12_uploads_are_capped_before_they_are_read(server):
    """Nothing of the body is sent, and the answer comes all the same."""
    for length in (MAX_UPLOAD_BYTES + 1, 10**30):
        answer = raw(server, head(server, "upload", "POST", f"Content-Length: {length}"))
        assert status(answer) == 413
        assert b"larger than 16 MiB" in answer


def test_promise_12_uploads_must_say_their_length(server):
    assert status(raw(server, head(server))) == 411
    assert status(raw(server, head(server, "upload", "POST", "Transfer-Encoding: chunked"))) == 411
    for length in ("-1", "1e3", "x", "٣", "0x10"):
        text = head(server, "upload", "POST", f"Content-Length: {length}")
        assert status(raw(server, text)) == 400


def test_promise_12_an_upload_that_ends_early_is_refused(server):
    text = head(server, "upload", "POST", "Content-Length: 1000") + "short"
    assert status(raw(server, text, close=True)) == 400


def test_promise_12_garbage_is_survived_in_silence(server, capfd):
    random = Random(0)
    texts = [
        *(random.randbytes(random.randrange(1, 300)) + b"\r\n\r\n" for _ in range(40)),
        b"GET /\r\n\r\n",
        b"GET " + b"/" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n",
        head(server, "frame?" + "&" * 1000, "GET").encode(),
        head(server, "sample?sample=%FF%00&amount=1e999", "GET").encode(),
        head(server, "[", "GET").encode(),
        f"GET http://[ HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode(),
    ]
    for text in texts:
        with suppress(ConnectionError):
            raw(server, text, close=True)
    assert request(server, "describe").status == 200
    assert capfd.readouterr().err == ""


def send_for_an_hour(connection):
    for _ in range(50_000):
        connection.sendall(b"a")
        time.sleep(0.05)


def test_promise_12_slow_clients_are_dropped(monkeypatch):
    """However busily they send: bytes come all the time, but the request never ends."""
    monkeypatch.setattr(module, "SECONDS_TO_ASK", 0.4)
    with serving_subject() as server:
        for text in ("GET /", head(server, "upload", "POST", "Content-Length: 100000")):
            with socket.create_connection(("127.0.0.1", server.server_port), 100) as connection:
                connection.sendall(text.encode())
                with pytest.raises(ConnectionError):
                    send_for_an_hour(connection)
        assert request(server, "describe").status == 200


def test_promise_12_slow_clients_keep_nobody_waiting(monkeypatch):
    monkeypatch.setattr(module, "SECONDS_TO_ASK", 1e4)
    monkeypatch.setattr(module._Handler, "timeout", 1e4)
    with serving_subject() as server:
        stuck = [socket.create_connection(("127.0.0.1", server.server_port), 100) for _ in range(8)]
        try:
            for connection in stuck:
                connection.sendall(b"GET /")
            assert request(server).status == 200  # while all of them are being waited for
        finally:
            for connection in stuck:
                connection.close()


@pytest.mark.parametrize(
    "path",
    [
        "../../etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "/etc/passwd",
        "page/index.html",
        "../server.py",
        "explorer.js/../../server.py",
        "explorer.js%00",
        "file=/etc/passwd",
        "?file=/etc/passwd",
        "index.html",
        "//evil.example/",
    ],
)
def test_promise_12_no_path_names_a_file(server, path):
    found = raw(server, head(server, path, "GET"))
    if path.startswith("?"):  # a question the page does not know is no question
        assert found.endswith(request(server).content)
        return
    assert status(found) == 404
    assert b"root:" not in found
    assert b"import" not in found


def test_promise_12_every_answer_is_kept_from_other_pages(server):
    answers = [
        request(server),
        request(server, "describe"),
        request(server, "nowhere"),
        request(server, token="x"),
        request(server, headers={"Host": "evil.example"}),
        request(server, "upload", method="POST", body=b"no image"),
        request(server, method="DELETE"),
    ]
    for answer in answers:
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in answer.headers
        assert "Python" not in answer.headers["Server"]
