"""A loopback HTTP proxy that makes a good object store behave badly, one request at a time.

It stands in front of a server on 127.0.0.1, keeps connections open and passes requests and answers
through as they come, with the Host that the client signed. On request it strips the headers of
conditional writes, so that the store behaves like one without them, and commits faults.

Clients sign the headers that are stripped, and the server would refuse what no longer matches its
signature. So the proxy, which knows the key, signs such a request again; what the client declared
of its body (`x-amz-content-sha256`) is kept, and the body still passes through unread. The one form
that cannot be signed again is a body signed chunk by chunk, which neither obstore nor boto3 sends.
"""

from __future__ import annotations

import contextlib
import enum
import http.client
import io
import select
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.support.servers.object_stores import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY, s3_url
from tests.support.servers.process import LOOPBACK
from tests.support.waiting import DEADLINE_SECONDS

CONDITIONS = frozenset({"if-none-match", "if-match"})
WRITES = frozenset({"PUT", "POST", "DELETE"})
HOP_BY_HOP = frozenset({"connection", "keep-alive", "expect", "te", "upgrade", "transfer-encoding"})
PIECE_BYTES = 1 << 16


class Fault(enum.Enum):
    """What can happen to a request."""

    REPLY_LOST = "the server does it, and the connection closes without an answer"
    ERROR_AFTER = "the server does it, and the answer is 500"
    ERROR_BEFORE = "the server never sees it, and the answer is 500"
    CONFLICT_BEFORE = "the server never sees it, and the answer is 409"
    STALL_BEFORE = "it reaches the server when released, even if the client has given up"
    STALL_AFTER = "the server does it, and the answer comes when released"


class Exchange(NamedTuple):
    """A request that came, and what became of it."""

    method: str
    target: str
    status: int | None
    """What the client was answered; None if it was not."""
    fault: Fault | None


class Rule:
    """A fault that waits for its requests: those of `method` whose target contains `part`."""

    def __init__(self, fault: Fault, method: str, part: str, times: int) -> None:
        self.fault = fault
        self.method = method
        self.part = part
        self.left = times
        self._met = threading.Event()
        self._released = threading.Event()

    def wait_until_met(self) -> None:
        """Return when a request has met this rule (a stalled one is then waiting)."""
        assert self._met.wait(DEADLINE_SECONDS), f"no {self.method} of {self.part!r} came"

    def release(self) -> None:
        """Let stalled requests go on."""
        self._released.set()

    def takes(self, method: str, target: str) -> bool:
        return self.left > 0 and method == self.method and self.part in target

    def stall(self) -> None:
        self._met.set()
        self._released.wait(DEADLINE_SECONDS)

    def met(self) -> None:
        self._met.set()


class Proxy:
    """A proxy in front of `endpoint`; use it as a context manager.

    `strip` names headers to take off writes. `exchanges` is what happened so far.
    """

    def __init__(self, endpoint: str, *, strip: Iterable[str] = ()) -> None:
        upstream = urlsplit(endpoint)
        assert upstream.hostname == LOOPBACK, endpoint
        assert upstream.port is not None, endpoint
        self.upstream_port = upstream.port
        self.path = upstream.path
        self.strip = frozenset(name.lower() for name in strip)
        self.exchanges: list[Exchange] = []
        self._rules: list[Rule] = []
        self._lock = threading.Lock()

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def endpoint(self) -> str:
        """Where clients connect to."""
        return f"http://{LOOPBACK}:{self.port}{self.path}"

    def url(self, bucket: str, prefix: str = "") -> str:
        """Return the URL under which Reef finds an S3 server's `bucket` through this proxy."""
        return s3_url(self.endpoint, bucket, prefix)

    def inject(self, fault: Fault, method: str = "PUT", part: str = "", times: int = 1) -> Rule:
        """Let `fault` befall the next `times` requests of `method` whose target contains `part`."""
        rule = Rule(fault, method, part, times)
        with self._lock:
            self._rules.append(rule)
        return rule

    def clear(self) -> None:
        """Forget the faults, let stalled requests go on, and forget what happened so far."""
        with self._lock:
            rules, self._rules, self.exchanges = self._rules, [], []
        for rule in rules:
            rule.release()

    def rule_for(self, method: str, target: str) -> Rule | None:
        """Return the first rule that takes this request, used up by one."""
        with self._lock:
            rule = next((rule for rule in self._rules if rule.takes(method, target)), None)
            if rule is not None:
                rule.left -= 1
            return rule

    def start(self) -> Self:
        """Listen on a free port."""
        self._server = _Listener(self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )
        self._thread.start()
        return self

    def stop(self) -> None:
        """Close every connection. Raises what went wrong inside the proxy, if anything did."""
        self.clear()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.hang_up()
        if self._server.bugs:
            raise self._server.bugs[0]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Listener(ThreadingHTTPServer):
    """One thread per connection."""

    request_queue_size = 128
    daemon_threads = True

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.bugs: list[BaseException] = []
        self._clients: set[socket.socket] = set()
        super().__init__((LOOPBACK, 0), _Connection)

    def process_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        self._clients.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        self._clients.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        for client in list(self._clients):
            _cut(client)

    def handle_error(self, request: object, client_address: object) -> None:
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, ConnectionError | TimeoutError):
            self.bugs.append(error)


class _Connection(BaseHTTPRequestHandler):
    """A client's connection, with one of its own to the server."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener
    upstream: http.client.HTTPConnection | None = None
    target: str
    rule: Rule | None
    recorded: bool

    def handle_request(self) -> None:
        self.target = self.requestline.split(" ")[1]  # self.path would be tidied up
        self.rule = self.server.proxy.rule_for(self.command, self.target)
        self.recorded = False
        try:
            if self.rule is None:
                self._relay(self._ask(self._body()))
            else:
                self._spoil(self.rule)
        except (OSError, http.client.HTTPException):  # one of the two went away
            self._hang_up()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_OPTIONS = handle_request

    def finish(self) -> None:
        if self.upstream is not None:
            self.upstream.close()
        super().finish()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: `exchanges` has it."""

    def _spoil(self, rule: Rule) -> None:
        body = list(self._body())  # all of it: from here on the client may go away
        if rule.fault is Fault.STALL_BEFORE:
            rule.stall()
        if rule.fault is Fault.ERROR_BEFORE:
            return self._refuse(500, "InternalError")
        if rule.fault is Fault.CONFLICT_BEFORE:
            return self._refuse(409, "ConditionalRequestConflict")
        answer = self._ask(body)
        if rule.fault is Fault.STALL_AFTER:
            rule.stall()
        if rule.fault in (Fault.STALL_BEFORE, Fault.STALL_AFTER):
            return self._relay(answer)
        answer.read()  # the server has said it: it is done
        if rule.fault is Fault.ERROR_AFTER:
            return self._refuse(500, "InternalError")
        return self._hang_up()

    def _record(self, status: int | None) -> None:
        """Note what the client is about to learn; before it does, so that it finds the note."""
        if not self.recorded:
            self.recorded = True
            fault = self.rule.fault if self.rule else None
            exchange = Exchange(self.command, self.target, status, fault)
            self.server.proxy.exchanges.append(exchange)
            if self.rule is not None:
                self.rule.met()

    def _hang_up(self) -> None:
        self._record(None)
        self.close_connection = True
        _cut(self.connection)

    def _body(self) -> Iterator[bytes]:
        """Yield the request's body as it comes, in the framing it comes in."""
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            yield from _chunked(self.rfile)
        else:
            yield from _pieces(self.rfile, int(self.headers.get("content-length", 0)))

    def _ask(self, body: Iterable[bytes]) -> http.client.HTTPResponse:
        """Send the request on and return the server's answer, not yet read."""
        upstream = self._connected()
        upstream.putrequest(self.command, self.target, skip_host=True, skip_accept_encoding=True)
        for name, value in self._headers():
            upstream.putheader(name, value)
        upstream.endheaders()
        for piece in body:
            try:
                upstream.send(piece)
            except ConnectionError:  # the server may have answered without reading it all
                self.close_connection = True
                break
        return upstream.getresponse()

    def _headers(self) -> list[tuple[str, str]]:
        strip = self.server.proxy.strip if self.command in WRITES else frozenset()
        if strip.isdisjoint(name.lower() for name in self.headers):
            dropped = HOP_BY_HOP - {"transfer-encoding"}
            return [item for item in self.headers.items() if item[0].lower() not in dropped]
        kept = [item for item in self.headers.items() if item[0].lower() not in HOP_BY_HOP | strip]
        if "authorization" in self.headers:
            kept = _signed(self.command, self.target, kept)
        if framing := self.headers.get("transfer-encoding"):
            kept.append(("Transfer-Encoding", framing))
        return kept

    def _connected(self) -> http.client.HTTPConnection:
        """Return a connection to the server that it has not closed meanwhile."""
        old = self.upstream
        if old is not None and old.sock is not None and not select.select([old.sock], [], [], 0)[0]:
            return old
        if old is not None:
            old.close()
        port = self.server.proxy.upstream_port
        self.upstream = http.client.HTTPConnection(LOOPBACK, port, timeout=DEADLINE_SECONDS)
        return self.upstream

    def _relay(self, answer: http.client.HTTPResponse) -> None:
        bodiless = self.command == "HEAD" or answer.status in (204, 304) or answer.status < 200
        sized = answer.getheader("content-length") is not None
        self._record(answer.status)
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        if not (bodiless or sized):
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while not bodiless and (piece := answer.read(PIECE_BYTES)):
            self.wfile.write(piece if sized else b"%x\r\n%b\r\n" % (len(piece), piece))
        if not (bodiless or sized):
            self.wfile.write(b"0\r\n\r\n")
        answer.close()

    def _refuse(self, status: int, code: str) -> None:
        self._record(status)
        body = f"<Error><Code>{code}</Code><Message>injected by a test</Message></Error>".encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Signature(S3SigV4Auth):
    """A signature that takes the body's digest from the client instead of reading the body."""

    def __init__(self, digest: str) -> None:
        super().__init__(Credentials(ACCESS_KEY_ID, SECRET_ACCESS_KEY), "s3", REGION)
        self._digest = digest

    def payload(self, request: AWSRequest) -> str:
        return self._digest


def _signed(method: str, target: str, headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the headers with a signature that fits them."""
    digest = next(
        (v for k, v in headers if k.lower() == "x-amz-content-sha256"), "UNSIGNED-PAYLOAD"
    )
    assert not digest.startswith("STREAMING-AWS4"), "a body signed by chunks cannot be signed again"
    host = next(value for name, value in headers if name.lower() == "host")
    request = AWSRequest(method, f"http://{host}{target}", dict(headers))
    _Signature(digest).add_auth(request)
    return list(request.headers.items())


def _pieces(source: io.BufferedIOBase, count: int) -> Iterator[bytes]:
    """Yield `count` bytes as they come."""
    while count > 0:
        piece = source.read1(min(count, PIECE_BYTES))
        if not piece:
            raise ConnectionResetError("the client went away in the middle of its request")
        count -= len(piece)
        yield piece


def _chunked(source: io.BufferedIOBase) -> Iterator[bytes]:
    """Yield a chunked body with its framing, to the end of its trailer."""
    while True:
        line = source.readline(PIECE_BYTES)
        yield line
        size = int(line.split(b";")[0], 16)
        if size == 0:
            break
        yield from _pieces(source, size + 2)
    while (line := source.readline(PIECE_BYTES)).strip():
        yield line
    yield b"\r\n"


def _cut(connection: socket.socket) -> None:
    """End a connection at once, in both directions."""
    with contextlib.suppress(OSError):  # the other side may be faster
        connection.shutdown(socket.SHUT_RDWR)
