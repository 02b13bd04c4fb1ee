"""The metered store: it changes nothing, and counts requests, bytes and errors by kind."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import ClassVar

import pytest

from reef.clock import SystemClock
from reef.errors import AlreadyExistsError, IncompleteError, NotFoundError, UnavailableError
from reef.metrics import Metrics
from reef.store import MemoryStore, MeteredStore, Store, open_store
from reef.testing import CountingStore, Fault, FaultyStore, LatencyStore, ManualClock
from reef.testing.contract import StoreContract

DATA = bytes(range(100))
_names = itertools.count()


class TestContract(StoreContract):
    """Behind it, a store is still a store. It counts for one process."""

    process_racers: ClassVar[int] = 0

    @pytest.fixture
    def url(self) -> str:
        return f"memory://metered-{next(_names)}"

    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        with MeteredStore(open_store(url), Metrics(), SystemClock()) as store:
            yield store

    @pytest.fixture
    def store2(self, url: str) -> Iterator[Store]:
        with MeteredStore(open_store(url), Metrics(), SystemClock()) as store:
            yield store


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def inner() -> MemoryStore:
    store = MemoryStore()
    store.put_if_absent("a/1", DATA)
    store.put_if_absent("a/2", b"two")
    return store


def by_kind(metrics: Metrics, what: str) -> dict[str, float]:
    """Return a counter by kind; `what` is requests, request_bytes or request_errors."""
    prefix = f'reef_{what}_total{{kind="'
    return {
        name.removeprefix(prefix).removesuffix('"}'): value
        for name, value in metrics.snapshot().items()
        if name.startswith(prefix) and isinstance(value, int | float)
    }


def test_every_kind_of_request_is_counted_with_its_bytes(
    inner: MemoryStore, metrics: Metrics
) -> None:
    store = MeteredStore(inner, metrics, ManualClock())
    store.put_if_absent("a/3", b"12345")
    store.upload("a/4", iter([b"123", memoryview(b"4567")]))
    assert store.get("a/1") == DATA
    assert store.get_range("a/1", 10, 20) == DATA[10:30]
    assert store.head("a/2").size == 3
    assert [meta.key for meta in store.list("a/")] == ["a/1", "a/2", "a/3", "a/4"]
    store.delete("a/2")
    assert store.sweep(0) == []
    assert by_kind(metrics, "requests") == dict.fromkeys(
        ("put_if_absent", "upload", "get", "get_range", "head", "list", "delete", "sweep"), 1
    )
    assert by_kind(metrics, "request_bytes") == {
        "put_if_absent": 5,
        "upload": 7,
        "get": 100,
        "get_range": 20,
    }
    assert by_kind(metrics, "request_errors") == {}


def test_what_is_counted_is_what_the_store_below_is_asked(
    inner: MemoryStore, metrics: Metrics
) -> None:
    below = CountingStore(inner)
    store = MeteredStore(below, metrics, ManualClock())
    store.merge_gap_bytes = 10
    assert store.get_many(["a/1", "a/9", "a/2"]) == [DATA, None, b"two"]
    assert store.get_ranges("a/1", [(0, 2), (5, 2), (40, 2), (80, 2)]) == [
        DATA[0:2],
        DATA[5:7],
        DATA[40:42],
        DATA[80:82],
    ]
    assert by_kind(metrics, "requests") == below.counts.requests == {"get": 3, "get_range": 3}
    assert by_kind(metrics, "request_bytes") == below.counts.bytes == {"get": 103, "get_range": 11}


@pytest.mark.parametrize(("entries", "pages"), [(0, 1), (1, 1), (1000, 1), (1001, 2), (2500, 3)])
def test_a_list_is_a_request_for_every_thousand_entries(entries: int, pages: int) -> None:
    inner, metrics = MemoryStore(), Metrics()
    for i in range(entries):
        inner.put_if_absent(f"k/{i:05d}", b"")
    below = CountingStore(inner)
    store = MeteredStore(below, metrics, ManualClock())
    assert len(list(store.list("k/"))) == entries
    assert by_kind(metrics, "requests") == below.counts.requests == {"list": pages}


def test_a_list_that_nobody_reads_is_no_request(inner: MemoryStore, metrics: Metrics) -> None:
    entries = MeteredStore(inner, metrics, ManualClock()).list("a/")
    assert by_kind(metrics, "requests") == {}
    assert next(entries).key == "a/1"
    assert by_kind(metrics, "requests") == {"list": 1}


def test_not_found_and_taken_are_answers_not_errors(inner: MemoryStore, metrics: Metrics) -> None:
    store = MeteredStore(inner, metrics, ManualClock())
    with pytest.raises(NotFoundError):
        store.get("a/9")
    with pytest.raises(NotFoundError):
        store.head("a/9")
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent("a/1", b"x")
    assert by_kind(metrics, "requests") == {"get": 1, "head": 1, "put_if_absent": 1}
    assert by_kind(metrics, "request_errors") == {}


def test_failures_are_counted_and_pass_through(inner: MemoryStore, metrics: Metrics) -> None:
    faults: Sequence[Fault] = [
        Fault("reply_lost", on="put_if_absent"),
        Fault("error_before", on="get"),
        Fault("error_before", on="list"),
        Fault("short_read", on="get_range"),
    ]
    store = MeteredStore(FaultyStore(inner, faults), metrics, ManualClock())
    with pytest.raises(UnavailableError):
        store.put_if_absent("a/3", b"x")
    with pytest.raises(UnavailableError):
        store.get_many(["a/1"])
    with pytest.raises(UnavailableError):
        list(store.list("a/"))
    with pytest.raises(IncompleteError):
        store.get_range("a/1", 0, 10)
    kinds = ("put_if_absent", "get", "list", "get_range")
    assert by_kind(metrics, "request_errors") == dict.fromkeys(kinds, 1)
    assert by_kind(metrics, "requests") == dict.fromkeys(kinds, 1)
    assert by_kind(metrics, "request_bytes") == {"put_if_absent": 1}


def test_parts_that_fail_are_an_error_of_the_upload(inner: MemoryStore, metrics: Metrics) -> None:
    def parts() -> Iterator[bytes]:
        yield b"123"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        MeteredStore(inner, metrics, ManualClock()).upload("a/3", parts())
    assert by_kind(metrics, "request_errors") == {"upload": 1}
    assert by_kind(metrics, "request_bytes") == {"upload": 3}


def test_a_put_is_timed_whether_it_succeeds_or_not(inner: MemoryStore, metrics: Metrics) -> None:
    clock = ManualClock()
    slow = LatencyStore(inner, per_operation={"put_if_absent": 0.02, "get": 5.0}, clock=clock)
    store = MeteredStore(slow, metrics, clock)
    store.put_if_absent("a/3", b"x")
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent("a/3", b"x")
    store.get("a/3")
    found = metrics.snapshot()["reef_put_seconds"]
    assert isinstance(found, dict)
    assert found["count"] == 2
    assert found["sum"] == pytest.approx(0.04)


def test_it_is_where_the_store_is_and_closes_it(inner: MemoryStore, metrics: Metrics) -> None:
    class Closing(MemoryStore):
        closed = 0

        def close(self) -> None:
            self.closed += 1
            super().close()

    below = Closing()
    with MeteredStore(below, metrics, ManualClock()) as store:
        assert store.url == below.url
        assert repr(store) == f"MeteredStore({below!r})"
        assert (store.concurrency, store.merge_gap_bytes) == (
            below.concurrency,
            below.merge_gap_bytes,
        )
    assert below.closed == 1
