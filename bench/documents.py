"""Documents against LanceDB: the same 200,000 on the same disk, 128-d vectors and 3 attributes.

Ids are text and come in random order. Reef runs with its default settings. Writes are measured
without fsync, as LanceDB does it, and with.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

import reef
from bench import lance
from bench._corpus import (
    ATTRIBUTES,
    CATEGORIES,
    DIMENSION,
    batches_of,
    corpus,
    documents_of,
    folder,
    shuffled,
)
from bench._document_writes import bench_ingest, bench_single_upserts, bench_upserts
from bench._fresh import Pass, each, over, whole
from bench._measure import (
    Count,
    Ratio,
    Result,
    Scale,
    check,
    compare,
    in_turn,
    rated,
    ratio_of,
    with_fresh,
)
from bench._scan_peak import scan_peak
from bench.lance import Lance
from reef.documents import Documents

NEAREST = 10
GETS = 25


def bench_documents(scale: Scale) -> Iterator[Result]:
    """All figures of documents, in a folder on a disk."""
    count = scale.rows(200_000)
    for figure in (bench_ingest, bench_upserts, bench_single_upserts):
        with folder() as here:  # empty, so that no figure meets what another has left
            yield from figure(here, count, scale)
    with folder() as here:
        _load(here, count)
        for reading in (_gets, _scans, _searches, _filters):
            yield from reading(here, count, scale)
    with folder() as here:
        yield _peak(here, scale.rows(5_000_000))


def _load(here: Path, count: int) -> None:
    """Write the same documents on both sides: ours into segments, theirs optimized and indexed."""
    table = corpus(count)
    with _ours(here) as ns, Lance(here / "rival", table.schema) as rival:
        for batch in batches_of(table):
            ns.upsert(batch)
            rival.table.add(batch)
        ns.flush()
        rival.table.optimize()
        rival.index()


@contextmanager
def _ours(here: Path) -> Iterator[Documents]:
    url = f"file://{here}/reef?fsync=off"
    with reef.connect(url) as db, db.namespace("documents") as ns:
        yield ns


def _rival(here: Path) -> Lance:
    return Lance(here / "rival")


# Gets.


def _gets(here: Path, count: int, scale: Scale) -> Iterator[Ratio]:
    """Whole documents as dicts, by id; the warm ones were each read before."""
    ids = _ids(count)
    with _ours(here) as ns, _rival(here) as rival:
        for id in ids:
            check(ns.get(id) == rival.get(id), f"{id} is the same on both sides")
    ours = partial(opened_gets, here, count)
    ways = {way: partial(opened_rival_gets, here, count, way) for way in lance.GETS}
    tried = in_turn(ways, scale.rounds(3))
    way = min(tried, key=lambda way: min(tried[way]))
    rivals = {way: ways[way], "its async API": partial(opened_async_gets, here, count)}
    times = in_turn({"ours": partial(ours, is_hot=True), **rivals}, scale.rounds(21))
    for (api, rival_gets), bar in zip(rivals.items(), (20.0, None), strict=True):
        result = ratio_of(
            "get by id p50",
            times["ours"],
            times[api],
            by="median",
            bar=bar,
            note=f"{count:,} documents in segments, B-tree; a dict with its vector",
            against=f"{lance.NAME}, {api}",
        )
        yield with_fresh(result, ours, rival_gets)


def _ids(count: int) -> list[str]:
    chosen = np.random.default_rng(2).choice(count, 21 * GETS)
    ids: list[str] = corpus(count)["id"].take(pa.array(chosen)).to_pylist()
    return ids


@contextmanager
def opened_gets(here: Path, count: int, *, is_hot: bool = False) -> Iterator[Pass]:
    """Some gets of ours; `is_hot` reads every id before."""
    ids = _ids(count)
    with _ours(here) as ns:
        for id in ids if is_hot else ():
            ns.get(id)
        yield each(ids, GETS, ns.get)


@contextmanager
def opened_rival_gets(here: Path, count: int, way: str) -> Iterator[Pass]:
    """Some gets of the rival's."""
    with _rival(here) as rival:
        yield each(_ids(count), GETS, lambda id: rival.get(id, way))


@contextmanager
def opened_async_gets(here: Path, count: int) -> Iterator[Pass]:
    """Some gets of the rival's asynchronous API."""
    with _rival(here) as rival:
        ids = _ids(count)[:GETS]
        yield lambda: rival.time_async_gets(ids)


# Scans.


def _scans(here: Path, count: int, scale: Scale) -> Iterator[Ratio]:
    """Everything as one Arrow table: ours in no order, and in order of ids, which has no bar."""
    ways = {way: partial(opened_rival_scan, here, way) for way in lance.SCANS}
    tried = in_turn(ways, scale.rounds(3))
    way = min(tried, key=lambda way: min(tried[way]))
    with _ours(here) as ns, _rival(here) as rival:
        mine, theirs = (
            table.sort_by("id") for table in (_scanned(ns, ordered=False), rival.scan(way))
        )
        for name in corpus(count).column_names:
            same = mine[name].combine_chunks().equals(theirs[name].combine_chunks())
            check(same, f"{name} is the same on both sides")
    for ordered, what, against, bar in (
        (False, "full scan to Arrow", lance.NAME, 1.0),
        (True, "full scan to Arrow, in order of ids", f"{lance.NAME}, in no order", None),
    ):
        result = compare(
            what,
            partial(opened_scan, here, ordered=ordered),
            ways[way],
            bar=bar,
            rounds=scale.rounds(20),
            against=against,
        )
        yield rated(result, count, "docs", way)


def _scanned(ns: Documents, *, ordered: bool) -> pa.Table:
    return pa.Table.from_batches(ns.scan(ordered=ordered))


@contextmanager
def opened_scan(here: Path, *, ordered: bool) -> Iterator[Pass]:
    """A scan of ours."""
    with _ours(here) as ns:
        yield whole(lambda: _scanned(ns, ordered=ordered))


@contextmanager
def opened_rival_scan(here: Path, way: str) -> Iterator[Pass]:
    """A scan of the rival's."""
    with _rival(here) as rival:
        yield whole(lambda: rival.scan(way))


# Search.


def _searches(here: Path, count: int, scale: Scale) -> Iterator[Ratio]:
    """The nearest ids with their distances, exactly, without an index on both sides."""
    for metric in ("cosine", "l2"):
        with _ours(here) as ns, _rival(here) as rival:
            for vector in _queries()[:5]:
                _check_nearest(
                    _search(ns, metric, vector),
                    rival.search(vector, metric, NEAREST),
                    is_squared=metric == "l2",
                )
        yield compare(
            f"exact search of {count:,}, {metric}, k={NEAREST}",
            partial(opened_search, here, metric),
            partial(opened_rival_search, here, metric),
            bar=1.0,
            rounds=scale.rounds(25),
            note="ids and distances, the same on both sides",
            against=f"{lance.NAME}, brute force",
        )


def _queries() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((26, DIMENSION), dtype=np.float32)


def _search(ns: Documents, metric: str, vector: np.ndarray) -> pa.Table:
    return ns.query(vector=vector, metric=metric, limit=NEAREST, columns=[])


@contextmanager
def opened_search(here: Path, metric: str) -> Iterator[Pass]:
    """A search of ours, each with another vector."""
    with _ours(here) as ns:
        yield over(_queries(), lambda vector: _search(ns, metric, vector))


@contextmanager
def opened_rival_search(here: Path, metric: str) -> Iterator[Pass]:
    """A search of the rival's."""
    with _rival(here) as rival:
        yield over(_queries(), lambda vector: rival.search(vector, metric, NEAREST))


def _check_nearest(mine: pa.Table, theirs: pa.Table, *, is_squared: bool) -> None:
    same = set(mine["id"].to_pylist()) == set(theirs["id"].to_pylist())
    check(same and mine.num_rows == NEAREST, "a search returns the same on both sides")
    distances = theirs["_distance"].to_numpy()
    distances = np.sqrt(distances) if is_squared else distances
    check(np.allclose(mine["_distance"].to_numpy(), distances, atol=1e-4), "the same distances")


# Filters.


def _filters(here: Path, count: int, scale: Scale) -> Iterator[Ratio]:
    """Ids and attributes of one document in a thousand, by a range and by equality."""
    for name, wheres in _wheres().items():
        with _ours(here) as ns, _rival(here) as rival:
            for where in wheres[:5]:
                mine, theirs = _filter(ns, where), _rival_filter(rival, where)
                same = mine.to_pylist() == theirs.sort_by("id").to_pylist()
                check(same, f"{where} returns the same on both sides")
            matches = sum(_filter(ns, where).num_rows for where in wheres) / len(wheres)
        yield compare(
            f"filter at 0.1%, {name}",
            partial(opened_filter, here, name),
            partial(opened_rival_filter, here, name),
            bar=1.0,
            rounds=scale.rounds(60),
            note=f"ids and attributes of {matches:.0f}",
            against=f"{lance.NAME}, B-tree",
        )


def _wheres() -> dict[str, Sequence[str]]:
    rng = np.random.default_rng(4)
    prices = (rng.random(61) * 0.999).tolist()
    categories = rng.integers(0, CATEGORIES, 61).tolist()
    return {
        "a range of prices": [f"price >= {x!r} and price < {x + 0.001!r}" for x in prices],
        "one category": [f"category = 'category-{number:04d}'" for number in categories],
    }


def _filter(ns: Documents, where: str) -> pa.Table:
    return ns.query(where=where, columns=ATTRIBUTES)


def _rival_filter(rival: Lance, where: str) -> pa.Table:
    return rival.filter(where, ["id", *ATTRIBUTES])


@contextmanager
def opened_filter(here: Path, name: str) -> Iterator[Pass]:
    """A filter of ours, each with another value."""
    with _ours(here) as ns:
        yield over(_wheres()[name], partial(_filter, ns))


@contextmanager
def opened_rival_filter(here: Path, name: str) -> Iterator[Pass]:
    """A filter of the rival's."""
    with _rival(here) as rival:
        yield over(_wheres()[name], partial(_rival_filter, rival))


# Memory.


def _peak(here: Path, count: int, dimension: int = 8, batch: int = 100_000) -> Count:
    """The most memory of a process that scans what another one wrote, in random order of ids."""
    numbers = shuffled(count)
    begun = time.perf_counter()
    with _ours(here) as ns:
        for first in range(0, count, batch):
            ns.upsert(documents_of(numbers[first : first + batch], dimension, seed=first))
        ns.flush()
    write_s = time.perf_counter() - begun
    peak = scan_peak(f"file://{here}/reef?fsync=off", "documents")
    check(peak.rows == count, f"{count:,} documents were scanned, not {peak.rows:,}")
    return Count(
        name=f"MiB at the peak of a scan of {count:,} documents",
        counted=peak.peak_mib,
        allowed=1024,
        note=f"{peak.idle_mib} before it, {dimension}-d vectors; it took {peak.seconds:.1f} s, "
        f"and writing {write_s:.0f} s",
    )
