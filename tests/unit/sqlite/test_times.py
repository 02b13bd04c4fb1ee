"""Databases at a time: read, exported, branched and restored."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import reef.sqlite
import reef.sqlite.dbapi
from reef.database import Database
from reef.errors import InvalidInputError, NotFoundError, RetentionError
from reef.settings import iso_time
from reef.sqlite import restore
from reef.store import MemoryStore
from reef.testing import ManualClock
from tests.support.commands import runner

pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def db(clock: ManualClock) -> Iterator[Database]:
    store = MemoryStore(clock=clock)
    with Database(store, clock=clock, rng=random.Random(1)) as db:
        yield db


def rows(connection: reef.sqlite.Connection) -> list[int]:
    return [int(str(row[0])) for row in connection.execute("SELECT a FROM t ORDER BY a")]


def test_a_connection_stays_at_a_time(db: Database, clock: ManualClock) -> None:
    before_us = clock.now_us()
    clock.advance(10)
    connection = reef.sqlite.connect("app.db", database=db)
    connection.execute("CREATE TABLE t(a)")
    connection.execute("INSERT INTO t VALUES (1)")
    clock.advance(10)
    at_us = clock.now_us()
    clock.advance(10)
    connection.execute("INSERT INTO t VALUES (2)")
    clock.advance(10)
    old = reef.sqlite.connect("app.db", database=db, time=iso_time(at_us))
    assert rows(old) == [1]
    assert rows(connection) == [1, 2]
    old.close()
    with pytest.raises(InvalidInputError, match="lsn and time are both given"):
        reef.sqlite.connect("app.db", database=db, lsn=1, time=at_us)
    with pytest.raises(RetentionError):
        reef.sqlite.connect("app.db", database=db, time=before_us)
    with pytest.raises(NotFoundError):
        reef.sqlite.connect("other.db", database=db, time=at_us)
    other = reef.sqlite.dbapi.connect("app.db", database=db, time=at_us)
    assert other.execute("SELECT count(*) FROM t").fetchall() == [(1,)]
    other.close()
    connection.close()


def test_a_time_is_restored(db: Database, clock: ManualClock) -> None:
    connection = reef.sqlite.connect("app.db", database=db)
    connection.execute("CREATE TABLE t(a)")
    connection.execute("INSERT INTO t VALUES (1)")
    at_us = clock.now_us()
    clock.advance(10)
    connection.execute("DELETE FROM t")
    connection.close()
    with db.pages("app.db") as pages:
        restore(pages, time=at_us)
        for wrong in ({}, {"lsn": 1, "time": 1}):
            with pytest.raises(InvalidInputError, match="give lsn or time"):
                restore(pages, **wrong)  # type: ignore[arg-type]
    with reef.sqlite.connect("app.db", database=db) as again:
        assert rows(again) == [1]
    again.close()


def test_the_commands_take_a_time(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    run = runner(f"file://{tmp_path}/bucket/app.db?fsync=off", capfdbinary, "sqlite")
    assert run("shell", "CREATE TABLE t AS SELECT 1 AS a")[0] == 0
    for path in (tmp_path / "bucket").rglob("*.wal"):
        os.utime(path, (1_767_225_600, 1_767_225_600))  # 2026-01-01
    assert run("shell", "INSERT INTO t VALUES (2)")[0] == 0
    at = "2026-01-02T00:00:00Z"
    code, out, err = run("shell", "--at", at, "SELECT count(*) FROM t")
    assert (code, out) == (0, "1\n")
    lsn = err.removeprefix("reef: at LSN ").strip()
    assert f"at LSN {lsn};" in run("export", str(tmp_path / "old.db"), "--at", at)[1]
    assert run("branch", "dev", "--at", at, "--ttl", "7d")[1].startswith(
        f"dev of app.db at LSN {lsn}"
    )
    assert run("restore", "--at", at)[1].startswith(f"restored LSN {lsn} as")
    assert run("shell", "SELECT count(*) FROM t")[1] == "1\n"
    assert "with a zone" in run("restore", "--at", "2026-01-02")[2]
