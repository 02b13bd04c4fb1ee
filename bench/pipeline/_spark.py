"""Rows through Spark: the data source `reef` against Parquet of the same rows, in one session."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame

from bench._fresh import Pass, whole
from bench._measure import Ratio, check, compare, in_turn, ratio_of, with_fresh
from bench.pipeline._rows import COLUMNS, NAMESPACE, ROW_BYTES, address, digest, parquet_digest
from bench.pipeline._runner import spark_session
from reef.spark import bulk_load

FILE_BYTES = 128 << 20
"""About what one part of a sorted DataFrame holds, and what Spark reads as one split."""


def bench_loads(
    here: Path, source: Path, by_id: Path, rows: int, rounds: int, expected: str
) -> Iterator[Ratio]:
    """A DataFrame in no order, sorted and written, visible all at once; as many parts on both sides.

    Leaves the sorted Parquet as `by_id`.
    """
    parts = max(2, round(rows * ROW_BYTES / FILE_BYTES))
    loaded = here / "loaded"
    loaded.mkdir()
    _load(source, loaded, parts)
    _write_sorted(source, by_id, parts)
    check(digest(loaded, rows) == expected, "the load left the rows of the source")
    check(parquet_digest(by_id, rows) == expected, "and so did Spark's own write")
    shutil.rmtree(loaded)
    ours = partial(opened_load, here, source, parts)
    rival = partial(opened_sorted_write, here, source, parts)
    times = in_turn({"ours": ours, "rival": rival}, rounds, reopened=True)
    result = ratio_of(
        "bulk load",
        times["ours"],
        times["rival"],
        by="fastest",
        bar=0.5,
        note=f"{rows:,} rows from Parquet in random order, {parts} parts",
        against="Spark, sorted Parquet",
    )
    yield with_fresh(result, ours, rival, written_bytes=rows * ROW_BYTES)


@contextmanager
def opened_load(here: Path, source: Path, parts: int) -> Iterator[Pass]:
    """A bulk load into a new bucket, which is removed."""
    with tempfile.TemporaryDirectory(dir=here) as bucket:
        spark_session()
        yield whole(lambda: _load(source, Path(bucket), parts))


@contextmanager
def opened_sorted_write(here: Path, source: Path, parts: int) -> Iterator[Pass]:
    """Sorted Parquet into a new folder, which is removed."""
    with tempfile.TemporaryDirectory(dir=here) as target:
        spark_session()
        yield whole(lambda: _write_sorted(source, Path(target), parts))


def _load(source: Path, bucket: Path, parts: int) -> None:
    frame = spark_session().read.parquet(str(source))
    bulk_load(frame, address(bucket), NAMESPACE, partitions=parts)


def _write_sorted(source: Path, target: Path, parts: int) -> None:
    """Write Parquet in order of ids, as Spark's users do it."""
    frame = spark_session().read.parquet(str(source))
    ranged = frame.repartitionByRange(parts, "id").sortWithinPartitions("id")
    ranged.write.mode("append").parquet(str(target))


def bench_reads(
    url: str, parquet: Path, count: int, rounds: int, codec: str = "lz4"
) -> Iterator[Ratio]:
    """Everything, and one row in a hundred: by ids, by a column that follows them, by one that does not.

    The bars are for a bottom run in lz4, the default.
    """
    low, many = count // 2, count // 100
    categories = ", ".join(f"'c{number:03d}'" for number in range(10))
    wheres: dict[str, tuple[str, float | None]] = {
        "full scan": ("", 0.6),
        "1% of the ids": (f"id >= 'row-{low:012d}' AND id < 'row-{low + many:012d}'", 1.0),
        "1% by rank": (f"rank >= {low // 10} AND rank < {(low + many) // 10}", 1.0),
        "1% by category": (f"category IN ({categories})", 1.0),
    }
    for name, (where, bar) in wheres.items():
        mine, other = _summary(_read(url, where)), _summary(_read_parquet(parquet, where))
        check(mine == other, f"{name} returns the same on both sides: {mine}, {other}")
        rows = mine[0]
        check(rows if where else rows == count, f"{name} returns {rows:,} rows")
        yield compare(
            f"Spark read, {name}" if codec == "lz4" else f"Spark read, {name}, {codec}",
            partial(opened_read, url, where),
            partial(opened_parquet_read, parquet, where),
            bar=bar if codec == "lz4" else None,
            rounds=rounds,
            note=f"{rows:,} rows of all columns; planning is in the time, on both sides",
            against="spark.read.parquet",
        )


@contextmanager
def opened_read(url: str, where: str) -> Iterator[Pass]:
    """A read of ours."""
    spark_session()
    yield whole(lambda: _drain(_read(url, where)))


@contextmanager
def opened_parquet_read(parquet: Path, where: str) -> Iterator[Pass]:
    """A read of the rival's."""
    spark_session()
    yield whole(lambda: _drain(_read_parquet(parquet, where)))


def _read(url: str, where: str) -> DataFrame:
    options = {"url": url, "namespace": NAMESPACE, "where": where}
    return spark_session().read.format("reef").options(**options).load()


def _read_parquet(parquet: Path, where: str) -> DataFrame:
    frame = spark_session().read.parquet(str(parquet))
    return frame.where(where) if where else frame


def _drain(frame: DataFrame) -> None:
    """Read every row and every column, and keep nothing."""
    frame.write.format("noop").mode("overwrite").save()


def _summary(frame: DataFrame) -> tuple[int, int]:
    """Return how many rows there are, and a sum over all of their values."""
    hashed = f"sum(xxhash64({', '.join(COLUMNS)}) & 4294967295)"
    count, total = frame.selectExpr("count(*)", hashed).collect()[0]
    return count, total
