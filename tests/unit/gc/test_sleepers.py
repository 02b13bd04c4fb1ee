"""Whoever slept through a collection does no harm, and takes none."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reef.errors import (
    FencedError,
    OutcomeUnknownError,
    SnapshotExpiredError,
)
from reef.format import (
    Manifest,
    log_key,
)
from reef.manifest import (
    Head,
    add_snapshot,
    register_intent,
)
from reef.testing import Fault, FaultyStore
from reef.types import pack_lsn
from tests.support.engine.collecting import (
    NAMESPACE,
    World,
    filled,
)

# Sleepers.


def close_filled(world: World, *, is_seen: bool) -> None:
    """Fill it; with `is_seen`, a manifest says how far the unfolded log had come."""
    kv = filled(world)
    if is_seen:
        kv.snapshot(ttl=None).release()
    kv.close()


def test_a_writer_that_slept_through_a_collection_is_fenced() -> None:
    """SlateDB #352, #1622: it must not re-create a slot that was collected."""
    for parallel in (1, 4):
        world = World(max_parallel_writes=parallel)
        sleeper = filled(world)
        with world.kv() as kv:
            for turn in range(10):
                kv.put(b"k", b"%d" % turn)
            kv.flush()
            world.age()
            world.collect()
            with pytest.raises(FencedError):
                sleeper.put(b"lost", b"write")
            assert world.contents()[b"k"] == b"9"
            assert b"lost" not in world.contents()


def test_a_write_that_was_folded_and_collected_before_its_reply_came_counts() -> None:
    """It is put again below the boundary, and says the truth all the same: its rows are there."""
    world = World()
    kv = filled(world)
    slot = world.slots()[-1] + 1

    def folded() -> None:
        with world.kv() as other:
            other.flush()
        world.age()
        world.collect()
        assert slot not in world.slots()

    faults = FaultyStore(world.inner, [Fault("reply_lost", on="put_if_absent", key="*/wal/*")])
    world.store.inner = faults
    world.store.once("get", f"{slot:020d}.wal", folded)
    kv.put(b"slow", b"s")
    assert world.contents()[b"slow"] == b"s"
    with pytest.raises(FencedError):
        kv.put(b"slow", b"t")
    world.age()
    world.collect()
    assert slot not in world.slots()
    assert world.contents()[b"slow"] == b"s"


@pytest.mark.parametrize("is_seen", [False, True])
def test_a_writer_that_sleeps_while_it_opens_does_not_fence_below_the_boundary(
    is_seen: bool,
) -> None:
    """SlateDB #1682: an absent slot may be a collected one."""
    world = World()
    close_filled(world, is_seen=is_seen)

    def collected() -> None:
        with world.kv() as other:
            for turn in range(5):
                other.put(b"other", b"%d" % turn)
            other.flush()
        world.age()
        world.collect()

    # It has read the manifest, and is about to replay the log from there.
    world.store.once("get", f"{world.manifest.wal_floor:020d}.wal", collected)
    with pytest.raises(FencedError):
        world.kv()
    assert world.contents()[b"other"] == b"4"
    with world.kv() as kv:
        kv.put(b"k0", b"new")
    assert world.contents()[b"k0"] == b"new"


@pytest.mark.parametrize("is_seen", [False, True])
def test_an_opener_that_nobody_fenced_starts_over_above_the_boundary(is_seen: bool) -> None:
    world = World()
    with filled(world) as kv:
        kv.put(b"last", b"l")  # of the log, the last object stays
        if is_seen:
            kv.snapshot(ttl=None).release()

    def indexed_and_collected() -> None:
        """A job folds the log and GC collects it, while the writer that took the epoch sleeps."""
        world.publish(
            lambda m: register_intent(m, id="index", kind="index", author="job", opened_at_us=0)
        )
        slot = world.slots()[-1]

        def folded(m: Manifest) -> Manifest:
            anchor = replace(m.wal_anchor, slot=slot, checksum=_checksum(world, slot), epoch=1)
            return replace(
                m,
                wal_floor=slot + 1,
                wal_last_seen=slot,
                wal_anchor=anchor,
                last_applied_lsn=pack_lsn(slot, 0),
            )

        world.publish(folded)
        world.age()
        world.collect()
        assert slot - 1 not in world.slots()

    world.store.once("get", f"{world.manifest.wal_floor:020d}.wal", indexed_and_collected)
    with world.kv() as kv:
        lsn = kv.put(b"k0", b"new").lsn
        assert lsn > pack_lsn(world.manifest.gc.boundary.slot, 0)
    assert world.contents()[b"k0"] == b"new"


def _checksum(world: World, slot: int) -> int:
    return int.from_bytes(world.inner.get(log_key(NAMESPACE, slot))[-4:], "little")


def test_a_publisher_that_slept_through_a_collection_starts_over() -> None:
    world = World()
    filled(world).close()
    sleeper = world.chain()
    head = sleeper.load()
    assert head is not None
    number = head.generation + 1
    slept: list[Head] = []

    def change(head: Head | None) -> Manifest:
        assert head is not None
        slept.append(head)
        return add_snapshot(head.manifest, id="s", lsn=0, expires_at_us=0)

    def collected() -> None:
        world.age(generations=6)
        world.collect()
        assert number not in world.generations()

    world.store.once("put_if_absent", f"{number:020d}.manifest", collected)
    with pytest.raises(OutcomeUnknownError):
        sleeper.publish(change)  # it took so long that nobody can tell
    assert number in world.generations()
    published = sleeper.publish(change)
    assert published.generation > number
    assert [s.id for s in world.manifest.snapshots] == ["s"]
    world.age()
    world.collect()
    assert number not in world.generations()


def test_a_reader_that_slept_reads_on() -> None:
    world = World()
    kv = filled(world)
    reader = world.kv(mode="r")
    assert reader.get(b"unfolded") == b"u"
    kv.put(b"k0", b"later")
    kv.flush()
    world.compact()
    world.age()
    world.collect()
    assert reader.get(b"k0") == b"later"
    assert reader.get(b"unfolded") == b"u"


def test_a_view_of_a_collected_generation_says_so() -> None:
    world = World()
    kv = filled(world)
    generation = world.manifest.generation
    view = kv.at(generation=generation)
    kv.flush()
    world.compact()
    world.age()
    world.collect()
    with pytest.raises(SnapshotExpiredError):
        dict(view.items())
    with pytest.raises(SnapshotExpiredError):
        kv.at(generation=generation)
