"""A worker: what its rounds cost, where their work runs, what they collect, and how healthy it is."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from reef.compaction import CompactionOptions
from reef.database import Database
from reef.errors import ReefError, UnavailableError
from reef.jobs import (
    BySize,
    InProcess,
    PassResult,
    WorkerHealth,
    WorkerOptions,
    work,
    worker_health,
)
from reef.jobs._worker_health import STALLED_SECONDS
from reef.store import MemoryStore
from reef.testing import ManualClock
from tests.support.jobs.passes import Meddling

OPTIONS = WorkerOptions(interval=60.0, gc_interval=0.0)
EAGER = msgspec.structs.replace(
    OPTIONS,
    index=msgspec.structs.replace(OPTIONS.index, min_slots=1),
    compact=CompactionOptions(min_input_files=2),
)


def opened(clock: ManualClock | None = None, **settings: object) -> Database:
    clock = clock or ManualClock()
    return Database(MemoryStore(clock=clock), clock=clock, **settings)


def put(db: Database, name: str, *, writes: int = 1) -> None:
    with db.kv(name) as kv:
        for i in range(writes):
            kv.put(b"%d" % i, b"x")


def requests(db: Database) -> int:
    found = db.metrics.snapshot().items()
    return sum(
        n
        for key, n in found
        if key.startswith("reef_requests_total") and isinstance(n, float | int)
    )


def rounds(
    db: Database,
    between: list[Callable[[], object]],
    options: WorkerOptions = OPTIONS,
    runner: Any = None,
    namespaces: Any = None,
    health: WorkerHealth | None = None,
) -> tuple[list[int], list[PassResult[Any] | ReefError]]:
    """Run a round, and one more after each of `between`; return their requests, and what was reported."""
    costs: list[int] = []
    told: list[PassResult[Any] | ReefError] = []
    left = [*between]
    before = requests(db)

    def wait(_: float) -> bool:
        nonlocal before
        costs.append(requests(db) - before)
        if not left:
            return True
        left.pop(0)()
        before = requests(db)
        return False

    work(
        db,
        namespaces,
        runner=runner or InProcess(db.context()),
        options=options,
        report=told.append,
        wait=wait,
        health=health,
    )
    return costs, told


# What a round costs.


def test_idle_namespaces_cost_nothing_but_the_listing() -> None:
    db = opened()
    for i in range(300):
        put(db, f"ns{i:03}")
    listing = -(-sum(1 for _ in db.store.list("namespaces/")) // 1000)
    nothing: Callable[[], None] = lambda: None  # noqa: E731
    costs, told = rounds(db, [nothing, lambda: put(db, "ns007"), nothing])
    assert told == []
    assert costs[0] == listing + 1 + 300 * 6
    assert costs[1] <= listing + 1
    assert costs[2] <= listing + 1 + 6
    assert costs[3] <= listing + 1


def test_what_changes_is_looked_into_again() -> None:
    db = opened()
    put(db, "a")
    db.drop("a")
    put(db, "b")
    _, told = rounds(
        db,
        [
            lambda: put(db, "a"),  # made anew
            lambda: put(db, "new"),
            lambda: put(db, "b", writes=2),
        ],
        EAGER,
    )
    done = [
        (one.kind, record.namespace)
        for one in told
        if isinstance(one, PassResult)
        for record in one.records
        if record.state == "done"
    ]
    folds = [name for kind, name in done if kind == "index"]
    assert folds == ["b", "a", "new", "b"]
    assert ("compact", "b") in done


# What it collects.


def test_snapshots_and_branches_expire_in_its_rounds() -> None:
    clock = ManualClock()
    db = opened(clock, gc_grace=1.0, retained_generations=1)
    with db.kv("a") as kv:
        kv.put(b"k", b"v")
        kv.flush()
        kv.snapshot(ttl=100.0)
        kv.branch("b", ttl=100.0)
    options = msgspec.structs.replace(OPTIONS, gc_interval=1000.0)

    def later(seconds: float) -> Callable[[], None]:
        return lambda: clock.advance(seconds)

    seen: list[tuple[int, list[str]]] = []

    def look() -> None:
        head = db.context().chain("a").load()
        assert head is not None
        snapshots = [one for one in head.manifest.snapshots if one.expires_at_us]
        seen.append((len(snapshots), [*db.namespaces()]))

    def step(seconds: float) -> Callable[[], None]:
        def go() -> None:
            look()
            clock.advance(seconds)

        return go

    rounds(db, [step(500.0), step(501.0), step(1001.0), look], options)
    assert seen[0] == (1, ["a", "a@b"])
    assert seen[1] == (1, ["a", "a@b"])  # they have expired; it is not time yet
    assert seen[3] == (0, ["a"])


# Where its work runs.


def test_the_work_of_large_namespaces_runs_elsewhere() -> None:
    db = opened()
    put(db, "small")
    with db.kv("large") as kv:
        kv.put(b"k", random.Random(1).randbytes(100_000))
    small, large = Meddling(db.context()), Meddling(db.context())
    _, told = rounds(db, [], EAGER, BySize(small, large, 50_000))
    assert [name for name, _ in small.runs] == ["index small"]
    assert [name for name, _ in large.runs] == ["index large"]
    assert not any(isinstance(one, ReefError) or one.failed for one in told)
    deletes = BySize(small, large, 1 << 40)
    assert deletes.pick("objects", [1]) is large
    assert deletes.pick("namespaces", [1]) is small


def test_light_tasks_run_side_by_side() -> None:
    db = opened()
    names = [f"ns{i}" for i in range(3)]
    for name in names:
        put(db, name)
    together = threading.Barrier(3)

    class Meeting(MemoryStore):
        """Lets the uploads of three segments go on when all of them are there."""

        def upload(self, key: str, parts: Any) -> None:
            if "/segments/" in key:
                together.wait(timeout=300)
            super().upload(key, parts)

    store = Meeting()
    for meta in db.store.list(""):
        store.put_if_absent(meta.key, db.store.get(meta.key))
    copy = Database(store)
    _, (told, *_) = rounds(copy, [], EAGER, InProcess(copy.context(), light_tasks=3))
    assert isinstance(told, PassResult)
    assert {record.state for record in told.records} == {"done"}


# How healthy it is.


def test_health_and_metrics_follow_the_rounds() -> None:
    clock = ManualClock()
    db = opened(clock)
    put(db, "a", writes=2)
    options = msgspec.structs.replace(EAGER, failures_max=4)
    health = worker_health(db, options)
    problems: list[str] = []

    class Broken(InProcess):
        def run(self, *_: Any, **__: Any) -> Any:
            raise UnavailableError("Spark gave up")

    with pytest.raises(UnavailableError):
        rounds(
            db,
            [lambda: problems.append(health.problem)] * 9,
            options,
            Broken(db.context()),
            health=health,
        )
    assert problems == ["", "rounds that failed in a row: 2", "rounds that failed in a row: 3"]
    rounds(db, [], options, health=health)
    assert health.problem == ""
    found = db.metrics.snapshot()
    assert found["reef_worker_rounds_total"] == 5
    assert found["reef_worker_failures_total"] == 4
    assert found["reef_worker_backlog"] == 0
    assert found["reef_worker_failing"] == 0
    assert found['reef_worker_rows_total{kind="index"}'] == 2
    assert found["reef_worker_last_success_timestamp_seconds"] == clock.now_us() / 1e6
    health.begin_round()
    clock.advance(STALLED_SECONDS + 1)
    assert "has done nothing for 3601 seconds" in health.problem
