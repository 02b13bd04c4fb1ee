"""The page store: what a commit adds to its PUT, reads warm and cold, layers per read, and branches."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

import reef
from bench._fresh import Pass, each, over, whole
from bench._measure import Count, Ratio, Result, Scale, in_turn, ratio_of, with_fresh
from bench._places import Place, TimedStore, file_place, seaweedfs_place
from reef.database import Database
from reef.format import Manifest, SegmentRef
from reef.jobs import CompactionOptions, compact
from reef.pages import Pages
from reef.store import MemoryStore, open_store
from reef.testing import CountingStore

PAGE = 4096
PAGES = 20_000
COMMITS = 1_000
READS = 20_000
FLUSHES = 48
COLD_READS = 40
BRANCHES = 15
COMMIT_EXTRA_S = 0.002
READ_S = 0.001
LIMIT = "the limit"
IMAGE_BYTES = 128 << 20
SMALL, LARGE = 10_000_000, 10_000_000_000
NO_FLUSHES: dict[str, Any] = {"flush_threshold_slots": 1 << 20, "flush_interval": 0}


def bench_pages(scale: Scale) -> Iterator[Result]:
    """Every figure of the page store."""
    for place in (file_place, seaweedfs_place):
        with place() as here:
            yield from _commits(here, scale)
    with file_place() as here:
        yield from _reads(here, scale)
    yield _layers(scale)
    yield from _branches(scale)


# Commits.


def _commits(place: Place, scale: Scale) -> Iterator[Result]:
    """Ten pages at a time, as a small transaction of SQLite has them."""
    wholes: list[float] = []
    puts: list[float] = []
    most = 0
    with timed_pages(place) as (timed, store):
        commit = over(_transactions(100), store.write)
        for _ in range(scale.rows(COMMITS)):
            timed.seconds = 0.0
            timed.requests.clear()
            wholes += commit()
            puts.append(timed.seconds)
            most = max(most, len(timed.requests))
    added = [mine - theirs for mine, theirs in zip(wholes, puts, strict=True)]
    name = f"{place.name}: commit of 10 pages"
    yield Count(f"{name}: requests", most, 1)
    result = ratio_of(
        f"{name}, beside its PUT",
        added,
        [COMMIT_EXTRA_S],
        by="median",
        bar=1.0,
        note=f"p50 {_at(wholes, 0.5)}, p99 {_at(wholes, 0.99)}, p99.9 {_at(wholes, 0.999)}; "
        "the fresh one with its PUT",
        against=LIMIT,
    )
    yield with_fresh(result, partial(opened_commit, place), None, written_bytes=10 * PAGE)
    yield from _together(place, scale)


@contextmanager
def timed_pages(place: Place) -> Iterator[tuple[TimedStore, Pages]]:
    """Yield a page store, and the store below it, which times requests."""
    timed = TimedStore(open_store(place.url))
    with Database(timed, **NO_FLUSHES) as db:
        yield timed, db.pages("commits", page_size=PAGE)


@contextmanager
def opened_commit(place: Place) -> Iterator[Pass]:
    """A commit of ten pages, with its PUT."""
    with timed_pages(place) as (_, store):
        yield over(_transactions(1), store.write)


def _together(place: Place, scale: Scale) -> Iterator[Ratio]:
    """How much more threads get done together than one after the other."""
    commits = scale.rows(400)
    alone = partial(opened_threads, place, 1, commits)
    for threads in (4, 16):
        together = partial(opened_threads, place, threads, commits)
        times = in_turn({"ours": together, "rival": alone}, 1)
        result = ratio_of(
            f"{place.name}: {threads} threads that commit a page each",
            times["ours"],
            times["rival"],
            by="median",
            bar=None,
            note=f"{1 / times['ours'][0]:,.0f} commits/s",
            against="one thread",
        )
        yield with_fresh(result, together, alone)


@contextmanager
def opened_threads(place: Place, threads: int, commits: int) -> Iterator[Pass]:
    """So many commits in all, by so many threads; the seconds of one on average."""
    each_commits = max(1, commits // threads)

    def run(store: Pages) -> None:
        def work(number: int) -> None:
            for _ in range(each_commits):
                store.write({number: bytes(PAGE)})

        running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()

    # Another namespace for each: a second writer would fence the first.
    name = f"together-{threads}-{random.randbytes(4).hex()}"
    with reef.connect(place.url) as db, db.pages(name, page_size=PAGE) as store:
        yield whole(lambda: run(store), each_commits * threads)


def _transactions(count: int) -> list[dict[int, bytes]]:
    rng = random.Random(1)
    return [{rng.randrange(PAGES): rng.randbytes(PAGE) for _ in range(10)} for _ in range(count)]


def _at(times: Sequence[float], share: float) -> str:
    return f"{_percentile(times, share) * 1e3:.2f} ms"


def _percentile(times: Sequence[float], share: float) -> float:
    return sorted(times)[int(share * (len(times) - 1))]


# Reads.


def _reads(place: Place, scale: Scale) -> Iterator[Result]:
    pages, reads = scale.rows(PAGES), scale.rows(READS)
    rng = random.Random(2)
    with reef.connect(place.url, flush_interval=0) as db:
        store = db.pages("reads", page_size=PAGE)
        for first in range(0, pages, 2_000):
            numbers = range(first, min(pages, first + 2_000))
            store.write({page: rng.randbytes(PAGE) for page in numbers})
        store.flush()
        _compact(db, "reads", full=True)
    read = partial(opened_reads, place, pages, reads)
    times = in_turn({"ours": partial(read, is_warm=True)}, 1)["ours"]
    result = ratio_of(
        "warm get_page, p99",
        [_percentile(times, 0.99)],
        [READ_S],
        by="median",
        bar=1.0,
        note=f"p50 {_at(times, 0.5)}, p99.9 {_at(times, 0.999)}; the fresh one is the mean of "
        f"{reads:,} reads, cold at first",
        against=LIMIT,
    )
    yield with_fresh(result, read, None)
    counted = CountingStore(open_store(place.url))
    worst = 0
    for _ in range(scale.rows(COLD_READS)):
        reader = Database(counted, max_staleness=3600).pages("reads", mode="r")
        counted.reset()
        reader.get_page(rng.randrange(pages))
        worst = max(worst, counted.reset().total)
    yield Count("cold get_page after compaction: requests, the most of any", worst, 2)
    reader = Database(counted, max_staleness=3600).pages("reads", mode="r")
    counted.reset()
    for page in range(pages):
        reader.get_page(page)
    requests = counted.reset().total
    mib = pages * PAGE >> 20
    yield Count(f"cold scan of {mib} MiB, page by page: requests", requests, max(2, mib // 2))


@contextmanager
def opened_reads(place: Place, pages: int, reads: int, *, is_warm: bool = False) -> Iterator[Pass]:
    """Reads of single pages; `is_warm` reads every page before."""
    rng = random.Random(4)
    with reef.connect(place.url) as db:
        store = db.pages("reads", mode="r", max_staleness=3600)
        for page in range(pages) if is_warm else ():
            store.get_page(page)
        yield each([rng.randrange(pages) for _ in range(reads)], reads, store.get_page)


def _layers(scale: Scale) -> Count:
    """Pages are written all over the store, flush by flush, and compacted now and then."""
    rng = random.Random(3)
    pages, reads = scale.rows(PAGES), max(10_000, scale.rows(READS * 10))
    with Database(MemoryStore(), flush_interval=0) as db:
        store = db.pages("layers", page_size=64)
        store.write({page: rng.randbytes(64) for page in range(pages)})
        for number in range(FLUSHES):
            store.flush()
            if number % 4 == 3:
                _compact(db, "layers")
            store.write({rng.randrange(pages): rng.randbytes(64) for _ in range(500)})
        reader = db.pages("layers", mode="r")
        for _ in range(reads):  # a metric notes every 64th
            reader.get_page(rng.randrange(pages))
        histogram: Any = db.metrics.snapshot()["reef_page_read_layers"]
    counts: dict[str, int] = histogram["buckets"]
    p50, p99 = _bucket(counts, 0.5), _bucket(counts, 0.99)
    note = f"p50 at most {p50}, {FLUSHES} flushes, a sample of {sum(counts.values()):,} reads"
    return Count("layers that a read looks into, p99, after compaction", p99, 8, note)


def _bucket(counts: dict[str, int], share: float) -> int:
    """Return the upper bound of the bucket in which that share of a histogram is reached."""
    total = 0
    for bound, count in counts.items():
        total += count
        if total >= share * sum(counts.values()):
            return int(bound)
    raise AssertionError("the histogram is empty")


def _compact(db: Database, name: str, *, full: bool = False) -> None:
    context = db.context()
    layers, _ = context.settings.compaction_cadence
    options = CompactionOptions(
        min_input_files=layers,
        target_size_bytes=context.settings.image_layer_target_bytes,
        full=full,
    )
    compact(db, name, options=options).namespaces[0].returned()


# Branches.


def _branches(scale: Scale) -> Iterator[Result]:
    """A branch of a store of 10 MB and of one of 10 GB: their manifests are real, their data is not."""
    openings = {str(size): partial(opened_branches, size) for size in (SMALL, LARGE)}
    times = in_turn(openings, scale.rounds(BRANCHES))
    result = ratio_of(
        "branch of 10 GB",
        times[str(LARGE)],
        times[str(SMALL)],
        by="fastest",
        bar=2.0,
        note="the manifest names 75 times as many segments",
        against="of 10 MB",
        at_most=True,
    )
    yield with_fresh(result, openings[str(LARGE)], openings[str(SMALL)])
    few, many = (_branch_puts(size) for size in (SMALL, LARGE))
    yield Count("branch of 10 GB: PUTs more than of 10 MB", many - few, 0, f"{many} PUTs")


@contextmanager
def opened_branches(size: int) -> Iterator[Pass]:
    """A branch of a store of that size, each with a name of its own."""
    store = _synthetic(CountingStore(MemoryStore()), size)
    yield over([f"b{number}" for number in range(BRANCHES + 1)], store.branch)


def _branch_puts(size: int) -> int:
    counted = CountingStore(MemoryStore())
    store = _synthetic(counted, size)
    counted.reset()
    store.branch("b")
    requests = counted.reset().requests
    return requests.get("put_if_absent", 0) + requests.get("upload", 0)


def _synthetic(store: CountingStore, size: int) -> Pages:
    """Return a page store whose manifest names as many segments as one of `size` bytes has."""
    with Database(store, flush_interval=0) as db, db.pages("main", page_size=PAGE) as pages:
        pages.write({page: bytes(PAGE) for page in range(100)})
        pages.flush()

    def grown(manifest: Manifest) -> Manifest:
        (real,) = manifest.segments
        count = max(1, size // IMAGE_BYTES)
        each_pages = size // PAGE // count
        others = [_segment(real, number, each_pages) for number in range(1, count)]
        return msgspec.structs.replace(manifest, segments=(real, *others))

    db = Database(store, flush_interval=0)
    db.context().chain("main").publish(lambda head: grown(head.manifest))  # type: ignore[union-attr]
    return db.pages("main", page_size=PAGE)


def _segment(real: SegmentRef, number: int, pages: int) -> SegmentRef:
    first = 1000 + number * pages
    return msgspec.structs.replace(
        real,
        id=f"{real.id[:18]}{number:08}-e1",
        rows=pages,
        key_min=first.to_bytes(4, "big"),  # a page's key is its number
        key_max=(first + pages - 1).to_bytes(4, "big"),
        size=IMAGE_BYTES,
    )
