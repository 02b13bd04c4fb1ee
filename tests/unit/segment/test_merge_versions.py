"""All versions of several segments in one order, in few copies and bounded memory."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from reef.format import SegmentRef, segment_schema
from reef.segment import SegmentSource, merge_versions, versions_schema
from reef.segment._merge import _versions as module
from tests.support.call_counts import calls_of
from tests.support.engine.segments import (
    SCHEMA,
    WIDE,
    Bench,
    Row,
    keys_of,
    rows_in,
    vector_of,
    write,
)


def opened(bench: Bench, refs: Sequence[SegmentRef]) -> list[SegmentSource]:
    reader = bench.reader()
    return [reader.open(ref) for ref in refs]


def merged(sources: Sequence[SegmentSource], **how: Any) -> list[Row]:
    found = list(merge_versions(sources, **({"start": b"", "end": None} | how)))
    assert len({batch.schema for batch in found}) <= 1
    return [row for batch in found for row in rows_in(batch)]


def in_order(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row[0], -row[1]))


def layers(count: int, keys: int) -> list[list[Row]]:
    """Runs that have many keys in common, each of its own LSNs; every seventh row is a tombstone."""
    return [
        [
            (b"key-%05d" % i, 10 * run + 1 + i % 3, (i + run) % 7 == 0)
            for i in range(run, keys, 1 + run % 3)
        ]
        for run in range(count)
    ]


@pytest.fixture(params=[1, 3000, 1 << 20])
def piece_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", request.param)


@pytest.mark.usefixtures("piece_bytes")
@pytest.mark.parametrize(
    ("start", "end"),
    [
        (b"", None),
        (b"key-00100", b"key-00200"),
        (b"key-00100x", b"key-00100y"),
        (b"key-00390", None),
        (b"z", None),
    ],
)
def test_every_version_comes_once_in_order(bench: Bench, start: bytes, end: bytes | None) -> None:
    runs = layers(4, 400)
    refs = [write(bench.store, rows, number=n) for n, rows in enumerate(runs)]
    expected = [
        row
        for row in in_order([row for rows in runs for row in rows])
        if start <= row[0] and (end is None or row[0] < end)
    ]
    assert merged(opened(bench, refs), start=start, end=end) == expected
    assert merged(opened(bench, refs[::-1]), start=start, end=end) == expected


@pytest.mark.usefixtures("piece_bytes")
def test_versions_of_one_key_that_fill_many_blocks_stay_in_order(bench: Bench) -> None:
    runs = [
        [(b"hot", lsn, False) for lsn in range(high, high - 200, -1)] for high in (200, 400, 600)
    ]
    runs.append([(b"a", 700, False), (b"hot", 650, True), (b"z", 700, False)])
    refs = [write(bench.store, rows, number=n) for n, rows in enumerate(runs)]
    assert merged(opened(bench, refs)) == in_order([row for rows in runs for row in rows])


def test_attached_and_clipped_segments_give_what_their_references_show(bench: Bench) -> None:
    plain = write(bench.store, [(b"key-%05d" % i, 5 + i % 2, False) for i in range(50)], number=0)
    loaded = write(bench.store, [(b"key-%05d" % i, 1, True) for i in range(0, 50, 5)], number=1)
    parent = write(bench.store, [(b"key-%05d" % i, 20 + i % 4, False) for i in range(50)], number=2)
    attached = _changed(loaded, version=10, lsn_min=10, lsn_max=10)
    clipped = _changed(parent, clip_lsn=21, clip_key_min=b"key-00010", clip_key_max=b"key-00030")
    sources = opened(bench, [plain, attached, clipped])
    found = [
        (key, lsn) for key, lsn, _ in _plain_rows(merge_versions(sources, start=b"", end=None))
    ]
    expected = [(b"key-%05d" % i, 5 + i % 2) for i in range(50)]
    expected += [(b"key-%05d" % i, 10) for i in range(0, 50, 5)]
    expected += [(b"key-%05d" % i, 20 + i % 4) for i in range(10, 30) if i % 4 < 2]
    assert found == sorted(expected, key=lambda row: (row[0], -row[1]))


def test_segments_of_other_columns_come_with_the_columns_of_all(bench: Bench) -> None:
    old = write(bench.store, [(b"a", 1, False), (b"c", 1, False)], number=0)
    new = write(bench.store, [(b"b", 2, False), (b"c", 2, True)], number=1, schema=WIDE)
    sources = opened(bench, [old, new])
    assert versions_schema(sources).names[3:] == ["value", "number", "vector"]
    table = pa.Table.from_batches(list(merge_versions(sources, start=b"", end=None)))
    assert table.schema == versions_schema(sources)
    assert table.column("vector").to_pylist() == [None, vector_of(2), None, None]
    assert table.column("number").to_pylist() == [10, 20, None, 10]
    # Those that begin behind all others, too: the columns are known before the first row is.
    first = next(merge_versions(sources, start=b"a", end=None))
    assert first.schema == table.schema


def test_a_type_that_changed_is_that_of_the_newest(bench: Bench) -> None:
    wider = segment_schema([pa.field("value", pa.binary()), pa.field("number", pa.float64())])
    old = write(bench.store, [(b"a", 1, False)], number=0)
    new = write(bench.store, [(b"b", 2, False)], number=1, schema=wider)
    for refs in ([old, new], [new, old]):
        table = pa.Table.from_batches(
            list(merge_versions(opened(bench, refs), start=b"", end=None))
        )
        assert table.column("number").to_pylist() == [10.0, 20.0]
        assert table.schema.field("number").type == pa.float64()


def test_only_the_columns_asked_for_are_read(bench: Bench) -> None:
    ref = write(bench.store, [(b"a", 1, False)], schema=WIDE)
    (found,) = merge_versions(opened(bench, [ref]), start=b"", end=None, columns=["number", "no"])
    assert found.schema.names == ["_key", "_lsn", "_tombstone", "number"]


def test_what_one_segment_alone_holds_goes_through_without_a_copy(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that follow upon each other are neither sorted nor copied, nor open at the same time."""
    rows = keys_of(300)
    refs = [
        write(bench.store, rows[low : low + 100], number=n) for n, low in enumerate((100, 0, 200))
    ]
    monkeypatch.setattr("pyarrow.compute.sort_indices", lambda *_, **__: pytest.fail("sorted"))
    found = []
    for batch in merge_versions(opened(bench, refs), start=b"", end=None):
        found += rows_in(batch)
    assert found == rows


def test_stretches_between_the_rows_of_another_are_not_sorted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 1)
    dense = [(b"key-%05d" % i, 1, False) for i in range(1000)]
    sparse = [(b"key-%05d" % i, 2, True) for i in (0, 500, 999)]
    refs = [write(bench.store, rows, number=n) for n, rows in enumerate((dense, sparse))]
    sorted_rows = 0
    sort = pc.sort_indices

    def counted(rows: pa.RecordBatch, **how: Any) -> pa.Array:
        nonlocal sorted_rows
        sorted_rows += rows.num_rows
        return sort(rows, **how)

    monkeypatch.setattr("pyarrow.compute.sort_indices", counted)
    assert merged(opened(bench, refs)) == in_order(dense + sparse)
    assert 0 < sorted_rows < 100


def test_many_small_segments_cost_what_their_rows_do() -> None:
    def work(count: int) -> int:
        bench, choose = Bench(), random.Random(count)
        runs = [
            [(b"key-%05d" % i, n + 1, False) for i in sorted(choose.sample(range(50 * count), 5))]
            for n in range(count)
        ]
        refs = [write(bench.store, rows, number=n) for n, rows in enumerate(runs)]
        sources = opened(bench, refs)
        assert merged(sources) == in_order([row for rows in runs for row in rows])
        return calls_of(lambda: list(merge_versions(sources, start=b"", end=None)))

    few, many = work(30), work(120)
    assert many < 6 * few


def test_a_source_is_opened_when_the_merge_reaches_its_keys(bench: Bench) -> None:
    rows = keys_of(200)
    refs = [write(bench.store, rows[a : a + 100], number=n) for n, a in enumerate((0, 100))]
    sources = opened(bench, refs)
    versions_schema(sources)  # the tails
    bench.store.reset()
    found = merge_versions(sources, start=b"", end=None)
    next(found)
    assert bench.requests() == 1
    list(found)
    assert bench.requests() >= 1


def test_nothing_gives_nothing(bench: Bench) -> None:
    assert merged([]) == []
    ref = write(bench.store, keys_of(10), schema=SCHEMA)
    assert merged(opened(bench, [ref]), start=b"a", end=b"b") == []


def _changed(ref: SegmentRef, **what: Any) -> SegmentRef:
    return msgspec.structs.replace(ref, **what)


def _plain_rows(batches: Any) -> list[Row]:
    return [
        row
        for batch in batches
        for row in zip(*(batch.column(i).to_pylist() for i in range(3)), strict=True)
    ]
