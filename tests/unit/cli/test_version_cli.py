"""`--at LSN|TIME` in the commands that take a version, `restore`, and branches that end by themselves."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

import reef
from tests.support.commands import Run, runner

pytestmark = pytest.mark.usefixtures("no_settings")

BETWEEN = "2026-01-02T00:00:00Z"
EAST = "2026-01-02T03:00:00+03:00"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A bucket with pairs, documents and a database, each with a version of 2026-01-01 and a later one."""
    url = f"file://{tmp_path}/bucket?fsync=off"
    with reef.connect(url) as db, db.kv("kv") as kv, db.namespace("docs") as docs:
        for number in (1, 2):
            kv.put(b"k", b"%d" % number)
            docs.upsert([{"id": "a", "n": number}])
            if number == 1:
                _dated(tmp_path / "bucket", "2026-01-01T00:00:00+00:00")
    return url


def _dated(bucket: Path, text: str) -> None:
    import os

    at = datetime.datetime.fromisoformat(text).timestamp()
    for path in bucket.rglob("*.*"):
        if path.is_file():
            os.utime(path, (at, at))


@pytest.fixture
def run(url: str, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs a command on the bucket; returns its code, stdout and stderr."""
    return runner(url, capfdbinary)


def test_reads_take_a_time_and_say_which_version_it_is(run: Run) -> None:
    at = BETWEEN
    code, out, err = run("kv get", "kv", "k", "--at", at)
    assert (code, out) == (0, "1\n")
    lsn = err.removeprefix("reef: at LSN ").strip()
    assert run("kv get", "kv", "k", "--at", lsn) == (0, "1\n", "")
    assert run("kv get", "kv", "k", "--at", EAST) == (0, "1\n", err)
    assert run("kv scan", "kv", "--at", at)[1] == "k\t1\n"
    found = json.loads(run("docs get", "docs", "a", "--at", at, "--format", "json")[1])
    assert found["documents"] == [{"id": "a", "n": 1}]
    assert json.loads(run("docs count", "docs", "--at", at, "--json")[1])["count"] == 1
    said = run("docs sql", "docs", "SELECT n FROM docs", "--at", at, "--format", "json")
    assert json.loads(said[1])["rows"] == [{"n": 1}]
    assert said[2].startswith("reef: at LSN ")


def test_branches_and_snapshots_are_made_of_a_time(run: Run) -> None:
    made = json.loads(run("branch create", "kv", "b", "--at", BETWEEN, "--ttl", "7d", "--json")[1])
    assert made["expires_at_us"] > 0
    assert run("kv get", "kv@b", "k")[1] == "1\n"
    assert "never" not in run("branch list", "kv")[1]
    taken = json.loads(run("snapshot create", "kv", "--id", "s", "--at", BETWEEN, "--json")[1])
    assert taken["lsn"] == made["lsn"]
    assert run("snapshot create", "kv", "--id", "t", "--at", BETWEEN)[1] == (
        f"t at LSN {made['lsn']}\n"
    )
    reset = json.loads(run("branch reset", "kv", "b", "--json")[1])
    assert reset["expires_at_us"] == made["expires_at_us"]
    assert run("kv get", "kv@b", "k")[1] == "2\n"
    assert "until" in run("branch reset", "kv", "b")[1]
    assert run("branch create", "kv", "c", "--ttl", "1ms")[0] == 0
    assert "kv@c is a branch that has expired: would be dropped" in run("gc", "--all")[1]
    assert "kv@c is a branch that has expired: dropped" in run("gc", "--all", "--apply")[1]
    assert "kv@c" not in run("branch list", "kv")[1]


def test_a_version_is_restored(run: Run) -> None:
    for group, read in (("kv", ("kv get", "kv", "k")), ("docs", ("docs get", "docs", "a"))):
        newest = run(*read)[1]
        restored = json.loads(run(f"{group} restore", group, "--at", BETWEEN, "--json")[1])
        assert (restored["written"], restored["deleted"]) == (1, 0)
        assert run(*read)[1] == newest.replace("2", "1")
        again = run(f"{group} restore", group, "--at", str(restored["lsn"]))
        assert again[1].startswith("nothing to restore")


def test_what_is_neither_an_lsn_nor_a_time_is_refused(run: Run) -> None:
    for at, said in (
        ("2026-01-02T00:00:00", "a time since 1970 with a zone"),
        ("2026-01-02", "a time since 1970 with a zone"),
        ("yesterday", "a time since 1970 with a zone"),
        ("-1", "an LSN from 0"),
        ("9" * 40, "an LSN from 0"),
        ("2999-01-01T00:00:00Z", "a time in the past"),
        ("2025-01-01T00:00:00Z", "nothing of namespace 'kv' is kept from"),
    ):
        for command in (("kv get", "kv", "k"), ("branch create", "kv", "b"), ("kv restore", "kv")):
            code, _, err = run(*command, "--at", at)
            assert code == 1
            assert said in err
