"""Databases as a whole: imported, exported, restored, listed; by hand and by `reef sqlite`."""

from __future__ import annotations

import io
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import reef
import reef.sqlite
from reef import cli
from reef.errors import (
    AlreadyExistsError,
    CorruptError,
    FencedError,
    InvalidInputError,
    NotFoundError,
)
from reef.pages import Pages
from reef.sqlite import _copy
from reef.sqlite._copy import export_file, history, import_file, restore

pytestmark = pytest.mark.usefixtures("no_settings")


def make(path: Path, *, page_size: int = 4096, rows: int = 200, journal: str = "delete") -> Path:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA page_size={page_size}")
    connection.execute(f"PRAGMA journal_mode={journal}")
    connection.execute("CREATE TABLE t(a INTEGER PRIMARY KEY, b)")
    with connection:
        connection.executemany("INSERT INTO t(b) VALUES (?)", [("x" * i,) for i in range(rows)])
    connection.close()
    return path


def count(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute("SELECT count(*) FROM t").fetchone()[0])
    finally:
        connection.close()


@pytest.mark.parametrize("page_size", [512, 4096, 65536])
@pytest.mark.parametrize("chunk_bytes", [1, 32 << 20])
def test_a_file_comes_out_as_it_went_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page_size: int, chunk_bytes: int
) -> None:
    monkeypatch.setattr(_copy, "_CHUNK_BYTES", chunk_bytes * page_size * 7)
    source = make(tmp_path / "in.db", page_size=page_size)
    with reef.connect("memory://") as db:
        told: list[tuple[int, int]] = []
        copied = import_file(source, db, "app.db", progress=lambda *said: told.append(said))
        assert told[-1] == (copied.pages, copied.pages)
        with db.pages("app.db", mode="r") as pages:
            assert pages.page_size == page_size
            export_file(pages.at(lsn=copied.lsn), tmp_path / "out.db")
        assert (tmp_path / "out.db").read_bytes() == source.read_bytes()
        with pytest.raises(AlreadyExistsError, match=r"app\.db"):
            import_file(source, db, "app.db")


def test_a_file_in_wal_mode_comes_with_what_is_in_its_log(tmp_path: Path) -> None:
    source = tmp_path / "in.db"
    held = sqlite3.connect(source)
    held.execute("PRAGMA journal_mode=wal")
    held.execute("CREATE TABLE t(a)")
    with held:
        held.executemany("INSERT INTO t VALUES (?)", [(i,) for i in range(500)])
    with reef.connect("memory://") as db:
        import_file(source, db, "app.db")
        connection = reef.sqlite.connect("app.db", database=db)
        assert connection.execute("SELECT count(*) FROM t").get == 500
        connection.execute("INSERT INTO t VALUES (1)")
        connection.close()
    held.close()


@pytest.mark.parametrize("page_size", [512, 4096])
def test_an_import_that_was_cut_short_is_no_database_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page_size: int
) -> None:
    monkeypatch.setattr(_copy, "_CHUNK_BYTES", 3 * 4096)
    source = make(tmp_path / "in.db", rows=500)

    def interrupt(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with reef.connect("memory://") as db:
        with pytest.raises(KeyboardInterrupt):
            import_file(source, db, "app.db", progress=interrupt)
        for mode in ("r", "w"):
            with pytest.raises(NotFoundError, match="its first page is missing"):
                reef.sqlite.connect("app.db", database=db, mode=mode)
        smaller = make(tmp_path / "smaller.db", rows=20, page_size=page_size)
        copied = import_file(smaller, db, "app.db")
        with db.pages("app.db", mode="r") as pages:
            export_file(pages.at(lsn=copied.lsn), tmp_path / "out.db")
    assert (tmp_path / "out.db").read_bytes() == smaller.read_bytes()


@pytest.mark.parametrize("page_size", [512, 4096])
def test_pages_that_no_import_has_left_are_not_imported_over(
    tmp_path: Path, page_size: int
) -> None:
    source = make(tmp_path / "in.db")
    with reef.connect("memory://") as db:
        with db.pages("mine", page_size=page_size) as pages:
            pages.write({1: b"x" * page_size})
        with pytest.raises(AlreadyExistsError, match="'mine'"):
            import_file(source, db, "mine")
        with db.pages("mine", mode="r") as pages:
            assert pages.get_pages([0, 1]) == [None, b"x" * page_size]
        db.pages("empty", page_size=page_size).close()
        import_file(source, db, "empty")


def test_what_is_damaged_is_not_imported(tmp_path: Path) -> None:
    source = make(tmp_path / "in.db", rows=2000)
    data = bytearray(source.read_bytes())
    data[5 * 4096 + 200 : 6 * 4096] = bytes(4096 - 200)
    source.write_bytes(data)
    (tmp_path / "text.db").write_text("no database at all, " * 50)
    with reef.connect("memory://") as db:
        with pytest.raises(CorruptError, match="integrity_check"):
            import_file(source, db, "app.db")
        with pytest.raises(InvalidInputError, match="not a readable SQLite database"):
            import_file(tmp_path / "text.db", db, "app.db")
        with pytest.raises(NotFoundError):
            db.pages("app.db", mode="r")


def test_a_file_whose_last_transaction_was_not_finished_is_not_imported(tmp_path: Path) -> None:
    connection = sqlite3.connect(make(tmp_path / "in.db", rows=2000), isolation_level=None)
    connection.execute("PRAGMA cache_size=1")
    connection.execute("BEGIN")
    connection.execute("UPDATE t SET b = 'y' || b")
    for end in ("", "-journal"):
        (tmp_path / f"cut.db{end}").write_bytes((tmp_path / f"in.db{end}").read_bytes())
    connection.close()
    with reef.connect("memory://") as db:
        with pytest.raises(InvalidInputError, match="has a journal beside it"):
            import_file(tmp_path / "cut.db", db, "app.db")
        assert count(tmp_path / "cut.db") == 2000
        import_file(tmp_path / "cut.db", db, "app.db")


def test_what_does_not_pass_the_check_is_not_exported(tmp_path: Path) -> None:
    with reef.connect("memory://") as db, db.pages("app.db") as pages:
        pages.write({0: b"x" * 4096})
        with pytest.raises(CorruptError, match="SQLite database"):
            export_file(pages.at(lsn=pages.head), tmp_path / "out.db")
    assert not list(tmp_path.glob("out.db*"))


def test_a_restored_version_is_one_more_commit(tmp_path: Path) -> None:
    with reef.connect("memory://", max_staleness=0) as db:
        import_file(make(tmp_path / "in.db"), db, "app.db")
        connection = reef.sqlite.connect("app.db", database=db)
        then = int(connection.execute("PRAGMA reef_lsn").get)
        connection.execute("DELETE FROM t WHERE a > 20; VACUUM")
        newest = int(connection.execute("PRAGMA reef_lsn").get)
        with db.pages("app.db") as pages:
            restored = restore(pages, then)
            assert restored > newest
            assert restore(pages, restored) == restore(pages, then) == restored
        # A connection that had cached the pages of before sees those of now.
        assert connection.execute("SELECT count(*) FROM t").get == 200
        assert connection.pragma("integrity_check") == "ok"
        connection.execute("INSERT INTO t(b) VALUES ('more')")
        before = reef.sqlite.connect("app.db", database=db, lsn=newest)
        assert before.execute("SELECT count(*) FROM t").get == 20
        for one in (connection, before):
            one.close()
        with db.pages("app.db", mode="r") as pages:
            commits = list(history(pages))
            assert [one.lsn for one in commits][-2] == restored
            assert len(commits) == 5
            assert all(one.pages and one.committed_at_us for one in commits)
            assert list(history(pages, after=restored)) == commits[-1:]


def test_a_page_count_that_the_header_says_is_not_valid_does_not_become_so(tmp_path: Path) -> None:
    source = make(tmp_path / "in.db", rows=500)
    data = bytearray(source.read_bytes())
    data[28:32], data[92:96] = (5).to_bytes(4, "big"), bytes(4)  # as SQLites before 3.7 leave it
    source.write_bytes(data)
    with reef.connect("memory://") as db:
        then = import_file(source, db, "app.db").lsn
        connection = reef.sqlite.connect("app.db", database=db)
        connection.execute("DELETE FROM t")
        connection.close()
        with db.pages("app.db") as pages:
            assert restore(pages, then) == restore(pages, then)
        connection = reef.sqlite.connect("app.db", database=db)
        assert connection.pragma("page_count") == len(data) // 4096
        assert connection.pragma("integrity_check") == "ok"
        connection.close()


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    url = f"file://{tmp_path}/bucket/app.db?fsync=off"

    def call(command: str, *arguments: str) -> tuple[int, str, str]:
        capfdbinary.readouterr()
        code = cli.run(["sqlite", command, url, *arguments])
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return call


def as_json(answer: tuple[int, str, str]) -> Any:
    code, out, err = answer
    assert (code, err) == (0, "")
    return json.loads(out)


def test_the_commands_together(run: Run, tmp_path: Path) -> None:
    source = make(tmp_path / "in.db", journal="wal")
    copied = as_json(run("import", str(source), "--json"))
    then = copied["lsn"]
    assert copied["size"] == source.stat().st_size
    assert run("shell", "DELETE FROM t WHERE a > 50", "SELECT count(*) FROM t")[:2] == (0, "50\n")
    commits = as_json(run("log", "--json"))["commits"]
    assert commits[0]["lsn"] == then
    assert len(commits) == 2
    code, out, _ = run("log")
    assert code == 0
    assert str(then) in out
    assert as_json(run("branch", "dev", "--lsn", str(then), "--json"))["lsn"] == then
    assert run("shell", "--branch", "dev", "SELECT count(*) FROM t")[:2] == (0, "200\n")
    assert run("export", str(tmp_path / "new.db"))[0] == 0
    assert run("export", str(tmp_path / "old.db"), "--at", str(then))[0] == 0
    assert (count(tmp_path / "new.db"), count(tmp_path / "old.db")) == (50, 200)
    restored = as_json(run("restore", "--at", str(then), "--json"))
    assert restored["lsn"] > restored["lsn_before"] == commits[-1]["lsn"]
    assert run("shell", "SELECT count(*) FROM t")[:2] == (0, "200\n")
    assert "already" in run("restore", "--lsn", str(restored["lsn"]))[1]


def test_a_restore_that_is_refused_leaves_the_writer_alone(run: Run, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket/app.db?fsync=off"
    connection = reef.sqlite.connect(url)
    connection.execute("CREATE TABLE t(a)")
    connection.execute("BEGIN IMMEDIATE; INSERT INTO t VALUES (1)")
    assert "there was no database" in run("restore", "--at", "0")[2]
    assert run("restore", "--at", str(2**62))[0] == 2
    connection.execute("COMMIT")
    connection.close()


@pytest.mark.slow
def test_the_shell_ends_quietly_when_its_reader_goes(tmp_path: Path) -> None:
    many = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c"
    command = [sys.executable, "-m", "reef", "sqlite", "shell", f"{tmp_path}/app.db", many]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == b"1\n"
        shell.stdout.close()
        assert shell.stderr is not None
        assert (shell.stderr.read(), shell.wait()) == (b"", 0)


def test_without_apsw_it_is_said_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apsw", None)
    code, out, err = run("log")
    assert (code, out) == (1, "")
    assert "pip install 'reefdb[sqlite]'" in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_commands_that_cannot_be(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fenced(*_: object, **__: object) -> int:
        raise FencedError("as by another process")

    code, _, err = run("shell", "--read-only", "SELECT 1")
    assert code == 2
    assert "there is no database" in err
    code, _, err = run("restore", "--at", "3")
    assert code == 2
    assert not (tmp_path / "bucket" / "namespaces").exists()
    assert run("import", str(make(tmp_path / "in.db")))[0] == 0
    code, _, err = run("shell", "SELECT * FROM absent")
    assert (code, err) == (1, "reef: SQLite: no such table: absent\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO("SELECT 1;\nSELECT * FROM absent;\nSELECT 2;\n"))
    assert run("shell") == (1, "1\n", "reef: SQLite: no such table: absent\n")
    monkeypatch.setattr(Pages, "write", fenced)
    code, _, err = run("shell", "DELETE FROM t")
    assert code == 2
    assert "taken over by another writer" in err
    (tmp_path / "out.db").write_text("mine")
    code, _, err = run("export", str(tmp_path / "out.db"))
    assert code == 2
    assert "out.db exists already" in err
    assert (tmp_path / "out.db").read_text() == "mine"
    mine = tmp_path / "new.db.partial"
    mine.write_text("mine")
    assert run("export", str(tmp_path / "new.db"))[0] == 0
    assert mine.read_text() == "mine"
    for arguments, why in (
        (("export", str(tmp_path / "no" / "folder.db")), "No such file or directory"),
        (("shell", ".nope"), 'Unknown command "nope"'),
        (("shell", ".read /no/file"), "No such file or directory"),
        (("restore", "--at", "0"), "there was no database in 'app.db' at LSN 0"),
        (("export", str(tmp_path / "none.db"), "--at", "0"), "there was no database in 'app.db'"),
    ):
        code, _, err = run(*arguments)
        assert code in (1, 2)
        assert why in err
        assert err.count("\n") == 1
