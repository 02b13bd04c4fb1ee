"""Commands that look: damage is found, shown, mended by them, and then gone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import reef
from reef import cli
from tests.support.commands import Run, RunJson, runner
from tests.support.doctor.damaged_buckets import NAMESPACE, Bucket, cut, flip

pytestmark = pytest.mark.usefixtures("no_settings")

REPO = Path(__file__).resolve().parents[4]


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


@pytest.mark.slow
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
    assert "need --accept-loss" in out
    assert cli.run([*command, "--apply"]) == 2
    assert cli.run([*command, "--apply", "--accept-loss"]) == 0
    assert cli.run(["verify", bucket.url, NAMESPACE, "--deep", "--in-process"]) == 0
    assert cli.run(command) == 0


def test_a_deleted_log_object_stops_every_command_until_repair(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Twenty puts, one unfolded log object deleted: no command reads, folds or writes past it."""
    bucket = Bucket(tmp_path / "hole")
    run = runner(bucket.url, capfdbinary)
    with bucket.open() as db, db.kv(NAMESPACE) as kv:
        slots = [kv.put(b"k%02d" % i, b"v").lsn >> 20 for i in range(20)]
    path = bucket.slot(slots[7])
    path.unlink()
    before = [p for p in bucket.everything() if p.startswith("namespaces/")]
    for command, *arguments in (
        ("kv scan", NAMESPACE),
        ("kv put", NAMESPACE, "x", "y"),
        ("index", NAMESPACE, "--in-process"),
        ("rebuild", NAMESPACE, "--in-process"),
    ):
        code, out, err = run(command, *arguments)
        assert code != 0
        assert path.name in out + err
        assert "reef repair" in out + err
        assert [p for p in bucket.everything() if p.startswith("namespaces/")] == before
    code, out, _ = run("verify", NAMESPACE)
    assert (code, "log-missing" in out, path.name in out) == (2, True, True)
    code, out, _ = run("repair", NAMESPACE, "--apply")
    assert (code, "fill-log-gap" in out) == (2, True)
    assert run("repair", NAMESPACE, "--apply", "--accept-loss")[0] == 0
    assert run("verify", NAMESPACE, "--deep", "--in-process")[0] == 0
    assert run("kv put", NAMESPACE, "x", "y")[0] == 0
    left = {b"k%02d" % i: b"v" for i in range(20) if i != 7}
    assert bucket.read() == {**left, b"x": b"y"}


def test_people_are_told_what_would_be_done_and_whom_it_concerns(bucket: Bucket, run: Run) -> None:
    slot = bucket.commits[-3].slot
    flip(bucket.slot(slot))
    code, out, err = run("repair", NAMESPACE)
    assert (code, err) == (2, "")
    text = " ".join(out.replace("│", " ").split())
    assert "skip-log-object" in text
    assert f"LSNs {slot << 20} to" in text
    assert "This fences the writer" in text
    assert "nothing was changed: run with --apply to repair" in text
    code, out, err = run("repair", NAMESPACE, "--apply")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"{NAMESPACE}: repaired, 1 steps done"
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
    assert "`reef repair` lists what it can repair" in out


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


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_inspect_reports_each_damaged_block_once(bucket: Bucket, run: Run) -> None:
    ref = bucket.manifest.segments[0]
    flip(bucket.segment(ref), 60)
    _, out, _ = run("inspect", NAMESPACE, "segment", ref.id, "--deep")
    assert out.count("expected crc32c") == 1
    assert "damages" not in out


@pytest.mark.parametrize("kind", ["log", "manifest"])
def test_inspect_says_no_more_of_an_object_than_it_could_read(
    bucket: Bucket, run: Run, kind: str
) -> None:
    path = bucket.slot(3) if kind == "log" else bucket.generation(3)
    path.write_bytes(path.read_bytes()[:10])
    code, out, err = run("inspect", NAMESPACE, kind, "3")
    assert (code, err) == (2, "")
    assert "DAMAGE at byte 10" in out
    assert "not proven" not in out
    assert not re.search("^(header|members) ", out, re.MULTILINE)


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
    sources = [path.read_text() for path in (REPO / "src/reef/doctor").rglob("_*.py")]
    found = set()
    for source in sources:
        found |= set(re.findall(r'ProblemOrNote\(\s*"([a-z-]+)"', source))
        found |= set(re.findall(r'kind, what = "([a-z-]+)"', source))
        found |= set(re.findall(r'self\._(?:step|fencing)\(\s*"([a-z-]+)"', source))
        found |= set(re.findall(r'kind, text = "([a-z-]+)"', source))
    assert len(found) > 20
    assert {kind for kind in found if f"`{kind}`" not in text} == set()
