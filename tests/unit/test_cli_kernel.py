"""The commands on a bucket: what they print, what they return, and that damage is mended by them."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import reef
from reef import cli
from reef.store import FileStore
from tests.damaged_buckets import NAMESPACE, Bucket, cut, flip

pytestmark = pytest.mark.usefixtures("no_settings")
REPO = Path(__file__).resolve().parents[2]


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(bucket: Bucket, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs a command on the bucket: `run("verify", NAMESPACE)`; returns its code, stdout and stderr."""

    def call(command: str, *arguments: str) -> tuple[int, str, str]:
        capfdbinary.readouterr()
        code = cli.run([*command.split(), bucket.url, *arguments])
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return call


@pytest.fixture
def run_json(run: Run) -> Callable[..., tuple[int, Any]]:
    """Runs a command with --json, which must print one JSON value and nothing else."""

    def call(command: str, *arguments: str) -> tuple[int, Any]:
        code, out, err = run(command, *arguments, "--json")
        assert err == ""
        return code, json.loads(out)

    return call


RunJson = Callable[..., tuple[int, Any]]


# Damage, from finding it to having it mended.


def newest_segment(bucket: Bucket) -> Path:
    return bucket.segment(bucket.manifest.segments[0])


DAMAGE: dict[str, tuple[Callable[[Bucket], object], str, str, list[int]]] = {
    # what is done; what verify calls it; what repair does; which commits (from the end) are lost
    "segment block": (
        lambda b: flip(newest_segment(b), 60),
        "segment-damaged",
        "restore-segment",
        [],
    ),
    "segment footer": (
        lambda b: flip(newest_segment(b), -60),
        "segment-damaged",
        "restore-segment",
        [],
    ),
    "segment size": (lambda b: cut(newest_segment(b)), "segment-damaged", "restore-segment", []),
    "segment gone": (
        lambda b: newest_segment(b).unlink(),
        "segment-missing",
        "restore-segment",
        [],
    ),
    "log object at the head": (
        lambda b: flip(b.slot(b.commits[-1].slot)),
        "log-damaged",
        "name-in-fence",
        [-1],
    ),
    "log object followed by others": (
        lambda b: flip(b.slot(b.commits[-3].slot)),
        "log-damaged",
        "skip-log-object",
        [-3],
    ),
    "manifest head": (
        lambda b: flip(b.files("manifest")[-1]),
        "manifest-damaged",
        "republish-manifest",
        [],
    ),
    "older manifest": (
        lambda b: flip(b.files("manifest")[0]),
        "manifest-damaged",
        "quarantine",
        [],
    ),
    "dedup window": (
        lambda b: flip(b.files("dedup")[-1]),
        "dedup-damaged",
        "restore-dedup",
        [],
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_then_mended_then_gone(
    bucket: Bucket, run: Run, run_json: RunJson, damage: str
) -> None:
    harm, kind, step, lost = DAMAGE[damage]
    code, report = run_json("verify", NAMESPACE, "--deep", "--in-process")
    assert (code, report["namespaces"][0]["ok"]) == (0, True)
    harm(bucket)

    code, report = run_json("verify", NAMESPACE, "--deep", "--in-process")
    assert code == 2
    assert {p["kind"] for p in report["namespaces"][0]["problems"]} == {kind}
    assert run("verify", NAMESPACE, "--deep", "--in-process")[0] == 2

    before = bucket.everything()
    code, report = run_json("repair", NAMESPACE)
    assert (code, report["applied"], report["mended"]) == (2, False, False)
    assert [(s["kind"], s["state"]) for s in report["steps"]] == [(step, "planned")]
    assert bool(report["steps"][0]["lost"]) == (bool(lost) or "manifest" in damage)
    assert bucket.everything() == before

    code, report = run_json("repair", NAMESPACE, "--apply")
    assert (code, report["applied"], report["mended"]) == (0, True, True)
    assert {s["state"] for s in report["steps"]} == {"done"}

    code, report = run_json("verify", NAMESPACE, "--deep", "--in-process")
    assert (code, report["namespaces"][0]["problems"]) == (0, [])
    kept = bucket.rows(without=[bucket.commits[number].slot for number in lost])
    assert bucket.read() == kept
    assert bucket.read_as_writer() == kept
    assert run_json("verify", NAMESPACE, "--deep", "--in-process")[0] == 0


def test_a_loss_must_be_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bucket = Bucket(tmp_path / "c", row_block_bytes=500, gc_grace=0, retained_generations=1)
    bucket.write("flush")
    bucket.collect()
    flip(newest_segment(bucket), 60)
    command = ["repair", bucket.url, NAMESPACE]
    assert cli.run(command) == 2
    out = capsys.readouterr().out
    assert "salvage-segment" in out
    assert "wait for --accept-loss" in out
    assert cli.run([*command, "--apply"]) == 2
    assert cli.run([*command, "--apply", "--accept-loss"]) == 0
    assert cli.run(["verify", bucket.url, NAMESPACE, "--deep", "--in-process"]) == 0
    assert cli.run(command) == 0


def test_people_are_told_what_would_be_done_and_whom_it_concerns(bucket: Bucket, run: Run) -> None:
    slot = bucket.commits[-3].slot
    flip(bucket.slot(slot))
    code, out, err = run("repair", NAMESPACE)
    assert (code, err) == (2, "")
    text = " ".join(out.replace("│", " ").split())
    assert "skip-log-object" in text
    assert f"LSNs {slot << 20} to" in text
    assert "This fences whoever writes" in text
    assert "nothing was changed: --apply does what is planned" in text
    code, out, err = run("repair", NAMESPACE, "--apply")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"{NAMESPACE}: mended, 1 steps done"
    code, out, _ = run("repair", NAMESPACE)
    assert (code, out.splitlines()[-1]) == (0, f"{NAMESPACE}: nothing is wrong")


def test_verify_for_people(bucket: Bucket, run: Run) -> None:
    code, out, err = run("verify", NAMESPACE)
    assert (code, err) == (0, "")
    assert out.startswith(f"{NAMESPACE}: no problems in 3 manifests, 13 log objects, 2 segments")
    flip(bucket.generation(3))
    code, out, err = run("verify", NAMESPACE)
    assert (code, err) == (2, "")
    assert "manifest-damaged" in out
    assert f"{NAMESPACE}: 1 problem in 3 manifests" in out
    assert "`reef repair` says what can be mended" in out


def test_verify_all_goes_on_behind_one_that_cannot_be_read(
    bucket: Bucket, run_json: RunJson
) -> None:
    stray = bucket.root / "namespaces" / "ruin" / "quarantine"
    stray.mkdir(parents=True)
    (stray / "leftover").write_bytes(b"x")
    code, report = run_json("verify", "--all")
    assert code == 2
    found = {one["namespace"]: one for one in report["namespaces"]}
    assert found["ruin"]["problems"][0]["kind"] == "unreadable"
    assert found[NAMESPACE]["ok"]
    code, report = run_json("stats", "--all")
    assert code == 2
    assert {one["namespace"]: bool(one["error"]) for one in report["namespaces"]} == {
        "ruin": True,
        NAMESPACE: False,
    }
    code, report = run_json("gc", "--all")
    assert code == 2
    assert len(report["namespaces"]) == 2


@pytest.mark.parametrize("command", ["verify", "gc", "gc --apply", "stats"])
def test_all_of_nothing_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    url = f"file://{tmp_path}/none"
    arguments = [*command.split(), url, "--all"]
    for more in ([], ["--json"]):
        assert cli.run([*arguments, *more]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"reef: {url}: the folder '{tmp_path}/none' does not exist")
        assert err.count("\n") == 1
    assert not (tmp_path / "none").exists()

    (tmp_path / "none").mkdir()
    assert cli.run(arguments) == 0
    assert capsys.readouterr() == (f"there is no namespace in {url}\n", "")
    assert cli.run([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out)["namespaces"], err) == ([], "")


# Looking.


def test_stats(bucket: Bucket, run: Run, run_json: RunJson) -> None:
    code, report = run_json("stats", NAMESPACE)
    assert code == 0
    (one,) = report["namespaces"]
    assert one["objects"]["wal"]["objects"] == 13
    code, out, err = run("stats", NAMESPACE)
    assert (code, err) == (0, "")
    assert "unfolded log" in out
    code, out, _ = run("stats", "--all")
    assert code == 0
    assert NAMESPACE in out
    flip(bucket.generation(3))
    assert run("stats", NAMESPACE)[0] == 2


def looks(bucket: Bucket) -> list[list[str]]:
    id = bucket.manifest.segments[0].id
    return [
        [],
        ["manifest"],
        ["manifest", "2"],
        ["log", "1"],
        ["log", str(bucket.commits[-1].slot)],
        ["segment", id],
        ["segment", id, "--deep"],
        ["block", id, "1", "--limit", "3"],
    ]


def test_inspect_each_kind_for_people_and_programs(
    bucket: Bucket, run: Run, run_json: RunJson
) -> None:
    for look in looks(bucket):
        code, out, err = run("inspect", NAMESPACE, *look)
        assert (code, err) == (0, ""), look
        assert out
        code, found = run_json("inspect", NAMESPACE, *look)
        assert code == 0
        assert not found.get("damage")
    commit = bucket.commits[-1]
    _, out, _ = run("inspect", NAMESPACE, "log", str(commit.slot), "--limit", "100")
    for key, value in commit.puts.items():
        assert key.decode() in out
        assert value.decode() in out


def test_inspect_shows_damaged_objects_and_where(
    bucket: Bucket, run: Run, run_json: RunJson
) -> None:
    id = bucket.manifest.segments[0].id
    flip(bucket.segment(bucket.manifest.segments[0]), -60)
    flip(bucket.slot(3), 200)
    flip(bucket.generation(2))
    for look in (["manifest", "2"], ["log", "3"], ["segment", id]):
        code, out, err = run("inspect", NAMESPACE, *look)
        assert (code, err) == (2, "")
        assert "DAMAGE" in out
        code, found = run_json("inspect", NAMESPACE, *look)
        assert code == 2
        assert found["damage"]["offset"] >= 0


def test_inspect_shows_what_a_request_asked_for_and_got(
    bucket: Bucket, run: Run, run_json: RunJson
) -> None:
    with bucket.open() as db, db.kv("orders") as kv:
        kv.put(b"a", b"old")
        lsn = kv.write(
            {b"a": b"1", b"b": b"2", b"c": b"3"},
            condition=reef.Equals(value=[b"old", b"\xff", b"x"]),
            atomic=False,
            idempotency_key="größe-1",
        ).lsn
    slot = str(lsn >> 20)
    code, found = run_json("inspect", "orders", "log", slot, "--limit", "2")
    (record,) = found["records"]
    assert record["idempotency_key"] == "größe-1"
    assert record["condition"] == {
        "kind": "Equals",
        "expected": {"value": ["old", {"base64": "/w=="}, "x"]},
    }
    assert record["outcomes"] == ["written", "missing"]
    assert record["outcome_counts"] == {"written": 1, "missing": 2}
    code, out, err = run("inspect", "orders", "log", slot)
    assert (code, err) == (0, "")
    assert re.search(r"^idempotency_key +größe-1$", out, re.MULTILINE)
    assert re.search(r"^outcomes +1 written, 2 missing$", out, re.MULTILINE)
    assert '"expected": {"value": ["old"' in out


def test_every_kind_is_documented() -> None:
    """What programs go by is in docs/cli.md, and nothing else is."""
    text = (REPO / "docs/cli.md").read_text(encoding="utf-8")
    sources = [path.read_text() for path in (REPO / "src/reef/engine").glob("_*.py")]
    found = set()
    for source in sources:
        found |= set(re.findall(r'Finding\(\s*"([a-z-]+)"', source))
        found |= set(re.findall(r'kind, what = "([a-z-]+)"', source))
        found |= set(re.findall(r'self\._(?:step|fencing)\(\s*"([a-z-]+)"', source))
        found |= set(re.findall(r'kind, text = "([a-z-]+)"', source))
    assert len(found) > 20
    assert {kind for kind in found if f"`{kind}`" not in text} == set()


# Errors.

USAGE = [
    ("verify", [], "NAMESPACE and --all = 'neither'"),
    ("verify", [NAMESPACE, "--all"], "NAMESPACE and --all = 'both'"),
    ("stats", [], "NAMESPACE and --all"),
    ("gc", [], "NAMESPACE and --all"),
    ("verify", ["../x"], "namespace = '../x'"),
    ("repair", [], "Missing argument 'NAMESPACE'"),
    ("repair", ["a/b"], "namespace = 'a/b'"),
    ("inspect", [], "Missing argument 'NAMESPACE'"),
    ("inspect", [NAMESPACE, "frob"], "WHAT = 'frob'"),
    ("inspect", [NAMESPACE, "log"], "WHAT = 'log'"),
    ("inspect", [NAMESPACE, "log", "0"], "SLOT = '0'"),
    ("inspect", [NAMESPACE, "log", "x"], "SLOT = 'x'"),
    ("inspect", [NAMESPACE, "manifest", "-1"], "No such option"),
    ("inspect", [NAMESPACE, "manifest", "0"], "GENERATION = '0'"),
    ("inspect", [NAMESPACE, "segment", "../../x"], "object key"),
    ("inspect", [NAMESPACE, "log", "1", "--limit", "-1"], "--limit"),
    ("snapshot", [], "No such command"),
    ("snapshot create", [NAMESPACE, "--ttl", "soon"], "ttl = 'soon'"),
    ("snapshot create", [NAMESPACE, "--ttl", "0"], "ttl = '0'"),
    ("kv get", [NAMESPACE], "Missing argument 'KEY'"),
    ("kv get", [NAMESPACE, "zz", "--hex"], "KEY = 'zz'"),
    ("kv get", [NAMESPACE, "a", "--base64"], "KEY = 'a'"),
    ("kv get", [NAMESPACE, "aa", "--base64", "--hex"], "--hex and --base64"),
    ("kv get", [NAMESPACE, "a", "--lsn", "-1"], "--lsn"),
    ("kv get", [NAMESPACE, "a", "--lsn", "1", "--generation", "1"], "one of lsn, generation"),
    ("kv get", [NAMESPACE, "k" * 5000], "at most 4096 bytes"),
    ("kv put", [NAMESPACE, "a"], "VALUE and --file = 'neither'"),
    ("kv put", [NAMESPACE, "a", "b", "--file", "c"], "VALUE and --file = 'both'"),
    ("kv put", [NAMESPACE, "a", "--file", "/no/such/file"], "a readable file"),
    ("kv scan", [NAMESPACE, "--limit", "0"], "--limit"),
    # Writing fences others: so these must be refused before the namespace is opened.
    ("kv put", [NAMESPACE, "a", "b", "--idempotency-key", ""], "--idempotency-key = ''"),
    ("kv put", [NAMESPACE, "a", "b", "--idempotency-key", "k" * 513], "1 to 512 bytes; it has 513"),
    ("kv put", [NAMESPACE, "k" * 4097, "b"], "at most 4096 bytes"),
    ("kv put", [NAMESPACE, "0", "00", "--hex"], "KEY = '0'"),
    ("kv put", [NAMESPACE, "00", "0", "--hex"], "VALUE = '0'"),
    ("kv put", [NAMESPACE, "a", "-", "--file", "c"], "VALUE and --file = 'both'"),
    ("kv put", ["a/b", "a", "b"], "namespace = 'a/b'"),
    ("kv delete", [NAMESPACE, "a", "--idempotency-key", "é" * 257], "it has 514"),
    ("kv delete", [NAMESPACE, "k" * 4097], "at most 4096 bytes"),
    ("kv delete", ["a/b", "a"], "namespace = 'a/b'"),
    ("snapshot create", [NAMESPACE, "--id", "a/b"], "'a/b'"),
]


@pytest.mark.parametrize(("command", "arguments", "says"), USAGE)
def test_usage_errors_are_one_line_and_exit_code_1(
    bucket: Bucket, run: Run, command: str, arguments: list[str], says: str
) -> None:
    before = bucket.everything()
    generation = bucket.manifest.generation
    code, out, err = run(command, *arguments)
    assert (code, out) == (1, "")
    assert bucket.manifest.generation == generation
    assert says in err
    assert err.startswith("reef: ")
    assert err.count("\n") == 1
    assert bucket.everything() == before


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("stats", ["other"]),
        ("inspect", ["other"]),
        ("inspect", [NAMESPACE, "manifest", "77"]),
        ("inspect", [NAMESPACE, "log", "77"]),
        ("verify", ["other"]),
        ("repair", ["other", "--apply"]),
        ("gc", ["other", "--apply"]),
        ("snapshot create", ["other"]),
        ("snapshot list", ["other"]),
        ("snapshot renew", [NAMESPACE, "none-such"]),
        ("snapshot release", [NAMESPACE, "none-such"]),
        ("snapshot release", ["other", "none-such"]),
        ("kv get", ["other", "key"]),
        ("kv scan", ["other"]),
        ("kv get", [NAMESPACE, "none-such"]),
        ("kv get", [NAMESPACE, "a", "--snapshot", "none-such"]),
        ("kv get", [NAMESPACE, "a", "--generation", "77"]),
    ],
)
def test_what_is_not_there_is_one_line_and_exit_code_2(
    bucket: Bucket, run: Run, command: str, arguments: list[str]
) -> None:
    before = bucket.everything()
    code, out, err = run(command, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("reef: ")
    assert err.count("\n") == 1
    assert bucket.everything() == before


def test_no_progress_is_shown_in_a_pipe(bucket: Bucket) -> None:
    for command in ("verify", "repair", "gc"):
        done = subprocess.run(
            [sys.executable, "-m", "reef", command, bucket.url, NAMESPACE],
            capture_output=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b"")


def test_progress_is_shown_on_a_terminal(bucket: Bucket) -> None:
    ours, theirs = pty.openpty()
    with open(ours, "rb", buffering=0) as terminal:
        done = subprocess.run(
            [sys.executable, "-m", "reef", "verify", bucket.url, NAMESPACE, "--json"],
            stdout=subprocess.PIPE,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm"},
            check=False,
        )
        shown = terminal.read(1 << 16)
        os.close(theirs)
    assert done.returncode == 0
    assert json.loads(done.stdout)["namespaces"][0]["ok"]
    assert b"segments" in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", NAMESPACE],
        ["verify", NAMESPACE, "--json"],
        ["gc", "--all"],
        ["repair", NAMESPACE],
        ["stats", NAMESPACE],
        ["inspect", NAMESPACE, "manifest"],
        ["snapshot list", NAMESPACE],
        ["kv scan", NAMESPACE],
        ["kv put", "fresh", "a", "1"],
    ],
)
def test_output_that_cannot_be_written(bucket: Bucket, arguments: list[str]) -> None:
    """A full disk is one line and a code of its own; a pipe that nobody reads is no error."""
    name, *rest = arguments
    line = [sys.executable, "-m", "reef", *name.split(), bucket.url, *rest]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 3
    assert done.stderr == b"reef: stdout could not be written: No space left on device\n"
    ours, theirs = os.pipe()
    os.close(ours)
    done = subprocess.run(line, stdout=theirs, stderr=subprocess.PIPE, check=False)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (0, b"")


def test_ctrl_c_in_the_middle_of_a_scan(bucket: Bucket) -> None:
    with bucket.open() as db, db.kv("large") as kv:
        kv.write({b"%06d" % n: b"x" * 100 for n in range(20_000)})
    process = subprocess.Popen(
        [sys.executable, "-m", "reef", "kv", "scan", bucket.url, "large"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        # It is writing then, and cannot end: a pipe holds much less than there is.
        assert process.stdout.readline().startswith(b"000000\t")
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b"reef: interrupted\n"
    assert process.returncode == 130


# Collection and snapshots.


def test_gc_says_and_then_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bucket = Bucket(tmp_path / "c", gc_grace=0, retained_generations=1)
    bucket.write("flush", "flush", "flush")
    bucket.compact()
    (tmp_path / "reef.toml").write_text("gc_grace = 0\nretained_generations = 1\n")
    command = ["gc", bucket.url, NAMESPACE, "--json"]
    before = bucket.everything()
    assert cli.run(command) == 0
    planned = json.loads(capsys.readouterr().out)["namespaces"][0]
    assert bucket.everything() == before
    goes = {t["kind"] for t in planned["tallies"] if t["goes"]}
    assert "segment" in goes
    for _ in range(3):
        assert cli.run([*command, "--apply"]) == 0
    assert len(bucket.files("segments")) == 1
    assert bucket.read() == bucket.rows()
    assert cli.run(["verify", bucket.url, NAMESPACE, "--deep", "--in-process"]) == 0
    assert cli.run(["gc", bucket.url, "--all"]) == 0
    assert "would be deleted" in capsys.readouterr().out


def test_gc_of_all_sweeps_the_bucket_once(
    bucket: Bucket, run_json: RunJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the first namespace cannot be read."""
    with bucket.open() as db:
        for name in ("more", "other"):
            with db.kv(name) as kv:
                kv.put(b"a", b"1")
    ruin = bucket.root / "namespaces" / "a-ruin" / "quarantine"
    ruin.mkdir(parents=True)
    (ruin / "leftover").write_bytes(b"x")
    sweeps: list[int] = []
    monkeypatch.setattr(FileStore, "sweep", lambda _, before_us: sweeps.append(before_us) or ())
    code, report = run_json("gc", "--all")
    assert (code, sweeps) == (2, [])
    code, report = run_json("gc", "--all", "--apply")
    assert [one["applied"] for one in report["namespaces"]] == [False, True, True, True]
    assert len(sweeps) == 1
    assert run_json("gc", "more", "--apply")[0] == 0
    assert len(sweeps) == 2


def test_snapshots_are_created_listed_read_renewed_and_released(
    bucket: Bucket, run: Run, run_json: RunJson
) -> None:
    rows = bucket.rows()
    code, out, err = run("snapshot create", NAMESPACE, "--ttl", "30m", "--id", "before")
    assert (code, out, err) == (0, "before\n", "")
    bucket.write("flush")
    assert bucket.rows() != rows
    code, listed = run_json("snapshot list", NAMESPACE)
    (one,) = listed["snapshots"]
    assert one["id"] == "before"
    code, out, _ = run("kv scan", NAMESPACE, "--snapshot", "before")
    assert out == "".join(f"{k.decode()}\t{rows[k].decode()}\n" for k in sorted(rows))
    code, renewed = run_json("snapshot renew", NAMESPACE, "before", "--ttl", "2h")
    assert renewed["expires_at_us"] > one["expires_at_us"]
    code, renewed = run_json("snapshot renew", NAMESPACE, "before", "--ttl", "none")
    assert renewed["expires_at_us"] is None
    code, out, _ = run("snapshot list", NAMESPACE)
    assert "never" in out
    assert run("snapshot create", NAMESPACE, "--id", "before")[0] == 2
    assert run("snapshot release", NAMESPACE, "before")[0] == 0
    assert run_json("snapshot list", NAMESPACE)[1]["snapshots"] == []
    code, fresh = run_json("snapshot create", NAMESPACE)
    assert fresh["expires_at_us"]
    assert run("kv get", NAMESPACE, "none", "--snapshot", fresh["id"])[0] == 2


# Keys and values.


def test_a_value_comes_back_as_it_was_put(
    bucket: Bucket, run: Run, run_json: RunJson, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = run("kv put", "fresh", "greeting", "hällo")
    assert (code, err) == (0, "")
    assert int(out) > 0
    assert run("kv get", "fresh", "greeting") == (0, "hällo\n", "")
    assert run("kv get", "fresh", "greeting", "-n") == (0, "hällo", "")

    binary = bytes(range(256))
    (tmp_path / "value").write_bytes(binary)
    assert run("kv put", "fresh", "file", "--file", str(tmp_path / "value"))[0] == 0
    assert run("kv get", "fresh", b"file".hex(), "--hex") == (0, binary.hex() + "\n", "")
    assert run_json("kv get", "fresh", "file")[1]["value_encoding"] == "base64"

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from\0stdin\n")))
    assert run("kv put", "fresh", "stdin", "-")[0] == 0
    assert run_json("kv get", "fresh", "stdin")[1] == {
        "key": "stdin",
        "key_encoding": "text",
        "value": "from\0stdin\n",
        "value_encoding": "text",
    }

    assert run("kv put", "fresh", "00ff", "ff00", "--hex")[0] == 0
    assert run("kv get", "fresh", "AP8=", "--base64") == (0, "/wA=\n", "")
    assert run("kv put", "fresh", "empty", "")[0] == 0
    assert run("kv get", "fresh", "empty") == (0, "\n", "")


def test_a_value_that_is_too_large_is_refused_before_anybody_is_fenced(
    bucket: Bucket, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "reef.toml").write_text('log_segment_max_bytes = "1KiB"\n')
    (tmp_path / "value").write_bytes(bytes(1025))
    epoch = bucket.manifest.writer_epoch
    code, out, err = run("kv put", NAMESPACE, "a", "--file", str(tmp_path / "value"))
    assert (code, out) == (1, "")
    assert "at most log_segment_max_bytes, which is 1024" in err
    # What a record takes beside the value counts.
    (tmp_path / "reef.toml").write_text('log_segment_max_bytes = "2KiB"\n')
    code, out, err = run("kv put", NAMESPACE, "a", "--file", str(tmp_path / "value"))
    assert (code, out) == (1, "")
    assert "KEY and VALUE = '1026 bytes'" in err
    assert run("kv delete", NAMESPACE, "k" * 1025)[0] == 1
    (tmp_path / "reef.toml").write_text('memtable_max_bytes = "2KiB"\n')
    assert run("kv put", NAMESPACE, "a", "--file", str(tmp_path / "value"))[0] == 1
    assert bucket.manifest.writer_epoch == epoch
    (tmp_path / "reef.toml").write_text("log_segment_max_bytes = 2050\n")
    assert run("kv put", NAMESPACE, "a", "--file", str(tmp_path / "value"))[0] == 0
    assert bucket.manifest.writer_epoch == epoch + 1


def test_a_key_that_is_not_there(run: Run, run_json: RunJson) -> None:
    assert run("kv put", "fresh", "a", "1")[0] == 0
    code, out, err = run("kv get", "fresh", "b")
    assert (code, out, err) == (2, "", "reef: key 'b' is not there\n")
    code, out, err = run("kv get", "fresh", "b", "--json")
    assert code == 2
    assert json.loads(out)["value"] is None
    code, receipt = run_json("kv delete", "fresh", "a")
    assert (code, receipt["outcomes"]) == (0, ["deleted"])
    assert run("kv get", "fresh", "a")[0] == 2
    assert run("kv delete", "fresh", "a")[0] == 0


def test_the_same_idempotency_key_writes_once(run: Run, run_json: RunJson) -> None:
    _, first = run_json("kv put", "fresh", "a", "1", "--idempotency-key", "k")
    _, again = run_json("kv put", "fresh", "a", "1", "--idempotency-key", "k")
    assert (first["replayed"], again["replayed"]) == (False, True)
    assert first["lsn"] == again["lsn"]
    assert run("kv put", "fresh", "a", "2", "--idempotency-key", "k")[0] == 1
    _, out, _ = run("kv get", "fresh", "a")
    assert out == "1\n"


def test_reads_of_the_past(bucket: Bucket, run: Run) -> None:
    lsns = [int(run("kv put", "fresh", "a", value)[1]) for value in ("1", "2")]
    assert run("kv get", "fresh", "a", "--lsn", str(lsns[0])) == (0, "1\n", "")
    assert run("kv get", "fresh", "a", "--lsn", str(lsns[1])) == (0, "2\n", "")
    assert run("kv get", "fresh", "a", "--lsn", str(lsns[0] - 1))[0] == 2
    _, out, _ = run("kv scan", NAMESPACE, "--generation", "2", "--keys-only")
    later = [commit.slot for commit in bucket.commits[4:]]
    assert out.split() == sorted(key.decode() for key in bucket.rows(without=later))


def test_scans(bucket: Bucket, run: Run) -> None:
    rows = {key.decode(): value.decode() for key, value in bucket.rows().items()}
    keys = sorted(rows)

    def scan(*options: str) -> list[str]:
        code, out, err = run("kv scan", NAMESPACE, *options)
        assert (code, err) == (0, "")
        return out.splitlines()

    lines = [f"{key}\t{rows[key]}" for key in keys]
    assert scan() == lines
    assert scan("--reverse") == lines[::-1]
    assert scan("--limit", "7") == lines[:7]
    assert scan("--reverse", "--limit", "7") == lines[::-1][:7]
    assert scan("--limit", "100000") == lines
    assert scan("--keys-only") == keys
    low, high = keys[10], keys[30]
    assert scan("--start", low, "--end", high, "--keys-only") == keys[10:30]
    assert scan("--prefix", "k1", "--keys-only") == [key for key in keys if key.startswith("k1")]
    assert scan("--prefix", "none-such") == []
    assert scan("--hex", "--limit", "1") == [
        f"{keys[0].encode().hex()}\t{rows[keys[0]].encode().hex()}"
    ]
    parsed = [json.loads(line) for line in scan("--json")]
    assert {one["key"]: one["value"] for one in parsed} == rows
    assert json.loads(scan("--json", "--keys-only", "--limit", "1")[0]) == {
        "key": keys[0],
        "key_encoding": "text",
    }


def test_a_reader_that_has_seen_enough_is_no_error(bucket: Bucket) -> None:
    with bucket.open() as db, db.kv("large") as kv:
        kv.write({b"%06d" % n: b"x" * 100 for n in range(20_000)})
    process = subprocess.Popen(
        [sys.executable, "-m", "reef", "kv", "scan", bucket.url, "large"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith(b"000000\t")
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0


def test_writing_takes_over_from_a_running_writer(bucket: Bucket, run: Run) -> None:
    with bucket.open() as db, db.kv(NAMESPACE) as kv:
        kv.put(b"a", b"1")
        assert run("kv get", NAMESPACE, "a") == (0, "1\n", "")  # reading does not
        kv.put(b"a", b"2")
        assert run("kv put", NAMESPACE, "a", "3")[0] == 0
        with pytest.raises(reef.FencedError):
            kv.put(b"a", b"4")
    assert run("kv get", NAMESPACE, "a") == (0, "3\n", "")
