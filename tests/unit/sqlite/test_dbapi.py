"""The standard library's sqlite3, and an application of SQLAlchemy that knows nothing of Reef."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, ForeignKey, create_engine, event, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

import reef.sqlite
from reef.errors import FencedError, InvalidInputError, NotFoundError
from reef.sqlite import dbapi
from reef.sqlite._registry import registry
from reef.sqlite._vfs_ctypes import last_error, register_sqlite3
from reef.store import open_store
from tests.support.engine.open_database import database


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    yield f"{tmp_path}/app.db"
    assert not registry._open, "a test has left a database open"


def uri(path: str, more: str = "") -> str:
    return f"file:{path}?vfs=reef&fsync=off{more}"


def test_the_standard_library_reads_and_writes(path: str) -> None:
    connection = sqlite3.connect(uri(path), uri=True)
    connection.execute("CREATE TABLE t(a INTEGER PRIMARY KEY, b)")
    with connection:
        connection.executemany("INSERT INTO t(b) VALUES (?)", [("x" * i,) for i in range(500)])
    (lsn,) = connection.execute("PRAGMA reef_lsn").fetchone()
    with pytest.raises(ZeroDivisionError), connection:
        connection.execute("DELETE FROM t")
        raise ZeroDivisionError
    with connection:
        connection.execute("DELETE FROM t WHERE a % 2")
    assert connection.execute("SELECT count(*) FROM t").fetchone() == (250,)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    old = sqlite3.connect(uri(path, f"&lsn={lsn}"), uri=True)
    assert old.execute("SELECT count(*) FROM t").fetchone() == (500,)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        old.execute("DELETE FROM t")
    for one in (connection, old):
        one.close()
    by_apsw = reef.sqlite.connect(f"file://{path}?fsync=off")
    assert by_apsw.execute("SELECT count(*) FROM t").get == 250
    by_apsw.close()


def test_it_does_without_apsw(path: str) -> None:
    script = """
import sys
sys.modules["apsw"] = None  # as if it were not installed
import reef.sqlite
from reef.sqlite import dbapi
dbapi.connect(sys.argv[1]).close()
for name in ("connect", "export_file"):
    try:
        getattr(reef.sqlite, name)
    except ModuleNotFoundError as error:
        print(error)
"""
    command = [sys.executable, "-c", script, path]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said.count("needs apsw: pip install 'reefdb[sqlite]'") == 2


@pytest.mark.parametrize("mode", ["wal", "off"])
def test_journal_modes_are_refused_with_the_reason(path: str, mode: str) -> None:
    connection = sqlite3.connect(uri(path), uri=True)
    with pytest.raises(sqlite3.OperationalError, match=f"journal_mode = '{mode}' cannot be used"):
        connection.execute(f"PRAGMA journal_mode={mode}")
    connection.close()


def test_vacuum_spills_and_temporary_tables(path: str) -> None:
    connection = sqlite3.connect(uri(path), uri=True)
    connection.execute("PRAGMA cache_size=5")
    connection.execute("PRAGMA temp_store=FILE")
    connection.execute("CREATE TABLE t(a INTEGER PRIMARY KEY, b)")
    with connection:
        for i in range(300):
            connection.execute("INSERT INTO t VALUES (?, randomblob(2000))", (i,))
        connection.execute("CREATE TEMP TABLE held AS SELECT * FROM t ORDER BY b")
        connection.execute("SAVEPOINT s")
        connection.execute("DELETE FROM t")
        connection.execute("ROLLBACK TO s")
        connection.execute("DELETE FROM t WHERE a > 100")
    connection.execute("VACUUM")
    assert connection.execute("SELECT count(*), sum(a) FROM t").fetchone() == (101, 5050)
    assert connection.execute("SELECT count(*) FROM held").fetchone() == (300,)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_what_is_not_there_is_said(path: str) -> None:
    with pytest.raises(NotFoundError):
        dbapi.connect(f"file://{path}", mode="r")


def test_settings_and_what_sqlite3_takes_go_together(path: str) -> None:
    connection = dbapi.connect(path, max_staleness=7, isolation_level=None)
    assert connection.isolation_level is None
    with pytest.raises(InvalidInputError, match="settings"):
        dbapi.connect(path, max_staleness=8)
    with pytest.raises(TypeError, match="nonsense"):
        dbapi.connect(path, nonsense=1)
    connection.close()


def test_a_fenced_commit_fails_and_the_connection_goes_on() -> None:
    store = open_store("memory://")
    with database(store, max_staleness=0) as mine, database(store, max_staleness=0) as theirs:
        one = dbapi.connect("app.db", database=mine)
        one.execute("CREATE TABLE t(a)")
        rival = dbapi.connect("app.db", database=theirs)
        one.execute("INSERT INTO t VALUES ('lost')")
        with rival:
            rival.execute("INSERT INTO t VALUES ('rival')")
        with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
            one.commit()
        assert isinstance(last_error(), FencedError)
        one.rollback()
        assert one.execute("SELECT a FROM t").fetchall() == [("rival",)]
        with one:
            one.execute("INSERT INTO t VALUES ('again')")
        assert rival.execute("SELECT a FROM t").fetchall() == [("rival",), ("again",)]
        one.close()
        rival.close()


@pytest.mark.parametrize("main", ["reef", "plain"])
def test_a_commit_over_several_is_refused_where_its_failure_would_not_be_told(
    path: str, tmp_path: Path, main: str
) -> None:
    first = uri(path) if main == "reef" else f"file:{tmp_path}/plain.db"
    connection = sqlite3.connect(first, uri=True, isolation_level=None)
    connection.execute("CREATE TABLE t(a)")
    connection.execute(f"ATTACH '{uri(f'{tmp_path}/b2/other.db')}' AS other")
    connection.execute("CREATE TABLE other.t(a)")

    def write() -> None:
        for sql in ("BEGIN", "INSERT INTO t VALUES (1)", "INSERT INTO other.t VALUES (1)"):
            connection.execute(sql)
        connection.execute("COMMIT")

    with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
        write()
    assert "journal_mode=MEMORY" in str(last_error())
    both = "SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM other.t)"
    assert connection.execute(both).fetchone() == (0, 0)
    connection.execute("PRAGMA other.journal_mode=MEMORY")
    write()
    assert connection.execute(both).fetchone() == (1, 1)
    connection.close()


def test_what_is_not_ours_is_of_the_systems_vfs(path: str) -> None:
    vfs: Any = register_sqlite3()
    for name in ("dl_open", "dl_error", "dl_sym", "dl_close", "randomness", "sleep"):
        assert getattr(vfs._vfs, name) == getattr(vfs._default, name)


def test_a_process_that_ends_without_closing_ends(path: str) -> None:
    code = (
        "import sys, sqlite3, reef.sqlite.dbapi\n"
        "con = sqlite3.connect(sys.argv[1], uri=True)\n"
        "con.execute('CREATE TABLE t(a)')\n"
        "con.execute('INSERT INTO t VALUES (1)')\n"  # never committed
    )
    subprocess.run([sys.executable, "-c", code, uri(path)], check=True)
    connection = sqlite3.connect(uri(path), uri=True)
    assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)
    connection.close()


# A small application, as it would be written for any SQLite.


class Base(DeclarativeBase):
    pass


class Author(Base):
    __tablename__ = "authors"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    books: Mapped[list[Book]] = relationship(back_populates="author", cascade="all, delete-orphan")


class Book(Base):
    __tablename__ = "books"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]
    price: Mapped[float] = mapped_column(default=0.0)
    author_id: Mapped[int] = mapped_column(ForeignKey("authors.id"), index=True)
    author: Mapped[Author] = relationship(back_populates="books")


def run_library(engine: Engine) -> list[tuple[str, int, float]]:
    event.listen(engine, "connect", lambda raw, _: raw.execute("PRAGMA foreign_keys=ON"))
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        for number in range(20):
            author = Author(name=f"author {number}")
            author.books = [Book(title=f"{number}.{i}", price=i * 1.5) for i in range(number)]
            session.add(author)
        session.commit()
    with Session(engine) as session, session.begin():
        session.delete(session.scalars(select(Author).where(Author.name == "author 7")).one())
        for book in session.scalars(select(Book).where(Book.price > 10)):
            book.price *= 2
    with pytest.raises(ZeroDivisionError), Session(engine) as session, session.begin():
        session.query(Book).delete()
        raise ZeroDivisionError
    with Session(engine) as session, session.begin():
        session.add(Author(name="nested"))
        nested = session.begin_nested()
        session.add(Author(name="rolled back"))
        nested.rollback()
    with Session(engine) as session:
        query = (
            select(Author.name, func.count(Book.id), func.coalesce(func.sum(Book.price), 0.0))
            .join(Book, isouter=True)
            .group_by(Author.id)
            .order_by(Author.name)
        )
        return [tuple(row) for row in session.execute(query)]


@pytest.mark.parametrize("way", ["uri", "creator"])
def test_an_application_of_sqlalchemy_runs_unmodified(path: str, tmp_path: Path, way: str) -> None:
    engines: dict[str, Callable[[], Engine]] = {
        "uri": lambda: create_engine(f"sqlite:///{uri(path)}&uri=true"),
        "creator": lambda: create_engine(
            "sqlite://", creator=lambda: dbapi.connect(f"file://{path}?fsync=off")
        ),
    }
    plain = create_engine(f"sqlite:///{tmp_path}/plain.db")
    engine = engines[way]()
    assert run_library(engine) == run_library(plain)
    engine.dispose()
    plain.dispose()
    connection = sqlite3.connect(uri(path), uri=True)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
