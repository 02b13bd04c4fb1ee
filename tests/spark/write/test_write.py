"""Batch writes of the data source, on a real session."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import reef
from reef.jobs import Bucket
from reef.spark import bulk_load, register, write
from tests.support.waiting import until


@pytest.fixture(scope="module", autouse=True)
def registered(spark: SparkSession) -> None:
    register(spark)
    spark.conf.set("spark.sql.shuffle.partitions", "2")


def save(df: DataFrame, bucket: Bucket, name: str = "ns", **options: object) -> None:
    texts = {key: str(value) for key, value in options.items()}
    df.write.format("reef").options(url=bucket.url, namespace=name, **texts).mode("append").save()


def load(spark: SparkSession, bucket: Bucket, name: str = "ns", **options: str) -> DataFrame:
    return spark.read.format("reef").options(url=bucket.url, namespace=name, **options).load()


def content(bucket: Bucket, name: str = "ns") -> dict[str, dict[str, Any]]:
    with reef.connect(bucket.url) as db, db.namespace(name, mode="r") as ns:
        return {row.pop("id"): row for batch in ns.scan() for row in batch.to_pylist()}


def stats(bucket: Bucket, name: str = "ns") -> tuple[int, int, int]:
    """Return how many commits, intents and segments there are."""
    with reef.connect(bucket.url) as db, db.namespace(name, mode="r") as ns:
        head = db.context().chain(name).load()
        assert head is not None
        keys = [meta.key for meta in db.store.list(f"namespaces/{name}/segments/")]
        commits = {lsn for rows in ns.changes() for lsn in rows.column("_lsn").to_pylist()}
        return len(commits), len(head.manifest.intents), sum(key.endswith(".seg") for key in keys)


def test_a_small_frame_goes_through_the_log_in_one_commit(
    spark: SparkSession, bucket: Bucket
) -> None:
    df = spark.range(0, 1000, 1, 4).selectExpr("cast(id as string) id", "id * 2 as n")
    save(df, bucket)
    assert content(bucket) == {str(i): {"n": 2 * i} for i in range(1000)}
    assert stats(bucket) == (1, 0, 0)
    save(df.where("n < 10").selectExpr("id", "n + 1 as n"), bucket)
    assert stats(bucket) == (2, 0, 0)
    assert content(bucket)["3"] == {"n": 7}
    assert len(content(bucket)) == 1000


def test_an_unsorted_frame_is_loaded_at_one_version(spark: SparkSession, bucket: Bucket) -> None:
    df = spark.range(0, 30_000, 1, 3).selectExpr(
        "cast(pmod(hash(id), 1000000000) as string) || '-' || cast(id as string) id", "id as n"
    )
    save(df, bucket, method="bulk", target_bytes=200_000, memory=300_000)
    read = load(spark, bucket)
    assert read.selectExpr("count(*)", "sum(n)").first()[:] == (30_000, sum(range(30_000)))
    assert stats(bucket)[:2] == (1, 0)
    assert read.exceptAll(df).count() == 0


def test_bulk_load_sorts_with_spark_and_merges_nothing(spark: SparkSession, bucket: Bucket) -> None:
    df = spark.range(0, 20_000, 1, 3).selectExpr("cast(19999 - id as string) id", "id as n")
    bulk_load(df, bucket.url, "ns", partitions=5, job_key="once")
    assert stats(bucket) == (1, 0, 5)
    bulk_load(df, bucket.url, "ns", job_key="once")
    assert stats(bucket)[:2] == (1, 0)
    assert load(spark, bucket).exceptAll(df).count() == 0
    with pytest.raises(reef.InvalidInputError, match="have no 'id' among them"):
        bulk_load(df.withColumnRenamed("id", "key"), bucket.url, "ns")


def test_every_type_comes_back_as_it_went(spark: SparkSession, bucket: Bucket) -> None:
    types = {
        "text": "string",
        "whole": "int64",
        "natural": "uint64",
        "real": "float64",
        "is": "bool",
        "at": "datetime",
        "who": "uuid",
        "raw": "bytes",
        "any": "json",
        "v": "vector[2]",
        "h": "vector[2]f16",
        "s": "sparse",
        "tags": "[]string",
    }
    row = {
        "id": "a",
        "text": "x",
        "whole": -1,
        "natural": 2**64 - 1,
        "real": 0.5,
        "is": True,
        "at": datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
        "who": uuid.UUID(int=7),
        "raw": b"\0\xff",
        "any": {"k": [1, None]},
        "v": [1.0, -2.0],
        "h": [0.5, 0.25],
        "tags": ["p", "q"],
        "s": {"indices": [1, 9], "values": [0.5, 0.25]},
    }
    with reef.connect(bucket.url) as db, db.namespace("ns", schema=types) as ns:
        ns.upsert([row, {"id": "b"}])
    for method, name in (("log", "by_log"), ("bulk", "by_bulk")):
        with reef.connect(bucket.url) as db:
            db.namespace(name, schema=types).close()
        save(load(spark, bucket), bucket, name, method=method)
        assert content(bucket, name) == content(bucket)


def test_new_attributes_are_declared(spark: SparkSession, bucket: Bucket) -> None:
    df = spark.sql("select 'a' id, array(1.0f, 2.0f) as vector, '[1]' as body, current_date() as d")
    with pytest.raises(PySparkException, match="declare it"):
        save(df, bucket)
    for method in ("log", "bulk"):
        save(df, bucket, method, method=method, declared="vector=vector[2],body=json")
        with reef.connect(bucket.url) as db, db.namespace(method, mode="r") as ns:
            assert ns.schema == {"vector": "vector[2]", "body": "json", "d": "datetime"}


def test_patch_delete_and_create(spark: SparkSession, bucket: Bucket) -> None:
    df = spark.range(0, 10, 1, 2).selectExpr("cast(id as string) id", "id as n", "'x' as t")
    save(df, bucket)
    save(df.where("n = 3").selectExpr("id", "'y' as t"), bucket, operation="patch")
    assert content(bucket)["3"] == {"n": 3, "t": "y"}
    save(df.where("n > 4"), bucket, operation="delete")
    assert sorted(content(bucket)) == ["0", "1", "2", "3", "4"]
    with pytest.raises(PySparkException, match="do not meet CreateOnly"):
        save(df, bucket, operation="create")
    assert len(content(bucket)) == 5
    save(df, bucket, operation="create", skip="true")
    assert len(content(bucket)) == 10
    assert content(bucket)["3"] == {"n": 3, "t": "y"}


def test_keys_and_values(spark: SparkSession, bucket: Bucket) -> None:
    df = spark.range(0, 100, 1, 2).select(
        F.encode(F.col("id").cast("string"), "utf-8").alias("key"), F.lit(b"v").alias("value")
    )
    save(df, bucket, face="kv")
    assert load(spark, bucket).exceptAll(df).count() == 0


def test_a_retried_job_loads_nothing_twice(spark: SparkSession, bucket: Bucket) -> None:
    df = spark.range(0, 100, 1, 2).selectExpr("cast(id as string) id", "id as n")
    for method in ("log", "bulk"):
        save(df, bucket, method, method=method, job_key="night-1")
        save(df.repartition(3), bucket, method, method=method, job_key="night-1")
        assert stats(bucket, method)[:2] == (1, 0)


def test_what_fails_leaves_nothing_behind(spark: SparkSession, bucket: Bucket) -> None:
    twice = spark.sql("select 'a' id, 1 n").union(spark.sql("select 'a' id, 2 n"))
    with pytest.raises(PySparkException, match="id 'a' appears more than once"):
        save(twice, bucket, method="bulk")
    assert content(bucket) == {}
    assert stats(bucket)[1] == 0
    df = spark.range(0, 1000, 1, 2).selectExpr(
        "cast(id as string) id", "assert_true(id < 990) is null as ok"
    )
    with pytest.raises(PySparkException):
        save(df, bucket, method="bulk")
    assert content(bucket) == {}
    until(lambda: stats(bucket)[1] == 0, "a task that goes on after the abort ends the intent too")
    save(twice, bucket, duplicates="last")
    assert len(content(bucket)) == 1


def test_modes_and_options_that_are_refused(spark: SparkSession, bucket: Bucket) -> None:
    df = spark.sql("select 'a' id")
    writer = df.write.format("reef").options(url=bucket.url, namespace="ns")
    with pytest.raises(PySparkException, match="write to a new namespace"):
        writer.mode("overwrite").save()
    with pytest.raises(PySparkException, match="one of auto, log, bulk"):
        save(df, bucket, method="fast")
    with pytest.raises(PySparkException, match="have no 'id' among them: rename the one"):
        save(df.withColumnRenamed("id", "key"), bucket)
    with pytest.raises(PySparkException, match="have no 'id' among them: give the option face=kv"):
        save(df.selectExpr("id as key", "id as value"), bucket)
    numbers = spark.sql("select 'a' id, 1L n")
    for declared in ("m=float64", "id=string"):
        with pytest.raises(PySparkException, match="one of the columns id, n"):
            save(numbers, bucket, declared=declared)
    save(numbers, bucket, declared="n=int64")
    with pytest.raises(PySparkException, match="n=string, but the attribute is int64"):
        save(numbers, bucket, declared="n=string")
    assert content(bucket) == {"a": {"n": 1}}


def test_names_may_have_dots_and_backticks(spark: SparkSession, bucket: Bucket) -> None:
    df = spark.sql("select 'a' id, 1L `x.y`, 2L `c``d`, array(3L) `[0]`")
    wanted = {"a": {"x.y": 1, "c`d": 2, "[0]": [3]}}
    save(df, bucket, "saved")
    write(df, bucket.url, "written")
    bulk_load(df, bucket.url, "loaded")
    assert [content(bucket, name) for name in ("saved", "written", "loaded")] == [wanted] * 3


def test_maps_are_objects_and_variants_are_refused(spark: SparkSession, bucket: Bucket) -> None:
    df = spark.sql("select 'a' id, map('x', 1, 'y', null) m, parse_json('[1]') v")
    for column in ("v", "array(v)", "named_struct('v', v)"):
        with pytest.raises(
            PySparkException, match=r"variant.*convert it to JSON text with to_json"
        ):
            save(df.selectExpr("id", f"{column} as v"), bucket)
    save(df.selectExpr("id", "m", "to_json(v) v"), bucket, declared="v=json")
    assert content(bucket) == {"a": {"m": '{"x":1,"y":null}', "v": "[1]"}}
