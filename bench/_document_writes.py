"""Writing documents, against LanceDB, which calls no fsync: at equal durability, and with fsync."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

import reef
from bench import lance
from bench._corpus import BATCH, SYNCS, batches_of, check, emptied, in_turn, rated, some_of, timed
from bench._measure import Ratio, ratio_of
from bench._memory import MemoryUse, memory_use
from bench.lance import Lance
from reef.documents import Documents


def bench_ingest(here: Path, table: pa.Table, rounds: int = 9) -> Iterator[Ratio]:
    """Everything in batches, each committed and readable when the call returns, into nothing."""
    batches = batches_of(table)
    last = table["id"][-1].as_py()

    memory: dict[str, MemoryUse] = {}

    def ours(sync: str) -> float:
        url = f"file://{here}/reef{SYNCS[sync]}"
        taken: list[float] = []
        with reef.connect(url) as db, db.namespace("documents") as ns:
            memory[sync] = memory_use(
                lambda: taken.append(timed(lambda: [ns.upsert(batch) for batch in batches]))
            )
            check(ns.get(last) is not None, "the last document can be read")
        emptied(here / "reef")  # after the close: no flush of ours goes on in the rival's turn
        return taken[0]

    def theirs(parallelism: int | None) -> float:
        with Lance(here / "rival", table.schema) as made:
            taken = timed(lambda: made.add(batches, parallelism))
            check(made.table.count_rows() == table.num_rows, "all documents are there")
        emptied(here / "rival")
        return taken

    tried = in_turn({str(way): partial(theirs, way) for way in lance.PARALLELISMS}, 2)
    way = min(lance.PARALLELISMS, key=lambda way: min(tried[str(way)]))
    runs = {sync: partial(ours, sync) for sync in SYNCS}
    times = in_turn({**runs, "rival": partial(theirs, way)}, rounds)
    yield from _ratios(
        f"ingest in batches of {BATCH:,}",
        times,
        bars={"fsync=off": 2.3, "fsync": 1.0},
        documents=table.num_rows,
        note=f"add, write_parallelism={way}; {memory['fsync=off'].per_byte(table.nbytes)}",
    )


def bench_upserts(here: Path, table: pa.Table, rounds: int = 9) -> Iterator[Ratio]:
    """Batches of documents that are there already, with new values."""
    seeds = itertools.count()

    def changes() -> pa.Table:
        return some_of(table, BATCH, next(seeds))

    with _loaded(here, table) as (writers, ways):
        way = _fastest(ways, lambda way: timed(partial(way.upsert, [changes()])))
        times: dict[str, list[float]] = {name: [] for name in (*writers, "rival")}
        for turn in range(-1, rounds):
            change = changes()  # the same for all of a round
            runs = {name: _timing(ns.upsert, change) for name, ns in writers.items()}
            taken = in_turn({**runs, "rival": partial(_tidy_upsert, way, [change])}, 1, turn)
            for name, times_of in times.items():
                times_of += taken[name] if turn >= 0 else []
        _check_same(writers, way, change["id"].to_pylist()[:10], table.num_rows)
    yield from _ratios(
        f"upsert of {BATCH:,} existing ids",
        times,
        bars={"fsync=off": 3.0, "fsync": None},
        documents=BATCH,
        note=str(way),
    )


def bench_single_upserts(here: Path, table: pa.Table, rounds: int = 9) -> Iterator[Ratio]:
    """Single documents that are there already, one call after the other, each from a dict."""
    ours_each, theirs_each = 100, 15
    stock = some_of(table, min(BATCH, table.num_rows), 0)
    dicts = itertools.cycle(stock.to_pylist())
    tables = itertools.cycle(stock.slice(i, 1) for i in range(stock.num_rows))

    def ours(ns: Documents) -> float:
        some = list(itertools.islice(dicts, ours_each))
        return timed(lambda: [ns.upsert([document]) for document in some]) / ours_each

    def theirs(way: Way, count: int = theirs_each) -> float:
        way.lance.table.optimize()
        some = list(itertools.islice(tables if way.takes_tables else dicts, count))
        rows = some if way.takes_tables else [[document] for document in some]
        return timed(partial(way.upsert, rows)) / count

    with _loaded(here, table) as (writers, ways):
        ways += [Way(way.lance, way.has_index, way.use_index, True) for way in ways]
        way = _fastest(ways, lambda way: theirs(way, 5))
        runs = {name: partial(ours, ns) for name, ns in writers.items()}
        for run in runs.values():
            run()
        times = in_turn({**runs, "rival": partial(theirs, way)}, rounds)
        document = next(dicts)
        for ns in writers.values():
            ns.upsert([document])
        way.upsert([[document]])
        _check_same(writers, way, [document["id"]], table.num_rows)
    yield from _ratios(
        "single-document upserts",
        times,
        bars={"fsync=off": 5.0, "fsync": None},
        documents=1,
        note=f"{way}, from {'tables of one row' if way.takes_tables else 'dicts'}",
    )


@dataclass(frozen=True)
class Way:
    """A way to upsert that LanceDB offers."""

    lance: Lance
    has_index: bool
    use_index: bool
    takes_tables: bool = False

    def upsert(self, batches: Sequence[object]) -> None:
        """Upsert one batch after the other."""
        for rows in batches:
            self.lance.upsert(rows, self.use_index)

    def __str__(self) -> str:
        if not self.has_index:
            return "merge_insert without an index"
        return f"merge_insert {'by' if self.use_index else 'beside'} its B-tree"


@contextmanager
def _loaded(here: Path, table: pa.Table) -> Iterator[tuple[dict[str, Documents], list[Way]]]:
    """Yield Reef without and with fsync, and the ways of LanceDB, all with the same documents."""
    batches = batches_of(table)
    fast, safe = (reef.connect(f"file://{here}/reef{SYNCS[name]}") for name in SYNCS)
    plain, indexed = (Lance(here / name, table.schema) for name in ("plain", "indexed"))
    with fast, safe, fast.namespace("fast") as first, safe.namespace("safe") as second:
        for ns in (first, second):
            for batch in batches:
                ns.upsert(batch)
            ns.flush()
        with plain, indexed:
            for lance in (plain, indexed):
                lance.add(batches)
                lance.table.optimize()
            indexed.index()
            ways = [Way(plain, False, False), Way(indexed, True, False), Way(indexed, True, True)]
            yield {"fsync=off": first, "fsync": second}, ways


def _fastest(ways: Sequence[Way], seconds: Callable[[Way], float]) -> Way:
    """Return the fastest way, each tried three times after a first time that does not count."""
    for way in ways:
        seconds(way)
    tried = in_turn({str(i): partial(seconds, way) for i, way in enumerate(ways)}, 3)
    return ways[int(min(tried, key=lambda i: min(tried[i])))]


def _timing(upsert: Callable[[pa.Table], object], change: pa.Table) -> Callable[[], float]:
    return lambda: timed(lambda: upsert(change))


def _tidy_upsert(way: Way, batches: Sequence[pa.Table]) -> float:
    way.lance.table.optimize()  # as its users are told to do once in a while; not counted
    return timed(partial(way.upsert, batches))


def _check_same(writers: Mapping[str, Documents], way: Way, ids: Sequence[str], count: int) -> None:
    for ns in writers.values():
        for id in ids:
            check(ns.get(id) == way.lance.get(id), f"{id} is the same on both sides")
        check(ns.count() == count == way.lance.table.count_rows(), "there are no more documents")


def _ratios(
    name: str,
    times: Mapping[str, Sequence[float]],
    *,
    bars: Mapping[str, float | None],
    documents: int,
    note: str,
) -> Iterator[Ratio]:
    for sync, bar in bars.items():
        result = ratio_of(
            f"{name}, {sync}",
            times[sync],
            times["rival"],
            by="fastest",
            bar=bar,
            against=lance.NAME,
        )
        yield rated(result, documents, note)
