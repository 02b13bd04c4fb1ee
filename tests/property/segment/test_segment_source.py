"""Any rows, blocks, clips and caches: a segment reads like a plain dict of histories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
from hypothesis import event, given, settings
from hypothesis import strategies as st

from reef.format import KEY, LSN, SegmentOptions, SegmentOrigin, SegmentRef, segment_schema
from reef.metrics import Metrics
from reef.segment import BlockCache, SegmentReader, SegmentSource, write_segment
from reef.store import MemoryStore
from reef.testing import CountingStore
from reef.types import LSN_MAX

NARROW = [pa.field("value", pa.binary())]
WIDE = [pa.field("vector", pa.list_(pa.float32(), 2))]
KEYS = st.binary(max_size=2) | st.sampled_from([b"a", b"a\0", b"ab", b"b", b"\xff\xff\xff"])
LSNS = st.integers(1, 12)
History = dict[bytes, dict[int, bytes | None]]
"""Key → version → value; None is a tombstone."""


@dataclass
class Case:
    """A segment in a bucket, and what is to be seen of it."""

    store: CountingStore
    ref: SegmentRef
    history: History
    has_vectors: bool
    capacity_bytes: int

    def open(self) -> SegmentSource:
        metrics = Metrics()
        cache = BlockCache(self.capacity_bytes, metrics=metrics)
        return SegmentReader(self.store, "n", cache=cache, disk=None, metrics=metrics).open(
            self.ref
        )

    def get(self, key: bytes, lsn: int) -> tuple[int, bytes | None] | None:
        versions = self.history.get(key, {})
        newest = max((version for version in versions if version <= lsn), default=None)
        return None if newest is None else (newest, versions[newest])

    def rows(self, start: bytes, end: bytes | None, lsn: int) -> list[tuple[bytes, int]]:
        """Return what a scan gives, versions above `lsn` left out."""
        return [
            (key, version)
            for key in sorted(self.history)
            if key >= start and (end is None or key < end)
            for version in sorted(self.history[key], reverse=True)
            if version <= lsn
        ]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    history: History = draw(
        st.dictionaries(
            KEYS,
            st.dictionaries(LSNS, st.none() | st.binary(max_size=30), min_size=1, max_size=12),
            min_size=1,
            max_size=12,
        )
    )
    attached = draw(st.none() | LSNS)
    if attached is not None:  # a bulk load has every key once
        history = {key: dict([max(versions.items())]) for key, versions in history.items()}
    has_vectors = draw(st.booleans())
    options = SegmentOptions(
        row_block_bytes=draw(st.sampled_from([1, 60, 150, 10_000])),
        column_block_bytes=draw(st.sampled_from([1, 40, 10_000])),
        codec=draw(st.sampled_from(["lz4", "zstd"])),
    )
    store = CountingStore(MemoryStore())
    store.merge_gap_bytes = draw(st.sampled_from([0, 64 << 10]))
    store.concurrency = draw(st.sampled_from([1, 1, 1, 2]))
    ref = write_segment(
        store,
        "n",
        segment_schema(NARROW + WIDE * has_vectors),
        SegmentOrigin(
            id="01J9ZQ3V5N8W2X4Y6Z7A8B9C0F", namespace="n", level=0, author="t", created_at_us=1
        ),
        options,
        _batches(history, has_vectors, draw(st.integers(1, 40))),
    )
    store.reset()
    ref = msgspec.structs.replace(
        ref,
        version=attached,
        clip_lsn=draw(st.none() | LSNS),
        clip_key_min=draw(st.none() | KEYS),
        clip_key_max=draw(st.none() | KEYS),
    )
    return Case(
        store=store,
        ref=ref,
        history=_visible(history, ref),
        has_vectors=has_vectors,
        capacity_bytes=draw(st.sampled_from([0, 10_000, 1 << 30])),
    )


def _batches(history: History, has_vectors: bool, step: int) -> Sequence[pa.RecordBatch]:
    rows = [
        (key, lsn, value)
        for key in sorted(history)
        for lsn, value in sorted(history[key].items(), reverse=True)
    ]
    arrays = [
        pa.array([key for key, _, _ in rows], pa.binary()),
        pa.array([lsn for _, lsn, _ in rows], pa.int64()),
        pa.array([value is None for _, _, value in rows], pa.bool_()),
        pa.array([value for _, _, value in rows], pa.binary()),
    ]
    if has_vectors:
        vectors = [None if value is None else [lsn, len(value)] for _, lsn, value in rows]
        arrays.append(pa.array(vectors, WIDE[0].type))
    batch = pa.record_batch(arrays, schema=segment_schema(NARROW + WIDE * has_vectors))
    return [batch.slice(at, step) for at in range(0, len(rows), step)]


def _visible(history: History, ref: SegmentRef) -> History:
    """Return what a reference lets be seen."""
    if ref.version is not None:
        history = {key: {ref.version: next(iter(v.values()))} for key, v in history.items()}
    clip = LSN_MAX if ref.clip_lsn is None else ref.clip_lsn
    found = {
        key: {lsn: value for lsn, value in versions.items() if lsn <= clip}
        for key, versions in history.items()
        if (ref.clip_key_min is None or key >= ref.clip_key_min)
        and (ref.clip_key_max is None or key < ref.clip_key_max)
    }
    return {key: versions for key, versions in found.items() if versions}


@given(cases(), st.lists(st.tuples(KEYS, st.integers(0, 13)), max_size=8))
@settings(max_examples=150)
def test_point_reads_equal_the_history_of_a_dict(
    case: Case, others: list[tuple[bytes, int]]
) -> None:
    asked = [(key, lsn) for key in case.history for lsn in (0, 1, 4, 7, 12, LSN_MAX)]
    warm = case.open()
    for key, lsn in [*asked, *others]:
        expected = case.get(key, lsn)
        case.store.reset()
        for source in (case.open(), warm):
            found = source.get(key, lsn)
            requests = case.store.reset().total
            assert requests <= 2 + case.has_vectors
            if found is None:
                assert expected is None
                continue
            value = found.batch["value"][found.row].as_py()
            assert (found.lsn, value) == expected
            assert found.tombstone == (value is None)
            assert found.batch[KEY][found.row].as_py() == key
            if case.has_vectors and value is not None:
                vector = found.batch["vector"][found.row].as_py()
                assert vector == [found.batch[LSN][found.row].as_py(), len(value)]


@given(cases(), st.lists(KEYS, max_size=20), st.integers(0, 13))
@settings(max_examples=100)
def test_a_multi_get_equals_as_many_gets(case: Case, others: list[bytes], lsn: int) -> None:
    keys = [*case.history, *others]
    source = case.open()
    for _ in range(2):
        found = source.get_many(keys, lsn)
        assert [one and one.lsn for one in found] == [
            expected and expected[0] for expected in (case.get(key, lsn) for key in keys)
        ]
        for key, one in zip(keys, found, strict=True):
            if one is not None:
                assert one.batch[KEY][one.row].as_py() == key
                assert one.batch["value"][one.row].as_py() == case.history[key][one.lsn]


@given(cases(), st.lists(KEYS, max_size=20), st.integers(0, 13), st.integers(0, 13), st.booleans())
@settings(max_examples=150)
def test_a_join_equals_as_many_gets(
    case: Case, others: list[bytes], lsn: int, known: int, wide: bool
) -> None:
    keys = sorted({*case.history, *others})
    source = case.open()
    for _ in range(2):
        newest = np.full(len(keys), known, np.int64)
        asked = pa.array(keys, pa.binary())
        joined = source._reader.join([source], asked, newest, lsn, wide=wide)
        expected = [found if (found := case.get(key, lsn)) else (0, None) for key in keys]
        assert newest.tolist() == [max(known, version) for version, _ in expected]
        rows = {
            at: row
            for part in joined
            for row, at in zip(part.rows.to_pylist(), part.at.tolist(), strict=True)
        }
        assert {at: row["value"] for at, row in rows.items()} == {
            at: value
            for at, (version, value) in enumerate(expected)
            if value is not None and version > known
        }
        if case.has_vectors and wide:
            assert all(row["vector"][1] == len(row["value"]) for row in rows.values())
        else:
            assert all("vector" not in row for row in rows.values())


@given(
    cases(),
    st.just(b"") | KEYS,
    st.none() | KEYS,
    st.integers(0, 13) | st.just(LSN_MAX),
    st.sampled_from([None, ("value",), ("vector", "value"), ()]),
    st.booleans(),
)
@settings(max_examples=200)
def test_scans_equal_the_history_of_a_dict(
    case: Case,
    start: bytes,
    end: bytes | None,
    lsn: int,
    columns: tuple[str, ...] | None,
    reverse: bool,
) -> None:
    expected = case.rows(start, end, lsn)
    if reverse:
        expected.sort(reverse=True)
    event(f"some rows: {bool(expected)}")
    source = case.open()
    for _ in range(2):
        batches = list(source.batches(start, end, columns=columns, reverse=reverse, lsn=lsn))
        assert all(batch.num_rows for batch in batches)
        found = [
            row
            for batch in batches
            for row in batch.to_pylist()
            if row[LSN] <= lsn  # versions above it may be there
        ]
        assert [(row[KEY], row[LSN]) for row in found] == expected
        for row in found:
            value = case.history[row[KEY]][row[LSN]]
            assert row["_tombstone"] == (value is None)
            if "value" in row:
                assert row["value"] == value
            if "vector" in row and value is not None:
                assert row["vector"][1] == len(value)
        wanted = {"value", *["vector"] * case.has_vectors}
        wanted = wanted if columns is None else wanted & {*columns}
        assert all({*batch.schema.names[3:]} == wanted for batch in batches)
        # Whatever lies above the LSN asked for, nothing lies outside of what may be seen.
        everything = case.rows(start, end, LSN_MAX)
        seen = [
            row for b in batches for row in zip(b[KEY].to_pylist(), b[LSN].to_pylist(), strict=True)
        ]
        assert {*seen} <= {*everything}
