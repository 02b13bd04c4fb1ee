"""The documents that benchmarks measure with, and the folder they lie in."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench._places import CACHE

BATCH = 10_000
DIMENSION = 128
CATEGORIES = 1_000
ATTRIBUTES = ("price", "category", "rank")
SYNCS = {"fsync=off": "?fsync=off", "fsync": ""}
"""What Reef's URL ends with."""


def documents_of(numbers: np.ndarray, dimension: int = DIMENSION, seed: int = 1) -> pa.Table:
    """Return a document for each number, with a random vector and random attributes."""
    rng, count = np.random.default_rng(seed), len(numbers)
    vectors = pa.array(rng.standard_normal(count * dimension, dtype=np.float32))
    return pa.table(
        {
            "id": _text("doc-", numbers, 10),
            "vector": pa.FixedSizeListArray.from_arrays(vectors, dimension),
            "price": rng.random(count),
            "category": _text("category-", rng.integers(0, CATEGORIES, count), 4),
            "rank": rng.integers(0, 10**9, count),
        }
    )


def shuffled(count: int) -> np.ndarray:
    """Return the numbers up to `count` in random order."""
    return np.random.default_rng(0).permutation(count)


@cache
def corpus(count: int) -> pa.Table:
    """Return so many documents in random order of ids; made once by each process."""
    return documents_of(shuffled(count))


def changes_of(corpus_count: int, count: int, seed: int) -> pa.Table:
    """Return new values for some documents of the corpus."""
    chosen = np.random.default_rng(seed).choice(corpus_count, count, replace=False)
    return documents_of(chosen, seed=seed + 1000)


def batches_of(table: pa.Table) -> list[pa.Table]:
    """Return the table in pieces of `BATCH`."""
    return [table.slice(start, BATCH) for start in range(0, table.num_rows, BATCH)]


def _text(prefix: str, numbers: np.ndarray, width: int) -> pa.Array:
    padded = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), width, "0")
    return pc.binary_join_element_wise(prefix, padded, "")


@contextmanager
def folder() -> Iterator[Path]:
    """Yield an empty folder below `.cache`: a temporary one might lie in memory."""
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=CACHE) as name:
        Path(name, "reef").mkdir()
        yield Path(name)


def emptied(path: Path) -> None:
    """Remove what a run has left."""
    shutil.rmtree(path)
    path.mkdir()
