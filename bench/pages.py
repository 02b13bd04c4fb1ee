"""The page store: what a commit adds to its PUT, reads warm and cold, layers per read, and branches."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

import reef
from bench._measure import Count, Ratio, Result, ratio_of
from bench._places import Place, TimedStore, file_place, seaweedfs_place
from reef.database import Database
from reef.engine._layers import look
from reef.format import Manifest, SegmentRef
from reef.jobs import CompactionOptions, compact
from reef.pages import Pages
from reef.pages._rows import key_of
from reef.store import MemoryStore, open_store
from reef.testing import CountingStore

PAGE = 4096
PAGES = 20_000
COMMITS = 1_000
READS = 20_000
FLUSHES = 48
COLD_READS = 40
BRANCHES = 15
LIMIT = "the limit"
IMAGE_BYTES = 128 << 20


def bench_pages() -> Iterator[Result]:
    """Every figure of the page store."""
    for place in (file_place, seaweedfs_place):
        with place() as here:
            yield from _commits(here)
    with file_place() as here:
        yield from _reads(here)
    yield from _layers()
    yield from _branches()


# Commits.


def _commits(place: Place) -> Iterator[Result]:
    """Ten pages at a time, as a small transaction of SQLite has them."""
    timed = TimedStore(open_store(place.url))
    rng = random.Random(1)
    whole: list[float] = []
    puts: list[float] = []
    most = 0
    with Database(timed, flush_threshold_slots=1 << 20, flush_interval=0) as db:
        store = db.pages("commits", page_size=PAGE)
        batches = [_transaction(rng) for _ in range(100)]
        for number in range(COMMITS):
            timed.seconds = 0.0
            timed.requests.clear()
            started = time.perf_counter()
            store.write(batches[number % len(batches)])
            whole.append(time.perf_counter() - started)
            puts.append(timed.seconds)
            most = max(most, len(timed.requests))
    added = [mine - theirs for mine, theirs in zip(whole, puts, strict=True)]
    name = f"{place.name}: commit of 10 pages"
    yield Count(f"{name}: requests", most, 1)
    note = f"p50 {_at(whole, 0.5)}, p99 {_at(whole, 0.99)}, p99.9 {_at(whole, 0.999)}"
    yield ratio_of(
        f"{name}, beside its PUT", added, [0.002], by="median", bar=1.0, note=note, against=LIMIT
    )
    with reef.connect(place.url) as db:
        yield from _together(place, db.pages("together", page_size=PAGE))


def _together(place: Place, store: Pages) -> Iterator[Ratio]:
    """How much more threads get done together than one after the other."""
    alone = 0.0
    for threads in (1, 4, 16):
        count = 400 // threads

        def work(number: int, count: int = count) -> None:
            data = {number: bytes(PAGE)}
            for _ in range(count):
                store.write(data)

        running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        started = time.perf_counter()
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        each = (time.perf_counter() - started) / (count * threads)
        alone = alone or each
        note = f"{1 / each:,.0f} commits/s"
        yield ratio_of(
            f"{place.name}: {threads} threads that commit a page each",
            [each],
            [alone],
            by="median",
            bar=None,
            note=note,
            against="one thread",
        )


def _transaction(rng: random.Random) -> dict[int, bytes]:
    return {rng.randrange(PAGES): rng.randbytes(PAGE) for _ in range(10)}


def _at(times: Sequence[float], share: float) -> str:
    return f"{sorted(times)[int(share * (len(times) - 1))] * 1e3:.2f} ms"


# Reads.


def _reads(place: Place) -> Iterator[Result]:
    rng = random.Random(2)
    with reef.connect(place.url, flush_interval=0) as db:
        store = db.pages("reads", page_size=PAGE)
        for first in range(0, PAGES, 2_000):
            store.write({page: rng.randbytes(PAGE) for page in range(first, first + 2_000)})
        store.flush()
        _compact(db, "reads", full=True)
        warm = db.pages("reads", mode="r", max_staleness=3600)
        asked = [rng.randrange(PAGES) for _ in range(READS)]
        for page in range(PAGES):
            warm.get_page(page)
        times = _times(warm.get_page, asked)
        p99 = sorted(times)[int(0.99 * len(times))]
        note = f"p50 {_at(times, 0.5)}, p99.9 {_at(times, 0.999)}"
        yield ratio_of(
            "warm get_page, p99", [p99], [0.001], by="median", bar=1.0, note=note, against=LIMIT
        )
    counted = CountingStore(open_store(place.url))
    worst = 0
    for _ in range(COLD_READS):
        reader = Database(counted, max_staleness=3600).pages("reads", mode="r")
        counted.reset()
        reader.get_page(rng.randrange(PAGES))
        worst = max(worst, counted.reset().total)
    yield Count("cold get_page after compaction: requests, the most of any", worst, 2)
    reader = Database(counted, max_staleness=3600).pages("reads", mode="r")
    counted.reset()
    for page in range(PAGES):
        reader.get_page(page)
    whole = counted.reset().total
    mib = PAGES * PAGE >> 20
    yield Count(f"cold scan of {mib} MiB, page by page: requests", whole, mib // 2)


def _times(read: Callable[[int], object], pages: Sequence[int]) -> list[float]:
    times = []
    for page in pages:
        started = time.perf_counter()
        read(page)
        times.append(time.perf_counter() - started)
    return times


def _layers() -> Iterator[Count]:
    """Pages are written all over the store, flush by flush, and compacted now and then."""
    rng = random.Random(3)
    with Database(MemoryStore(), flush_interval=0) as db:
        store = db.pages("layers", page_size=64)
        store.write({page: rng.randbytes(64) for page in range(PAGES)})
        for number in range(FLUSHES):
            store.flush()
            if number % 4 == 3:
                _compact(db, "layers")
            store.write({rng.randrange(PAGES): rng.randbytes(64) for _ in range(500)})
        store._handle.reload()
        state = store._handle._current()
        keys = [key_of(rng.randrange(PAGES)) for _ in range(READS)]
        looked = sorted(look(state.layers, key, store.head).layers for key in keys)
    note = f"p50 {looked[READS // 2]}, most {looked[-1]}, {FLUSHES} flushes"
    yield Count(
        "layers that a read looks into, p99, after compaction", looked[READS * 99 // 100], 8, note
    )


def _compact(db: Database, name: str, *, full: bool = False) -> None:
    context = db.context()
    layers, _ = context.settings.compaction_cadence
    options = CompactionOptions(
        min_input_files=layers,
        target_file_size_bytes=context.settings.image_layer_target_bytes,
        full=full,
    )
    compact(db, name, options=options).namespaces[0].returned()


# Branches.


def _branches() -> Iterator[Result]:
    """A branch of a store of 10 MB and of one of 10 GB: their manifests are real, their data is not."""
    stores = {size: _synthetic(size) for size in (10_000_000, 10_000_000_000)}
    times: dict[int, list[float]] = {size: [] for size in stores}
    puts: dict[int, int] = {}
    for number in range(BRANCHES):
        for size, (counted, store) in stores.items():
            counted.reset()
            started = time.perf_counter()
            store.branch(f"b{number}")
            times[size].append(time.perf_counter() - started)
            requests = counted.reset().requests
            puts[size] = requests.get("put_if_absent", 0) + requests.get("upload", 0)
    small, large = times.values()
    yield ratio_of(
        "branch of 10 GB",
        large,
        small,
        by="fastest",
        bar=2.0,
        note="the manifest names 75 times as many segments",
        against="of 10 MB",
        at_most=True,
    )
    few, many = puts.values()
    yield Count("branch of 10 GB: PUTs more than of 10 MB", many - few, 0, f"{many} PUTs")


def _synthetic(size: int) -> tuple[CountingStore, Pages]:
    counted = CountingStore(MemoryStore())
    db = Database(counted, flush_interval=0)
    store = db.pages("main", page_size=PAGE)
    store.write({page: bytes(PAGE) for page in range(100)})
    store.flush()

    def grown(manifest: Manifest) -> Manifest:
        (real,) = manifest.segments
        count = max(1, size // IMAGE_BYTES)
        pages = size // PAGE // count
        others = [_segment(real, number, pages) for number in range(1, count)]
        return msgspec.structs.replace(manifest, segments=(real, *others))

    context = db.context()
    context.chain("main").publish(lambda head: grown(head.manifest))  # type: ignore[union-attr]
    store._handle.reload()
    return counted, store


def _segment(real: SegmentRef, number: int, pages: int) -> SegmentRef:
    return msgspec.structs.replace(
        real,
        id=f"{real.id[:18]}{number:08}-e1",
        rows=pages,
        key_min=key_of(1000 + number * pages),
        key_max=key_of(1000 + number * pages + pages - 1),
        size=IMAGE_BYTES,
    )
