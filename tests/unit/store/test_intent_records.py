"""The records of two-phase CAS in SQLite, and what is wrong with a database said plainly."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reef.errors import InvalidInputError, ReefError, UnavailableError
from reef.store.two_phase._intent_records import Record, Records
from tests.support.store.two_phase import SQLRecordsContract

KEY = "wal/1"


class TestSQLiteRecords(SQLRecordsContract):
    @pytest.fixture
    def records(self, tmp_path: Path) -> Iterator[Records]:
        records = Records(f"sqlite:///{tmp_path}/cas.db", bucket="s3://bucket")
        yield records
        records.close()

    def test_buckets_do_not_meet(self, tmp_path: Path, records: Records) -> None:
        other = Records(f"sqlite:///{tmp_path}/cas.db", bucket="s3://Bucket")
        assert records.insert(KEY, ".tmp/a")
        assert other.insert(KEY, ".tmp/a")
        assert other.commit(KEY, ".tmp/a")
        assert [r.committed for r in records.pending()] == [False]
        other.close()

    def test_commits_are_durable_and_cheap(self, tmp_path: Path, records: Records) -> None:
        records.insert(KEY, ".tmp/a")
        with records._engine.connect() as connection:
            pragma = lambda name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()  # noqa: E731
            assert (pragma("synchronous"), pragma("journal_mode")) == (2, "wal")
            plan = connection.exec_driver_sql(
                "EXPLAIN QUERY PLAN SELECT destination FROM reef_cas "
                "WHERE bucket = 'b' AND committed = 0 AND destination > '' ORDER BY destination"
            ).all()
        assert "reef_cas_pending" in str(plan)
        assert "TEMP B-TREE" not in str(plan)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "sqlite:////absolute/path"),
        ("cas.db", "sqlite:////absolute/path"),
        ("oracle://u:secret@h/d", "'oracle://...'"),
        ("sqlite://", "an absolute path"),
        ("sqlite:///:memory:", "an absolute path"),
        ("sqlite:///cas.db", "an absolute path"),
        ("sqlite:///file::memory:?uri=true", "an absolute path"),
        ("sqlite:////cas.db?mode=memory", "an option other than timeout"),
        ("postgresql://u:secret@h", "postgresql://user:password@host/database"),
        ("postgresql://u:secret@h:port/d", "percent-encode special"),
        ("mysql://u@/d?passwd=secret", "mysql://user:password@host/database"),
    ],
)
def test_a_url_that_cannot_be_is_refused(url: str, says: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Records(url, bucket="b")
    assert says in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("bucket", ["", "x" * 256, "bücket"])
def test_a_bucket_that_cannot_be_is_refused(bucket: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"bucket = .* 1 to 255 ASCII"):
        Records(f"sqlite:///{tmp_path}/cas.db", bucket=bucket)


@pytest.mark.parametrize(
    ("url", "driver", "extra"),
    [
        ("postgresql+psycopg://u:secret@h/d", "psycopg", "reefdb[postgresql]"),
        ("mysql+pymysql://u:secret@h/d", "pymysql", "reefdb[mysql]"),
        ("mariadb://u:secret@h/d", "pymysql", "reefdb[mysql]"),
    ],
)
def test_a_missing_driver_is_named_with_what_installs_it(
    url: str, driver: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(InvalidInputError) as caught:
        Records(url, bucket="b")
    assert f"pip install '{extra}'" in str(caught.value)
    assert driver in str(caught.value)
    assert "secret" not in str(caught.value)


def test_nothing_is_asked_of_the_database_before_the_first_use(tmp_path: Path) -> None:
    Records(f"sqlite:///{tmp_path}/nowhere/cas.db", bucket="b")
    assert list(tmp_path.iterdir()) == []


def break_folder(path: Path) -> None:
    path.rmdir()


def not_a_database(path: Path) -> None:
    (path / "cas.db").write_bytes(b"not SQLite at all, but long enough to look at" * 100)


def another_table(path: Path) -> None:
    with sqlite3.connect(path / "cas.db") as connection:
        connection.execute("CREATE TABLE reef_cas (id INTEGER)")


@pytest.mark.parametrize("spoil", [break_folder, not_a_database, another_table])
def test_a_database_that_cannot_be_used_is_an_invalid_input(
    spoil: Callable[[Path], None], tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    spoil(folder)
    records = Records(f"sqlite:///{folder}/cas.db", bucket="b")
    with pytest.raises(InvalidInputError, match=r"cas\.db cannot hold Reef's table reef_cas"):
        records.insert(KEY, ".tmp/a")
    records.close()


def test_a_locked_database_is_unavailable(tmp_path: Path) -> None:
    records = Records(f"sqlite:///{tmp_path}/cas.db?timeout=0", bucket="b")
    records.insert(KEY, ".tmp/a")
    with sqlite3.connect(tmp_path / "cas.db", isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnavailableError, match=r"no clear answer \(database is locked\)"):
            records.insert("wal/2", ".tmp/b")
        assert records.find(KEY) == Record(KEY, ".tmp/a", False)
        other.execute("ROLLBACK")
    other.close()
    assert records.insert("wal/2", ".tmp/b")
    records.close()


def test_the_password_is_never_shown() -> None:
    url = "postgresql://u:pass%3Aword%2F%401@127.0.0.1:1/d?sslpassword=pass%3Aword"
    records = Records(url, bucket="b")
    assert "***" in repr(records)
    with pytest.raises(ReefError) as caught:
        records.find(KEY)
    shown = [repr(records), records.url, str(caught.value), str(caught.value.__cause__)]
    assert not [text for text in shown if "pass:word" in text or "pass%3Aword" in text]
    assert isinstance(caught.value, UnavailableError)
