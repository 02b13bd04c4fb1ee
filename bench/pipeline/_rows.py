"""The rows that the pipeline is measured with: 300 bytes each, in random order, some written twice."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import reef
from bench._measure import check

NAMESPACE = "rows"
ROW_BYTES = 300
"""In Arrow: five columns, three of them text."""
CATEGORIES = 1_000
COLUMNS = ("id", "price", "rank", "category", "body")

_BATCH = 50_000
_FILES = 8
_BODY_BYTES = 252
_AGAIN = 16
"""One row of so many writes an id that is there already."""
_LETTERS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", "u1")

# The writer folds nothing by itself: all of the log is there for `index`.
_NEVER_FLUSHED: dict[str, Any] = {
    "memtable_max_bytes": 1 << 40,
    "unfolded_log_max_bytes": 1 << 40,
    "flush_threshold_bytes": 1 << 40,
    "flush_threshold_slots": 1 << 30,
    "flush_interval": 0,
}


def address(folder: Path) -> str:
    """Return the URL of a bucket; nothing here is fsynced, neither ours nor a rival's."""
    return f"file://{folder}?fsync=off"


@dataclass(frozen=True)
class Written:
    """How many rows were written, and how many there are: some in place of others."""

    versions: int
    rows: int


def write_rows(bucket: Path, parquet: Path, rows: int) -> Written:
    """Write about `rows` rows to a log that is not folded, and what they come to as Parquet.

    They are in random order in both.
    """
    for made in (bucket, parquet):
        made.mkdir()
    batches = _numbers(rows)
    last = np.zeros(rows, np.int32)
    for number, batch in enumerate(batches):
        last[batch] = number
    per_file = -(-len(batches) // _FILES)
    count = 0
    with (
        reef.connect(address(bucket)) as db,
        db.namespace(NAMESPACE, **_NEVER_FLUSHED) as ns,
    ):
        for first in range(0, len(batches), per_file):
            with pq.ParquetWriter(
                parquet / f"{first:05d}.parquet", _table(batches[0][:0], 0).schema
            ) as file:
                for number in range(first, min(first + per_file, len(batches))):
                    table = _table(batches[number], seed=number)
                    ns.upsert(table)
                    newest = table.filter(pa.array(last[batches[number]] == number))
                    file.write_table(newest)
                    count += newest.num_rows
    return Written(sum(map(len, batches)), count)


def _numbers(rows: int) -> list[np.ndarray]:
    """Return the numbers of the ids that each batch has: most of them new, in random order."""
    rng = np.random.default_rng(0)
    again = rows // _AGAIN
    fresh = np.array_split(rng.permutation(rows - again), max(2, rows // _BATCH))
    batches = [fresh[0]]
    for number, new in enumerate(fresh[1:], 1):
        known = fresh[number // 2]  # of a batch that is long gone, for the most part
        old = rng.choice(known, min(len(known), again // (len(fresh) - 1)), replace=False)
        batches.append(rng.permutation(np.concatenate([new, old])))
    return batches


def _table(numbers: np.ndarray, seed: int) -> pa.Table:
    rng, count = np.random.default_rng(seed), len(numbers)
    letters = _LETTERS[rng.integers(0, 64, count * _BODY_BYTES, np.uint8)]
    ends = np.arange(0, (count + 1) * _BODY_BYTES, _BODY_BYTES, dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(letters)]
    return pa.table(
        {
            "id": _text("row-", numbers, 12),
            "price": rng.random(count),
            "rank": numbers // 10,
            "category": _text("c", rng.integers(0, CATEGORIES, count), 3),
            "body": pa.Array.from_buffers(pa.string(), count, buffers),
        }
    )


def _text(prefix: str, numbers: np.ndarray, width: int) -> pa.Array:
    padded = pc.utf8_lpad(pa.array(numbers, pa.int64()).cast(pa.string()), width, "0")
    return pc.binary_join_element_wise(prefix, padded, "")


def linked(source: Path, target: Path) -> Path:
    """Return a copy of a bucket: no object ever changes, so it takes links and no bytes."""
    shutil.copytree(source, target, copy_function=os.link)
    return target


def uncached(folder: Path) -> None:
    """Make the kernel forget what it keeps of the files of a folder: the next read is from disk."""
    os.sync()  # what is not written yet is not forgotten
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def digest(bucket: Path, rows: int) -> str:
    """Return a digest of the rows of a bucket, in order of ids, of which there must be so many."""
    with reef.connect(address(bucket)) as db, db.namespace(NAMESPACE, mode="r") as ns:
        return _digest(ns.scan(columns=COLUMNS[1:]), rows)


def parquet_digest(folder: Path, rows: int) -> str:
    """Return the same of Parquet files that are sorted, one behind the other."""

    def batches() -> Iterator[pa.RecordBatch]:
        for path in sorted(folder.glob("*.parquet")):
            yield from pq.ParquetFile(path).iter_batches(columns=list(COLUMNS))

    return _digest(batches(), rows)


def _digest(batches: Iterable[pa.RecordBatch], rows: int) -> str:
    """Return a digest of values, however they come in batches."""
    hashes: dict[tuple[str, int], Any] = {}
    count = 0
    for batch in batches:
        count += batch.num_rows
        for name in COLUMNS:
            for part, data in enumerate(_parts(batch.column(name))):
                hashes.setdefault((name, part), hashlib.blake2b()).update(data)
    check(count == rows, f"there are {rows:,} rows, not {count:,}")
    return " ".join(hashes[key].hexdigest() for key in sorted(hashes))


def _parts(column: pa.Array) -> Iterator[np.ndarray | pa.Buffer]:
    """Yield the values of a column as bytes; of text, how long each is, too."""
    if pa.types.is_primitive(column.type):
        yield column.to_numpy(zero_copy_only=False)
        return
    plain = column.cast(pa.binary())
    yield pc.binary_length(plain).to_numpy()
    ends = np.frombuffer(plain.buffers()[1], np.int32)[plain.offset : plain.offset + len(plain) + 1]
    yield plain.buffers()[2][ends[0] : ends[-1]]
