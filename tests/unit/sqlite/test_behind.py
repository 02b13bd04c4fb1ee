"""synchronous=OFF: acknowledged before it is durable, in order, whole, and never silently lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import apsw
import pytest

import reef.sqlite
from reef.database import Database
from reef.errors import UnavailableError
from reef.sqlite import _behind
from reef.sqlite._behind import Behind, Queued
from reef.sqlite._database_version import TransactionPages
from reef.store import open_store
from reef.testing import CountingStore, Fault, FaultyStore, ManualClock
from reef.threads import SystemThreads
from tests.support.engine.open_database import database

LOG = "*/wal/*"


@pytest.fixture
def faults() -> Iterator[FaultyStore]:
    store = FaultyStore(CountingStore(open_store("memory://")))
    yield store
    store.disarm()


@pytest.fixture
def db(faults: FaultyStore) -> Iterator[Database]:
    with database(faults, max_staleness=0, cas_max_retries=0) as opened:
        yield opened


def connected(db: Database) -> apsw.Connection:
    connection = reef.sqlite.connect("app.db", database=db)
    connection.execute("CREATE TABLE IF NOT EXISTS t(a INTEGER PRIMARY KEY)")
    return connection


def stall_first(connection: apsw.Connection, faults: FaultyStore) -> None:
    """Commit the row 1 without waiting for its put, which does not come through."""
    connection.execute("PRAGMA synchronous=OFF")
    faults.arm(Fault("stall", on="put_if_absent", key=LOG))
    connection.execute("INSERT INTO t VALUES (1)")
    faults.wait_for_stalled()


def rows(connection: apsw.Connection) -> list[int]:
    return [int(str(row[0])) for row in connection.execute("SELECT a FROM t ORDER BY a")]


def elsewhere(faults: FaultyStore) -> list[int]:
    """Return what another process finds."""
    with database(faults.inner) as db:
        connection = reef.sqlite.connect("app.db", database=db, mode="r")
        try:
            return rows(connection)
        finally:
            connection.close()


def test_a_commit_is_acknowledged_while_its_put_is_on_its_way(
    db: Database, faults: FaultyStore
) -> None:
    connection, other = connected(db), connected(db)
    stall_first(connection, faults)
    for i in range(2, 11):
        connection.execute("INSERT INTO t VALUES (?)", (i,))
    assert rows(connection) == rows(other) == list(range(1, 11))
    assert elsewhere(faults) == []
    faults.release()
    connection.execute("PRAGMA wal_checkpoint").fetchall()
    assert elsewhere(faults) == list(range(1, 11))
    for one in (connection, other):
        one.execute("PRAGMA integrity_check").fetchall()
        one.close()


def test_the_lsn_is_that_of_everything_that_was_acknowledged(
    db: Database, faults: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drain(behind: Behind) -> None:
        faults.release()
        drained(behind)

    drained = Behind.drain
    connection = connected(db)
    stall_first(connection, faults)
    connection.execute("INSERT INTO t VALUES (2)")
    monkeypatch.setattr(Behind, "drain", drain)
    then = int(connection.execute("PRAGMA reef_lsn").get)
    faults.release()
    connection.execute("DELETE FROM t")
    old = reef.sqlite.connect("app.db", database=db, lsn=then)
    assert rows(old) == [1, 2]
    assert int(old.execute("PRAGMA reef_lsn").get) == then
    for one in (old, connection):
        one.close()


@pytest.mark.parametrize("way", ["refused by SQLite", "of another database"])
def test_only_what_sqlite_takes_for_off_is_off(
    db: Database, faults: FaultyStore, way: str, tmp_path: Path
) -> None:
    connection = connected(db)
    if way == "refused by SQLite":
        connection.execute("BEGIN; INSERT INTO t VALUES (1)")
        with pytest.raises(apsw.SQLError, match="Safety level may not be changed"):
            connection.execute("PRAGMA synchronous=OFF")
        connection.execute("COMMIT")
    else:
        connection.execute("ATTACH ? AS plain", (f"file:{tmp_path}/plain.db?vfs=unix",))
        connection.execute("PRAGMA plain.synchronous=OFF; INSERT INTO t VALUES (1)")
    faults.arm(Fault("denied", on="put_if_absent", key=LOG))
    with pytest.raises(apsw.IOError):
        connection.execute("INSERT INTO t VALUES (2)")
    assert rows(connection) == [1]
    connection.close()


def test_what_waits_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_behind, "WAITING_BYTES_MAX", 100)
    threads, may_send = SystemThreads(), threading.Event()
    cond = threads.condition()
    behind = Behind(cond, threads, ManualClock(), lambda _: may_send.wait() and None, lambda: None)
    holder = SimpleNamespace(lost=None)
    with cond:
        behind.add(Queued(holder, TransactionPages({0: bytes(60)}, 1)))
        behind.wait_for_room()
        behind.add(Queued(holder, TransactionPages({0: bytes(60)}, 1)))
        assert behind._is_full()
    may_send.set()
    with cond:
        behind.wait_for_room()
    behind.close()


def test_what_waits_goes_together(db: Database, faults: FaultyStore) -> None:
    connection = connected(db)
    connection.execute("PRAGMA synchronous=OFF")
    counting = faults.inner
    assert isinstance(counting, CountingStore)
    before = counting.counts.requests["put_if_absent"]
    faults.arm(Fault("stall", on="put_if_absent", key=LOG))
    for i in range(20):
        connection.execute("INSERT INTO t VALUES (?)", (i,))
        if not i:
            faults.wait_for_stalled()
    faults.release()
    connection.execute("PRAGMA synchronous=FULL")
    assert counting.counts.requests["put_if_absent"] - before == 2
    assert elsewhere(faults) == list(range(20))
    connection.close()


def test_closing_waits(db: Database, faults: FaultyStore) -> None:
    connection = connected(db)
    connection.execute("PRAGMA synchronous=OFF")
    for i in range(30):
        connection.execute("INSERT INTO t VALUES (?)", (i,))
    connection.close()
    assert elsewhere(faults) == list(range(30))


def test_a_loss_is_told_at_the_next_transaction_and_leaves_whole_commits(
    db: Database, faults: FaultyStore
) -> None:
    connection, other = connected(db), connected(db)
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("INSERT INTO t VALUES (1)")
    connection.execute("PRAGMA wal_checkpoint").fetchall()
    faults.arm(Fault("stall", on="put_if_absent", key=LOG))
    connection.execute("INSERT INTO t VALUES (2)")
    faults.wait_for_stalled()
    faults.arm(Fault("denied", on="put_if_absent", key=LOG, times=0))
    connection.execute("INSERT INTO t VALUES (3)")
    connection.execute("INSERT INTO t VALUES (4)")
    assert rows(other) == [1, 2, 3, 4]
    faults.release()
    with pytest.raises(UnavailableError, match="2 commits acknowledged under synchronous=OFF"):
        connection.execute("PRAGMA wal_checkpoint").fetchall()
    faults.disarm()
    assert rows(connection) == rows(other) == [1, 2] == elsewhere(faults)
    # The same counters in the header as in what was lost: caches must not be taken for good.
    connection.execute("INSERT INTO t VALUES (7)")
    connection.execute("INSERT INTO t VALUES (8)")
    assert rows(connection) == rows(other) == [1, 2, 7, 8]
    for one in (connection, other):
        assert one.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        one.close()
    assert elsewhere(faults) == [1, 2, 7, 8]


def test_a_transaction_on_top_of_what_was_lost_is_refused(
    db: Database, faults: FaultyStore
) -> None:
    connection, other = connected(db), connected(db)
    stall_first(connection, faults)
    faults.arm(Fault("denied", on="put_if_absent", key=LOG, times=0))
    connection.execute("INSERT INTO t VALUES (2)")
    other.execute("BEGIN IMMEDIATE; INSERT INTO t VALUES (3)")
    faults.release()
    with pytest.raises(UnavailableError):
        connection.execute("PRAGMA wal_checkpoint").fetchall()
    faults.disarm()
    with pytest.raises(apsw.IOError, match="was lost"):
        other.execute("COMMIT")
    assert rows(connection) == rows(other) == [1] == elsewhere(faults)
    for one in (connection, other):
        one.close()
