"""Files into a namespace and out of it again: `reef ingest` and `reef export`."""

from __future__ import annotations

import csv
import datetime as dt
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

import reef
from reef import cli
from reef.errors import InvalidInputError, NotFoundError
from reef.jobs import Bucket, PassProgress
from reef.spark import register
from reef.spark.files._export import export
from reef.spark.files._ingest import ingest
from reef.spark.files._ingest_files import Files
from reef.spark.files._ingest_read import read_csv
from reef.spark.files._input_format import input_format
from reef.spark.files._output_format import output_format

Run = Callable[..., Any]


@pytest.fixture(scope="module", autouse=True)
def registered(spark: SparkSession) -> None:
    register(spark)
    spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: object) -> Any:
        capfd.readouterr()
        code = cli.run([str(one) for one in arguments])
        sys.stdout.flush()
        out, err = capfd.readouterr()
        assert code == 0, err
        return json.loads(out) if "--json" in arguments else out

    return run


def content(bucket: Bucket, name: str = "ns") -> dict[str, dict[str, Any]]:
    with reef.connect(bucket.url) as db, db.namespace(name, mode="r") as ns:
        return {row.pop("id"): row for batch in ns.scan() for row in batch.to_pylist()}


def schema(bucket: Bucket, name: str = "ns") -> dict[str, str]:
    with reef.connect(bucket.url) as db, db.namespace(name, mode="r") as ns:
        return ns.schema


@pytest.mark.parametrize(
    ("file", "format"),
    [
        ("a.parquet", "parquet"),
        ("s3://b/x/a.CSV.gz", "csv"),
        ("a.b.jsonl", "jsonl"),
        ("dir.parquet/", "parquet"),
        ("/data/*.ndjson", "jsonl"),
    ],
)
def test_formats_are_told_by_names(file: str, format: str) -> None:
    assert input_format([file]) == format
    assert input_format([file], "csv") == "csv"


def test_files_whose_format_nobody_can_tell() -> None:
    for files in (["a.txt"], ["a"], ["a.csv", "b.parquet"], []):
        with pytest.raises(InvalidInputError):
            input_format(files)
    with pytest.raises(InvalidInputError, match="one of parquet, csv, jsonl"):
        input_format(["a.csv"], "xml")


def test_parquet_in_and_out(spark: SparkSession, bucket: Bucket, tmp_path: Path, run: Run) -> None:
    table = pa.table({"name": [f"{i:03d}" for i in range(50)], "n": list(range(50))})
    for part in range(2):
        pq.write_table(table.slice(part * 25, 25), tmp_path / f"{part}.parquet")
    files = [tmp_path / "0.parquet", tmp_path / "1.parquet"]
    said = run("ingest", bucket.url, "ns", *files, "--id", "name", "--job-key", "k", "--json")
    assert (said["rows"], said["method"], said["replayed"]) == (50, "log", False)
    assert content(bucket) == {f"{i:03d}": {"n": i} for i in range(50)}
    assert run("ingest", bucket.url, "ns", *files, "--id", "name", "--job-key", "k", "--json")[
        "replayed"
    ]
    with reef.connect(bucket.url) as db, db.namespace("ns") as ns:
        ns.delete("003")
    out = tmp_path / "out"
    assert "written to" in run("export", bucket.url, "ns", out, "--lsn", said["lsn"])
    found = pq.read_table(out).sort_by("id").to_pylist()
    assert found == [{"id": f"{i:03d}", "n": i} for i in range(50)]
    with pytest.raises(InvalidInputError, match="exists already"):
        export(spark, bucket.url, "ns", str(out))
    told = run("export", bucket.url, "ns", tmp_path / "few", "--where", "n < 5", "--json")
    assert told["columns"] == ["id", "n"]
    assert sorted(pq.read_table(tmp_path / "few")["n"].to_pylist()) == [0, 1, 2, 4]


def test_a_bulk_load_of_files_is_sorted_by_spark(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    ids = [f"{(i * 7919) % 10_000:05d}" for i in range(10_000)]
    pq.write_table(pa.table({"id": ids, "n": range(10_000)}), tmp_path / "a.parquet")
    result = ingest(spark, bucket.url, "ns", [str(tmp_path / "a.parquet")], method="bulk")
    assert (result.method, result.rows) == ("bulk", 10_000)
    assert content(bucket) == {id: {"n": n} for n, id in enumerate(ids)}


def test_csv_in_and_out(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        'id,zip,price,at,vector,note\n007,010,1.5,2026-01-02T03:04:05Z,"[1, 2]","say ""x"", y"\n'
        "8,,,,,\n"
    )
    types = {"zip": "string", "vector": "vector[2]"}
    ingest(spark, bucket.url, "ns", [str(path)], schema=types)
    expected = {"zip": "string", "price": "float64", "at": "datetime"}
    assert schema(bucket) == {**expected, "vector": "vector[2]", "note": "string"}
    rows = content(bucket)
    assert rows["007"]["zip"] == "010"
    assert rows["007"]["vector"] == [1.0, 2.0]
    assert rows["007"]["note"] == 'say "x", y'
    assert rows["8"] == dict.fromkeys(rows["8"])
    out = tmp_path / "out"
    export(spark, bucket.url, "ns", str(out), format="csv", columns=["id", "vector", "note"])
    found = [
        row
        for part in sorted(out.glob("*.csv"))
        for row in csv.DictReader(part.read_text().splitlines())
    ]
    assert {"id": "007", "vector": "[1.0,2.0]", "note": 'say "x", y'} in found
    assert len(found) == 2


@pytest.mark.parametrize(
    "text",
    [
        'id,note\n1,"x\ny,z"\n2,w\n',  # two rows of two columns, if it were not refused
        'id,note\n1,"x\ny"\n',
        'id,note\n1,"say ""x"" \ny,"\n',
        'id,note\n1,5" pipe\n2,"x\ny,z"\n',
    ],
)
def test_a_line_break_within_quotes_has_to_be_said(
    spark: SparkSession, bucket: Bucket, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match="--multiline"):
        ingest(spark, bucket.url, "ns", [str(path)])
    with pytest.raises(NotFoundError):
        content(bucket)
    ingest(spark, bucket.url, "ns", [str(path)], multiline=True)
    rows = list(csv.reader(text.splitlines(keepends=True)))
    assert [[id, *row.values()] for id, row in content(bucket).items()] == rows[1:]


def test_quotes_that_are_no_line_break_are_fine(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,a,b\r\n1,5" pipe,"say ""x"", y"\r\n2,"",""""\r\n3,x"y,z\r\n')
    ingest(spark, bucket.url, "ns", [str(path)])
    assert content(bucket) == {
        "1": {"a": '5" pipe', "b": 'say "x", y'},
        "2": {"a": "", "b": '"'},
        "3": {"a": 'x"y', "b": "z"},
    }


def test_lines_of_one_large_file_are_read_by_many_tasks(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,note\n" + "".join(f"{i:06},{'x' * 40}\n" for i in range(20_000)))
    files = Files.found(spark, [str(path)])
    before = spark.conf.get("spark.sql.files.maxPartitionBytes")
    spark.conf.set("spark.sql.files.maxPartitionBytes", "100000")
    try:
        parts = {
            multiline: read_csv(files, "id", {}, (), multiline)[0].rdd.getNumPartitions()
            for multiline in (False, True)
        }
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", str(before))
    assert parts[True] == 1
    assert parts[False] > 4


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_how_far_it_is(spark: SparkSession, bucket: Bucket, tmp_path: Path, format: str) -> None:
    path = tmp_path / f"a.{format}"
    table = pa.table({"id": [f"{i:05}" for i in range(5000)], "n": range(5000)})
    pq.write_table(table, path) if format == "parquet" else pa_csv.write_csv(table, path)
    seen: list[PassProgress] = []
    ingest(spark, bucket.url, "ns", [str(path)], watch=seen.append)
    last = seen[-1]
    assert last.tasks_done == last.tasks > 0
    assert last.rows >= 5000  # the header of a CSV is one too
    assert 0 < last.bytes_done <= last.bytes
    assert last.bytes >= path.stat().st_size
    seen.clear()
    with reef.connect(bucket.url) as db, db.namespace("ns") as ns:
        ns.flush()
        size = sum(ref.size for ref in db.context().chain("ns").load().manifest.segments)  # type: ignore[union-attr]
    export(spark, bucket.url, "ns", str(tmp_path / "out"), watch=seen.append)
    last = seen[-1]
    assert last.tasks_done == last.tasks > 0
    assert (last.rows, last.bytes_done, last.bytes) == (5000, size, size)


def test_columns_come_after_the_key(
    spark: SparkSession, bucket: Bucket, tmp_path: Path, run: Run
) -> None:
    with reef.connect(bucket.url) as db:
        with db.kv("pairs") as kv:
            kv.write(puts={b"a": b"1", b"b": b"2"})
        with db.namespace("ns") as ns:
            ns.upsert([{"id": "x", "n": 1, "m": 2}])
    told = run("export", bucket.url, "pairs", tmp_path / "a", "--columns", "value", "--json")
    assert told["columns"] == ["key", "value"]
    assert sorted(pq.read_table(tmp_path / "a").to_pylist(), key=str) == [
        {"key": b"a", "value": b"1"},
        {"key": b"b", "value": b"2"},
    ]
    told = run("export", bucket.url, "pairs", tmp_path / "b", "--columns", "key", "--json")
    assert told["columns"] == ["key"]
    told = run("export", bucket.url, "ns", tmp_path / "c", "--columns", "m", "--json")
    assert told["columns"] == ["id", "m"]


def test_a_branch_is_loaded_and_exported(
    spark: SparkSession, bucket: Bucket, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "x", "n": 1}\n')
    load = ("ingest", bucket.url, "ns", tmp_path / "a.jsonl", "--job-key", "k", "--method", "bulk")
    assert not run(*load, "--json")["replayed"]
    with reef.connect(bucket.url) as db, db.namespace("ns") as ns:
        ns.branch("dev")
        ns.upsert([{"id": "x", "n": 2}])
    # A job key is known to the namespace that took it, and to no branch of it.
    (tmp_path / "a.jsonl").write_text('{"id": "y", "n": 3}\n')
    for replayed in (False, True):
        told = run(*load[:2], "ns@dev", *load[3:], "--json")
        assert (told["namespace"], told["replayed"]) == ("ns@dev", replayed)
    told = run("export", bucket.url, "ns@dev", tmp_path / "out", "--json")
    assert told["namespace"] == "ns@dev"
    rows = sorted(pq.read_table(tmp_path / "out").to_pylist(), key=str)
    assert rows == [{"id": "x", "n": 1}, {"id": "y", "n": 3}]
    assert content(bucket) == {"x": {"n": 2}}


def test_a_value_that_does_not_fit_loads_nothing(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    pa_csv.write_csv(pa.table({"id": ["a", "b"], "n": ["1", "many"]}), path)
    with pytest.raises(InvalidInputError, match="many"):
        ingest(spark, bucket.url, "ns", [str(path)], schema={"n": "int64"})
    assert content(bucket) == {}
    with pytest.raises(InvalidInputError, match="cannot be read"):
        ingest(spark, bucket.url, "ns", [str(tmp_path / "none.csv")])
    with pytest.raises(InvalidInputError, match="one of the columns id, n"):
        ingest(spark, bucket.url, "ns", [str(path)], id="key")


def test_json_lines_in_and_out(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    documents = [
        {"id": 1, "tags": ["x"], "more": {"b": 1, "a": None}, "emb": [0.5, 1]},
        {"id": 2, "tags": [], "more": {"c": [{}]}, "n": 3},
    ]
    path.write_text("\n".join(map(json.dumps, documents)))
    ingest(spark, bucket.url, "ns", [str(path)], schema={"emb": "vector[2]"})
    assert schema(bucket) == {"emb": "vector[2]", "more": "json", "n": "int64", "tags": "[]string"}
    rows = content(bucket)
    assert json.loads(rows["1"]["more"]) == {"b": 1, "a": None}
    assert json.loads(rows["2"]["more"]) == {"c": [{}]}
    assert rows["1"]["emb"] == [0.5, 1.0]
    out = tmp_path / "out"
    export(spark, bucket.url, "ns", str(out), format="jsonl")
    lines = [
        json.loads(line) for part in out.glob("*.json") for line in part.read_text().splitlines()
    ]
    assert sorted(line["id"] for line in lines) == ["1", "2"]
    assert all(len(line) == 5 for line in lines)


def test_operations(spark: SparkSession, bucket: Bucket, tmp_path: Path, run: Run) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": "a", "n": 1}\n{"id": "b", "n": 2}\n{"id": "b", "n": 3}\n')
    with pytest.raises(InvalidInputError, match="'b'"):
        ingest(spark, bucket.url, "ns", [str(path)])
    said = run("ingest", bucket.url, "ns", path, "--duplicates", "last")
    assert "upsert: 2 documents; 1 dropped for a later one" in said
    path.write_text('{"id": "a", "n": 9}\n{"id": "c", "n": 9}\n')
    said = run("ingest", bucket.url, "ns", path, "--operation", "create", "--skip")
    assert "create: 1 documents; 1 skipped" in said
    assert content(bucket) == {"a": {"n": 1}, "b": {"n": 3}, "c": {"n": 9}}
    run("ingest", bucket.url, "ns", path, "--operation", "delete")
    assert content(bucket) == {"b": {"n": 3}}


@pytest.mark.parametrize(("format", "package"), [("delta", "deltalake"), ("iceberg", "pyiceberg")])
def test_tables_need_their_packages(
    monkeypatch: pytest.MonkeyPatch, format: str, package: str
) -> None:
    assert output_format(format) == format
    monkeypatch.setattr("reef.spark.files._output_format.find_spec", lambda name: None)
    with pytest.raises(InvalidInputError, match=f"pip install '{package}"):
        output_format(format)


def read_delta(folder: Path) -> pa.Table:
    return pa.table(DeltaTable(str(folder)).to_pyarrow_table())


def read_iceberg(folder: Path) -> pa.Table:
    catalog = SqlCatalog("reef", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    return catalog.load_table(("reef", "ns")).scan().to_arrow()


@pytest.mark.parametrize(("format", "read"), [("delta", read_delta), ("iceberg", read_iceberg)])
@pytest.mark.filterwarnings("ignore")  # of these packages, about themselves
def test_tables_of_other_formats_hold_the_same_rows(
    spark: SparkSession,
    bucket: Bucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format: str,
    read: Callable[[Path], pa.Table],
) -> None:
    times = [dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.UTC)]
    rows = [
        {"id": f"{i:03}", "n": i, "tags": ["x", str(i)], "at": times[i % 2], "vector": [i, 1.0]}
        for i in range(40)
    ]
    with reef.connect(bucket.url) as db, db.namespace("ns") as ns:
        ns.upsert(rows)
    out = tmp_path / "a b" / "out"
    before = spark.conf.get("spark.sql.parquet.outputTimestampType")
    export(spark, bucket.url, "ns", str(out), format=format)
    assert read(out).sort_by("id").to_pylist() == rows
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a b", "bucket"]
    # What is there stays as it is; what fails leaves nothing that the next try would stumble over.
    (tmp_path / "there").mkdir()
    with pytest.raises(InvalidInputError, match="exists already"):
        export(spark, bucket.url, "ns", str(tmp_path / "there"), format=format)
    assert not [*(tmp_path / "there").iterdir()]
    with pytest.raises(InvalidInputError, match="cannot have in a path: choose another"):
        export(spark, bucket.url, "ns", str(tmp_path / "a%20b"), format=format)
    monkeypatch.setattr("reef.spark.files._export.import_module", lambda name: None)
    with pytest.raises(AttributeError):
        export(spark, bucket.url, "ns", str(tmp_path / "new"), format=format)
    assert not (tmp_path / "new").exists()
