"""Rows to write in place of a damaged segment: read, merged and cut, in the order of segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from reef.doctor._byte_grammar import FRAME, PREAMBLE, block_rows
from reef.doctor._quarantine import stored_size
from reef.format import KEY, LSN, TOMBSTONE, SegmentRef, SegmentTail
from reef.segment import CheckedSegment, Clip, SegmentReader
from reef.store import Store
from reef.types import LSN_MAX

_PORTION_BYTES = 32 << 20
_LOST_COLUMNS = ("key_first", "key_last", "lsn_min", "lsn_max", "rows")


@dataclass(frozen=True)
class Lost:
    """Keys and versions that no object holds any more; all bounds are inclusive."""

    key_min: bytes
    key_max: bytes
    lsn_min: int
    lsn_max: int
    rows: int

    @classmethod
    def whole(cls, ref: SegmentRef) -> Lost:
        """Return everything that a segment held."""
        return cls(ref.key_min, ref.key_max, ref.lsn_min, ref.lsn_max, ref.rows)

    @classmethod
    def block(cls, tail: SegmentTail, ref: SegmentRef, number: int) -> Lost:
        """Return what a row block of a segment held, by the index."""
        key_min, key_max, lsn_min, lsn_max, rows = (
            tail.row_index[name][number].as_py() for name in _LOST_COLUMNS
        )
        if ref.version is not None:
            lsn_min = lsn_max = ref.version
        return cls(key_min, key_max, lsn_min, lsn_max, rows)

    def __str__(self) -> str:
        return (
            f"{self.rows} rows: keys {self.key_min!r} to {self.key_max!r}, "
            f"LSNs {self.lsn_min} to {self.lsn_max}"
        )


@dataclass(frozen=True)
class Restored:
    """Rows to write in place of a damaged segment."""

    text: str
    """Where they come from."""
    schema: pa.Schema
    batches: Callable[[], Iterator[pa.RecordBatch]]
    rows_min: int
    """The least number of rows that can be right."""
    slots: tuple[int, int] | None = None
    """The log slots that they were folded from."""
    lost: tuple[Lost, ...] = ()
    """The rows that are missing."""


@dataclass(frozen=True)
class Source:
    """Sorted rows, read by ranges of keys."""

    text: str
    schema: pa.Schema
    between: Callable[[bytes, bytes], Iterator[pa.RecordBatch]]
    """The rows from a key up to another (exclusive)."""
    cuts: Sequence[tuple[bytes, int]]
    """Keys to cut at, with the bytes of the rows up to the next."""


def segment_source(reader: SegmentReader, segment: CheckedSegment) -> Source:
    """Return the rows of a sound segment."""
    tail = segment.tail
    assert tail is not None
    firsts: list[bytes] = tail.row_index["key_first"].to_pylist()
    per_block = segment.ref.size // max(1, len(firsts))
    source = reader.open(segment.ref)
    return Source(
        segment.ref.id,
        tail.schema,
        lambda low, high: source.batches(low, high, columns=None, reverse=False, lsn=LSN_MAX),
        [(key, per_block) for key in firsts],
    )


def restored_source(ref: SegmentRef, restored: Restored) -> Source:
    """Return the rows of a segment that is itself restored, with the keys that its reference exposes."""
    clipped = Clip("", ref)

    def rows(low: bytes, high: bytes) -> Iterator[pa.RecordBatch]:
        low, high = max(low, clipped.key_min), min(high, clipped.key_end)
        if low >= high:
            return iter(())
        return (rows_between(batch, low, high) for batch in restored.batches())

    text = f"{ref.id} (from {restored.text})"
    return Source(text, restored.schema, rows, [(ref.key_min, ref.size)])


def all_versions(
    sources: Sequence[Source], schema: pa.Schema, low: bytes, high: bytes
) -> Iterator[pa.RecordBatch]:
    """Yield all versions of all sources with keys from `low` up to `high`, sorted."""
    for start, end in _ranges(sources, low, high):
        tables = [
            pa.Table.from_batches([batch])
            for source in sources
            for batch in source.between(start, end)
            if batch.num_rows
        ]
        if tables:
            together = pa.concat_tables(tables, promote_options="default").select(schema.names)
            order = pc.sort_indices(together, [(KEY, "ascending"), (LSN, "descending")])
            yield from together.take(order).cast(schema).combine_chunks().to_batches()


def _ranges(sources: Sequence[Source], low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield ranges of keys that cover `low` to `high`, each of about `_PORTION_BYTES`."""
    start, nbytes = low, 0
    for key, size in sorted(cut for source in sources for cut in source.cuts):
        if nbytes >= _PORTION_BYTES and start < key < high:
            yield start, key
            start, nbytes = key, 0
        nbytes += size
    yield start, high


def own_rows(
    store: Store, segment: CheckedSegment, blocks: Sequence[int]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some row blocks of a segment, with their wide columns."""
    tail = segment.tail
    assert tail is not None
    for number in blocks:
        place = tail.row_places[number]
        rows = tail.decode_rows(number, store.get_range(segment.key, place.offset, place.length))
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        for name, places in tail.column_places.items():
            parts = []
            for at in places.of_rows(place.row, place.rows):
                one = places[at]
                data = store.get_range(segment.key, one.offset, one.length)
                first = max(0, place.row - one.row)
                end = min(one.rows, place.row + place.rows - one.row)
                parts.append(tail.decode_column(name, at, data).slice(first, end - first))
            columns[name] = pa.concat_arrays(parts)
        yield pa.RecordBatch.from_arrays(
            [columns[name] for name in tail.schema.names], schema=tail.schema
        )


def walked_rows(
    store: Store, segment: CheckedSegment, schema: pa.Schema
) -> Iterator[pa.RecordBatch | None]:
    """Yield the rows of every block of a segment whose tail is lost, None for a damaged block.

    Blocks follow one another from the preamble to the tail, each with its length in front. For segments
    without wide columns. It ends at a length that is impossible.
    """
    size, ref = stored_size(store, segment.key), segment.ref
    end = min(size or 0, ref.size - ref.footer_length)
    at = len(PREAMBLE)
    while at + FRAME.size < end:
        length, _ = FRAME.unpack(store.get_range(segment.key, at, FRAME.size))
        if not length or length % 8 or at + FRAME.size + length > end:
            return
        yield block_rows(store.get_range(segment.key, at, FRAME.size + length), schema)
        at += FRAME.size + length


def rows_between(batch: pa.RecordBatch, low: bytes, high: bytes) -> pa.RecordBatch:
    """Return the rows with keys from `low` up to `high` of a sorted batch, as a slice of it."""
    keys = batch.column(KEY)
    first, end = (
        pc.sum(pc.less(keys, pa.scalar(key, pa.binary()))).as_py() or 0 for key in (low, high)
    )
    return batch.slice(first, end - first)


class RowSums:
    """Sums over sorted rows, to compare with what a manifest says of their segment."""

    def __init__(self) -> None:
        self.rows = self.tombstones = 0
        self.keys: tuple[bytes, bytes] | None = None
        self.lsns = (LSN_MAX, 0)
        self.is_sorted = True

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch of sorted rows."""
        if not batch.num_rows:
            return
        keys, lsns = batch.column(KEY), pc.min_max(batch.column(LSN))
        first, last = keys[0].as_py(), keys[-1].as_py()
        self.is_sorted &= self.keys is None or self.keys[1] <= first
        self.keys = (first if self.keys is None else self.keys[0], last)
        self.lsns = min(self.lsns[0], lsns["min"].as_py()), max(self.lsns[1], lsns["max"].as_py())
        self.rows += batch.num_rows
        self.tombstones += batch.column(TOMBSTONE).true_count

    def difference(self, ref: SegmentRef) -> str:
        """Return how the sums differ from what the manifest says, or ""."""
        if self.keys is None:
            return "no rows"
        if not self.is_sorted:
            return "rows that are not sorted"
        got = (self.rows, self.tombstones, *self.keys, *self.lsns)
        expected = (ref.rows, ref.tombstones, ref.key_min, ref.key_max, ref.lsn_min, ref.lsn_max)
        names = ("rows", "tombstones", "least key", "greatest key", "least LSN", "greatest LSN")
        return ", ".join(
            f"{name} {a!r} instead of {b!r}"
            for name, a, b in zip(names, got, expected, strict=True)
            if a != b
        )

    def fits(self, ref: SegmentRef) -> bool:
        """Return whether the rows can be a part of the segment's."""
        return (
            self.keys is not None
            and self.is_sorted
            and ref.key_min <= self.keys[0]
            and self.keys[1] <= ref.key_max
            and ref.lsn_min <= self.lsns[0]
            and self.lsns[1] <= ref.lsn_max
            and self.rows <= ref.rows
        )


class BlockWalk:
    """The blocks of a segment without a tail: the sums of the sound ones, and the gaps between them."""

    def __init__(self, ref: SegmentRef) -> None:
        self._ref = ref
        self.sums = RowSums()
        self.sound = 0
        self._gaps: list[tuple[bytes, bytes]] = []
        self._is_gap = False

    def add(self, batch: pa.RecordBatch | None) -> None:
        """Add the next block; None: it is damaged."""
        if batch is None:
            self._is_gap = True
            return
        low = self._reached
        if self._is_gap:
            self._gaps.append((low, batch.column(KEY)[0].as_py()))
        self._is_gap = False
        self.sound += 1
        self.sums.add(batch)

    def lost(self) -> tuple[Lost, ...]:
        """Return the rows that are missing: their number, and the keys between which they lay."""
        ref, missing = self._ref, self._ref.rows - self.sums.rows
        if not missing:
            return ()
        gaps = list(self._gaps)
        if self._is_gap or self._reached < ref.key_max or not gaps:
            gaps.append((self._reached, ref.key_max))
        return (Lost(gaps[0][0], gaps[-1][1], ref.lsn_min, ref.lsn_max, missing),)

    @property
    def _reached(self) -> bytes:
        return self._ref.key_min if self.sums.keys is None else self.sums.keys[1]
