"""The documents that benchmarks measure with, where they lie, and turns that are fair to all."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench._measure import Ratio
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


def some_of(table: pa.Table, count: int, seed: int) -> pa.Table:
    """Return documents with ids that are in `table` of `shuffled` numbers, and with new values."""
    chosen = np.random.default_rng(seed).choice(table.num_rows, count, replace=False)
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


def timed(run: Callable[[], object]) -> float:
    """Return the seconds that `run` takes when nobody's garbage and dirty pages are in its way."""
    gc.collect()
    os.sync()
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def in_turn(
    runs: Mapping[str, Callable[[], float]], rounds: int, first: int = 0
) -> dict[str, list[float]]:
    """Return what each run says that it took, round by round, each time another one first."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for turn in range(first, first + rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            times[name].append(runs[name]())
    return times


def rated(result: Ratio, documents: int, note: str) -> Ratio:
    """Return `result` with documents per second in its note."""
    speeds = f"{documents / result.ours_s:,.0f} docs/s to {documents / result.rival_s:,.0f}"
    return replace(result, note=f"{speeds} ({note})")


def check(holds: object, what: str) -> None:
    """Refuse to measure what does not do the same work on both sides."""
    if not holds:
        raise AssertionError(f"this does not hold: {what}")
