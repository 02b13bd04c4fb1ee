"""A schema that changed is noticed, also where SQLite's number for it comes back with another schema.

SQLite compares the number alone. What a connection takes for a table that is another's, it would damage.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import apsw
import pytest

import reef.sqlite
from reef.database import Database
from reef.errors import NotFoundError, UnavailableError
from reef.sqlite import dbapi
from reef.sqlite._copy import restore
from reef.store import Store, open_store
from reef.testing import Fault, FaultyStore
from tests.support.engine.open_database import database

Connect = Any


@pytest.fixture
def store() -> Store:
    return open_store("memory://")


@pytest.fixture(params=[reef.sqlite.connect, dbapi.connect], ids=["apsw", "sqlite3"])
def connect(request: pytest.FixtureRequest) -> Connect:
    return request.param


def opened(store: Store, **settings: object) -> Database:
    """Return the bucket as another process has it open."""
    return database(store, **{"max_staleness": 0, **settings})


def fetched(connection: Any, sql: str) -> list[Any]:
    return [tuple(row) for row in connection.execute(sql).fetchall()]


def number(connection: Any) -> int:
    return int(fetched(connection, "PRAGMA schema_version")[0][0])


def make_people(connection: Any) -> None:
    connection.execute("CREATE TABLE people(id, name UNIQUE)")
    connection.execute("INSERT INTO people VALUES (1, 'Ann')")


def check_noticed(idle: Any, other: Any, store: Store) -> None:
    """Have a connection that knows `orders` write to it, where there are people instead."""
    idle.isolation_level = None  # of sqlite3: no transactions but those that are asked for
    for _ in range(2):
        with pytest.raises((apsw.SQLError, sqlite3.OperationalError), match="no such table"):
            idle.execute("INSERT INTO orders VALUES (2, 'Bob')")
    assert fetched(idle, "SELECT * FROM people") == [(1, "Ann")]
    idle.execute("INSERT INTO people VALUES (2, 'Bob')")
    idle.execute("BEGIN")
    idle.execute("INSERT INTO people VALUES (3, 'Cid')")
    idle.execute("COMMIT")
    with opened(store) as db, closing(reef.sqlite.connect("app.db", database=db)) as fresh:
        for connection in (idle, other, fresh):
            assert fetched(connection, "SELECT count(*) FROM people") == [(3,)]
            assert fetched(connection, "PRAGMA integrity_check") == [("ok",)]


@pytest.fixture
def two(store: Store) -> Iterator[tuple[Database, Database]]:
    with opened(store) as first, opened(store) as second:
        yield first, second


def test_what_is_restored_has_a_number_of_its_own(
    store: Store, two: tuple[Database, Database], connect: Connect
) -> None:
    idle, other = (connect("app.db", database=db) for db in two)
    other.isolation_level = None
    other.execute("CREATE TABLE base(x)")
    then = int(fetched(other, "PRAGMA reef_lsn")[0][0])
    other.execute("CREATE TABLE orders(id, price)")
    other.execute("INSERT INTO orders VALUES (1, 10)")
    assert fetched(idle, "SELECT * FROM orders") == [(1, 10)]
    seen = number(idle)
    with two[1].pages("app.db") as pages:
        restore(pages, then)
    make_people(other)
    assert number(other) > seen + 1
    check_noticed(idle, other, store)
    for connection in (idle, other):
        connection.close()


def test_there_is_no_way_back_to_before_there_was_a_database(
    two: tuple[Database, Database],
) -> None:
    with closing(reef.sqlite.connect("app.db", database=two[0])) as connection:
        connection.execute("CREATE TABLE orders(id, price)")
    with two[1].pages("app.db") as pages:
        newest = pages.head
        with pytest.raises(NotFoundError, match="there was no database"):
            restore(pages, 0)
        assert pages.head == newest


@pytest.mark.parametrize("begins", [False, True])
def test_another_database_of_that_name_is_known_for_another(
    store: Store, two: tuple[Database, Database], connect: Connect, begins: bool
) -> None:
    idle, other = (connect("app.db", database=db) for db in two)
    other.execute("CREATE TABLE orders(id, price)")
    assert fetched(idle, "SELECT * FROM orders") == []
    seen = number(idle)
    other.close()
    two[1].drop("app.db")
    other = connect("app.db", database=two[1])
    other.isolation_level = None
    make_people(other)
    assert number(other) == seen  # by which SQLite would take it for the same
    with pytest.raises((apsw.Error, sqlite3.Error)):  # it looks at what it has open, once more
        for _ in range(3):
            if begins:
                idle.execute("BEGIN IMMEDIATE")
            idle.execute("INSERT INTO orders VALUES (2, 'Bob')")
    if begins:
        idle.execute("ROLLBACK")
    check_noticed(idle, other, store)
    for connection in (idle, other):
        connection.close()


def test_what_others_saw_of_a_lost_commit_is_forgotten(connect: Connect) -> None:
    store = open_store("memory://")
    faults = FaultyStore(store)
    with opened(faults, cas_max_retries=0) as db:
        idle, other = (connect("app.db", database=db) for _ in range(2))
        other.isolation_level = None
        other.execute("CREATE TABLE base(x)")
        other.execute("PRAGMA synchronous=OFF").fetchall()
        faults.arm(
            Fault("stall", on="put_if_absent", key="*/wal/*"),
            Fault("denied", on="put_if_absent", key="*/wal/*", times=1),
        )
        other.execute("INSERT INTO base VALUES (1)")
        faults.wait_for_stalled()  # its PUT is on its way, and what comes now is behind it
        other.execute("CREATE TABLE orders(id, price)")
        assert fetched(idle, "SELECT * FROM orders") == []
        seen = number(idle)
        faults.release()
        with pytest.raises((UnavailableError, sqlite3.Error)):
            other.execute("PRAGMA synchronous=FULL").fetchall()
        other.execute("PRAGMA synchronous=FULL").fetchall()
        make_people(other)
        assert number(other) == seen
        check_noticed(idle, other, store)
        for connection in (idle, other):
            connection.close()
