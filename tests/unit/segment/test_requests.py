"""What reads of segments cost: requests, memory, and what the caches save."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from reef.format import (
    KEY,
    LSN,
    TOMBSTONE,
    SegmentOptions,
    SegmentOrigin,
    SegmentRef,
    decode_tail,
    segment_key,
)
from reef.segment import write_segment
from reef.segment._read import _scan as scan_module
from reef.store import Store
from reef.types import LSN_MAX
from tests.support.engine.segments import (
    ID,
    SCHEMA,
    WIDE,
    Bench,
    keys_of,
    row_batch,
    rows_in,
    scanned,
    shown,
    value_of,
    vector_of,
    write,
)

# What reads cost.


def test_a_cold_point_read_is_two_requests_and_a_hot_one_none(bench: Bench) -> None:
    rows = keys_of(300)
    ref = write(bench.store, rows)
    assert bench.open(ref).get(rows[123][0], LSN_MAX) is not None
    assert bench.requests() == 2
    source = bench.open(ref)
    source.get(rows[123][0], LSN_MAX)
    source.get(rows[123][0], LSN_MAX)
    assert bench.requests() == 2
    source.get(rows[250][0], LSN_MAX)
    assert bench.requests() == 1


def test_what_is_outside_of_the_range_or_the_filter_costs_no_block(bench: Bench) -> None:
    ref = write(bench.store, keys_of(300))
    source = bench.open(ref)
    assert source.get(b"a", LSN_MAX) is None
    assert source.get(b"z", LSN_MAX) is None
    assert source.get_many([b"a", b"z"], LSN_MAX) == [None, None]
    assert bench.requests() == 0
    absent = [b"key-%05dx" % i for i in range(200)]
    assert [source.get(key, LSN_MAX) for key in absent] == [None] * 200
    skipped = bench.counted("reef_bloom_skips_total")
    assert skipped >= 150  # the rest: admitted wrongly, or in a block that was read because of that
    assert bench.requests() <= 1 + 200 - skipped
    again = bench.open(ref)
    assert again.get_many(absent, LSN_MAX) == [None] * 200
    assert bench.counted("reef_bloom_skips_total") >= skipped + 150
    assert bench.requests() <= 1 + 50


def test_the_filter_is_not_asked_where_the_block_is_at_hand(bench: Bench) -> None:
    source = bench.open(write(bench.store, keys_of(3), row_block_bytes=10_000))
    source.get(b"key-00001", LSN_MAX)
    bench.requests()
    assert source.get(b"key-00001x", LSN_MAX) is None
    assert source.get_many([b"key-00000x", b"key-00001x"], LSN_MAX) == [None, None]
    assert bench.counted("reef_bloom_skips_total") == 0
    assert bench.requests() == 0
    attached = bench.reader().open(msgspec.structs.replace(source.ref, version=8))
    attached.get(b"key-00001", LSN_MAX)
    assert attached.get(b"key-00001x", LSN_MAX) is None
    assert bench.counted("reef_bloom_skips_total") == 0


def test_a_multi_get_asks_once_for_blocks_that_lie_together(bench: Bench) -> None:
    rows = keys_of(300)
    ref = write(bench.store, rows)
    keys = [key for key, _, _ in rows]
    source = bench.open(ref)
    found = source.get_many([*keys[100:200], b"key-00100x", keys[100]], LSN_MAX)
    expected = [(lsn, value_of(key, lsn)) for key, lsn, _ in rows[100:200]]
    assert [shown(one) for one in found] == [*expected, None, expected[0]]
    assert bench.requests() == 2
    bench.open(ref).get_many([keys[0], keys[299]], LSN_MAX)
    assert bench.requests() == 3  # one here, one there


def test_a_multi_get_of_more_than_fits_keeps_rows_instead_of_blocks(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reef.segment._read._fetch.AT_ONCE_BYTES", 2000)
    for schema in (SCHEMA, WIDE):
        rows = [*keys_of(300), (b"z", 9, True)]
        ref = write(bench.store, rows, schema=schema, number=int(schema is WIDE))
        found = bench.open(ref, capacity_bytes=0).get_many([key for key, _, _ in rows], LSN_MAX)
        expected = [(lsn, None if dead else value_of(key, lsn)) for key, lsn, dead in rows]
        assert [shown(one) for one in found] == expected
        batches = {id(one.batch): one.batch for one in found if one is not None}
        assert sum(batch.num_rows for batch in batches.values()) == len(rows)


def test_without_a_cache_every_read_is_two_requests(bench: Bench) -> None:
    source = bench.open(write(bench.store, keys_of(300)), capacity_bytes=0)
    for _ in range(2):
        assert source.get(b"key-00123", LSN_MAX) is not None
        assert bench.requests() == 2
    assert len(bench.cache) == 0


def test_the_lists_of_a_block_count_as_memory(bench: Bench) -> None:
    ref = write(bench.store, keys_of(1000), row_block_bytes=1 << 20)
    source = bench.open(ref)
    assert len(scanned(source)) == 1000
    without = bench.cache.nbytes
    source.get(b"key-00001", LSN_MAX)
    # A bytes object of 9 bytes, and a place in a list.
    assert bench.cache.nbytes - without >= 1000 * (33 + 9 + 8)
    grown = bench.cache.nbytes
    source.get(b"key-00002", LSN_MAX)
    assert bench.cache.nbytes == grown


def test_a_cache_that_is_too_small_for_everything_stays_within_its_bound(bench: Bench) -> None:
    rows = keys_of(2000)
    source = bench.open(write(bench.store, rows, row_block_bytes=4000), capacity_bytes=60_000)
    for key, lsn, _ in rows[::7]:
        assert shown(source.get(key, LSN_MAX)) == (lsn, value_of(key, lsn))
        assert bench.cache.nbytes <= 60_000
    assert len(bench.cache) >= 3


def test_tails_are_prefetched_side_by_side(bench: Bench) -> None:
    refs = [write(bench.store, keys_of(50), number=n) for n in range(3)]
    reader = bench.reader()
    bench.requests()
    bench.expect(together=3)
    reader.prefetch_tails([*refs, refs[0]])
    assert bench.requests() == 3
    reader.prefetch_tails(refs)
    assert bench.requests() == 0
    bench.expect(together=1)
    for ref in refs:
        assert reader.open(ref).get(b"key-00007", LSN_MAX) is not None
        assert bench.requests() == 1


def test_blocks_of_several_segments_are_fetched_side_by_side(bench: Bench) -> None:
    refs = [write(bench.store, keys_of(50), number=n) for n in range(3)]
    reader = bench.reader()
    reader.prefetch_tails(refs)
    bench.requests()
    bench.expect(together=6)
    asked = [(reader.open(ref), [b"key-00007", b"key-00040", b"no"]) for ref in refs]
    answers = reader.get_many(asked, LSN_MAX)
    expected = [(1, b"key-00007@1"), (6, b"key-00040@6"), None]
    assert [[shown(one) for one in some] for some in answers] == [expected] * 3
    assert bench.requests() == 6


# Wide columns.


def column_bytes(store: Store, ref: SegmentRef) -> int:
    """Return how many bytes of a segment are blocks of wide columns."""
    data = store.get(segment_key("n", ref.id))
    tail = decode_tail(data[-ref.footer_length :], size=ref.size, ref=ref)
    return sum(int(places.length.sum()) for places in tail.column_places.values())


def test_a_scan_reads_wide_columns_only_if_they_are_asked_for(bench: Bench) -> None:
    rows = keys_of(300)
    ref = write(bench.store, rows, schema=WIDE)
    wide = column_bytes(bench.store, ref)
    for columns, expected in [
        (["value", "number"], ref.size - 16 - wide),
        (["vector"], ref.size - 16),
        (None, ref.size - 16),
    ]:
        source = bench.open(ref)
        batches = list(source.batches(b"", None, columns=columns, reverse=False, lsn=LSN_MAX))
        assert bench.store.reset().bytes["get_range"] == expected
        table = pa.Table.from_batches(batches)
        assert table[KEY].to_pylist() == [key for key, _, _ in rows]
        if columns != ["value", "number"]:
            assert table["vector"].to_pylist() == [vector_of(lsn) for _, lsn, _ in rows]


@pytest.mark.parametrize("reverse", [False, True])
def test_wide_values_stay_with_their_rows_whatever_is_cut(bench: Bench, *, reverse: bool) -> None:
    rows = [(b"key-%03d" % (i // 3), 30 - i % 3, i % 5 == 0) for i in range(300)]
    ref = write(bench.store, rows, schema=WIDE)
    for capacity in (0, 1 << 24):
        source = bench.open(ref, capacity_bytes=capacity)
        for start, end in [(b"", None), (b"key-010", b"key-011"), (b"key-020", b"key-080")]:
            batches = source.batches(
                start, end, columns=["vector", "value"], reverse=reverse, lsn=LSN_MAX
            )
            table = pa.Table.from_batches(batches)
            inside = [row for row in rows if row[0] >= start and (end is None or row[0] < end)]
            if reverse:
                inside.sort(key=lambda row: (row[0], row[1]), reverse=True)
            assert table[KEY].to_pylist() == [key for key, _, _ in inside]
            assert table[LSN].to_pylist() == [lsn for _, lsn, _ in inside]
            assert table["vector"].to_pylist() == [
                None if dead else vector_of(lsn) for _, lsn, dead in inside
            ]


def test_a_block_of_a_wide_column_is_read_once_whatever_the_portions(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_module, "PORTION_BYTES_MIN", 500)
    monkeypatch.setattr(scan_module, "PORTION_BYTES_MAX", 8000)
    rows = keys_of(1000)
    ref = write(bench.store, rows, schema=WIDE, column_block_bytes=1000)
    for reverse in (False, True):
        source = bench.open(ref, capacity_bytes=0)
        found = source.batches(b"", None, columns=["vector"], reverse=reverse, lsn=LSN_MAX)
        expected = [vector_of(lsn) for _, lsn, _ in (rows[::-1] if reverse else rows)]
        assert pa.Table.from_batches(found)["vector"].to_pylist() == expected
        read = bench.store.reset()
        assert read.bytes["get_range"] == ref.size - 16
        assert read.requests["get_range"] > 20


def test_a_point_read_gives_wide_columns_from_one_block_each(bench: Bench) -> None:
    rows = [*keys_of(300), (b"z", 5, True)]
    ref = write(bench.store, rows, schema=WIDE)
    source = bench.open(ref)
    for _ in range(2):
        found = source.get(b"key-00100", LSN_MAX)
        assert found is not None
        row = found.batch.slice(found.row, 1).to_pylist()[0]
        assert row == {
            KEY: b"key-00100",
            LSN: 3,
            TOMBSTONE: False,
            "value": b"key-00100@3",
            "vector": vector_of(3),
            "number": 30,
        }
        assert found.batch.schema.names == WIDE.names
        assert bench.requests() <= 3
    dead = source.get(b"z", LSN_MAX)
    assert dead is not None
    assert dead.tombstone
    assert bench.requests() == 1  # nothing is fetched for the values of a tombstone
    many = source.get_many([key for key, _, _ in rows], LSN_MAX)
    vectors = [
        None if one is None or one.tombstone else one.batch["vector"][one.row].as_py()
        for one in many
    ]
    assert vectors == [None if dead else vector_of(lsn) for _, lsn, dead in rows]


# Scans and the cache.


def test_a_scan_fills_what_is_unused_of_the_cache_and_a_larger_one_keeps_nothing(
    bench: Bench,
) -> None:
    rows = keys_of(1000)
    ref = write(bench.store, rows)
    source = bench.open(ref, capacity_bytes=ref.size * 8)
    assert scanned(source) == rows
    assert bench.requests() > 0
    assert scanned(source) == rows
    assert bench.requests() == 0
    large = bench.open(ref, capacity_bytes=ref.size * 2)
    assert scanned(large) == rows
    assert len(bench.cache) == 1  # its tail
    assert bench.requests() > 0
    assert scanned(large, start=b"key-00100", end=b"key-00110") == rows[100:110]
    assert bench.requests() == 1
    assert len(bench.cache) > 1


@pytest.mark.parametrize(("parts", "is_kept"), [(16, True), (4, False)])
def test_in_a_full_cache_only_a_small_scan_takes_the_place_of_others(
    bench: Bench, parts: int, *, is_kept: bool
) -> None:
    rows = keys_of(1000)
    ref = write(bench.store, rows)
    capacity = ref.size * parts
    source = bench.open(ref, capacity_bytes=capacity)
    bench.cache.put("filler", Filler(capacity * 7 // 8))
    assert scanned(source) == rows
    assert bench.requests() > 0
    assert scanned(source) == rows
    assert (bench.requests() == 0) == is_kept


def test_a_large_scan_uses_what_is_cached(bench: Bench) -> None:
    rows = keys_of(1000)
    ref = write(bench.store, rows)
    source = bench.open(ref, capacity_bytes=ref.size * 8)
    for i in range(400, 600):
        source.get(rows[i][0], LSN_MAX)
    bench.requests()
    assert scanned(source) == rows
    read = bench.store.reset().bytes["get_range"]
    assert read < (ref.size - ref.footer_length) * 0.85


class Filler:
    """An entry that leaves little room for others."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


@pytest.mark.parametrize("how", ["scan", "get_many"])
def test_what_is_cached_does_not_keep_its_neighbours_alive(bench: Bench, how: str) -> None:
    rows = keys_of(500)
    values = pa.array([random.Random(i).randbytes(4000) for i in range(500)], pa.binary())
    batch = row_batch(rows).set_column(3, "value", values)  # nothing that a codec would shrink
    origin = SegmentOrigin(id=ID.format("A"), namespace="n", level=0, author="t", created_at_us=1)
    options = SegmentOptions(row_block_bytes=16_000)
    ref = write_segment(bench.store, "n", SCHEMA, origin, options, [batch])
    reader = bench.reader(capacity_bytes=1 << 26)
    reader.prefetch_tails([ref])
    source = reader.open(ref)
    source.get_many([rows[0][0], rows[1][0]], LSN_MAX)  # whatever is made on first use
    bench.requests()
    tracemalloc.start()
    try:
        if how == "scan":
            for _ in source.batches(b"", None, columns=None, reverse=False, lsn=LSN_MAX):
                pass
        else:
            source.get_many([key for key, _, _ in rows], LSN_MAX)
        assert bench.requests() <= 2
        bench.cache.put("filler", Filler(bench.cache.capacity_bytes - 120_000))
        assert len(bench.cache) > 2
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < 300_000 < ref.size / 5


def test_what_is_used_stays_in_memory(bench: Bench) -> None:
    rows = keys_of(3000)
    ref = write(bench.store, rows, row_block_bytes=4000)
    source = bench.open(ref)
    source.get(rows[0][0], LSN_MAX)
    tail = bench.cache.find(source.object_key).nbytes
    source = bench.open(ref, capacity_bytes=tail + 60_000)
    for key, _, _ in rows[::5]:
        source.get(key, LSN_MAX)
        bench.requests()
        assert source.get(rows[0][0], LSN_MAX) is not None  # hot all the time
        assert bench.requests() == 0
    assert bench.cache.find((source.object_key, 5)) is None  # others had to go


def test_a_tail_that_rules_keys_out_stays_in_memory(bench: Bench) -> None:
    first, second = (write(bench.store, keys_of(3000), number=n) for n in range(2))
    reader = bench.reader()
    reader.prefetch_tails([first])
    tail = bench.cache.nbytes
    reader = bench.reader(capacity_bytes=2 * tail + 20_000)
    reader.prefetch_tails([first, second])
    bench.requests()
    absent = b"key-00011x"
    for key, _, _ in keys_of(3000)[::5]:
        reader.open(first).get(key, LSN_MAX)
        bench.requests()
        assert reader.open(second).get(absent, LSN_MAX) is None
        assert bench.requests() == 0
    assert bench.counted("reef_bloom_skips_total") == 600


def test_a_scan_reads_in_portions_that_grow(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "PORTION_BYTES_MIN", 2000)
    monkeypatch.setattr(scan_module, "PORTION_BYTES_MAX", 32_000)  # a quarter where all is local
    rows = keys_of(3000)
    ref = write(bench.store, rows)
    source = bench.open(ref, capacity_bytes=ref.size)
    found = source.batches(b"", None, columns=None, reverse=False, lsn=LSN_MAX)
    assert next(found).num_rows < 3000
    first = bench.store.reset()
    assert first.requests["get_range"] == 2  # the tail, and a portion
    assert first.bytes["get_range"] - ref.footer_length <= 2000
    assert sum(batch.num_rows for batch in found) < 3000
    rest = bench.store.reset()
    least = (ref.size - ref.footer_length) // 8000
    assert least <= rest.requests["get_range"] <= least + 4


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_holds_a_few_portions_at_most(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, reverse: bool
) -> None:
    monkeypatch.setattr(scan_module, "PORTION_BYTES_MAX", 200_000)
    monkeypatch.setattr(scan_module, "PORTION_BYTES_MIN", 50_000)
    rng = random.Random(1)
    rows = keys_of(20_000)
    vectors = [[rng.random() for _ in range(4)] for _ in rows]  # nothing that a codec would shrink
    batch = row_batch(rows, WIDE).set_column(4, "vector", pa.array(vectors, WIDE.types[4]))
    origin = SegmentOrigin(id=ID.format("A"), namespace="n", level=0, author="t", created_at_us=1)
    options = SegmentOptions(row_block_bytes=10_000, column_block_bytes=8_000)
    ref = write_segment(bench.store, "n", WIDE, origin, options, [batch])
    assert ref.size > 700_000
    reader = bench.reader(capacity_bytes=1 << 20)
    reader.prefetch_tails([ref])
    source = reader.open(ref)
    how: dict[str, Any] = {"columns": None, "reverse": reverse, "lsn": LSN_MAX}
    list(source.batches(b"", b"key-00100", **how))  # whatever is made on first use
    tracemalloc.start()
    try:
        assert sum(batch.num_rows for batch in source.batches(b"", None, **how)) == 20_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 300_000


def test_a_scan_that_is_given_up_reads_no_further(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_module, "PORTION_BYTES_MIN", 2000)
    ref = write(bench.store, keys_of(3000))
    source = bench.open(ref)
    next(source.batches(b"", None, columns=None, reverse=True, lsn=LSN_MAX))
    assert bench.store.reset().bytes["get_range"] <= ref.footer_length + 2000


def test_the_next_portion_is_on_its_way_while_one_is_consumed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_module, "PORTION_BYTES_MIN", 2000)
    monkeypatch.setattr(scan_module, "PORTION_BYTES_MAX", 2000)
    rows = keys_of(500)
    reader = bench.reader()
    ref = write(bench.store, rows)
    reader.prefetch_tails([ref])
    bench.requests()
    bench.expect(together=2)
    found = reader.open(ref).batches(b"", None, columns=None, reverse=False, lsn=LSN_MAX)
    first = next(found)
    bench.expect(together=1)
    assert rows_in(first) + [row for batch in found for row in rows_in(batch)] == rows


def test_a_scan_at_an_old_lsn_skips_blocks_that_are_newer(bench: Bench) -> None:
    rows = [(b"key-%05d" % i, 5 if i < 500 else 50, False) for i in range(1000)]
    ref = write(bench.store, rows)
    source = bench.open(ref, capacity_bytes=0)
    for reverse in (False, True):
        found = [row for row in scanned(source, lsn=10, reverse=reverse) if row[1] <= 10]
        assert sorted(found) == rows[:500]
        assert bench.store.reset().bytes["get_range"] < ref.size * 0.65
