"""The wrappers of `reef.testing`, over `memory://`: they do what tests of other things rely on."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import get_args

import pytest

from reef.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    IncompleteError,
    InvalidInputError,
    NotFoundError,
    ReefError,
    UnavailableError,
)
from reef.store import MemoryStore, Store
from reef.testing import (
    CountingStore,
    Fault,
    FaultKind,
    FaultyStore,
    Fired,
    LatencyStore,
    ManualClock,
    WrapperStore,
)
from reef.testing._wrapper import OPERATIONS
from tests.support.waiting import DEADLINE_SECONDS

DATA = bytes(range(100))


@pytest.fixture
def inner() -> MemoryStore:
    store = MemoryStore()
    store.put_if_absent("a/1", DATA)
    store.put_if_absent("a/2", b"two")
    return store


def requests(store: Store) -> dict[str, Callable[[], object]]:
    """Return one request of each operation, all of which succeed on the fixture."""
    return {
        "put_if_absent": lambda: store.put_if_absent("a/new", b"12345"),
        "upload": lambda: store.upload("a/big", iter([b"123", b"4567"])),
        "sweep": lambda: store.sweep(0),
        "get": lambda: store.get("a/1"),
        "get_range": lambda: store.get_range("a/1", 10, 20),
        "head": lambda: store.head("a/1"),
        "list": lambda: list(store.list("a/")),
        "delete": lambda: store.delete("a/2"),
        "put": lambda: store.put("a/plain", b"xyz"),  # type: ignore[attr-defined]
        "copy": lambda: store.copy("a/1", "a/copy"),  # type: ignore[attr-defined]
    }


# WrapperStore


@pytest.mark.parametrize("kind", [WrapperStore, CountingStore, LatencyStore, FaultyStore])
def test_a_wrapper_changes_nothing_by_itself(kind: type[WrapperStore], inner: MemoryStore) -> None:
    plain = MemoryStore()
    plain.put_if_absent("a/1", DATA)
    plain.put_if_absent("a/2", b"two")
    store = kind(inner)
    assert set(requests(store)) == set(OPERATIONS)
    for name, ask in requests(store).items():
        expected = requests(plain)[name]()
        got = ask()
        if name in ("head", "list"):
            assert str(got).count("ObjectMeta") == str(expected).count("ObjectMeta")
        else:
            assert got == expected
    assert {m.key: m.size for m in store.list()} == {m.key: m.size for m in plain.list()}
    assert store.url == inner.url
    assert repr(inner) in repr(store)


def test_closing_a_wrapper_closes_what_is_inside(inner: MemoryStore) -> None:
    closed = []

    class Noticed(WrapperStore):
        def close(self) -> None:
            closed.append(self)
            super().close()

    inside = Noticed(inner)
    with FaultyStore(CountingStore(inside)):
        pass
    assert closed == [inside]


def test_merged_ranges_pass_every_wrapper_one_by_one(inner: MemoryStore) -> None:
    inner.merge_gap_bytes = 5
    below = CountingStore(inner)
    faults = FaultyStore(below, [Fault("error_before", on="get_range", nth=2)])
    store = CountingStore(faults)
    assert store.get_ranges("a/1", [(0, 2), (4, 2)]) == [DATA[0:2], DATA[4:6]]
    with pytest.raises(UnavailableError):
        store.get_ranges("a/1", [(0, 2), (40, 2), (80, 2)])
    assert below.counts.requests == {"get_range": 1}
    assert store.counts.requests == {"get_range": 2}


# CountingStore


def test_requests_and_bytes_are_counted_by_operation(inner: MemoryStore) -> None:
    store = CountingStore(inner)
    for ask in requests(store).values():
        ask()
    assert store.counts.requests == dict.fromkeys(OPERATIONS, 1)
    sizes = {"put_if_absent": 5, "upload": 7, "get": 100, "get_range": 20, "put": 3}
    assert store.counts.bytes == sizes
    assert store.counts.total == len(OPERATIONS)


def test_failed_requests_count_too(inner: MemoryStore) -> None:
    store = CountingStore(inner)
    with pytest.raises(NotFoundError):
        store.get("missing")
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent("a/1", b"xx")
    assert store.counts.requests == {"get": 1, "put_if_absent": 1}
    assert store.counts.bytes == {"put_if_absent": 2}


@pytest.mark.parametrize(
    ("entries", "pages"), [(0, 1), (1, 1), (1000, 1), (1001, 2), (2000, 2), (2001, 3)]
)
def test_a_list_is_a_request_per_1000_entries_begun(entries: int, pages: int) -> None:
    inner = MemoryStore()
    for i in range(entries):
        inner.put_if_absent(f"{i:05}", b"")
    store = CountingStore(inner)
    assert len(list(store.list())) == entries
    assert store.counts.requests == {"list": pages}


def test_a_list_nobody_reads_is_no_request(inner: MemoryStore) -> None:
    store = CountingStore(inner)
    listing = store.list()
    assert store.counts.total == 0
    next(listing)
    assert store.counts.requests == {"list": 1}


def test_counts_can_be_compared_and_begun_again(inner: MemoryStore) -> None:
    store = CountingStore(inner)
    store.get("a/2")
    before = store.counts
    store.get("a/2")
    store.head("a/2")
    assert (store.counts - before).requests == {"get": 1, "head": 1}
    assert (store.counts - before).bytes == {"get": 3}
    assert before.requests == {"get": 1}
    assert store.reset().requests == {"get": 2, "head": 1}
    assert store.counts.total == 0
    assert store.counts.requests.get("get", 0) == 0


def test_counting_loses_nothing_among_threads(inner: MemoryStore) -> None:
    store = CountingStore(inner)

    def read() -> None:
        for _ in range(500):
            store.get("a/2")

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.counts.requests == {"get": 4000}
    assert store.counts.bytes == {"get": 12000}


# LatencyStore and ManualClock


def test_latency_is_waited_for_on_the_clock_per_operation(inner: MemoryStore) -> None:
    clock = ManualClock()
    store = LatencyStore(inner, 0.5, per_operation={"get": 0.25, "head": 0}, clock=clock)
    store.get("a/1")
    store.head("a/1")
    store.delete("a/2")
    assert clock.sleeps == (0.25, 0.5)


def test_latency_of_a_list_is_per_1000_entries() -> None:
    inner, clock = MemoryStore(), ManualClock()
    for i in range(2001):
        inner.put_if_absent(f"{i:05}", b"")
    store = LatencyStore(inner, per_operation={"list": 1.0}, clock=clock)
    assert len(list(store.list())) == 2001
    assert clock.sleeps == (1.0, 1.0, 1.0)


def test_impossible_latencies_are_refused(inner: MemoryStore) -> None:
    with pytest.raises(InvalidInputError, match="operation = 'post'"):
        LatencyStore(inner, per_operation={"post": 1.0})  # type: ignore[dict-item]
    with pytest.raises(InvalidInputError, match="latency of get = -1"):
        LatencyStore(inner, per_operation={"get": -1})


def test_a_manual_clock_moves_only_when_told_to() -> None:
    clock = ManualClock(now_us=5_000_000)
    assert (clock.now_us(), clock.monotonic()) == (5_000_000, 0.0)
    clock.sleep(1.25)
    clock.advance(0.5)
    assert (clock.now_us(), clock.monotonic()) == (6_750_000, 1.75)
    assert clock.sleeps == (1.25,)
    for move in (clock.sleep, clock.advance):
        with pytest.raises(ValueError, match="-1"):
            move(-1)
        with pytest.raises(ValueError, match="nan"):
            move(float("nan"))


# FaultyStore


@pytest.mark.parametrize(
    ("kind", "error", "done"),
    [
        ("reply_lost", UnavailableError, True),
        ("error_after", UnavailableError, True),
        ("timeout_after", UnavailableError, True),
        ("false_conflict", AlreadyExistsError, True),
        ("error_before", UnavailableError, False),
        ("timeout_before", UnavailableError, False),
        ("lands_late", UnavailableError, False),
        ("conflict", AlreadyExistsError, False),
        ("denied", AccessDeniedError, False),
    ],
)
def test_what_a_fault_says_and_what_it_did(
    kind: FaultKind, error: type[ReefError], done: bool, inner: MemoryStore
) -> None:
    faults = FaultyStore(inner, [Fault(kind, on="put_if_absent")])
    with pytest.raises(error, match=rf"put_if_absent of 'k' \(injected {kind}\)"):
        faults.put_if_absent("k", b"1")
    assert ("k" in {m.key for m in inner.list()}) is done
    assert faults.fired == (Fired(kind, "put_if_absent", "k"),)
    if done:
        inner.delete("k")
    faults.put_if_absent("k", b"2")  # once is once
    assert inner.get("k") == b"2"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_error_can_happen_to_each_operation(operation: str, inner: MemoryStore) -> None:
    below = CountingStore(inner)
    faults = FaultyStore(below, [Fault("error_before", on=operation), Fault("error_after")])  # type: ignore[arg-type]
    ask = requests(faults)[operation]
    with pytest.raises(UnavailableError, match="error_before"):
        ask()
    assert below.counts.total == 0
    with pytest.raises(UnavailableError, match="error_after"):
        ask()
    assert below.counts.requests == ({} if operation == "list" else {operation: 1})


def test_what_lands_late_lands_when_told_to(inner: MemoryStore) -> None:
    faults = FaultyStore(inner, [Fault("lands_late", times=2)])
    for data in (b"1", b"2"):
        with pytest.raises(UnavailableError):
            faults.put_if_absent("k", data)
    with pytest.raises(NotFoundError):
        inner.get("k")
    first, second = faults.land()
    assert first is None
    assert isinstance(second, AlreadyExistsError)
    assert inner.get("k") == b"1"
    assert faults.land() == []


def test_a_fault_waits_for_its_operation_its_key_and_its_turn(inner: MemoryStore) -> None:
    fault = Fault("error_before", on="get", key="a/*", nth=2, times=2)
    faults = FaultyStore(inner, [fault])
    inner.put_if_absent("b", b"")
    outcomes = []
    for _ in range(5):
        faults.get("b")
        faults.head("a/1")
        try:
            faults.get("a/1")
            outcomes.append("ok")
        except UnavailableError:
            outcomes.append("failed")
    assert outcomes == ["ok", "failed", "failed", "ok", "ok"]


def test_a_fault_may_happen_for_ever_until_disarmed(inner: MemoryStore) -> None:
    faults = FaultyStore(inner, [Fault("error_before", times=0)])
    for _ in range(20):
        with pytest.raises(UnavailableError):
            faults.get("a/1")
    faults.disarm()
    assert faults.get("a/1") == DATA
    assert len(faults.fired) == 20


def test_a_plan_is_a_sequence_and_can_grow(inner: MemoryStore) -> None:
    faults = FaultyStore(inner, [Fault("error_before"), Fault("timeout_before")])
    faults.arm(Fault("not_found"))
    for error in (UnavailableError, UnavailableError, NotFoundError):
        with pytest.raises(error):
            faults.get("a/1")
    assert faults.get("a/1") == DATA
    assert [fired.kind for fired in faults.fired] == ["error_before", "timeout_before", "not_found"]


def test_a_short_read(inner: MemoryStore) -> None:
    faults = FaultyStore(inner, [Fault("short_read", times=2)])
    assert faults.get("a/1") == DATA[:50]
    with pytest.raises(IncompleteError):
        faults.get_range("a/1", 0, 10)
    assert faults.get("a/1") == DATA


def test_a_flipped_bit_is_one_bit(inner: MemoryStore) -> None:
    faults = FaultyStore(
        inner, [Fault("flipped_bit", at=8 * 7 + 3), Fault("flipped_bit", times=50)]
    )
    wrong = faults.get("a/1")
    assert [i for i in range(100) if wrong[i] != DATA[i]] == [7]
    assert wrong[7] ^ DATA[7] == 1 << 3
    places = set()
    for _ in range(50):
        wrong = faults.get_range("a/1", 10, 20)
        bits = int.from_bytes(wrong) ^ int.from_bytes(DATA[10:30])
        assert bits.bit_count() == 1
        places.add(bits)
    assert len(places) > 10
    assert faults.get("a/1") == DATA
    assert inner.get("a/1") == DATA


def test_an_entry_missing_from_a_list(inner: MemoryStore) -> None:
    faults = FaultyStore(inner, [Fault("missing_entry", key="a/2")])
    assert [meta.key for meta in faults.list()] == ["a/1"]
    assert [meta.key for meta in faults.list()] == ["a/1", "a/2"]
    assert faults.fired == (Fired("missing_entry", "list", "a/2"),)
    assert faults.get("a/2") == b"two"


def test_a_slow_list_is_slow_on_the_clock() -> None:
    inner, clock = MemoryStore(), ManualClock()
    for i in range(1001):
        inner.put_if_absent(f"{i:05}", b"")
    faults = FaultyStore(inner, [Fault("slow_list", seconds=30.0)], clock=clock)
    assert len(list(faults.list())) == 1001
    assert clock.sleeps == (30.0, 30.0)
    assert len(list(faults.list())) == 1001
    assert clock.sleeps == (30.0, 30.0)


def test_a_stall_on_the_clock(inner: MemoryStore) -> None:
    clock = ManualClock()
    faults = FaultyStore(inner, [Fault("stall", seconds=60.0)], clock=clock)
    assert faults.get("a/1") == DATA
    assert clock.sleeps == (60.0,)


def test_a_stall_until_released(inner: MemoryStore) -> None:
    faults = FaultyStore(inner, [Fault("stall", on="put_if_absent", times=2)])
    threads = [
        threading.Thread(target=faults.put_if_absent, args=(key, b"1")) for key in ("x", "y")
    ]
    for thread in threads:
        thread.start()
    faults.wait_for_stalled(2)
    assert [meta.key for meta in inner.list()] == ["a/1", "a/2"]
    faults.release()
    for thread in threads:
        thread.join()
    assert [meta.key for meta in inner.list()] == ["a/1", "a/2", "x", "y"]


def test_closing_lets_go_whoever_is_stalled(inner: MemoryStore) -> None:
    faults = FaultyStore(inner, [Fault("stall")])
    thread = threading.Thread(target=faults.get, args=("a/1",))
    thread.start()
    faults.wait_for_stalled()
    faults.close()
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()


def campaign(seed: int) -> tuple[list[str], tuple[Fired, ...]]:
    inner = MemoryStore()
    faults = FaultyStore(
        inner,
        rates={"error_before": 0.1, "reply_lost": 0.1, Fault("missing_entry", key="*7"): 0.5},
        rng=random.Random(seed),
    )
    outcomes = []
    for i in range(300):
        try:
            faults.put_if_absent(f"k{i:03}", b"1")
            outcomes.append("ok")
        except UnavailableError as error:
            outcomes.append(str(error))
    for _ in range(20):
        try:
            outcomes += [meta.key for meta in faults.list()]
        except UnavailableError as error:
            outcomes.append(str(error))
    return outcomes, tuple(faults.fired)


def test_faults_by_chance_are_those_of_the_seed() -> None:
    outcomes, fired = campaign(1)
    assert (outcomes, fired) == campaign(1)
    assert fired != campaign(2)[1]
    kinds = Counter(f.kind for f in fired)
    assert set(kinds) == {"error_before", "reply_lost", "missing_entry"}
    assert 10 < kinds["error_before"] < 60
    assert {f.key[-1] for f in fired if f.kind == "missing_entry"} == {"7"}


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Fault("explosion"), "fault = 'explosion'"),  # type: ignore[arg-type]
        (lambda: Fault("short_read", on="put_if_absent"), "'*' or one of get, get_range"),
        (lambda: Fault("conflict", on="delete"), "conflict cannot happen on 'delete'"),
        (lambda: Fault("error_before", on="post"), "error_before cannot happen on"),  # type: ignore[arg-type]
        (lambda: Fault("error_before", nth=0), "nth = 0"),
        (lambda: Fault("error_before", times=-1), "times = -1"),
        (lambda: Fault("slow_list"), "a slow_list needs seconds"),
        (lambda: FaultyStore(MemoryStore(), rates={"denied": 0.1}), "without rng"),
        (
            lambda: FaultyStore(MemoryStore(), rates={"stall": 0.1}, rng=random.Random(1)),
            "seconds=",
        ),
    ],
)
def test_faults_that_could_never_happen_are_refused(make: Callable[[], object], named: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        make()
    assert named in str(caught.value)


def test_every_kind_of_fault_can_be_armed() -> None:
    for kind in get_args(FaultKind):
        assert Fault(kind, seconds=0.0).operations


# Many objects at once: each is a request that wrappers see


def test_each_object_of_many_is_counted(inner: MemoryStore) -> None:
    store = CountingStore(inner)
    assert store.get_many(["a/1", "a/9", "a/2", "a/1"]) == [DATA, None, b"two", DATA]
    assert store.counts.requests == {"get": 4}
    assert store.counts.bytes == {"get": 203}


@pytest.mark.parametrize("concurrency", [1, 16])
def test_a_fault_of_one_object_fails_the_many(inner: MemoryStore, concurrency: int) -> None:
    inner.concurrency = concurrency
    store = FaultyStore(inner, [Fault("error_before", on="get", key="a/2")])
    with pytest.raises(UnavailableError, match="a/2"):
        store.get_many(["a/1", "a/2", "a/1"])
    assert store.get_many(["a/1", "a/2"]) == [DATA, b"two"]
    store.arm(Fault("not_found", on="get", key="a/1"), Fault("short_read", on="get", key="a/2"))
    assert store.get_many(["a/1", "a/2"]) == [None, b"t"]
    assert [fired.kind for fired in store.fired].count("error_before") == 1
    store.close()


def test_faults_of_many_happen_again_where_requests_go_one_by_one() -> None:
    def run() -> list[Fired]:
        inner = MemoryStore()
        inner.concurrency = 1
        for i in range(50):
            inner.put_if_absent(f"k/{i}", b"1")
        store = FaultyStore(inner, rates={"not_found": 0.3}, rng=random.Random(5))
        found = store.get_many([f"k/{i}" for i in range(50)])
        assert found.count(None) == len(store.fired)
        return list(store.fired)

    assert run() == run() != []


def test_each_object_of_many_waits(inner: MemoryStore) -> None:
    clock = ManualClock()
    store = LatencyStore(inner, per_operation={"get": 0.5}, clock=clock)
    assert store.get_many(["a/1", "a/9", "a/2"]) == [DATA, None, b"two"]
    assert list(clock.sleeps) == [0.5] * 3
    store.close()
