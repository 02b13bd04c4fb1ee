"""Rows through Spark: the data source `reef` against Parquet of the same rows, in one session."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from bench._corpus import check, emptied, in_turn, timed
from bench._measure import Ratio, compare, ratio_of
from bench._pipeline_rows import COLUMNS, NAMESPACE, ROW_BYTES, address, digest, parquet_digest
from bench._spark_read import drained
from reef.spark import bulk_load

FILE_BYTES = 128 << 20
"""About what one part of a sorted DataFrame holds, and what Spark reads as one split."""


def bench_loads(
    spark: SparkSession, here: Path, source: Path, rows: int, rounds: int, expected: str
) -> Iterator[Ratio]:
    """A DataFrame in no order, sorted and written, visible all at once; as many parts on both sides.

    Leaves the sorted Parquet as `here / "sorted"`.
    """
    parts = max(2, round(rows * ROW_BYTES / FILE_BYTES))
    buckets, written = here / "buckets", here / "sorted"

    def ours() -> float:
        emptied(buckets)
        bucket = Path(tempfile.mkdtemp(dir=buckets))  # another each time: workers know the last one
        frame = spark.read.parquet(str(source))
        return timed(lambda: bulk_load(frame, address(bucket), NAMESPACE, partitions=parts))

    def theirs() -> float:
        emptied(written)
        frame = spark.read.parquet(str(source))
        return timed(lambda: _write_sorted(frame, parts, written))

    for made in (buckets, written):
        made.mkdir()
    ours(), theirs()  # warm
    check(digest(next(buckets.iterdir()), rows) == expected, "what was loaded is what there was")
    check(parquet_digest(written, rows) == expected, "and so is what Spark has written")
    times = in_turn({"ours": ours, "rival": theirs}, rounds)
    yield ratio_of(
        "bulk load",
        times["ours"],
        times["rival"],
        by="fastest",
        bar=0.5,
        note=f"{rows:,} rows from Parquet in random order, {parts} parts",
        against="Spark, sorted Parquet",
    )
    shutil.rmtree(buckets)


def _write_sorted(frame: DataFrame, parts: int, target: Path) -> None:
    """Write Parquet in order of ids, as Spark's users do it."""
    ranged = frame.repartitionByRange(parts, "id").sortWithinPartitions("id")
    ranged.write.mode("append").parquet(str(target))


def bench_reads(
    spark: SparkSession, url: str, parquet: Path, count: int, rounds: int, how: str = ""
) -> Iterator[Ratio]:
    """Everything, and one row in a hundred: by ids, by a column that follows them, by one that does not."""
    low, many = count // 2, count // 100
    categories = ", ".join(f"'c{number:03d}'" for number in range(10))
    wheres = {
        "full scan": ("", 0.6),
        "1% of the ids": (f"id >= 'row-{low:012d}' AND id < 'row-{low + many:012d}'", 1.0),
        "1% by rank": (f"rank >= {low // 10} AND rank < {(low + many) // 10}", 1.0),
        "1% by category": (f"category IN ({categories})", 1.0),
    }
    for name, (where, bar) in wheres.items():

        def ours(where: str = where) -> DataFrame:
            options = {"url": url, "namespace": NAMESPACE, "where": where}
            return spark.read.format("reef").options(**options).load()

        def theirs(where: str = where) -> DataFrame:
            frame = spark.read.parquet(str(parquet))
            return frame.where(where) if where else frame

        mine, other = _summary(ours()), _summary(theirs())
        check(mine == other, f"{name} finds the same on both sides: {mine}, {other}")
        found = mine[0]
        check(found if where else found == count, f"{name} finds {found:,} rows")
        yield compare(
            f"Spark read, {name}{how}",
            lambda ours=ours: drained(ours()),
            lambda theirs=theirs: drained(theirs()),
            bar=bar,
            rounds=rounds,
            note=f"{found:,} rows of all columns; the plan is in the time, on both sides",
            against="spark.read.parquet",
        )


def _summary(frame: DataFrame) -> tuple[int, int]:
    """Return how many rows there are, and a sum over all of their values."""
    hashed = f"sum(xxhash64({', '.join(COLUMNS)}) & 4294967295)"
    count, total = frame.selectExpr("count(*)", hashed).collect()[0]
    return count, total
