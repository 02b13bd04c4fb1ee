"""What goes wrong before anything works, on real servers: one clear error each, and no secret in it."""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import json
import random
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, urlencode

import pytest

from reef.clock import SystemClock
from reef.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    NotFoundError,
    OutcomeUnknownError,
    ReefError,
    UnavailableError,
    UnsupportedStoreError,
)
from reef.settings import Settings
from reef.store import Store, create, open_store
from tests.support.servers.object_stores import (
    ACCESS_KEY_ID,
    LOOPBACK,
    REGION,
    SECRET_ACCESS_KEY,
    Azurite,
    Moto,
    S3Server,
    SeaweedFS,
)
from tests.support.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.servers

KEY = "wal/1"
WRONG = "wrong/S3CR3T+value=="
WRONG_AZURE = base64.b64encode(b"S3CR3T key of thirty-two bytes..").decode()


def requests_of(store: Store) -> dict[str, Callable[[], object]]:
    return {
        "put_if_absent": lambda: store.put_if_absent(KEY, b"1"),
        "upload": lambda: store.upload(KEY, [b"1"]),
        "get": lambda: store.get(KEY),
        "get_range": lambda: store.get_range(KEY, 0, 1),
        "head": lambda: store.head(KEY),
        "list": lambda: list(store.list()),
        "delete": lambda: store.delete(KEY),
    }


@contextmanager
def one_error(kind: type[ReefError], says: str, *secrets: str) -> Iterator[None]:
    """Check that exactly that kind is raised, that it says so, and that it shows no secret."""
    with pytest.raises(ReefError) as caught:
        yield
    assert type(caught.value) is kind, repr(caught.value)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    for secret in secrets:
        for form in (secret, quote(secret, safe=""), quote(secret)):
            assert form not in shown


def s3_options(server: S3Server, **changed: str) -> str:
    options = {
        "endpoint": server.endpoint,
        "region": REGION,
        "access_key_id": ACCESS_KEY_ID,
        "secret_access_key": SECRET_ACCESS_KEY,
        **changed,
    }
    return urlencode(options, quote_via=quote)


@functools.cache
def closed_port() -> socket.socket:
    """Return a port on which nobody ever listens: it is taken as long as the tests run."""
    port = socket.socket()
    port.bind((LOOPBACK, 0))
    return port


# A missing bucket


@pytest.mark.parametrize("asked", ["put_if_absent", "upload", "get", "get_range", "list", "delete"])
def test_a_missing_bucket_on_s3(moto: Moto, asked: str) -> None:
    store = open_store(moto.url("no-such-bucket"))
    says = "s3://no-such-bucket: there is no such bucket; create it, or fix the URL"
    with one_error(BucketNotFoundError, says, SECRET_ACCESS_KEY):
        requests_of(store)[asked]()


@pytest.mark.parametrize("asked", ["get", "get_range", "list", "delete"])
def test_a_missing_bucket_on_seaweedfs(seaweedfs: SeaweedFS, asked: str) -> None:
    """Not PUTs: there, SeaweedFS makes the bucket."""
    store = open_store(seaweedfs.url("no-such-bucket"))
    with one_error(BucketNotFoundError, "there is no such bucket", SECRET_ACCESS_KEY):
        requests_of(store)[asked]()


@pytest.mark.parametrize("asked", ["put_if_absent", "upload", "get", "get_range", "list"])
def test_a_missing_container_on_azure(azurite: Azurite, asked: str) -> None:
    store = open_store(azurite.url("no-such-container"))
    with one_error(BucketNotFoundError, "there is no such bucket", Azurite.account_key):
        requests_of(store)[asked]()


@pytest.mark.parametrize("server_name", ["seaweedfs", "moto"])
def test_discarding_uploads_in_a_missing_bucket(
    request: pytest.FixtureRequest, server_name: str
) -> None:
    server: S3Server = request.getfixturevalue(server_name)
    store = open_store(server.url("no-such-bucket-2"))
    with one_error(BucketNotFoundError, "there is no such bucket", SECRET_ACCESS_KEY):
        store.sweep(2**53)


def test_creating_in_a_missing_bucket_is_that_error_and_not_unknown(moto: Moto) -> None:
    with one_error(BucketNotFoundError, "there is no such bucket", SECRET_ACCESS_KEY):
        create_in(open_store(moto.url("no-such-bucket")))


# A refused credential


@pytest.mark.parametrize("asked", ["put_if_absent", "upload", "get", "get_range", "head", "list"])
@pytest.mark.parametrize(
    "wrong", [{"secret_access_key": WRONG}, {"access_key_id": "NOBODY"}], ids=["secret", "id"]
)
def test_a_wrong_credential_on_s3(seaweedfs: SeaweedFS, wrong: dict[str, str], asked: str) -> None:
    store = open_store(f"s3://{seaweedfs.shared_bucket}?{s3_options(seaweedfs, **wrong)}")
    with one_error(AccessDeniedError, "check the credentials", WRONG, SECRET_ACCESS_KEY):
        requests_of(store)[asked]()
    assert WRONG not in repr(store) + store.url


@pytest.mark.parametrize("asked", ["put_if_absent", "upload", "get", "list"])
def test_a_malformed_credential_on_s3(seaweedfs: SeaweedFS, asked: str) -> None:
    options = s3_options(seaweedfs, access_key_id="a/b/c")
    store = open_store(f"s3://{seaweedfs.shared_bucket}?{options}")
    with one_error(AccessDeniedError, "check the credentials", SECRET_ACCESS_KEY):
        requests_of(store)[asked]()


def test_deleting_with_a_wrong_credential_on_s3(seaweedfs: SeaweedFS) -> None:
    good = open_store(seaweedfs.fresh_url())
    good.put_if_absent(KEY, b"1")
    place = good.url.removeprefix("s3://")
    bad = open_store(f"s3://{place}?{s3_options(seaweedfs, secret_access_key=WRONG)}")
    with one_error(AccessDeniedError, "check the credentials", WRONG):
        bad.delete(KEY)
    assert good.get(KEY) == b"1"


def test_discarding_uploads_with_a_wrong_credential(seaweedfs: SeaweedFS) -> None:
    options = s3_options(seaweedfs, secret_access_key=WRONG)
    store = open_store(f"s3://{seaweedfs.shared_bucket}?{options}")
    with one_error(AccessDeniedError, "check the credentials", WRONG):
        store.sweep(2**53)


@pytest.mark.parametrize("asked", ["put_if_absent", "upload", "get", "get_range", "head", "list"])
def test_a_wrong_key_on_azure(azurite: Azurite, asked: str) -> None:
    store = open_store(azurite_url(azurite, account_key=WRONG_AZURE))
    with one_error(AccessDeniedError, "check the credentials", WRONG_AZURE, "S3CR3T"):
        requests_of(store)[asked]()


@pytest.mark.parametrize("asked", ["put_if_absent", "get", "head", "list"])
def test_a_wrong_signature_in_the_url_on_azure(azurite: Azurite, asked: str) -> None:
    """A shared access signature travels in every request's URL: errors must not repeat it."""
    store = open_store(azurite_url(azurite, sas_key=sas(WRONG_AZURE)))
    signature = sas(WRONG_AZURE).rpartition("sig=")[2]
    with one_error(AccessDeniedError, "check the credentials", signature):
        requests_of(store)[asked]()
    assert signature not in repr(store) + store.url


def test_a_right_signature_in_the_url_works_on_azure(azurite: Azurite) -> None:
    container = azurite.make_bucket(f"sas-{random.SystemRandom().randrange(10**9)}")
    store = open_store(azurite_url(azurite, container, sas_key=sas(Azurite.account_key)))
    store.put_if_absent(KEY, b"1")
    assert store.get(KEY) == b"1"


def test_creating_with_a_wrong_credential_is_that_error_and_not_unknown(
    seaweedfs: SeaweedFS,
) -> None:
    options = s3_options(seaweedfs, secret_access_key=WRONG)
    with one_error(AccessDeniedError, "check the credentials", WRONG):
        create_in(open_store(f"s3://{seaweedfs.shared_bucket}?{options}"))


# Nobody there


@pytest.mark.parametrize("asked", [*requests_of(open_store("memory://"))])
@pytest.mark.parametrize("scheme", ["s3", "az"])
def test_a_refused_connection(scheme: str, asked: str) -> None:
    store = open_store(nowhere(scheme))
    with one_error(UnavailableError, "check the endpoint and retry", WRONG, WRONG_AZURE):
        requests_of(store)[asked]()


def test_discarding_uploads_with_a_refused_connection() -> None:
    with one_error(UnavailableError, "retry", WRONG):
        open_store(nowhere("s3")).sweep(2**53)


@pytest.mark.parametrize("scheme", ["s3", "az"])
def test_creating_with_a_refused_connection_is_unknown(scheme: str) -> None:
    """Nothing says that the request did not get through before."""
    with one_error(OutcomeUnknownError, "reading it back failed", WRONG, WRONG_AZURE):
        create_in(open_store(nowhere(scheme)))


def test_a_server_that_never_answers_is_given_up(seaweedfs: SeaweedFS) -> None:
    with socket.create_server((LOOPBACK, 0)) as silent:
        endpoint = f"http://{LOOPBACK}:{silent.getsockname()[1]}"
        options = s3_options(seaweedfs, endpoint=endpoint, timeout="100ms")
        store = open_store(f"s3://bucket?{options}")
        for asked in ("put_if_absent", "get"):
            with one_error(UnavailableError, "retry", SECRET_ACCESS_KEY):
                requests_of(store)[asked]()


def test_a_server_that_speaks_something_else_is_no_store() -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        options = {"endpoint": f"http://{LOOPBACK}:{other.getsockname()[1]}", "timeout": "2s"}
        store = open_store(f"s3://bucket?skip_signature=on&{urlencode(options)}")
        with greeting(other, b"220 mail.example ESMTP\r\n"), one_error(UnavailableError, "retry"):
            store.put_if_absent(KEY, b"1")


# A server that does not do what is asked


def test_what_a_server_does_not_implement_is_no_matter_of_retrying() -> None:
    with answering(lambda _: (501, "<Error><Code>NotImplemented</Code></Error>")) as url:
        store = open_store(url)
        says = "501 NotImplemented); use another store, or cas=two-phase"
        for asked in ("put_if_absent", "upload", "get", "list"):
            with one_error(UnsupportedStoreError, says):
                requests_of(store)[asked]()
        with one_error(UnsupportedStoreError, says):
            create_in(store)


def test_check_store_says_no_with_the_reason_where_conditional_puts_are_not_implemented() -> None:
    empty = "<ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>"
    refused = "<Error><Code>NotImplemented</Code></Error>"
    with answering(lambda m: (501, refused) if m == "PUT" else (200, empty)) as url:
        done = subprocess.run(
            [sys.executable, "-m", "reef", "check-store", url, "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 2, done.stderr
    report = json.loads(done.stdout)
    assert report["can_back_a_log"] is False
    assert [(c["name"], c["ok"]) for c in report["checks"]] == [("create", False)]
    assert "501 NotImplemented" in report["reason"]
    assert "cas=two-phase" in report["reason"]


def test_a_server_that_lists_in_no_order_cannot_be_used() -> None:
    entry = (
        "<Contents><Key>{}</Key><Size>1</Size><LastModified>2026-01-01T00:00:00Z</LastModified>"
        "<ETag>x</ETag></Contents>"
    )
    entries = "".join(map(entry.format, ["wal/2", "wal/1", "wal/3"]))
    listing = f"<ListBucketResult><KeyCount>3</KeyCount>{entries}</ListBucketResult>"
    with (
        answering(lambda _: (200, listing)) as url,
        one_error(UnsupportedStoreError, "lists 'wal/1' after 'wal/2'"),
    ):
        list(open_store(url).list("wal/"))


# Where credentials come from


def test_the_services_usual_variables_are_read(
    seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweedfs.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY)
    monkeypatch.setenv("AWS_REGION", REGION)
    place = seaweedfs.fresh_url().split("?")[0]
    store = open_store(place)
    store.put_if_absent(KEY, b"1")
    assert store.get(KEY) == b"1"
    assert list(store.sweep(2**53)) == []
    # What the URL says comes before the variables.
    with one_error(AccessDeniedError, "check the credentials", WRONG):
        open_store(
            f"{place}?access_key_id={ACCESS_KEY_ID}&secret_access_key={quote(WRONG, safe='')}"
        ).get(KEY)


def test_azures_usual_variables_are_read(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", Azurite.account)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", Azurite.account_key)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", azurite.endpoint)
    store = open_store(azurite.fresh_url().split("?")[0])
    store.put_if_absent(KEY, b"1")
    assert store.get(KEY) == b"1"


def test_a_missing_object_is_not_a_missing_bucket(moto: Moto, azurite: Azurite) -> None:
    for url in (moto.fresh_url(), azurite.fresh_url()):
        with one_error(NotFoundError, "'wal/1' is not in"):
            open_store(url).get(KEY)


def create_in(store: Store) -> None:
    create(
        store,
        KEY,
        b"0123456789abcdef",
        nonce=b"0123456789abcdef",
        is_collected=lambda: False,
        settings=Settings(),
        clock=SystemClock(),
        rng=random.Random(1),
    )


def nowhere(scheme: str) -> str:
    endpoint = f"http://{LOOPBACK}:{closed_port().getsockname()[1]}"
    options = {"endpoint": endpoint, "access_key_id": "id", "secret_access_key": WRONG}
    if scheme == "az":
        options = {"endpoint": f"{endpoint}/a", "account_name": "a", "account_key": WRONG_AZURE}
    return f"{scheme}://bucket?{urlencode(options, quote_via=quote)}"


def azurite_url(server: Azurite, container: str = "", **credential: str) -> str:
    options = {"endpoint": server.endpoint, "account_name": Azurite.account, **credential}
    place = container or server.shared_bucket
    return f"az://{place}?{urlencode(options, quote_via=quote)}"


def sas(key: str) -> str:
    """Return a shared access signature of the account, signed with `key`."""
    fields = {"sv": "2021-12-02", "ss": "b", "srt": "sco", "sp": "rwdlac", "se": "2099-01-01"}
    signed = [Azurite.account, fields["sp"], fields["ss"], fields["srt"], "", fields["se"]]
    text = "\n".join([*signed, "", "", fields["sv"], "", ""])
    digest = hmac.digest(base64.b64decode(key), text.encode(), hashlib.sha256)
    return urlencode({**fields, "sig": base64.b64encode(digest).decode()})


@contextmanager
def answering(answer: Callable[[str], tuple[int, str]]) -> Iterator[str]:
    """Yield the URL of a server that gives each method's answer to every request."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_request(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            status, text = answer(self.command)
            self.send_response_only(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request

    with ThreadingHTTPServer((LOOPBACK, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        endpoint = f"http://{LOOPBACK}:{server.server_port}"
        try:
            yield f"s3://bucket?skip_signature=on&{urlencode({'endpoint': endpoint})}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def greeting(listener: socket.socket, text: bytes) -> Iterator[None]:
    """Answer whoever connects with `text`, and hang up."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(text)
            connection.recv(65536)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield
    thread.join(DEADLINE_SECONDS)
