"""The bugs that bit SlateDB, by their number in its tracker, and what keeps each of them out here.

Each scenario stops one actor at a request of its own while others go on, and then lets it wake. What
keeps the bug out is named as a guard, beside its scenario: the file, the function and the line. The
last test takes each guard out of the code and shows that the scenario breaks, and how.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from reef.engine import Writer, _open, _reader
from reef.engine._view import View
from reef.errors import FencedError, OutcomeUnknownError, ReefError
from reef.format import LogKind, SegmentRef, decode_log
from reef.gc import _judge
from reef.gc._plan import Planner
from reef.gc._slots import FoldedSlots
from reef.gc._survey import Survey
from reef.kv import KeyValue
from reef.log import _fence
from reef.manifest import StalePlanError, _changes, _overlap
from reef.manifest._chain import ManifestChain
from reef.segment._retention import _Rule
from reef.store import Store, _conditional
from reef.testing import CountingStore, Fault, FaultyStore
from tests.collecting import DAY_S, NAMESPACE, World
from tests.compactor import Compactor, fold_log
from tests.guards import Edit, Guard, removed

PARALLEL = (1, 8)
LOST = "an acknowledged write is lost"
DEAD = "cannot write"
"""The writer that should go on, or take over, is told of a broken invariant instead."""

Acked = dict[bytes, bytes]


@dataclass(frozen=True)
class Missed:
    """A scenario that breaks when its guard is taken out, and what is seen then."""

    scenario: Callable[[int], None]
    guard: Guard
    symptom: str
    parallel: Sequence[int] = field(default=PARALLEL)


MISSED: list[Missed] = []


def guarded(
    why: str, *edits: Edit, symptom: str, parallel: Sequence[int] = PARALLEL
) -> Callable[[Callable[[int], None]], Callable[[int], None]]:
    """Name what keeps a bug out: without `edits`, the test fails with `symptom`."""

    def noted(scenario: Callable[[int], None]) -> Callable[[int], None]:
        MISSED.append(Missed(scenario, Guard(why, edits), symptom, parallel))
        return scenario

    return noted


parallel_writes = pytest.mark.parametrize("parallel", PARALLEL)


# What the scenarios have in common.


def open_world(parallel: int, **settings: object) -> World:
    return World(max_parallel_writes=parallel, **settings)


def another(world: World, store: Store | None = None) -> KeyValue:
    """Open for writing in another process."""
    return world.database(store or world.inner).kv(NAMESPACE)


def write(kv: KeyValue, acked: Acked, rows: Acked) -> None:
    for key, value in rows.items():
        kv.put(key, value)
        acked[key] = value


def rows(prefix: str, count: int = 10) -> Acked:
    return {f"{prefix}{i}".encode(): b"v" for i in range(count)}


def check(world: World, acked: Acked) -> None:
    """What was acknowledged is there, for whoever opens now."""
    found = world.contents()
    missing = {key for key, value in acked.items() if found.get(key) != value}
    assert not missing, f"{LOST}: {sorted(missing)}"


def check_log(world: World) -> None:
    """The log above the boundary has no gap, and each epoch's objects come after the one before."""
    boundary = world.manifest.gc.boundary.slot
    slots = [slot for slot in world.slots() if slot >= boundary]
    assert slots == [*range(slots[0], slots[-1] + 1)] if slots else True, "a gap in the log"


def stale_writer(world: World) -> tuple[KeyValue, FaultyStore, Acked]:
    """Return a writer that has written a little, and the store it writes to."""
    faulty = FaultyStore(world.inner)
    kv = another(world, faulty)
    acked: Acked = {}
    write(kv, acked, rows("old", 3))
    return kv, faulty, acked


def others_go_on(world: World, acked: Acked, *, name: str = "new") -> KeyValue:
    """Somebody opens, writes and flushes; everything becomes old, and is collected."""
    kv = another(world)
    write(kv, acked, rows(name))
    kv.flush()
    world.age()
    world.collect(world.inner)
    assert world.manifest.gc.boundary.slot == world.manifest.wal_floor
    return kv


def attempt(kv: KeyValue, key: bytes, acked: Acked, errors: list[Exception]) -> None:
    try:
        kv.put(key, b"late")
        acked[key] = b"late"
    except ReefError as error:
        errors.append(error)


FENCES_STAY = (
    Edit(Survey._list_log, "elif meta.size == FENCE_BYTES:", "elif False:"),
    Edit(FoldedSlots.read, "if kind is LogKind.FENCE", "if False"),
)


@parallel_writes
@guarded(
    "fences are never collected: the slot that an old writer takes next holds one",
    *FENCES_STAY,
    symptom=LOST,
)
def test_352_a_writer_that_slept_through_a_collection_cannot_write(parallel: int) -> None:
    """A stale writer re-creates a log slot that was collected: gc/_survey.py, gc/_slots.py."""
    world = open_world(parallel)
    sleeper, _, acked = stale_writer(world)
    new = others_go_on(world, acked)
    errors: list[Exception] = []
    attempt(sleeper, b"asleep", acked, errors)
    write(new, acked, rows("after", 3))
    check(world, acked)
    check_log(world)
    assert [type(error) for error in errors] == [FencedError]
    with pytest.raises(FencedError):
        sleeper.put(b"asleep", b"again")


@parallel_writes
@guarded(
    "fences are never collected: what an old writer had in flight meets them, however late",
    *FENCES_STAY,
    symptom=LOST,
)
def test_1622_writes_in_flight_land_after_a_collection(parallel: int) -> None:
    """The same with its PUTs on their way, as many as may be: gc/_survey.py, gc/_slots.py."""
    world = open_world(parallel, group_commit_max_batches=1)
    sleeper, faulty, acked = stale_writer(world)
    faulty.arm(Fault("stall", on="put_if_absent", key="*/wal/*", times=parallel))
    errors: list[Exception] = []
    threads = [
        threading.Thread(target=attempt, args=(sleeper, b"late%d" % i, acked, errors))
        for i in range(parallel)
    ]
    for number, thread in enumerate(threads, 1):
        thread.start()
        faulty.wait_for_stalled(number)
    new = others_go_on(world, acked)
    faulty.release()
    for thread in threads:
        thread.join()
    write(new, acked, rows("after", 3))
    check(world, acked)
    check_log(world)
    assert [type(error) for error in errors] == [FencedError] * parallel


BOUNDARY_CHECKED = Edit(
    _open._take_log, "if newest.manifest.gc.boundary.slot > slot_fenced:", "if False:"
)
EPOCH_CHECKED = (
    Edit(_open._take_log, "if newest.manifest.writer_epoch > epoch:", "if False:"),
    Edit(Writer.adopt, "if head.manifest.writer_epoch > self.epoch:", "if False:"),
)
EPOCH_CHECKED_IN_THE_LOG = Edit(_fence.check_epoch, "if entry.log.epoch > epoch:", "if False:")


@parallel_writes
@guarded(
    "an opener's fences count only at or above the boundary",
    BOUNDARY_CHECKED,
    symptom=DEAD,
)
def test_1682_a_fence_below_the_replay_boundary_does_not_count(parallel: int) -> None:
    """An absent slot may be a collected one; engine/_open.py looks at the head after its fences.

    The opener has taken its epoch and sleeps. Its predecessor, not fenced yet, goes on; a job folds
    the log, and all of it is collected. The slot where the opener puts its fence was folded long ago.
    """
    world = open_world(parallel)
    old, _, acked = stale_writer(world)

    def folded_and_collected() -> None:
        write(old, acked, rows("more"))
        fold_log(world.database(world.inner).context(), NAMESPACE)
        world.age()
        world.collect(world.inner)
        assert world.manifest.gc.boundary.slot > 10

    world.store.once("get", ".wal", folded_and_collected)
    opener = world.kv()
    errors: list[Exception] = []
    attempt(opener, b"opener", acked, errors)
    attempt(old, b"old", acked, errors)
    check(world, acked)
    check_log(world)
    assert b"opener" in acked, f"who opened last {DEAD}: {errors}"
    assert [type(error) for error in errors] == [FencedError]


@parallel_writes
@guarded(
    "an opener that was overtaken and collected over is fenced, or starts over",
    BOUNDARY_CHECKED,
    *EPOCH_CHECKED,
    symptom=DEAD,
    parallel=[1],
)
@guarded(
    "with more than one fence, it meets the other's before it looks at the head",
    BOUNDARY_CHECKED,
    *EPOCH_CHECKED,
    EPOCH_CHECKED_IN_THE_LOG,
    symptom=DEAD,
)
def test_1682_an_opener_slept_through_another_open_and_a_collection(parallel: int) -> None:
    """As above, by a newer writer: engine/_open.py refuses either for the epoch or the boundary."""
    world = open_world(parallel)
    _, _, acked = stale_writer(world)
    newer: list[KeyValue] = []
    world.store.once("get", ".wal", lambda: newer.append(others_go_on(world, acked)))
    errors: list[Exception] = []
    try:
        attempt(world.kv(), b"opener", acked, errors)
    except FencedError as error:
        errors.append(error)
    write(newer[0], acked, rows("after", 3))
    check(world, acked)
    check_log(world)
    assert [type(error) for error in errors] == [FencedError], f"the opener {DEAD}: {errors}"


@parallel_writes
@guarded(
    "a newer epoch, met in the log or in the head, ends an opener",
    EPOCH_CHECKED_IN_THE_LOG,
    *EPOCH_CHECKED,
    symptom=f"InvariantError|{LOST}",
)
@guarded(
    "an epoch is given to one of those who ask for it at once: each manifest carries a nonce",
    Edit(ManifestChain._stamp, "nonce=new_nonce(self._rng).hex()", 'nonce="0" * 32'),
    Edit(ManifestChain._stamp, "created_at_us=self.clock.now_us()", "created_at_us=1"),
    Edit(_open._take_epoch, "opened_at_us=context.clock.now_us()", "opened_at_us=1"),
    symptom=f"InvariantError|two writers|{LOST}",
)
def test_271_two_writers_open_at_once(parallel: int) -> None:
    """One of two is left, wherever the first stops in opening: log/_fence.py, manifest/_chain.py.

    The one that was overtaken is told while it opens, or has taken over itself.
    """
    stops = 0
    while stop_in_opening(parallel, stops):
        stops += 1
    assert stops > 4 + parallel


def stop_in_opening(parallel: int, stop: int) -> bool:
    """Let a second writer open and write before request number `stop` of the first one's opening."""
    world = open_world(parallel)
    acked: Acked = {}
    second: list[KeyValue] = []
    requests = 0

    def before(operation: str, key: str) -> None:
        nonlocal requests
        if requests == stop and not second:
            second.append(another(world))
            write(second[0], acked, rows("second", 3))
        requests += 1

    world.store.before = before
    alive: list[KeyValue] = []
    errors: list[Exception] = []
    try:
        alive.append(world.kv())
    except FencedError as error:
        errors.append(error)
    if not second:
        return False
    world.store.before = lambda operation, key: None
    for kv in (*alive, *second):
        attempt(kv, b"alive%d" % len(acked), acked, errors)
    check(world, acked)
    check_log(world)
    assert [type(error) for error in errors] == [FencedError], f"two writers, stop {stop}: {errors}"
    return True


# Collection, and who still needs what it would delete.


def filled(world: World, *, flushes: int = 2) -> tuple[KeyValue, Acked]:
    """Return a writer that has written and flushed some times."""
    kv, acked = another(world), Acked()
    for turn in range(flushes):
        write(kv, acked, {b"%d-%d" % (turn, i): b"%d" % turn for i in range(5)})
        kv.flush()
    return kv, acked


def compactor(world: World, store: Store | None = None) -> Compactor:
    return Compactor(world.database(store or world.inner).context(), NAMESPACE)


def missing(world: World, refs: Sequence[SegmentRef]) -> set[str]:
    return {ref.id for ref in refs} - world.segments()


@parallel_writes
@guarded(
    "segments of a standing intent are spared, however old",
    Edit(
        _judge._orphan,
        "if any(intent.id == owner for intent in ground.manifest.intents):",
        "if False:",
    ),
    symptom="collected under a running compaction",
)
def test_604_a_running_compaction_keeps_its_outputs(parallel: int) -> None:
    """Its outputs are named by nothing until it publishes: gc/_judge.py, `_orphan`."""
    world = open_world(parallel)
    _, acked = filled(world)
    job = compactor(world)
    plan = job.plan()
    outputs = job.write(plan, cuts=2)
    world.clock.advance(30 * DAY_S)
    world.age()
    world.collect()
    assert not missing(world, outputs), "collected under a running compaction"
    job.publish(plan, outputs)
    check(world, acked)


@parallel_writes
@guarded(
    "what a compaction replaced stays for the grace period",
    Edit(_judge._unnamed, "if _is_old(ground, since)", "if True"),
    Edit(Planner.plan, "since_us=now_us - grace_us,", "since_us=now_us + 1,"),
    symptom="collected under a read",
)
def test_604_what_a_read_stands_on_stays_for_the_grace_period(parallel: int) -> None:
    """A read that began before the compaction goes on: gc/_judge.py, gc/_retained.py."""
    world = open_world(parallel)
    kv, acked = filled(world)
    inputs = world.manifest.segments
    view = world.kv(mode="r").at(generation=world.manifest.generation)
    compactor(world).run()
    for _ in range(5):
        world.publish()
    world.clock.advance(1)
    world.collect()
    assert not missing(world, inputs), "collected under a read"
    assert dict(view.items()) == acked
    assert dict(kv.items()) == acked


@parallel_writes
@guarded(
    "segments of the current writer's epoch are spared, however old",
    Edit(
        _judge._orphan,
        "if epoch is not None and epoch >= _epoch_over(ground.manifest):",
        "if False:",
    ),
    symptom="collected before it was published",
)
@guarded(
    "a dedup window is spared as long as a flush can publish it",
    Edit(
        _judge._window,
        "return Reason.ORPHAN if last_lsn <= ground.manifest.last_applied_lsn else Reason.WINDOW",
        "return Reason.ORPHAN",
    ),
    symptom="collected before it was published",
)
def test_1044_a_flush_that_takes_longer_than_any_grace_period(parallel: int) -> None:
    """The collector, another process, knows nothing of it: gc/_judge.py, `_orphan` and `_window`."""
    world = open_world(parallel)
    _, acked = filled(world)
    kv = world.kv()
    kv.put(b"slow", b"v", idempotency_key="slow")
    acked[b"slow"] = b"v"
    gone: list[str] = []

    def sleep() -> None:
        """Between the uploads and the manifest that names them."""
        before = world.segments() | world.windows()
        world.clock.advance(DAY_S / 2)
        world.collect(world.inner)
        gone.extend(before - world.segments() - world.windows())

    world.store.once("put_if_absent", "manifest/", sleep)
    kv.flush()
    named = {ref.id for ref in world.manifest.segments}
    assert world.manifest.dedup is not None
    named.add(world.manifest.dedup.id)
    assert not named & set(gone), "collected before it was published"
    check(world, acked)
    assert another(world).put(b"slow", b"v", idempotency_key="slow").replayed


@parallel_writes
@guarded(
    "a compaction is published only while all its inputs are live",
    Edit(_changes._parted, "one = segment if segment in shown else None", "one = segment"),
    Edit(_overlap.check_adjacent, "for segment in between:", "for segment in ():"),
    symptom="came back",
)
def test_1707_a_slow_compaction_does_not_bring_back_what_was_deleted(parallel: int) -> None:
    """Its inputs were replaced and collected meanwhile: manifest/_changes.py, `replace_segments`."""
    world = open_world(parallel)
    kv, acked = filled(world)
    slow = compactor(world)
    plan = slow.plan()
    outputs = slow.write(plan)
    for key in list(acked)[:4]:
        kv.delete(key)
        del acked[key]
    kv.flush()
    compactor(world).run(floor_lsn=kv.lsn)
    world.age()
    world.collect()
    assert missing(world, plan.inputs) == {ref.id for ref in plan.inputs}
    try:
        slow.publish(plan, outputs)
    except StalePlanError:
        slow.give_up(plan)
    assert world.contents() == acked, "what was deleted came back"
    compactor(world).run(floor_lsn=kv.lsn)
    world.age()
    world.collect()
    assert world.contents() == acked, "what was deleted came back"


@parallel_writes
@guarded(
    "a flush is published only under the epoch that stands",
    Edit(_changes._check_author, "if epoch < m.writer_epoch:", "if False:"),
    symptom="a fenced flush was told nothing",
)
def test_1707_a_slow_flush_does_not_publish_what_was_collected(parallel: int) -> None:
    """Its writer was fenced and its segment swept meanwhile: manifest/_changes.py, `fold`."""
    world = open_world(parallel, retained_generations=50)
    kv = world.kv()
    acked = rows("mine")
    kv.write(acked)
    swept: set[str] = set()

    def taken_over() -> None:
        uploaded = world.segments()
        newer = another(world)
        write(newer, acked, rows("new", 3))
        newer.flush()  # behind its fences: until then the writer before might attach the segment
        world.age()
        world.collect(world.inner)
        swept.update(uploaded - world.segments())

    world.store.once("put_if_absent", "manifest/", taken_over)
    errors: list[Exception] = []
    try:
        kv.flush()
    except FencedError as error:
        errors.append(error)
    assert len(swept) == 1
    assert not missing(world, world.manifest.segments), "a collected segment was published"
    assert [type(error) for error in errors] == [FencedError], "a fenced flush was told nothing"
    check(world, acked)


@parallel_writes
@guarded(
    "whoever publishes looks at the head, and counts its generation only above the boundary",
    Edit(
        ManifestChain._confirm,
        "if newer is not None and newer.manifest.gc.boundary.generation > number:",
        "if False:",
    ),
    symptom="was promised and is not there",
)
def test_1707_a_slow_publisher_re_creates_a_collected_generation(parallel: int) -> None:
    """Put-if-absent forgets deleted names: manifest/_chain.py, `_confirm`."""
    world = open_world(parallel)
    kv, acked = filled(world)
    reader = world.kv(mode="r")

    def collected() -> None:
        number = world.generations()[-1] + 1
        world.age()
        world.collect(world.inner)
        assert number not in world.generations()

    world.store.once("put_if_absent", "manifest/", collected)
    promised: list[str] = []
    try:
        promised.append(reader.snapshot(ttl=None, id="first").id)
    except OutcomeUnknownError:
        promised.append(reader.snapshot(ttl=None, id="second").id)
    write(kv, acked, {b"0-0": b"later"})
    kv.flush()
    compactor(world).run(floor_lsn=kv.lsn)
    world.age()
    world.collect()
    standing = {snapshot.id for snapshot in world.manifest.snapshots}
    assert set(promised) <= standing, "a snapshot was promised and is not there"
    assert reader.at(snapshot=promised[0]).get(b"0-0") == b"0"
    check(world, acked)


@parallel_writes
@guarded(
    "a scan whose segment is gone goes on from the head, at its version and where it was",
    Edit(
        View.scan,
        "except (NotFoundError, DamagedError) as error:",
        "except ZeroDivisionError as error:",
    ),
    symptom="NotFoundError",
)
@guarded(
    "a point read whose segment is gone is made again on the head",
    Edit(
        View.read,
        "except (NotFoundError, DamagedError) as error:",
        "except ZeroDivisionError as error:",
    ),
    symptom="NotFoundError",
)
def test_2073_a_scan_outlives_the_segments_it_began_on(parallel: int) -> None:
    """Nothing protects it, and it needs no protection: engine/_view.py, `View`."""
    world = open_world(parallel, block_cache_bytes="1MiB")
    kv, acked = another(world), Acked()
    for turn in range(6):  # runs that follow upon each other: a scan opens one after the other
        write(kv, acked, {b"%d-%d" % (turn, i): b"v" for i in range(3)})
        kv.flush()
    inputs = world.manifest.segments
    scanned, got, many = (
        reader.at(lsn=reader.lsn)
        for reader in (world.database().kv(NAMESPACE, mode="r") for _ in range(3))
    )
    forward, backward = scanned.items(), scanned.items(reverse=True)
    found = [next(forward)], [next(backward)]
    compactor(world).run()
    for key in acked:
        kv.put(key, b"newer")
    kv.flush()
    world.age()
    world.collect()
    assert missing(world, inputs) == {ref.id for ref in inputs}
    assert [*found[0], *forward] == sorted(acked.items())
    assert [*found[1], *backward] == sorted(acked.items(), reverse=True)
    assert [got.get(key) for key in acked] == [*acked.values()]
    assert many.get_many([*acked]) == [*acked.values()]


# Snapshots.


@parallel_writes
@guarded(
    "a compaction keeps what each retained point sees",
    Edit(
        _Rule.__init__,
        "below = {point for point in points if point < floor_lsn}",
        "below = set()",
    ),
    symptom="a snapshot lost",
)
def test_975_compaction_keeps_what_a_snapshot_sees(parallel: int) -> None:
    """Of each key the newest version at or below the snapshot: segment/_retention.py, `_Rule`."""
    world = open_world(parallel)
    kv, _ = filled(world)
    kv.put(b"a", b"old")
    kv.put(b"a", b"seen")
    kv.put(b"b", b"seen")
    kv.flush()
    snapshot = kv.snapshot(ttl=None)
    wanted = dict(snapshot.items())
    kv.delete(b"a")
    kv.put(b"b", b"newer")
    kv.flush()
    newest = dict(kv.items())
    compactor(world).run(floor_lsn=kv.lsn)
    world.age()
    world.collect()
    assert dict(snapshot.items()) == wanted, "a snapshot lost what it could see"
    reader = world.kv(mode="r")
    assert dict(reader.at(snapshot=snapshot.id).items()) == wanted, "a snapshot lost rows elsewhere"
    assert dict(reader.items()) == newest
    snapshot.release()
    compactor(world).run(floor_lsn=kv.lsn)
    assert world.contents() == newest
    assert sum(ref.rows for ref in world.manifest.segments) == len(newest)


@parallel_writes
@guarded(
    "a compaction is published only if it knew every retained point",
    Edit(_changes._check_points, "if point < newest and point not in known:", "if False:"),
    symptom="a snapshot lost",
)
def test_975_a_snapshot_that_is_taken_while_a_compaction_runs(parallel: int) -> None:
    """The plan is made anew with it: manifest/_changes.py, `_check_points`.

    The compactor counts on a floor that it has not recorded yet when it merges.
    """
    world = open_world(parallel)
    kv, _ = filled(world)
    job = compactor(world)
    begun = job.plan()
    snapshot = kv.snapshot(ttl=None)
    wanted = dict(snapshot.items())
    kv.write({b"%d-%d" % (turn, i): b"newer" for turn in range(2) for i in range(5)})
    kv.flush()
    floor = world.manifest.last_applied_lsn
    eager = job.plan_on(world.manifest, begun.job)
    eager = type(eager)(eager.job, eager.inputs, floor, (floor,), eager.is_bottom)
    outputs = job.write(eager)
    job.raise_floor(floor)
    try:
        job.publish(eager, outputs)
    except StalePlanError:
        job.give_up(eager)
        compactor(world).run(floor_lsn=floor)
    world.age()
    world.collect()
    found = world.kv(mode="r").at(snapshot=snapshot.id)
    assert dict(found.items()) == wanted, "a snapshot lost what it could see"
    assert set(world.contents().values()) == {b"newer"}


# Lost replies, and what idling costs.


@parallel_writes
@guarded(
    "a refusal is a conflict only with somebody else's object in hand: it is read back",
    Edit(_conditional._is_ours, "if found == data:", "if False:"),
    Edit(
        _conditional._is_ours,
        "if nonce in found or (found and data.startswith(found)):",
        "if False:",
    ),
    symptom="InvariantError: log object .* was written by epoch 1",
)
def test_766_a_lost_reply_does_not_fence_the_writer(parallel: int) -> None:
    """At every PUT of a run, of the log and of manifests: store/_conditional.py, `_is_ours`."""
    for kind in ("reply_lost", "false_conflict", "error_after", "timeout_after"):
        nth, fired = 1, True
        while fired:
            world = open_world(parallel)
            faulty = FaultyStore(world.inner, [Fault(kind, on="put_if_absent", nth=nth)])  # type: ignore[arg-type]
            kv, acked = another(world, faulty), Acked()
            write(kv, acked, rows("a", 3))
            kv.flush()
            write(kv, acked, rows("b", 2))
            check(world, acked)
            check_log(world)
            logs = [
                decode_log(world.inner.get(f"namespaces/{NAMESPACE}/wal/{name}"))
                for name in world.list("wal")
            ]
            assert sum(log.kind is LogKind.DATA for log in logs) == len(acked), (
                "a write was doubled"
            )
            fired, nth = bool(faulty.fired), nth + 1
        assert nth > 8


@parallel_writes
@guarded(
    "a reader writes nothing",
    Edit(
        _reader.Reader._refresh,
        "self._seen_at = now\n",
        "self._seen_at = now\n    self._chain.publish(lambda head: head.manifest)\n",
    ),
    symptom="an idle reader wrote",
)
def test_1892_idle_readers_write_no_manifests(parallel: int) -> None:
    """28,000 looks of some readers at a namespace that nobody writes: engine/_reader.py, `refresh`."""
    world = open_world(parallel)
    kv, acked = filled(world)
    kv.close()
    before = world.list()
    readers = [world.kv(mode="r") for _ in range(4)]
    for _ in range(70):
        for _ in range(100):
            world.clock.advance(10)
            assert {reader.get(b"0-0") for reader in readers} == {b"0"}
        assert world.list() == before, "an idle reader wrote"
    check(world, acked)


@parallel_writes
@guarded(
    "a reader asks for the next slot, and looks at the head only when it was out of touch",
    Edit(_reader.Reader._refresh, "if now - self._seen_at >= grace_s / 2:", "if True:"),
    symptom="idle polling costs",
)
def test_rfc_0032_idle_polling_asks_for_one_object_and_lists_nothing(parallel: int) -> None:
    """A poll is one GET, an idle writer sends nothing: engine/_reader.py, `refresh`; log/_read.py."""
    world = open_world(parallel)
    kv, _ = filled(world)
    counting = CountingStore(world.inner)
    reader = world.database(counting).kv(NAMESPACE, mode="r")
    counting.reset()
    for _ in range(1000):
        world.clock.advance(2)
        reader.get(b"0-0")
    polled = dict(counting.reset().requests)
    polled.pop("get_range", None)  # the row itself, once
    assert polled == {"get": 1000}, f"idle polling costs {polled}"
    world.store.requests.clear()
    world.clock.advance(3600)
    assert kv.get(b"0-0") == b"0"
    assert world.store.requests == []


def ids(missed: Missed) -> str:
    return f"{missed.scenario.__name__.removeprefix('test_')}: {missed.guard.why}"


@pytest.mark.parametrize("missed", MISSED, ids=ids)
def test_each_regression_fails_without_its_guard(missed: Missed) -> None:
    for parallel in missed.parallel:
        with removed(missed.guard), pytest.raises((AssertionError, ReefError)) as caught:
            missed.scenario(parallel)
        seen = f"{caught.type.__name__}: {caught.value}"
        assert re.search(missed.symptom, seen), f"{missed.guard}: it broke otherwise, {seen}"
