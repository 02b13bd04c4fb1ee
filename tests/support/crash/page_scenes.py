"""What the processes of the page store's crash tests do, up to a point where they end."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

import reef
from reef.errors import FencedError
from reef.pages import Pages, WalRecord
from tests.support.crash.crash_points import Scene

NAME = "pages"
SIZE = 64
LARGE = 1500
"""Pages that do not fit into a log object of 64 KiB."""


class Commit(NamedTuple):
    """A transaction of a story: its LSN, its pages, and how far the store extends after it."""

    lsn: int
    pages: tuple[int, ...]
    n_pages: int | None = None


STORY = (
    Commit(10, (1, 2, 3)),
    Commit(20, (2, 9), 12),
    Commit(30, (1, 3), 5),
    Commit(40, (4,)),
)
"""Commits that are acknowledged; then comes one more, at which the process ends."""
LAST = Commit(50, (2, 8))
LAST_LARGE = Commit(50, tuple(range(LARGE)))


def data_of(page: int, lsn: int) -> bytes:
    return f"page {page} of LSN {lsn}".encode().ljust(SIZE, b"\0")


def open_store(scene: Scene) -> Pages:
    return scene.db.pages(
        NAME, page_size=SIZE, lsn_policy="caller", log_segment_max_bytes=64 << 10, flush_interval=0
    )


def put(store: Pages, commit: Commit) -> int:
    pages = {page: data_of(page, commit.lsn) for page in commit.pages}
    if commit.n_pages is not None or len(pages) > 100:
        return store.write(pages, n_pages=commit.n_pages, lsn=commit.lsn)
    return store.append_wal([WalRecord(page, commit.lsn, data) for page, data in pages.items()])


def write_and_die(scene: Scene, point: str, last: Commit, nth: int = 1) -> None:
    """Commit the story, with flushes, then one more: the process ends at `point` of that."""
    store = open_store(scene)
    for number, commit in enumerate(STORY):
        scene.tell("ack", put(store, commit))
        if number % 2:
            store.flush()
    scene.store.arm(point, nth)
    scene.tell("ack", put(store, last))


def ack_and_die(scene: Scene, point: str) -> None:
    """Commit the story and one more, tell so, and end while that is materialised."""
    store = open_store(scene)
    for commit in (*STORY, LAST):
        scene.tell("ack", put(store, commit))
    scene.store.arm(point)
    store.flush()


class Look(NamedTuple):
    """What a fresh process finds: the head, and at each LSN how far it extends, and its pages."""

    head: int
    at: dict[int, tuple[int, dict[int, bytes]]]


def look(scene: Scene, mode: str, lsns: Sequence[int]) -> Look:
    """Open, and read everything at some LSNs."""
    store = scene.db.pages(NAME, mode=mode)
    at = {}
    for lsn in lsns:
        if lsn <= store.head:
            view = store.at(lsn=lsn)
            found = enumerate(view.get_pages(range(LARGE + 20)))
            at[lsn] = (view.n_pages, {page: data for page, data in found if data is not None})
    return Look(store.head, at)


def go_on(scene: Scene, commit: Commit) -> int:
    """Open for writing, and commit once more."""
    return put(scene.db.pages(NAME), commit)


def told_by(commits: Sequence[Commit]) -> tuple[int, dict[int, bytes]]:
    """Return how far a store extends after some commits, and its pages."""
    pages: dict[int, bytes] = {}
    extent = 0
    for commit in commits:
        pages |= {page: data_of(page, commit.lsn) for page in commit.pages}
        extent = max([extent, *(page + 1 for page in commit.pages)])
        if commit.n_pages is not None:
            extent = commit.n_pages
            pages = {page: data for page, data in pages.items() if page < extent}
    return extent, pages


# Rivals.


def contend(url: str, number: int, told: Connection) -> None:
    """Open when told to, and commit until fenced; the survivor until told to stop."""
    with reef.connect(url) as db:
        told.send(("ready",))
        told.recv()
        try:
            store = db.pages("contended", page_size=SIZE)
        except FencedError:
            told.send(("fenced", None))
            return
        told.send(("opened",))
        for turn in range(1_000_000):
            if told.poll():
                told.recv()
                told.send(("survived", store.head))
                return
            data = data_of(number, turn)
            told.send(("try", data))
            try:
                lsn = store.append_wal(
                    [WalRecord(number, None, data), WalRecord(100 + turn % 7, None, data)]
                )
            except FencedError as error:
                told.send(("fenced", error.durable_lsn))
                return
            told.send(("ack", lsn, number, data))
