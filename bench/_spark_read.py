"""Reading through Spark: the data source `reef` against Parquet, the same rows, one session.

    python -m bench._spark_read [ROWS] [BATCH_BYTES ...]

Rows have about 300 bytes. Each measurement is taken in turns, the median counts; session start and
a first read of each, which loads classes, are not counted.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import reef
from reef.spark import session

NAMESPACE = "rows"
BATCH = 50_000
FILES = 8
TURNS = 5


def table_of(first: int, count: int) -> pa.Table:
    """Return rows of about 300 bytes under ids in order."""
    rng = np.random.default_rng(first)
    numbers = np.arange(first, first + count)
    words = rng.integers(0, 2**63, (count, 15)).astype("U19")
    body = pa.array(["".join(row)[:240] for row in words.tolist()])
    return pa.table(
        {
            "id": pa.array([f"row-{n:012d}" for n in numbers.tolist()]),
            "price": rng.random(count),
            "rank": numbers // 10,
            "category": pa.array([f"c{n:03d}" for n in rng.integers(0, 1000, count).tolist()]),
            "body": body,
        }
    )


def make(folder: Path, rows: int) -> tuple[str, str]:
    """Write the same rows as documents and as Parquet; return where."""
    url = (folder / "bucket").as_uri() + "?fsync=off"
    parquet = folder / "parquet"
    parquet.mkdir()
    per_file = -(-rows // FILES)
    with reef.connect(url) as db, db.namespace(NAMESPACE) as ns:
        for number in range(FILES):
            first = number * per_file
            table = table_of(first, min(per_file, rows - first))
            pq.write_table(table, parquet / f"{number}.parquet")
            for at in range(0, table.num_rows, BATCH):
                ns.upsert(table.slice(at, BATCH))
        ns.flush()
    return url, str(parquet)


def drained(frame: DataFrame) -> None:
    """Read every row and every column, and keep nothing."""
    frame.write.format("noop").mode("overwrite").save()


def seconds(action: Callable[[], object]) -> float:
    """Return how long `action` takes."""
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def compare(name: str, ours: Callable[[], object], theirs: Callable[[], object]) -> float:
    """Print the medians of both, taken in turns, and return how many times as fast ours is."""
    ours(), theirs()
    took = [(seconds(ours), seconds(theirs)) for _ in range(TURNS)]
    mine, other = (statistics.median(column) for column in zip(*took, strict=True))
    print(
        f"{name:34} reef {mine:7.3f} s   parquet {other:7.3f} s   ratio {other / mine:5.2f}x",
        flush=True,
    )
    return other / mine


def run(spark: SparkSession, url: str, parquet: str, rows: int, batch_bytes: list[str]) -> None:
    """Measure full scans, a projection, a 1% range of keys and a 1% filter."""

    def ours(**options: str) -> DataFrame:
        return spark.read.format("reef").options(url=url, namespace=NAMESPACE, **options).load()

    def theirs() -> DataFrame:
        return spark.read.parquet(parquet)

    for size in batch_bytes:
        frame = ours(batch_bytes=size)
        compare(
            f"full scan, batches of {size}", lambda f=frame: drained(f), lambda: drained(theirs())
        )
    compare("full scan, with load()", lambda: drained(ours()), lambda: drained(theirs()))
    narrow = ours(columns="id,price")
    compare(
        "two columns",
        lambda: drained(narrow),
        lambda: drained(theirs().select("id", "price")),
    )
    low = f"row-{rows // 2:012d}"
    high = f"row-{rows // 2 + rows // 100:012d}"
    keys = f"id >= '{low}' AND id < '{high}'"
    compare("1% of keys", lambda: drained(ours(where=keys)), lambda: drained(theirs().where(keys)))
    rank = f"rank >= {rows // 20} AND rank < {rows // 20 + rows // 1000}"
    compare("1% by rank", lambda: drained(ours(where=rank)), lambda: drained(theirs().where(rank)))
    some = "category in ('c001', 'c002', 'c003', 'c004', 'c005', 'c006', 'c007', 'c008', 'c009', 'c010')"
    compare(
        "1% by category, everywhere",
        lambda: drained(ours(where=some)),
        lambda: drained(theirs().where(some)),
    )


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        url, parquet = make(Path(folder), rows)
        spark = session("bench", "local[2]")
        try:
            run(spark, url, parquet, rows, sys.argv[2:] or ["4MiB"])
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
