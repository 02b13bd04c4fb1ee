"""Bugs that bit another engine: the scenarios' actors, and guards that are shown to be missed.

Each scenario stops one actor at a request of its own while others go on, and then lets it wake. What
keeps the bug out is named as a guard, beside its scenario: the file, the function and the line. The
last test of a file takes each of its guards out of the code and shows that the scenario breaks, and how.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from reef.errors import ReefError
from reef.format import SegmentRef
from reef.kv import KeyValue
from reef.store import Store
from reef.testing import FaultyStore
from tests.support.code_without_guards import Edit, Guard, removed
from tests.support.engine.collecting import NAMESPACE, World
from tests.support.jobs.compactor import Compactor

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
    parallel: Sequence[int]

    def __str__(self) -> str:
        return f"{self.scenario.__name__.removeprefix('test_')}: {self.guard.why}"

    def check(self) -> None:
        """Take the guard out: the scenario breaks, and just so."""
        for parallel in self.parallel:
            with removed(self.guard), pytest.raises((AssertionError, ReefError)) as caught:
                self.scenario(parallel)
            seen = f"{caught.type.__name__}: {caught.value}"
            assert re.search(self.symptom, seen), f"{self.guard}: it broke otherwise, {seen}"


class Guards(list[Missed]):
    """What keeps the bugs of a file's scenarios out."""

    def needed(
        self, why: str, *edits: Edit, symptom: str, parallel: Sequence[int] = PARALLEL
    ) -> Callable[[Callable[[int], None]], Callable[[int], None]]:
        """Name what keeps a bug out: without `edits`, the test fails with `symptom`."""

        def noted(scenario: Callable[[int], None]) -> Callable[[int], None]:
            self.append(Missed(scenario, Guard(why, edits), symptom, parallel))
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
