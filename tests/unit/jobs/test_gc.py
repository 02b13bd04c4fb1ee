"""Garbage collection on tasks: what goes is what `reef.gc.collect` lets go, in its order."""

from __future__ import annotations

import random
from typing import Any

import pytest

from reef.database import Database
from reef.errors import CorruptError, InvalidInputError, NotFoundError, UnavailableError
from reef.gc import CollectionReport
from reef.jobs import CollectOptions, InProcess, PassProgress, collect
from reef.store import MemoryStore
from reef.testing import ManualClock, Operation
from tests.support.engine.collecting import DAY_S, GRACE_S, NAMESPACE, World, filled, going
from tests.support.engine.open_database import contents

SPREAD = CollectOptions(small_objects=0, task_objects=2)


class Runs(InProcess):
    """Takes note of what was run."""

    parallelism = 2

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.tasks: list[tuple[str, int]] = []

    def run(self, task, descriptors, result, **named):  # type: ignore[no-untyped-def]
        self.tasks.append((task.__name__, len(descriptors)))
        return super().run(task, descriptors, result, **named)


def old_world() -> World:
    world = World()
    filled(world, flushes=3).close()
    world.compact()
    world.put_segment("e0")
    world.age()
    return world


def run(
    world: World, *, apply: bool = True, options: CollectOptions | None = None
) -> CollectionReport:
    context = world.db.context()
    (one,) = collect(context, NAMESPACE, apply=apply, options=options).namespaces
    assert one.namespace == NAMESPACE
    return one.returned()


def everything(world: World) -> list[str]:
    return [*world.list()]


@pytest.mark.parametrize("options", [CollectOptions(), SPREAD])
def test_the_same_goes_as_in_one_process(options: CollectOptions) -> None:
    world, other = old_world(), old_world()
    before = world.contents()
    expected = other.collect()
    report = run(world, options=options)
    assert report.applied
    assert sum(going(expected.deleted).values()) > 10
    assert report.deleted == expected.deleted
    assert report.published == expected.published
    # Without bytes: manifests name their authors.
    told, wanted = (
        [(t.kind, t.goes, t.reason, t.objects) for t in r.plan.object_counts]
        for r in (report, expected)
    )
    assert told == wanted
    assert (report.plan.boundary, report.problems) == (expected.plan.boundary, expected.problems)
    assert world.slots() == other.slots()
    assert world.generations() == other.generations()
    assert len(world.segments()) == len(other.segments())
    assert world.contents() == before
    assert not world.manifest.gc.pending


@pytest.mark.parametrize("options", [CollectOptions(), SPREAD])
def test_a_dry_run_writes_nothing(options: CollectOptions) -> None:
    world = old_world()
    before = everything(world)
    report = run(world, apply=False, options=options)
    assert not report.applied
    assert report.plan.object_counts == world.plan().object_counts
    assert everything(world) == before


def test_deletes_are_spread_and_keep_their_order() -> None:
    world = old_world()
    context = world.db.context()
    runner = Runs(context)
    world.store.requests.clear()
    (one,) = collect(context, NAMESPACE, runner=runner, apply=True, options=SPREAD).namespaces
    report = one.returned()
    first, *others = runner.tasks
    assert first == ("collect_small", 1)
    assert {name for name, _ in others} == {"delete_chunk"}
    assert sum(count for _, count in others) > len(others)
    deleted = [key for operation, key in world.store.requests if operation == "delete"]
    kinds = [key.split("/")[2] for key in deleted]
    assert kinds[0] == "manifest"
    assert kinds == sorted(kinds, key=["manifest", "wal", "segments", "dedup"].index)
    assert len(deleted) == sum(going(report.deleted).values())
    # The boundary stood before the first of them went.
    steps = [operation for operation, key in world.store.requests if "/manifest/" in key]
    assert steps.index("put_if_absent") < steps.index("delete")


def test_what_fails_is_told_and_the_next_run_goes_on() -> None:
    world = old_world()
    before = world.contents()

    def refuse(operation: Operation, key: str) -> None:
        if operation == "delete" and "/wal/" in key:
            raise UnavailableError("no answer")

    world.store.before = refuse
    (one,) = collect(world.db.context(), NAMESPACE, apply=True, options=SPREAD).namespaces
    assert isinstance(one.error, UnavailableError)
    assert len(world.generations()) < 10
    world.store.before = lambda operation, key: None
    assert run(world, options=SPREAD).applied
    assert world.contents() == before
    assert sum(going(run(world, options=SPREAD).deleted).values()) == 0


def test_many_namespaces_share_tasks_and_a_sick_one_stops_no_other() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    db = Database(
        store, clock=clock, rng=random.Random(1), gc_grace=GRACE_S, retained_generations=1
    )
    names = [f"n{i:02d}" for i in range(40)]
    for name in names:
        with db.kv(name) as kv:
            for round in range(3):
                kv.put(b"k", name.encode() + b"%d" % round)
                kv.flush()
    clock.advance(2 * DAY_S)
    for name in names:
        with db.kv(name) as kv:
            kv.flush()
    clock.advance(2 * DAY_S)
    for meta in [*store.list("namespaces/n07/manifest/")]:
        store.delete(meta.key)
    context = db.context()
    runner = Runs(context)
    seen: list[PassProgress] = []
    every = [*names, "gone"]
    result = collect(context, every, runner=runner, apply=True, watch=seen.append)
    assert [one.namespace for one in result.namespaces] == every
    assert runner.tasks == [("collect_small", 41)]
    assert (seen[-1].tasks_done, seen[-1].tasks) == (41, 41)
    for one in result.namespaces:
        if one.namespace in ("n07", "gone"):
            expected = NotFoundError if one.namespace == "gone" else CorruptError
            assert isinstance(one.error, expected)
        else:
            assert sum(going(one.returned().deleted).values())
            assert contents(store, one.namespace) == {b"k": one.namespace.encode() + b"2"}


def test_unfinished_writes_are_swept_once() -> None:
    class Sweeping(MemoryStore):
        def sweep(self, before_us: int) -> list[str]:
            swept_before.append(before_us)
            return ["parts"]

    swept_before: list[int] = []
    clock = ManualClock()
    store = Sweeping(clock=clock)
    db = Database(store, clock=clock, rng=random.Random(1))
    for name in ("a", "b"):
        db.kv(name).close()
    context = db.context()
    result = collect(context, ["a", "b"], apply=True)
    assert [one.returned().swept for one in result.namespaces] == [("parts",), ()]
    (before_us,) = swept_before
    assert before_us <= clock.now_us() - DAY_S * 1_000_000
    collect(context, ["a"], apply=False)
    assert len(swept_before) == 1


def test_options_that_make_no_sense() -> None:
    world = World()
    with pytest.raises(InvalidInputError, match="task_objects"):
        run(world, options=CollectOptions(task_objects=0))
