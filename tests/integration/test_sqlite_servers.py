"""SQLite on Reef with only the URL changed: killed writers, two processes, branches, the whole mix."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

import reef
import reef.sqlite
from reef.sqlite import export_file, import_file, parse_location, restore
from tests.support.servers.object_stores import SeaweedFS
from tests.support.sqlite.sqlite_mix import run_mix
from tests.support.sqlite.sqlite_writer import ACCOUNTS, EACH, move, prepare

pytestmark = pytest.mark.servers
ROUNDS = 3
COMMITS_MAX = 64
"""How many commits may be lost with synchronous=OFF: docs/sqlite.md."""
REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["file", "seaweedfs"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/bucket/app.db"
    server: SeaweedFS = request.getfixturevalue("seaweedfs")
    bucket, _, options = server.fresh_url().partition("?")
    return f"{bucket}/app.db?{options}"


@contextmanager
def writer(url: str, first: int, *more: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.support.sqlite.sqlite_writer", url, str(first), *more]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPO
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def acks(process: subprocess.Popen[str]) -> Iterator[int]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.endswith("\n"):
            yield int(line)


def check(connection: apsw.Connection) -> int:
    """Assert that only whole transactions are there, and return the last of them."""
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    last, count = next(connection.execute("SELECT coalesce(max(n), 0), count(*) FROM journal"))
    assert last == count
    plain = apsw.Connection(":memory:")
    prepare(plain)
    for n in range(1, count + 1):
        move(plain, n)
    both = "SELECT id, has FROM accounts ORDER BY id", "SELECT n, note FROM journal ORDER BY n"
    for query in both:
        assert connection.execute(query).fetchall() == plain.execute(query).fetchall()
    assert connection.execute("SELECT sum(has) FROM accounts").get == ACCOUNTS * EACH
    plain.close()
    return int(count)


def test_a_killed_writer_leaves_whole_transactions_and_all_that_it_acknowledged(url: str) -> None:
    rng = random.Random(11)
    done = 0
    for _ in range(ROUNDS):
        acked = done
        with writer(url, done + 1) as process:
            enough = done + rng.randrange(5, 40)
            for acked in acks(process):
                if acked >= enough:
                    break
            time.sleep(rng.uniform(0, 0.02))  # anywhere within a commit
            process.kill()
            acked = max([acked, *acks(process)])  # told before it died
        connection = reef.sqlite.connect(url, mode="r")
        done = check(connection)
        connection.close()
        assert acked <= done <= acked + 1
        assert done >= enough


def test_a_killed_writer_that_does_not_wait_loses_the_last_commits_at_most(url: str) -> None:
    reader = reef.sqlite.connect(url)
    prepare(reader)
    reader.close()
    done = 0
    for _ in range(2):
        with writer(url, done + 1, "off") as process:
            acked = done
            for acked in acks(process):
                if acked >= done + 150:
                    break
            process.kill()
            acked = max([acked, *acks(process)])
        reader = reef.sqlite.connect(url, mode="r")
        done = check(reader)
        reader.close()
        assert acked - COMMITS_MAX <= done <= acked + 1


def test_of_two_processes_one_writes_and_the_other_is_told(url: str) -> None:
    with writer(url, 1, "led") as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def step() -> str:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        assert [step(), step()] == ["1", "2"]
        connection = reef.sqlite.connect(url, max_staleness=0)
        assert check(connection) == 2
        reader = reef.sqlite.connect(url, mode="r")
        move(connection, 3)  # takes it over
        assert check(reader) == 3
        assert [step(), step()] == ["fenced", "4"]  # it lost one, and took it over again
        assert check(reader) == check(connection) == 4
        move(connection, 5)
        assert check(reader) == 5
        reader.close()
        connection.close()


def test_a_life_of_a_database(url: str, tmp_path: Path) -> None:
    connection = reef.sqlite.connect(url)
    prepare(connection)
    versions: dict[int, int] = {}
    for n in range(1, 21):
        move(connection, n)
        versions[int(connection.execute("PRAGMA reef_lsn").get)] = n
    location = parse_location(url)
    for lsn, n in list(versions.items())[::6]:
        old = reef.sqlite.connect(url, lsn=lsn)
        assert check(old) == n
        old.close()
    with reef.connect(location.bucket) as db:
        fifth = next(lsn for lsn, n in versions.items() if n == 5)
        with db.pages("app.db", mode="r") as pages:
            pages.branch("dev", lsn=fifth)
            exported = export_file(pages.at(lsn=fifth), tmp_path / "fifth.db")
        assert exported.lsn == fifth
        dev = reef.sqlite.connect(url, branch="dev")
        assert check(dev) == 5
        move(dev, 6)
        assert (check(dev), check(connection)) == (6, 20)
        dev.close()
        plain = apsw.Connection(str(tmp_path / "fifth.db"))
        assert check(plain) == 5
        plain.close()
        import_file(tmp_path / "fifth.db", db, "copy.db")
        connection.close()
        with db.pages("app.db") as pages:
            restore(pages, fifth)
    for name, n in (("app.db", 5), ("copy.db", 5)):
        again = reef.sqlite.connect(url.replace("/app.db", f"/{name}"))
        assert check(again) == n
        move(again, n + 1)
        assert check(again) == n + 1
        again.close()


def test_the_mix_of_sqlites_documentation_gives_the_same_answers(url: str) -> None:
    connection, plain = reef.sqlite.connect(url), apsw.Connection(":memory:")
    assert [answer for _, answer in run_mix(connection, scale=0.01)] == [
        answer for _, answer in run_mix(plain, scale=0.01)
    ]
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    plain.close()
