"""The bugs that bit SlateDB, by their number in its tracker: collection, and who needs what would go."""

from __future__ import annotations

import pytest

from reef.errors import FencedError, OutcomeUnknownError, StalePlanError
from tests.support.code_without_guards import Edit
from tests.support.engine.collecting import DAY_S, NAMESPACE
from tests.support.regressions import (
    Acked,
    Guards,
    Missed,
    another,
    check,
    compactor,
    filled,
    missing,
    open_world,
    parallel_writes,
    rows,
    write,
)

GUARDS = Guards()


@parallel_writes
@GUARDS.needed(
    "segments of a standing intent are spared, however old",
    Edit(
        "reef.gc._judge:_orphan",
        "if owner in standing:",
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
@GUARDS.needed(
    "what a compaction replaced stays for the grace period",
    Edit("reef.gc._judge:_unnamed", "if _is_old(inputs, since)", "if True"),
    Edit(
        "reef.gc._collection_plan:CollectionPlanner.plan",
        "since_us=now_us - grace_us,",
        "since_us=now_us + 1,",
    ),
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
@GUARDS.needed(
    "segments of the current writer's epoch are spared, however old",
    Edit(
        "reef.gc._judge:_orphan",
        "if epoch is not None and epoch >= _epoch_over(inputs.manifest):",
        "if False:",
    ),
    symptom="collected before it was published",
)
@GUARDS.needed(
    "a dedup window is spared as long as a flush can publish it",
    Edit(
        "reef.gc._judge:_window",
        "return Reason.ORPHAN if last_lsn <= inputs.manifest.last_applied_lsn else Reason.WINDOW",
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
@GUARDS.needed(
    "a compaction is published only while all its inputs are live",
    Edit(
        "reef.manifest._changes:live_inputs",
        "one = segment if segment in shown else None",
        "one = segment",
    ),
    Edit("reef.manifest._overlap:check_adjacent", "for segment in between:", "for segment in ():"),
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
@GUARDS.needed(
    "a flush is published only under the epoch that stands",
    Edit("reef.manifest._changes:_check_author", "if epoch < m.writer_epoch:", "if False:"),
    symptom="a fenced flush was told nothing",
)
def test_1707_a_slow_flush_does_not_publish_what_was_collected(parallel: int) -> None:
    """Its writer was fenced and its segment swept meanwhile: manifest/_changes.py, `advance_floor`."""
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
@GUARDS.needed(
    "whoever publishes looks at the head, and counts its generation only above the boundary",
    Edit(
        "reef.manifest:ManifestChain._confirm",
        "if newer is not None and newer.manifest.gc.boundary.generation > number:",
        "if False:",
    ),
    symptom="was promised and is not there",
)
def test_1707_a_slow_publisher_re_creates_a_collected_generation(parallel: int) -> None:
    """Put-if-absent forgets deleted names: manifest/_manifest_chain.py, `_confirm`."""
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
@GUARDS.needed(
    "a scan whose segment is gone goes on from the head, at its version and where it was",
    Edit(
        "reef.engine:View.scan",
        "except (NotFoundError, DamagedError) as error:",
        "except ZeroDivisionError as error:",
    ),
    symptom="NotFoundError",
)
@GUARDS.needed(
    "a point read whose segment is gone is made again on the head",
    Edit(
        "reef.engine:View.read",
        "except (NotFoundError, DamagedError) as error:",
        "except ZeroDivisionError as error:",
    ),
    symptom="NotFoundError",
)
def test_2073_a_scan_outlives_the_segments_it_began_on(parallel: int) -> None:
    """Nothing protects it, and it needs no protection: engine/_read/_view.py, `View`."""
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


@pytest.mark.parametrize("missed", GUARDS, ids=str)
def test_each_regression_fails_without_its_guard(missed: Missed) -> None:
    missed.check()
