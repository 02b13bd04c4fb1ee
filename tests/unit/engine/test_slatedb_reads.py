"""The bugs that bit SlateDB, by their number in its tracker: snapshots, lost replies, idle readers."""

from __future__ import annotations

import pytest

from reef.errors import StalePlanError
from reef.format import LogKind, decode_log
from reef.testing import CountingStore, Fault, FaultyStore
from tests.support.code_without_guards import Edit
from tests.support.engine.collecting import NAMESPACE
from tests.support.regressions import (
    Acked,
    Guards,
    Missed,
    another,
    check,
    check_log,
    compactor,
    filled,
    open_world,
    parallel_writes,
    rows,
    write,
)

GUARDS = Guards()


# Snapshots.


@parallel_writes
@GUARDS.needed(
    "a compaction keeps what each retained point sees",
    Edit(
        "reef.segment._merge._kept_versions:_Rule.__init__",
        "below = {point for point in points if point < floor_lsn}",
        "below = set()",
    ),
    symptom="a snapshot lost",
)
def test_975_compaction_keeps_what_a_snapshot_sees(parallel: int) -> None:
    """Of each key the newest version at or below the snapshot: segment/_merge/_kept_versions.py, `_Rule`."""
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
@GUARDS.needed(
    "a compaction is published only if it knew every retained point",
    Edit(
        "reef.manifest._changes:_check_points",
        "if point < newest and point not in known:",
        "if False:",
    ),
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
@GUARDS.needed(
    "a refusal is a conflict only with somebody else's object in hand: it is read back",
    Edit("reef.store._conditional:_is_ours", "if found == data:", "if False:"),
    Edit(
        "reef.store._conditional:_is_ours",
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
@GUARDS.needed(
    "a reader writes nothing",
    Edit(
        "reef.engine._reader:Reader._refresh",
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
@GUARDS.needed(
    "a reader asks for the next slot, and looks at the head only when it was out of touch",
    Edit(
        "reef.engine._reader:Reader._refresh",
        "if now - self._seen_at >= grace_s / 2 or self._chain.is_out_of_touch:",
        "if True:",
    ),
    symptom="idle polling costs",
)
def test_rfc_0032_idle_polling_asks_for_one_object(parallel: int) -> None:
    """A poll is one GET, an idle writer sends nothing: engine/_reader.py, `refresh`; log/_log_reader.py.

    Whether the namespace was dropped, or its log has a hole, is asked for every half grace period.
    """
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
    probes = {1: 11, 8: 15}[parallel]
    assert polled == {"get": 1000 + 4 * probes, "list": 4}, f"idle polling costs {polled}"
    world.store.requests.clear()
    world.clock.advance(3600)
    assert kv.get(b"0-0") == b"0"
    assert world.store.requests == []


@pytest.mark.parametrize("missed", GUARDS, ids=str)
def test_each_regression_fails_without_its_guard(missed: Missed) -> None:
    missed.check()
