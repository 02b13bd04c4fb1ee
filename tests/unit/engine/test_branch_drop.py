"""Dropping: what it refuses, what becomes of open handles, and of the name."""

from __future__ import annotations

import pytest

from reef.doctor import repair, verify
from reef.errors import (
    DroppedError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    SnapshotExpiredError,
)
from reef.format import dedup_key, segment_key
from reef.jobs import InProcess, rebuild
from reef.manifest import register_intent
from reef.types import namespace_of
from tests.support.engine.attaching import begin_load, upload
from tests.support.engine.branching import NS, Grove, die_branching, grown
from tests.support.engine.collecting import GRACE_S


def test_what_was_dropped_is_not_there(grove: Grove) -> None:
    kv = grown(grove)
    kv.branch("b")
    kv.drop_branch("b")
    for mode in "wr":
        with pytest.raises(NotFoundError, match="has no branch 'b'"):
            grove.kv("b", mode=mode)
    with pytest.raises(NotFoundError):
        kv.drop_branch("b")
    with pytest.raises(NotFoundError):
        grove.db.drop("none")
    assert grove.contents()[b"log"] == b"unfolded"


def test_what_has_snapshots_that_keep_the_log_is_dropped(grove: Grove) -> None:
    kv = grown(grove)
    kv.snapshot(None, id="s", keep_log=True)
    grove.db.drop(NS)
    with pytest.raises(NotFoundError):
        grove.kv(mode="r")


def test_a_parent_with_children_is_refused_with_their_names(grove: Grove) -> None:
    kv = grown(grove)
    for name in ("b", "a"):
        kv.branch(name)
    with pytest.raises(InvalidInputError, match=r"drop or detach first: ns@a, ns@b"):
        grove.db.drop(NS)
    grove.kv("b").branch("c")
    with pytest.raises(InvalidInputError, match="ns@c"):
        kv.drop_branch("b")
    kv.put(b"k", b"v")  # it was not even fenced
    for name in ("c", "b", "a"):
        kv.drop_branch(name)
    grove.db.drop(NS)
    with pytest.raises(FencedError):
        kv.put(b"k", b"v")


def test_a_parent_whose_grandchild_names_it_is_refused_too(grove: Grove) -> None:
    kv = grown(grove)
    kv.branch("b")
    branch = grove.kv("b")
    branch.branch("c")
    # Two stand on it: what was made from it, and what was made from that.
    branch.put(b"k", b"v")
    branch.flush()
    with pytest.raises(InvalidInputError, match="ns@b"):
        grove.db.drop(NS)
    assert {pin.child for pin in grove.pins()} == {"ns@b", "ns@c"}


def test_a_branch_that_shares_nothing_is_a_child_still(grove: Grove) -> None:
    kv = grove.kv()
    kv.put(b"k", b"v")  # in the log alone: the branch has a copy of it
    kv.branch("b")
    assert not any(ref.namespace for ref in grove.manifest("b").segments)
    with pytest.raises(InvalidInputError, match="ns@b"):
        grove.db.drop(NS)


def test_a_branch_that_is_made_meanwhile_is_made_first(grove: Grove) -> None:
    kv = grown(grove)
    other = grove.database(grove.inner)
    lsn = kv.lsn
    grove.store.once(
        "put_if_absent", f"{NS}/wal/", lambda: other.kv(NS, mode="r").branch("b", lsn=lsn)
    )
    with pytest.raises(InvalidInputError, match="ns@b"):
        grove.db.drop(NS)
    assert grove.contents("b") == grove.contents()


def test_a_branch_that_was_never_made_keeps_nobody_from_dropping(grove: Grove) -> None:
    kv = grown(grove)

    die_branching(grove, kv)
    assert [pin.child for pin in grove.pins()] == ["ns@b"]
    grove.db.drop(NS)
    assert grove.manifest("b").state == "aborted"
    assert grove.manifest().state == "dropped"


def test_a_zombie_writer_cannot_write_into_the_new_branch_of_that_name(grove: Grove) -> None:
    kv = grown(grove)
    kv.branch("b")
    zombie = grove.kv("b")
    zombie.put(b"zombie", b"1")
    kv.drop_branch("b")
    kv.branch("b")
    for doing in (
        lambda: zombie.put(b"zombie", b"2"),
        zombie.flush,
        lambda: zombie.put(b"zombie", b"3"),
    ):
        with pytest.raises(FencedError):
            doing()
    fresh = grove.kv("b")
    fresh.put(b"fresh", b"1")
    with pytest.raises(FencedError):
        zombie.put(b"zombie", b"4")
    assert grove.contents("b") == grove.contents() | {b"fresh": b"1"}


def drop_and_make_b(grove: Grove) -> None:
    """As another process: end the branch, begin its next life, and collect what is left of the last."""
    other = grove.database(grove.inner)
    with other.kv(NS, mode="r") as reader:
        reader.drop_branch("b")
        reader.branch("b")
    with other.kv(NS, branch="b") as fresh:
        fresh.put(b"fresh", b"1")
    grove.age("b")
    grove.collect("b", store=grove.inner)


@pytest.mark.parametrize("parallel", [1, 4])
def test_a_write_in_flight_through_drop_and_rebirth_is_refused(parallel: int) -> None:
    """It was sent before the drop, and lands when the name has another life."""
    grove = Grove(max_parallel_writes=parallel)
    kv = grown(grove)
    kv.branch("b")
    zombie = grove.kv("b")
    grove.store.once("put_if_absent", "ns@b/wal", lambda: drop_and_make_b(grove))
    with pytest.raises(FencedError):
        zombie.put(b"zombie", b"1")
    assert grove.contents("b") == grove.contents() | {b"fresh": b"1"}


def test_a_writer_that_flushes_after_the_drop_is_ended_with_what_happened(grove: Grove) -> None:
    kv = grown(grove)
    kv.branch("b")
    zombie = grove.kv("b")
    lsn = zombie.put(b"zombie", b"1").lsn
    kv.drop_branch("b")
    for doing in (zombie.flush, lambda: zombie.put(b"zombie", b"2"), zombie.refresh):
        with pytest.raises(DroppedError, match="was dropped") as caught:
            doing()
        assert not isinstance(caught.value, FencedError)
    assert caught.value.durable_lsn == lsn


def test_an_open_during_drop_and_rebirth_is_fenced(grove: Grove) -> None:
    kv = grown(grove)
    kv.branch("b")
    grove.store.once("put_if_absent", "ns@b/wal", lambda: drop_and_make_b(grove))
    with pytest.raises(FencedError):
        grove.kv("b")
    assert grove.contents("b") == grove.contents() | {b"fresh": b"1"}


def test_a_reader_of_what_was_dropped_is_told_and_never_sees_the_new_life(grove: Grove) -> None:
    kv = grown(grove)
    kv.branch("b")
    reader = grove.kv("b", mode="r")
    before = dict(reader.items())
    kv.drop_branch("b")
    kv.branch("b")
    fresh = grove.kv("b")
    fresh.put(b"fresh", b"1")
    reader.refresh()
    assert dict(reader.items()) == before
    grove.clock.advance(GRACE_S)
    with pytest.raises(DroppedError, match="open it again"):
        reader.refresh()


def test_a_reader_of_a_plain_namespace_never_sees_its_new_life_either(grove: Grove) -> None:
    """Nobody who follows the log of one life comes into that of another."""
    grown(grove)
    reader = grove.kv(mode="r")
    before = dict(reader.items())
    grove.db.drop(NS)
    fresh = grove.kv()
    fresh.put(b"fresh", b"1")
    reader.refresh()
    assert dict(reader.items()) == before
    grove.clock.advance(GRACE_S)
    with pytest.raises(DroppedError, match="was dropped"):
        reader.refresh()


def test_rebuilding_brings_nothing_of_an_old_life_back(grove: Grove) -> None:
    kv = grove.kv()
    kv.put(b"a", b"1")
    kv.flush()
    kv.put(b"b", b"1")  # its generations are retained still, and so is the log behind them
    grove.db.drop(NS)
    fresh = grove.kv()
    fresh.put(b"c", b"1")
    fresh.flush()
    result = rebuild(grove.db, [NS], runner=InProcess(grove.db.context()))
    assert not result.failed
    assert grove.contents() == {b"c": b"1"}
    assert verify(grove.db.context(), NS, deep=True).problems == ()


def test_what_an_old_life_shared_is_not_missed_in_the_new_one(grove: Grove) -> None:
    kv = grown(grove)
    kv.branch("b")
    shared = [ref for ref in grove.manifest("b").segments if ref.namespace]
    assert shared
    kv.drop_branch("b")
    kv.flush()
    grove.compact(floor_lsn=kv.lsn)
    for _ in range(3):
        grove.age(None)
        grove.collect()
    kv.branch("b")
    assert not {ref.id for ref in shared} & {*grove.objects(None, "segments")}
    assert verify(grove.db.context(), namespace_of(NS, "b"), deep=True).problems == ()


@pytest.mark.parametrize("branch", [None, "b"])
def test_repair_of_a_new_life_goes_by_its_own_log(branch: str | None) -> None:
    grove = Grove(retained_generations=20)  # the old life's are among them
    kv = grown(grove)
    if branch:
        kv.branch(branch)
    old = grove.kv(branch)
    for number in range(30):
        old.put(b"old%d" % number, b"1", idempotency_key=f"old{number}")
    grove.db.drop(NS, branch=branch)
    if branch:
        kv.branch(branch)
    fresh = grove.kv(branch)
    fresh.put(b"fresh", b"1", idempotency_key="once")
    fresh.flush()
    fresh.close()
    before, manifest = grove.contents(branch), grove.manifest(branch)
    assert manifest.dedup is not None
    for key in (
        segment_key(manifest.namespace, manifest.segments[0].id),
        dedup_key(manifest.namespace, manifest.dedup.id),
    ):
        data = bytearray(grove.inner.get(key))
        data[60] ^= 0xFF
        grove.inner.delete(key)
        grove.inner.put_if_absent(key, bytes(data))
    assert repair(grove.db.context(), manifest.namespace, apply=True).is_mended
    assert grove.contents(branch) == before
    again = grove.kv(branch)
    lsn = again.lsn
    assert again.put(b"fresh", b"1", idempotency_key="once").lsn <= lsn
    assert again.put(b"old1", b"1", idempotency_key="old1").lsn > lsn


def test_a_snapshot_is_not_taken_of_another_life(grove: Grove) -> None:
    grown(grove)
    reader = grove.kv(mode="r")
    grove.db.drop(NS)
    grove.kv().put(b"fresh", b"1")
    with pytest.raises(DroppedError, match="was dropped"):
        reader.snapshot(ttl=None, id="mine")
    assert grove.manifest().snapshots == ()


def test_a_generation_of_the_old_life_is_not_served(grove: Grove) -> None:
    kv = grown(grove)
    kv.branch("b")
    old = grove.kv("b")
    old.put(b"old", b"1")
    old.flush()
    generation = grove.manifest("b").generation
    kv.drop_branch("b")
    kv.branch("b")
    fresh = grove.kv("b")
    with pytest.raises(SnapshotExpiredError, match="was dropped"):
        fresh.at(generation=generation)


def test_a_job_of_the_old_life_cannot_publish_into_the_new_one(grove: Grove) -> None:
    kv = grown(grove)
    kv.branch("b")
    grove.publish(
        "b",
        lambda m: register_intent(m, id="job-1", kind="compact", author="a", opened_at_us=0),
    )
    kv.drop_branch("b")
    assert not grove.manifest("b").intents
    kv.branch("b")
    assert not grove.manifest("b").intents


def test_a_name_goes_on_from_its_numbers(grove: Grove) -> None:
    kv = grown(grove)
    kv.branch("b")
    branch = grove.kv("b")
    for number in range(30):
        branch.put(b"k", b"%d" % number)
    old = grove.manifest("b")
    last = branch.lsn
    kv.drop_branch("b")
    dropped = grove.manifest("b")
    assert dropped.state == "dropped"
    assert dropped.writer_epoch == old.writer_epoch + 1
    assert dropped.wal_floor == dropped.wal_last_seen + 1 > old.wal_last_seen
    kv.branch("b")
    new = grove.manifest("b")
    assert new.born == new.generation == dropped.generation + 1
    assert new.writer_epoch == dropped.writer_epoch
    assert new.wal_floor > dropped.wal_last_seen
    assert new.gc.boundary.slot == new.wal_floor
    assert grove.kv("b").put(b"k", b"v").lsn > last


def test_a_plain_namespace_is_dropped_and_made_anew_by_opening_it(grove: Grove) -> None:
    kv = grown(grove)
    kv.put(b"k", b"v", idempotency_key="once")
    kv.flush()
    last = kv.lsn
    grove.db.drop(NS)
    with pytest.raises(NotFoundError):
        grove.kv(mode="r")
    anew = grove.kv()
    assert dict(anew.items()) == {}
    assert anew.put(b"k", b"w", idempotency_key="once").lsn > last
    with pytest.raises(FencedError):
        kv.put(b"k", b"zombie")
    assert grove.contents() == {b"k": b"w"}
    grove.age(None)
    grove.collect()
    assert grove.contents() == {b"k": b"w"}
    anew.flush()
    grove.age(None)
    grove.collect()
    assert grove.contents() == {b"k": b"w"}


def test_a_namespace_may_be_made_anew_with_another_face(grove: Grove) -> None:
    grown(grove)
    grove.db.drop(NS)
    docs = grove.db.namespace(NS)
    docs.upsert([{"id": "a", "n": 1}])
    assert docs.get("a") == {"id": "a", "n": 1}


def test_everything_of_a_dropped_namespace_goes_but_its_head_and_its_fences(grove: Grove) -> None:
    kv = grown(grove)
    context = grove.db.context()
    job = begin_load(context)
    kv._writing().attach([upload(context, job, {b"loaded": b"1"})])
    kv.put(b"k", b"v", idempotency_key="once")
    kv.snapshot(ttl=None, id="for-good")
    kv.close()
    grove.db.drop(NS)
    grove.collect()
    assert grove.objects(None, "segments")  # within the grace period
    for _ in range(3):
        grove.clock.advance(GRACE_S + 1)
        grove.collect()
    assert grove.objects(None, "segments") == grove.objects(None, "dedup") == []
    # The head, and as many as a collection publishes to release others.
    assert len(grove.objects(None, "manifest")) == 3
    slots = [int(name) for name in grove.objects(None, "wal")]
    # The writer's fence, and the dropper's: without manifests, it alone shows that it may be dropped.
    assert len(slots) == 2
    assert grove.manifest().state == "dropped"
