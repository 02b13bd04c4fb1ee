"""Garbage collection of segments and dedup windows: all go that nothing needs or may still publish."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reef.errors import FencedError
from reef.format import (
    LogKind,
    LogObject,
    LogRecord,
    PendingDelete,
    Prev,
    SkippedSlot,
    dedup_key,
    encode_log,
    log_key,
    segment_key,
)
from reef.gc import Reason
from reef.gc._names import owner_of
from reef.manifest import end_intent, open_writer, register_intent
from reef.types import new_ulid, pack_lsn
from tests.support.engine.collecting import (
    DAY_S,
    GRACE_S,
    NAMESPACE,
    World,
    filled,
    reason_of,
    reasons,
    window,
)

# Segments.


def test_replaced_segments_stay_for_the_grace_period() -> None:
    world = World()
    kv = filled(world)
    reader = world.kv(mode="r")
    assert reader.get(b"k0") == b"v1"
    replaced = {ref.id for ref in world.compact()}
    for _ in range(5):
        world.publish()
    world.clock.advance(GRACE_S - 1)
    world.collect()
    assert replaced <= world.segments()
    assert reader.get(b"k1") == b"v1"

    world.clock.advance(2)
    world.publish()
    world.clock.advance(GRACE_S)
    world.collect()
    assert not replaced & world.segments()
    assert world.manifest.gc.pending == ()
    # What the reader stood on is gone: it looks again, and finds the same.
    assert reader.get(b"k2") == b"v1"
    assert kv.get(b"k3") == b"v1"


def test_what_was_replaced_lately_stays_even_if_no_generation_names_it() -> None:
    world = World()
    filled(world)
    stray = world.put_segment("e0")
    world.clock.advance(DAY_S)
    world.publish(
        lambda m: replace(
            m,
            gc=replace(
                m.gc,
                pending=(
                    *m.gc.pending,
                    PendingDelete(segment_key(NAMESPACE, stray), m.generation + 1),
                ),
            ),
        )
    )
    for _ in range(5):
        world.publish()
    assert reason_of(world, stray) is Reason.GRACE
    world.clock.advance(GRACE_S + 1)
    world.publish()
    world.clock.advance(GRACE_S + 1)
    assert reason_of(world, stray) is Reason.REPLACED


def test_replaced_segments_of_the_open_writer_go_too() -> None:
    """It named them once: it cannot name them again."""
    world = World()
    filled(world)
    replaced = {ref.id for ref in world.compact()}
    assert {owner_of(id) for id in replaced} == {"e1"}
    world.age()
    world.collect()
    assert not replaced & world.segments()


@pytest.mark.parametrize(
    ("owner", "reason"),
    [
        ("e2", Reason.EPOCH),
        ("e3", Reason.EPOCH),
        ("e1", Reason.EPOCH),  # no fence of epoch 2 stands yet
        ("e0", Reason.ORPHAN),
        ("standing", Reason.INTENT),
        ("ended", Reason.ORPHAN),
        ("", Reason.OWNERLESS),
    ],
)
def test_a_segment_that_was_never_named(owner: str, reason: Reason) -> None:
    world = World()
    filled(world).close()
    for intent in ("standing", "ended"):
        world.publish(
            lambda m, id=intent: register_intent(
                m, id=id, kind="index", author="job", opened_at_us=0
            )
        )
    world.publish(open_writer)
    segment = world.put_segment(owner)
    world.publish(lambda m: end_intent(m, "ended"))
    if reason is Reason.ORPHAN:
        world.clock.advance(GRACE_S)
        assert reason_of(world, segment) is Reason.GRACE
    world.clock.advance(GRACE_S)
    world.age()
    assert reason_of(world, segment) is reason
    world.collect()
    assert (segment in world.segments()) == (reason is not Reason.ORPHAN)


def test_a_job_that_takes_longer_than_any_grace_period_can_publish() -> None:
    """SlateDB #604, #1044, #1707, #2073."""
    world = World()
    filled(world)
    uploaded: list[str] = []

    def sleep() -> None:
        """Between the upload of the output and the manifest that names it."""
        uploaded.extend(id for id in world.segments() if owner_of(id) == "compact-1")
        world.clock.advance(30 * DAY_S)
        world.collect()

    write_segment = world.write_segment

    def slowly(owner: str, rows: object, **arguments: object) -> object:
        ref = write_segment(owner, rows, **arguments)  # type: ignore[arg-type]
        sleep()
        return ref

    world.write_segment = slowly  # type: ignore[method-assign, assignment]
    world.compact()
    assert len(uploaded) == 1
    assert set(uploaded) == {ref.id for ref in world.manifest.segments}
    world.age()
    world.collect()
    assert world.contents() == {**{b"k%d" % k: b"v1" for k in range(4)}, b"unfolded": b"u"}


def attach(world: World, slot: int, segment: str, *, prev: Prev) -> bytes:
    """Return a log object that attaches a segment."""
    rows = world.manifest.segments[0]
    lsn = pack_lsn(slot, 0)
    ref = replace(rows, id=segment, version=lsn, lsn_min=lsn, lsn_max=lsn)
    return encode_log(
        LogObject(
            kind=LogKind.ATTACH,
            slot=slot,
            epoch=1,
            writer_id=bytes(16),
            nonce=b"\1" * 16,
            created_at_us=0,
            prev=prev,
            records=(LogRecord(lsn=lsn, segments=(ref,)),),
        )
    )


def test_what_the_log_attaches_is_as_good_as_named() -> None:
    world = World()
    filled(world).close()
    world.publish(
        lambda m: register_intent(m, id="load", kind="load", author="job", opened_at_us=0)
    )
    segment = world.put_segment("load")
    slot = world.slots()[-1] + 1
    world.inner.put_if_absent(
        log_key(NAMESPACE, slot), attach(world, slot, segment, prev=Prev(slot - 1, 1))
    )
    world.publish(lambda m: end_intent(m, "load"))
    world.age()
    assert reason_of(world, segment) is Reason.ATTACHED
    world.collect()
    assert segment in world.segments()

    world.inner.delete(log_key(NAMESPACE, slot))
    assert reason_of(world, segment) is Reason.ORPHAN


def test_a_log_object_that_cannot_be_read_may_attach_anything() -> None:
    world = World()
    filled(world).close()
    world.publish(open_writer)
    segment = world.put_segment("e0")
    slot = world.slots()[-1] + 1
    data = bytearray(attach(world, slot, segment, prev=Prev(slot - 1, 1)))
    data[-30] ^= 1
    world.inner.put_if_absent(log_key(NAMESPACE, slot), bytes(data))
    world.age()
    assert reason_of(world, segment) is Reason.MAY_BE_ATTACHED
    assert log_key(NAMESPACE, slot) in world.collect().problems[0]
    assert segment in world.segments()
    # One that every reader passes over by name attaches nothing.
    skipped = SkippedSlot(slot, 1)
    world.publish(lambda m: replace(m, skipped_slots=(skipped,), wal_last_seen=slot))
    assert reason_of(world, segment) is Reason.ORPHAN


def test_what_the_log_attaches_stays_as_long_as_the_log() -> None:
    """Even if compaction has replaced it: the log is read from points in the past."""
    world = World(pitr_window=30 * DAY_S)
    kv = filled(world)
    segment = world.put_segment("e0")
    slot = world.slots()[-1] + 1
    world.inner.put_if_absent(
        log_key(NAMESPACE, slot), attach(world, slot, segment, prev=Prev(slot - 1, 1))
    )
    key = segment_key(NAMESPACE, segment)
    world.publish(
        lambda m: replace(
            m, gc=replace(m.gc, pending=(*m.gc.pending, PendingDelete(key, m.generation + 1)))
        )
    )
    world.age()
    assert reason_of(world, segment) is Reason.ATTACHED
    kv.close()


# Dedup windows.


def test_a_window_goes_when_no_flush_can_publish_it_any_more() -> None:
    world = World()
    kv = filled(world)
    applied = world.manifest.last_applied_lsn
    folded, ahead = window(world, applied), window(world, applied + 1)
    assert reasons(world, "dedup")[Reason.GRACE] == 2
    world.age()
    assert reasons(world, "dedup").keys() == {
        Reason.NAMED,
        Reason.REPLACED,
        Reason.ORPHAN,
        Reason.WINDOW,
    }
    world.collect()
    assert folded not in world.windows()
    assert ahead in world.windows()

    kv.flush()
    assert world.manifest.last_applied_lsn > applied
    world.age()
    world.collect()
    assert ahead not in world.windows()


def test_a_window_that_cannot_be_read_stays() -> None:
    world = World()
    filled(world).close()
    id = new_ulid(world.clock, world.rng)
    world.inner.put_if_absent(dedup_key(NAMESPACE, id), b"no window")
    world.age()
    world.collect()
    assert id in world.windows()
    assert reasons(world, "dedup")[Reason.DAMAGED] == 1


def test_a_flush_that_sleeps_longer_than_the_grace_period() -> None:
    """Its segment and its window are named by nothing, and old, when it comes to publish them."""
    world = World()
    kv = filled(world)
    kv.put(b"late", b"l", idempotency_key="late")
    seen: list[tuple[set[str], set[str]]] = []

    def sleep() -> None:
        world.clock.advance(10 * GRACE_S)
        found = world.segments(), world.windows()
        world.collect()
        seen.append((found[0] - world.segments(), found[1] - world.windows()))

    world.store.once("put_if_absent", "manifest/", sleep)
    kv.flush()
    kv.close()
    assert seen == [(set(), {next(iter(seen[0][1]))})]  # the window of the flush before the last
    assert world.contents()[b"late"] == b"l"
    with world.kv() as again:
        assert again.put(b"late", b"l", idempotency_key="late").replayed


def test_a_flush_of_a_writer_that_was_fenced_can_be_collected() -> None:
    world = World(retained_generations=100)
    kv = filled(world)
    orphans: list[str] = []

    def taken_over() -> None:
        orphans.extend(world.segments() - {ref.id for ref in world.manifest.segments})
        with world.kv() as other:
            other.put(b"other", b"o")
            other.flush()
        world.age()
        world.collect()

    world.store.once("put_if_absent", "manifest/", taken_over)
    with pytest.raises(FencedError):
        kv.flush()
    assert [owner_of(id) for id in orphans] == ["e1"]
    assert {owner_of(id) for id in world.segments()} == {"e1", "e2"}
    assert world.segments() == {ref.id for ref in world.manifest.segments}
    assert world.contents()[b"other"] == b"o"
