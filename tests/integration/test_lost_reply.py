"""A lost reply is not a conflict: `create` tells the truth, whatever befalls it on the way."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from datetime import timedelta
from typing import NamedTuple
from urllib.parse import quote

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError as ObstoreAlreadyExistsError
from obstore.store import S3Store

from reef.clock import SystemClock
from reef.errors import (
    AlreadyExistsError,
    ConflictError,
    OutcomeUnknownError,
    ReefError,
    UnavailableError,
)
from reef.settings import Settings
from reef.store import Data, Store, create, open_store
from reef.testing import WrapperStore
from tests.support.servers.object_stores import (
    ACCESS_KEY_ID,
    REGION,
    SECRET_ACCESS_KEY,
    Azurite,
    Moto,
    SeaweedFS,
)
from tests.support.servers.proxy import Fault, Proxy
from tests.support.waiting import DEADLINE_SECONDS, until

pytestmark = pytest.mark.servers

KEY = "wal/00000000000000000001.wal"
NONCE = b"0123456789abcdef"
OURS = b"ours " + NONCE
THEIRS = b"somebody else's"
AT_ONCE = [Fault.REPLY_LOST, Fault.ERROR_AFTER, Fault.ERROR_BEFORE, Fault.CONFLICT_BEFORE]
DONE = [Fault.REPLY_LOST, Fault.ERROR_AFTER]
STALLS = [Fault.STALL_BEFORE, Fault.STALL_AFTER]


class Impatient(WrapperStore):
    """Sends its first PUT by a store that soon gives up, and takes all the time it needs otherwise."""

    def __init__(self, patient: Store, hasty: Store) -> None:
        super().__init__(patient)
        self._puts = iter([hasty])

    def put_if_absent(self, key: str, data: Data) -> None:
        next(self._puts, self.inner).put_if_absent(key, data)


class Line(NamedTuple):
    """A store reached straight, and through a proxy that can spoil requests."""

    direct: Store
    proxied: Store
    impatient: Store
    """Through the proxy too, and gives up the first PUT, after it has surely got there."""
    proxy: Proxy
    url: str

    def create(self, store: Store | None = None, settings: Settings | None = None) -> None:
        create(
            store or self.proxied,
            KEY,
            OURS,
            nonce=NONCE,
            is_collected=lambda: False,
            settings=settings or Settings(),
            clock=SystemClock(),
            rng=random.Random(1),
        )

    def count(self, method: str) -> int:
        """Return how many requests of that kind for the key came to the proxy."""
        return sum(e.method == method and KEY in e.target for e in self.proxy.exchanges)

    def holds(self) -> list[bytes]:
        return [self.direct.get(meta.key) for meta in self.direct.list("wal/")]


@pytest.fixture(params=["seaweedfs", "moto", "azurite"])
def line(request: pytest.FixtureRequest) -> Iterator[Line]:
    server: SeaweedFS | Moto | Azurite = request.getfixturevalue(request.param)
    url = server.fresh_url()
    with Proxy(server.endpoint) as proxy, open_store(url) as direct:
        direct.put_if_absent("warm", b"")  # SeaweedFS takes a moment for a bucket's first object
        through = url.replace(quote(server.endpoint, safe=""), quote(proxy.endpoint, safe=""))
        assert through != url
        with open_store(through) as proxied, open_store(f"{through}&timeout=10s") as hasty:
            yield Line(direct, proxied, Impatient(proxied, hasty), proxy, through)


@pytest.mark.parametrize("fault", AT_ONCE)
def test_a_spoilt_put_of_ours_is_a_success(line: Line, fault: Fault) -> None:
    line.proxy.inject(fault, "PUT", KEY)
    line.create()
    assert line.holds() == [OURS]
    assert line.count("PUT") == (1 if fault in DONE else 2)
    assert line.count("GET") == 1


@pytest.mark.parametrize("fault", AT_ONCE)
def test_a_spoilt_put_behind_another_is_a_conflict(line: Line, fault: Fault) -> None:
    line.direct.put_if_absent(KEY, THEIRS)
    line.proxy.inject(fault, "PUT", KEY)
    with pytest.raises(ConflictError) as caught:
        line.create()
    assert caught.value.found == THEIRS
    assert line.holds() == [THEIRS]


@pytest.mark.parametrize("fault", AT_ONCE)
def test_every_put_spoilt_the_same_way_is_the_truth_or_unknown(line: Line, fault: Fault) -> None:
    line.proxy.inject(fault, "PUT", KEY, times=100)
    settings = Settings(cas_max_retries=3)
    if fault in DONE:
        line.create(settings=settings)
        assert line.holds() == [OURS]
    else:
        with pytest.raises(OutcomeUnknownError, match="after 3 retries"):
            line.create(settings=settings)
        assert line.holds() == []
        assert line.count("PUT") == 4


@pytest.mark.parametrize("fault", STALLS)
def test_a_put_that_stalls_until_the_client_gives_up_is_a_success(line: Line, fault: Fault) -> None:
    rule = line.proxy.inject(fault, "PUT", KEY)
    line.create(line.impatient)
    assert line.holds() == [OURS]
    rule.release()
    puts = 2 if fault is Fault.STALL_BEFORE else 1
    until(lambda: line.count("PUT") == puts)  # what was stalled has got through as well
    assert line.holds() == [OURS]


def test_a_put_that_lands_late_behind_another_does_no_harm(line: Line) -> None:
    """It stalls; the author gives up; somebody else takes the name; then it arrives."""
    rule = line.proxy.inject(Fault.STALL_BEFORE, "PUT", KEY)
    with pytest.raises(UnavailableError):
        line.impatient.put_if_absent(KEY, OURS)
    line.direct.put_if_absent(KEY, THEIRS)
    rule.wait_until_met()
    rule.release()
    until(lambda: line.count("PUT") == 1)
    assert line.holds() == [THEIRS]
    with pytest.raises(ConflictError):
        line.create()


def test_a_read_back_that_fails_is_unknown_and_nothing_is_sent_again(line: Line) -> None:
    line.proxy.inject(Fault.REPLY_LOST, "PUT", KEY)
    line.proxy.inject(Fault.ERROR_BEFORE, "GET", KEY, times=100)
    with pytest.raises(OutcomeUnknownError, match="reading it back failed"):
        line.create()
    assert line.count("PUT") == 1
    assert line.holds() == [OURS]


@pytest.mark.parametrize("fault", AT_ONCE)
def test_a_conditional_put_is_a_single_attempt(line: Line, fault: Fault) -> None:
    line.proxy.inject(fault, "PUT", KEY)
    expected = AlreadyExistsError if fault is Fault.CONFLICT_BEFORE else UnavailableError
    with pytest.raises(expected):
        line.proxied.put_if_absent(KEY, OURS)
    assert line.count("PUT") == 1


@pytest.mark.parametrize("fault", [Fault.REPLY_LOST, Fault.ERROR_BEFORE, Fault.ERROR_AFTER])
def test_what_is_safe_to_repeat_is_repeated(line: Line, fault: Fault) -> None:
    line.direct.put_if_absent(KEY, OURS)
    for method, ask in (
        ("GET", lambda: line.proxied.get(KEY)),
        ("GET", lambda: line.proxied.get_range(KEY, 0, 1)),
        ("HEAD", lambda: line.proxied.head(KEY)),
        ("DELETE" if line.url.startswith("az") else "POST", lambda: line.proxied.delete(KEY)),
    ):
        part = "" if method == "POST" else KEY  # S3 deletes by a POST to the bucket
        line.proxy.inject(fault, method, part, times=2)
        ask()
    assert line.holds() == []


def test_racers_through_a_line_that_loses_every_other_reply(line: Line) -> None:
    """Each learns its own truth: exactly one is told that it won."""
    for slot in range(5):
        key = f"slots/{slot}"
        line.proxy.inject(Fault.REPLY_LOST, "PUT", key, times=2)
        said = []
        for author in range(3):
            nonce = bytes([author]) * 16
            try:
                create(
                    line.proxied,
                    key,
                    nonce,
                    nonce=nonce,
                    is_collected=lambda: False,
                    settings=Settings(),
                    clock=SystemClock(),
                    rng=random.Random(author),
                )
                said.append(b"won")
            except ConflictError as error:
                said.append(error.found)
        assert said == [b"won", bytes(16), bytes(16)]
        assert line.direct.get(key) == bytes(16)


# Uploads: not a commit, and still an honest answer.

LARGE = [bytes(6 << 20), bytes(6 << 20)]  # more than one part


@pytest.mark.parametrize("parts", [[], [b"one"], [b"one", b"", b"two"], [bytes(8 << 20)]])
def test_a_small_upload_is_one_request(line: Line, parts: list[bytes]) -> None:
    line.proxied.upload(KEY, parts)
    assert [(e.method, e.status) for e in line.proxy.exchanges] in ([("PUT", 200)], [("PUT", 201)])
    assert line.holds() == [b"".join(parts)]


def test_a_small_upload_may_use_the_store_and_is_repeated(line: Line) -> None:
    line.direct.put_if_absent("source", b"abc")
    line.proxy.inject(Fault.REPLY_LOST, "PUT", KEY)
    line.proxied.upload(KEY, (line.proxied.get_range("source", i, 1) for i in range(3)))
    assert line.holds() == [b"abc"]
    assert line.count("PUT") == 2


def test_a_large_upload_goes_in_parts(line: Line) -> None:
    line.proxied.upload(KEY, iter(LARGE))
    assert len(line.proxy.exchanges) >= 3
    assert [len(data) for data in line.holds()] == [12 << 20]


def test_a_lost_reply_of_the_last_request_of_an_upload_is_no_missing_object(line: Line) -> None:
    """The client repeats it: some servers say yes again, others that there is no such upload."""
    if line.url.startswith("az"):
        line.proxy.inject(Fault.REPLY_LOST, "PUT", "comp=blocklist")
    else:
        line.proxy.inject(Fault.REPLY_LOST, "POST", "uploadId=")
    with contextlib.suppress(UnavailableError):
        line.proxied.upload(KEY, iter(LARGE))
    assert any(e.fault for e in line.proxy.exchanges)
    assert [len(data) for data in line.holds()] == [12 << 20]


@pytest.mark.parametrize("line", ["seaweedfs", "moto"], indirect=True)
def test_an_upload_whose_parts_were_swept_is_unavailable(line: Line) -> None:
    def parts() -> Iterator[bytes]:
        yield from LARGE
        until(lambda: line.count("POST") == 1)  # it has begun
        assert list(line.direct.sweep(2**53)) == [KEY]
        yield from LARGE

    with pytest.raises(UnavailableError, match="it was finished or discarded"):
        line.proxied.upload(KEY, parts())
    assert 404 in [e.status for e in line.proxy.exchanges]
    assert line.holds() == []


# Why the stores make single attempts.


@pytest.mark.parametrize("fault", DONE)
@pytest.mark.parametrize("server_name", ["seaweedfs", "moto"])
def test_a_client_that_repeats_reports_its_own_success_as_a_conflict(
    request: pytest.FixtureRequest, server_name: str, fault: Fault
) -> None:
    """obstore as it comes: two PUTs on the wire, "already exists", and the object is its own."""
    server: SeaweedFS | Moto = request.getfixturevalue(server_name)
    place = server.fresh_url().split("?")[0].removeprefix("s3://")
    bucket, prefix = place.split("/", 1)
    with Proxy(server.endpoint) as proxy, open_store(server.url(bucket, prefix)) as direct:
        direct.put_if_absent("warm", b"")
        as_it_comes = S3Store(
            bucket,
            prefix=prefix,
            endpoint=proxy.endpoint,
            region=REGION,
            access_key_id=ACCESS_KEY_ID,
            secret_access_key=SECRET_ACCESS_KEY,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True, "timeout": timedelta(seconds=DEADLINE_SECONDS)},
        )
        proxy.inject(fault, "PUT", KEY)
        with pytest.raises(ObstoreAlreadyExistsError):
            obstore.put(as_it_comes, KEY, OURS, mode="create")
        assert [e.method for e in proxy.exchanges if KEY in e.target] == ["PUT", "PUT"]
        assert direct.get(KEY) == OURS  # it had won


def test_errors_of_a_spoilt_line_show_no_secret(line: Line) -> None:
    line.proxy.inject(Fault.ERROR_BEFORE, "PUT", KEY)
    with pytest.raises(ReefError) as caught:
        line.proxied.put_if_absent(KEY, OURS)
    for secret in (SECRET_ACCESS_KEY, Azurite.account_key):
        assert secret not in str(caught.value) + repr(caught.value) + str(caught.value.__cause__)
