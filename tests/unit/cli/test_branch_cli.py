"""`reef branch`, and branches in the other commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import reef
from tests.support.commands import Run, runner

pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/bucket?fsync=off"
    with reef.connect(url) as db, db.kv("ns") as kv:
        kv.put(b"k", b"1")
        kv.flush()
        kv.put(b"k", b"2")
    return url


@pytest.fixture
def run(url: str, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs a command on the bucket; returns its code, stdout and stderr."""
    return runner(url, capfdbinary)


def test_a_branch_from_its_making_to_its_end(run: Run) -> None:
    code, out, _ = run("branch create", "ns", "b")
    assert code == 0
    assert out.startswith("b of ns at LSN ")
    assert run("branch create", "ns", "c", "--from", "b")[0] == 0
    assert run("kv put", "ns@b", "k", "3")[0] == 0
    assert run("kv get", "ns@b", "k")[1] == "3\n"
    assert run("kv get", "ns@c", "k")[1] == run("kv get", "ns", "k")[1] == "2\n"

    listed = json.loads(run("branch list", "ns", "--json")[1])
    assert [(b["name"], b["parent"]) for b in listed["branches"]] == [("b", "ns"), ("c", "ns@b")]
    assert "ns@c" in run("branch list", "ns")[1]

    code, _, err = run("branch drop", "ns", "b")
    assert code == 1
    assert "ns@c" in err
    assert run("branch drop", "ns", "c")[:2] == (0, "c is dropped\n")
    code, out, _ = run("branch detach", "ns", "b", "--in-process")
    assert code == 0
    assert "is detached" in out
    assert "(detached)" in run("branch list", "ns")[1]
    assert run("kv get", "ns@b", "k")[1] == "3\n"


def test_an_old_version_is_branched_from(run: Run, url: str) -> None:
    with reef.connect(url) as db, db.kv("ns", mode="r") as kv:
        first = next(iter(kv.changes())).column("_lsn")[0].as_py()
    made = json.loads(run("branch create", "ns", "b", "--lsn", str(first), "--json")[1])
    assert made["lsn"] == first
    assert run("kv get", "ns@b", "k")[1] == "1\n"
    code, _, err = run("branch create", "ns", "later", "--lsn", str(2**60))
    assert code == 1
    assert "the newest version" in err


def test_pins_are_shown_before_anything_is_collected(run: Run) -> None:
    run("branch create", "ns", "b")
    assert "pin of ns@b is kept: a retained generation" in run("gc", "ns")[1]
    report = json.loads(run("gc", "ns", "--json")[1])
    (pin,) = (report if "pins" in report else report["namespaces"][0])["pins"]
    assert (pin["child"], pin["goes"]) == ("ns@b", False)


def test_passes_over_all_namespaces_leave_out_what_was_dropped(run: Run, url: str) -> None:
    run("branch create", "ns", "b")
    run("branch create", "ns", "c")
    run("branch drop", "ns", "b")
    with reef.connect(url) as db:
        assert [*db.namespaces()] == ["ns", "ns@c"]
        assert [*db.namespaces(dropped=True)] == ["ns", "ns@b", "ns@c"]
    assert run("compact", "--all", "--in-process")[0] == 0
    assert run("index", "--all", "--in-process")[0] == 0
    for command in ("verify", "gc"):
        code, out, _ = run(command, "--all")
        assert code == 0
        assert "ns@b: " in out
