"""The commands of the pipeline that need no Spark: plans, jobs that stand, and how far a pass is."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import reef
from reef import cli
from reef.cli.pipeline._run_pass import watched
from reef.format import manifest_key
from reef.jobs import CompactionOptions, InProcess, Job, PassProgress, compact, standing_intents
from reef.testing import ManualClock
from tests.support.commands import runner
from tests.support.terminal import run_on_terminal

pytestmark = pytest.mark.usefixtures("no_settings")
Run = Callable[..., tuple[int, Any, str]]
HOUR_US = 3_600_000_000


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A bucket of three namespaces, the first of them folded."""
    url = f"file://{tmp_path}/bucket?fsync=off"
    with reef.connect(url) as db:
        for name in ("a", "b", "c"):
            with db.kv(name) as kv:
                kv.write(puts={b"%d" % key: name.encode() for key in range(20)})
                if name == "a":
                    kv.flush()
    return url


@pytest.fixture
def run(url: str, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs a command and returns its code, its JSON or its text, and what it said on stderr."""
    plain = runner(url, capfdbinary)

    def call(command: str, *arguments: str) -> tuple[int, Any, str]:
        code, out, err = plain(command, *arguments)
        return code, json.loads(out) if out and "--json" in arguments else out, err

    return call


def keys(url: str) -> list[str]:
    with reef.connect(url) as db:
        return [meta.key for meta in db.store.list("")]


# rebuild.


def test_the_plan_of_a_rebuild(run: Run, url: str) -> None:
    before = keys(url)
    code, said, _ = run("rebuild", "--all", "--dry-run", "--json")
    assert (code, said["pass"], said["dry_run"], said["failed"]) == (0, "rebuild", True, {})
    first, second, third = said["namespaces"]
    assert (first["slot_first"], first["tasks"], first["replaced"], first["kept"]) == (1, 1, 1, 0)
    assert first["bytes"] > 0
    assert (second["slot_first"], third["slot_first"]) == (None, None)
    code, text, _ = run("rebuild", "a", "--dry-run")
    assert "1 of 1 namespaces would be rebuilt" in text
    code, said, _ = run("rebuild", "nobody", "--dry-run", "--json")
    assert (code, [*said["failed"]]) == (2, ["nobody"])
    assert keys(url) == before


def test_a_sick_namespace_is_reported_and_the_others_are_rebuilt(run: Run, url: str) -> None:
    with reef.connect(url) as db:
        head = db.context().chain("b").load()
        assert head is not None
    bucket = Path(url.removeprefix("file://").partition("?")[0])
    path = bucket / manifest_key("b", head.generation)
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-20])
    code, said, _ = run("rebuild", "--all", "--in-process", "--json")
    assert code == 2
    assert [one["state"] for one in said["namespaces"]] == ["done", "failed", "idle"]
    assert "reef repair" in said["namespaces"][1]["error"]


# compact, and plans of it that are kept.


def test_a_plan_that_cannot_be_kept(run: Run, url: str) -> None:
    two = ("--min-input-files", "2", "--dry-run", "--save-plan")
    for as_json in ((), ("--json",)):
        code, said, _ = run("compact", "nobody", *two, "p.json", *as_json)
        assert (code, "nobody" in str(said)) == (2, True)
        code, said, _ = run("compact", "b", *two, "p.json", *as_json)
        assert code == 0
        assert said["plans"] == [] if as_json else "no plan was written" in said
    again(url, "a")
    code, _, err = run("compact", "a", *two, "none/p.json")
    assert (code, err.count("\n")) == (1, 1)
    assert "none/p.json" in err
    assert not Path("p.json").exists()


def test_a_plan_that_was_kept_is_shown_and_told_when_it_is_stale(run: Run, url: str) -> None:
    again(url, "a")
    options = ("--min-input-files", "2")
    assert run("compact", "a", *options, "--dry-run", "--save-plan", "p.json")[0] == 0
    again(url, "a")
    code, said, err = run("compact", "a", "--plan", "p.json", "--dry-run", "--json")
    assert (code, err) == (0, "")
    assert len(said["plans"][0]["groups"][0]["inputs"]) == 2  # not the three that there are now
    assert run("compact", "a", *options, "--in-process")[0] == 0
    for more in (("--dry-run",), ("--in-process",), ("--in-process", "--json")):
        code, _, err = run("compact", "a", "--plan", "p.json", *more)
        assert code == 0
        assert "the plan is stale" in err
    again(url, "a")
    assert run("compact", "a", *options, "--dry-run", "--save-plan", "r.json")[0] == 0
    assert run("compact", "a", *options, "--start", "1", "--end", "2", "--in-process")[0] == 0
    for more in (("--dry-run",), ("--in-process",)):  # segments of the plan are clipped now
        code, _, err = run("compact", "a", "--plan", "r.json", *more)
        assert (code, "the plan is stale" in err) == (0, True)
    code, _, err = run("compact", "a", "--plan", "p.json", "--dry-run", "--save-plan", "q.json")
    assert (code, "without --plan" in err) == (1, True)


def again(url: str, name: str) -> None:
    """Give a namespace another segment over the same keys."""
    with reef.connect(url) as db, db.kv(name) as kv:
        kv.write(puts={b"%d" % key: b"more" for key in range(20)})
        kv.flush()


# worker.


def test_a_worker_of_one_round_says_what_failed(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    once = ("--once", "--in-process", "--min-slots", "1")
    assert run("worker", *once)[0] == 0
    code, _, err = run("worker", "nobody", *once)
    assert (code, "nobody" in err) == (2, True)


def test_a_folder_that_is_not_there_is_no_empty_bucket(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for command in (["worker", "--once", "--in-process"], ["jobs", "list"], ["jobs", "show", "x"]):
        name, *rest = command
        words = [name, rest.pop(0)] if name == "jobs" else [name]
        assert cli.run([*words, f"file://{tmp_path}/none", *rest]) == 1
        assert "does not exist" in capfd.readouterr().err
    assert not (tmp_path / "none").exists()


# ingest and export.


def test_an_address_of_files_is_taken_as_spark_does(run: Run, tmp_path: Path) -> None:
    for name in ("a b.csv", "a%20b.csv"):
        (tmp_path / name).write_text("id\n")
    _, said, _ = run("ingest", "docs", f"file://{tmp_path}/a%20b.csv", "--dry-run", "--json")
    assert said["files"] == [f"{tmp_path}/a%20b.csv"]


def test_plans_of_a_branch(run: Run, url: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "x", "n": 1}\n')
    with reef.connect(url) as db, db.namespace("docs", schema={"n": "int64"}) as ns:
        ns.upsert([{"id": "x", "n": 1}])
        ns.branch("dev")
    code, said, _ = run("export", "docs@dev", f"{tmp_path}/out", "--dry-run", "--json")
    assert (code, said["namespace"], said["columns"]) == (0, "docs@dev", ["id", "n"])
    code, said, _ = run("ingest", "docs@dev", f"{tmp_path}/a.jsonl", "--dry-run", "--json")
    assert (code, said["namespace"], said["attributes"]) == (0, "docs@dev", {"n": "int64"})
    code, _, err = run("ingest", "docs@none", f"{tmp_path}/a.jsonl", "--dry-run")
    assert code != 0
    assert "no branch 'none'" in err


def test_an_export_counts_a_segment_once_however_often_it_is_referred_to(
    run: Run, url: str, tmp_path: Path
) -> None:
    with reef.connect(url, row_block_bytes=200) as db:
        with db.kv("b") as kv:
            for _ in range(2):
                kv.write(puts={b"%03d" % key: b"v" * 20 for key in range(300)})
                kv.flush()
        context = db.context()
        some = CompactionOptions(
            min_input_files=2, target_size_bytes=2000, start=b"100", end=b"200"
        )
        compact(db, "b", runner=InProcess(context), options=some)
        refs = context.chain("b").load().manifest.segments  # type: ignore[union-attr]
    whole = {ref.id: ref for ref in refs}.values()
    assert len(whole) < len(refs)
    _, said, _ = run("export", "b", f"{tmp_path}/out", "--dry-run", "--json")
    assert said["bytes"] == sum(ref.size for ref in whole)
    assert said["rows"] == sum(ref.rows for ref in whole)


def test_the_plan_of_a_load(run: Run, url: str, tmp_path: Path) -> None:
    before = keys(url)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "_SUCCESS").write_text("")
    (tmp_path / "in" / "a.csv").write_text("name,n\nx,1\n")
    (tmp_path / "in" / "b.csv").write_text("name,n\ny,2\n")
    files = ["docs", f"{tmp_path}/in", "--format", "csv", "--id", "name"]
    code, said, _ = run("ingest", *files, "--dry-run", "--json")
    assert code == 0
    assert said["dry_run"] is True
    assert [Path(file).name for file in said["files"]] == ["a.csv", "b.csv"]
    assert (said["bytes"], said["unlisted"], said["columns"]) == (22, [], ["name", "n"])
    assert (said["operation"], said["method"], said["attributes"]) == ("upsert", "log", None)
    assert run("ingest", *files, "--method", "bulk", "--dry-run", "--json")[1]["method"] == "bulk"
    code, text, _ = run("ingest", *files, "--dry-run")
    assert "nothing was loaded" in text
    code, said, _ = run("ingest", "docs", "s3a://far/x.csv", "--dry-run", "--json")
    assert (said["unlisted"], said["columns"], said["method"]) == (
        ["s3a://far/x.csv"],
        None,
        "bulk",
    )
    for wrong in (
        ["docs", f"{tmp_path}/in/*.csv", "--id", "key"],
        ["docs", f"{tmp_path}/in/none.csv"],
        ["docs", f"{tmp_path}/*.csv"],
        ["a", f"{tmp_path}/in/*.csv", "--id", "name"],  # of keys and values
    ):
        assert run("ingest", *wrong, "--dry-run")[0] == 1, wrong
    assert keys(url) == before


def test_the_columns_of_a_plan_are_those_of_the_first_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1, "x": {"y": 2}}\n{"id": 2}\n')
    _, said, _ = run("ingest", "docs", f"{tmp_path}/a.jsonl", "--dry-run", "--json")
    assert said["columns"] == ["id", "x"]
    pq.write_table(pa.table({"id": ["a"], "n": [1]}), tmp_path / "a.parquet")
    _, said, _ = run("ingest", "docs", f"file://{tmp_path}/a.parquet", "--dry-run", "--json")
    assert said["columns"] == ["id", "n"]
    (tmp_path / "a.parquet").write_text("none")
    assert run("ingest", "docs", f"{tmp_path}/a.parquet", "--dry-run")[0] == 1


def test_the_plan_of_an_export(run: Run, url: str, tmp_path: Path) -> None:
    before = keys(url)
    code, said, _ = run("export", "a", f"{tmp_path}/out", "--dry-run", "--json")
    assert code == 0
    assert (said["rows"], said["partitions"], said["format"]) == (20, 1, "parquet")
    assert said["bytes"] > 0
    assert said["columns"] == ["key", "value"]
    code, said, _ = run("export", "a", "out", "--columns", "key", "--dry-run", "--json")
    assert said["columns"] == ["key"]
    code, text, _ = run("export", "a", "out", "--dry-run", "--format", "csv")
    assert "20 rows at most" in text
    assert run("export", "a", "out", "--dry-run", "--columns", "id")[0] == 1
    assert run("export", "a", "out", "--dry-run", "--where", "n = 1")[0] == 1
    assert run("export", "nobody", "out", "--dry-run")[0] == 2
    assert not (tmp_path / "out").exists()
    assert keys(url) == before


# jobs end.


def stand(url: str, name: str, *, hours: float = 0) -> str:
    """Leave a job in a manifest, that old by its own clock."""
    with reef.connect(url) as db:
        clock = ManualClock(db.context().clock.now_us() - round(hours * HOUR_US))
    with reef.connect(url, clock=clock) as db:
        return Job.begin(db.context(), name, "index").id


def age(url: str, name: str, *, hours: float) -> None:
    """Make every generation of a namespace that old by the store's clock."""
    folder = Path(url.removeprefix("file://").partition("?")[0]) / f"namespaces/{name}/manifest"
    for path in folder.iterdir():
        then = path.stat().st_mtime - hours * 3600
        os.utime(path, (then, then))


def standing(url: str, name: str) -> list[str]:
    with reef.connect(url) as db:
        return [intent.id for intent in standing_intents(db.context(), name)]


def test_several_jobs_are_ended_by_their_ids(run: Run, url: str) -> None:
    ids = [stand(url, "a") for _ in range(3)]
    code, said, _ = run("jobs end", "a", ids[0], ids[1], "--json")
    assert code == 0
    assert [one["job"] for one in said["ended"]] == ids[:2]
    assert standing(url, "a") == ids[2:]
    code, said, _ = run("jobs end", "a", ids[0], ids[2], "--json")
    assert (code, [*said["failed"]]) == (2, [ids[0]])
    assert standing(url, "a") == []
    code, _, err = run("jobs end", "a", ids[2])
    assert code == 2
    assert ids[2] in err


def test_jobs_of_a_certain_age_are_ended(run: Run, url: str) -> None:
    old = [stand(url, "a", hours=30), stand(url, "b", hours=30)]
    age(url, "a", hours=30)
    age(url, "b", hours=30)
    young = stand(url, "a")
    code, said, _ = run("jobs end", "a", "--all-older-than", "2d", "--json")
    assert (code, said) == (0, {"ended": [], "failed": {}})
    code, said, _ = run("jobs end", "--all", "--all-older-than", "1d", "--json")
    assert code == 0
    assert [(one["namespace"], one["job"]) for one in said["ended"]] == [
        ("a", old[0]),
        ("b", old[1]),
    ]
    assert (standing(url, "a"), standing(url, "b")) == ([young], [])


def test_a_job_is_as_young_as_its_own_clock_or_the_store_says(run: Run, url: str) -> None:
    behind = stand(url, "a", hours=30)  # by a clock that is behind: the store knows better
    ahead = stand(url, "b")
    age(url, "b", hours=30)
    code, said, _ = run("jobs end", "--all", "--all-older-than", "1d", "--json")
    assert (code, said["ended"]) == (0, [])
    assert (standing(url, "a"), standing(url, "b")) == ([behind], [ahead])


@pytest.mark.parametrize(
    "arguments",
    [
        ("a",),
        ("a", "index-1", "--all-older-than", "1d"),
        ("a", "index-1", "--all"),
        ("a", "--all", "--all-older-than", "1d"),
        ("--all-older-than", "1d"),
        ("a", "--all-older-than", "long"),
    ],
)
def test_what_jobs_to_end_must_be_said(run: Run, arguments: tuple[str, ...]) -> None:
    assert run("jobs end", *arguments)[0] == 1


# How far it is.


@pytest.mark.parametrize(
    ("seen", "line"),
    [
        (
            PassProgress(1, 4, 0, 0, 0, 64, namespaces_known=256),
            "1 of 4 tasks, 64 of 256 namespaces",
        ),
        (
            PassProgress(1, 4, 1024, 4096, 0, 2),
            "1 of 4 tasks, 1.0 KiB of 4.0 KiB, 2 namespaces done",
        ),
        (PassProgress(1, 4, 0, 0, 7, 0, 0, 5, 20), "1 of 4 tasks, 5 of 20 objects, 7 rows"),
        (PassProgress(1, 4, 0, 0, 0, 0), "1 of 4 tasks"),
    ],
)
def test_lines_tell_of_what_is_known(
    seen: PassProgress, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = ManualClock()
    with watched("verify", clock) as watch:
        watch(seen)
        clock.advance(20)
        watch(seen)
    assert capsys.readouterr().err == f"verify: {line}, about 60 s left\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (
            ["rebuild", "--all", "--in-process"],
            rb"rebuild.*1/1 *tasks *[0-9.]+ KiB of [0-9.]+ KiB, 20 rows",
        ),
        (["verify", "--all", "--deep", "--in-process"], rb"verify.*3/3 *tasks *3 of 3 namespaces"),
        (["gc", "--all"], rb"gc.*3/3 *tasks *3 of 3 namespaces"),
    ],
)
def test_a_terminal_has_a_bar_with_what_is_known(
    url: str, arguments: list[str], shown: bytes
) -> None:
    command = [sys.executable, "-m", "reef", arguments[0], url, *arguments[1:], "--json"]
    ran = run_on_terminal(command, COLUMNS="200")
    assert ran.code == 0
    assert re.search(shown, re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", ran.shown)), ran.shown
