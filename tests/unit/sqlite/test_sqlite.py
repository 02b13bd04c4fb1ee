"""SQLite on Reef through apsw: what a person sees of it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import reef
import reef.sqlite
from reef.errors import FencedError, InvalidInputError, NotFoundError, UnavailableError
from reef.pages import Pages
from reef.sqlite._location import location_of, parse_location
from reef.sqlite._registry import Opening, registry
from reef.sqlite._shared import SharedStore
from reef.store import open_store
from reef.testing import Fault, FaultyStore
from tests.support.engine.open_database import database
from tests.support.sqlite.sqlite_writer import ACCOUNTS, EACH, move, prepare
from tests.support.waiting import DEADLINE_SECONDS

URI = apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READWRITE


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    yield f"file://{tmp_path}/app.db?fsync=off"
    assert not registry._open, "a test has left a database open"


def count(connection: apsw.Connection, table: str = "t") -> int:
    found = connection.execute(f"SELECT count(*) FROM {table}").get
    assert isinstance(found, int)
    return found


def lsn_of(connection: apsw.Connection) -> int:
    return int(connection.execute("PRAGMA reef_lsn").get)


def filled(url: str, rows: int = 10) -> apsw.Connection:
    connection = reef.sqlite.connect(url)
    connection.execute("CREATE TABLE t(a INTEGER PRIMARY KEY, b)")
    with connection:
        connection.executemany("INSERT INTO t(b) VALUES (?)", [("x" * i,) for i in range(rows)])
    return connection


def test_a_commit_that_returns_is_in_the_bucket(url: str, tmp_path: Path) -> None:
    connection = filled(url)
    code = (
        "import sys, reef.sqlite\n"
        "con = reef.sqlite.connect(sys.argv[1], mode='r')\n"
        "print(con.execute('SELECT count(*) FROM t').get, con.pragma('integrity_check'))\n"
        "con.close()\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, url], capture_output=True, text=True, check=True
    )
    assert said.stdout == "10 ok\n"
    connection.close()


def test_versions_can_be_read_and_not_written(url: str) -> None:
    connection = filled(url)
    then = lsn_of(connection)
    connection.execute("DELETE FROM t; CREATE TABLE u(a); DROP TABLE t")
    old = reef.sqlite.connect(url, lsn=then)
    assert count(old) == 10
    with pytest.raises(apsw.ReadOnlyError, match="readonly database"):
        old.execute("DELETE FROM t")
    path = url.removeprefix("file://").split("?")[0]
    by_uri = apsw.Connection(f"file:{path}?vfs=reef&fsync=off&lsn={then}", flags=URI)
    assert count(by_uri) == 10
    assert count(connection, "u") == 0
    for one in (connection, old, by_uri):
        one.close()


def test_branches_go_their_own_way(url: str) -> None:
    connection = filled(url)
    then = lsn_of(connection)
    connection.execute("DELETE FROM t WHERE a > 3")
    location = parse_location(url)
    with reef.connect(location.bucket) as db, db.pages(location.name, mode="r") as pages:
        pages.branch("dev", lsn=then)
    dev = reef.sqlite.connect(url, branch="dev")
    assert count(dev) == 10
    dev.execute("INSERT INTO t(b) VALUES ('dev')")
    connection.execute("CREATE TABLE only_main(a)")
    assert (count(dev), count(connection)) == (11, 3)
    for one in (dev, connection):
        assert one.pragma("integrity_check") == "ok"
        one.close()
    with pytest.raises(NotFoundError, match="branch other"):
        reef.sqlite.connect(url, branch="other")


def test_reading_what_is_not_there_is_refused(url: str) -> None:
    with pytest.raises(NotFoundError, match=r"no database .*app\.db") as caught:
        reef.sqlite.connect(url, mode="r")
    assert isinstance(caught.value, apsw.CantOpenError)
    with pytest.raises(NotFoundError):
        reef.sqlite.connect(url, lsn=7)


def test_read_only_is_read_only(url: str) -> None:
    connection = filled(url)
    reader = reef.sqlite.connect(url, mode="r")
    assert count(reader) == 10
    with pytest.raises(apsw.ReadOnlyError):
        reader.execute("DELETE FROM t")
    for one in (reader, connection):
        one.close()


@pytest.mark.parametrize("mode", ["wal", "off"])
def test_journal_modes_that_cannot_be_are_refused_with_the_reason(url: str, mode: str) -> None:
    connection = filled(url)
    with pytest.raises(
        InvalidInputError, match=f"journal_mode = '{mode}' cannot be used"
    ) as caught:
        connection.execute(f"PRAGMA journal_mode={mode}")
    assert isinstance(caught.value, apsw.SQLError)
    connection.execute("DELETE FROM t")
    assert count(connection) == 0
    connection.close()


def test_connections_of_one_process_see_each_other(url: str) -> None:
    one, other = filled(url), reef.sqlite.connect(url)
    other.set_busy_timeout(0)
    one.execute("BEGIN; DELETE FROM t WHERE a = 1")
    assert (count(one), count(other)) == (9, 10)
    with pytest.raises(apsw.BusyError):
        other.execute("DELETE FROM t WHERE a = 2")
    other.execute("BEGIN")
    assert count(other) == 10
    one.execute("COMMIT")
    assert count(other) == 10  # its transaction goes on with what it has begun to read
    with pytest.raises(apsw.BusyError):  # and may not write on top of that
        other.execute("DELETE FROM t WHERE a = 2")
    other.execute("ROLLBACK; DELETE FROM t WHERE a = 2")
    assert (count(one), count(other)) == (8, 8)
    for connection in (one, other):
        connection.close()


def test_threads_write_in_turns(url: str) -> None:
    filled(url, 0).close()

    def work(number: int) -> None:
        connection = reef.sqlite.connect(url)
        connection.set_busy_timeout(1000 * DEADLINE_SECONDS)
        for i in range(10):
            connection.execute("INSERT INTO t(b) VALUES (?)", (f"{number}.{i}",))
        connection.close()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    connection = reef.sqlite.connect(url)
    assert count(connection) == 40
    assert connection.execute("SELECT count(DISTINCT b) FROM t").get == 40
    assert connection.pragma("integrity_check") == "ok"
    connection.close()


def test_waiting_for_a_lock_lets_other_threads_run() -> None:
    begun = threading.Event()
    wakes_at = time.monotonic() + DEADLINE_SECONDS

    def wait() -> None:
        begun.set()
        reef.sqlite.register().xSleep(1_000_000 * DEADLINE_SECONDS)

    waiting = threading.Thread(target=wait, daemon=True)  # nobody waits for its end
    waiting.start()
    begun.wait()
    turns = 0
    while turns < 100 and time.monotonic() < wakes_at:
        time.sleep(0.001)  # each time another thread may run, and keep the interpreter's lock
        turns += 1
    assert turns == 100


def test_a_fenced_commit_says_so_and_the_connection_goes_on() -> None:
    store = open_store("memory://")
    with database(store, max_staleness=0) as mine, database(store, max_staleness=0) as theirs:
        one = reef.sqlite.connect("app.db", database=mine)
        one.execute("CREATE TABLE t(a)")
        rival = reef.sqlite.connect("app.db", database=theirs)
        one.execute("BEGIN; INSERT INTO t VALUES ('lost')")
        rival.execute("INSERT INTO t VALUES ('rival')")
        with pytest.raises(FencedError, match="taken over") as caught:
            one.execute("COMMIT")
        assert isinstance(caught.value, apsw.IOError)
        travelled = pickle.loads(pickle.dumps(caught.value))
        assert type(travelled) is type(caught.value)
        assert str(travelled) == str(caught.value)
        assert one.execute("SELECT a FROM t").fetchall() == [("rival",)]
        one.execute("INSERT INTO t VALUES ('again')")
        assert rival.execute("SELECT a FROM t").fetchall() == [("rival",), ("again",)]
        one.close()
        rival.close()


def test_trouble_while_reading_is_an_error_and_not_an_answer() -> None:
    faults = FaultyStore(open_store("memory://"))
    with database(faults) as db:
        connection = reef.sqlite.connect("app.db", database=db)
        connection.execute("CREATE TABLE t(a); INSERT INTO t VALUES (1)")
        connection.close()
    with database(faults, max_staleness=0) as db:
        connection = reef.sqlite.connect("app.db", database=db)
        faults.arm(Fault("error_before", on="get", times=0))
        with pytest.raises(apsw.IOError, match="500"):
            count(connection)
        faults.disarm()
        assert count(connection) == 1
        connection.close()


@pytest.mark.parametrize("page_size", [512, 1024, 8192, 65536])
def test_pages_of_sqlite_may_have_another_size(url: str, page_size: int) -> None:
    connection = reef.sqlite.connect(url)
    connection.execute(f"PRAGMA page_size={page_size}; CREATE TABLE t(a, b)")
    connection.execute(
        "WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT i+1 FROM n WHERE i < 50)"
        " INSERT INTO t SELECT i, randomblob(3000) FROM n"
    )
    assert connection.pragma("page_size") == page_size
    connection.execute("DELETE FROM t WHERE a % 3")
    connection.execute("PRAGMA page_size=4096; VACUUM")
    other = reef.sqlite.connect(url)
    assert (count(other), other.pragma("page_size")) == (16, 4096)
    assert other.pragma("integrity_check") == "ok"
    for one in (connection, other):
        one.close()


def test_a_transaction_larger_than_a_log_object_is_one_commit() -> None:
    with database(open_store("memory://"), log_segment_max_bytes="256KiB") as db:
        connection = reef.sqlite.connect("app.db", database=db)
        connection.execute("CREATE TABLE t(a, b)")
        before = lsn_of(connection)
        with connection:
            for i in range(200):
                connection.execute("INSERT INTO t VALUES (?, randomblob(8000))", (i,))
        assert count(connection) == 200
        old = reef.sqlite.connect("app.db", database=db, lsn=before)
        assert count(old) == 0
        with database(db.store) as elsewhere:
            other = reef.sqlite.connect("app.db", database=elsewhere, mode="r")
            assert (count(other), other.pragma("integrity_check")) == (200, "ok")
            other.close()
        old.close()
        connection.close()


def test_an_attached_database_may_lie_in_another_bucket(url: str, tmp_path: Path) -> None:
    connection = filled(url)
    connection.execute("ATTACH ? AS other", (f"file:{tmp_path}/b2/other.db?vfs=reef&fsync=off",))
    connection.execute("CREATE TABLE other.t AS SELECT * FROM main.t")
    connection.close()
    other = reef.sqlite.connect(f"file://{tmp_path}/b2/other.db?fsync=off")
    assert count(other) == 10
    other.close()


def test_a_transaction_over_several_is_refused_where_sqlite_would_not_hear_of_a_failure(
    url: str, tmp_path: Path
) -> None:
    connection = filled(url)
    for name in ("one", "two"):
        connection.execute(f"ATTACH 'file:{tmp_path}/b2/{name}.db?vfs=reef&fsync=off' AS {name}")
        connection.execute(f"CREATE TABLE {name}.t(a)")
    write = "BEGIN; INSERT INTO one.t VALUES (1); INSERT INTO two.t VALUES (1); COMMIT"
    with pytest.raises(InvalidInputError, match="journal_mode=MEMORY"):
        connection.execute(write)
    assert connection.get_autocommit()
    assert count(connection, "one.t") == count(connection, "two.t") == 0
    connection.execute("PRAGMA journal_mode=MEMORY").fetchall()
    connection.execute(write)
    assert count(connection, "one.t") == count(connection, "two.t") == 1
    connection.close()


def test_a_commit_over_several_that_fails_names_the_one_that_has_nothing_of_it() -> None:
    store = open_store("memory://")
    with database(store) as mine, database(store) as theirs:
        connection = reef.sqlite.connect("one", database=mine)
        with registry.keep(Opening(mine)) as token:
            connection.execute(f"ATTACH 'file:memory:///two?vfs=reef&opening={token}' AS two")
        connection.execute("PRAGMA journal_mode=MEMORY").fetchall()
        connection.execute("CREATE TABLE main.t(a); CREATE TABLE two.t(a)")
        connection.execute("BEGIN; INSERT INTO main.t VALUES (1); INSERT INTO two.t VALUES (1)")
        theirs.pages("two").close()
        with pytest.raises(FencedError, match=r"/two was .* nothing .* was written there"):
            connection.execute("COMMIT")
        assert (count(connection, "main.t"), count(connection, "two.t")) == (1, 0)
        connection.close()


def test_a_file_is_not_taken_for_a_database_in_a_bucket(url: str, tmp_path: Path) -> None:
    path = tmp_path / "plain.db"
    plain = apsw.Connection(str(path))
    plain.execute("CREATE TABLE t(a); INSERT INTO t VALUES (1)")
    plain.close()
    with pytest.raises(InvalidInputError, match="reef sqlite import"):
        reef.sqlite.connect(path)
    connection = filled(url)
    with pytest.raises(InvalidInputError, match="vfs=unix"):
        connection.execute("ATTACH ? AS plain", (str(path),))
    connection.execute("ATTACH ? AS plain", (f"file:{path}?vfs=unix",))
    connection.execute("BEGIN; INSERT INTO t SELECT NULL, a FROM plain.t; DELETE FROM plain.t")
    connection.execute("COMMIT")
    assert (count(connection), count(connection, "plain.t")) == (11, 0)
    connection.close()


def test_one_bucket_open_already_can_be_used(tmp_path: Path) -> None:
    with reef.connect("memory://") as db:
        connection = reef.sqlite.connect("app.db", database=db)
        connection.execute("CREATE TABLE t(a)")
        connection.close()
        with db.pages("app.db", mode="r") as pages:
            assert (pages.get_page(0) or b"").startswith(b"SQLite format 3\0")


def test_other_settings_for_what_is_open_are_refused(url: str) -> None:
    connection = reef.sqlite.connect(url, max_staleness=5)
    with pytest.raises(InvalidInputError, match="is open in this process with other settings"):
        reef.sqlite.connect(url, max_staleness=6)
    with pytest.raises(InvalidInputError, match=r"with other options than"):
        reef.sqlite.connect(url.replace("off", "on"))
    with pytest.raises(InvalidInputError, match="was made with page_size = 4096"):
        reef.sqlite.connect(url + "&page_size=512")
    connection.execute("CREATE TABLE t(a)")
    connection.close()
    with pytest.raises(InvalidInputError, match="was made with page_size = 4096"):
        reef.sqlite.connect(url + "&page_size=512")
    reef.sqlite.connect(url + "&page_size=4096").close()


def test_a_database_is_one_however_its_url_is_spelled(url: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    connection = filled(url)
    connection.execute("BEGIN IMMEDIATE")
    for spelled in (tmp_path / "link" / "app.db", f"file://localhost{tmp_path}/x/../app.db"):
        other = reef.sqlite.connect(spelled)
        other.set_busy_timeout(0)
        with pytest.raises(apsw.BusyError):
            other.execute("DELETE FROM t")
        other.close()
    connection.close()
    one = parse_location("s3://bucket/app.db?endpoint=http://a&region=x")
    assert one.identity == parse_location("s3://bucket/app.db?region=y&endpoint=http://a").identity
    assert one.identity != parse_location("s3://bucket/app.db?endpoint=http://b&region=x").identity


@pytest.mark.parametrize(
    ("url", "bucket", "name"),
    [
        ("s3://bucket/app.db", "s3://bucket", "app.db"),
        ("s3://bucket/some/prefix/app.db", "s3://bucket/some/prefix", "app.db"),
        ("s3://bucket/app.db?region=x&timeout=5s", "s3://bucket?region=x&timeout=5s", "app.db"),
        ("file:///data/bucket/app.db", "file:///data/bucket", "app.db"),
        ("memory://trial/app.db", "memory://trial", "app.db"),
        ("/data/bucket/app.db", "file:///data/bucket", "app.db"),
    ],
)
def test_urls_are_taken_apart(url: str, bucket: str, name: str) -> None:
    found = parse_location(url)
    assert (found.bucket, found.name) == (bucket, name)


def test_a_url_comes_back_through_sqlite() -> None:
    with_all = "s3://bucket/a/app.db?region=x%2Fy&branch=dev&lsn=7"
    found = parse_location(with_all)
    assert (found.branch, found.lsn) == ("dev", 7)
    again = location_of(
        "s3://bucket/a/app.db", {"vfs": "reef", "region": "x/y", "branch": "dev", "lsn": "7"}
    )
    assert again == found
    assert found.uri("r") == (
        "file:s3://bucket/a/app.db?vfs=reef&mode=ro&branch=dev&lsn=7&region=x%2Fy"
    )


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://bucket/app.db", "a URL that starts with"),
        ("s3://bucket", "a bucket and a name"),
        ("file:///app.db", "a bucket and a name"),
        ("s3://bucket/app.db?lsn=x", "lsn"),
        ("s3://bucket/app.db?page_size=1000", "page_size"),
        ("s3://bucket/app.db?region=x&nonsense=1", "nonsense"),
        ("s3://bucket/.db", "namespace"),
        ("memory://trial/app.db?vfs=unix", "vfs"),
        ("memory://trial/app.db?mode=ro", "mode"),
        ("memory://trial/app.db?branch=", "namespace"),
        ("memory://trial/app.db?lsn=", "lsn"),
        ("file://data/bucket/app.db", "three slashes"),
        ("/data/a\0b/app.db", "URL"),
        ("memory://tri al/app.db", "URL"),
        ("", "a bucket and a name"),
    ],
)
def test_urls_that_cannot_be_are_refused(url: str, why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        reef.sqlite.connect(url)


def test_a_process_that_ends_without_closing_ends(url: str) -> None:
    code = (
        "import sys, reef.sqlite\n"
        "con = reef.sqlite.connect(sys.argv[1], flush_threshold_slots=5)\n"
        "con.execute('PRAGMA synchronous=OFF; CREATE TABLE t(a)')\n"
        "for i in range(50): con.execute('INSERT INTO t VALUES (?)', (i,))\n"
    )
    subprocess.run([sys.executable, "-c", code, url], check=True, env=os.environ)
    connection = reef.sqlite.connect(url, mode="r")
    assert count(connection) == 50
    connection.close()


def test_a_forked_process_leaves_what_its_parent_has_open_alone(url: str) -> None:
    code = (
        "import os, sys, reef.sqlite\n"
        "from reef.errors import ClosedError\n"
        "con = reef.sqlite.connect(sys.argv[1])\n"
        "con.execute('CREATE TABLE t(a); PRAGMA synchronous=OFF; INSERT INTO t VALUES (1)')\n"
        "con.execute('PRAGMA wal_checkpoint').fetchall()\n"
        "if child := os.fork():\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "    con.execute('INSERT INTO t VALUES (3)')\n"
        "    con.close()\n"
        "    sys.exit()\n"
        "try:\n"
        "    con.execute('INSERT INTO t VALUES (2)')\n"
        "except ClosedError:\n"
        "    con = reef.sqlite.connect(sys.argv[1], mode='r')\n"
        "    sys.exit(con.execute('SELECT count(*) FROM t').get != 1)\n"
        "sys.exit(7)\n"
    )
    subprocess.run([sys.executable, "-c", code, url], check=True)
    connection = reef.sqlite.connect(url)
    assert connection.execute("SELECT a FROM t").fetchall() == [(1,), (3,)]
    connection.close()


def test_a_forked_process_does_not_commit_what_its_parent_has_begun(url: str) -> None:
    code = (
        "import os, sys, reef.sqlite\n"
        "from reef.errors import ClosedError\n"
        "con = reef.sqlite.connect(sys.argv[1])\n"
        "con.execute('CREATE TABLE t(a); BEGIN; INSERT INTO t VALUES (1)')\n"
        "if child := os.fork():\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "    con.execute('COMMIT')\n"
        "    sys.exit()\n"
        "try:\n"
        "    con.execute('COMMIT')\n"
        "except ClosedError:\n"
        "    os._exit(0)\n"
        "os._exit(7)\n"
    )
    subprocess.run([sys.executable, "-c", code, url], check=True)


def test_the_collector_may_close_a_connection_while_another_is_opened(url: str) -> None:
    code = (
        "import gc, sys, reef.sqlite\n"
        "from reef.sqlite import _registry\n"
        "opened = _registry._open_store\n"
        "def slowly(*args):\n"
        "    gc.collect()\n"
        "    return opened(*args)\n"
        "_registry._open_store = slowly\n"
        "gc.disable()\n"
        "held = [reef.sqlite.connect(sys.argv[1])]\n"
        "held[0].set_exec_trace(lambda *_: held is not None)\n"  # a cycle
        "held.append(held); del held\n"
        "reef.sqlite.connect(sys.argv[1].replace('app.db', 'other.db')).close()\n"
        "assert not _registry.registry._open\n"
    )
    subprocess.run([sys.executable, "-c", code, url], check=True)


def test_the_end_of_a_with_block_says_what_it_was() -> None:
    store = open_store("memory://")
    with database(store) as mine, database(store) as theirs:
        one = reef.sqlite.connect("app.db", database=mine)
        one.execute("CREATE TABLE t(a)")
        with pytest.raises(FencedError, match="taken over"), one:
            one.execute("INSERT INTO t VALUES (1)")
            theirs.pages("app.db").close()
        with pytest.raises(ZeroDivisionError), one:
            one.execute("INSERT INTO t VALUES (2)")
            raise ZeroDivisionError
        with one:
            one.execute("INSERT INTO t VALUES (3)")
        assert one.execute("SELECT a FROM t").fetchall() == [(3,)]
        one.close()


def test_a_with_block_whose_transaction_has_ended_says_why(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(*_: object) -> bytes:
        raise UnavailableError("no answer")

    one = filled(url, 200)
    one.execute("PRAGMA cache_size=1")
    with pytest.raises(UnavailableError, match="no answer"), one:
        one.execute("INSERT INTO t(b) VALUES (1)")
        monkeypatch.setattr(SharedStore, "page", unavailable)
        one.execute("SELECT sum(length(b)) FROM t").fetchall()
    monkeypatch.undo()
    with one:
        one.execute("INSERT INTO t(b) VALUES (2)")
    assert count(one) == 201
    one.close()


def test_a_backup_of_a_database_in_wal_mode_can_be_opened(url: str, tmp_path: Path) -> None:
    source = apsw.Connection(str(tmp_path / "wal.db"))
    source.execute("PRAGMA journal_mode=wal").fetchall()
    source.execute("CREATE TABLE t(a); INSERT INTO t VALUES (1), (2)")
    connection = filled(url, 500)
    with connection.backup("main", source, "main") as backup:
        backup.step()
    other = reef.sqlite.connect(url)
    for one in (connection, other):
        assert one.execute("SELECT a FROM t").fetchall() == [(1,), (2,)]
    connection.execute("INSERT INTO t VALUES (3)")
    assert count(other) == 3
    assert other.pragma("integrity_check") == "ok"
    for one in (connection, other, source):
        one.close()


def test_exclusive_locking_keeps_others_from_writing_and_ends_when_it_fails() -> None:
    store = open_store("memory://")
    with database(store, max_staleness=0) as db, database(store) as theirs:
        one = reef.sqlite.connect("app.db", database=db)
        one.execute("PRAGMA locking_mode=EXCLUSIVE").fetchall()
        one.execute("CREATE TABLE t(a); INSERT INTO t VALUES (1)")
        one.execute("BEGIN; INSERT INTO t VALUES (2); ROLLBACK; INSERT INTO t VALUES (3)")
        other = reef.sqlite.connect("app.db", database=db)
        other.set_busy_timeout(0)
        assert count(one) == count(other) == 2
        with pytest.raises(apsw.BusyError):
            other.execute("INSERT INTO t VALUES (9)")
        theirs.pages("app.db").close()
        with pytest.raises(FencedError):
            one.execute("INSERT INTO t VALUES (4)")
        with pytest.raises(apsw.IOError):  # it never lets go of its lock: it can only be closed
            count(one)
        one.close()
        other.execute("INSERT INTO t VALUES (9)")
        assert other.execute("SELECT a FROM t").fetchall() == [(1,), (3,), (9,)]
        other.close()


@pytest.mark.parametrize("where", ["before", "after", "untold"])
def test_ctrl_c_in_a_commit_leaves_it_decided(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    whole = Pages.write

    def interrupted(*args: Any, **kwargs: Any) -> int:
        if where == "after":
            whole(*args, **kwargs)
        raise KeyboardInterrupt

    with database(max_staleness=0) as db:
        one, beside = (reef.sqlite.connect("app.db", database=db) for _ in range(2))
        one.execute("CREATE TABLE t(a)")
        assert count(beside) == 0
        if where == "untold":  # durable, and not noted yet
            monkeypatch.setattr(SharedStore, "_advance", interrupted)
        else:
            monkeypatch.setattr(Pages, "write", interrupted)
        with pytest.raises(KeyboardInterrupt) as caught:
            one.execute("INSERT INTO t VALUES (1)")
        assert isinstance(caught.value, apsw.IOError)
        monkeypatch.undo()
        there = where != "before"
        assert count(one) == count(beside) == there
        beside.execute("INSERT INTO t VALUES (2)")
        assert count(one) == count(beside) == there + 1
        for connection in (one, beside):
            assert connection.pragma("integrity_check") == "ok"
            connection.close()


@pytest.mark.parametrize("name", ["nolock", "immutable"])
def test_reading_without_locks_is_refused(url: str, name: str) -> None:
    filled(url).close()
    path = url.removeprefix("file://").split("?")[0]
    with pytest.raises(InvalidInputError, match="connections need their locks"):
        apsw.Connection(f"file:{path}?vfs=reef&{name}=1", flags=URI)


@pytest.mark.parametrize("synchronous", ["FULL", "OFF"])
def test_readers_beside_a_writer_see_whole_transactions(synchronous: str) -> None:
    with database(flush_threshold_slots=20, max_staleness=0) as db:
        writer = reef.sqlite.connect("app.db", database=db)
        prepare(writer)
        writer.execute(f"PRAGMA synchronous={synchronous}")
        is_over = threading.Event()
        problems: list[object] = []

        def read() -> None:
            connection = reef.sqlite.connect("app.db", database=db)
            connection.execute("PRAGMA cache_size=4").fetchall()
            last = 0
            try:
                while not is_over.is_set():
                    connection.execute("BEGIN")
                    first = connection.execute("SELECT sum(has) FROM accounts").get
                    n = int(connection.execute("SELECT coalesce(max(n), 0) FROM journal").get)
                    second = connection.execute("SELECT sum(has) FROM accounts").get
                    connection.execute("COMMIT")
                    if not (first == second == ACCOUNTS * EACH and n >= last):
                        problems.append((first, second, n, last))
                    last = n
                    if connection.pragma("integrity_check") != "ok":
                        problems.append("integrity")
            except Exception as error:  # noqa: BLE001 the test tells
                problems.append(error)
            finally:
                connection.close()

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for n in range(1, 81):
            move(writer, n)
        is_over.set()
        for thread in threads:
            thread.join()
        writer.close()
        assert problems == []
