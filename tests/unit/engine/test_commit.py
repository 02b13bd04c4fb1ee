"""The commit path: group commit, unknown outcomes, fencing, conditions, idempotency, pressure."""

from __future__ import annotations

import random
import threading

import pytest

from reef import CreateOnly, Equals, MustExist
from reef.database import Database
from reef.errors import (
    ClosedError,
    ConditionFailedError,
    FencedError,
    IdempotencyError,
    InvalidInputError,
    NotWrittenError,
    OutcomeUnknownError,
    OverloadedError,
    ReefError,
    UnavailableError,
)
from reef.format import LogKind, decode_log, log_key
from reef.kv import KeyValue
from reef.store import Store, open_store
from reef.testing import CountingStore, Fault, FaultyStore, ManualClock
from reef.threads import Condition, SystemThreads
from reef.types import unpack_lsn
from tests.support.engine.calls_beside import Beside
from tests.support.engine.held_puts import Gate
from tests.support.engine.open_database import contents, database
from tests.support.engine.open_handles import count_queued, count_waiters, writer_of
from tests.support.waiting import until

WAL = "namespaces/ns/wal/"
noise = random.Random(5).randbytes
PARALLEL = [1, 2, 8]


def slots(store: Store) -> list[int]:
    return [int(meta.key[-24:-4]) for meta in store.list(WAL)]


def objects(store: Store, kind: LogKind = LogKind.DATA) -> list[int]:
    """Return the number of records of each log object of a kind."""
    found = [decode_log(store.get(meta.key)) for meta in store.list(WAL)]
    return [len(log.records) for log in found if log.kind is kind]


def in_thread(kv: KeyValue, key: bytes, done: list[object]) -> threading.Thread:
    def run() -> None:
        try:
            done.append(kv.put(key, b"v").lsn)
        except ReefError as error:
            done.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def wait_until_queued(kv: KeyValue, count: int) -> None:
    until(lambda: count_queued(kv) == count, f"{count} are queued")


def test_batches_that_arrive_during_a_put_share_the_next_object(store: Store) -> None:
    gate = Gate(store)
    kv = database(gate).kv("ns")
    gate.is_open = False
    done: list[object] = []
    threads = [in_thread(kv, b"first", done)]
    gate.wait_until_held()
    threads += [in_thread(kv, b"k%d" % i, done) for i in range(10)]
    wait_until_queued(kv, 10)
    gate.is_open = True
    gate.let()
    for thread in threads:
        thread.join()
    assert objects(store) == [1, 10]
    assert len(set(done)) == 11
    assert sorted(unpack_lsn(lsn) for lsn in done) == [(2, 0), *((3, i) for i in range(10))]  # type: ignore[arg-type]
    assert len(contents(store)) == 11


def test_an_object_is_bounded_in_bytes_and_batches(store: Store) -> None:
    gate = Gate(store)
    kv = database(gate).kv("ns", log_segment_max_bytes="8KiB", group_commit_max_batches=3)
    gate.is_open = False
    done: list[object] = []
    threads = [in_thread(kv, b"first", done)]
    gate.wait_until_held()
    threads += [in_thread(kv, b"k%d" % i, done) for i in range(8)]
    wait_until_queued(kv, 8)
    gate.is_open = True
    gate.let()
    for thread in threads:
        thread.join()
    assert max(objects(store)) == 3
    with pytest.raises(InvalidInputError, match="log_segment_max_bytes"):
        kv.put(b"big", bytes(9 << 10))


def test_several_log_puts_are_in_flight_and_acks_come_in_slot_order(store: Store) -> None:
    gate = Gate(store)
    kv = database(gate).kv("ns", max_parallel_writes=3, group_commit_max_batches=1)
    gate.is_open = False
    done: list[object] = []
    threads = []
    for i in range(3):
        threads.append(in_thread(kv, b"k%d" % i, done))
        gate.wait_until_held()
    assert done == []
    gate.is_open = True
    gate.let(3)
    for thread in threads:
        thread.join()
    assert len(done) == 3
    assert objects(store, LogKind.FENCE) == [1, 1, 1]  # as many fences as writes in flight
    assert len(contents(store)) == 3


def test_log_puts_in_flight_reach_the_limit(store: Store) -> None:
    for seed in range(30):
        gate = Gate(store)
        kv = database(gate, seed=seed).kv("ns", max_parallel_writes=8, group_commit_max_batches=1)
        gate.is_open = False
        done: list[object] = []
        threads = [in_thread(kv, b"k%d" % i, done) for i in range(8)]
        gate.wait_until_held(8)  # all of them, before any is answered
        gate.is_open = True
        gate.let(8)
        for thread in threads:
            thread.join()
        assert len(done) == 8
        kv.close()


class Waits(SystemThreads):
    """Counts how often anybody waits."""

    def __init__(self) -> None:
        self.count = 0

    def condition(self) -> Condition:
        condition = super().condition()
        wait = condition.wait

        def counted(timeout: float | None = None) -> bool:
            self.count += 1
            return wait(timeout)

        condition.wait = counted  # type: ignore[method-assign]
        return condition


def test_a_lone_writer_never_waits_for_the_window(store: Store) -> None:
    threads = Waits()
    kv = Database(store, threads=threads).kv("ns")
    for i in range(20):
        kv.put(b"k%d" % i, b"v")
    assert objects(store) == [1] * 20
    assert threads.count == 0


@pytest.mark.slow
@pytest.mark.parametrize("parallel", PARALLEL)
@pytest.mark.parametrize(
    "kind", ["reply_lost", "error_after", "timeout_before", "conflict", "false_conflict"]
)
def test_a_lost_reply_at_every_put_fences_nobody_doubles_nothing_loses_nothing(
    store: Store, kind: str, parallel: int
) -> None:
    nth = 0
    while True:
        nth += 1
        inner = open_store("memory://")
        faulty = FaultyStore(inner, plan=[Fault(kind, on="put_if_absent", nth=nth)])  # type: ignore[arg-type]
        counting = CountingStore(faulty)
        kv = database(counting).kv("ns", max_parallel_writes=parallel)
        receipts = [kv.put(b"k%d" % i, b"v%d" % i) for i in range(6)]
        kv.flush()
        receipts += [kv.put(b"k%d" % i, b"w%d" % i) for i in range(3)]
        with kv.snapshot() as snapshot:
            kv.delete(b"k5")
            assert snapshot.get(b"k5") == b"v5"
        assert len({receipt.lsn for receipt in receipts}) == 9
        wanted = {b"k0": b"w0", b"k1": b"w1", b"k2": b"w2", b"k3": b"v3", b"k4": b"v4"}
        assert dict(kv.items()) == contents(inner) == wanted
        assert slots(inner) == list(range(1, 10 + parallel + 1))
        if not faulty.fired:
            assert nth > 10
            return


def outage(faulty: FaultyStore, key: str = f"{WAL}*", **more: object) -> None:
    """Lose the reply of the next log PUT, and let nobody read it back."""
    faulty.arm(Fault("reply_lost", on="put_if_absent", key=key))
    faulty.arm(Fault("error_before", on="get", key=key, times=1))


def test_an_unknown_outcome_is_asked_for_before_anything_else_is_sent(store: Store) -> None:
    faulty = FaultyStore(store)
    kv = database(faulty).kv("ns")
    kv.put(b"a", b"1")
    outage(faulty)
    with pytest.raises(OutcomeUnknownError):
        kv.put(b"b", b"2", idempotency_key="b")
    assert kv.get(b"b") is None  # not shown before it is known
    assert kv.put(b"c", b"3").lsn > 0
    assert kv.get(b"b") == b"2"
    again = kv.put(b"b", b"2", idempotency_key="b")
    assert again.replayed
    assert contents(store) == {b"a": b"1", b"b": b"2", b"c": b"3"}
    assert len(objects(store)) == 3


def test_while_the_outcome_stays_unknown_nothing_is_sent(store: Store) -> None:
    faulty = FaultyStore(store)
    kv = database(faulty).kv("ns", cas_max_retries=0)
    faulty.arm(Fault("timeout_before", on="put_if_absent", key=f"{WAL}*", times=3))
    with pytest.raises(OutcomeUnknownError):
        kv.put(b"a", b"1")
    before = slots(store)
    with pytest.raises(NotWrittenError, match="may or may not"):
        kv.put(b"b", b"2")
    assert slots(store) == before
    assert kv.get(b"a") is None
    assert kv.get(b"b") is None
    with pytest.raises(NotWrittenError):
        kv.put(b"b", b"2")
    kv.put(b"b", b"2")
    assert contents(store) == {b"a": b"1", b"b": b"2"}


@pytest.mark.parametrize("parallel", PARALLEL)
def test_a_write_that_was_refused_for_certain_is_never_visible(store: Store, parallel: int) -> None:
    faulty = FaultyStore(store)
    kv = database(faulty).kv("ns", max_parallel_writes=parallel)
    kv.put(b"a", b"1")
    faulty.arm(Fault("denied", on="put_if_absent", key=f"{WAL}*"))
    with pytest.raises(ReefError):
        kv.put(b"a", b"2")
    assert kv.get(b"a") == b"1"
    kv.put(b"b", b"3")
    assert dict(kv.items()) == contents(store) == {b"a": b"1", b"b": b"3"}
    slot_last = slots(store)[-1]
    assert slots(store) == list(range(1, slot_last + 1))


@pytest.mark.parametrize("parallel", [2, 8])
def test_a_refused_slot_among_several_ends_the_handle_and_nothing_of_it_is_seen(
    store: Store, parallel: int
) -> None:
    gate = Gate(store)
    kv = database(gate).kv("ns", max_parallel_writes=parallel, group_commit_max_batches=1)
    slot = kv.put(b"before", b"1").lsn >> 20
    gate.is_open = False
    gate.arm(Fault("denied", on="put_if_absent", key=log_key("ns", slot + 1)))
    done: list[object] = []
    threads = []
    for i in range(parallel):
        threads.append(in_thread(kv, b"k%d" % i, done))
        gate.wait_until_held()
    gate.is_open = True
    gate.let(parallel)
    for thread in threads:
        thread.join()
    assert all(isinstance(error, NotWrittenError | InvalidInputError) for error in done)
    with pytest.raises(ClosedError, match="open it again"):
        kv.put(b"later", b"1")
    again = database(store, seed=2).kv("ns")
    again.put(b"after", b"2")
    wanted = {b"before": b"1", b"after": b"2"}
    assert dict(again.items()) == contents(store) == wanted
    assert dict(kv.items()) == {b"before": b"1"}


@pytest.mark.parametrize("parallel", PARALLEL)
def test_a_fenced_writer_stays_fenced_and_shows_nothing_that_failed(
    store: Store, parallel: int
) -> None:
    old = database(store).kv("ns", max_parallel_writes=parallel)
    old.put(b"a", b"1")
    new = database(store, seed=2).kv("ns")
    for attempt in range(3):
        with pytest.raises(FencedError, match="open it again"):
            old.put(b"a", b"%d" % attempt)
    assert old.get(b"a") == b"1"
    new.put(b"b", b"2")
    with pytest.raises(FencedError):
        old.flush()
    assert contents(store) == {b"a": b"1", b"b": b"2"}


@pytest.mark.parametrize("parallel", [2, 8])
def test_everyone_above_the_durable_version_gets_the_one_error(store: Store, parallel: int) -> None:
    gate = Gate(store)
    kv = database(gate).kv("ns", max_parallel_writes=parallel, group_commit_max_batches=1)
    kv.put(b"before", b"1")
    gate.is_open = False
    done: list[object] = []
    threads = []
    for i in range(parallel):
        threads.append(in_thread(kv, b"k%d" % i, done))
        gate.wait_until_held()
    threads += [in_thread(kv, b"queued%d" % i, done) for i in range(3)]
    wait_until_queued(kv, 3)
    new = database(store, seed=2).kv("ns")
    gate.is_open = True
    gate.let(parallel)
    for thread in threads:
        thread.join()
    assert len(done) == parallel + 3
    assert {str(error) for error in done} == {str(writer_of(kv).failure)}
    assert all(isinstance(error, FencedError) for error in done)
    new.put(b"after", b"2")
    assert dict(kv.items()) == {b"before": b"1"}
    assert contents(store) == {b"before": b"1", b"after": b"2"}


# Conditions.


def test_create_only(store: Store) -> None:
    kv = database(store).kv("ns")
    kv.put(b"a", b"1", condition=CreateOnly())
    with pytest.raises(ConditionFailedError) as caught:
        kv.write({b"a": b"2", b"b": b"2"}, condition=CreateOnly())
    assert caught.value.outcomes == ("exists", "not applied")
    receipt = kv.write({b"a": b"2", b"b": b"2"}, condition=CreateOnly(), atomic=False)
    assert receipt.outcomes == ("exists", "written")
    assert receipt.applied == 1
    assert contents(store) == {b"a": b"1", b"b": b"2"}
    kv.delete(b"a")
    kv.flush()
    kv.put(b"a", b"3", condition=CreateOnly())
    assert kv.get(b"a") == b"3"


def test_must_exist_and_equals(store: Store) -> None:
    kv = database(store).kv("ns")
    with pytest.raises(ConditionFailedError) as caught:
        kv.put(b"a", b"1", condition=MustExist())
    assert caught.value.outcomes == ("missing",)
    kv.put(b"a", b"1")
    kv.flush()
    kv.put(b"a", b"2", condition=Equals(value=b"1"))
    with pytest.raises(ConditionFailedError):
        kv.delete(b"a", condition=Equals(value=b"1"))
    receipt = kv.write({b"a": b"3"}, [b"b"], condition=Equals(value=[b"2", b"x"]), atomic=False)
    assert receipt.outcomes == ("written", "missing")
    assert kv.delete(b"a", condition=MustExist()).outcomes == ("deleted",)
    assert contents(store) == {}
    with pytest.raises(InvalidInputError):
        kv.write({b"a": b"1"}, condition=Equals(value=[b"1", b"2"]))
    with pytest.raises(InvalidInputError):
        Equals()


def test_a_condition_sees_what_is_on_its_way_before_it(store: Store) -> None:
    gate = Gate(store)
    kv = database(gate).kv("ns")
    gate.is_open = False
    done: list[object] = []
    first = in_thread(kv, b"a", done)
    gate.wait_until_held()
    second = Beside(lambda: kv.put(b"a", b"other", condition=CreateOnly()))
    until(lambda: count_waiters(kv) > 0 or not second.is_alive())
    assert second.is_alive()  # told only once what it was held against is durable
    gate.is_open = True
    gate.let()
    first.join()
    refused = second.finish()
    assert isinstance(refused, ConditionFailedError)
    assert refused.outcomes == ("exists",)
    assert kv.get(b"a") == b"v"


# Idempotency.


def test_a_replay_returns_the_first_receipt_and_writes_nothing(store: Store) -> None:
    kv = database(store).kv("ns")
    kv.put(b"x", b"0")
    first = kv.write(
        {b"x": b"1", b"y": b"1"}, condition=CreateOnly(), atomic=False, idempotency_key="k"
    )
    assert first.outcomes == ("exists", "written")
    before = slots(store)
    again = kv.write(
        {b"x": b"1", b"y": b"1"}, condition=CreateOnly(), atomic=False, idempotency_key="k"
    )
    assert again == first
    assert again.replayed
    assert not first.replayed
    assert slots(store) == before
    with pytest.raises(IdempotencyError, match="another request"):
        kv.write({b"x": b"2"}, idempotency_key="k")
    with pytest.raises(IdempotencyError):
        kv.write({b"x": b"1", b"y": b"1"}, condition=CreateOnly(), idempotency_key="k")


@pytest.mark.parametrize("flushes", [False, True])
def test_a_replay_is_known_after_a_crash_and_on_another_machine(
    store: Store, flushes: bool
) -> None:
    kv = database(store).kv("ns")
    first = kv.write({b"x": b"1"}, [b"y"], idempotency_key=b"k")
    if flushes:
        kv.flush()
    kv.put(b"x", b"2")
    # Nobody closes it: this is a crash.
    other = database(store, seed=2).kv("ns")
    again = other.write({b"x": b"1"}, [b"y"], idempotency_key=b"k")
    assert again == first
    assert again.replayed
    assert other.get(b"x") == b"2"


def test_the_window_is_bounded_by_count_and_age(store: Store) -> None:
    clock = ManualClock()
    kv = database(store, clock=clock).kv("ns", dedup_max_keys=3, dedup_max_age="1h")
    for i in range(5):
        kv.put(b"a", b"%d" % i, idempotency_key=f"k{i}")
    assert kv.put(b"a", b"4", idempotency_key="k4").replayed
    assert not kv.put(b"a", b"0", idempotency_key="k0").replayed
    clock.advance(3601)
    assert not kv.put(b"a", b"4", idempotency_key="k4").replayed


def test_streams_keep_their_highest_sequence_and_never_age_out(store: Store) -> None:
    kv = database(store).kv("ns", dedup_max_keys=1)
    first = kv.write({b"a": b"5"}, source="s", sequence=5)
    for i in range(10):
        kv.put(b"b", b"%d" % i, idempotency_key=f"k{i}")
    kv.flush()
    other = database(store, seed=2).kv("ns", dedup_max_keys=1)
    for sequence in (1, 5):
        again = other.write({b"a": b"old"}, source="s", sequence=sequence)
        assert again.replayed
        assert again.lsn == first.lsn
    assert not other.write({b"a": b"6"}, source="s", sequence=6).replayed
    assert other.get(b"a") == b"6"
    with pytest.raises(InvalidInputError):
        other.write({b"a": b"6"}, source="s")


def test_two_threads_with_the_same_key_commit_once(store: Store) -> None:
    gate = Gate(store)
    kv = database(gate).kv("ns")
    gate.is_open = False
    receipts: list[object] = []

    def run() -> None:
        receipts.append(kv.put(b"a", b"1", idempotency_key="k"))

    threads = [threading.Thread(target=run) for _ in range(4)]
    threads[0].start()
    gate.wait_until_held()
    for thread in threads[1:]:
        thread.start()
    gate.is_open = True
    gate.let()
    for thread in threads:
        thread.join()
    assert len(set(receipts)) == 1
    assert len(receipts) == 4
    assert objects(store) == [1]


# Pressure, and input.


def test_writes_wait_for_room_and_then_fail_with_a_clear_error(store: Store) -> None:
    faulty = FaultyStore(store)
    db = database(faulty, memtable_max_bytes="64KiB", flush_threshold_bytes="32KiB")
    kv = db.kv("ns", flush_interval=0)
    for i in range(40):  # flushes keep up
        kv.put(b"k%d" % i, noise(8000))
    assert kv.stats()["levels"]["0"]["segments"] > 2
    kv.close()
    kv = db.kv("ns", flush_interval=0, write_stall_timeout="50ms")
    faulty.arm(Fault("error_before", on="upload", times=1000))
    with pytest.raises(OverloadedError, match="memtable_max_bytes"):
        for i in range(40):
            kv.put(b"l%d" % i, noise(8000))
    held = kv.stats()["memtable"]["bytes"]
    assert held <= 64 << 10


def test_the_unfolded_log_is_bounded(store: Store) -> None:
    faulty = FaultyStore(store)
    kv = database(faulty).kv(
        "ns", unfolded_log_max_bytes="64KiB", write_stall_timeout="50ms", flush_interval=0
    )
    faulty.arm(Fault("error_before", on="upload", times=1000))
    with pytest.raises(OverloadedError, match="unfolded_log_max_bytes"):
        for i in range(40):
            kv.put(b"k%d" % i, noise(8000))
    assert kv.stats()["unfolded_log"]["bytes"] <= (64 << 10) + 10_000


@pytest.mark.parametrize(
    "write",
    [
        lambda kv: kv.put("text", b"v"),
        lambda kv: kv.put(b"k", "text"),
        lambda kv: kv.put(b"k" * 5000, b"v"),
        lambda kv: kv.write({}),
        lambda kv: kv.write({b"a": b"1"}, [b"a"]),
        lambda kv: kv.write({b"a": b"1"}, [b"b", b"b"]),
        lambda kv: kv.write([(b"a", b"1")]),
        lambda kv: kv.write(deletes=b"key"),
        lambda kv: kv.put(b"a", b"1", idempotency_key=""),
        lambda kv: kv.put(b"a", b"1", idempotency_key="\ud800"),
        lambda kv: kv.write({b"a": b"1"}, source="\ud800", sequence=1),
        lambda kv: kv.write({b"a": b"1"}, sequence=3),
        lambda kv: kv.write({b"a": b"1"}, source="s", sequence=1.5),
        lambda kv: kv.write({b"a": b"1"}, source="s", sequence=True),
        lambda kv: kv.write({b"a": b"1"}, source=3, sequence=1),
        lambda kv: kv.put(b"a", b"1", condition=Equals(value="text")),
        lambda kv: kv.put(b"a", b"1", condition=Equals(other=b"1")),
        lambda kv: kv.at(lsn="1"),
        lambda kv: kv.get(b"a", min_lsn=1.5),
        lambda kv: kv.snapshot(id="../x"),
        lambda kv: kv.write({b"a": b"1"}, source="s"),
        lambda kv: kv.put(b"a", b"1", idempotency_key=5),
        lambda kv: kv.put(b"a", b"1", condition=CreateOnly),
        lambda kv: kv.at(),
        lambda kv: kv.at(lsn=1, generation=1),
        lambda kv: kv.snapshot(ttl=-1),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(store: Store, write: object) -> None:
    kv = database(store).kv("ns")
    before = slots(store)
    with pytest.raises(InvalidInputError):
        write(kv)  # type: ignore[operator]
    assert slots(store) == before


def test_a_closed_handle_and_a_reader_refuse_to_write(store: Store) -> None:
    kv = database(store).kv("ns")
    kv.put(b"a", b"1")
    reader = database(store, seed=2).kv("ns", mode="r")
    with pytest.raises(InvalidInputError, match="this handle is read-only"):
        reader.put(b"a", b"2")
    kv.close()
    for action in (lambda: kv.put(b"a", b"2"), kv.changes):
        with pytest.raises(ClosedError):
            action()
    with pytest.raises(InvalidInputError):
        Database(store).kv("ns", mode="x")
    with pytest.raises(UnavailableError):
        reader.get(b"a", min_lsn=reader.lsn + 1)
