"""Garbage collection of the log: fences stay, data goes when it is folded and no time travel needs it."""

from __future__ import annotations

import msgspec
import pytest

from reef.format import LogKind, LogObject, LogRecord, Prev, encode_log, log_key
from reef.gc import Reason
from reef.gc._folded_slots import FENCE_BYTES, read_log_kind
from reef.manifest import set_retention
from reef.store import MemoryStore
from reef.testing import CountingStore, Fault, FaultyStore
from reef.types import pack_lsn
from tests.support.engine.collecting import DAY_S, GRACE_S, NAMESPACE, World, filled, reasons
from tests.support.format.samples import sample_log


def test_fences_stay_for_ever() -> None:
    world = World(max_parallel_writes=3)
    for turn in range(3):  # each was killed: nobody closed it
        kv = world.kv()
        kv.put(b"k", b"%d" % turn)
        kv.flush()
    world.age()
    assert world.slots() == [*range(1, 13)]
    world.collect()
    # Each opening put three in a row, and one write followed: the last of them stays, for rebuild.
    assert world.slots() == [1, 2, 3, 5, 6, 7, 9, 10, 11, 12]
    world.clock.advance(1000 * DAY_S)
    world.collect()
    assert len(world.slots()) == 10


def test_writers_that_were_closed_leave_nothing_behind() -> None:
    world = World(max_parallel_writes=3)
    for turn in range(50):
        with world.kv() as kv:
            kv.put(b"k", b"%d" % turn)
            if turn % 7 == 0:
                kv.flush()
    with world.kv() as kv:
        kv.flush()
    world.age()
    world.collect()
    # The fences of the first one, which knew of no other, and the last object.
    assert world.slots() == [1, 2, 3, world.manifest.wal_anchor.slot]
    assert world.contents() == {b"k": b"49"}


def replace_slot(log: LogObject, slot: int) -> LogObject:
    records = tuple(
        msgspec.structs.replace(record, lsn=pack_lsn(slot, ordinal))
        for ordinal, record in enumerate(log.records)
    )
    return msgspec.structs.replace(log, slot=slot, records=records)


def test_a_fence_that_skips_slots_is_told_by_its_header() -> None:
    world = World()
    kv = filled(world, flushes=1)
    kv.close()
    torn = world.slots()[-1] + 1
    whole = encode_log(replace_slot(sample_log(), torn))
    world.inner.put_if_absent(log_key(NAMESPACE, torn), whole[:-1])
    with world.kv() as again:
        again.put(b"behind", b"b")
        again.flush()
    fence = torn + 1
    assert world.list("wal")[f"{fence:020d}.wal"].size != FENCE_BYTES
    world.age()
    world.collect()
    # The first fence, the object that was passed over and never was one, the fence that says so, and
    # the last object.
    assert world.slots() == [1, torn, fence, fence + 1]
    assert reasons(world, "log") == {Reason.FENCE: 2, Reason.DAMAGED: 1, Reason.REBUILD: 1}
    assert world.contents()[b"behind"] == b"b"


def test_nothing_else_is_as_small_as_a_fence() -> None:
    sizes = {kind: len(encode_log(sample_log(kind))) for kind in LogKind}
    assert all(size > FENCE_BYTES for size in sizes.values()), sizes
    for slot in (2, 2**43 - 1):
        fence = LogObject(
            kind=LogKind.FENCE,
            slot=slot,
            epoch=2**63 - 1,
            writer_id=b"\xff" * 16,
            nonce=b"\xff" * 16,
            created_at_us=2**63 - 1,
            prev=Prev(slot - 1, 2**32 - 1),
            records=(LogRecord(),),
        )
        assert len(encode_log(fence)) == FENCE_BYTES


@pytest.mark.parametrize("kind", LogKind)
def test_the_kind_of_a_log_object_is_read_from_its_first_bytes(kind: LogKind) -> None:
    store = CountingStore(MemoryStore())
    data = encode_log(sample_log(kind))
    store.put_if_absent("k", data)
    assert read_log_kind(store, "k", slot=5, size=len(data)) is kind
    assert store.counts.bytes["get_range"] < 64
    assert read_log_kind(store, "k", slot=6, size=len(data)) is None
    assert read_log_kind(store, "k", slot=5, size=len(data) + 1) is None


def test_a_fence_of_the_usual_size_is_told_without_a_request() -> None:
    assert read_log_kind(MemoryStore(), "not even there", slot=5, size=FENCE_BYTES) is LogKind.FENCE
    assert read_log_kind(MemoryStore(), "not even there", slot=5, size=FENCE_BYTES - 1) is None


def test_no_flipped_bit_makes_a_fence_look_like_data() -> None:
    data = encode_log(sample_log(LogKind.FENCE))
    for bit in range(40 * 8):
        wrong = bytearray(data)
        wrong[bit // 8] ^= 1 << bit % 8
        store = MemoryStore()
        store.put_if_absent("k", bytes(wrong))
        assert read_log_kind(store, "k", slot=5, size=len(data)) in (LogKind.FENCE, None), bit


def test_a_header_that_was_misread_once_is_read_again() -> None:
    data = encode_log(sample_log(LogKind.DATA))
    store = FaultyStore(MemoryStore(), [Fault("flipped_bit", on="get_range", at=100)])
    store.put_if_absent("k", data)
    assert read_log_kind(store, "k", slot=5, size=len(data)) is LogKind.DATA


def test_the_log_is_kept_as_long_as_time_travel() -> None:
    world = World(pitr_window=10 * GRACE_S)
    kv = world.kv()
    assert world.manifest.retention.pitr_window_ms == 9_000_000
    for day in range(3):
        kv.put(b"k", b"%d" % day)
        kv.flush()
        world.clock.advance(8 * GRACE_S)
        for _ in range(3):
            world.publish()
    # Written 24, 16 and 8 grace periods ago.
    assert world.slots() == [1, 2, 3, 4]
    world.arguments["pitr_window"] = None  # then it is the manifest that says it
    assert reasons(world, "log") == {Reason.FENCE: 1, Reason.FOLDED: 2, Reason.PITR: 1}
    world.collect()
    assert world.slots() == [1, 4]
    assert world.manifest.gc.boundary.slot == 4

    world.publish(lambda m: set_retention(m, pitr_window_ms=None))
    world.collect()
    assert world.slots() == [1, 4]  # it stays for rebuild


def test_the_longer_window_of_time_travel_counts() -> None:
    world = World(pitr_window=10 * GRACE_S)
    filled(world, flushes=1).flush()
    world.age()
    world.arguments["pitr_window"] = 1
    assert world.plan().pitr_us == 9_000_000_000
    assert world.collect().plan.count("log") == 0
    world.arguments["pitr_window"] = 100 * GRACE_S
    assert world.plan().pitr_us == 90_000_000_000


def test_what_was_folded_after_the_listing_is_left_to_the_next_time() -> None:
    world = World(pitr_window=10 * GRACE_S, retained_generations=1, gc_grace=0)
    kv = filled(world)
    world.set_grace(0)
    world.clock.advance(20 * GRACE_S)
    kv.put(b"young", b"y")
    young = world.slots()[-1]

    def folded() -> None:
        kv.flush()
        world.clock.advance(1)

    world.store.once("list", "segments/", folded)
    world.collect()
    assert world.manifest.wal_floor == young + 1
    assert young in world.slots()
    assert world.manifest.gc.boundary.slot <= young
    world.collect()
    assert young in world.slots()
