"""Garbage collection of generations: which stay, for whom, and by whose time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from reef.format import Boundary, Manifest, manifest_key
from reef.gc._retained import first_recent
from reef.manifest import Generation, add_snapshot, open_writer, release_snapshot, renew_snapshot
from reef.testing import ManualClock, Operation
from tests.support.engine.collecting import DAY_S, GRACE_S, NAMESPACE, World, filled, going

# Which generations stay.


def test_the_newest_generations_stay() -> None:
    world = World(retained_generations=4)
    filled(world).close()
    world.age(generations=8)
    last = world.generations()[-1]
    report = world.collect()
    # The first of these moved the boundary, and counts as the fourth; the second forgets the window.
    assert report.published == (last + 1, last + 2)
    assert world.generations() == [*range(last - 2, last + 3)]
    assert world.manifest.gc.boundary.generation == last - 2


def test_what_was_the_head_within_the_grace_period_stays() -> None:
    world = World()
    filled(world).close()
    world.age()
    world.publish()
    stays = world.generations()[-1]
    world.clock.advance(100)
    for _ in range(5):
        world.publish()
    world.clock.advance(GRACE_S)
    world.collect()
    assert world.generations()[0] == stays  # its successor came just a grace period ago

    world.clock.advance(1)
    world.collect()
    assert world.generations()[0] > stays


def test_the_head_stays_however_old_it_is() -> None:
    world = World(retained_generations=1, gc_grace=0)
    kv = filled(world)
    world.set_grace(0)
    world.clock.advance(365 * DAY_S)
    world.collect()
    assert world.contents()[b"unfolded"] == b"u"
    assert kv.get(b"k0") == b"v1"


def test_a_generation_that_a_snapshot_stands_on_stays_with_all_it_names() -> None:
    world = World()
    kv = filled(world)
    snapshot = kv.snapshot(ttl=None)
    generation = world.manifest.snapshots[0].generation
    needed = {ref.id for ref in world.manifest.segments}
    window = world.manifest.dedup
    assert window is not None
    kv.put(b"k0", b"later", idempotency_key="later")
    kv.flush()
    world.compact()
    world.age()

    world.collect()

    assert generation in world.generations()
    assert needed <= world.segments()
    assert window.id in world.windows()
    assert dict(kv.at(generation=generation).items()) == {b"k%d" % k: b"v1" for k in range(4)}
    assert snapshot.get(b"k0") == b"v1"

    snapshot.release()
    world.collect()
    assert generation not in world.generations()
    assert not needed & world.segments()
    assert window.id not in world.windows()


def test_the_log_stays_that_a_retained_generation_goes_on_from() -> None:
    world = World()
    kv = world.kv()
    kv.put(b"a", b"1")
    kv.flush()
    world.publish(lambda m: add_snapshot(m, id="s", lsn=0, expires_at_us=0))
    floor = world.manifest.wal_floor
    for value in range(3):
        kv.put(b"a", b"%d" % value)
    kv.flush()
    world.age()
    world.collect()
    assert world.slots() == [1, *range(floor, floor + 3)]
    assert world.manifest.gc.boundary.slot == floor

    world.publish(lambda m: release_snapshot(m, "s"))
    anchor = world.manifest.wal_anchor.slot
    world.collect()
    assert world.slots() == [1, anchor]


def test_a_generation_that_a_branch_stands_on_stays() -> None:
    world = World()
    kv = filled(world)
    kv.branch("child")
    pinned = world.manifest.generation
    floor, needed = world.manifest.wal_floor, {ref.id for ref in world.manifest.segments}
    kv.flush()
    world.compact()
    world.age()
    world.collect()
    assert pinned in world.generations()
    assert needed <= world.segments()
    # A branch has its own copy of what was in the log. Its last object stays for rebuild.
    assert world.slots() == [1, floor]
    assert "branch ns@child" in {r.why for r in world.plan().retained}

    kv.drop_branch("child")
    world.age()
    world.collect()
    assert pinned not in world.generations()
    assert not needed & world.segments()
    assert world.slots() == [1, floor]


def test_an_expired_snapshot_is_taken_out_before_anything_of_it_goes() -> None:
    world = World()
    kv = filled(world)
    kv.snapshot(ttl=5000, id="s")
    needed = {ref.id for ref in world.manifest.segments}
    world.compact()
    world.age()
    world.collect()
    assert needed <= world.segments()

    world.clock.advance(5000)
    deletes: list[bool] = []

    def before(operation: Operation, key: str) -> None:
        if operation == "delete":
            deletes.append(bool(world.manifest.snapshots))

    world.store.before = before
    report = world.collect()
    assert report.plan.expired == ("s",)
    assert not needed & world.segments()
    assert deletes
    assert not any(deletes)


def test_a_snapshot_that_is_renewed_in_the_last_moment_loses_nothing() -> None:
    world = World()
    kv = filled(world)
    kv.snapshot(ttl=5000, id="s")
    needed = {ref.id for ref in world.manifest.segments}
    world.compact()
    world.age()
    world.clock.advance(5000)
    assert world.plan().expired == ("s",)
    for_ever: Callable[[Manifest], Manifest] = lambda m: renew_snapshot(m, "s", expires_at_us=0)  # noqa: E731
    world.store.once("put_if_absent", "manifest/", lambda: world.publish(for_ever))
    world.collect()
    assert [s.id for s in world.manifest.snapshots] == ["s"]
    assert needed <= world.segments()
    assert kv.at(snapshot="s").get(b"k0") == b"v1"


def test_from_which_generation_on_all_stay() -> None:
    def first(
        listed: dict[int, int], *, head: int, since: int, newest: int = 1, boundary: int = 1
    ) -> int:
        manifest = Manifest.first(NAMESPACE, author="a", nonce="0" * 32, created_at_us=0)
        manifest = replace(
            manifest,
            generation=head,
            gc=replace(manifest.gc, boundary=Boundary(slot=1, generation=boundary)),
        )
        found = {number: Generation(number, at, 1) for number, at in listed.items()}
        return first_recent(manifest, found, since_us=since, newest=newest)

    listed = {number: number * 10 for number in range(1, 9)}
    assert first(listed, head=8, since=100) == 8
    assert first(listed, head=8, since=100, newest=3) == 7
    assert first(listed, head=8, since=100, newest=100) == 1
    assert first(listed, head=8, since=61) == 6
    assert first(listed, head=8, since=60) == 5
    assert first(listed, head=8, since=0) == 1
    assert first(listed, head=8, since=0, boundary=1) == 1
    # A head that the listing does not show yet: the one before it was the head just now.
    assert first(listed, head=9, since=100) == 8
    # Below the boundary only what hangs together with it: no sleeper's generation.
    assert first(listed, head=8, since=41, boundary=6) == 4
    assert first(listed, head=8, since=61, boundary=6) == 6
    del listed[5]
    assert first({**listed, 3: 99}, head=8, since=41, boundary=6) == 6
    # Where one is missing, the next one says how long the one before was the head.
    assert first(listed, head=8, since=60) == 4


# Whose time counts.


@pytest.mark.parametrize("what", ["snapshot", "generations", "orphan"])
def test_a_clock_that_is_ahead_takes_nothing_too_early(what: str) -> None:
    world = World()
    kv = filled(world)
    kv.snapshot(ttl=3600, id="s")
    kv.close()
    world.publish(open_writer)
    orphan = world.put_segment("e1")
    for _ in range(5):
        world.publish()
    before = world.generations()
    ahead = ManualClock(world.clock.now_us() + 365 * 86_400_000_000)

    for _ in range(3):
        world.collect(clock=ahead)

    if what == "snapshot":
        assert [s.id for s in world.manifest.snapshots] == ["s"]
    elif what == "generations":
        assert set(before) <= set(world.generations())
        assert world.manifest.gc.boundary == Boundary(slot=1, generation=1)
    else:
        assert orphan in world.segments()


def test_where_the_manifests_prove_the_time_one_publish_is_enough() -> None:
    world = World()
    filled(world).close()
    world.age()
    world.publish()
    last = world.generations()[-1]
    report = world.collect(sweep=False)
    assert going(report.deleted).keys() >= {"manifest", "log"}
    assert report.published[0] == last + 1
    assert world.inner.head(manifest_key(NAMESPACE, last + 1)).last_modified_us == (
        world.clock.now_us()
    )
    # The second one forgets the window that is gone: it had been replaced.
    assert len(report.published) == 2


def test_readers_rely_on_the_grace_period_that_the_manifest_tells() -> None:
    world = World(gc_grace=1)
    kv = filled(world)
    world.set_grace(5000)
    needed = world.segments()
    world.compact()
    for _ in range(5):
        world.publish()
    world.clock.advance(4000)
    world.publish()
    world.collect()
    assert needed <= world.segments()
    assert world.plan().grace_us == 5_000_000_000
    world.clock.advance(6000)
    world.collect()
    assert not needed & world.segments()
    assert kv.get(b"k0") == b"v1"

    world.arguments["gc_grace"] = 7000
    assert world.plan().grace_us == 7_000_000_000
