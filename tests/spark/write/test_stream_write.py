"""Streaming writes: every micro-batch once, whatever dies in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import reef
from reef.jobs import Bucket
from reef.spark import WriteResult, register, write
from tests.support.waiting import DEADLINE_SECONDS

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module", autouse=True)
def registered(spark: SparkSession) -> None:
    register(spark)
    spark.conf.set("spark.sql.shuffle.partitions", "2")


def operations(url: str, name: str = "ns") -> Counter[str]:
    """Return how often each id was written, by the feed."""
    with reef.connect(url) as db, db.namespace(name, mode="r") as ns:
        return Counter(id for rows in ns.changes() for id in rows.column("id").to_pylist())


def drive(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "tests.spark.write.stream_driver",
        str(folder),
        *map(str, arguments),
    ]
    paths = f"{ROOT / 'src'}:{ROOT}"
    env = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run(
        command,
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_SECONDS,
        check=False,
    )


def killed_and_restarted(folder: Path, last: int, method: str, deaths: list[str]) -> str:
    """Run a stream of 5 rows a batch as often as it takes; return its bucket."""
    (folder / "bucket").mkdir()
    for _ in deaths:
        done = drive(folder, last, 5, method, *deaths)
        assert done.returncode == -signal.SIGKILL, done.stderr
    done = drive(folder, last, 5, method, *deaths)
    assert done.returncode == 0, done.stderr
    assert all((folder / point).exists() for point in deaths)
    return f"file://{folder}/bucket?fsync=off"


@pytest.mark.timeout(4 * 2 * DEADLINE_SECONDS)  # four drivers
@pytest.mark.parametrize("least", [30, pytest.param(200, marks=pytest.mark.nightly)])
def test_micro_batches_with_a_driver_killed_in_between(tmp_path: Path, least: int) -> None:
    deaths = ["after=0", f"before={least // 3}", f"after={2 * least // 3}"]
    url = killed_and_restarted(tmp_path, least - 1, "auto", deaths)
    found = operations(url)
    batches = len(found) // 5
    assert batches >= least
    assert found == Counter(f"{i:08d}" for i in range(5 * batches))
    with reef.connect(url) as db:
        assert list(db.store.list("namespaces/ns/segments/")) == []


@pytest.mark.timeout(3 * 2 * DEADLINE_SECONDS)  # three drivers
def test_micro_batches_as_bulk_loads_with_a_driver_killed_in_between(tmp_path: Path) -> None:
    url = killed_and_restarted(tmp_path, 6, "bulk", ["before=2", "after=4"])
    found = operations(url)
    assert len(found) >= 35
    assert found == Counter(f"{i:08d}" for i in range(len(found)))


def copying(df: DataFrame, bucket: Bucket, folder: Path, **options: str) -> DataStreamWriter:
    return (
        df.writeStream.format("reef")
        .options(url=bucket.url, namespace="copy", checkpointLocation=str(folder / "checkpoint"))
        .options(**options)
    )


def finish(writer: DataStreamWriter) -> None:
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()


def test_a_feed_is_copied_on_and_on(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    def add(first: int, count: int) -> None:
        with reef.connect(bucket.url) as db, db.namespace("ns") as ns:
            ns.upsert([{"id": f"{i:03d}", "n": i} for i in range(first, first + count)])

    add(0, 10)
    feed = spark.readStream.format("reef").options(
        url=bucket.url, namespace="ns", starting="earliest"
    )
    for first in (10, 20):
        finish(copying(feed.load().select("id", "n"), bucket, tmp_path))
        add(first, 10)
    finish(copying(feed.load().select("id", "n"), bucket, tmp_path))
    assert operations(bucket.url, "copy") == Counter(f"{i:03d}" for i in range(30))


def test_a_query_may_be_counted_under_a_name(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    with reef.connect(bucket.url) as db, db.namespace("ns") as ns:
        ns.upsert([{"id": "a", "n": 1}])
    feed = spark.readStream.format("reef").options(
        url=bucket.url, namespace="ns", starting="earliest"
    )
    for number in (1, 2):  # another checkpoint: by its own id it would be another query
        folder = tmp_path / f"{number}"
        finish(copying(feed.load().select("id", "n"), bucket, folder, query_id="copy-1"))
    assert operations(bucket.url, "copy") == Counter("a")


def test_what_a_stream_cannot_be(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    rate = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=1).load()
    counts = rate.groupBy("value").count().selectExpr("cast(value as string) id", "count")
    with pytest.raises(
        PySparkException, match="outputMode = 'complete' cannot be written: use append"
    ):
        finish(copying(counts, bucket, tmp_path / "1").outputMode("complete"))
    with pytest.raises(PySparkException, match="have no 'id' among them"):
        finish(copying(rate, bucket, tmp_path / "2"))
    with pytest.raises(PySparkException, match="is given for a stream"):
        finish(copying(rate.selectExpr("'a' id"), bucket, tmp_path / "3", job_key="k"))


def test_aggregates_are_written_once_by_foreach_batch(
    spark: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    results: list[WriteResult] = []

    def put(df: DataFrame, number: int) -> None:
        said = {"source": "counts-1", "sequence": number}
        results.append(write(df, bucket.url, "copy", **said))
        # As if the driver had died before Spark took note of it.
        results.append(write(df, bucket.url, "copy", **said))

    with reef.connect(bucket.url) as db, db.namespace("ns") as ns:
        ns.upsert([{"id": f"{i}", "kind": "odd" if i % 2 else "even"} for i in range(9)])
    feed = spark.readStream.format("reef").options(
        url=bucket.url, namespace="ns", starting="earliest"
    )
    counts = feed.load().groupBy("kind").count().selectExpr("kind as id", "`count` as n")
    stream = counts.writeStream.outputMode("update").foreachBatch(put)
    finish(stream.options(checkpointLocation=str(tmp_path / "checkpoint")))
    assert [result.replayed for result in results if result.rows or result.replayed] == [
        False,
        True,
    ]
    with reef.connect(bucket.url) as db, db.namespace("copy", mode="r") as ns:
        assert ns.get_many(["odd", "even"], columns=["n"]) == [
            {"id": "odd", "n": 4},
            {"id": "even", "n": 5},
        ]
