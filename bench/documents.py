"""Documents against LanceDB: the same 200,000 on the same disk, 128-d vectors and 3 attributes.

Ids are text and come in random order. Reef runs with its default settings. What is written is
measured without fsync, as LanceDB does it, and with.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

import reef
from bench import lance
from bench._corpus import (
    ATTRIBUTES,
    CATEGORIES,
    DIMENSION,
    batches_of,
    check,
    documents_of,
    folder,
    rated,
    shuffled,
)
from bench._document_writes import bench_ingest, bench_single_upserts, bench_upserts
from bench._fresh_ingest import bench_fresh_ingest
from bench._measure import Count, Ratio, Result, compare, ratio_of
from bench._scan_peak import scan_peak
from bench.lance import Lance, fastest_of
from reef.documents import Documents

T = TypeVar("T")

K = 10


def bench_documents(documents: int = 200_000, scanned: int = 5_000_000) -> Iterator[Result]:
    """All figures of documents, in a folder on a disk."""
    table = documents_of(shuffled(documents))
    for figure in (bench_ingest, bench_upserts, bench_single_upserts):
        with folder() as here:  # empty, so that no figure meets what another has left
            yield from figure(here, table)
    with folder() as here:
        yield from bench_fresh_ingest(here, documents)
    with folder() as here, _read_only(here, table) as (ns, rival):
        for reading in (_gets, _scans, _searches, _filters):
            yield from reading(ns, rival, table)
    with folder() as here:
        yield _peak(here, scanned)


@contextmanager
def _read_only(here: Path, table: pa.Table) -> Iterator[tuple[Documents, Lance]]:
    """Yield both sides with the same documents: ours in segments, theirs optimized and indexed."""
    url = f"file://{here}/reef?fsync=off"
    with (
        reef.connect(url) as db,
        db.namespace("documents") as ns,
        Lance(here / "rival", table.schema) as rival,
    ):
        for batch in batches_of(table):
            ns.upsert(batch)
            rival.table.add(batch)
        ns.flush()
        rival.table.optimize()
        rival.index()
        yield ns, rival


def _gets(ns: Documents, rival: Lance, table: pa.Table, rounds: int = 21) -> Iterator[Ratio]:
    """Whole documents as dicts, by id; each was read before."""
    chosen = np.random.default_rng(2).choice(table.num_rows, (rounds, 25))
    ids = [table["id"].take(pa.array(some)).to_pylist() for some in chosen]
    every = list(itertools.chain.from_iterable(ids))
    way = fastest_of(lance.GETS, lambda way: [rival.get(id, way) for id in every[:100]])
    for id in every:
        check(ns.get(id) == rival.get(id, way), f"{id} is the same on both sides")
    times: list[list[float]] = [[], [], []]
    runs = (
        lambda some: _each(ns.get, some),
        lambda some: _each(lambda id: rival.get(id, way), some),
        rival.time_async_gets,
    )
    for turn, some in enumerate(ids):
        for i in range(3):
            which = (turn + i) % 3
            times[which] += runs[which](some)
    note = f"{table.num_rows:,} documents in segments, B-tree; a dict with its vector"
    for rival_times, bar, api in ((times[1], 20.0, way), (times[2], None, "its async API")):
        yield ratio_of(
            "get by id p50",
            times[0],
            rival_times,
            by="median",
            bar=bar,
            note=note,
            against=f"{lance.NAME}, {api}",
        )


def _each(get: Callable[[str], object], ids: Sequence[str]) -> list[float]:
    times = []
    now = time.perf_counter
    for id in ids:
        begun = now()
        get(id)
        times.append(now() - begun)
    return times


def _scans(ns: Documents, rival: Lance, table: pa.Table, rounds: int = 20) -> Iterator[Ratio]:
    """Everything as one Arrow table, in no order; and ours in order of ids, for which there is no bar."""

    def scan(*, ordered: bool = False) -> pa.Table:
        return pa.Table.from_batches(ns.scan(ordered=ordered))

    way = fastest_of(lance.SCANS, rival.scan)
    mine, theirs = scan().sort_by("id"), rival.scan(way).sort_by("id")
    for name in table.column_names:
        same = mine[name].combine_chunks().equals(theirs[name].combine_chunks())
        check(same, f"{name} is the same on both sides")
    del mine, theirs
    result = compare(
        "full scan to Arrow",
        scan,
        lambda: rival.scan(way),
        bar=1.0,
        rounds=rounds,
        against=lance.NAME,
    )
    yield rated(result, table.num_rows, way)
    result = compare(
        "full scan to Arrow, in order of ids",
        lambda: scan(ordered=True),
        lambda: rival.scan(way),
        bar=None,
        rounds=rounds,
        against=f"{lance.NAME}, in no order",
    )
    yield rated(result, table.num_rows, way)


def _searches(ns: Documents, rival: Lance, table: pa.Table, rounds: int = 25) -> Iterator[Ratio]:
    """The nearest ids with their distances, exactly, without an index on both sides."""
    queries = np.random.default_rng(3).standard_normal((rounds + 1, DIMENSION), dtype=np.float32)
    for metric in ("cosine", "l2"):

        def mine(vector: np.ndarray, metric: str = metric) -> pa.Table:
            return ns.query(vector=vector, metric=metric, limit=K, columns=[])

        def theirs(vector: np.ndarray, metric: str = metric) -> pa.Table:
            return rival.search(vector, metric, K)

        for vector in queries[:5]:
            _check_found(mine(vector), theirs(vector), is_squared=metric == "l2")
        yield compare(
            f"exact search of {table.num_rows:,}, {metric}, k={K}",
            _over(queries, mine),
            _over(queries, theirs),
            bar=1.0,
            rounds=rounds,
            note="ids and distances, the same on both sides",
            against=f"{lance.NAME}, brute force",
        )


def _check_found(mine: pa.Table, theirs: pa.Table, *, is_squared: bool) -> None:
    same = set(mine["id"].to_pylist()) == set(theirs["id"].to_pylist())
    check(same and mine.num_rows == K, "a search finds the same on both sides")
    distances = theirs["_distance"].to_numpy()
    distances = np.sqrt(distances) if is_squared else distances
    check(np.allclose(mine["_distance"].to_numpy(), distances, atol=1e-4), "the same distances")


def _filters(ns: Documents, rival: Lance, table: pa.Table, rounds: int = 60) -> Iterator[Ratio]:
    """Ids and attributes of one document in a thousand, by a range and by equality."""
    rng = np.random.default_rng(4)
    prices = (rng.random(rounds + 1) * 0.999).tolist()
    categories = rng.integers(0, CATEGORIES, rounds + 1).tolist()

    def mine(where: str) -> pa.Table:
        return ns.query(where=where, columns=ATTRIBUTES)

    def theirs(where: str) -> pa.Table:
        return rival.filter(where, ["id", *ATTRIBUTES])

    for name, wheres in (
        ("a range of prices", [f"price >= {x!r} and price < {x + 0.001!r}" for x in prices]),
        ("one category", [f"category = 'category-{number:04d}'" for number in categories]),
    ):
        for where in wheres[:5]:
            same = mine(where).to_pylist() == theirs(where).sort_by("id").to_pylist()
            check(same, f"{where} finds the same on both sides")
        found = sum(mine(where).num_rows for where in wheres) / len(wheres)
        yield compare(
            f"filter at 0.1%, {name}",
            _over(wheres, mine),
            _over(wheres, theirs),
            bar=1.0,
            rounds=rounds,
            note=f"ids and attributes of {found:.0f}",
            against=f"{lance.NAME}, B-tree",
        )


def _over(values: Sequence[T], run: Callable[[T], object]) -> Callable[[], object]:
    """Return a function that runs with one value after the other."""
    following = iter(values)
    return lambda: run(next(following))


def _peak(here: Path, count: int, dimension: int = 8, batch: int = 100_000) -> Count:
    """The most memory of a process that scans what another one wrote, in random order of ids."""
    url = f"file://{here}/reef?fsync=off"
    numbers = shuffled(count)
    begun = time.perf_counter()
    with reef.connect(url) as db, db.namespace("documents") as ns:
        for first in range(0, count, batch):
            ns.upsert(documents_of(numbers[first : first + batch], dimension, seed=first))
        ns.flush()
    built = time.perf_counter() - begun
    found = scan_peak(url, "documents")
    check(found.rows == count, f"{count:,} documents were scanned, not {found.rows:,}")
    return Count(
        name=f"MiB at the peak of a scan of {count:,} documents",
        counted=found.peak_mib,
        allowed=1024,
        note=f"{found.idle_mib} before it, {dimension}-d vectors; it took {found.seconds:.1f} s, "
        f"and writing {built:.0f} s",
    )
