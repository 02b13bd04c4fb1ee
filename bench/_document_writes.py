"""Writing documents, against LanceDB, which calls no fsync: at equal durability, and with fsync."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

import reef
from bench import lance
from bench._corpus import BATCH, SYNCS, batches_of, changes_of, corpus, emptied
from bench._fresh import Opening, Pass, over, whole
from bench._measure import Ratio, Scale, check, in_turn, rated, ratio_of, with_fresh
from bench.lance import Lance
from reef.documents import Documents

INGEST_BARS = {"fsync=off": 2.3, "fsync": 1.0}
INGEST_FRESH_BARS = {"fsync=off": 1.5}
SINGLES = 100
RIVAL_SINGLES = 15


def bench_ingest(here: Path, count: int, scale: Scale) -> Iterator[Ratio]:
    """Everything in batches, each committed and readable when the call returns, into nothing."""
    ways = {str(way): partial(opened_rival_ingest, here, count, way) for way in lance.PARALLELISMS}
    way = _fastest(in_turn(ways, scale.rounds(2), reopened=True))
    runs: dict[str, Opening] = {
        sync: partial(opened_ingest, here, count, options) for sync, options in SYNCS.items()
    }
    runs["rival"] = ways[way]
    yield from _ratios(
        f"ingest in batches of {BATCH:,}",
        runs,
        in_turn(runs, scale.rounds(9), reopened=True),
        bars=INGEST_BARS,
        fresh_bars=INGEST_FRESH_BARS,
        rows=count,
        written_bytes=corpus(count).nbytes,
        note=f"add, write_parallelism={way}",
    )


@contextmanager
def opened_ingest(here: Path, count: int, options: str) -> Iterator[Pass]:
    """All documents into an empty bucket."""
    batches = batches_of(corpus(count))
    url = f"file://{here}/reef{options}"
    with reef.connect(url) as db, db.namespace("documents") as ns:
        yield whole(lambda: [ns.upsert(batch) for batch in batches])
        last = batches[-1]["id"][-1].as_py()
        check(ns.get(last) is not None, "the last document can be read")
    emptied(here / "reef")  # after the close: no flush of ours goes on in the rival's turn


@contextmanager
def opened_rival_ingest(here: Path, count: int, parallelism: int | None) -> Iterator[Pass]:
    """All documents into an empty table."""
    table = corpus(count)
    with Lance(here / "rival", table.schema) as rival:
        batches = batches_of(table)
        yield whole(lambda: rival.add(batches, parallelism))
        check(rival.table.count_rows() == count, "all documents are there")
    emptied(here / "rival")


# Upserts.


@dataclass(frozen=True)
class Way:
    """A way to upsert that LanceDB offers."""

    table: str
    """Either `plain`, or `indexed` with a B-tree."""
    use_index: bool
    takes_tables: bool = True

    def __str__(self) -> str:
        by = "by" if self.use_index else "beside"
        way = "without an index" if self.table == "plain" else f"{by} its B-tree"
        return f"merge_insert {way}, from {'tables' if self.takes_tables else 'dicts'}"


WAYS = (Way("plain", False), Way("indexed", False), Way("indexed", True))


def bench_upserts(here: Path, count: int, scale: Scale) -> Iterator[Ratio]:
    """Batches of documents that are there already, with new values."""
    _load(here, count)
    batch, rounds = min(BATCH, count), scale.rounds(9)
    ways: dict[Way, Opening] = {
        way: partial(opened_rival_upserts, here, count, way, batch, rounds) for way in WAYS
    }
    way = _fastest_way(ways, scale)
    runs: dict[str, Opening] = {
        sync: partial(opened_upserts, here, count, sync, batch, rounds) for sync in SYNCS
    }
    runs["rival"] = ways[way]
    times = in_turn(runs, rounds)
    _check_same(here, way, changes_of(count, batch, rounds)["id"].to_pylist()[:10], count)
    yield from _ratios(
        f"upsert of {batch:,} existing ids",
        runs,
        times,
        bars={"fsync=off": 3.0, "fsync": None},
        rows=batch,
        written_bytes=changes_of(count, batch, 0).nbytes,
        note=str(way),
    )


@contextmanager
def opened_upserts(here: Path, count: int, sync: str, batch: int, rounds: int) -> Iterator[Pass]:
    """A batch of new values into ours."""
    with _namespace(here, sync) as ns:
        yield over(_changes(count, batch, rounds), ns.upsert)


@contextmanager
def opened_rival_upserts(
    here: Path, count: int, way: Way, batch: int, rounds: int
) -> Iterator[Pass]:
    """A batch of new values into the rival's table, tidied between passes."""
    with Lance(here / way.table) as rival:
        changes = _changes(count, batch, rounds)
        yield _tidied(rival, over(changes, lambda rows: rival.upsert(rows, way.use_index)))


def bench_single_upserts(here: Path, count: int, scale: Scale) -> Iterator[Ratio]:
    """Single documents that are there already, one call after the other, each from a dict."""
    _load(here, count)
    ways: dict[Way, Opening] = {}
    for one in WAYS:
        for takes_tables in (False, True):
            way = Way(one.table, one.use_index, takes_tables)
            ways[way] = partial(opened_rival_singles, here, count, way)
    way = _fastest_way(ways, scale)
    runs: dict[str, Opening] = {sync: partial(opened_singles, here, count, sync) for sync in SYNCS}
    runs["rival"] = ways[way]
    times = in_turn(runs, scale.rounds(9))
    _check_same(here, way, [], count)
    yield from _ratios(
        "single-document upserts",
        runs,
        times,
        bars={"fsync=off": 5.0, "fsync": None},
        rows=1,
        note=str(way),
    )


@contextmanager
def opened_singles(here: Path, count: int, sync: str) -> Iterator[Pass]:
    """A hundred single documents into ours."""
    dicts = changes_of(count, min(BATCH, count), 0).to_pylist()
    with _namespace(here, sync) as ns:
        yield over(
            _chunks(dicts, min(SINGLES, len(dicts))),
            lambda some: [ns.upsert([document]) for document in some],
            min(SINGLES, len(dicts)),
        )


@contextmanager
def opened_rival_singles(here: Path, count: int, way: Way) -> Iterator[Pass]:
    """Some single documents into the rival's table, tidied between passes."""
    stock = changes_of(count, min(BATCH, count), 0)
    tables = [stock.slice(i, 1) for i in range(stock.num_rows)]
    rows = tables if way.takes_tables else [one.to_pylist() for one in tables]
    with Lance(here / way.table) as rival:

        def upsert(some: Sequence[object]) -> None:
            for one in some:
                rival.upsert(one, way.use_index)

        yield _tidied(rival, over(_chunks(rows, RIVAL_SINGLES), upsert, RIVAL_SINGLES))


@contextmanager
def _namespace(here: Path, sync: str) -> Iterator[Documents]:
    """Open the namespace that is written with or without fsync."""
    url = f"file://{here}/reef{SYNCS[sync]}"
    with reef.connect(url) as db, db.namespace(sync.replace("=", "-")) as ns:
        yield ns


def _chunks(values: Sequence[object], size: int) -> list[Sequence[object]]:
    """Return the values in pieces of the same size; what is left over stays out."""
    return [values[at : at + size] for at in range(0, len(values) - size + 1, size)]


def _changes(count: int, batch: int, rounds: int) -> list[pa.Table]:
    return [changes_of(count, batch, seed) for seed in range(rounds + 1)]


def _tidied(rival: Lance, run: Pass) -> Pass:
    """Call `optimize` before each pass, as its documentation advises; it is not counted."""
    rival.table.optimize()
    is_tidy = True

    def tidy_run() -> Sequence[float]:
        nonlocal is_tidy
        if not is_tidy:
            rival.table.optimize()
        is_tidy = False
        return run()

    return tidy_run


def _load(here: Path, count: int) -> None:
    """Write the corpus into ours, without and with fsync, and into the rival's two tables."""
    table = corpus(count)
    batches = batches_of(table)
    for sync in SYNCS:
        with _namespace(here, sync) as ns:
            for batch in batches:
                ns.upsert(batch)
            ns.flush()
    for name in ("plain", "indexed"):
        with Lance(here / name, table.schema) as rival:
            rival.add(batches)
            rival.table.optimize()
            if name == "indexed":
                rival.index()


def _check_same(here: Path, way: Way, ids: Sequence[str], count: int) -> None:
    """Check documents on all sides: those by id, and one that is written now."""
    document = changes_of(count, 1, 77).to_pylist()
    with ExitStack() as stack:
        rival = stack.enter_context(Lance(here / way.table))
        rival.upsert(document, way.use_index)
        for sync in SYNCS:
            ns = stack.enter_context(_namespace(here, sync))
            ns.upsert(document)
            for id in (*ids, document[0]["id"]):
                check(ns.get(id) == rival.get(id), f"{id} is the same on both sides")
            check(ns.count() == count == rival.table.count_rows(), "no document was added")


def _fastest_way(ways: Mapping[Way, Opening], scale: Scale) -> Way:
    by_name = {str(way): way for way in ways}
    # Reopened: two open handles of one table would commit into each other.
    openings = {str(way): opening for way, opening in ways.items()}
    times = in_turn(openings, scale.rounds(3), reopened=True)
    return by_name[_fastest(times)]


def _fastest(times: Mapping[str, Sequence[float]]) -> str:
    return min(times, key=lambda name: min(times[name]))


def _ratios(
    name: str,
    runs: Mapping[str, Opening],
    times: Mapping[str, Sequence[float]],
    *,
    bars: Mapping[str, float | None],
    rows: int,
    note: str,
    written_bytes: int = 0,
    fresh_bars: Mapping[str, float] | None = None,
) -> Iterator[Ratio]:
    """Yield a figure without and with fsync, each with its first passes."""
    for sync, bar in bars.items():
        fresh_bar = (fresh_bars or {}).get(sync)
        result = ratio_of(
            f"{name}, {sync}",
            times[sync],
            times["rival"],
            by="fastest",
            bar=bar,
            against=lance.NAME,
        )
        yield with_fresh(
            rated(result, rows, "docs", note),
            runs[sync],
            runs["rival"],
            bar=fresh_bar,
            times=1 if fresh_bar is None else 3,  # a bar deserves more than one try
            written_bytes=written_bytes,
        )
