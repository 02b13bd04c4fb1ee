"""What a worker answers to a supervisor over HTTP: `/metrics` and `/health`."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from reef.errors import InvalidInputError

if TYPE_CHECKING:
    from reef.database import Database
    from reef.jobs import WorkerHealth

_LOOPBACK = "127.0.0.1"
_PORT_MAX = 65535
_SECONDS_MAX = 10.0
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


@contextmanager
def served(address: str | None, db: Database, health: WorkerHealth) -> Iterator[str | None]:
    """Answer at `address`, if there is one, in threads of their own; yield its URL.

    Raises InvalidInputError for an address that is none, or is taken.
    """
    if address is None:
        yield None
        return
    host, port = _host_and_port(address)
    try:
        server = _Server((host, port), _handler(lambda: db.metrics.text(), health))
    except OSError as error:
        raise InvalidInputError(
            f"--metrics {address!r} cannot be listened at: {error.strerror or error}; "
            "give another HOST:PORT"
        ) from error
    thread = db.context().threads.start(server.serve_forever, name="reef-metrics")
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _host_and_port(address: str) -> tuple[str, int]:
    """Return the two; without a host, only this machine is answered."""
    try:
        parts = urlsplit(f"//{address}" if ":" in address else f"//:{address}")
        host, port = parts.hostname or _LOOPBACK, parts.port
        is_plain = not (parts.path or parts.query or parts.fragment or parts.username)
    except ValueError:
        port, is_plain = None, False
    if port is None or not is_plain:
        raise InvalidInputError(
            f"--metrics is {address!r}; expected HOST:PORT with a port from 0 to {_PORT_MAX}, such "
            f"as {_LOOPBACK}:9464"
        )
    return host, port


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, where: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        if ":" in where[0]:
            self.address_family = socket.AF_INET6
        super().__init__(where, handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that has gone away."""


def _handler(metrics: Callable[[], str], health: WorkerHealth) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _SECONDS_MAX
        server_version = "reef"
        sys_version = ""

        def do_GET(self) -> None:
            match self.path.partition("?")[0]:
                case "/metrics":
                    self._answer(HTTPStatus.OK, metrics(), _PROMETHEUS)
                case "/health":
                    problem = health.problem
                    code = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
                    self._answer(code, f"{problem or 'ok'}\n")
                case _:
                    self._answer(HTTPStatus.NOT_FOUND, "there are /metrics and /health\n")

        def _answer(
            self, code: HTTPStatus, text: str, kind: str = "text/plain; charset=utf-8"
        ) -> None:
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log no request."""

    return Handler
