"""Garbage collection as it deletes and sweeps: what it tells, side by side, and with errors."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from reef.errors import ReefError, UnavailableError
from reef.metrics import Metrics
from reef.store import FileStore, MemoryStore
from reef.testing import Fault, FaultyStore, ManualClock
from reef.threads import SystemThreads, for_each
from tests.support.engine.collecting import DAY_S, GRACE_S, World, filled, going
from tests.support.waiting import DEADLINE_SECONDS

# What is told, and how it runs.


def test_deletes_are_counted_and_told() -> None:
    world = World()
    filled(world)
    world.compact()
    world.age()
    metrics = Metrics()
    told: list[tuple[str, int, int]] = []
    report = world.collect(metrics=metrics, progress=lambda *news: told.append(news))
    text = metrics.text()
    for kind, objects in going(report.deleted).items():
        assert f'reef_gc_deleted_total{{kind="{kind}"}} {objects}' in text
        assert [news[1:] for news in told if news[0] == kind] == [
            (n, objects) for n in range(1, objects + 1)
        ]
    log_bytes = sum(t.bytes for t in report.deleted if t.kind == "log")
    assert f'reef_gc_deleted_bytes_total{{kind="log"}} {log_bytes}' in text


def test_deletes_run_side_by_side_where_the_store_can() -> None:
    world = World()
    filled(world, flushes=4)
    world.compact()
    world.age()
    world.store.concurrency = 4
    report = world.collect()
    assert going(report.deleted) == {"manifest": 12, "log": 15, "segment": 4, "dedup": 3}
    assert world.contents()[b"k0"] == b"v3"


def test_side_by_side_is_what_it_says() -> None:
    barrier = threading.Barrier(4)
    done: list[int] = []

    def work(item: int) -> None:
        barrier.wait(DEADLINE_SECONDS)
        done.append(item)

    for_each(range(8), work, width=4, threads=SystemThreads())
    assert sorted(done) == [*range(8)]


def test_the_first_error_ends_what_runs_side_by_side() -> None:
    done: list[int] = []

    def work(item: int) -> None:
        done.append(item)
        if item == 5:
            raise UnavailableError("no")

    for width in (1, 3):
        done.clear()
        with pytest.raises(UnavailableError):
            for_each(range(1_000_000), work, width=width, threads=SystemThreads())
        assert 5 in done
        assert len(done) < 1_000_000


def test_a_delete_that_fails_is_raised_and_made_up_for() -> None:
    world = World()
    filled(world)
    world.compact()
    world.age()
    world.store.concurrency = 4
    world.store.inner = FaultyStore(world.inner, [Fault("error_before", on="delete", nth=7)])
    with pytest.raises(UnavailableError):
        world.collect()
    world.store.concurrency = 1
    world.collect()
    assert world.manifest.gc.pending == ()
    assert len(world.segments()) == 1


# Sweeping.


class SweptStore(MemoryStore):
    """Remembers how it was swept."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.before_us: list[int] = []
        self.error: ReefError | None = None

    def sweep(self, before_us: int) -> list[str]:
        self.before_us.append(before_us)
        if self.error is not None:
            raise self.error
        return ["parts"]


@pytest.mark.parametrize(("grace", "most"), [(GRACE_S, DAY_S), (3 * DAY_S, 3 * DAY_S)])
def test_nothing_that_is_younger_than_a_day_is_swept(grace: float, most: float) -> None:
    world = World(gc_grace=grace)
    swept = SweptStore(world.clock)
    world = World(swept, gc_grace=grace)
    swept._clock = world.clock
    filled(world).close()
    world.age(seconds=grace + 1)
    report = world.collect()
    assert report.swept == ("parts",)
    assert swept.before_us == [world.clock.now_us() - round(most * 1e6)]
    assert world.collect(sweep=False).swept == ()
    assert world.collect(apply=False).swept == ()
    assert len(swept.before_us) == 1
    # Without a publish, it is the head that proves the time.
    world.clock.advance(10 * DAY_S)
    assert world.collect().published == ()
    assert swept.before_us[1] == world.head.published_at_us - round(most * 1e6)


def test_a_store_that_cannot_sweep_does_not_stop_anybody() -> None:
    world = World()
    swept = SweptStore(world.clock)
    world = World(swept)
    swept._clock = world.clock
    filled(world).close()
    swept.error = UnavailableError("not today")
    world.age()
    report = world.collect()
    assert "not swept: not today" in report.problems[0]
    assert going(report.deleted)


def test_on_files(tmp_path: Path) -> None:
    root = tmp_path / "bucket"
    world = World(FileStore(root, fsync=False), gc_grace=0, retained_generations=1)
    kv = filled(world)
    world.set_grace(0)
    world.compact()
    for _ in range(6):
        world.publish()
    old, young = root / ".tmp~" / "old", root / ".tmp~" / "young"
    for path in (old, young):
        path.write_bytes(b"x")
    now_us = world.head.published_at_us
    os.utime(old, ns=(0, (now_us - round((DAY_S + 60) * 1e6)) * 1000))
    ahead = ManualClock(now_us + 1_000_000)
    report = world.collect(clock=ahead)
    assert report.swept == (".tmp~/old",)
    assert young.exists()
    assert going(report.deleted)["segment"] == 2
    assert kv.get(b"k0") == b"v1"
    assert world.contents()[b"unfolded"] == b"u"
