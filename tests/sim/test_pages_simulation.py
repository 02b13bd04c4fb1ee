"""A page store whose writers take over from one another, under every fault, by seed.

Each commit has a key, and a page of its own: its marker, which no truncation reaches. It was committed
if, and only if, that is there in the end, at the version of the marker. Commits that are there, done to
a dict in that order, give what there must be at each of their LSNs; and what their clients were told
must fit: what `FencedError` says of how far a handle came, too.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from reef.database import Database
from reef.engine import verify
from reef.errors import (
    ClosedError,
    FencedError,
    NotWrittenError,
    OutcomeUnknownError,
    UnavailableError,
)
from reef.format import KEY, LSN
from reef.pages import Pages
from reef.pages._rows import key_of
from reef.testing import Network, Process, Simulation
from tests.sim.kernel import Violation, check_replay

FIRST = int(os.environ.get("SIM_FIRST", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("SIM_SEEDS", "200")) // 10)
NAME = "main.db"
SIZE = 64
LOW = 1000
"""Markers lie below, pages that are cut off above."""
LARGE = 120
TRIES = 4
COMMITS = 6


@dataclass(eq=False)
class Commit:
    """One logical commit, however often it was sent."""

    number: int
    pages: dict[int, bytes]
    n_pages: int | None
    lsn: int | None = None
    is_unknown: bool = False

    @property
    def key(self) -> str:
        return f"commit {self.number}"


@dataclass(eq=False)
class World:
    """One run: what its processes were told."""

    settings: dict[str, Any]
    commits: list[Commit]
    writers: list[Process]
    fenced: list[int]
    """What handles were told of how far they came."""

    def database(self, process: Process) -> Database:
        return Database(
            process.store,
            clock=process.clock,
            rng=process.rng,
            threads=process.threads,
            **self.settings,
        )

    def commit(self, rng: random.Random) -> Commit:
        """Return something to commit: some pages, a cut, or more than a log object holds."""
        number, kind = len(self.commits), rng.random()
        data = f"commit {number}".encode().ljust(SIZE, b".")
        n_pages = None
        ids = rng.sample(range(LOW, LOW + LARGE), rng.randint(0, 3))
        if kind < 0.25:
            n_pages = LOW + rng.randrange(LARGE)
            ids = [page for page in ids if page < n_pages]
        elif kind < 0.4:
            ids = list(range(LOW, LOW + LARGE))
        commit = Commit(number, dict.fromkeys([number, *ids], data), n_pages)
        self.commits.append(commit)
        return commit


class Handles:
    """The handle that the clients of a process share."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._lock = process.threads.condition()
        self._handle: Pages | None = None

    def open(self) -> Pages | None:
        with self._lock:
            for _ in range(TRIES):
                if self._handle is None:
                    db = self._world.database(self._process)
                    parallel = self._process.rng.choice([1, 2, 8])
                    self._handle = tolerated(
                        lambda db=db, n=parallel: db.pages(  # type: ignore[misc]
                            NAME, page_size=SIZE, max_parallel_writes=n
                        )
                    )
            return self._handle

    def give_up(self, store: Pages) -> None:
        with self._lock:
            if self._handle is store:
                self._handle = None


def tolerated(action: Callable[[], Any]) -> Any:
    """Return what came of it, or None if it failed as it may."""
    try:
        return action()
    except (FencedError, ClosedError, OutcomeUnknownError, UnavailableError):
        return None


def live_as_client(world: World, process: Process, handles: Handles) -> None:
    for _ in range(COMMITS):
        store = handles.open()
        if store is None:
            return
        attempt(world, process, handles, store, world.commit(process.rng))
        if process.rng.random() < 0.2:
            tolerated(store.flush)
        if process.rng.random() < 0.5:
            process.clock.sleep(process.rng.uniform(0, 0.5))


def attempt(world: World, process: Process, handles: Handles, store: Pages, commit: Commit) -> None:
    """Send a commit until it is known what became of it, or the patience is at an end."""
    rng = process.rng
    for _ in range(TRIES):
        was_unknown, commit.is_unknown = commit.is_unknown, True  # until it is answered
        try:
            lsn = store.write(commit.pages, n_pages=commit.n_pages, idempotency_key=commit.key)
        except (NotWrittenError, FencedError, ClosedError) as error:
            commit.is_unknown = was_unknown
            if isinstance(error, FencedError) and error.durable_lsn is not None:
                world.fenced.append(error.durable_lsn)
            if not isinstance(error, NotWrittenError):
                handles.give_up(store)
        except (OutcomeUnknownError, UnavailableError):
            if rng.random() < 0.3:
                handles.give_up(store)
        else:
            if commit.lsn not in (None, lsn):
                raise Violation(f"{commit.key} was acked at {commit.lsn} and at {lsn}")
            commit.lsn = lsn
            if rng.random() < 0.9:
                return
        process.clock.sleep(rng.uniform(0, 1))
        again = handles.open()
        if again is None:
            return
        store = again


def live_as_writer(world: World, process: Process) -> None:
    process.clock.sleep(process.rng.uniform(0, 5))
    handles = Handles(world, process)
    clients = [
        process.threads.start(lambda: live_as_client(world, process, handles), name=f"client-{n}")
        for n in range(process.rng.randint(1, 3))
    ]
    for client in clients:
        client.join()


def live_as_nemesis(world: World, process: Process) -> None:
    """Kill one, put others to sleep."""
    for _ in range(4):
        process.clock.sleep(process.rng.uniform(0, 8))
        victim = process.rng.choice(world.writers)
        if victim.is_killed:
            continue
        if process.rng.random() < 0.7:
            victim.pause(process.rng.choice([1, 30, 300]) * process.rng.random())
        else:
            victim.kill()


# The verdict.


def check(world: World, process: Process, mode: str) -> int:
    """Compare with what a fresh handle finds; return how many commits are there."""
    db = world.database(process)
    store = db.pages(NAME, mode=mode)
    lsns: dict[bytes, int] = {}
    for batch in store._handle.view().scan(end=key_of(LOW), columns=[]):
        keys, found = batch.column(KEY).to_pylist(), batch.column(LSN).to_pylist()
        lsns.update(zip(keys, found, strict=True))
    for commit in world.commits:
        there = lsns.get(key_of(commit.number))
        if commit.lsn is not None and there != commit.lsn:
            raise Violation(f"{commit.key} was acked at {commit.lsn} and is there at {there}")
        if commit.lsn is None and there is not None and not commit.is_unknown:
            raise Violation(f"{commit.key} failed for certain and is there at {there}")
    committed = sorted(
        (lsns[key_of(one.number)], one.number)
        for one in world.commits
        if key_of(one.number) in lsns
    )
    pages: dict[int, bytes] = {}
    extent = 0
    for lsn, number in committed:
        commit = world.commits[number]
        pages |= commit.pages
        extent = max([extent, *(page + 1 for page in commit.pages)])
        if commit.n_pages is not None:
            extent = commit.n_pages
            pages = {page: data for page, data in pages.items() if page < extent}
        view = store.at(lsn=lsn)
        found = enumerate(view.get_pages(range(LOW, LOW + LARGE)), LOW)
        wanted = {page: data for page, data in pages.items() if page >= LOW}
        if {page: data for page, data in found if data is not None} != wanted:
            raise Violation(f"pages differ at {lsn}, after {commit.key}")
        if view.n_pages != extent or view.get_page(number) != commit.pages[number]:
            raise Violation(f"the store extends to {view.n_pages} at {lsn}, not {extent}")
    newest = committed[-1][0] if committed else 0
    if store.head != newest or any(lsn > newest for lsn in world.fenced):
        raise Violation(f"the head is {store.head}, the newest commit {newest}")
    if problems := verify(db.context(), NAME).problems:
        raise Violation(f"`reef verify` finds {problems}")
    return len(committed)


def run(seed: int) -> Simulation:
    """One run, from beginning to verdict."""
    rng = random.Random(f"{seed}/shape")
    network = Network.swarm(random.Random(seed), rng.choice([0.0, 0.1, 0.3]))
    network = replace(network, slow=rng.choice([0.0, 0.05]), late=(0.1, 600.0))
    with Simulation(seed, network=network) as sim:
        settings = {
            "flush_threshold_slots": rng.choice([3, 8, 1000]),
            "row_block_bytes": 1024,
            "log_segment_max_bytes": 8000,
        }
        world = World(settings, [], [], [])
        for n in range(rng.randint(2, 3)):
            process = sim.process(f"writer-{n}")
            process.start(lambda process=process: live_as_writer(world, process))  # type: ignore[misc]
            world.writers.append(process)
        nemesis = sim.process("nemesis")
        nemesis.start(lambda: live_as_nemesis(world, nemesis))
        sim.run()
        sim.network = Network()
        sim.land()
        for mode in ("w", "r"):
            process = sim.process(f"check-{mode}")
            sim.call(lambda p=process, m=mode: check(world, p, m), process)  # type: ignore[misc]
    return sim


@pytest.mark.parametrize("seed", SEEDS)
def test_every_run_is_one_that_can_be(seed: int) -> None:
    run(seed)


def test_a_run_repeats_itself() -> None:
    check_replay(run, 0)
