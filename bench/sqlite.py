"""SQLite on Reef: what a commit adds to its PUT, hot selects, and the mix of SQLite's documentation.

The rival is the same SQLite on a file on the same disk, as it comes: a rollback journal, fsync.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

import reef.sqlite
from bench._measure import Count, Ratio, Result, compare, ratio_of
from bench._places import CACHE, Place, TimedStore, file_place, seaweedfs_place
from reef.database import Database
from reef.store import open_store
from reef.testing import Operation
from tests.support.sqlite_mix import Mix

ROWS = 50_000
SELECTS = 5_000
COMMITS = 400
SCALE = 1.0
RIVAL = "SQLite, local file"
LIMIT = "the limit"


def bench_sqlite() -> Iterator[Result]:
    """Every figure of SQLite on Reef."""
    for place in (file_place, seaweedfs_place):
        with place() as here:
            yield from _commits(here)
    with file_place() as here:
        yield from _selects(here)
    with file_place() as here:
        yield from _mix(here)


def _commits(place: Place) -> Iterator[Result]:
    """One row at a time, each a transaction, into a table with an index."""
    timed = TimedStore(open_store(place.url))
    ours: list[float] = []
    requests: set[tuple[Operation, ...]] = set()
    quiet = {"flush_threshold_slots": 1 << 20, "flush_interval": 0, "max_staleness": 3600}
    with Database(timed, **quiet) as db:
        connection = reef.sqlite.connect("app.db", database=db)
        _fill(connection, 1000)
        for i in range(COMMITS):
            timed.seconds, timed.requests = 0.0, []
            started = time.perf_counter()
            connection.execute("INSERT INTO t(b, c) VALUES (?, 'x')", (i,))
            ours.append(time.perf_counter() - started - timed.seconds)
            requests.add(tuple(timed.requests))
        connection.close()
    yield Count(
        f"{place.name}: requests of a commit of SQLite", max(map(len, requests)), 1, "one PUT"
    )
    yield ratio_of(
        f"{place.name}: a commit of SQLite, beside its PUT",
        ours,
        [0.002],
        by="median",
        bar=1.0,
        at_most=True,
        against=LIMIT,
    )


def _selects(place: Place) -> Iterator[Ratio]:
    with _plain() as plain:
        connection = reef.sqlite.connect(f"{place.url}/app.db")
        for one in (connection, plain):
            _fill(one, ROWS)

        def by_key(one: apsw.Connection) -> Callable[[], object]:
            keys = itertools.cycle(range(1, ROWS, 37))

            def run() -> None:
                for _ in range(SELECTS):
                    one.execute("SELECT c FROM t WHERE a = ?", (next(keys),)).fetchall()

            return run

        def whole(one: apsw.Connection) -> Callable[[], object]:
            return lambda: one.execute("SELECT count(*), sum(length(c)) FROM t").fetchall()

        def bounded(run: Callable[[], object], one: apsw.Connection) -> Callable[[], object]:
            """With a page cache of SQLite's that does not hold the table."""

            def narrow() -> None:
                one.execute("PRAGMA cache_size=-100")
                run()
                one.execute("PRAGMA cache_size=-20000")

            return narrow

        for one in (connection, plain):
            one.execute("PRAGMA cache_size=-20000")
        for name, make, bar in (
            (f"{SELECTS} hot selects by key", by_key, 0.7),
            (f"a hot select of {ROWS} rows", whole, 0.7),
        ):
            yield compare(name, make(connection), make(plain), bar=bar, rounds=9, against=RIVAL)
        yield compare(
            f"a select of {ROWS} rows past SQLite's cache",
            bounded(whole(connection), connection),
            bounded(whole(plain), plain),
            bar=None,
            rounds=7,
            against=RIVAL,
        )
        connection.close()


def _mix(place: Place) -> Iterator[Ratio]:
    """Each test of the mix once, on both in turn."""
    with _plain() as plain:
        connection = reef.sqlite.connect(f"{place.url}/app.db")
        tests = zip(Mix(connection, SCALE).tests(), Mix(plain, SCALE).tests(), strict=True)
        for (name, ours), (_, theirs) in tests:
            times = []
            answers = []
            for run in (ours, theirs):
                started = time.perf_counter()
                answers.append(run())
                times.append(time.perf_counter() - started)
            assert answers[0] == answers[1]
            yield ratio_of(
                name, times[:1], times[1:], by="fastest", bar=None, against=RIVAL, note="speed.html"
            )
        connection.close()


def _fill(connection: apsw.Connection, rows: int) -> None:
    connection.execute("CREATE TABLE t(a INTEGER PRIMARY KEY, b, c)")
    connection.execute("CREATE INDEX i ON t(b)")
    with connection:
        connection.executemany(
            "INSERT INTO t(b, c) VALUES (?, ?)", ((i * 7919 % rows, "x" * 100) for i in range(rows))
        )


@contextmanager
def _plain() -> Iterator[apsw.Connection]:
    """Yield a database on a file below `.cache`: a temporary folder might lie in memory."""
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=CACHE) as folder:
        connection = apsw.Connection(str(Path(folder, "plain.db")))
        try:
            yield connection
        finally:
            connection.close()
