"""`reef docs`: what goes in comes out, in every form; what is refused is named, and fences nobody."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import reef
from reef.cli.docs import _read_commands
from tests.support.commands import Run, runner
from tests.support.terminal import run_on_terminal
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("no_settings")
NS = "products"
DOCUMENTS: list[dict[str, Any]] = [
    {"id": "a", "title": "apple", "price": 1.5, "tags": ["x", "y"], "vector": [0.1, 0.2, 0.3]},
    {"id": "b", "title": "", "price": 2.0, "tags": [], "vector": [1, 0, 0]},
    {"id": "c", "title": 'a, "quoted"\nline', "meta": {"deep": [1, None]}, "ok": True},
]


@pytest.fixture
def url(
    tmp_path: Path, no_settings: None
) -> str:  # by name: files are written only once it is there
    (tmp_path / "bucket").mkdir()
    return (tmp_path / "bucket").as_uri()


@pytest.fixture
def run(url: str, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs `reef docs`: `run("get", NS, "a")`; returns its code, stdout and stderr."""
    return runner(url, capfdbinary, "docs")


def fine(result: tuple[int, str, str]) -> str:
    code, out, err = result
    assert (code, err) == (0, "")
    return out


def lines(documents: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(document) + "\n" for document in documents)


def write_lines(documents: list[dict[str, Any]], name: str = "in.jsonl") -> str:
    Path(name).write_text(lines(documents), encoding="utf-8")
    return name


def parsed(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def process(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "reef", "docs", *arguments], **options)


# In and out.


def test_json_lines_come_back_as_they_went_in(run: Run) -> None:
    said = fine(run("put", NS, write_lines(DOCUMENTS)))
    assert said.startswith("3 upserted; LSN ")
    assert parsed(fine(run("query", NS, "--format", "jsonl"))) == DOCUMENTS
    assert parsed(fine(run("get", NS, "c", "a"))) == [DOCUMENTS[2], DOCUMENTS[0]]
    fine(run("query", NS, "--output", "out.jsonl"))
    fine(run("put", "copy", "out.jsonl"))
    assert parsed(fine(run("query", "copy", "--format", "jsonl"))) == DOCUMENTS


def test_csv_comes_back_but_for_empty_text(run: Run) -> None:
    fine(run("put", NS, write_lines(DOCUMENTS)))
    fine(run("query", NS, "-o", "out.csv"))
    fine(run("query", NS, "--format", "csv", "-o", "out.jsonl"))
    assert Path("out.csv").read_bytes() == Path("out.jsonl").read_bytes()
    with Path("out.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["title"] for row in rows] == ["apple", "", 'a, "quoted"\nline']
    assert [row["ok"] for row in rows] == ["", "", "true"]
    fine(run("put", "copy", "out.csv"))
    told = [{k: v for k, v in one.items() if v != ""} for one in DOCUMENTS]
    assert parsed(fine(run("query", "copy", "--format", "jsonl"))) == told
    types = json.loads(fine(run("schema", "copy", "--json")))
    assert types == json.loads(fine(run("schema", NS, "--json"))) | {"namespace": "copy"}


def test_every_type_survives_json_lines_and_csv(run: Run) -> None:
    one = {
        "id": "a",
        "n": -5,
        "u": 2**64 - 1,
        "x": 0.1,
        "at": "2024-05-06T07:08:09.123456Z",
        "key": str(uuid.UUID(int=7)),
        "raw": "AP8=",
        "raws": ["AA==", ""],
        "keys": [str(uuid.UUID(int=8))],
        "times": ["2024-01-01T00:00:00Z"],
        "half": [0.5, 0.25],
        "terms": {"indices": [3, 9], "values": [0.5, 1.5]},
        "free": {"a": None},
    }
    types = {
        "n": "int64",
        "u": "uint64",
        "x": "float64",
        "at": "datetime",
        "key": "uuid",
        "raw": "bytes",
        "raws": "[]bytes",
        "keys": "[]uuid",
        "times": "[]datetime",
        "half": "vector[2]f16",
        "terms": "sparse",
        "free": "json",
    }
    declared = [text for name, type in types.items() for text in ("--schema", f"{name}={type}")]
    fine(run("put", NS, write_lines([one]), *declared))
    assert json.loads(fine(run("schema", NS, "--json")))["attributes"] == types
    assert parsed(fine(run("get", NS, "a"))) == [one]
    for format in ("jsonl", "csv"):
        fine(run("query", NS, "--format", format, "-o", f"all.{format}"))
        fine(run("put", f"copy-{format}", f"all.{format}", *declared))
        assert parsed(fine(run("query", f"copy-{format}", "--format", "jsonl"))) == [one]


def test_parquet_goes_in(run: Run, url: str) -> None:
    table = pa.table({"id": ["a", "b"], "n": [1, 2], "none": pa.nulls(2)})
    pq.write_table(table, "in.parquet")
    assert fine(run("put", NS, "in.parquet")).startswith("2 upserted")
    assert parsed(fine(run("query", NS, "--format", "jsonl"))) == [
        {"id": "a", "n": 1},
        {"id": "b", "n": 2},
    ]
    pq.write_table(pa.table({"id": ["c", "d"], "n": ["3", "x"]}), "bad.parquet")
    code, _, err = run("put", NS, "bad.parquet")
    assert code == 1
    assert "row 1, attribute 'n' = '3'" in err


def test_csv_guesses_what_nobody_declared_and_keeps_to_what_is_known(run: Run) -> None:
    Path("in.csv").write_text("id,n,x,zip,ok,day\n1,1,1.5,007,true,\n2,-2,3,1,FALSE,\n")
    fine(run("put", NS, "in.csv", "--schema", "day=datetime"))
    assert json.loads(fine(run("schema", NS, "--json")))["attributes"] == {
        "day": "datetime",
        "n": "int64",
        "x": "float64",
        "zip": "string",
        "ok": "bool",
    }
    Path("in.csv").write_text('id,zip,day\n3,12,2024-01-02\n\n4,"two\nlines",\n5,,maybe\n')
    code, out, err = run("put", NS, "in.csv")
    assert (code, out) == (1, "")
    assert "line 6, attribute 'day' = 'maybe'" in err  # a blank line and a line break before it
    assert fine(run("count", NS)) == "2\n"


@pytest.mark.parametrize("cell", ["00501", "-007", "+4930123456"])
@pytest.mark.parametrize("first", ["10001", "1.5"])
def test_what_may_be_a_name_is_taken_for_a_number_only_if_that_was_declared(
    run: Run, cell: str, first: str
) -> None:
    Path("in.csv").write_text(f"id,zip\na,{first}\nb,{cell}\n")
    code, _, err = run("put", NS, "in.csv", "--batch-size", "1")
    assert code == 1
    assert f"line 3, attribute 'zip' = '{cell}'" in err
    assert "declare by --schema" in err
    assert "1 documents, in 1 batches, were committed" in err
    assert run("put", NS, "in.csv")[0] == 1  # nor because it is a number in the namespace
    Path("patch.csv").write_text(f"id,zip\na,{cell}\n")
    assert run("patch", NS, "patch.csv")[0] == 1
    fine(run("put", "whole", "in.csv"))
    assert parsed(fine(run("query", "whole", "--format", "jsonl")))[1]["zip"] == cell
    fine(run("put", "declared", "in.csv", "--batch-size", "1", "--schema", "zip=string"))
    assert parsed(fine(run("query", "declared", "--format", "jsonl")))[1]["zip"] == cell
    fine(run("put", NS, "in.csv", "--schema", f"zip={'float64' if '.' in first else 'int64'}"))
    assert parsed(fine(run("query", NS, "--format", "jsonl")))[1]["zip"] == int(cell)


def test_a_number_of_csv_that_is_too_large_is_refused_as_in_json(run: Run) -> None:
    Path("in.csv").write_text("id,n\na,1.5\nb,-1e999\n")
    Path("in.jsonl").write_text('{"id": "a", "n": 1.5}\n{"id": "b", "n": -1e999}\n')
    for file, told in (("in.csv", "line 3, attribute 'n' = '-1e999'"), ("in.jsonl", "line 2")):
        code, out, err = run("put", NS, file)
        assert (code, out) == (1, "")
        assert told in err
    Path("in.csv").write_text("id,n\na,1.5\nb,-inf\nc,nan\n")
    fine(run("put", NS, "in.csv", "--schema", "n=float64"))
    assert fine(run("query", NS, "--format", "csv")).split() == ["id,n", "a,1.5", "b,-inf", "c,nan"]
    fine(run("query", NS, "--format", "csv", "-o", "out.csv"))
    fine(run("put", NS, "out.csv"))


def test_a_cell_that_is_no_list_of_base64_is_told_by_its_line(run: Run) -> None:
    for cell in ("[1]", "1", '["!"]'):
        with Path("in.csv").open("w") as file:
            csv.writer(file).writerows([["id", "raws"], ["a", cell]])
        code, out, err = run("put", NS, "in.csv", "--schema", "raws=[]bytes")
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert "line 2, attribute 'raws'" in err


@pytest.mark.slow
def test_stdin_and_stdout_of_real_processes(url: str) -> None:
    put = process("put", url, NS, "-", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    out, _ = put.communicate(lines(DOCUMENTS).encode())
    assert put.returncode == 0
    assert out.startswith(b"3 upserted")
    query = process("query", url, NS, "--format", "csv", "--columns", "price", stdout=-1)
    out, _ = query.communicate()
    rows = list(csv.reader(io.StringIO(out.decode())))
    assert (query.returncode, rows) == (0, [["id", "price"], ["a", "1.5"], ["b", "2.0"], ["c", ""]])
    head = process("query", url, NS, "--format", "jsonl", stdout=-1)
    assert head.stdout is not None
    head.stdout.close()
    assert head.wait() == 0  # whoever reads has seen enough


def test_a_full_output_file_is_one_line_and_leaves_nothing(run: Run) -> None:
    fine(run("put", NS, write_lines(DOCUMENTS)))
    code, out, err = run("query", NS, "--format", "jsonl", "-o", "/dev/full")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "/dev/full could not be written" in err
    code, _, err = run("query", NS, "--output", "no/such/folder/x")
    assert (code, err.count("\n")) == (1, 1)
    Path("kept").write_text("before")
    assert run("query", NS, "--where", "zork = 1", "-o", "kept")[0] == 1
    assert Path("kept").read_text() == "before"
    assert sorted(path.name for path in Path().iterdir()) == ["bucket", "in.jsonl", "kept"]


# Reading.


@pytest.fixture
def some(run: Run) -> None:
    fine(run("put", NS, write_lines([{"id": f"{i:03}", "n": i % 7} for i in range(120)])))


@pytest.mark.usefixtures("some")
def test_queries_have_filters_orders_limits_and_pages(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_read_commands, "_PAGE_ROWS", 8)
    found = fine(run("query", NS, "--where", "n = 3 and id < '030'", "--format", "jsonl"))
    assert [one["id"] for one in parsed(found)] == ["003", "010", "017", "024"]
    ordered = fine(run("query", NS, "--order-by", "n desc, id", "--limit", "2", "--json"))
    page = json.loads(ordered)
    assert [one["id"] for one in page["documents"]] == ["006", "013"]
    more = ["--order-by", "n desc, id", "--limit", "2", "--after", page["after"], "--json"]
    assert [d["id"] for d in json.loads(fine(run("query", NS, *more)))["documents"]] == [
        "020",
        "027",
    ]
    seen: list[str] = []
    after: list[str] = []
    while True:
        page = json.loads(fine(run("query", NS, "--limit", "50", "--json", *after)))
        seen += [one["id"] for one in page["documents"]]
        if page["after"] is None:
            break
        after = ["--after", page["after"]]
        fine(run("delete", NS, "119"))  # pages are of one version
    assert seen == [f"{i:03}" for i in range(120)]
    rest = fine(run("query", NS, "--format", "jsonl", *after))
    assert [one["id"] for one in parsed(rest)] == seen[100:]


@pytest.mark.usefixtures("some")
def test_a_table_shows_the_first_and_says_how_to_go_on(run: Run) -> None:
    code, out, err = run("query", NS)
    assert code == 0
    assert "│ 000 │ 0 │" in out
    assert "│ 049 │" in out
    assert "│ 050 │" not in out
    token = err.removeprefix("reef: more documents follow: --after ").strip()
    assert "│ 050 │" in run("query", NS, "--after", token)[1]
    code, out, err = run("sql", NS, "select id from docs order by id")
    assert (code, err) == (0, "reef: 70 more rows; --format jsonl or csv prints all\n")
    assert "│ 049 │" in out


def test_vectors_are_searched_and_left_out_of_tables(run: Run) -> None:
    fine(run("put", NS, write_lines(DOCUMENTS)))
    found = parsed(
        fine(run("query", NS, "--vector", "[1,0,0]", "--metric", "l2", "--format", "jsonl"))
    )
    assert [(one["id"], round(one["_distance"], 4)) for one in found] == [("b", 0.0), ("a", 0.9695)]
    out = fine(run("query", NS, "--vector", "[1,0,0]", "--limit", "1"))
    assert "_distance" in out
    assert "vector" not in out
    out = fine(run("query", NS, "--columns", "vector", "--where", "id = 'b'"))
    assert "[1,0,0]" in out
    code, _, err = run("query", NS, "--vector", "[1,0]")
    assert (code, err.count("\n")) == (1, 1)


def test_the_past_stays_readable(run: Run, url: str) -> None:
    first = json.loads(fine(run("put", NS, write_lines(DOCUMENTS), "--json")))
    with reef.connect(url) as db, db.namespace(NS, mode="r") as ns:
        taken = ns.snapshot(None, id="then")
        assert taken.lsn == first["lsn"]
    fine(run("delete", NS, "a", "b"))
    assert fine(run("count", NS)) == "1\n"
    for then in (["--lsn", str(first["lsn"])], ["--at", str(first["lsn"])]):
        assert fine(run("count", NS, *then)) == "3\n"
    assert parsed(fine(run("get", NS, "a", "--snapshot", "then"))) == DOCUMENTS[:1]
    assert len(parsed(fine(run("query", NS, "--snapshot", "then", "--format", "jsonl")))) == 3
    counted = fine(run("sql", NS, "select count(*) as n from docs", "--snapshot", "then", "--json"))
    assert json.loads(counted)["rows"] == [{"n": 3}]


def test_what_is_not_there_is_told(run: Run) -> None:
    fine(run("put", NS, write_lines(DOCUMENTS)))
    code, out, err = run("get", NS, "zz", "a", "--columns", "price")
    assert (code, parsed(out)) == (2, [{"id": "a", "price": 1.5}])
    assert err == "reef: document 'zz' does not exist\n"
    code, out, _ = run("get", NS, "zz", "a", "--columns", "price", "--json")
    assert (code, json.loads(out)) == (2, {"documents": [None, {"id": "a", "price": 1.5}]})
    assert run("count", "elsewhere")[0] == 2


def test_sql_gives_rows_with_their_nulls(run: Run) -> None:
    fine(run("put", NS, write_lines(DOCUMENTS)))
    select = "select title, price, sum(price) over () as s from docs order by id desc limit 2"
    assert json.loads(fine(run("sql", NS, select, "--json")))["rows"] == [
        {"title": 'a, "quoted"\nline', "price": None, "s": 3.5},
        {"title": "", "price": 2.0, "s": 3.5},
    ]
    code, out, err = run("sql", NS, "drop table docs")
    assert (code, out, err.count("\n")) == (1, "", 1)


def test_dates_and_times_of_sql_have_no_quotes_in_csv_and_tables(run: Run) -> None:
    fine(run("put", NS, write_lines(DOCUMENTS)))
    select = "select date '2020-01-02' as d, time '10:11' as t, timestamp '2020-01-02 10:11' as ts"
    shown = ["2020-01-02", "10:11:00", "2020-01-02T10:11:00"]
    assert fine(run("sql", NS, select, "--format", "csv")).split() == ["d,t,ts", ",".join(shown)]
    table = fine(run("sql", NS, select, "--format", "table"))
    assert all(f" {text} " in table for text in shown)


# Writing.


def test_patches_change_what_is_there(run: Run) -> None:
    fine(run("put", NS, write_lines(DOCUMENTS)))
    patches = [{"id": "a", "price": 9, "title": None}, {"id": "zz", "price": 1}]
    code, out, err = run("patch", NS, write_lines(patches))
    assert (code, out) == (2, "")
    assert err.startswith("reef: line 2 (missing)")
    assert "no documents were committed" in err
    assert fine(run("patch", NS, "in.jsonl", "--skip")).startswith("1 patched, 1 left out")
    (found,) = parsed(fine(run("get", NS, "a")))
    assert found == {k: v for k, v in DOCUMENTS[0].items() if k != "title"} | {"price": 9.0}
    Path("p.csv").write_text("id,price,ok\nb,,true\nc,4,\n")
    fine(run("patch", NS, "p.csv"))
    told = parsed(fine(run("get", NS, "b", "c", "--columns", "price,ok")))
    assert told == [{"id": "b", "price": 2.0, "ok": True}, {"id": "c", "price": 4.0, "ok": True}]
    changed = fine(run("patch", NS, "--where", "price >= 4", "--set", '{"ok": null}'))
    assert changed.startswith("2 patched")
    assert fine(run("count", NS, "--where", "ok")) == "1\n"
    assert run("patch", "elsewhere", "p.csv")[0] == 2
    assert not Path("bucket/namespaces/elsewhere").exists()


def test_deletes_by_id_by_list_and_by_filter(run: Run) -> None:
    fine(run("put", NS, write_lines([{"id": f"{i}", "n": i} for i in range(10)])))
    assert fine(run("delete", NS, "0", "1", "nobody")).startswith("3 deleted")
    Path("ids").write_text("2\n3\n\n4\n")
    report = json.loads(fine(run("delete", NS, "--file", "ids", "--batch-size", "2", "--json")))
    assert (report["deleted"], report["batches"]) == (3, 2)
    assert fine(run("delete", NS, "--where", "n > 7")).startswith("2 deleted")
    found = parsed(fine(run("query", NS, "--format", "jsonl")))
    assert [one["n"] for one in found] == [5, 6, 7]


def test_conditions_hold_for_each_document(run: Run) -> None:
    fine(run("put", NS, write_lines([{"id": "a", "v": 1}, {"id": "b", "v": 5}])))
    newer = write_lines([{"id": "a", "v": 2}, {"id": "b", "v": 4}, {"id": "c", "v": 1}])
    assert run("put", NS, newer, "--create-only")[0] == 2
    made = json.loads(fine(run("put", NS, newer, "--create-only", "--skip", "--json")))
    assert (made["upserted"], made["skipped"]) == (1, 2)
    condition = ["--condition", "v < incoming.v", "--skip"]
    made = json.loads(fine(run("put", NS, newer, *condition, "--json")))
    assert (made["upserted"], made["skipped"]) == (1, 2)
    found = parsed(fine(run("query", NS, "--format", "jsonl")))
    assert [one["v"] for one in found] == [2, 5, 1]


def test_inspect_log_shows_conditions_in_the_names_of_attributes(
    run: Run, url: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    fine(run("put", NS, write_lines([{"id": "a", "price": 1, "old": 2}])))
    condition = ["--condition", "price < incoming.price and not old > 7 and id <> 'x'", "--skip"]
    fine(run("put", NS, write_lines([{"id": "a", "price": 3, "old": 3}]), *condition))
    fine(run("schema", NS, "--rename", "price=cost", "--drop", "old"))
    inspect = runner(url, capfdbinary)
    found = [inspect("inspect", NS, "log", str(slot))[1] for slot in range(1, 7)]
    (text,) = [out for out in found if "incoming" in out]
    assert '(cost Lt "incoming.cost")' in text
    assert "(since dropped)" in text
    assert '(not (id Eq "x"))' in text


def test_the_line_that_is_refused_is_named_also_if_an_id_comes_again(run: Run) -> None:
    fine(run("put", NS, write_lines([{"id": "a"}])))
    again = write_lines([{"id": "p"}, {"id": "p"}, {"id": "a"}])
    code, _, err = run("put", NS, again, "--create-only")
    assert (code, "line 3 (exists)" in err) == (2, True), err
    patches = write_lines([{"id": "gone", "f": 1}, {"id": "a", "f": 1}, {"id": "gone", "f": 2}])
    code, _, err = run("patch", NS, patches)
    assert (code, "line 3 (missing)" in err) == (2, True), err


def test_the_schema_is_shown_and_altered(run: Run) -> None:
    fine(run("put", NS, write_lines(DOCUMENTS)))
    assert "vector[3]" in fine(run("schema", NS))
    altered = ["--add", "n=int64", "--rename", "title=name", "--drop", "meta", "--drop", "ok"]
    found = json.loads(fine(run("schema", NS, *altered, "--json")))["attributes"]
    assert list(found) == ["name", "price", "tags", "vector", "n"]
    assert parsed(fine(run("get", NS, "a", "--columns", "name"))) == [{"id": "a", "name": "apple"}]


def until_counted(run: Run, put: subprocess.Popen[bytes], number: int) -> None:
    """Return when a command that runs has committed so many documents."""

    def is_counted() -> bool:
        assert put.poll() is None
        return run("count", NS)[1] == f"{number}\n"

    until(is_counted, f"{number} documents")


def test_a_rerun_after_kill_9_writes_nothing_twice(run: Run, url: str) -> None:
    documents = [{"id": f"{i:02}", "n": i, **({"late": i} if i > 5 else {})} for i in range(9)]
    batches = ["--batch-size", "2", "--idempotency-prefix", "import-1", "--json"]
    started = process(
        "put", url, NS, "-", *batches, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert started.stdin is not None
    started.stdin.write(lines(documents[:7]).encode())  # three whole batches, and a part of one
    started.stdin.flush()
    until_counted(run, started, 6)
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    started.stdin.close()
    with reef.connect(url) as db, db.namespace(NS, mode="r") as ns:
        before = ns.lsn
    whole = write_lines(documents)
    report = json.loads(fine(run("put", NS, whole, *batches)))
    assert (report["batches"], report["replayed"]) == (5, 3)
    assert report["lsn"] > before
    assert parsed(fine(run("query", NS, "--format", "jsonl"))) == documents
    again = json.loads(fine(run("put", NS, whole, *batches)))
    assert (again["replayed"], again["lsn"]) == (5, report["lsn"])
    changed = write_lines([{**one, "n": 0} for one in documents])
    code, _, err = run("put", NS, changed, *batches)
    assert (code, err.count("\n")) == (1, 1)
    assert "--idempotency-prefix" in err


def test_ctrl_c_says_what_was_committed(run: Run, url: str) -> None:
    started = process(
        "put", url, NS, "-", "--batch-size", "2", stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert started.stdin is not None
    started.stdin.write(lines([{"id": f"{i}"} for i in range(5)]).encode())
    started.stdin.flush()
    until_counted(run, started, 4)
    # More than a pipe holds: when it is written, the command has come back from its second batch.
    started.stdin.write(b'{"id": "' + bytes(1 << 20))
    started.stdin.flush()
    started.send_signal(signal.SIGINT)
    _, err = started.communicate()
    wanted = b"reef: 4 documents, in 2 batches, were committed\nreef: interrupted\n"
    assert (started.returncode, err) == (130, wanted)


def test_progress_is_shown_on_a_terminal(url: str) -> None:
    command = [
        sys.executable,
        "-m",
        "reef",
        "docs",
        "put",
        url,
        NS,
        write_lines(DOCUMENTS),
        "--json",
    ]
    ran = run_on_terminal(command)
    assert (ran.code, json.loads(ran.out)["upserted"]) == (0, 3)
    assert b"3 documents" in ran.shown


def test_input_of_any_size_takes_batches_of_bounded_size(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REEF_LOG_SEGMENT_MAX_BYTES", "64KiB")
    documents = [{"id": f"{i:04}", "text": "x" * 1000} for i in range(200)]
    report = json.loads(fine(run("put", NS, write_lines(documents), "--json")))
    assert report["upserted"] == 200
    assert 12 <= report["batches"] <= 16


BAD_LINES = [
    ('{"id": "c", "n": "x"}', "line 3, attribute 'n' = 'x'"),
    ('{"id": "c", "n": 1.5}', "line 3, attribute 'n' = 1.5"),
    ('{"id": 3}', "line 3, attribute 'id'"),
    ('{"n": 3}', "line 3, attribute 'id'"),
    ('{"id": ""}', "line 3, attribute 'id' = ''"),
    ('{"id": "\\u0007"}', "line 3, attribute 'id'"),
    ("[1]", "line 3: expected a JSON object"),
    ('{"id": "c"', "line 3 is not JSON"),
    ('{"id": "c", "v": [1, 2]}', "line 3, attribute 'v'"),
]


@pytest.mark.parametrize(("line", "says"), BAD_LINES)
def test_a_bad_line_is_named_with_what_was_committed_before(run: Run, line: str, says: str) -> None:
    fine(run("schema", NS, "--add", "n=int64", "--add", "v=vector[3]"))
    Path("in.jsonl").write_text(
        f'{{"id": "a", "n": 1}}\n{{"id": "b", "n": 2}}\n{line}\n{{"id":"z"}}\n'
    )
    code, out, err = run("put", NS, "in.jsonl")  # one batch
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert says in err
    assert "no documents were committed" in err
    assert fine(run("count", NS)) == "0\n"
    code, out, err = run("put", NS, "in.jsonl", "--batch-size", "2")
    assert (code, out) == (1, "")
    assert says in err
    assert "nothing of its batch was written; 2 documents, in 1 batches, were committed" in err
    assert fine(run("count", NS)) == "2\n"


# Refused before anybody is fenced.

REFUSED = [
    ("put", ["no-such-file.jsonl"], "cannot be read"),
    ("put", ["in.xyz"], "--input-format"),
    ("put", ["in.jsonl", "--input-format", "xml"], "--input-format = 'xml'"),
    ("put", ["-", "--input-format", "parquet"], "Parquet cannot be read from stdin"),
    ("put", ["bad.jsonl"], "line 1 is not JSON"),
    ("put", ["bad.csv"], "with 'id' among them"),
    ("put", ["short.csv"], "line 2: expected 2 cells"),
    ("put", ["utf.jsonl"], "line 1 is not UTF-8"),
    ("put", ["bad.jsonl", "--input-format", "parquet"], "a readable Parquet file"),
    ("put", ["in.jsonl", "--schema", "a"], "NAME=VALUE"),
    ("put", ["in.jsonl", "--schema", "a=int32"], "type = 'int32'"),
    ("put", ["in.jsonl", "--schema", "id=string"], "attribute = 'id'"),
    ("put", ["in.jsonl", "--idempotency-prefix", ""], "--idempotency-prefix = ''"),
    ("put", ["in.jsonl", "--idempotency-prefix", "k" * 481], "has 481 bytes"),
    ("put", ["in.jsonl", "--batch-size", "0"], "--batch-size"),
    ("put", ["in.jsonl", "--create-only", "--condition", "n > 1"], "at most one"),
    ("put", ["in.jsonl", "--skip"], "--skip"),
    ("patch", [], "either FILE, or --where"),
    ("patch", ["--where", "n > 1"], "either FILE, or --where"),
    ("patch", ["--where", "n >", "--set", "{}"], "expected"),
    ("patch", ["--where", "n > 1", "--set", "{"], "--set = '{'"),
    ("delete", [], "give one of ID"),
    ("delete", ["a", "--where", "n > 1"], "give one of ID"),
    ("delete", ["--where", "zork = 1"], "the attributes are: n"),
    ("delete", ["--file", "no-such-file"], "cannot be read"),
    ("schema", ["--add", "n=int64"], "exists already"),
    ("schema", ["--add", "m=int32"], "type = 'int32'"),
    ("schema", ["--rename", "x=y"], "the attributes are: n"),
    ("schema", ["--drop", "x"], "the attributes are: n"),
    ("get", ["a", "--format", "xml"], "--format = 'xml'"),
    ("get", ["a", "--columns", "zork"], "'zork'"),
    ("query", ["--format", "parquet"], "--format = 'parquet'"),
    ("query", ["--limit", "0"], "--limit"),
    ("query", ["--limit", "1001"], "expected at most 1000 rows"),
    ("query", ["--vector", "x"], "--vector = 'x'"),
    ("query", ["--vector", "1"], "a JSON list of numbers"),
    ("query", ["--vector-column", "v"], "is given without --vector"),
    ("query", ["--metric", "l2"], "--metric is given without --vector"),
    ("query", ["--after", "zork"], "does not come from a query"),
    ("query", ["--order-by", "zork desc"], "'zork'"),
    ("query", ["--lsn", "1", "--snapshot", "s"], "one of lsn, generation"),
    ("sql", ["select zork from docs"], "zork"),
]


@pytest.mark.parametrize(("command", "arguments", "says"), REFUSED)
def test_what_is_refused_is_one_line_and_fences_nobody(
    run: Run, url: str, command: str, arguments: list[str], says: str
) -> None:
    write_lines([{"id": "a", "n": 1}])
    Path("in.xyz").write_text("")
    Path("bad.jsonl").write_text("zork\n")
    Path("bad.csv").write_text("a,b\n1,2\n")
    Path("short.csv").write_text("id,b\n1\n")
    Path("utf.jsonl").write_bytes(b'{"id": "\xff"}\n')
    with reef.connect(url) as db, db.namespace(NS, schema={"n": "int64"}) as ns:
        code, out, err = run(command, NS, *arguments)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert says in err
        ns.upsert([{"id": "mine", "n": 1}])  # would be a FencedError


def test_an_empty_file_writes_nothing_and_makes_no_namespace(run: Run) -> None:
    Path("in.jsonl").write_text("\n\n")
    assert fine(run("put", NS, "in.jsonl")) == "no documents came in; nothing was written\n"
    assert not Path("bucket/namespaces").exists()
    code, _, err = run("query", NS)
    assert (code, err.count("\n")) == (2, 1)


def test_keys_and_values_are_no_documents(run: Run, url: str) -> None:
    with reef.connect(url) as db, db.kv("plain") as kv:
        kv.put(b"a", b"b")
    for command in (["count", "plain"], ["put", "plain", write_lines(DOCUMENTS)]):
        code, out, err = run(*command)
        assert (code, out, err.count("\n")) == (1, "", 1)


def test_whole_numbers_of_csv_keep_their_digits(run: Run) -> None:
    most = 2**64 - 1
    Path("in.csv").write_text(f"id,fits,huge\na,{most},{most + 1}\nb,1,2\n")
    fine(run("put", NS, "in.csv"))
    assert json.loads(fine(run("get", NS, "a"))) == {
        "id": "a",
        "fits": most,
        "huge": str(most + 1),
    }
    least, most = -(2**63), 2**63 - 1
    Path("in.csv").write_text(f"id,signed,low\na,{least},{least - 1}\nb,{most},1\n")
    fine(run("put", "signed", "in.csv"))
    assert json.loads(fine(run("get", "signed", "a"))) == {
        "id": "a",
        "signed": least,
        "low": str(least - 1),
    }


def test_sql_has_limits(run: Run) -> None:
    fine(run("put", NS, write_lines(DOCUMENTS)))
    endless = "select count(*) from docs, range(20_000_000_000) t(i) where i % 7 = 3"
    code, out, err = run("sql", NS, endless, "--timeout", "100ms")
    assert (code, out) == (1, "")
    assert err.startswith("reef: the query took longer than timeout = 0.1 s")
    large = "select repeat('x', 1000) as x from docs, range(2_000)"
    assert run("sql", NS, large, "--memory-limit", "1MiB")[2].count("memory_limit = 1MiB") == 1
    enough = ("--memory-limit", "64MiB", "--timeout", "1h", "--format", "csv")
    assert fine(run("sql", NS, large, *enough)).count("\n") == 6001
