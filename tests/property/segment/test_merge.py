"""Whatever was written in whatever pieces, reads agree with a plain dict of version histories."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from reef.engine import Memtable
from reef.format import SegmentOptions, SegmentOrigin
from reef.metrics import Metrics
from reef.segment import (
    BlockCache,
    RowSource,
    SegmentReader,
    keep_versions,
    lookup,
    lookup_many,
    merge,
    write_segment,
)
from reef.store import MemoryStore
from reef.types import LSN_MAX
from tests.support.engine.versions import (
    SEGMENT_SCHEMA,
    ArraySource,
    History,
    log_batch,
    newest,
    ordered,
    rows_of,
    scan,
    segment_batch,
    told,
    visible,
)

# Few keys, that begin like each other, end in zeros, or are empty: ties are what goes wrong.
keys = st.sampled_from([b"", b"\0", b"a", b"a\0", b"a\0\0", b"aa", b"b", b"\xff", b"\xff\xff"])
lsns = st.integers(1, 12)
values = st.none() | st.binary(max_size=40)
histories = st.dictionaries(keys, st.dictionaries(lsns, values, min_size=1, max_size=8), max_size=9)
points = st.one_of(lsns, st.just(0), st.just(LSN_MAX))
ends = st.none() | keys


def split(history: History, places: list[set[int]], count: int) -> list[History]:
    """Return the versions spread over `count` histories; some of them are in several."""
    parts: list[History] = [{} for _ in range(count)]
    for number, (key, lsn) in enumerate(ordered(history)):
        for place in places[number % len(places)] if places else {0}:
            parts[place % count].setdefault(key, {})[lsn] = history[key][lsn]
    return parts


def by_newest(sources: list[Any]) -> list[RowSource]:
    return sorted(sources, key=lambda source: source.lsn_max, reverse=True)


@st.composite
def sources_of(draw: st.DrawFn) -> tuple[History, list[RowSource]]:
    """A history, and the sources it is spread over, cut into batches anywhere."""
    history = draw(histories)
    count = draw(st.integers(1, 5))
    places = draw(st.lists(st.sets(st.integers(0, 4), min_size=1, max_size=2), min_size=1))
    parts = [part for part in split(history, places, count) if part]
    return history, by_newest([ArraySource(part, draw(st.integers(1, 9))) for part in parts])


@given(sources_of(), points, keys, ends, st.booleans(), st.integers(1, 200))
@settings(max_examples=400)
def test_a_merge_shows_what_a_dict_does(
    given: tuple[History, list[RowSource]],
    lsn: int,
    start: bytes,
    end: bytes | None,
    reverse: bool,
    batch_bytes: int,
) -> None:
    history, sources = given
    found = list(
        scan(*sources, start=start, end=end, lsn=lsn, reverse=reverse, batch_bytes=batch_bytes)
    )
    assert rows_of(found) == visible(history, lsn, start, end, reverse=reverse)
    assert all(batch.num_rows for batch in found)


@given(sources_of(), points, keys, ends, st.booleans())
@settings(max_examples=400)
def test_a_merge_that_need_not_be_in_order_shows_the_same_and_says_how_far_it_is(
    given: tuple[History, list[RowSource]],
    lsn: int,
    start: bytes,
    end: bytes | None,
    reverse: bool,
) -> None:
    history, sources = given
    expected = visible(history, lsn, start, end, reverse=reverse)
    found: list[Any] = []

    def passed(key: bytes) -> None:
        """What lies up to here has been shown, and nothing behind it."""
        is_behind = [row for row in expected if (row[0] >= key if reverse else row[0] <= key)]
        assert sorted(found) == sorted(is_behind)

    for batch in scan(
        *sources, start=start, end=end, lsn=lsn, reverse=reverse, ordered=False, passed=passed
    ):
        assert batch.num_rows
        found += rows_of([batch])
    assert sorted(found) == sorted(expected)


@given(sources_of(), points, st.lists(keys))
def test_lookups_find_what_a_dict_does(
    given: tuple[History, list[RowSource]], lsn: int, asked: list[bytes]
) -> None:
    history, sources = given
    expected = [newest(history, key, lsn) for key in asked]
    assert [told(lookup(sources, key, lsn)) for key in asked] == expected
    assert [told(found) for found in lookup_many(sources, asked, lsn)] == expected


@given(
    histories,
    st.lists(lsns, max_size=3, unique=True),
    st.integers(40, 400),
    st.lists(st.tuples(points, keys, ends, st.booleans()), min_size=1, max_size=5),
)
def test_segments_beside_a_memtable_show_what_a_dict_does(
    history: History,
    flushes: list[int],
    row_block_bytes: int,
    scans: list[tuple[int, bytes, bytes | None, bool]],
) -> None:
    """What is flushed at some versions, and dropped from memory, reads as if it were not."""
    store = MemoryStore()
    metrics = Metrics()
    cache = BlockCache(1 << 20, metrics=metrics)
    reader = SegmentReader(store, "ns", cache=cache, metrics=metrics)
    memtable = Memtable()
    segments = []
    for lsn in range(1, 13):
        batch = {key: versions[lsn] for key, versions in history.items() if lsn in versions}
        memtable.apply(lsn, log_batch(batch))
        if lsn in flushes and memtable.rows:
            origin = SegmentOrigin(
                id=f"{lsn:026}", namespace="ns", level=0, author="test", created_at_us=1
            )
            options = SegmentOptions(row_block_bytes=row_block_bytes)
            rows = memtable.flush_batches(lsn)
            ref = write_segment(store, "ns", SEGMENT_SCHEMA, origin, options, rows)
            segments.append(reader.open(ref))
            memtable = memtable.without_through(lsn)
    sources = [memtable, *by_newest(segments)]
    for lsn, start, end, reverse in scans:
        found = merge(sources, start=start, end=end, lsn=lsn, columns=None, reverse=reverse)
        assert rows_of(found) == visible(history, lsn, start, end, reverse=reverse)
        for key in (start, end or b"nowhere"):
            assert told(lookup(sources, key, lsn)) == newest(history, key, lsn)
        assert [told(f) for f in lookup_many(sources, list(history), lsn)] == [
            newest(history, key, lsn) for key in history
        ]


class MemtableAgainstDict(RuleBasedStateMachine):
    """A memtable through writes, failed writes, flushes and scans in any order."""

    @initialize()
    def begin(self) -> None:
        self.memtable = Memtable()
        self.history: History = {}
        self.lsn = 0
        self.floor = 0

    @rule(rows=st.dictionaries(keys, values, max_size=9), gap=st.integers(1, 3))
    def apply(self, rows: dict[bytes, bytes | None], gap: int) -> None:
        self.lsn += gap
        self.memtable.apply(self.lsn, log_batch(rows))
        for key, value in rows.items():
            self.history.setdefault(key, {})[self.lsn] = value

    @rule(key=keys, count=st.integers(2, 40))
    def apply_one_by_one(self, key: bytes, count: int) -> None:
        for _ in range(count):
            self.apply({key: b"%d" % self.lsn}, 1)

    @rule(back=st.integers(0, 5))
    def truncate(self, back: int) -> None:
        self.lsn = max(self.floor, self.lsn - back)
        self.memtable.truncate(self.lsn)
        self._keep(0, self.lsn)

    @rule(back=st.integers(0, 20))
    def drop_flushed(self, back: int) -> None:
        self.floor = max(self.floor, self.lsn - back)
        self.memtable = self.memtable.without_through(self.floor)
        self._keep(self.floor, self.lsn)

    def _keep(self, above: int, through: int) -> None:
        for key, versions in list(self.history.items()):
            kept = {lsn: value for lsn, value in versions.items() if above < lsn <= through}
            self.history[key] = kept

    @rule(back=st.integers(0, 40), start=keys, end=ends, reverse=st.booleans())
    def scan(self, back: int, start: bytes, end: bytes | None, reverse: bool) -> None:
        lsn = self.lsn - back
        found = merge([self.memtable], start=start, end=end, lsn=lsn, columns=None, reverse=reverse)
        assert rows_of(found) == visible(self.history, lsn, start, end, reverse=reverse)

    @rule(back=st.integers(0, 40), key=keys)
    def get(self, back: int, key: bytes) -> None:
        lsn = self.lsn - back
        assert told(self.memtable.get(key, lsn)) == newest(self.history, key, lsn)

    @rule(back=st.integers(0, 40))
    def flush(self, back: int) -> None:
        found = [(row[0], row[1]) for row in rows_of(self.memtable.flush_batches(self.lsn - back))]
        assert found == [v for v in ordered(self.history) if v[1] <= self.lsn - back]

    @invariant()
    def counts_agree(self) -> None:
        assert self.memtable.rows == sum(map(len, self.history.values()))
        held = {key for key, versions in self.history.items() if versions}
        assert self.memtable._state.newest.keys() == held


TestMemtableAgainstDict = MemtableAgainstDict.TestCase


def kept_by_the_rule(
    history: History, floor: int, retained: set[int], is_bottom: bool
) -> list[tuple[bytes, int]]:
    """Return what stays, one version at a time, as the rule says it."""
    kept = []
    for key, grouped in groupby(ordered(history), key=lambda version: version[0]):
        versions = [lsn for _, lsn in grouped]
        seen = {max((v for v in versions if v <= p), default=0) for p in {*retained, floor}}
        stays = [v for v in versions if v > floor or v in seen]
        while is_bottom and stays and stays[-1] <= floor and history[key][stays[-1]] is None:
            stays.pop()
        kept += [(key, v) for v in stays]
    return kept


@given(histories, points, st.sets(points), st.booleans(), st.integers(1, 20))
@settings(max_examples=400)
def test_compaction_keeps_what_somebody_can_see_and_no_more(
    history: History, floor: int, retained: set[int], is_bottom: bool, rows_per_batch: int
) -> None:
    versions = ordered(history)
    batches = [
        segment_batch(history, versions[i : i + rows_per_batch])
        for i in range(0, len(versions), rows_per_batch)
    ]
    kept = list(keep_versions(batches, floor_lsn=floor, points=retained, is_bottom=is_bottom))
    found = [(row[0], row[1]) for row in rows_of(kept)]
    assert found == kept_by_the_rule(history, floor, retained, is_bottom)
    after: History = {key: {} for key in history}
    for key, lsn in kept_by_the_rule(history, floor, retained, is_bottom):
        after[key][lsn] = history[key][lsn]
    # What matters: every read that is still allowed shows the same, over an older run, too.
    older: History = {} if is_bottom else {key: {0: b"from an older run"} for key in history}
    for lsn in {*range(max(floor, 0), 14), *retained, floor}:
        assert visible(_over(older, after), lsn) == visible(_over(older, history), lsn)


def _over(older: History, newer: History) -> History:
    return {key: {**older.get(key, {}), **newer.get(key, {})} for key in {*older, *newer}}
