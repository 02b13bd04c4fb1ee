"""A long history of pages, read back at any LSN through everything that rewrites the bucket."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from reef.database import Database
from reef.doctor import verify
from reef.errors import RetentionError
from reef.gc import CollectionReport, collect
from reef.jobs import CompactionOptions, InProcess
from reef.pages import Pages
from reef.store import MemoryStore
from reef.testing import ManualClock
from tests.support.engine.open_handles import handle_of, read_state
from tests.support.engine.page_history import SIZE, PageHistory
from tests.support.jobs.passes import compact

NAME = "main.db"
PAGES = 20_000
LSNS = 4_000
PER_LSN = 250
LSNS_AT_ONCE = 200
DAY_S = 86400.0


class Story:
    """A store whose history is known, and what is done to its bucket."""

    def __init__(self, seed: int = 1) -> None:
        self.clock = ManualClock()
        self.rng = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.history = PageHistory()
        self.branches: dict[str, PageHistory] = {}
        self.bucket = MemoryStore(clock=self.clock)
        self.db = self.database()
        self.store = self.db.pages(NAME, page_size=SIZE, lsn_policy="caller")

    def database(self) -> Database:
        settings: dict[str, Any] = {
            "flush_interval": 0,
            "flush_threshold_bytes": "1GiB",
            "memtable_max_bytes": "1GiB",
            "gc_grace": 900,
            "maintenance": "off",
            "retained_generations": 2,
            "row_block_bytes": "16KiB",
        }
        return Database(
            self.bucket, clock=self.clock, rng=random.Random(self.rng.random()), **settings
        )

    def write(
        self, lsns: int, store: Pages | None = None, history: PageHistory | None = None
    ) -> None:
        """Commit so many versions in one log object; hot pages get more of them."""
        store, history = store or self.store, history or self.history
        records = []
        for lsn in range(store.head + 1, store.head + 1 + lsns):
            # Some pages are hot. Sorted, without repetitions: a set is what a commit is.
            drawn = self.numbers.beta(1, 3, 2 * PER_LSN) * PAGES
            pages = np.unique(drawn.astype(np.int64))
            self.numbers.shuffle(pages)
            records += history.write(lsn, pages[:PER_LSN])
        assert store.append_wal(records) == history.head

    def cut(self, n_pages: int) -> None:
        self.history.cut(self.store.head + 1, n_pages)
        self.store.truncate(n_pages, lsn=self.store.head + 1)

    def compact(self, *, full: bool) -> None:
        context = self.database().context()
        options = CompactionOptions(full=full, target_size_bytes=1 << 20, min_input_files=2)
        result = compact(context, NAME, InProcess(context), options=options)
        assert result.groups
        assert [group.error for group in result.groups if group.error] == []

    def collect(self, *, days: float = 0.1) -> CollectionReport:
        """Let time pass, and delete what nothing needs any more."""
        context = self.database().context()
        chain = context.chain(NAME)
        for _ in range(4):
            chain.publish(lambda head: head.manifest)  # type: ignore[union-attr]
            self.clock.advance(days * DAY_S / 4)
        chain.publish(lambda head: head.manifest)  # type: ignore[union-attr]
        report = collect(
            chain, context.store, settings=context.settings, clock=self.clock, apply=True
        )
        assert report is not None
        return report

    def check(self, times: int, *, low: int = 1) -> None:
        """Read by the writer and by a reader."""
        stores = (self.store, self.database().pages(NAME, mode="r"))
        self.check_all(stores, self.history, times, low)

    def check_all(
        self, stores: Sequence[Pages], history: PageHistory, times: int, low: int = 1
    ) -> None:
        """Read all pages at some LSNs, and some pages at others."""
        everything = range(PAGES + 10)
        head = history.head
        for lsn in [head, low, *(self.rng.randint(low, head) for _ in range(times))]:
            view = self.rng.choice(stores).at(lsn=lsn)
            assert view.n_pages == history.extent(lsn)
            found = view.get_pages(everything)
            assert not list(history.differences(lsn, everything, found))
        for _ in range(20 * times):
            lsn, page = self.rng.randint(low, head), self.rng.randrange(PAGES)
            assert [self.rng.choice(stores).get_page(page, lsn)] == history.at(lsn, [page])

    @property
    def layers(self) -> int:
        """How many a read of a page may have to look into."""
        return len(read_state(self.store).layers)


@pytest.fixture(scope="module")
def story() -> Story:
    """A million versions, in memory and in segments of every level."""
    story = Story()
    for step in range(LSNS // LSNS_AT_ONCE):
        story.write(LSNS_AT_ONCE)
        if step % 3 == 2:
            story.store.flush()
        if step % 7 == 5:
            story.cut(PAGES // (2 + step % 3))
        if step == 9:
            story.compact(full=False)
    return story


def test_a_million_versions_are_read_back_at_any_lsn(story: Story) -> None:
    assert story.history.versions >= 1_000_000
    assert story.layers > 2
    assert handle_of(story.store).tail.memtable.rows > 100_000
    story.check(4)


def test_branches_share_the_past_and_nothing_else(story: Story) -> None:
    """Made while much is unfolded; a branch of the branch; both written, folded and collected."""
    at = story.history.head - 3 * LSNS_AT_ONCE // 2
    story.store.branch("one", lsn=at)
    one, first = story.db.pages(NAME, branch="one"), story.history.fork(at, mark=1)
    story.write(LSNS_AT_ONCE, one, first)
    story.store.branch("past", lsn=LSNS // 4)
    past, early = story.db.pages(NAME, branch="past", mode="r"), story.history.fork(LSNS // 4, 0)
    one.branch("two", lsn=first.head - 50)
    two, second = story.db.pages(NAME, branch="two"), first.fork(first.head - 50, mark=2)
    one.flush()
    story.write(LSNS_AT_ONCE, two, second)
    story.write(LSNS_AT_ONCE, one, first)
    story.write(LSNS_AT_ONCE)
    two.flush()
    for store, history in ((one, first), (two, second), (past, early)):
        story.check_all(
            (store, story.database().pages(NAME, branch=store.name.split("@")[1], mode="r")),
            history,
            1,
        )
    story.check(1)
    story.branches = {"one": first, "two": second, "past": early}


def test_and_so_they_are_when_all_is_one_image(story: Story) -> None:
    story.store.flush()
    assert story.layers > 2
    story.compact(full=True)
    story.collect()
    handle_of(story.store).reload()
    assert story.layers == 2  # the memtable, and segments side by side
    assert len(handle_of(story.store).manifest.segments) > 2
    story.check(4)
    assert verify(story.database().context(), NAME).problems == ()
    # What the branches stand on was replaced, and collected for all but them.
    assert story.branches
    for name, history in story.branches.items():
        story.check_all([story.database().pages(NAME, branch=name, mode="r")], history, 1)


def test_what_the_window_has_passed_goes_but_for_what_a_snapshot_or_a_branch_sees(
    story: Story,
) -> None:
    held_lsn = story.history.head
    held = story.store.snapshot(ttl="30d", id="held")
    story.write(LSNS_AT_ONCE)
    story.store.flush()
    story.clock.advance(8 * DAY_S)
    story.write(LSNS_AT_ONCE)
    kept_from = story.history.head - LSNS_AT_ONCE  # what is newer lies inside the window
    story.store.flush()
    rows = sum(ref.rows for ref in handle_of(story.store).manifest.segments)
    story.compact(full=True)
    report = story.collect()
    assert sum(tally.objects for tally in report.plan.object_counts if tally.goes) > 0
    handle_of(story.store).reload()
    floor = handle_of(story.store).manifest.retention.floor_lsn
    assert 1 < floor <= kept_from
    with pytest.raises(RetentionError):
        story.store.get_page(1, floor - 1)
    story.check(2, low=kept_from)
    everything = range(PAGES)
    found = story.database().pages(NAME, mode="r").at(snapshot="held").get_pages(everything)
    assert not list(story.history.differences(held_lsn, everything, found))
    for name, history in story.branches.items():
        story.check_all([story.database().pages(NAME, branch=name, mode="r")], history, 1)
    # No more than each of those points can see: a version of each page at every one of them, and the
    # versions above the floor.
    manifest = handle_of(story.store).manifest
    points = {floor, held_lsn, *(pin.lsn for pin in manifest.pins)}
    newer = (story.history.head - floor) * (PER_LSN + 1)
    now = sum(ref.rows for ref in manifest.segments)
    assert now <= len(points) * (PAGES + 1) + newer < rows
    held.release()
    with pytest.raises(RetentionError):
        story.store.get_page(1, held_lsn)
