"""What `reef ingest` makes of files that Spark by itself would change, or leave out, without a word."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

import reef
from reef.errors import InvalidInputError, NotFoundError, UnavailableError
from reef.jobs import Bucket
from reef.spark import register
from reef.spark.files._export import export
from reef.spark.files._file_cells import Cells, read_cells
from reef.spark.files._ingest import _as_reef_errors, ingest
from reef.spark.files._input_format import check_options, plan_ingest


@pytest.fixture(scope="module", autouse=True)
def registered(spark: SparkSession) -> None:
    register(spark)


@pytest.fixture
def elsewhere(spark: SparkSession) -> Iterator[dict[str, str]]:
    """A session of somebody who has other settings than Reef likes."""
    settings = {
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.files.ignoreCorruptFiles": "true",
    }
    before = {name: str(spark.conf.get(name)) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield settings
    for name, value in before.items():
        spark.conf.set(name, value)


def content(bucket: Bucket, name: str = "ns") -> dict[str, dict[str, Any]]:
    with reef.connect(bucket.url) as db, db.namespace(name, mode="r") as ns:
        return {row.pop("id"): row for batch in ns.scan() for row in batch.to_pylist()}


def written(path: Path, text: str | bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def test_columns_go_by_their_names(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    files = [
        written(tmp_path / "1.csv", "id,a,b\n1,A,B\n"),
        written(tmp_path / "2.csv", "id,b,a\n2,B,A\n"),
    ]
    with pytest.raises(InvalidInputError, match=r"header.*[12]\.csv") as refused:
        ingest(spark, bucket.url, "ns", files)
    assert "\n" not in str(refused.value)
    assert content(bucket) == {}
    pq.write_table(pa.table({"id": ["1"], "n": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"id": ["2"], "more": ["x"]}), tmp_path / "2.parquet")
    more = [str(tmp_path / "1.parquet"), str(tmp_path / "2.parquet")]
    ingest(spark, bucket.url, "ns", more)
    assert content(bucket) == {"1": {"n": 1, "more": None}, "2": {"n": None, "more": "x"}}
    pq.write_table(pa.table({"id": ["3"], "n": ["text"]}), tmp_path / "3.parquet")
    with pytest.raises(InvalidInputError, match="incompatible data types"):
        ingest(spark, bucket.url, "ns", [more[0], str(tmp_path / "3.parquet")])


def test_a_patch_takes_away_nothing_that_a_file_does_not_name(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    with reef.connect(bucket.url) as db, db.namespace("ns") as ns:
        ns.upsert([{"id": "a", "x": 1, "y": 1}, {"id": "b", "x": 1, "y": 1}])
    rows = content(bucket)
    lines = str(tmp_path / "a.jsonl")
    kinds = ('{"id": "a", "x": 5}', '{"id": "b", "y": 6}')
    written(tmp_path / "a.jsonl", "\n\n".join(kinds))
    with pytest.raises(
        InvalidInputError, match=r"id, x \| id, y.*separately, or use `reef docs patch`"
    ):
        ingest(spark, bucket.url, "ns", [lines], operation="patch")
    for name, table in {"1": {"id": ["a"], "x": [5]}, "2": {"id": ["b"], "y": [6]}}.items():
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    with pytest.raises(InvalidInputError, match="the same columns"):
        ingest(spark, bucket.url, "ns", [f"{tmp_path}/*.parquet"], operation="patch")
    assert content(bucket) == rows
    written(tmp_path / "a.jsonl", '{"id": "a", "x": 5}\n{"x": null, "id": "b"}\n')
    ingest(spark, bucket.url, "ns", [lines], operation="patch")
    assert content(bucket) == {"a": {"x": 5, "y": 1}, "b": {"x": None, "y": 1}}


def test_a_folder_is_loaded_as_it_is_planned(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    context = bucket.open()
    for name in ("1.csv", "sub/2.csv", "sub/deep/3.csv", "_4.csv", ".5.csv", "_sub/6.csv"):
        written(tmp_path / "in" / name, f"id,a\n{name},x\n")
    plan = plan_ingest(context, "ns", [f"{tmp_path}/in"], format="csv")
    ingest(spark, bucket.url, "ns", [f"{tmp_path}/in"], format="csv")
    assert sorted(content(bucket)) == ["1.csv", "sub/2.csv", "sub/deep/3.csv"]
    assert [str(Path(file).relative_to(tmp_path / "in")) for file in plan.files] == sorted(
        content(bucket)
    )
    named = [str(tmp_path / "in/1.csv"), str(tmp_path / "in/_4.csv")]
    with pytest.raises(InvalidInputError, match=r"_4\.csv"):
        ingest(spark, bucket.url, "ns", named)
    with pytest.raises(InvalidInputError, match=r"_x\.csv"):
        check_options(["s3a://far/_x.csv"], "csv", multiline=False)
    check_options([".", "..", str(tmp_path / "in/_sub")], "csv", multiline=False)
    written(tmp_path / "days/day=2026-01-01/1.csv", "id,a\n1,x\n")
    ingest(spark, bucket.url, "days", [f"{tmp_path}/days"], format="csv")
    day = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    assert content(bucket, "days") == {"1": {"a": "x", "day": day}}
    written(tmp_path / "days/2.csv", "id,a\n2,x\n")
    with pytest.raises(InvalidInputError, match=r"2\.csv"):
        ingest(spark, bucket.url, "days", [f"{tmp_path}/days"], format="csv")
    with pytest.raises(InvalidInputError, match=r"2\.csv"):
        plan_ingest(context, "days", [f"{tmp_path}/days"], format="csv")


@pytest.mark.parametrize(
    ("type", "cells", "values"),
    [
        ("int64", [" 7 ", None, "+8"], [7, None, 8]),
        ("uint64", ["18446744073709551615"], [2**64 - 1]),
        ("float64", ["1.5", " -Infinity"], [1.5, float("-inf")]),
        ("bool", ["TRUE", "0"], [True, False]),
        ("bytes", ["aGk=", ""], [b"hi", b""]),
        ("string", ["", " x "], ["", " x "]),
        ("[]bytes", ['["aGk="]', "[]"], [[b"hi"], []]),
        ("[]int64", ["[1, 2]", "[3.0]"], [[1, 2], [3]]),
        ("[]uint64", ["[18446744073709551615]"], [[2**64 - 1]]),
        ("[]float64", ['["Infinity", 1]'], [[float("inf"), 1.0]]),
        ("vector[2]", ["[1, 0.5]"], [[1.0, 0.5]]),
        ("sparse", ['{"indices": [3], "values": [1]}'], [{"indices": [3], "values": [1.0]}]),
    ],
)
def test_text_is_read_as_its_type(type: str, cells: list[Any], values: list[Any]) -> None:
    batch = pa.record_batch([pa.array(["1"] * len(cells)), pa.array(cells)], names=["id", "a"])
    known = {"a": Cells(type), "b": Cells("bool")}
    assert read_cells(batch, known).column("a").to_pylist() == values


@pytest.mark.parametrize(
    ("type", "cell"),
    [
        ("int64", "1.5"),
        ("int64", "0x10"),
        ("int64", "9223372036854775808"),
        ("int64", ""),
        ("uint64", "1.5"),
        ("uint64", "-1"),
        ("float64", "1,5"),
        ("float64", "1e999"),
        ("bool", "yes"),
        ("bytes", "!!!"),
        ("[]int64", "[1,2] x"),
        ("[]int64", "[1.5]"),
        ("[]int64", "1"),
        ("[]int64", '[1, "x"]'),
        ("[]uint64", "[1.5]"),
        ("[]bytes", '["!!!"]'),
        ("[]bytes", "[1]"),
        ("vector[2]", "[1, 2, 3]"),
        ("sparse", "[1]"),
    ],
)
def test_text_that_is_none_of_its_type_is_refused(type: str, cell: str) -> None:
    batch = pa.record_batch([pa.array([cell])], names=["a"])
    with pytest.raises(InvalidInputError, match="row 0, attribute 'a' = "):
        read_cells(batch, {"a": Cells(type)})


@pytest.mark.parametrize("type", ["int64", "uint64", "float64"])
def test_text_that_may_be_a_name_is_a_number_only_if_that_was_declared(type: str) -> None:
    for cell in ("007", "+7", " 007"):
        batch = pa.record_batch([pa.array(["1", None, cell])], names=["a"])
        assert read_cells(batch, {"a": Cells(type)}).column("a").to_pylist() == [1, None, 7]
        with pytest.raises(InvalidInputError, match=r"row 2, attribute 'a'.*--schema that it is"):
            read_cells(batch, {"a": Cells(type, is_declared=False)})
    plain = pa.record_batch([pa.array(["0", "10", "1e0" if type == "float64" else "1"])], ["a"])
    found = read_cells(plain, {"a": Cells(type, is_declared=False)}).column("a")
    assert found.to_pylist() == [0, 10, 1]


def test_zeros_in_front_are_kept_or_refused_but_not_lost(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    file = written(tmp_path / "a.csv", "id,zip\na,10001\nb,00501\n")
    with pytest.raises(InvalidInputError, match=r"'zip' = '00501'.*--schema"):
        ingest(spark, bucket.url, "ns", [file])
    for type, zips in (("string", ["10001", "00501"]), ("int64", [10001, 501])):
        ingest(spark, bucket.url, type, [file], schema={"zip": type})
        assert [one["zip"] for one in content(bucket, type).values()] == zips


def test_files_say_the_same_whatever_the_session_is_set_to(
    spark: SparkSession, bucket: Bucket, tmp_path: Path, elsewhere: dict[str, str]
) -> None:
    text = 'id,t,d,n,note,A,a\n1,2026-01-02 03:04:05,2026-01-02,"","",x,y\n2,,,7,,,\n'
    file = written(tmp_path / "a.csv", text)
    ingest(spark, bucket.url, "ns", [file], schema={"d": "datetime"})
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    day = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    assert content(bucket) == {
        "1": {"t": at, "d": day, "n": None, "note": "", "A": "x", "a": "y"},
        "2": {"t": None, "d": None, "n": 7, "note": None, "A": None, "a": None},
    }
    for bad in ("1,many\n", "1,5\n2,2.5\n"):
        with pytest.raises(InvalidInputError, match="attribute 'n'"):
            ingest(
                spark,
                bucket.url,
                "bad",
                [written(tmp_path / "bad.csv", f"id,n\n{bad}")],
                schema={"n": "int64"},
            )
    lines = written(tmp_path / "a.jsonl", '{"id": 1, "n": 1}\n{"id": 2.50, "n": 2}\n')
    ingest(spark, bucket.url, "lines", [lines])
    assert sorted(content(bucket, "lines")) == ["1", "2.50"]
    assert {name: spark.conf.get(name) for name in elsewhere} == elsewhere


def test_what_was_exported_comes_in_again(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    types = {"u": "uint64", "us": "[]uint64", "b": "bytes", "bs": "[]bytes", "s": "string"}
    types |= {'j "é': "json", "f": "[]float64", "at": "datetime"}
    at = datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=datetime.UTC)
    more = {'j "é': {"b": [1.0, -0.0, 10**40, {}], "a": 'x"\n\x01\\ '}, "f": [0.5], "at": at}
    with reef.connect(bucket.url) as db, db.namespace("ns", schema=types) as ns:
        ns.upsert(
            [
                {
                    "id": "1",
                    "u": 2**64 - 1,
                    "us": [1],
                    "b": b"",
                    "bs": [b"x", b""],
                    "s": "",
                    **more,
                },
                {"id": "2", "u": 1, "us": [], "b": b"\xff", "bs": [], "s": None, 'j "é': "{}"},
            ]
        )
    for format in ("parquet", "csv", "jsonl"):
        out = tmp_path / format
        export(spark, bucket.url, "ns", str(out), format=format)
        declared = {'j "é': "json"} if format == "parquet" else types
        ingest(spark, bucket.url, format, [str(out)], format=format, schema=declared)
        assert content(bucket, format) == content(bucket), format
    pq.write_table(
        pa.table({"id": ["1"], "price": pa.array([1], pa.decimal128(10, 2))}),
        tmp_path / "d.parquet",
    )
    with pytest.raises(InvalidInputError, match=r"attribute 'price' is of type decimal\(10,2\)"):
        ingest(spark, bucket.url, "prices", [str(tmp_path / "d.parquet")])


def test_a_bad_file_is_told_in_one_line(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    for name, text, told in (
        ("few.csv", "id,a,b\n1,x\n", r"few\.csv.*Malformed CSV record: 1,x"),
        ("bad.jsonl", '{"id": 1}\n{"id": \n', r"bad\.jsonl, in '{\"id\":': the line is not JSON"),
        ("latin.csv", b"id,a\n1,caf\xe9\n", r"latin\.csv.*UTF-8"),
        ("latin.jsonl", b'{"id": "caf\xe9"}\n', r"latin\.jsonl.*UTF-8"),
        ("bad.parquet", "none", r"bad\.parquet is not a Parquet file"),
    ):
        with pytest.raises(InvalidInputError, match=told) as refused:
            ingest(spark, bucket.url, "ns", [written(tmp_path / name, text)])
        assert "\n" not in str(refused.value)


def test_an_error_of_spark_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        pytest.raises(UnavailableError, match=r"a\.csv: the JVM is gone; nothing was loaded"),
        _as_reef_errors(["a.csv"]),
    ):
        PySparkLogger.getLogger("DataFrameQueryContextLogger").error("x" * 8000)
        raise Py4JError("the JVM is gone\n\tat a.b.C")
    assert capsys.readouterr().err == ""


def test_options_that_would_do_nothing(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", '{"id": "a", "n": 1}\n{"id": "a", "n": 1}\n')
    with pytest.raises(InvalidInputError, match="names 'm': expected one of the columns id, n"):
        ingest(spark, bucket.url, "ns", [file], schema={"m": "int64"})
    with pytest.raises(InvalidInputError, match="--multiline"):
        ingest(spark, bucket.url, "ns", [file], multiline=True)
    with pytest.raises(NotFoundError):
        content(bucket)
    with reef.connect(bucket.url) as db, db.namespace("ns") as ns:
        ns.upsert([{"id": "a", "n": 1}, {"id": "b", "n": 2}])
    result = ingest(spark, bucket.url, "ns", [file], operation="delete")
    assert (result.rows, result.dropped) == (1, 1)
    assert content(bucket) == {"b": {"n": 2}}


@pytest.mark.parametrize(
    "line",
    [
        '{"id": "b", "n": 1} lost text',
        '{"id": "b", "n": 1} {"id": "c", "n": 2}',
        '{"id": "b", "n": 1},',
        '{"id": "b", "n": 1e400}',
        '{"id": "b", "s": "\\ud800"}',
        '[{"id": "b", "n": 1}]',
        '{"n": 1}',
        '{"id": null, "n": 1}',
        '{"id": {}, "n": 1}',
    ],
)
def test_a_line_that_is_no_document_is_refused(
    spark: SparkSession, bucket: Bucket, tmp_path: Path, line: str
) -> None:
    good = written(tmp_path / "good.jsonl", '{"id": "a", "n": 1}\n')
    bad = written(tmp_path / "bad.jsonl", f'{{"id": "x", "n": 1}}\n{line}\n')
    with pytest.raises(InvalidInputError, match=r"/bad\.jsonl, in '.*; nothing was loaded") as told:
        ingest(spark, bucket.url, "ns", [good, bad])
    assert "\n" not in str(told.value)
    with pytest.raises(NotFoundError):
        content(bucket)


_LINES = r"""{"id": "a", "n": 9007199254740993, "e": {}, "es": [{}], "mix": [1, "a"], "none": null}

{"id": "b", "n": 2.0, "e": {}, "empty": [], "vector": [1, 0.5], "s": "x\u0000\u2028"}
  {"id": 3, "n": -1, "u": 18446744073709551615, "o": "NaN", "none": null}
{"id": 2.50, "m": [1, 2.5], "f": 1}
{"id": "f", "f": 0.5}"""


def as_text(rows: pa.Table) -> list[dict[str, str]]:
    """Return rows that can be compared, NaN with NaN."""
    return [{name: str(value) for name, value in row.items()} for row in rows.to_pylist()]


@pytest.mark.parametrize("method", ["log", "bulk"])
def test_json_lines_are_documents(
    spark: SparkSession, bucket: Bucket, tmp_path: Path, method: str
) -> None:
    file = written(tmp_path / "a.jsonl", _LINES.replace("\n", "\r\n"))
    types = {"n": "int64", "o": "float64"}
    ingest(spark, bucket.url, "ns", [file], schema=types, method=method)
    with reef.connect(bucket.url) as db:
        with db.namespace("ns", mode="r") as ns:
            found, rows = ns.schema, as_text(ns.query())
        documents = [
            msgspec.json.decode(line.replace('"NaN"', "null"))
            for line in _LINES.splitlines()
            if line
        ]
        for document, id in zip(documents[2:4], ("3", "2.50"), strict=True):
            document["id"] = id
        with db.namespace("put", schema=types) as ns:
            ns.upsert(documents)
            ns.patch([{"id": "3", "o": float("nan")}])
            assert found == ns.schema
            assert rows == as_text(ns.query())
    assert {"none", "empty"}.isdisjoint(found)


def test_numbers_that_would_change_are_refused(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    lines = '{"id": "a", "n": 9007199254740993, "k": 1}\n{"id": "b", "n": 0.5, "k": "x"}\n'
    file = written(tmp_path / "a.jsonl", lines)
    with pytest.raises(InvalidInputError, match=r"id 'a', attribute 'n' = 9007199254740993"):
        ingest(spark, bucket.url, "ns", [file], schema={"k": "json"})
    with pytest.raises(
        InvalidInputError, match=r"attribute 'k' has values of several kinds, int and str.*json"
    ):
        ingest(spark, bucket.url, "ns", [file])
    with reef.connect(bucket.url) as db, db.namespace("ns", schema={"e": "json"}) as ns:
        ns.upsert([{"id": "a", "e": {"x": 1}}])
    again = written(tmp_path / "b.jsonl", '{"id": "a", "e": {}, "k": 1}\n')
    ingest(spark, bucket.url, "ns", [again])
    assert content(bucket) == {"a": {"e": "{}", "k": 1}}


def test_folders_of_json_lines_are_columns(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    for day in (1, 2):
        written(tmp_path / f"days/day={day}/a.json", f'{{"id": "{day}", "n": {day}}}\n\n')
    for method in ("log", "bulk"):
        ingest(spark, bucket.url, method, [f"{tmp_path}/days"], format="jsonl", method=method)
        assert content(bucket, method) == {
            "1": {"n": 1, "day": 1},
            "2": {"n": 2, "day": 2},
        }
    written(tmp_path / "days/day=2/b.json", '{"id": "3", "day": 4}\n')
    with pytest.raises(InvalidInputError, match=r"'day' is both a key of lines"):
        ingest(spark, bucket.url, "ns", [f"{tmp_path}/days"], format="jsonl")


def test_what_stands_for_nothing_is_refused_in_csv(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    file = written(tmp_path / "a.csv", "id,s\na,\x01\nb,x\n")
    with pytest.raises(InvalidInputError, match=r"/a\.csv.*U\+0001"):
        ingest(spark, bucket.url, "ns", [file])


def test_a_name_that_is_there_is_no_pattern(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    folder = tmp_path / "a [b]{c}*"
    file = written(folder / "br[1] ?.csv", "id,a\n1,x\n")
    written(folder / "b\\s.csv", "id,a\n2,x\n")
    assert plan_ingest(bucket.open(), "ns", [file]).files == (file,)
    ingest(spark, bucket.url, "ns", [file])
    assert content(bucket) == {"1": {"a": "x"}}
    ingest(spark, bucket.url, "ns", [f"{tmp_path}/a*/b*.csv"])
    assert sorted(content(bucket)) == ["1", "2"]
    for name in ("p[1] a", "p%20"):
        pq.write_table(pa.table({"id": ["1"], "a": ["y"]}), folder / f"{name}.parquet")
        parquet = str(folder / f"{name}.parquet")
        ingest(spark, bucket.url, "ns", [parquet], operation="patch")
    assert content(bucket)["1"] == {"a": "y"}


def test_parquet_of_what_spark_has_not(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    at = pa.array([1], pa.timestamp("ns"))
    pq.write_table(pa.table({"id": ["1"], "at": at}), tmp_path / "nanos.parquet")
    with pytest.raises(InvalidInputError, match=r"NANOS.*microseconds.*reef docs put"):
        ingest(spark, bucket.url, "ns", [str(tmp_path / "nanos.parquet")])
    none, some = pa.nulls(2), pa.array([None, 7], pa.int32())
    table = pa.table({"id": ["1", "2"], "none": none, "some": some})
    pq.write_table(table, tmp_path / "nulls.parquet")
    ingest(spark, bucket.url, "ns", [str(tmp_path / "nulls.parquet")])
    assert content(bucket) == {"1": {"some": None}, "2": {"some": 7}}


def test_columns_that_cannot_be_make_no_namespace(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    file = written(tmp_path / "a.csv", "id,_a\n1,x\n")
    with pytest.raises(InvalidInputError, match="'_a'"):
        ingest(spark, bucket.url, "ns", [file])
    with pytest.raises(NotFoundError):
        content(bucket)
