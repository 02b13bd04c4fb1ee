"""Garbage collection as a run: what it tells before, in which order it works, and what stops it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reef.errors import InvariantError, NotFoundError, ReefError
from reef.format import Boundary, PendingDelete, manifest_key, segment_key
from reef.gc import Doomed, Reason, collect
from reef.gc._collector import _Deletion
from reef.gc._names import epoch_of, owner_of, parse_segment, parse_window
from reef.manifest import add_snapshot, advance_boundary, register_intent, release_snapshot
from reef.store import MemoryStore
from reef.testing import CountingStore, Fault, FaultKind, FaultyStore, Operation
from reef.types import new_ulid
from tests.support.engine.collecting import (
    DAY_S,
    GRACE_S,
    NAMESPACE,
    World,
    filled,
    going,
    reasons,
    window,
)

# The dry run.


def test_a_dry_run_writes_nothing() -> None:
    world = World()
    filled(world)
    world.compact()
    world.put_segment("e0")
    world.age()
    counting = CountingStore(world.inner)
    before = world.list()

    report = world.collect(counting, apply=False)

    assert going(report.plan.object_counts) == {"manifest": 10, "log": 7, "segment": 3, "dedup": 1}
    assert not report.applied
    assert (report.deleted, report.published, report.swept) == ((), (), ())
    assert world.list() == before
    assert set(counting.counts.requests) <= {"list", "get", "get_range", "head"}


def test_collecting_is_a_dry_run_unless_told() -> None:
    world = World()
    filled(world)
    world.age()
    before = world.list()
    report = collect(world.chain(), world.store, settings=world.settings, clock=world.clock)
    assert not report.applied
    assert not report.plan.is_idle
    assert world.list() == before


def test_the_plan_is_what_is_done() -> None:
    world = World()
    filled(world)
    world.compact()
    world.age()
    plan = world.plan()
    doomed = {doomed.key for doomed in plan.objects()}
    assert len(doomed) == sum(going(plan.object_counts).values())
    before = {meta.key for meta in world.list().values()}

    report = world.collect()

    after = {meta.key for meta in world.list().values()}
    assert before - after == doomed
    assert going(report.deleted) == going(plan.object_counts)
    assert sum(tally.bytes for tally in report.deleted) == sum(d.size for d in plan.objects())


def test_a_namespace_that_is_not_there() -> None:
    with pytest.raises(NotFoundError, match="no namespace 'ns'"):
        World().collect()


def test_a_plan_says_why_everything_stays_or_goes() -> None:
    world = World()
    filled(world)
    world.compact()
    world.age()
    world.inner.put_if_absent(f"namespaces/{NAMESPACE}/quarantine/x", b"123")
    plan = world.plan()
    assert {(t.kind, t.reason, t.objects) for t in plan.object_counts} == {
        ("manifest", Reason.RETAINED, 1),
        ("manifest", Reason.SUPERSEDED, 10),
        ("log", Reason.FENCE, 1),
        ("log", Reason.LOG, 1),
        ("log", Reason.REBUILD, 1),
        ("log", Reason.FOLDED, 7),
        ("segment", Reason.NAMED, 1),
        ("segment", Reason.REPLACED, 2),
        ("dedup", Reason.NAMED, 1),
        ("dedup", Reason.REPLACED, 1),
        ("quarantine", Reason.QUARANTINED, 1),
    }
    assert [(r.generation, r.why) for r in plan.retained] == [(11, "the head")]


# The order of things.


def test_the_boundary_is_published_before_anything_is_deleted() -> None:
    world = World()
    filled(world)
    world.compact()
    world.age()
    deleted: list[str] = []

    def before(operation: Operation, key: str) -> None:
        if operation != "delete":
            return
        deleted.append(key)
        boundary = world.manifest.gc.boundary
        number = (
            int(key.rsplit("/", 1)[1][:20])
            if "/segments/" not in key and "/dedup/" not in key
            else 0
        )
        if "/wal/" in key:
            assert number < boundary.slot
        if "/manifest/" in key:
            assert number < boundary.generation

    world.store.before = before
    world.collect()
    assert len(deleted) == 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["error_before", "reply_lost"])
def test_a_run_that_dies_at_any_request_is_finished_by_the_next(kind: FaultKind) -> None:
    def prepared() -> World:
        world = World()
        kv = filled(world)
        kv.snapshot(ttl=100)
        world.compact()
        world.put_segment("e0")
        window(world, 1)
        world.inner.put_if_absent(f"namespaces/{NAMESPACE}/wal/stranger", b"x")
        world.age(seconds=DAY_S + 1)
        return world

    def end(world: World) -> object:
        manifest = world.manifest
        return (
            world.segments(),
            world.windows(),
            world.slots(),
            manifest.gc.pending,
            manifest.snapshots,
            manifest.gc.boundary.slot,
            world.contents(),
        )

    model = prepared()
    model.store.requests.clear()
    model.collect()
    requests = len(model.store.requests)
    expected = end(model)
    assert requests > 40
    # Where a request only reads, both kinds are one: the reply does not come.
    writes = [
        operation in ("put_if_absent", "upload", "delete", "sweep")
        for operation, _ in model.store.requests
    ]
    for nth in range(1, requests + 1):
        if kind == "reply_lost" and not writes[nth - 1]:
            continue
        world = prepared()
        faults = FaultyStore(world.inner, [Fault(kind, nth=nth, times=0)])
        world.store.inner = faults
        world.store.requests.clear()
        try:
            world.collect()
        except ReefError:
            pass
        else:
            assert nth >= requests - 1, "nothing but the sweep may fail without a word"
        assert len(world.store.requests) >= nth
        world.store.inner = world.inner
        assert world.contents() == expected[-1]  # type: ignore[index]
        world.collect()
        assert end(world) == expected, nth
        assert len(world.generations()) <= 8


def test_two_collections_at_once_do_no_harm() -> None:
    world = World()
    filled(world)
    replaced = {ref.id for ref in world.compact()}
    world.age()
    for operation, part in (("put_if_absent", "manifest/"), ("delete", "wal/")):
        world.store.once(operation, part, world.collect)  # type: ignore[arg-type]
        world.collect()
        world.age()
    assert not replaced & world.segments()
    assert world.manifest.gc.pending == ()
    assert world.contents() == {**{b"k%d" % k: b"v1" for k in range(4)}, b"unfolded": b"u"}


def test_what_is_published_meanwhile_is_not_collected() -> None:
    """A flush comes in between the listing and the boundary."""
    world = World()
    kv = filled(world)
    world.age()
    world.store.once("put_if_absent", "manifest/", kv.flush)
    world.collect()
    assert world.segments() == {ref.id for ref in world.manifest.segments}
    assert world.contents()[b"unfolded"] == b"u"


def test_the_head_that_decides_is_read_after_the_listing() -> None:
    """So that it knows whoever wrote what was listed."""
    world = World()
    filled(world)

    def job_begins() -> None:
        world.publish(
            lambda m: register_intent(m, id="job", kind="index", author="job", opened_at_us=0)
        )
        world.put_segment("job")
        world.clock.advance(10 * GRACE_S)

    world.store.once("list", "segments/", job_begins)
    assert reasons(world, "segment") == {Reason.NAMED: 2, Reason.INTENT: 1}


def test_what_comes_to_wait_while_listing_is_not_forgotten() -> None:
    """It was named when the listing began, and is pending in the head that decides."""
    world = World()
    filled(world)
    world.put_segment("e0")
    world.age()
    world.store.once("list", "dedup/", world.compact)
    world.collect()
    waiting = {pending.key for pending in world.manifest.gc.pending}
    assert {segment_key(NAMESPACE, id) for id in world.segments()} > waiting
    assert len([key for key in waiting if "/segments/" in key]) == 2
    world.age()
    world.collect()
    assert len(world.segments()) == 1


def test_pending_entries_of_a_kind_that_is_not_known_are_left_alone() -> None:
    world = World()
    filled(world).close()
    key = f"namespaces/{NAMESPACE}/index/something"
    world.inner.put_if_absent(key, b"x")
    world.publish(
        lambda m: replace(m, gc=replace(m.gc, pending=(PendingDelete(key, m.generation + 1),)))
    )
    world.age()
    world.collect()
    assert key in {pending.key for pending in world.manifest.gc.pending}
    assert "index/something" in world.list()


def test_collecting_comes_to_rest() -> None:
    for retained in (1, 2, 10):
        world = World(retained_generations=retained)
        filled(world).close()
        world.compact()
        world.age(generations=20)
        world.collect()
        runs = []
        for _ in range(5):
            world.clock.advance(DAY_S)
            runs.append(world.collect().published)
        assert runs == [()] * 5, retained
        assert len(world.generations()) <= retained + 4
        world.clock.advance(DAY_S)
        few = {t.reason for t in world.plan().object_counts if t.kind == "manifest"}
        assert few <= {Reason.RETAINED, Reason.TOO_FEW}


def test_what_is_below_the_boundary_already_goes_without_a_publish() -> None:
    world = World()
    filled(world, flushes=1)
    world.publish(
        lambda m: advance_boundary(m, Boundary(slot=m.wal_floor, generation=m.generation))
    )
    assert world.generations() == [1, 2, 3]
    world.clock.advance(GRACE_S + 1)
    world.publish()
    world.clock.advance(GRACE_S + 1)
    report = world.collect()
    assert going(report.deleted) == {"manifest": 1, "log": 3}
    assert report.published == ()


def test_a_boundary_that_repair_has_moved_does_not_shorten_the_grace_period() -> None:
    """It says what may have been collected, not what should be."""
    world = World(pitr_window=10 * GRACE_S)
    kv = filled(world, flushes=1)
    reader = world.kv(mode="r")
    kv.flush()
    world.publish(
        lambda m: advance_boundary(m, Boundary(slot=m.wal_floor, generation=m.generation))
    )
    generations, slots = world.generations(), world.slots()
    world.publish()
    world.clock.advance(GRACE_S - 1)
    assert world.plan().is_idle
    assert reasons(world, "log") == {Reason.FENCE: 1, Reason.LOG: 5}
    assert reader.get(b"unfolded") == b"u"

    world.clock.advance(2)
    world.publish()
    world.clock.advance(GRACE_S)
    assert reasons(world, "log") == {Reason.FENCE: 1, Reason.PITR: 5}
    world.collect()
    assert set(world.generations()).isdisjoint(generations[:-2])
    assert world.slots() == slots

    world.clock.advance(10 * GRACE_S)
    assert going(world.collect().deleted)["log"] == 4


# Damage.


def damage(world: World, generation: int) -> None:
    """Damage a generation where it lies: its Last-Modified stays."""
    key = manifest_key(NAMESPACE, generation)
    assert isinstance(world.inner, MemoryStore)
    objects = world.inner._bucket.objects
    objects[key] = b"no manifest", objects[key][1]


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_a_retained_generation_that_cannot_be_read_may_need_anything(how: str) -> None:
    world = World()
    filled(world)
    stood_on = world.manifest.generation + 1
    world.publish(lambda m: add_snapshot(m, id="s", lsn=0, expires_at_us=0))
    replaced = {ref.id for ref in world.compact()}
    orphan = world.put_segment("e0")
    world.age()
    if how == "damaged":
        damage(world, stood_on)
    else:
        world.inner.delete(manifest_key(NAMESPACE, stood_on))
    slots, windows = world.slots(), world.windows()
    report = world.collect()
    assert world.segments() >= {*replaced, orphan}
    assert (world.slots(), world.windows()) == (slots, windows)
    assert "snapshot s" in report.problems[0]
    assert f"generation {stood_on}" in report.problems[0]
    assert going(report.deleted).keys() == {"manifest"}

    world.publish(lambda m: release_snapshot(m, "s"))
    world.collect()
    assert not world.segments() & {*replaced, orphan}


def test_behind_a_head_that_cannot_be_read_nothing_is_collected() -> None:
    world = World()
    filled(world)
    world.age()
    damage(world, world.manifest.generation)
    before = world.list()
    report = world.collect()
    assert not report.applied
    assert "reef repair" in report.problems[0]
    assert world.list() == before


@pytest.mark.parametrize("kind", ["flipped_bit", "short_read"])
def test_a_generation_that_was_misread_once_is_read_again(kind: FaultKind) -> None:
    world = World(retained_generations=20)
    filled(world)
    world.compact()
    world.publish()
    retained = f"*/{world.manifest.generation - 1:020d}.manifest.json"
    faults = FaultyStore(world.inner, [Fault(kind, on="get", key=retained)])
    world.store.inner = faults
    assert world.plan().problems == ()
    assert len(faults.fired) == 1


def test_a_generation_of_unknown_age_is_not_taken_for_an_old_one() -> None:
    """It is neither there nor below the boundary."""
    world = World()
    filled(world)
    replaced = {ref.id for ref in world.compact()}
    since = world.manifest.generation
    assert {p.since_generation for p in world.manifest.gc.pending} == {3, since}
    world.age()
    world.inner.delete(manifest_key(NAMESPACE, since))
    assert reasons(world, "segment") == {Reason.NAMED: 1, Reason.GRACE: 2}
    world.collect()
    assert world.manifest.gc.boundary.generation > since
    world.collect()
    assert not replaced & world.segments()


# Names, places, other namespaces.


@pytest.mark.parametrize("folder", ["manifest", "wal", "segments", "dedup"])
def test_files_of_no_known_name_go_after_a_day(folder: str) -> None:
    world = World()
    filled(world).close()
    names = ["stray.tmp", "00000000000000000000.wal", f"{2**60:020d}.wal", "deep/er.seg", "1.seg"]
    for name in names:
        world.inner.put_if_absent(f"namespaces/{NAMESPACE}/{folder}/{name}", b"12")
    world.clock.advance(DAY_S - 1)
    world.publish()
    assert reasons(world, "other") == {Reason.YOUNG: 5}
    world.clock.advance(2)
    world.publish()
    report = world.collect()
    assert going(report.deleted)["other"] == 5
    assert not set(names) & set(world.list(folder))


def test_other_folders_and_namespaces_are_none_of_its_business() -> None:
    world = World()
    filled(world).close()
    others = [
        f"namespaces/{NAMESPACE}/quarantine/{1:020d}.wal",
        f"namespaces/{NAMESPACE}/branches/x",
        f"namespaces/{NAMESPACE}2/wal/stray",
        f"namespaces/{NAMESPACE}2/wal/{1:020d}.wal",
        f"namespaces/{NAMESPACE}2/segments/{new_ulid(world.clock, world.rng)}-e0.seg",
        "namespaces/stray",
        "elsewhere",
    ]
    for key in others:
        world.inner.put_if_absent(key, b"x")
    world.age(seconds=2 * DAY_S)
    world.collect()
    assert set(others) <= {meta.key for meta in world.inner.list()}


@pytest.mark.parametrize(
    "key",
    [
        "namespaces/other/wal/x",
        f"namespaces/{NAMESPACE}/quarantine/x",
        f"namespaces/{NAMESPACE}x/wal/y",
        "x",
    ],
)
def test_deleting_elsewhere_is_refused_in_the_last_moment(key: str) -> None:
    world = World()
    filled(world).close()
    deletion = _Deletion(world.store, world.plan(), None, None)
    with pytest.raises(InvariantError, match="not its own"):
        deletion.delete(Doomed("other", key, 1, Reason.UNKNOWN))
    assert "delete" not in {operation for operation, _ in world.store.requests}


def test_names() -> None:
    ulid = "01J9ZQ3V5N8W2X4Y6Z7A8B9C0D"
    assert parse_segment(f"{ulid}.seg") == ulid
    assert parse_segment(f"{ulid}-e12.seg") == f"{ulid}-e12"
    assert parse_segment(f"{ulid}-.seg") is None
    assert parse_segment(f"{ulid}-E.seg") is None
    assert parse_window(f"{ulid}.dedup") == ulid
    assert parse_window(f"{ulid}-e1.dedup") is None
    assert owner_of(f"{ulid}-compact-7") == "compact-7"
    assert owner_of(ulid) == ""
    assert (epoch_of("e12"), epoch_of("e"), epoch_of("e1x"), epoch_of("")) == (12, None, None, None)
