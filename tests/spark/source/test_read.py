"""The data source `reef`, read by a real Spark session."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader

import reef
from reef.database import Database
from reef.documents import Documents
from reef.spark import register
from tests.support.engine.collecting import collect_garbage
from tests.support.jobs.compactor import Compactor

ROWS = 1000
START = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module", autouse=True)
def registered(spark: SparkSession) -> None:
    register(spark)
    spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket?fsync=off"


@pytest.fixture
def db(url: str) -> Iterator[Database]:
    with reef.connect(url, gc_grace=0, retained_generations=1, row_block_bytes=4096) as db:
        yield db


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bucket with 1000 documents, with nulls and NaN among them, in segments and in the log."""
    url = f"file://{tmp_path_factory.mktemp('shop')}/bucket?fsync=off"
    with reef.connect(url, row_block_bytes=4096) as db:
        ns = db.namespace("ns", schema={"unsigned": "uint64", "token": "uuid"})
        for part in range(3):
            ns.upsert([document(i) for i in range(part, ROWS, 3)])
            ns.flush()
        ns.upsert([document(i) for i in range(0, ROWS, 50)])
        yield url


def document(i: int) -> dict[str, Any]:
    row: dict[str, Any] = {"id": f"d{i:04}", "number": i}
    if i % 7:
        row |= {
            "real": float("nan") if i % 5 == 0 else -0.0 if i == 3 else i / 4,
            "text": ["", "a", "ab", "a%b", "a_b", "é", "[x]*?"][i % 7],
            "flag": i % 2 == 0,
            "at": START + timedelta(hours=i),
            "unsigned": 2**63 + i,
            "token": UUID(int=i << 64),
            "raw": bytes([i % 256]),
            "tags": [str(i)],
            "extra": {"k": i},
            "vector": [float(i), 0.5],
        }
    return row


def load(spark: SparkSession, url: str, namespace: str = "ns", **options: str) -> DataFrame:
    options = {"partition_bytes": "8KiB", **options}
    return spark.read.format("reef").options(url=url, namespace=namespace, **options).load()


def ids(frame: DataFrame) -> list[str]:
    return sorted(row["id"] for row in frame.select("id").collect())


# What Spark sees.


def test_rows_and_types(spark: SparkSession, shop: str) -> None:
    frame = load(spark, shop)
    assert dict(frame.dtypes) == {
        "id": "string",
        "number": "bigint",
        "real": "double",
        "text": "string",
        "flag": "boolean",
        "at": "timestamp",
        "unsigned": "decimal(20,0)",
        "token": "string",
        "raw": "binary",
        "tags": "array<string>",
        "extra": "string",
        "vector": "array<float>",
    }
    assert frame.rdd.getNumPartitions() > 2
    rows = {row["id"]: row.asDict() for row in frame.collect()}
    assert len(rows) == ROWS
    assert set(rows["d0007"].values()) == {"d0007", 7, None}
    assert rows["d0008"] == {
        "id": "d0008",
        "number": 8,
        "real": 2.0,
        "text": "a",
        "flag": True,
        "at": datetime(2024, 1, 1, 8),  # noqa: DTZ001 as Spark shows it
        "unsigned": 2**63 + 8,
        "token": str(UUID(int=8 << 64)),
        "raw": b"\x08",
        "tags": ["8"],
        "extra": '{"k":8}',
        "vector": [8.0, 0.5],
    }


def test_a_branch_is_read_by_option(spark: SparkSession, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket?fsync=off"
    with reef.connect(url) as db:
        ns = db.namespace("ns")
        ns.upsert([{"id": "a", "number": 1}, {"id": "b", "number": 2}])
        ns.branch("dev")
        ns.upsert([{"id": "a", "number": 10}])
        db.namespace("ns", branch="dev").upsert([{"id": "c", "number": 3}])
    found = {row["id"]: row["number"] for row in load(spark, url, branch="dev").collect()}
    assert found == {"a": 1, "b": 2, "c": 3}
    frame = spark.createDataFrame([("b", 20)], "id string, number long")
    frame.write.format("reef").options(url=url, namespace="ns", branch="dev").mode("append").save()
    with reef.connect(url) as db:
        assert db.namespace("ns", branch="dev", mode="r").get("b") == {"id": "b", "number": 20}
        assert db.namespace("ns", mode="r").get("b") == {"id": "b", "number": 2}


def test_columns_by_option_and_by_schema(spark: SparkSession, shop: str) -> None:
    frame = load(spark, shop, columns="number,id")
    assert frame.columns == ["number", "id"]
    assert frame.orderBy("id").first().asDict() == {"number": 0, "id": "d0000"}
    reader = spark.read.format("reef").options(url=shop, namespace="ns")
    frame = reader.schema("flag boolean, id string, vector array<float>").load()
    assert frame.where("id = 'd0001'").collect() == [(False, "d0001", [1.0, 0.5])]


def test_keys_and_values(spark: SparkSession, db: Database, url: str) -> None:
    kv = db.kv("pairs")
    kv.write(puts={bytes([i]): bytes([i]) * 3 for i in range(100)})
    kv.flush()
    kv.delete(b"\x05")
    frame = load(spark, url, "pairs")
    assert frame.dtypes == [("key", "binary"), ("value", "binary")]
    assert frame.count() == 99
    for options in ({}, {"pushdown": "on"}):
        few = load(spark, url, "pairs", **options).where("key >= X'04' and key < X'08'")
        assert sorted(few.collect()) == [(bytes([i]), bytes([i]) * 3) for i in (4, 6, 7)]


def test_nothing_to_read(spark: SparkSession, db: Database, url: str) -> None:
    db.namespace("empty", schema={"n": "int64"})
    assert load(spark, url, "empty").collect() == []
    db.namespace("ns").upsert([{"id": "a"}])
    assert load(spark, url, where="id > 'b' AND id < 'a'").collect() == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"branch": "a/b"}, "branch"),
        ({"namespace": "nowhere"}, "there is no namespace 'nowhere'"),
        ({"columns": "id,nonsense"}, "nonsense"),
        ({"where": "nonsense > 1"}, "nonsense"),
        ({"generation": "99"}, "generation 99"),
        ({"colums": "id"}, "colums"),
    ],
)
def test_load_says_what_is_wrong(
    spark: SparkSession, shop: str, options: dict[str, str], told: str
) -> None:
    with pytest.raises(AnalysisException, match=told):
        load(spark, shop, **options)


def test_another_type_is_refused(spark: SparkSession, shop: str) -> None:
    reader = spark.read.format("reef").options(url=shop, namespace="ns")
    with pytest.raises(PySparkException, match=r"bigint; cast it in the query"):
        reader.schema("id string, number int").load().collect()


# One version.


def test_a_frame_is_one_version(spark: SparkSession, db: Database, url: str) -> None:
    ns = filled(db)
    frame = load(spark, url)
    assert frame.count() == 100
    ns.upsert([{"id": "new", "number": 1}, {"id": "d000", "number": -1}])
    ns.delete(["d001"])
    ns.flush()
    joined = frame.alias("a").join(frame.alias("b"), "id")
    assert joined.where("a.number = b.number").count() == 100
    assert frame.agg({"number": "sum"}).first()[0] == sum(range(100))
    assert load(spark, url).count() == 100
    assert "new" in ids(load(spark, url))


def test_frames_of_the_past(spark: SparkSession, db: Database, url: str) -> None:
    ns = filled(db)
    lsn, held = ns.lsn, ns.snapshot()
    head = db.context().chain("ns").load()
    assert head is not None
    ns.delete(["d001", "d002"])
    ns.flush()
    assert load(spark, url).count() == 98
    assert load(spark, url, lsn=str(lsn)).count() == 100
    assert load(spark, url, snapshot=held.id).count() == 100
    assert load(spark, url, generation=str(head.generation)).count() == 100


def test_a_frame_that_was_collected_says_so(spark: SparkSession, db: Database, url: str) -> None:
    ns = filled(db)
    frame, held = load(spark, url), load(spark, url, hold="1h")
    ns.delete(["d001", "d002"])
    ns.flush()
    context = db.context()
    Compactor(context, "ns").run(floor_lsn=ns.lsn)
    for _ in range(2):
        collect_garbage(context, "ns")
    assert held.count() == 100
    with pytest.raises(PySparkException, match=r"SnapshotExpiredError: LSN .* hold=2h"):
        frame.count()


def filled(db: Database) -> Documents:
    ns = db.namespace("ns")
    for part in range(2):
        ns.upsert([{"id": f"d{i:03}", "number": i} for i in range(part, 100, 2)])
        ns.flush()
    return ns


# Filters.

CONDITIONS = [
    "id = 'd0100'",
    "id >= 'd0100' and id < 'd0103'",
    "id in ('d0001', 'd0500', 'nobody')",
    "id like 'd01%'",
    "id <> 'd0001'",
    "number > 990",
    "number <= 3",
    "number between 10 and 12",
    "number in (1, 2, null)",
    "number not in (1, 2)",
    "number not in (1, 2, null)",
    "number <=> 5",
    "not (number <=> 5)",
    "real > 240",
    "real >= 240",
    "real < 1",
    "real <= 1",
    "real = 0.5D",
    "real <> 0.5D",
    "real = double('NaN')",
    "real <> double('NaN')",
    "real > double('NaN')",
    "real in (0.5D, double('NaN'))",
    "real = 0.0D",
    "real < 0.0D",
    "real in (0.0D, 0.5D)",
    "real <=> 0.5D",
    "text = 'a'",
    "text <> 'a'",
    "text > 'a'",
    "text < 'é'",
    "text like 'a%'",
    "text like '%b'",
    "text like '%[x]*%'",
    "startswith(text, 'a%')",
    "startswith(text, 'a_')",
    "contains(text, '%')",
    "endswith(text, '*?')",
    "not startswith(text, 'a')",
    "text is null",
    "text is not null",
    "text <=> null",
    "flag",
    "not flag",
    "flag = false",
    "at > timestamp'2024-01-30 00:00:00'",
    "at = timestamp'2024-01-02 00:00:00'",
    "at > date'2024-01-30'",
    "unsigned > 9223372036854776700",
    "unsigned = 9223372036854775809",
    "unsigned > 9223372036854776700.5",
    "token = '00000000-0000-0003-0000-000000000000'",
    "token = '00000000-0000-0003-0000-00000000000A'",
    "token > '00000000-0000-03'",
    "token >= '00000000-0000-0300-0000-000000000000'",
    "raw = X'05'",
    "raw > X'F0'",
    "tags is null",
    "vector is not null",
    "extra is null",
    "number > 10 and text = 'a' and real is not null and id < 'd0500'",
    "number > 990 or id = 'd0001'",
]
NEVER = {
    "number not in (1, 2, null)",
    "real > double('NaN')",
    "real < 0.0D",
    "token = '00000000-0000-0003-0000-00000000000A'",
}


@pytest.fixture(scope="module")
def matching(spark: SparkSession, shop: str) -> dict[str, list[str]]:
    """The ids that match each condition, told by Spark of all rows, in one pass."""
    every = load(spark, shop, pushdown="off")
    told = every.selectExpr("id", *(f"({condition})" for condition in CONDITIONS)).collect()
    return {
        condition: sorted(row[0] for row in told if row[number])
        for number, condition in enumerate(CONDITIONS, 1)
    }


@pytest.mark.parametrize("condition", CONDITIONS)
def test_pushed_filters_give_what_spark_gives(
    spark: SparkSession, shop: str, matching: dict[str, list[str]], condition: str
) -> None:
    pushed = load(spark, shop, pushdown="on", partition_bytes="1MiB").where(condition)
    assert ids(pushed) == matching[condition]


def test_conditions_tell_rows_apart(matching: dict[str, list[str]]) -> None:
    nobody = [condition for condition, found in matching.items() if not found]
    assert set(nobody) <= NEVER
    assert all(len(found) < ROWS for found in matching.values())


def test_filters_are_pushed(spark: SparkSession, shop: str) -> None:
    frame = load(spark, shop, pushdown="on").where("number = 5 and real > 1 and id < 'd0900'")
    assert "Filter (" not in plan_of(frame)
    doubtful = load(spark, shop, pushdown="on").where("token > '00000000-0000-03'")
    assert "Filter (" in plan_of(doubtful)
    narrow = load(spark, shop, pushdown="on").where("id >= 'd0100' and id < 'd0103'")
    assert narrow.rdd.getNumPartitions() < load(spark, shop).rdd.getNumPartitions()


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_where_filters_at_the_source(spark: SparkSession, shop: str) -> None:
    frame = load(spark, shop, where="number >= 10 AND id < 'd0013'", columns="id,text")
    assert ids(frame) == ["d0010", "d0011", "d0012"]
    assert ids(frame.where("text = 'é'")) == ["d0012"]
    both = load(spark, shop, where="number < 20", pushdown="on").where("number > 17")
    assert ids(both) == ["d0018", "d0019"]


def test_a_frame_may_be_filtered_in_several_ways(spark: SparkSession, shop: str) -> None:
    frame = load(spark, shop)
    assert ids(frame.where("number < 3")) == ["d0000", "d0001", "d0002"]
    assert frame.count() == ROWS
    few, others = frame.where("number < 3"), frame.where("number < 5").withColumnRenamed("id", "x")
    assert few.join(others, "number").count() == 3
    assert few.union(frame.where("number > 997").select(frame.columns)).count() == 5


@pytest.mark.skipif(hasattr(DataSourceReader, "pushLimit"), reason="Spark keeps scans apart")
def test_why_filters_are_not_pushed_by_default(spark: SparkSession, shop: str) -> None:
    frame = load(spark, shop, pushdown="on")
    assert frame.where("number < 3").count() == 3
    assert frame.count() == 3  # Spark's: the filter of one query is the plan of the next
