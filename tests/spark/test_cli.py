"""The commands that run on Spark, on one session."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import py4j.java_gateway
import pytest
from pyspark.sql import SparkSession

import reef
from reef import cli
from reef.format import log_key
from reef.jobs import standing_intents
from tests.support.waiting import DEADLINE_SECONDS, until

Run = Callable[..., tuple[int, Any]]
NAMES = [f"ns{i}" for i in range(4)]


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket of namespaces with a few log objects each, not folded."""
    monkeypatch.chdir(tmp_path)
    url = f"file://{tmp_path}/bucket?fsync=off"
    with reef.connect(url) as db:
        for name in NAMES:
            with db.kv(name) as kv:
                for i in range(3):
                    kv.write(
                        puts={b"%02d" % key: b"%s %d" % (name.encode(), i) for key in range(50)}
                    )
    return url


@pytest.fixture
def run(spark: SparkSession, url: str, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command on the bucket and returns its exit code and what it printed as JSON."""

    def call(command: str, *arguments: str) -> tuple[int, Any]:
        capfd.readouterr()
        code = cli.run([*command.split(), url, *arguments, "--json"])
        sys.stdout.flush()
        out, _ = capfd.readouterr()
        return code, json.loads(out) if out else None

    return call


def contents(url: str) -> dict[str, dict[bytes, bytes]]:
    with reef.connect(url) as db:
        found = {}
        for name in NAMES:
            with db.kv(name, mode="r") as kv:
                found[name] = dict(kv.items())
        return found


def test_a_bucket_is_folded_and_compacted(run: Run, url: str) -> None:
    before = contents(url)
    code, plan = run("index", "--all", "--dry-run")
    assert code == 0
    assert [one["namespace"] for one in plan["namespaces"]] == NAMES
    code, said = run("index", "--all")
    assert code == 0
    assert {one["state"] for one in said["namespaces"]} == {"done"}
    assert said["totals"]["rows"] == 4 * 3 * 50
    assert said["tasks"]["peak_bytes"] > 0
    with reef.connect(url) as db:
        for name in NAMES:
            with db.kv(name) as kv:
                kv.put(b"00", b"newer")
                kv.flush()
                before[name][b"00"] = b"newer"
    code, plans = run(
        "compact", "ns1", "--min-input-files", "2", "--dry-run", "--save-plan", "p.json"
    )
    assert code == 0
    assert len(plans["plans"]) == 1
    code, said = run("compact", "ns1", "--plan", "p.json")
    assert (code, said["totals"]["groups"]) == (0, 1)
    code, said = run("compact", "--all", "--full")
    assert code == 0
    assert said["totals"]["dropped"] > 0
    assert contents(url) == before
    code, history = run("jobs list")
    assert [one["kind"] for one in history["passes"]] == ["compact", "compact", "index"]
    code, shown = run("jobs show", history["passes"][0]["id"])
    assert (code, shown) == (0, history["passes"][0])
    code, standing = run("jobs standing", "--all")
    assert (code, standing) == (0, {"standing": [], "failed": {}})


def test_one_damaged_namespace_is_reported_and_the_others_are_done(run: Run, url: str) -> None:
    path = Path(url.removeprefix("file://").partition("?")[0]) / log_key("ns2", 3)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    code, said = run("index", "--all")
    assert code == 2
    assert {one["namespace"]: one["state"] for one in said["namespaces"]} == {
        "ns0": "done",
        "ns1": "done",
        "ns2": "failed",
        "ns3": "done",
    }


def test_files_go_in_and_out(run: Run, url: str, tmp_path: Path) -> None:
    rows = "".join(f'{{"id": "{i:03}", "n": {i}}}\n' for i in range(100))
    (tmp_path / "rows.jsonl").write_text(rows)
    code, said = run("ingest", "docs", str(tmp_path / "rows.jsonl"), "--job-key", "k")
    assert (code, said["rows"], said["replayed"]) == (0, 100, False)
    code, said = run("ingest", "docs", str(tmp_path / "rows.jsonl"), "--job-key", "k")
    assert (code, said["replayed"]) == (0, True)
    code, said = run(
        "export", "docs", str(tmp_path / "out"), "--format", "jsonl", "--where", "n < 10"
    )
    assert (code, said["columns"]) == (0, ["id", "n"])
    parts = (tmp_path / "out").glob("*.json")
    lines = [line for part in parts for line in part.read_text().splitlines()]
    assert sorted(json.loads(line)["n"] for line in lines) == list(range(10))


def test_what_has_no_namespace_is_exit_code_2(run: Run, url: str) -> None:
    for command in ("index", "compact"):
        code, said = run(command, "nobody", "--dry-run")
        assert (code, [*said["failed"]]) == (2, ["nobody"])
        assert run(command, "nobody")[0] == 2
    assert run("verify", "nobody", "--deep") == (2, None)


@pytest.mark.parametrize(
    "arguments",
    [
        ("index",),
        ("index", "a", "--all"),
        ("index", "--all", "--task-bytes", "none"),
        ("index", "--all", "--conf", "x"),
        ("index", "--all", "--master", "local", "--remote", "sc://x"),
        ("compact", "--all", "--min-input-files", "1"),
        ("compact", "--all", "--start", "b", "--end", "a"),
        ("compact", "--all", "--dry-run", "--save-plan", "x"),
        ("compact", "ns1", "--plan", "nothing.json"),
    ],
)
def test_what_cannot_be_is_refused_with_one_line(
    arguments: tuple[str, ...], url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    command, *rest = arguments
    assert cli.run([command, url, *rest]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("reef: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_folds_until_it_is_told_to_end(
    url: str, tmp_path: Path, number: signal.Signals
) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "reef", "worker", url, "--json", "--interval", "200ms"),
            *("--min-slots", "1", "--min-input-files", "2", "--master", "local[1,4]"),
            *("--small-size", "0"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    try:
        first = json.loads(process.stdout.readline())
        assert (first["pass"], len(first["namespaces"])) == ("index", 4)
        with reef.connect(url) as db, db.kv("ns0") as kv:
            kv.put(b"new", b"one")
        passes: set[str] = set()
        while not passes >= {"index", "compact"}:  # a fold may come between the open and the put
            passes.add(json.loads(process.stdout.readline())["pass"])
        process.send_signal(number)
        _, said = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == 0
        assert said.count("\n") == 1  # that it is at work
    finally:
        process.kill()
        process.communicate()
    assert contents(url)["ns0"][b"new"] == b"one"


@pytest.mark.parametrize("folder", ["manifest", "segments"])
def test_sigterm_ends_a_job_on_spark(url: str, folder: str) -> None:
    """Sent to the JVM too, as `timeout` and systemd do: while it starts, and while tasks run."""
    with reef.connect(url) as db:

        def count() -> int:
            return sum(f"/{folder}/" in meta.key for meta in db.store.list("namespaces/"))

        before = count()
        process = subprocess.Popen(
            [*(sys.executable, "-m", "reef", "index", url, "--all", "--master", "local[1,4]")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        try:
            until(lambda: count() > before or process.poll() is not None, "a publish or an upload")
            os.killpg(process.pid, signal.SIGTERM)
            out, said = process.communicate(timeout=DEADLINE_SECONDS)
        finally:
            process.kill()
            process.communicate()
        assert (process.returncode, out) == (143, ""), said
        assert {standing_intents(db.context(), name) for name in NAMES} == {()}
    assert {len(rows) for rows in contents(url).values()} == {50}


def test_what_py4j_logs_of_an_interrupt_is_not_printed(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes to the root logger, with two stacks, beside the error that it raises anyway."""
    assert run("index", "--all")[0] == 0
    root = logging.getLogger()
    for file, said in ((py4j.java_gateway.__file__, "sending command"), (__file__, "ours")):
        root.handle(root.makeRecord("root", logging.ERROR, file, 1, said, (), None))
    assert [record.getMessage() for record in caplog.records] == ["ours"]


def damage(url: str, *keys: str) -> None:
    """Flip a bit in the middle of objects."""
    for key in keys:
        path = Path(url.removeprefix("file://").partition("?")[0]) / key
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.chmod(0o600)
        path.write_bytes(data)


def test_three_damaged_objects_are_found_exactly_and_mended(run: Run, url: str) -> None:
    """Of a bucket with segments and logs: a segment, a log object and a dedup window."""
    for name in NAMES:
        with reef.connect(url) as db, db.kv(name) as kv:
            kv.flush()
            kv.put(b"last", name.encode(), idempotency_key="k")
            kv.flush()
            kv.put(b"later", b"x")
    before = contents(url)
    assert run("verify", "--all", "--deep")[0] == 0
    with reef.connect(url) as db:
        segment = max(meta.key for meta in db.store.list("namespaces/ns0/segments/"))
        window = max(meta.key for meta in db.store.list("namespaces/ns3/dedup/"))
    log = log_key("ns1", 6)
    damage(url, segment, log, window)
    code, said = run("verify", "--all", "--deep")
    assert code == 2
    found = {
        problem["key"]: one["namespace"]
        for one in said["namespaces"]
        for problem in one["problems"]
    }
    assert found == {segment: "ns0", log: "ns1", window: "ns3"}
    for name in ("ns0", "ns1", "ns3"):
        assert cli.run(["repair", url, name, "--apply"]) == 0
    assert run("verify", "--all", "--deep")[0] == 0
    after = contents(url)
    assert {name: after[name] for name in ("ns0", "ns2", "ns3")} == {
        name: before[name] for name in ("ns0", "ns2", "ns3")
    }


def test_a_bucket_is_rebuilt_from_its_log_and_collected(run: Run, url: str) -> None:
    assert run("index", "--all")[0] == 0
    with reef.connect(url) as db, db.kv("ns1") as kv:
        kv.delete(b"00")
    assert run("index", "ns1")[0] == 0
    assert run("compact", "--all", "--full")[0] == 0
    before = contents(url)
    code, said = run("rebuild", "--all")
    assert code == 0
    assert {one["state"] for one in said["namespaces"]} == {"done"}
    assert contents(url) == before
    assert b"00" not in contents(url)["ns1"]
    code, said = run("gc", "--all", "--apply", "--master", "local[2,4]")
    assert code == 0
    assert contents(url) == before
    assert run("verify", "--all", "--deep")[0] == 0
