"""Opening: replay, damage, fences, epochs; and flushing, by the writer and by somebody else."""

from __future__ import annotations

import logging

import pytest

from reef.database import Database
from reef.errors import (
    AccessDeniedError,
    CorruptError,
    FencedError,
    InvalidInputError,
    OutcomeUnknownError,
)
from reef.format import (
    LogKind,
    SegmentOrigin,
    WalAnchor,
    decode_log,
    decode_manifest,
    log_key,
    manifest_key,
)
from reef.log import LogReader, Replay
from reef.manifest import advance_floor, register_intent
from reef.segment import write_segment
from reef.store import Store
from reef.testing import CountingStore, Fault, FaultyStore
from reef.types import new_ulid
from tests.support.engine.damage import flip
from tests.support.engine.open_database import contents, database
from tests.support.engine.open_handles import await_flush, writer_of


def fences(store: Store) -> list[tuple[int, int]]:
    """Return (slot, epoch) of each fence."""
    logs = [decode_log(store.get(meta.key)) for meta in store.list("namespaces/ns/wal/")]
    return [(log.slot, log.epoch) for log in logs if log.kind is LogKind.FENCE]


def head_generation(store: Store) -> int:
    return max(int(m.key.rsplit("/", 1)[1][:20]) for m in store.list("namespaces/ns/manifest/"))


def test_what_was_committed_is_there_after_a_crash(store: Store) -> None:
    kv = database(store).kv("ns")
    kv.write({b"k%d" % i: b"%d" % i for i in range(50)})
    kv.delete(b"k7")
    # Nobody closes it.
    again = database(store, seed=2).kv("ns")
    assert len(dict(again.items())) == 49
    assert again.get(b"k7") is None


def test_behind_a_writer_that_was_closed_no_fence_is_put(store: Store) -> None:
    kv = database(store).kv("ns")
    kv.put(b"a", b"1")
    counting = CountingStore(store)
    kv = database(counting, seed=2).kv("ns")
    assert len(fences(store)) == 2
    kv.put(b"b", b"2")
    before = head_generation(store)
    before_close = counting.counts
    kv.close()
    kv.close()
    assert (counting.counts - before_close).requests == {"put_if_absent": 1, "list": 1}
    assert head_generation(store) == before + 1
    counting = CountingStore(store)
    kv = database(counting, seed=3).kv("ns")
    assert len(fences(store)) == 2
    # The manifest, the log before the epoch, the epoch; and nobody looks at the head again.
    requests = counting.counts.requests
    assert (requests["put_if_absent"], requests["list"]) == (1, 3)
    kv.put(b"c", b"3")
    assert contents(store) == {b"a": b"1", b"b": b"2", b"c": b"3"}
    database(store, seed=4).kv("ns")
    assert len(fences(store)) == 3  # the last one is open still
    with pytest.raises(FencedError):
        kv.put(b"d", b"4")


def test_one_of_two_openers_goes_by_the_end_of_the_writer_before(store: Store) -> None:
    database(store).kv("ns").close()
    first, second = (database(store, seed=seed).kv("ns") for seed in (2, 3))
    assert [epoch for _, epoch in fences(store)] == [1, 3]
    second.put(b"b", b"2")
    with pytest.raises(FencedError):
        first.put(b"a", b"1")
    first.close()  # it was fenced: it is not the one that ends
    second.close()
    database(store, seed=4).kv("ns").put(b"c", b"3")
    assert [epoch for _, epoch in fences(store)] == [1, 3]
    assert contents(store) == {b"b": b"2", b"c": b"3"}


def test_a_refused_write_is_not_relied_upon_at_close(store: Store) -> None:
    """The store said that nothing was written; if it was wrong, the next writer would not know."""
    faulty = FaultyStore(store)
    kv = database(faulty).kv("ns")
    faulty.arm(Fault("denied", on="put_if_absent", key="*/wal/*"))
    with pytest.raises(AccessDeniedError):
        kv.put(b"a", b"1")
    kv.close()
    kv = database(faulty, seed=2).kv("ns")
    assert [epoch for _, epoch in fences(store)] == [1, 2]
    faulty.arm(Fault("denied", on="put_if_absent", key="*/wal/*"))
    with pytest.raises(AccessDeniedError):
        kv.put(b"a", b"1")
    kv.put(b"b", b"2")  # in that slot
    kv.close()
    database(store, seed=3).kv("ns")
    assert [epoch for _, epoch in fences(store)] == [1, 2]


def test_an_end_that_cannot_be_published_costs_a_fence_and_no_more(store: Store) -> None:
    faulty = FaultyStore(store)
    kv = database(faulty).kv("ns")
    kv.put(b"a", b"1")
    faulty.arm(Fault("denied", on="put_if_absent", key="*/manifest/*", times=0))
    kv.close()
    database(store, seed=2).kv("ns")
    assert [epoch for _, epoch in fences(store)] == [1, 2]


def test_a_damaged_head_was_not_committed_and_is_skipped_by_name(store: Store) -> None:
    kv = database(store).kv("ns")
    kv.put(b"a", b"1")
    lost = kv.put(b"b", b"2")
    flip(store, log_key("ns", lost.lsn >> 20))
    assert contents(store) == {b"a": b"1"}
    again = database(store, seed=2).kv("ns")
    assert dict(again.items()) == {b"a": b"1"}
    again.put(b"c", b"3")
    assert contents(store) == {b"a": b"1", b"c": b"3"}
    fence = decode_log(store.get(log_key("ns", (lost.lsn >> 20) + 1)))
    assert [skip.slot for skip in fence.records[0].skipped] == [lost.lsn >> 20]
    again.flush()
    assert contents(store) == {b"a": b"1", b"c": b"3"}
    assert dict(database(store, seed=3).kv("ns").items()) == {b"a": b"1", b"c": b"3"}


def test_a_damaged_object_followed_by_others_needs_repair(store: Store) -> None:
    kv = database(store).kv("ns")
    first = kv.put(b"a", b"1")
    kv.put(b"b", b"2")
    flip(store, log_key("ns", first.lsn >> 20))
    before = [meta.key for meta in store.list("namespaces/ns/wal/")]
    for mode in ("r", "w"):
        with pytest.raises(CorruptError, match="reef repair"):
            database(store, seed=2).kv("ns", mode=mode)
    assert [meta.key for meta in store.list("namespaces/ns/wal/")] == before


def test_a_log_object_that_is_gone_is_no_end_of_the_log(store: Store) -> None:
    kv = database(store).kv("ns")
    receipts = [kv.put(b"k%d" % i, b"v") for i in range(3)]
    with kv.snapshot(ttl=None, id="seen"):
        pass
    store.delete(log_key("ns", receipts[1].lsn >> 20))
    before = [meta.key for meta in store.list("namespaces/ns/")]
    for mode in ("r", "w"):
        with pytest.raises(CorruptError, match="reef repair"):
            database(store, seed=2).kv("ns", mode=mode)
    assert [m.key for m in store.list("namespaces/ns/wal/")] == [k for k in before if "/wal/" in k]


def test_a_damaged_manifest_serves_reads_loudly_and_refuses_writers(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    kv = database(store).kv("ns")
    kv.put(b"a", b"1")
    kv.flush()
    kv.put(b"b", b"2")
    kv.flush()
    flip(store, manifest_key("ns", head_generation(store)))
    with caplog.at_level(logging.ERROR, logger="reef"):
        assert contents(store) == {b"a": b"1", b"b": b"2"}  # the log is still there
    assert "fell back to generation 2" in caplog.text
    before = head_generation(store)
    with pytest.raises(CorruptError, match="reef repair"):
        database(store, seed=2).kv("ns")
    assert head_generation(store) == before


def test_reads_from_a_damaged_segment_raise_and_never_lie(store: Store) -> None:
    kv = database(store).kv("ns")
    kv.put(b"a", b"1")
    kv.flush()
    (segment,) = store.list("namespaces/ns/segments/")
    data = bytearray(store.get(segment.key))
    for at in range(100, len(data), 97):
        data[at] ^= 0xFF
    store.delete(segment.key)
    store.put_if_absent(segment.key, bytes(data))
    reader = database(store).kv("ns", mode="r")
    with pytest.raises(CorruptError):
        reader.get(b"a")
    with pytest.raises(CorruptError):
        list(reader.items())


def test_replay_fetches_many_slots_at_once(store: Store) -> None:
    kv = database(store).kv("ns")
    for i in range(100):
        kv.put(b"k%d" % i, b"v")
    asked: list[int] = []

    class Windows(CountingStore):
        def get_many(self, keys: object) -> object:
            asked.append(len(keys))  # type: ignore[arg-type]
            return super().get_many(keys)  # type: ignore[arg-type]

    manifest = decode_manifest(store.get(manifest_key("ns", 1)))
    entries = LogReader(Windows(store), "ns", "packed").read(Replay.of(manifest))
    assert len(list(entries)) == 101
    assert max(asked) > 8
    assert sum(asked) <= 2 * 102


# Fences.


def test_opening_puts_a_fence_for_each_put_an_older_writer_may_have_in_flight(store: Store) -> None:
    database(store).kv("ns", max_parallel_writes=8)
    assert fences(store) == [(slot, 1) for slot in range(1, 9)]
    # Fewer from now on: but the one before may have had eight in flight.
    database(store, seed=2).kv("ns", max_parallel_writes=1)
    assert fences(store)[8:] == [(slot, 2) for slot in range(9, 17)]
    database(store, seed=3).kv("ns")
    assert fences(store)[16:] == [(17, 3)]
    assert (
        decode_manifest(store.get(manifest_key("ns", head_generation(store)))).max_parallel_writes
        == 1
    )


def test_an_opener_that_dies_before_its_fences_does_not_hide_how_many_are_needed(
    store: Store,
) -> None:
    database(store).kv("ns", max_parallel_writes=8)
    faulty = FaultyStore(store)
    faulty.arm(Fault("denied", on="put_if_absent", key="*/wal/*"))
    with pytest.raises(InvalidInputError):
        database(faulty, seed=2).kv("ns", max_parallel_writes=1)
    database(store, seed=3).kv("ns", max_parallel_writes=1)
    assert [slot for slot, epoch in fences(store) if epoch == 3] == list(range(9, 17))


def test_a_lost_fence_reply_that_nobody_can_read_fails_the_open_and_the_next_succeeds(
    store: Store,
) -> None:
    faulty = FaultyStore(store)
    faulty.arm(Fault("reply_lost", on="put_if_absent", key="*/wal/*"))
    faulty.arm(Fault("error_before", on="get", key="*/wal/*", nth=2))
    with pytest.raises(OutcomeUnknownError):
        database(faulty).kv("ns")
    kv = database(store, seed=2).kv("ns")
    kv.put(b"a", b"1")
    assert contents(store) == {b"a": b"1"}


def test_a_writer_that_opened_meanwhile_fences_the_opener(store: Store) -> None:
    class Overtaken(FaultyStore):
        """Lets somebody else open the namespace between the epoch and the fence."""

        def put_if_absent(self, key: str, data: object) -> None:
            if key == log_key("ns", 1):
                database(store, seed=9).kv("ns").put(b"theirs", b"1")
            super().put_if_absent(key, data)  # type: ignore[arg-type]

    with pytest.raises(FencedError):
        database(Overtaken(store)).kv("ns")
    assert contents(store) == {b"theirs": b"1"}


def test_the_face_of_a_namespace_is_checked(store: Store) -> None:
    database(store).kv("ns")
    manifest = decode_manifest(store.get(manifest_key("ns", 1)))
    assert b"reef:face" in manifest.schema
    with pytest.raises(InvalidInputError):
        database(store).kv("../ns")


# Flushes.


def test_flush_by_size_by_slots_by_time_and_by_call(store: Store) -> None:
    from reef.testing import ManualClock

    clock = ManualClock()
    db = database(store, clock=clock)
    kv = db.kv("ns", flush_threshold_bytes="64KiB", flush_threshold_slots=20, flush_interval="5s")

    def segments() -> int:
        await_flush(kv)
        return int(kv.stats()["levels"].get("0", {"segments": 0})["segments"])

    kv.flush()
    assert segments() == 0
    kv.put(b"a", b"1")
    kv.flush()
    assert segments() == 1
    kv.write({b"k%d" % i: bytes(1000) for i in range(70)})
    assert segments() == 2
    for i in range(25):
        kv.put(b"s%d" % i, b"v")
    assert segments() == 3
    kv.put(b"t", b"v")
    clock.advance(6)
    kv.put(b"u", b"v")
    assert segments() == 4
    assert kv.stats()["memtable"]["rows"] <= 5


def test_a_failed_flush_loses_nothing_and_is_tried_again(store: Store) -> None:
    faulty = FaultyStore(store)
    kv = database(faulty).kv("ns")
    kv.put(b"a", b"1", idempotency_key="k")
    for kind, on, key in (
        ("error_before", "upload", "*"),
        ("reply_lost", "upload", "*"),
        ("denied", "put_if_absent", "*/manifest/*"),
    ):
        faulty.arm(Fault(kind, on=on, key=key))  # type: ignore[arg-type]
        with pytest.raises(Exception):  # noqa: B017
            kv.flush()
        assert dict(kv.items()) == contents(store) == {b"a": b"1"}
    kv.flush()
    assert kv.stats()["memtable"]["rows"] == 0
    assert dict(kv.items()) == contents(store) == {b"a": b"1"}


def test_a_flush_whose_publish_is_unknown_finds_out_the_next_time(store: Store) -> None:
    faulty = FaultyStore(store)
    kv = database(faulty).kv("ns")
    kv.put(b"a", b"1")
    faulty.arm(Fault("reply_lost", on="put_if_absent", key="*/manifest/*"))
    faulty.arm(Fault("error_before", on="get", key="*/manifest/*"))
    with pytest.raises(OutcomeUnknownError):
        kv.flush()
    kv.put(b"b", b"2")
    kv.flush()
    assert dict(kv.items()) == contents(store) == {b"a": b"1", b"b": b"2"}
    assert len(list(store.list("namespaces/ns/segments/"))) <= 3
    assert kv.stats()["levels"]["0"]["rows"] == 2


def test_a_writer_notices_that_somebody_else_has_folded_and_drops_that_part(store: Store) -> None:
    db = database(store)
    kv = db.kv("ns")
    kv.put(b"a", b"1")
    kv.put(b"b", b"2")
    fold_as_a_job(db, kv.stats()["wal_floor"], kv)
    kv.put(b"c", b"3")
    kv.flush()
    assert dict(kv.items()) == contents(store) == {b"a": b"1", b"b": b"2", b"c": b"3"}
    levels = kv.stats()["levels"]["0"]
    assert (levels["segments"], levels["rows"]) == (2, 3)  # c alone in the second
    assert kv.stats()["memtable"]["rows"] == 0


def fold_as_a_job(db: Database, slot_first: int, kv: object) -> None:
    """Fold the log as the pipeline does: under an intent, by somebody who is not the writer."""
    context = db.context()
    chain = context.chain("ns")
    job = "index-1"
    chain.publish(
        lambda head: register_intent(
            head.manifest,
            id=job,
            kind="index",
            author="job",
            opened_at_us=1,  # type: ignore[union-attr]
        )
    )
    tail = writer_of(kv).tail
    batches = list(tail.memtable.flush_batches(tail.lsn))
    origin = SegmentOrigin(
        id=f"{new_ulid(context.clock, context.rng)}-{job}",
        namespace="ns",
        level=0,
        author="job",
        created_at_us=1,
        replaced_slots=(slot_first, tail.replay.next_slot - 1),
    )
    ref = write_segment(context.store, "ns", batches[0].schema, origin, None, batches)
    point = tail.replay.point
    chain.publish(
        lambda head: advance_floor(
            head.manifest,  # type: ignore[union-attr]
            intent=job,
            slot_first=slot_first,
            slot_last=tail.replay.next_slot - 1,
            anchor=WalAnchor(slot=point.slot, checksum=point.checksum, epoch=point.epoch),
            segments=[ref],
            last_applied_lsn=tail.lsn,
            dedup=None,
        )
    )
