"""A web server for one person on one machine: 127.0.0.1, a secret in the address, no files.

Whoever can open a page in the same browser may try to reach it, so nothing is answered without the
token, under another host name (DNS rebinding), or to a POST from another page. Only the paths
in `_PAGE`, `GET` and `POST` exist; no request names a file.
"""

import hmac
import json
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs

from pdecnn.errors import ConfigError, DataError, DivergedError, system_errors_as
from pdecnn.explorer.answers import GET, MAX_UPLOAD_BYTES, POST, Explorer, Query

HOST = "127.0.0.1"
SECONDS_TO_ASK = 15.0
"""A request that is not complete by then is dropped, however busily it is being sent."""
_PAGE = {
    "": ("index.html", "text/html; charset=utf-8"),
    "explorer.css": ("explorer.css", "text/css; charset=utf-8"),
    "explorer.js": ("explorer.js", "text/javascript; charset=utf-8"),
    "pictures.js": ("pictures.js", "text/javascript; charset=utf-8"),
    "charts.js": ("charts.js", "text/javascript; charset=utf-8"),
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class ExplorerServer(ThreadingHTTPServer):
    """Serves the page of some explorers; connections have threads, computations one for all."""

    daemon_threads = True

    def __init__(self, explorers: Sequence[Explorer], port: int = 0) -> None:
        if port != 0 and not 1024 <= port <= 65535:
            raise ConfigError(f"--port must be 0 (any free one) or 1024 to 65535, found {port}")
        self.explorers = explorers
        self.token = secrets.token_urlsafe(32)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="explorer")
        with system_errors_as(
            ConfigError, f"port {port} cannot be used", "choose another --port, or 0"
        ):
            super().__init__((HOST, port), _Handler)

    def server_bind(self) -> None:
        """Bind without asking a name server what this machine is called."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, int(self.server_address[1])

    @property
    def url(self) -> str:
        """The address of the page, token included."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names under which a browser may ask."""
        return f"{HOST}:{self.server_port}", f"localhost:{self.server_port}"

    def compute(self, question: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The answer, computed in the one thread that computes."""
        return self._worker.submit(question).result()

    def server_close(self) -> None:
        """Stop listening and drop what waits to be computed."""
        super().server_close()
        self._worker.shutdown(wait=False, cancel_futures=True)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say in a line what went wrong; that a browser has gone away is nothing wrong."""
        del request, client_address
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            self.report(error)

    @staticmethod
    def report(error: BaseException | None) -> None:
        """A line on stderr for what should not happen."""
        print(f"pdecnn: unexpected {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def serve(
    explorers: Sequence[Explorer], *, port: int, browser: bool, say: Callable[[str], None]
) -> None:
    """Serve the page until a signal comes; open it in the browser if asked."""
    with ExplorerServer(explorers, port) as server:
        names = " and ".join(explorer.subject.name for explorer in explorers)
        say(f"exploring {names} at {server.url} (Ctrl-C ends it)")
        if browser:
            # In a thread, since a browser in the terminal would wait for the page first.
            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        server.serve_forever()


class _Refused(Exception):
    """A request that is answered by a status and a message."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    """One request: HTTP/1.0, so that each has a connection and a deadline of its own."""

    server: ExplorerServer
    server_version, sys_version = "pdecnn", ""
    timeout = SECONDS_TO_ASK

    def setup(self) -> None:
        """Open the connection, with a deadline for asking."""
        super().setup()
        self._deadline = threading.Timer(SECONDS_TO_ASK, self._stop_reading)
        self._deadline.daemon = True
        self._deadline.start()

    def finish(self) -> None:
        """Close the connection."""
        self._deadline.cancel()
        super().finish()

    def _stop_reading(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RD)

    def do_GET(self) -> None:
        """The page, or the answer to a question."""
        self._respond(self._get)

    def do_POST(self) -> None:
        """What is dropped on the page."""
        self._respond(self._post)

    def _respond(self, respond: Callable[[str, Query], None]) -> None:
        try:
            self._check_host()
            path, _, query = self.path.partition("?")
            respond(self._checked_path(path), _query(query))
        except _Refused as refused:
            self.send_error(refused.status, str(refused))

    def _get(self, path: str, query: Query) -> None:
        self._deadline.cancel()
        if path in _PAGE:
            name, kind = _PAGE[path]
            self._send(HTTPStatus.OK, kind, page_file(name))
        elif path in GET:
            self._answer(lambda: GET[path](self.server.explorers, query))
        else:
            raise _no_such(path in POST)

    def _post(self, path: str, query: Query) -> None:
        del query
        origins = [f"http://{host}" for host in self.server.hosts]
        if self.headers.get("Origin") not in origins:
            raise _Refused(HTTPStatus.FORBIDDEN, "asked by another page")
        if path not in POST:
            raise _no_such(path in _PAGE or path in GET)
        content = self._body()
        self._answer(lambda: POST[path](self.server.explorers, content))

    def _check_host(self) -> None:
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0].lower() not in self.server.hosts:
            raise _Refused(HTTPStatus.MISDIRECTED_REQUEST, f"this is {HOST} and nothing else")

    def _checked_path(self, path: str) -> str:
        """What follows the token."""
        token, slash, rest = path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            raise _Refused(
                HTTPStatus.FORBIDDEN, "open the whole address that `pdecnn explore` printed"
            )
        if not slash:
            raise _no_such(False)
        return rest

    def _body(self) -> bytes:
        text = self.headers.get("Content-Length")
        if text is None or "Transfer-Encoding" in self.headers:
            raise _Refused(HTTPStatus.LENGTH_REQUIRED, "say how long the file is")
        if not (text.isascii() and text.isdecimal()):
            raise _Refused(HTTPStatus.BAD_REQUEST, "the length is no number")
        if len(text) > 18 or int(text) > MAX_UPLOAD_BYTES:
            raise _Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the file is larger than {MAX_UPLOAD_BYTES // 2**20} MiB; reduce it first",
            )
        content = self.rfile.read(int(text))
        self._deadline.cancel()
        if len(content) < int(text):
            raise _Refused(HTTPStatus.BAD_REQUEST, "the file did not arrive whole; send it again")
        return content

    def _answer(self, question: Callable[[], dict[str, Any]]) -> None:
        try:
            answer = self.server.compute(question)
        except (ConfigError, DataError, DivergedError) as error:
            raise _Refused(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
        except Exception as error:
            self.server.report(error)
            raise _Refused(
                HTTPStatus.INTERNAL_SERVER_ERROR, "an unexpected error; see the terminal"
            ) from error
        self._send_json(HTTPStatus.OK, answer)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """A refusal as JSON, also of what could not be understood."""
        del explain
        status = HTTPStatus(code)
        self._send_json(status, {"error": message or status.phrase})

    def _send_json(self, status: HTTPStatus, value: dict[str, Any]) -> None:
        content = json.dumps(value, allow_nan=False).encode()
        self._send(status, "application/json", content)

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the addresses hold the token."""
        del format, args


def _no_such(exists_otherwise: bool) -> _Refused:
    if exists_otherwise:
        return _Refused(HTTPStatus.METHOD_NOT_ALLOWED, "not in this way")
    return _Refused(HTTPStatus.NOT_FOUND, "there is no such page")


def _query(text: str) -> Query:
    try:
        return {
            name: values[-1]
            for name, values in parse_qs(text, keep_blank_values=True, max_num_fields=8).items()
        }
    except ValueError as error:
        raise _Refused(HTTPStatus.BAD_REQUEST, "too many fields") from error


def page_file(name: str) -> bytes:
    """A file of the page."""
    return (resources.files("pdecnn.explorer") / "page" / name).read_bytes()
