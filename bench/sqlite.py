"""SQLite on Reef: what a commit adds to its PUT, hot selects, and the mix of SQLite's documentation.

The rival is the same SQLite on a file on the same disk, with its default settings: a rollback
journal, fsync.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import apsw

import reef.sqlite
from bench._fresh import Pass, each, over, whole
from bench._measure import Count, Ratio, Result, Scale, check, compare, ratio_of, with_fresh
from bench._places import CACHE, Place, TimedStore, file_place, seaweedfs_place
from reef.database import Database
from reef.store import open_store
from reef.testing import Operation
from tests.support.sqlite.sqlite_mix import Mix

ROWS = 50_000
SELECTS = 5_000
COMMITS = 400
MIX_SCALE = 1.0
COMMIT_EXTRA_S = 0.002
CACHE_KIB, NARROW_KIB = 20_000, 100
RIVAL = "SQLite, local file"
LIMIT = "the limit"


def bench_sqlite(scale: Scale) -> Iterator[Result]:
    """Every figure of SQLite on Reef."""
    for place in (file_place, seaweedfs_place):
        with place() as here:
            yield from _commits(here, scale)
    with file_place() as here, _folder() as folder:
        yield from _selects(here, folder, scale)
    with file_place() as here, _folder() as folder:
        yield from _mix(here, folder, scale)


# Commits.


def _commits(place: Place, scale: Scale) -> Iterator[Result]:
    """One row at a time, each a transaction, into a table with an index."""
    ours: list[float] = []
    requests: set[tuple[Operation, ...]] = set()
    with timed_connection(place, "app.db") as (timed, connection):
        commit = each(range(COMMITS), 1, partial(_insert, connection))
        for _ in range(scale.rows(COMMITS)):
            timed.seconds, timed.requests = 0.0, []
            (seconds,) = commit()
            ours.append(seconds - timed.seconds)
            requests.add(tuple(timed.requests))
    yield Count(
        f"{place.name}: requests of a commit of SQLite", max(map(len, requests)), 1, "one PUT"
    )
    result = ratio_of(
        f"{place.name}: a commit of SQLite, beside its PUT",
        ours,
        [COMMIT_EXTRA_S],
        by="median",
        bar=1.0,
        at_most=True,
        against=LIMIT,
        note="the fresh one with its PUT",
    )
    yield with_fresh(result, partial(opened_commit, place), None)


@contextmanager
def timed_connection(place: Place, name: str) -> Iterator[tuple[TimedStore, apsw.Connection]]:
    """Yield a database of SQLite with a table, and the store below it, which times requests."""
    timed = TimedStore(open_store(place.url))
    quiet: dict[str, Any] = {
        "flush_threshold_slots": 1 << 20,
        "flush_interval": 0,
        "max_staleness": 3600,
    }
    with Database(timed, **quiet) as db:
        connection = reef.sqlite.connect(name, database=db)
        _fill(connection, 1000)
        yield timed, connection
        connection.close()


@contextmanager
def opened_commit(place: Place) -> Iterator[Pass]:
    """A commit of one row, with its PUT."""
    with timed_connection(place, "fresh.db") as (_, connection):
        yield each(range(COMMITS), 1, partial(_insert, connection))


def _insert(connection: apsw.Connection, number: int) -> None:
    connection.execute("INSERT INTO t(b, c) VALUES (?, 'x')", (number,))


# Selects.


def _selects(place: Place, folder: Path, scale: Scale) -> Iterator[Ratio]:
    """Hot selects of a table that fits into SQLite's cache, and one that goes past the cache."""
    rows = scale.rows(ROWS)
    for opened in (_reef(place), _plain(folder)):
        with opened as connection:
            _fill(connection, rows)
    for name, what, bar, rounds in (
        (f"{SELECTS} hot selects by key", "by key", 0.7, 9),
        (f"a hot select of {rows} rows", "whole", 0.7, 9),
        (f"a select of {rows} rows past SQLite's cache", "past the cache", None, 7),
    ):
        yield compare(
            name,
            partial(opened_selects, place, what, rows),
            partial(opened_selects, folder, what, rows),
            bar=bar,
            rounds=scale.rounds(rounds),
            against=RIVAL,
            note="in a fresh process every page is read for the first time",
        )


@contextmanager
def opened_selects(where: Place | Path, what: str, rows: int) -> Iterator[Pass]:
    """Selects of one kind, on Reef or on a plain file."""
    with _plain(where) if isinstance(where, Path) else _reef(where) as connection:
        kib = NARROW_KIB if what == "past the cache" else CACHE_KIB
        connection.execute(f"PRAGMA cache_size=-{kib}")
        if what == "by key":
            keys = [[1 + (first + i) * 37 % rows for i in range(SELECTS)] for first in range(9)]
            yield over(keys, partial(_select_by_key, connection))
        else:
            text = "SELECT count(*), sum(length(c)) FROM t"
            yield whole(lambda: connection.execute(text).fetchall())


def _select_by_key(connection: apsw.Connection, keys: list[int]) -> None:
    for key in keys:
        connection.execute("SELECT c FROM t WHERE a = ?", (key,)).fetchall()


# The mix.


def _mix(place: Place, folder: Path, scale: Scale) -> Iterator[Ratio]:
    """Each test of the mix once, on both in turn; then all of it in a fresh process."""
    size = MIX_SCALE / 50 if scale.is_quick else MIX_SCALE
    totals = [0.0, 0.0]
    with _reef(place) as connection, _plain(folder) as plain:
        tests = zip(Mix(connection, size).tests(), Mix(plain, size).tests(), strict=True)
        for (name, ours), (_, theirs) in tests:
            times = []
            answers = []
            for run in (ours, theirs):
                started = time.perf_counter()
                answers.append(run())
                times.append(time.perf_counter() - started)
            check(answers[0] == answers[1], f"{name} answers the same on both sides")
            totals = [total + taken for total, taken in zip(totals, times, strict=True)]
            yield ratio_of(name, times[:1], times[1:], by="fastest", bar=None, against=RIVAL)
    result = ratio_of(
        "all tests of the mix",
        totals[:1],
        totals[1:],
        by="fastest",
        bar=None,
        against=RIVAL,
        note="those of speed.html, each once",
    )
    yield with_fresh(result, partial(opened_mix, place, size), partial(opened_mix, folder, size))


@contextmanager
def opened_mix(where: Place | Path, size: float) -> Iterator[Pass]:
    """All tests of the mix into a new database, on Reef or on a plain file."""
    name = "fresh.db"
    with _plain(where, name) if isinstance(where, Path) else _reef(where, name) as connection:
        yield whole(lambda: [run() for _, run in Mix(connection, size).tests()])


# Databases.


@contextmanager
def _reef(place: Place, name: str = "app.db") -> Iterator[apsw.Connection]:
    connection = reef.sqlite.connect(f"{place.url}/{name}")
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def _plain(folder: Path, name: str = "plain.db") -> Iterator[apsw.Connection]:
    connection = apsw.Connection(str(folder / name))
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def _folder() -> Iterator[Path]:
    """Yield a folder below `.cache`: a temporary one might lie in memory."""
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=CACHE) as folder:
        yield Path(folder)


def _fill(connection: apsw.Connection, rows: int) -> None:
    connection.execute("CREATE TABLE t(a INTEGER PRIMARY KEY, b, c)")
    connection.execute("CREATE INDEX i ON t(b)")
    with connection:
        connection.executemany(
            "INSERT INTO t(b, c) VALUES (?, ?)", ((i * 7919 % rows, "x" * 100) for i in range(rows))
        )
