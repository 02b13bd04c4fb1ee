"""Segments as sources: what reads give, what a reference changes, and writing."""

from __future__ import annotations

import threading

import msgspec
import pytest

from reef.errors import InvariantError
from reef.format import (
    KEY,
    LSN,
    TOMBSTONE,
    SegmentOrigin,
    segment_key,
)
from reef.segment import write_segment
from reef.types import LSN_MAX
from tests.support.engine.segments import (
    ID,
    SCHEMA,
    WIDE,
    Bench,
    Row,
    keys_of,
    scanned,
    shown,
    value_of,
    write,
)

# What reads give.


VERSIONS: list[Row] = [
    (b"a", 9, False),
    (b"a", 5, True),
    (b"a", 2, False),
    (b"b", 7, True),
    (b"c", 4, False),
]


@pytest.mark.parametrize(
    ("key", "lsn", "expected"),
    [
        (b"a", LSN_MAX, (9, b"a@9")),
        (b"a", 9, (9, b"a@9")),
        (b"a", 8, (5, None)),
        (b"a", 4, (2, b"a@2")),
        (b"a", 1, None),
        (b"b", 7, (7, None)),
        (b"b", 6, None),
        (b"c", 5, (4, b"c@4")),
        (b"", 9, None),
        (b"aa", 9, None),
        (b"c\0", 9, None),
        (b"d", 9, None),
    ],
)
def test_a_get_finds_the_newest_version_at_or_below_the_lsn(
    bench: Bench, key: bytes, lsn: int, expected: tuple[int, bytes | None] | None
) -> None:
    source = bench.open(write(bench.store, VERSIONS))
    for _ in range(2):  # cold, then hot
        assert shown(source.get(key, lsn)) == expected
        assert [shown(found) for found in source.get_many([key, key], lsn)] == [expected] * 2


def test_a_source_knows_its_bounds_without_a_request(bench: Bench) -> None:
    source = bench.open(write(bench.store, VERSIONS))
    bounds = (source.key_min, source.key_max, source.lsn_min, source.lsn_max)
    assert bounds == (b"a", b"c", 2, 9)
    assert bench.requests() == 0


@pytest.mark.parametrize("row_block_bytes", [1, 100, 200, 10_000])
def test_versions_of_a_key_that_go_over_many_blocks_are_found_at_any_lsn(
    bench: Bench, row_block_bytes: int
) -> None:
    rows = [
        *[(b"a", lsn, False) for lsn in (90, 3)],
        *[(b"b", lsn, lsn % 3 == 0) for lsn in range(80, 0, -2)],
        *[(b"c", lsn, False) for lsn in (95, 1)],
    ]
    ref = write(bench.store, rows, row_block_bytes=row_block_bytes)
    hot = bench.open(ref)
    for lsn in range(100):
        newest = max((row for row in rows if row[0] == b"b" and row[1] <= lsn), default=None)
        expected = newest and (newest[1], None if newest[2] else value_of(b"b", newest[1]))
        assert shown(hot.get(b"b", lsn)) == expected
        cold = bench.open(ref)
        assert shown(cold.get(b"b", lsn)) == expected
        assert bench.requests() <= 2


def test_a_scan_gives_all_rows_in_order_both_ways(bench: Bench) -> None:
    rows = keys_of(200)
    source = bench.open(write(bench.store, rows))
    assert scanned(source) == rows
    assert scanned(source, reverse=True) == rows[::-1]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("row_block_bytes", [1, 120, 10_000])
def test_within_a_key_newer_versions_come_first_both_ways(
    bench: Bench, row_block_bytes: int, *, reverse: bool
) -> None:
    rows = [
        *[(b"a", lsn, False) for lsn in range(9, 0, -1)],
        (b"b", 4, True),
        *[(b"c", lsn, False) for lsn in range(30, 0, -1)],
    ]
    source = bench.open(write(bench.store, rows, row_block_bytes=row_block_bytes))
    expected = rows if not reverse else sorted(rows, key=lambda row: (row[0], row[1]))[::-1]
    assert scanned(source, reverse=reverse) == expected
    # At an LSN: what is above it may be left out, the rest may not, and keeps its order.
    found = [row for row in scanned(source, reverse=reverse, lsn=5) if row[1] <= 5]
    assert found == [row for row in expected if row[1] <= 5]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("start", "end"),
    [
        (b"key-00010", b"key-00020"),
        (b"key-00010x", b"key-00020x"),
        (b"", b"key-00003"),
        (b"key-00190", None),
        (b"key-00010", b"key-00010"),
        (b"key-00010", b"key-00010\0"),
        (b"zzz", None),
        (b"", b"a"),
        (b"key-00020", b"key-00010"),
    ],
)
def test_a_scan_begins_and_ends_where_it_is_asked_to(
    bench: Bench, start: bytes, end: bytes | None, *, reverse: bool
) -> None:
    rows = keys_of(200)
    source = bench.open(write(bench.store, rows))
    expected = [row for row in rows if row[0] >= start and (end is None or row[0] < end)]
    for _ in range(2):  # from the store, then from the cache
        found = scanned(source, start=start, end=end, reverse=reverse)
        assert found == (expected[::-1] if reverse else expected)


def test_a_scan_gives_the_columns_asked_for_in_that_order(bench: Bench) -> None:
    source = bench.open(write(bench.store, VERSIONS, schema=WIDE))
    system = [KEY, LSN, TOMBSTONE]
    for columns, names in [
        (None, ["value", "vector", "number"]),
        ((), []),
        (["number"], ["number"]),
        (["number", "value"], ["number", "value"]),
        (["vector", "value", "vector"], ["vector", "value"]),
        (["value", "added later", KEY], ["value"]),
    ]:
        for batch in source.batches(b"", None, columns=columns, reverse=False, lsn=9):
            assert batch.schema.names == system + names
            if "number" in names:
                expected = [
                    None if dead else lsn * 10
                    for lsn, dead in zip(*(batch[n].to_pylist() for n in system[1:]), strict=True)
                ]
                assert batch["number"].to_pylist() == expected


# What a reference changes.


def test_the_version_of_an_attached_segment_is_that_of_every_row(bench: Bench) -> None:
    ref = write(bench.store, [(b"a", 3, False), (b"b", 5, True), (b"c", 9, False)])
    source = bench.open(msgspec.structs.replace(ref, version=6, lsn_min=6, lsn_max=6))
    assert (source.lsn_min, source.lsn_max) == (6, 6)
    for _ in range(2):
        found = source.get(b"c", 6)
        assert found is not None
        assert (found.lsn, found.tombstone) == (6, False)
        assert found.batch.column("value")[found.row].as_py() == b"c@9"
        dead = source.get(b"b", 100)
        assert dead is not None
        assert (dead.lsn, dead.tombstone) == (6, True)
        assert source.get(b"c", 5) is None
    assert source.get_many([b"a", b"c"], 5) == [None, None]
    (batch,) = source.batches(b"", None, columns=["value"], reverse=False, lsn=6)
    assert batch[LSN].to_pylist() == [6, 6, 6]
    assert batch.schema.field(LSN) == SCHEMA.field(LSN)
    assert batch["value"].to_pylist() == [b"a@3", None, b"c@9"]
    (batch,) = source.batches(b"", None, columns=(), reverse=True, lsn=LSN_MAX)
    assert batch[LSN].to_pylist() == [6, 6, 6]
    assert list(source.batches(b"", None, columns=None, reverse=False, lsn=5)) == []


@pytest.mark.parametrize("row_block_bytes", [1, 10_000])
def test_versions_above_a_clip_are_not_seen(bench: Bench, row_block_bytes: int) -> None:
    ref = write(bench.store, VERSIONS, row_block_bytes=row_block_bytes)
    source = bench.open(msgspec.structs.replace(ref, clip_lsn=5))
    assert source.lsn_max == 5
    for _ in range(2):
        assert shown(source.get(b"a", LSN_MAX)) == (5, None)
        assert shown(source.get(b"b", LSN_MAX)) is None
    expected = [(b"a", 5, True), (b"a", 2, False), (b"c", 4, False)]
    assert scanned(source) == expected
    assert scanned(source, reverse=True) == [expected[2], *expected[:2]]
    nothing = bench.open(msgspec.structs.replace(ref, clip_lsn=1))
    assert nothing.get(b"a", LSN_MAX) is None
    assert scanned(nothing) == []
    assert bench.requests() == 0


def test_an_attached_segment_above_the_clip_is_not_seen(bench: Bench) -> None:
    ref = write(bench.store, VERSIONS)
    attached = {"version": 6, "lsn_min": 6, "lsn_max": 6}
    hidden = bench.open(msgspec.structs.replace(ref, **attached, clip_lsn=5))
    assert hidden.get(b"c", LSN_MAX) is None
    assert scanned(hidden) == []
    seen = bench.open(msgspec.structs.replace(ref, **attached, clip_lsn=6))
    assert seen.get(b"c", LSN_MAX) is not None


def test_keys_outside_of_a_clip_are_not_seen(bench: Bench) -> None:
    rows = keys_of(50)
    ref = write(bench.store, rows)
    clips = {"clip_key_min": b"key-00010", "clip_key_max": b"key-00020"}
    source = bench.open(msgspec.structs.replace(ref, **clips))
    assert (source.key_min, source.key_max) == (b"key-00010", b"key-00020")
    for _ in range(2):
        for i in (9, 20, 49):
            assert source.get(b"key-%05d" % i, LSN_MAX) is None
        assert source.get(b"key-00010", LSN_MAX) is not None
        assert source.get(b"key-00019", LSN_MAX) is not None
    assert scanned(source) == rows[10:20]
    assert scanned(source, start=b"key-00015", reverse=True) == rows[15:20][::-1]
    assert scanned(source, end=b"key-00012") == rows[10:12]
    assert source.get_many([key for key, _, _ in rows], LSN_MAX).count(None) == 40


def test_a_segment_of_another_namespace_is_read_there(bench: Bench) -> None:
    ref = write(bench.store, VERSIONS, namespace="parent")
    source = bench.open(msgspec.structs.replace(ref, namespace="parent"), namespace="child")
    assert source.object_key == segment_key("parent", ref.id)
    assert shown(source.get(b"c", 9)) == (4, b"c@4")


# Writing.


def test_a_segment_is_written_in_one_upload(bench: Bench) -> None:
    bench.requests()
    rows = keys_of(5000)
    ref = write(bench.store, rows)
    counts = bench.store.reset()
    assert dict(counts.requests) == {"upload": 1}
    assert counts.bytes["upload"] == ref.size == bench.store.head(segment_key("n", ref.id)).size
    assert scanned(bench.open(ref)) == rows


def test_nothing_appears_if_the_rows_are_not_sorted(bench: Bench) -> None:
    with pytest.raises(InvariantError, match="sorted"):
        write(bench.store, [(b"b", 1, False), (b"a", 1, False)])
    with pytest.raises(InvariantError, match="no rows"):
        write(bench.store, [])
    assert list(bench.store.list()) == []


def test_batches_are_taken_as_the_upload_goes(bench: Bench) -> None:
    """Making a batch may read from the same store, as a compaction does."""
    first = write(bench.store, keys_of(300))
    source = bench.open(first)
    origin = SegmentOrigin(
        id=ID.format("B"), namespace="n", level=1, author="test", created_at_us=1
    )
    ref = write_segment(
        bench.store,
        "n",
        SCHEMA,
        origin,
        None,
        source.batches(b"", None, columns=None, reverse=False, lsn=LSN_MAX),
    )
    assert scanned(bench.open(ref)) == keys_of(300)


def test_threads_read_one_source_through_a_small_cache(bench: Bench) -> None:
    rows = keys_of(500)
    source = bench.open(write(bench.store, rows), capacity_bytes=30_000)
    problems: list[object] = []

    def run(first: int) -> None:
        for i in range(first, 500, 3):
            key, lsn, _ = rows[i * 37 % 500]
            if shown(source.get(key, LSN_MAX)) != (lsn, value_of(key, lsn)):
                problems.append(key)
        if scanned(source) != rows:
            problems.append("scan")

    threads = [threading.Thread(target=run, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert bench.cache.nbytes <= 30_000


def test_an_empty_key_is_a_key(bench: Bench) -> None:
    source = bench.open(write(bench.store, [(b"", 3, False), (b"\0", 2, False)]))
    assert shown(source.get(b"", 9)) == (3, b"@3")
    assert scanned(source, end=b"\0") == [(b"", 3, False)]
