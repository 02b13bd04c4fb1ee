"""A page store whose writers take over from one another, under every fault, by seed.

Each commit has a key, and a page of its own: its marker, which no truncation reaches. It was committed
if, and only if, that is there in the end, at the version of the marker. Commits that are there, done to
a dict in that order, give what there must be at each of their LSNs; and what their clients were told
must fit: what `FencedError` says of how far a handle came, too.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import Any

import pytest

from reef.database import Database
from reef.doctor import verify
from reef.errors import (
    ClosedError,
    FencedError,
    NotWrittenError,
    OutcomeUnknownError,
    UnavailableError,
)
from reef.format import KEY, LSN
from reef.pages import Pages
from reef.pages._page_rows import key_of
from tests.support.engine import simulated_rivals as rivals
from tests.support.engine.open_handles import handle_of
from tests.support.engine.simulated_rivals import TRIES, Handles, tolerated
from tests.support.engine.write_history import Violation, check_replay
from tests.support.simulation import Process, Simulation

FIRST = int(os.environ.get("SIM_FIRST", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("SIM_SEEDS", "200")) // 10)
NAME = "main.db"
SIZE = 64
LOW = 1000
"""Markers lie below, pages that are cut off above."""
LARGE = 120
COMMITS = 6


@dataclass(eq=False)
class PagesCommit:
    """One logical commit, however often it was sent."""

    number: int
    pages: dict[int, bytes]
    n_pages: int | None
    lsn: int | None = None
    is_unknown: bool = False

    @property
    def key(self) -> str:
        return f"commit {self.number}"


class PagesWorld(rivals.RivalsWorld):
    """One run: what its processes were told."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__({**settings, "log_segment_max_bytes": 8000})
        self.commits: list[PagesCommit] = []
        self.fenced: list[int] = []
        """What handles were told of how far they came."""

    def commit(self, rng: random.Random) -> PagesCommit:
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
        commit = PagesCommit(number, dict.fromkeys([number, *ids], data), n_pages)
        self.commits.append(commit)
        return commit


def live_as_client(world: PagesWorld, process: Process, handles: Handles[Pages]) -> None:
    for _ in range(COMMITS):
        store = handles.open()
        if store is None:
            return
        attempt(world, process, handles, store, world.commit(process.rng))
        if process.rng.random() < 0.2:
            tolerated(store.flush)
        if process.rng.random() < 0.5:
            process.clock.sleep(process.rng.uniform(0, 0.5))


def attempt(
    world: PagesWorld, process: Process, handles: Handles[Pages], store: Pages, commit: PagesCommit
) -> None:
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


def opened(db: Database, parallel: int) -> Pages:
    return db.pages(NAME, page_size=SIZE, max_parallel_writes=parallel)


def live_as_writer(world: PagesWorld, process: Process) -> None:
    handles = Handles(world, process, opened)
    rivals.live_as_writer(process, lambda: live_as_client(world, process, handles))


# The verdict.


def check(world: PagesWorld, process: Process, mode: str) -> int:
    """Compare with what a fresh handle finds; return how many commits are there."""
    db = world.database(process)
    store = db.pages(NAME, mode=mode)
    lsns: dict[bytes, int] = {}
    for batch in handle_of(store).view().scan(end=key_of(LOW), columns=[]):
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
    return rivals.run(seed, PagesWorld, live_as_writer, check)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_run_is_one_that_can_be(seed: int) -> None:
    run(seed)


def test_a_run_repeats_itself() -> None:
    check_replay(run, 0)
