"""Garbage collection: everything goes that nothing needs, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace

from reef.errors import (
    FencedError,
)
from reef.format import (
    Boundary,
    LogKind,
    LogObject,
    LogRecord,
    Manifest,
    PendingDelete,
    Prev,
    SkippedSlot,
    dedup_key,
    encode_log,
    log_key,
    manifest_key,
    segment_key,
)
from reef.gc import Reason
from reef.gc._names import owner_of
from reef.gc._retained import first_recent
from reef.gc._slots import FENCE_BYTES, read_kind
from reef.manifest import (
    Generation,
    add_snapshot,
    end_intent,
    open_writer,
    register_intent,
    release_snapshot,
    renew_snapshot,
    set_retention,
)
from reef.store import MemoryStore
from reef.testing import CountingStore, Fault, FaultyStore, ManualClock
from reef.testing._wrapper import Operation
from reef.types import new_ulid, pack_lsn
from tests.collecting import (
    DAY_S,
    GRACE_S,
    NAMESPACE,
    World,
    filled,
    going,
    reason_of,
    reasons,
    window,
)
from tests.samples import sample_log

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
    world.collect()
    assert world.slots() == [1]


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
    assert floor not in world.slots()  # a branch has its own copy of what was in the log
    assert "branch ns@child" in {r.why for r in world.plan().retained}

    kv.drop_branch("child")
    world.age()
    world.collect()
    assert pinned not in world.generations()
    assert not needed & world.segments()
    assert floor not in world.slots()


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


# The log.


def test_fences_stay_for_ever() -> None:
    world = World(max_parallel_writes=3)
    for turn in range(3):
        with world.kv() as kv:
            kv.put(b"k", b"%d" % turn)
            kv.flush()
    world.age()
    assert world.slots() == [*range(1, 13)]
    world.collect()
    # Each opening put three in a row, and one write followed.
    assert world.slots() == [1, 2, 3, 5, 6, 7, 9, 10, 11]
    world.clock.advance(1000 * DAY_S)
    world.collect()
    assert len(world.slots()) == 9


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
    # The first fence, the object that was passed over and never was one, and the fence that says so.
    assert world.slots() == [1, torn, fence]
    assert reasons(world, "log") == {Reason.FENCE: 2, Reason.DAMAGED: 1}
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
    assert read_kind(store, "k", slot=5, size=len(data)) is kind
    assert store.counts.bytes["get_range"] < 64
    assert read_kind(store, "k", slot=6, size=len(data)) is None
    assert read_kind(store, "k", slot=5, size=len(data) + 1) is None


def test_a_fence_of_the_usual_size_is_told_without_a_request() -> None:
    assert read_kind(MemoryStore(), "not even there", slot=5, size=FENCE_BYTES) is LogKind.FENCE
    assert read_kind(MemoryStore(), "not even there", slot=5, size=FENCE_BYTES - 1) is None


def test_no_flipped_bit_makes_a_fence_look_like_data() -> None:
    data = encode_log(sample_log(LogKind.FENCE))
    for bit in range(40 * 8):
        wrong = bytearray(data)
        wrong[bit // 8] ^= 1 << bit % 8
        store = MemoryStore()
        store.put_if_absent("k", bytes(wrong))
        assert read_kind(store, "k", slot=5, size=len(data)) in (LogKind.FENCE, None), bit


def test_a_header_that_was_misread_once_is_read_again() -> None:
    data = encode_log(sample_log(LogKind.DATA))
    store = FaultyStore(MemoryStore(), [Fault("flipped_bit", on="get_range", at=100)])
    store.put_if_absent("k", data)
    assert read_kind(store, "k", slot=5, size=len(data)) is LogKind.DATA


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
    assert world.slots() == [1]


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
