"""Trouble on the commit path: strange objects, failed flushes, closing, repair."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from reef import CreateOnly, Receipt
from reef.clock import Clock
from reef.database import Database
from reef.doctor import repair
from reef.engine._commit._log_writer import LogWriter
from reef.engine._commit._queue import DURABLE, Answer, Group
from reef.engine._commit._receipt import pack_codes, unpack_codes
from reef.engine._memtable._memtable import Memtable
from reef.errors import (
    ClosedError,
    FormatVersionError,
    NotWrittenError,
    OutcomeUnknownError,
    OverloadedError,
    ReefError,
    UnavailableError,
)
from reef.format import (
    LogKind,
    LogObject,
    LogRecord,
    SegmentOrigin,
    encode_log,
    log_key,
    manifest_key,
)
from reef.kv import KeyValue
from reef.segment import write_segment
from reef.store import Store
from reef.testing import CountingStore, Fault, FaultyStore, ManualClock
from reef.threads import Joinable, SystemThreads
from reef.types import new_nonce, new_ulid, pack_lsn, unpack_lsn
from tests.support.engine.calls_beside import Beside
from tests.support.engine.damage import flip
from tests.support.engine.open_database import contents, database
from tests.support.engine.open_handles import (
    await_flush,
    context_of,
    count_waiters,
    flush_failure,
    handle_of,
    writer_of,
)
from tests.support.waiting import DEADLINE_SECONDS, until


def test_an_object_of_another_version_in_our_slot_ends_the_writer_and_hangs_nobody(
    store: Store,
) -> None:
    kv = database(store).kv("ns")
    slot = kv.put(b"a", b"1").lsn >> 20
    data = bytearray(store.get(log_key("ns", slot)))
    data[8] = 2
    store.put_if_absent(log_key("ns", slot + 1), bytes(data))
    for _ in range(2):
        with pytest.raises(FormatVersionError):
            kv.put(b"b", b"2")
    with pytest.raises(FormatVersionError):
        kv.flush()
    assert dict(kv.items()) == {b"a": b"1"}
    kv.close()


def small(store: Store, clock: Clock | None = None, **more: object) -> KeyValue:
    settings = {"memtable_max_bytes": "24KiB", "flush_threshold_bytes": "1MiB", "flush_interval": 0}
    return database(store, clock=clock).kv("ns", **(settings | more))


def test_one_failed_flush_does_not_fail_the_writes_that_wait_for_it(store: Store) -> None:
    faulty = FaultyStore(store)
    kv = small(faulty)
    kv.put(b"a", bytes(12_000))
    faulty.arm(Fault("error_before", on="upload"))
    assert isinstance(Beside(lambda: kv.put(b"b", bytes(12_000)).lsn).finish(), int)
    assert len(contents(store)) == 2


def test_writes_that_may_not_wait_begin_a_flush_all_the_same(store: Store) -> None:
    kv = small(store, write_stall_timeout=0)
    refused = 0
    for i in range(40):
        try:
            kv.put(b"k%d" % i, bytes(4_000))
        except OverloadedError:
            refused += 1
        await_flush(kv)
    assert 0 < refused < 20


def test_the_overload_error_tells_why_the_flush_failed(store: Store) -> None:
    faulty, clock = FaultyStore(store), ManualClock()
    kv = small(faulty, clock)
    kv.put(b"a", bytes(12_000))
    faulty.arm(Fault("error_before", on="upload", times=0))
    waiting = Beside(lambda: kv.put(b"b", bytes(12_000)))
    until(lambda: flush_failure(kv))
    clock.advance(context_of(kv).settings.write_stall_timeout)
    error = waiting.finish()
    assert isinstance(error, OverloadedError)
    assert "500 Internal Server Error" in str(error)


class NoThreads(SystemThreads):
    """A machine that has no thread left."""

    def start(self, target: Callable[[], None], *, name: str) -> Joinable:
        raise RuntimeError("can't start new thread")


def test_without_a_thread_to_flush_a_write_is_still_a_write(store: Store) -> None:
    kv = Database(store, threads=NoThreads()).kv("ns", flush_threshold_slots=1)
    for i in range(3):
        kv.put(b"k%d" % i, b"v")
    kv.flush()
    kv.close()
    assert len(contents(store)) == 3


def test_writes_that_wait_for_room_are_told_of_the_close(store: Store) -> None:
    faulty = FaultyStore(store)
    kv = small(faulty)
    kv.put(b"a", bytes(12_000))
    faulty.arm(Fault("error_before", on="upload", times=0))
    waiting = Beside(lambda: kv.put(b"b", bytes(12_000)))
    until(lambda: context_of(kv).metrics.snapshot().get("reef_write_stalls_total"))
    kv.close()
    assert isinstance(waiting.finish(), ClosedError)
    assert list(contents(store)) == [b"a"]
    with pytest.raises(ClosedError):
        kv.get(b"a")


def test_a_refusal_that_waited_for_an_unknown_outcome_was_not_written(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv = database(store).kv("ns")
    entered, go = threading.Event(), threading.Event()

    def unknown(self: LogWriter, group: Group) -> Answer:
        entered.set()
        go.wait(DEADLINE_SECONDS)
        return Answer("unknown", OutcomeUnknownError(log_key("ns", group.slot), "a test"))

    monkeypatch.setattr(LogWriter, "put", unknown)
    first = Beside(lambda: kv.put(b"x", b"1"))
    assert entered.wait(DEADLINE_SECONDS)
    second = Beside(lambda: kv.put(b"x", b"2", condition=CreateOnly()))
    until(lambda: count_waiters(kv) > 0 or not second.is_alive())
    go.set()
    assert isinstance(first.finish(), OutcomeUnknownError)
    assert isinstance(second.finish(), NotWrittenError)


def answering(
    monkeypatch: pytest.MonkeyPatch, answers: dict[bytes, Callable[[], Answer]]
) -> list[bytes]:
    """Let the first PUT of some keys be answered like that; return the keys that are sent."""
    put = LogWriter.put
    sent: list[bytes] = []

    def answered(self: LogWriter, group: Group) -> Answer:
        key = group.tickets[0].request.batch.column(0)[0].as_py()
        sent.append(key)
        if key in answers and sent.count(key) == 1:
            return answers[key]()
        return put(self, group)

    monkeypatch.setattr(LogWriter, "put", answered)
    return sent


@pytest.mark.parametrize("kind", ["refused", "unknown"])
def test_nothing_is_sent_behind_one_that_was_answered_and_is_not_durable(
    store: Store, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    kv = database(store).kv("ns", max_parallel_writes=3, group_commit_max_batches=1)
    kv.put(b"0", b"0")
    arrived, go, failed = threading.Event(), threading.Event(), threading.Event()

    def held() -> Answer:
        arrived.set()
        assert go.wait(DEADLINE_SECONDS)
        return DURABLE

    def failing() -> Answer:
        failed.set()
        if kind == "refused":
            return Answer("refused", UnavailableError("503"))
        return Answer("unknown", OutcomeUnknownError("key", "a test"))

    # The first one is not put at all, so nothing may be durable behind it.
    sent = answering(monkeypatch, {b"first": held, b"second": failing})
    first = Beside(lambda: kv.put(b"first", b"1"))
    assert arrived.wait(DEADLINE_SECONDS)
    second = Beside(lambda: kv.put(b"second", b"2"))
    assert failed.wait(DEADLINE_SECONDS)
    until(lambda: count_waiters(kv) > 0 or not second.is_alive())
    third = Beside(lambda: kv.put(b"third", b"3"))
    until(lambda: count_waiters(kv) > 1 or not third.is_alive())
    assert sent == [b"first", b"second"]
    go.set()
    first.finish()
    expected = UnavailableError if kind == "refused" else OutcomeUnknownError
    assert isinstance(second.finish(), expected)
    assert isinstance(third.finish(), NotWrittenError)
    assert kv.put(b"after", b"4").lsn  # the handle goes on


def test_an_interrupted_encoder_behind_a_refused_slot_leaves_nobody_waiting(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv = database(store).kv("ns", max_parallel_writes=2, group_commit_max_batches=1)
    kv.put(b"0", b"0")
    arrived, go = threading.Event(), threading.Event()
    entered, interrupt = threading.Event(), threading.Event()
    encode = LogWriter.encode

    def refused() -> Answer:
        arrived.set()
        assert go.wait(DEADLINE_SECONDS)
        return Answer("refused", UnavailableError("503"))

    def held_encode(self: LogWriter, group: Group) -> Answer | None:
        key = group.tickets[0].request.batch.column(0)[0].as_py()
        if key == b"second" and not entered.is_set():
            entered.set()
            assert interrupt.wait(DEADLINE_SECONDS)
            raise KeyboardInterrupt
        return encode(self, group)

    answering(monkeypatch, {b"first": refused})
    monkeypatch.setattr(LogWriter, "encode", held_encode)
    first = Beside(lambda: kv.put(b"first", b"1"))
    assert arrived.wait(DEADLINE_SECONDS)
    second = Beside(lambda: kv.put(b"second", b"2"))
    assert entered.wait(DEADLINE_SECONDS)
    go.set()
    assert isinstance(first.finish(), UnavailableError)  # nothing was sent behind it
    interrupt.set()
    second.finish()
    kv.put(b"third", b"3")
    assert contents(store)[b"third"] == b"3"


def test_nothing_is_sent_behind_an_object_that_is_not_encoded_yet(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv = database(store).kv("ns", max_parallel_writes=3, group_commit_max_batches=1)
    encode, put = LogWriter.encode, LogWriter.put
    entered, go = threading.Event(), threading.Event()
    arrived, answered = threading.Event(), threading.Event()

    def held_encode(self: LogWriter, group: Group) -> Answer | None:
        if group.slot == second_slot:
            entered.set()
            assert go.wait(DEADLINE_SECONDS)
        return encode(self, group)

    def held_put(self: LogWriter, group: Group) -> Answer:
        if group.slot == second_slot - 1:
            arrived.set()
            assert answered.wait(DEADLINE_SECONDS)
        return put(self, group)

    second_slot = unpack_lsn(kv.put(b"before", b"0").lsn)[0] + 2
    monkeypatch.setattr(LogWriter, "encode", held_encode)
    monkeypatch.setattr(LogWriter, "put", held_put)
    first = Beside(lambda: kv.put(b"first", b"1"))
    assert arrived.wait(DEADLINE_SECONDS)
    second = Beside(lambda: kv.put(b"second", b"2"))
    assert entered.wait(DEADLINE_SECONDS)
    answered.set()
    # Its PUT is over while the second one is being encoded.
    assert isinstance(first.finish(), Receipt)
    third = Beside(lambda: kv.put(b"third", b"3"))
    until(lambda: count_waiters(kv) > 0 or not third.is_alive())
    go.set()
    assert isinstance(second.finish(), Receipt)
    assert isinstance(third.finish(), Receipt)
    expected = {b"before": b"0", b"first": b"1", b"second": b"2", b"third": b"3"}
    assert dict(kv.items()) == contents(store) == expected


def test_a_condition_that_cannot_be_evaluated_was_not_written(store: Store) -> None:
    faulty = FaultyStore(store)
    kv = database(faulty).kv("ns")
    kv.put(b"a", b"1")
    kv.flush()
    faulty.arm(Fault("error_before", on="get_range", times=0))
    with pytest.raises(NotWrittenError, match="condition"):
        kv.put(b"a", b"2", condition=CreateOnly())


@pytest.mark.parametrize(
    "codes", [b"", b"\0", b"\0" * 1000, b"\1" * 7, b"\0\1\2" * 50, b"\0" * 500 + b"\2" * 500]
)
def test_codes_come_back_as_they_were(codes: bytes) -> None:
    assert unpack_codes(pack_codes(codes)) == codes
    assert len(pack_codes(codes)) <= len(codes) + 1


# Readers.


def test_a_reader_goes_on_when_repair_went_back_a_generation(store: Store) -> None:
    kv = database(store).kv("ns")
    kv.put(b"a", b"1")
    kv.flush()
    kv.put(b"b", b"2")
    kv.flush()
    reader = database(store).kv("ns", mode="r")
    flip(store, manifest_key("ns", reader.stats()["generation"]))
    assert repair(database(store).context(), "ns", apply=True).is_mended
    handle_of(reader).reload()
    assert dict(reader.items()) == contents(store) == {b"a": b"1", b"b": b"2"}
    with pytest.raises(ReefError):
        kv.put(b"c", b"3")
    assert dict(kv.items()) == {b"a": b"1", b"b": b"2"}


def test_a_reader_that_met_damage_goes_on_when_it_is_repaired(store: Store) -> None:
    kv = database(store).kv("ns")
    kv.put(b"a", b"1")
    reader = database(store).kv("ns", mode="r")
    lost = kv.put(b"b", b"2")
    kv.put(b"c", b"3")
    whole = flip(store, log_key("ns", lost.lsn >> 20))
    with pytest.raises(ReefError, match="reef repair"):
        reader.refresh()
    assert repair(database(store).context(), "ns", apply=True).is_mended
    reader.refresh()
    assert dict(reader.items()) == {b"a": b"1", b"c": b"3"}
    assert whole


def test_a_reader_that_met_damage_on_the_way_reads_again(store: Store) -> None:
    kv = database(store).kv("ns")
    kv.put(b"a", b"1")
    reader = database(store).kv("ns", mode="r")
    slot = kv.put(b"b", b"2").lsn >> 20
    kv.put(b"c", b"3")
    whole = flip(store, log_key("ns", slot))
    with pytest.raises(ReefError):
        reader.refresh()
    store.delete(log_key("ns", slot))
    store.put_if_absent(log_key("ns", slot), whole)
    reader.refresh()
    assert dict(reader.items()) == {b"a": b"1", b"b": b"2", b"c": b"3"}


def test_many_reads_of_a_stale_reader_look_once(store: Store) -> None:
    clock = ManualClock()
    kv = database(store, clock=clock).kv("ns")
    kv.put(b"a", b"1")
    counting = CountingStore(store)
    reader = database(counting, clock=clock).kv("ns", mode="r")
    clock.advance(5)
    counting.reset()
    started = threading.Barrier(8)

    def read() -> bytes | None:
        started.wait(DEADLINE_SECONDS)
        return reader.get(b"a")

    reads = [Beside(read) for _ in range(8)]
    assert [one.finish() for one in reads] == [b"1"] * 8
    assert counting.reset().requests == {"get": 1}


def test_a_follower_sees_segments_that_the_log_attaches(store: Store) -> None:
    db = database(store)
    kv = db.kv("ns")
    kv.put(b"a", b"1")
    reader = database(store).kv("ns", mode="r")
    writer, context = writer_of(kv), db.context()
    slot = writer.tail.replay.next_slot
    lsn = pack_lsn(slot, 0)
    rows = Memtable()
    rows.apply(
        lsn, next(iter(writer.tail.memtable.flush_batches(writer.lsn))).drop_columns(["_lsn"])
    )
    batches = list(rows.flush_batches(lsn))
    origin = SegmentOrigin(
        id=f"{new_ulid(context.clock, context.rng)}-load-1",
        namespace="ns",
        level=0,
        author="load",
        created_at_us=1,
    )
    ref = write_segment(store, "ns", batches[0].schema, origin, None, batches)
    attached = type(ref)(*[getattr(ref, name) for name in ref.__struct_fields__[:11]], version=lsn)
    log = LogObject(
        kind=LogKind.ATTACH,
        slot=slot,
        epoch=writer.epoch,
        writer_id=bytes(16),
        nonce=new_nonce(context.rng),
        created_at_us=1,
        prev=writer.tail.replay.point.prev,
        records=(LogRecord(lsn=lsn, segments=(attached,)),),
    )
    store.put_if_absent(log_key("ns", slot), encode_log(log))
    assert reader.refresh() == lsn
    found = handle_of(reader).one(b"a")
    assert found is not None
    assert found.lsn == lsn
