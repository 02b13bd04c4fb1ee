"""SQLite on Reef against SQLite on a plain file: no difference, whatever fails."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest

import reef.sqlite
from reef.database import Database
from reef.errors import FencedError, OutcomeUnknownError
from reef.jobs import CompactionOptions, InProcess
from reef.sqlite import dbapi
from reef.sqlite._vfs_apsw import as_apsw
from reef.sqlite._vfs_ctypes import forget_error, last_error
from reef.store import open_store
from reef.testing import Fault, FaultyStore
from tests.support.engine.open_database import database
from tests.support.jobs.passes import compact
from tests.support.sqlite.sqlite_story import (
    FULL_EVERY,
    Author,
    chapter,
    check_integrity,
    dump,
    setup,
)

TRANSACTIONS = int(os.environ.get("SQLITE_FUZZ_TRANSACTIONS", "20000"))
COMPACT_EVERY = 1500
LOG = "*/wal/*"
REFUSED = (Fault("denied", on="put_if_absent", key=LOG),)
LANDED = (
    Fault("reply_lost", on="put_if_absent", key=LOG),
    Fault("error_before", on="get", key=LOG, times=4),
)
NOT_LANDED = (Fault("error_before", on="put_if_absent", key=LOG),)
LATE = (Fault("lands_late", on="put_if_absent", key=LOG),)


class Story:
    """A database on Reef in two processes, as it were, and a plain one beside it."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        page_size: int,
        journal: str,
        connect: Callable[[Database], Any] = lambda db: reef.sqlite.connect("app.db", database=db),
    ) -> None:
        self.author = Author(seed)
        self.rng = self.author.rng
        store = open_store("memory://")
        self.faults = FaultyStore(store)
        options = {"cas_max_retries": 0, "max_staleness": 0, "flush_threshold_slots": 50}
        self.dbs = [database(self.faults, seed=1, **options), database(store, seed=2, **options)]
        beside = self.dbs[0]  # a reader beside the writer
        self.connections = [connect(db) for db in (*self.dbs, beside)]
        self.plain = apsw.Connection(str(folder / f"{seed}.db"))
        self.plain.execute("PRAGMA journal_mode=MEMORY; PRAGMA synchronous=OFF").fetchall()
        for connection in (*self.connections, self.plain):
            connection.execute(f"PRAGMA page_size={page_size}; PRAGMA cache_size=8").fetchall()
            assert connection.pragma("cache_size") == 8
            connection.set_busy_timeout(0)
        for connection in self.connections:
            connection.execute(f"PRAGMA journal_mode={journal}").fetchall()
        for statement in setup():
            self.connections[0].execute(statement)
            self.plain.execute(statement)
        self.number = 0
        self.seen: dict[str, int] = {}

    def run(self, count: int) -> None:
        for _ in range(count):
            self.number += 1
            roll = self.rng.random()
            if roll < 0.004:
                self._vacuum()
            else:
                self._transaction()
            if self.number % 50 == 0:
                assert chapter(self.connections[2]) == chapter(self.plain)
            if self.number % COMPACT_EVERY == 0:
                self._compact()
            if self.number % FULL_EVERY == 0:
                self.compare()

    def compare(self) -> None:
        expected = dump(self.plain)
        for connection in self.connections:
            assert dump(connection) == expected
            check_integrity(connection)

    def close(self) -> None:
        for connection in (*self.connections, self.plain):
            connection.close()
        for db in self.dbs:
            db.close()

    def _transaction(self) -> None:
        main = self.connections[1 if self.rng.random() < 0.005 else 0]
        begin = self.rng.choice(("BEGIN", "BEGIN IMMEDIATE"))
        main.execute(begin)
        self.plain.execute(begin)
        for sql, bindings in self.author.transaction(self.number):
            assert (
                main.execute(sql, bindings).fetchall()
                == self.plain.execute(sql, bindings).fetchall()
            )
        if self.rng.random() < 0.15:
            self._note("rolled back")
            self.author.undo()
            main.execute("ROLLBACK")
            self.plain.execute("ROLLBACK")
        else:
            self._commit(main)

    def _commit(self, main: apsw.Connection) -> None:
        is_faulty = main is self.connections[0]
        roll = self.rng.random() if is_faulty else 1.0
        if roll < 0.02:
            self._failing(main, REFUSED, "refused", apsw.IOError)
        elif roll < 0.024:
            self._failing(main, LANDED, "unknown, landed", OutcomeUnknownError)
        elif roll < 0.028:
            self._failing(main, NOT_LANDED, "unknown, not landed", OutcomeUnknownError)
        elif roll < 0.032:
            self._failing(main, LATE, "unknown, landing late", OutcomeUnknownError)
        elif roll < 0.036:
            self.dbs[1].pages("app.db", mode="w").close()  # takes it over under the transaction
            self._failing(main, (), "fenced", FencedError)
        else:
            main.execute("COMMIT")
            self.plain.execute("COMMIT")
            self._note("committed")

    def _failing(
        self,
        main: apsw.Connection,
        faults: tuple[Fault, ...],
        what: str,
        kind: type[Exception],
    ) -> None:
        self.faults.arm(*faults)
        with pytest.raises(kind) as caught:
            main.execute("COMMIT")
        assert isinstance(caught.value, apsw.IOError)
        self.faults.disarm()
        if faults is LATE and self.rng.random() < 0.5:
            self.faults.land()
        if not main.get_autocommit():
            main.execute("ROLLBACK")
        took_place = chapter(main) == self.number
        assert not (took_place and what in ("refused", "fenced", "unknown, not landed"))
        assert took_place or what != "unknown, landed"
        self.plain.execute("COMMIT" if took_place else "ROLLBACK")
        if not took_place:
            self.author.undo()
        self.faults.land()  # what arrives now is too late, and must not count
        assert chapter(main) == chapter(self.plain) == chapter(self.connections[2])
        if self.rng.random() < 0.1:
            assert dump(main) == dump(self.plain)
            check_integrity(main)
        self._note(f"{what}: {'there' if took_place else 'not there'}")

    def _compact(self) -> None:
        context = self.dbs[1].context()
        compact(context, "app.db", InProcess(context), options=CompactionOptions(min_input_files=4))
        self._note("compacted")

    def _vacuum(self) -> None:
        self.connections[0].execute("VACUUM")
        self.plain.execute("VACUUM")
        self._note("vacuumed")

    def _note(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1


@pytest.fixture
def story(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Story]:
    seed, page_size, journal = request.param
    made = Story(tmp_path, seed, page_size=page_size, journal=journal)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("story", "share"),
    [
        ((1, 4096, "MEMORY"), 0.35),
        ((4, 4096, "MEMORY"), 0.35),
        ((2, 1024, "MEMORY"), 0.15),
        ((3, 8192, "DELETE"), 0.15),
    ],
    indirect=["story"],
    ids=["4096", "4096-again", "1024", "8192-delete"],
)
def test_no_difference(story: Story, share: float) -> None:
    story.run(round(TRANSACTIONS * share))
    story.compare()
    if TRANSACTIONS < 20_000:
        return
    for what in (
        "committed",
        "rolled back",
        "vacuumed",
        "compacted",
        "fenced: not there",
        "refused: not there",
        "unknown, landed: there",
        "unknown, not landed: not there",
        "unknown, landing late: there",
        "unknown, landing late: not there",
    ):
        assert story.seen.get(what), (what, story.seen)


class Rows(NamedTuple):
    """What a statement found, asked for as apsw would be."""

    rows: list[tuple[object, ...]]

    def fetchall(self) -> list[tuple[object, ...]]:
        return self.rows

    @property
    def get(self) -> object:
        return self.rows[0][0]


class OfTheStandardLibrary:
    """A connection of sqlite3, called as one of apsw."""

    def __init__(self, db: Database) -> None:
        self._connection = dbapi.connect("app.db", database=db, isolation_level=None)

    def execute(self, sql: str, bindings: tuple[object, ...] = ()) -> Rows:
        rows: list[tuple[object, ...]] = []
        forget_error()
        try:
            for statement in sql.split(";"):
                rows += self._connection.execute(statement, bindings).fetchall()
        except sqlite3.OperationalError:
            error = last_error()
            if error is not None:
                raise as_apsw(error) from error
            raise
        return Rows(rows)

    def pragma(self, name: str) -> object:
        return self.execute(f"PRAGMA {name}").get

    def set_busy_timeout(self, milliseconds: int) -> None:
        self.execute(f"PRAGMA busy_timeout={milliseconds}")

    def get_autocommit(self) -> bool:
        return not self._connection.in_transaction

    def close(self) -> None:
        self._connection.close()


def test_no_difference_by_the_standard_library(tmp_path: Path) -> None:
    story = Story(tmp_path, 5, page_size=4096, journal="DELETE", connect=OfTheStandardLibrary)
    story.run(TRANSACTIONS // 8)
    story.compare()
    story.close()
