"""Reads of pages: which segment is asked, what comes over the wire, and how many layers that takes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

from reef.database import Database
from reef.engine import lookup_counted
from reef.errors import DamagedError, UnavailableError
from reef.jobs import CompactionOptions, CompactionPlan, InProcess, preview_compaction
from reef.pages import Pages
from reef.pages._ahead import Ahead
from reef.pages._page_rows import key_of
from reef.segment import SegmentSource, lookup
from reef.store import MemoryStore, Store
from reef.testing import CountingStore, Operation, WrapperStore
from tests.support.engine.open_handles import handle_of, read_state
from tests.support.jobs.passes import compact
from tests.support.waiting import DEADLINE_SECONDS

T = TypeVar("T")

SIZE = 512
NAME = "main.db"
GETS = ("get", "get_range")


class Shelf:
    """A store whose requests are counted, opened anew when its caches are to be cold."""

    def __init__(self, seed: int = 1) -> None:
        self.rng = random.Random(seed)
        self.inner = MemoryStore()
        self.counted = CountingStore(self.inner)
        self.pages: dict[int, bytes] = {}
        self.writer = self.database().pages(NAME, page_size=SIZE)

    def database(self, **settings: Any) -> Database:
        arguments = {"maintenance": "off", "flush_interval": 0, "row_block_bytes": 8192, **settings}
        return Database(self.counted, rng=random.Random(self.rng.random()), **arguments)

    def write(self, ids: Iterable[int], *, flush: bool = True) -> None:
        pages = {page: self.rng.randbytes(SIZE) for page in ids}
        self.writer.write(pages)
        self.pages |= pages
        if flush:
            self.writer.flush()

    def compact(self, target_bytes: int = 32 << 10) -> None:
        context = self.database().context()
        options = CompactionOptions(full=True, target_size_bytes=target_bytes)
        compact(context, NAME, InProcess(context), options=options)

    def cold(self, **settings: Any) -> Pages:
        """Return a reader that has read nothing yet but what opening takes."""
        store = self.database(max_staleness=3600, **settings).pages(NAME, mode="r")
        self.counted.reset()
        return store

    def gets(self) -> int:
        """Return the reads since the last call, and that there was nothing else."""
        requests = self.counted.reset().requests
        assert set(requests) <= set(GETS), requests
        return sum(requests.values())

    def check(self, store: Pages, ids: Iterable[int]) -> None:
        for page in ids:
            assert store.get_page(page) == self.pages.get(page)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def layers(store: Pages) -> list[Any]:
    return list(read_state(store).layers)


# Which segment is asked.


def test_an_image_of_many_segments_is_one_layer(shelf: Shelf) -> None:
    shelf.write(range(600))
    shelf.compact()
    store = shelf.cold()
    _, image = layers(store)
    assert len(image.sources) > 5
    assert [one.key_min for one in image.sources] == sorted(one.key_min for one in image.sources)
    shelf.check(store, range(0, 700, 7))
    assert store.get_pages(range(700)) == [shelf.pages.get(page) for page in range(700)]


def test_a_layer_has_no_key_twice_and_newer_ones_come_first(shelf: Shelf) -> None:
    for number in range(12):
        first = shelf.rng.randrange(500)
        shelf.write(range(first, first + shelf.rng.choice((3, 40, 200))))
        if number == 5:
            shelf.compact()
    store = shelf.cold()
    sources = read_state(store).sources
    found = layers(store)
    assert len(found) < len(sources)
    assert [one.lsn_max for one in found[1:]] == sorted(
        (one.lsn_max for one in found[1:]), reverse=True
    )
    for page in range(720):
        key = key_of(page)
        asked = [
            [one for one in _members(layer) if one.key_min <= key < one.key_end]
            for layer in found[1:]
        ]
        assert all(len(some) <= 1 for some in asked)
        versions = [some[0].lsn_max for some in asked if some]
        assert versions == sorted(versions, reverse=True)
        for lsn in (store.head, store.head // 2):
            assert _place(lookup(found, key, lsn)) == _place(lookup(sources, key, lsn))
    shelf.check(store, range(720))


def _members(layer: Any) -> list[SegmentSource]:
    return [layer] if isinstance(layer, SegmentSource) else list(layer.sources)


def _place(found: Any) -> Any:
    return found and (found.lsn, found.tombstone, found.batch.slice(found.row, 1))


def test_the_segments_between_two_keys(shelf: Shelf) -> None:
    shelf.write(range(0, 300, 3))
    shelf.compact(8 << 10)
    (run,) = layers(shelf.cold())[1:]
    for low, high in ((0, 5), (1, 2), (50, 51), (100, 250), (290, 400), (297, 297)):
        a, b = key_of(low), key_of(high)
        expected = [one for one in run.sources if one.key_min <= b and one.key_max >= a]
        assert list(run.between(a, b)) == expected
        assert set(run.between(a, None)) >= set(expected)


# What comes over the wire.


def test_a_cold_read_of_an_image_takes_two_requests(shelf: Shelf) -> None:
    shelf.write(range(600))
    shelf.compact()
    for page in (0, 300, 599):
        store = shelf.cold()
        assert store.get_page(page) == shelf.pages[page]
        assert shelf.gets() == 2  # the segment's tail, and a block
        assert store.get_page(page) == shelf.pages[page]
        assert shelf.gets() == 0
    store = shelf.cold()
    assert store.get_page(10_000) is None
    assert shelf.gets() <= 1  # the last segment goes on to where the extent is kept


def test_what_is_in_the_log_only_takes_none(shelf: Shelf) -> None:
    shelf.write(range(100))
    shelf.write(range(20), flush=False)
    store = shelf.cold()
    shelf.check(store, reversed(range(20)))
    assert shelf.gets() == 0


def test_a_read_at_an_lsn_takes_no_more(shelf: Shelf) -> None:
    shelf.write(range(600))
    old, lsn = dict(shelf.pages), shelf.writer.head
    shelf.write(range(0, 600, 5))
    shelf.compact()
    store = shelf.cold()
    view = store.at(lsn=lsn)
    assert view.get_page(25) == old[25] != shelf.pages[25]
    assert shelf.gets() == 2


def test_pages_one_after_the_other_come_in_few_requests(shelf: Shelf) -> None:
    shelf.write(range(2000))
    shelf.compact(1 << 20)
    store = shelf.cold()
    shelf.check(store, range(2000))
    ahead = shelf.gets()
    store = shelf.cold(read_ahead_bytes=0)
    shelf.check(store, range(2000))
    assert ahead * 10 < shelf.gets()
    store = shelf.cold()
    view = store.at(lsn=store.head)
    assert [view.get_page(page) for page in range(2000)] == list(shelf.pages.values())
    assert shelf.gets() == ahead
    store = shelf.cold()
    assert [store.get_page(page, store.head) for page in range(2000)] == list(shelf.pages.values())
    assert shelf.gets() == ahead


def test_a_page_is_read_whatever_becomes_of_those_ahead(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.write(range(600))
    shelf.compact(1 << 20)
    for error in (UnavailableError("down"), DamagedError("x", 0, "bytes", "others")):
        store = shelf.cold()
        view = store.at(lsn=store.head)
        shelf.check(store, [0])

        def broken(*_: object, error: Exception = error) -> bytes:
            raise error

        with monkeypatch.context() as broke:
            broke.setattr(shelf.inner, "get_range", broken)
            shelf.check(store, [1, 2])
            assert [view.get_page(page) for page in (1, 2)] == [shelf.pages[1], shelf.pages[2]]
            with pytest.raises(type(error)):
                store.get_page(599)
        shelf.check(store, range(600))


@pytest.mark.slow
@pytest.mark.parametrize("behind", [0, 300])
def test_old_versions_of_a_hot_page_are_not_brought_ahead(shelf: Shelf, behind: int) -> None:
    shelf.write(range(600), flush=False)
    history = []
    for _ in range(1000):
        shelf.write([5, 9], flush=False)
        history.append((shelf.writer.head, dict(shelf.pages)))
    shelf.writer.flush()
    shelf.compact(4 << 20)
    store = shelf.cold()
    lsn, pages = history[-1 - behind]
    view = store.at(lsn=lsn)
    store.get_page(599)  # the index
    shelf.counted.reset()
    assert [view.get_page(page) for page in range(60)] == [pages[page] for page in range(60)]
    # A window of 512 pages, and a few blocks for each of the two; there is a megabyte of versions.
    assert shelf.counted.counts.bytes["get_range"] < 512 * SIZE + 12 * 8192


def test_reading_ahead_takes_no_more_than_its_share_of_the_cache(shelf: Shelf) -> None:
    shelf.write(range(2000))
    shelf.compact(1 << 20)
    store = shelf.cold(block_cache_bytes=1 << 20)
    shelf.check(store, range(2000))
    read = shelf.counted.counts.bytes["get_range"]
    assert read < 2 * 2000 * SIZE  # nothing was fetched, given up, and fetched again and again


def test_reads_in_no_order_bring_nothing_ahead(shelf: Shelf) -> None:
    shelf.write(range(2000))
    shelf.compact(1 << 20)
    store = shelf.cold()
    pages = [shelf.rng.randrange(2000) for _ in range(5)]
    shelf.check(store, pages)
    assert shelf.counted.counts.bytes["get_range"] < 100 << 10


# When to read ahead.


def test_windows_double_up_to_their_bound() -> None:
    ahead = Ahead(4096, 4 << 20)
    windows = {page: run - page + 1 for page in range(6000) if (run := ahead.next(page))}
    assert next(iter(windows)) == 1  # the second page in a row is the first that tells
    assert list(windows.values())[:6] == [64, 128, 256, 512, 1024, 1024]
    for page, following in zip(windows, list(windows)[1:], strict=False):
        assert following == page + windows[page]  # none twice, and no gap


def test_a_jump_ends_a_run_and_a_repetition_does_not() -> None:
    ahead = Ahead(4096, 4 << 20)
    assert [bool(ahead.next(page)) for page in (10, 11, 11, 12, 12, 13)] == [False, True] + 4 * [
        False
    ]
    assert ahead.next(500) == 0
    assert ahead.next(501) == 501 + 64 - 1
    assert [ahead.next(page) for page in (7, 900, 3, 2, 1, 0)] == [0] * 6
    off = Ahead(4096, 0)
    assert [off.next(page) for page in range(2000)] == [0] * 2000


# How many layers a read looks into.


def test_layers_are_counted_and_told(shelf: Shelf) -> None:
    shelf.write(range(64))
    for _ in range(5):
        shelf.write(range(0, 64, 9))
    db = shelf.database()
    store = db.pages(NAME, mode="r")
    state = read_state(store)
    assert lookup_counted(state.layers, key_of(0), store.head).layers == 1
    assert lookup_counted(state.layers, key_of(1), store.head).layers == 6
    assert lookup_counted(state.layers, key_of(999), store.head) == (
        None,
        1,
    )  # where the extent is kept
    for page in range(64):
        assert store.get_page(page) == shelf.pages[page]
    told = db.metrics.snapshot()["reef_page_read_layers"]
    assert isinstance(told, dict)
    assert told["count"] == 1  # one of 64
    shelf.compact()
    store = db.pages(NAME, mode="r")
    shelf.check(store, list(range(64)) * 4)
    told = db.metrics.snapshot()["reef_page_read_layers"]
    assert isinstance(told, dict)
    assert told["count"] == 5
    assert isinstance(told["buckets"], dict)
    assert told["buckets"]["1"] == 5  # the one before was of page 63, which is in the newest


def test_a_view_of_a_handle_is_what_reads_go_by(shelf: Shelf) -> None:
    """A flush between the version and the layers must not hide anything: see `Handle`."""
    shelf.write(range(10), flush=False)
    handle = handle_of(shelf.writer)
    before = handle._live.state
    shelf.writer.flush()
    assert handle._live.state is not before
    for state in (before, handle._live.state):
        assert state.one(key_of(3), handle.lsn) is not None


class Meeting(WrapperStore):
    """A store on which so many reads have to be under way at once before any is answered."""

    def __init__(self, inner: Store, parties: int) -> None:
        super().__init__(inner)
        self.concurrency = parties
        self.barrier = threading.Barrier(parties)
        self.met = 0
        self._lock = threading.Lock()

    def _request(self, operation: Operation, key: str, call: Callable[[], T]) -> T:
        if operation == "get_range" and self.met < self.barrier.parties:
            self.barrier.wait(DEADLINE_SECONDS)
            with self._lock:
                self.met += 1
        return call()


def test_the_layers_that_a_page_may_be_in_are_looked_up_side_by_side(shelf: Shelf) -> None:
    for _ in range(4):
        shelf.write([1, 500, 1000])
    store = Meeting(shelf.inner, 4)
    with Database(store, max_staleness=3600) as db:
        reader = db.pages(NAME, mode="r")
        assert reader.get_page(500) == shelf.pages[500]
    assert store.met == 4


def test_a_compaction_goes_by_the_settings_of_pages() -> None:
    shelf = Shelf()
    db = shelf.database(image_layer_target_bytes=20_000, compaction_cadence="3/10m")

    def plan_of(**options: Any) -> CompactionPlan | None:
        (planned,) = preview_compaction(db, NAME, **options)
        return planned.result

    for _ in range(3):
        assert plan_of() is None
        shelf.write(range(200))
    plan = plan_of()
    assert plan is not None
    assert (plan.options.target_size_bytes, plan.options.min_input_files) == (20_000, 3)
    assert len(plan.groups[0].ranges) > 2
    said = plan_of(options=CompactionOptions(target_size_bytes=4000))
    assert said is not None
    assert said.options.target_size_bytes == 4000
