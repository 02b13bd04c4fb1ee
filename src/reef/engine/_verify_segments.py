"""Checking segments: the tail against the manifest, and in depth every block of the file.

In depth, everything that a reader relies on is looked at: the checksum of each block, rows sorted in
it and across blocks, the bounds that the index gives, and that the filter admits every key. What is
damaged is read again before it counts; a damaged block is told and the rest is checked all the same.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from reef.engine._findings import portions
from reef.errors import CorruptError, DamagedError, NotFoundError, UnreadableError
from reef.format import (
    Place,
    SegmentRef,
    SegmentTail,
    check_preamble,
    damaged_checksum,
    decode_tail,
    hash_keys,
    segment_key,
)
from reef.format._block_index import bounds_of, ordered_columns
from reef.store import Store

PREAMBLE_BYTES = 16
_FRAME_BYTES = 8

_T = TypeVar("_T")


@dataclass(frozen=True)
class SegmentFacts:
    """What is known of a segment that a manifest names."""

    key: str
    ref: SegmentRef
    is_missing: bool = False
    tail: SegmentTail | None = None
    """None: it cannot be read."""
    errors: tuple[UnreadableError, ...] = ()
    """What is wrong, in the order of the file; of the whole, or of single blocks."""
    bad_rows: tuple[int, ...] = ()
    """The row blocks whose rows, or whose values of wide columns, are damaged."""
    blocks: int = 0
    """How many were looked at."""

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.is_missing and not self.errors


def check_segment(
    store: Store, namespace: str, ref: SegmentRef, size: int | None, *, deep: bool
) -> SegmentFacts:
    """Return what is known of a segment; `size` is what a LIST says, None if it shows none.

    Raises UnavailableError.
    """
    key = segment_key(ref.namespace or namespace, ref.id)
    if size is None:
        return SegmentFacts(key, ref, is_missing=True)
    if size != ref.size:
        wrong = CorruptError(key, 0, f"{ref.size} bytes, as the manifest says", f"{size}")
        return SegmentFacts(key, ref, errors=(wrong,))
    try:
        tail = twice(lambda: read_tail(store, key, ref))
    except NotFoundError:
        return SegmentFacts(key, ref, is_missing=True)
    except UnreadableError as error:
        return SegmentFacts(key, ref, errors=(error,))
    return _check_blocks(store, ref, tail) if deep else SegmentFacts(key, ref, tail=tail)


def read_tail(store: Store, key: str, ref: SegmentRef) -> SegmentTail:
    """Return the tail of a segment, which says what `ref` does of it. Raises UnreadableError."""
    data = store.get_range(key, ref.size - ref.footer_length, ref.footer_length)
    tail = decode_tail(data, key=key, size=ref.size, ref=ref)
    footer = tail.footer
    found = (footer.tombstones, footer.lsn_min, footer.lsn_max)
    told = (ref.tombstones, ref.lsn_min, ref.lsn_max)
    if found != told and (ref.version is None or found[0] != told[0]):
        what = "the tombstones and LSNs that the manifest says"
        raise CorruptError(key, ref.size - ref.footer_length, f"{what}, {told}", f"{found}")
    return tail


def _check_blocks(store: Store, ref: SegmentRef, tail: SegmentTail) -> SegmentFacts:
    check = _DeepCheck(store, tail)
    check.preamble()
    check.sections(ref.size - ref.footer_length)
    check.rows()
    check.columns()
    return SegmentFacts(
        tail.key,
        ref,
        tail=tail,
        errors=tuple(sorted(check.errors, key=lambda error: error.offset)),
        bad_rows=tuple(sorted(check.bad_rows)),
        blocks=check.blocks,
    )


class _DeepCheck:
    """Reads a segment once, block by block."""

    def __init__(self, store: Store, tail: SegmentTail) -> None:
        self._store = store
        self._tail = tail
        self.errors: list[UnreadableError] = []
        self.bad_rows: set[int] = set()
        self.blocks = 0
        self._last: tuple[bytes, int] | None = None

    def preamble(self) -> None:
        key = self._tail.key

        def check() -> None:
            check_preamble(self._store.get_range(key, 0, PREAMBLE_BYTES), key=key)

        try:
            twice(check)
        except UnreadableError as error:
            self.errors.append(error)

    def sections(self, tail_at: int) -> None:
        """Check what lies before the tail beside the blocks."""
        for section in self._tail.footer.sections:
            if section.offset >= tail_at:
                continue
            offset, length = section.offset + _FRAME_BYTES, section.length
            for again in (True, False):
                data = self._store.get_range(self._tail.key, offset, length) if length else b""
                found = damaged_checksum(data)
                if found == section.checksum:
                    break
                if not again:
                    expected = f"crc32c {section.checksum:08x} of section {section.name!r}"
                    error = CorruptError(self._tail.key, offset, expected, f"{found:08x}")
                    self.errors.append(error)

    def rows(self) -> None:
        tail = self._tail
        places = list(enumerate(tail.row_places))
        for number, place, data in self._fetch(places):
            try:
                self._check_rows(number, self._decoded_rows(number, place, data))
            except UnreadableError as error:
                self.errors.append(error)
                self.bad_rows.add(number)
                self._last = None

    def columns(self) -> None:
        for column, places in self._tail.column_places.items():
            for number, place, data in self._fetch(list(enumerate(places))):
                try:
                    self._decoded_column(column, number, place, data)
                except UnreadableError as error:
                    self.errors.append(error)
                    self.bad_rows.update(self._tail.row_places.of_rows(place.row, place.rows))

    def _fetch(self, places: Sequence[tuple[int, Place]]) -> Iterator[tuple[int, Place, bytes]]:
        for some in portions(places, lambda one: one[1].length):
            ranges = [(place.offset, place.length) for _, place in some]
            found = self._store.get_ranges(self._tail.key, ranges)
            for (number, place), data in zip(some, found, strict=True):
                self.blocks += 1
                yield number, place, data

    def _decoded_rows(self, number: int, place: Place, data: bytes) -> pa.RecordBatch:
        try:
            return self._tail.decode_rows(number, data)
        except DamagedError:
            return self._tail.decode_rows(number, self._again(place))

    def _decoded_column(self, column: str, number: int, place: Place, data: bytes) -> pa.Array:
        try:
            return self._tail.decode_column(column, number, data)
        except DamagedError:
            return self._tail.decode_column(column, number, self._again(place))

    def _again(self, place: Place) -> bytes:
        return self._store.get_range(self._tail.key, place.offset, place.length)

    def _check_rows(self, number: int, rows: pa.RecordBatch) -> None:
        """Raise CorruptError unless rows are sorted, and what the index and the filter say of them."""
        tail = self._tail
        problem = self._order_problem(rows) or _bounds_problem(tail, number, rows)
        if not problem and not tail.bloom.may_contain_many(hash_keys(rows.column(0))).all():
            problem = "a key that the filter denies"
        if problem:
            offset = tail.row_places[number].offset
            raise CorruptError(tail.key, offset, f"row block {number} in order", problem)

    def _order_problem(self, rows: pa.RecordBatch) -> str:
        keys, lsns = rows.column(0), rows.column(1)
        first, last = (keys[0].as_py(), -lsns[0].as_py()), (keys[-1].as_py(), -lsns[-1].as_py())
        before, self._last = self._last, last
        if before is not None and first <= before:
            return "rows that do not sort behind those of the block before"
        older, newer = keys.slice(0, len(keys) - 1), keys.slice(1)
        falls = pc.greater(lsns.slice(0, len(keys) - 1), lsns.slice(1))
        in_order = pc.or_(pc.less(older, newer), pc.and_(pc.equal(older, newer), falls))
        if not pc.all(in_order, min_count=0).as_py():
            return "rows that are not sorted by key, newest version first"
        return ""


def _bounds_problem(tail: SegmentTail, number: int, rows: pa.RecordBatch) -> str:
    """Return the column of whose values the index gives other bounds, or ""."""
    for field in ordered_columns(rows.schema):
        found = bounds_of(rows.column(field.name))
        for what, value in zip(("min", "max", "nulls"), found, strict=True):
            told = tail.row_index[f"{what}:{field.name}"]
            if not pa.array([value], told.type).equals(told.slice(number, 1)):
                return f"a column {field.name!r} whose {what} is not what the index says"
    return ""


def overlaps(refs: Sequence[SegmentRef]) -> Iterator[tuple[SegmentRef, SegmentRef]]:
    """Yield pairs that have keys and LSNs in common: each finds one partner, if there is any.

    Attached segments are left out: they take the version of their slot, and a flush around it has
    versions on both sides.
    """
    plain = [ref for ref in refs if ref.version is None]
    active: list[tuple[bytes, bytes, SegmentRef]] = []
    ends: list[tuple[int, bytes, str]] = []
    for ref in sorted(plain, key=lambda ref: (ref.lsn_min, ref.key_min)):
        while ends and ends[0][0] < ref.lsn_min:
            _, low, id = heapq.heappop(ends)
            at = bisect_left(active, low, key=lambda one: one[0])
            while at < len(active) and active[at][2].id != id:
                at += 1
            del active[at : at + 1]
        low, high = _keys_seen(ref)
        at = bisect_left(active, low, key=lambda one: one[0])
        if at and active[at - 1][1] > low:
            yield active[at - 1][2], ref
        elif at < len(active) and active[at][0] < high:
            yield active[at][2], ref
        active.insert(at, (low, high, ref))
        heapq.heappush(ends, (_lsn_max(ref), low, ref.id))


def _keys_seen(ref: SegmentRef) -> tuple[bytes, bytes]:
    """Return the least key that a reference lets be seen, and where its keys end (exclusive)."""
    low = max(ref.key_min, ref.clip_key_min or b"")
    high = ref.key_max + b"\0"
    return low, high if ref.clip_key_max is None else min(high, ref.clip_key_max)


def _lsn_max(ref: SegmentRef) -> int:
    return ref.lsn_max if ref.clip_lsn is None else min(ref.lsn_max, ref.clip_lsn)


def twice(read: Callable[[], _T]) -> _T:
    """Return what `read` does; damage is looked at again before it counts."""
    try:
        return read()
    except DamagedError:
        return read()
