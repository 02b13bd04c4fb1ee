"""Checking segments: the tail against the manifest, and in depth every block of the file.

In depth, everything that a reader relies on is looked at: the checksum of each block, rows sorted in
it and across blocks, the bounds that the index gives, and that the filter admits every key. What is
damaged is read again before it counts; a damaged block is told and the rest is checked all the same.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reef.doctor._verify_bounds import Bounds
from reef.errors import CorruptError, DamagedError, NotFoundError, UnreadableError
from reef.format import (
    SEGMENT_COLUMNS,
    BlockPlace,
    BlockPlaces,
    SegmentRef,
    SegmentTail,
    check_preamble,
    damaged_checksum,
    decode_block,
    decode_tail,
    hash_keys,
    segment_key,
    split_schema,
)
from reef.manifest import keys_seen, lsn_max_seen
from reef.store import Store

PREAMBLE_BYTES = 16
_FRAME_BYTES = 8
_AT_ONCE_BLOCKS = 64
_AT_ONCE_BYTES = 16 << 20

_T = TypeVar("_T")
_Numbered: TypeAlias = tuple[int, BlockPlace]


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
    store: Store,
    namespace: str,
    ref: SegmentRef,
    size: int | None,
    *,
    deep: bool,
    span: tuple[int, int] | None = None,
) -> SegmentFacts:
    """Return what is known of a segment; `size` is what a LIST says, None if it shows none.

    With `span`, of the tail and of the blocks that begin within that range of bytes. Raises
    UnavailableError.
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
    if not deep:
        return SegmentFacts(key, ref, tail=tail)
    return _check_blocks(store, ref, tail, span or (0, ref.size))


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


def _check_blocks(
    store: Store, ref: SegmentRef, tail: SegmentTail, span: tuple[int, int]
) -> SegmentFacts:
    check = _DeepCheck(store, tail, span)
    if span[0] == 0:
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
    """Reads the blocks of a segment that begin within a range of bytes once, one by one."""

    def __init__(self, store: Store, tail: SegmentTail, span: tuple[int, int]) -> None:
        self._store = store
        self._tail = tail
        self._span = span
        self.errors: list[UnreadableError] = []
        self.bad_rows: set[int] = set()
        self.blocks = 0
        self._last: tuple[bytes, int] | None = None
        self._narrow, _ = split_schema(tail.schema, tail.footer.wide)
        self._bounds = Bounds(tail.row_index)

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
            if section.offset >= tail_at or not self._is_inside(section.offset):
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
        before = -1
        for some in _runs(self._inside(self._tail.row_places)):
            if some[0][0] != before + 1:
                self._last = self._last_of(some[0][0] - 1)
            before = some[-1][0]
            self._check_run(some)

    def _check_run(self, run: Sequence[_Numbered]) -> None:
        """Fetch and check neighbours. Returning lets go of them, so that the next take their place."""
        fetched = zip(run, self._fetch(run), strict=True)
        decoded = {number: self._decoded(number, place, data) for (number, place), data in fetched}
        # Many blocks cost little more than one; if anything is wrong, they are told apart.
        if not self._is_sound(decoded):
            self._check_each(decoded)

    def _decoded(self, number: int, place: BlockPlace, data: pa.Buffer) -> pa.RecordBatch | None:
        """Return the rows of a block; None, and it is told, if they cannot be read.

        They have not been held against the index.
        """
        try:
            return decode_block(data, place, self._narrow, self._tail.key)
        except DamagedError:
            return self._decoded_again(number, place)
        except UnreadableError as error:
            self._tell(number, error)
            return None

    def _decoded_again(self, number: int, place: BlockPlace) -> pa.RecordBatch | None:
        """Return the rows of a block that is read again; None, and it is told, if it's damaged."""
        try:
            return self._tail.decode_rows(number, self._again(place))
        except UnreadableError as error:
            self._tell(number, error)
            return None

    def _is_sound(self, decoded: Mapping[int, pa.RecordBatch | None]) -> bool:
        """Return whether nothing is wrong with blocks that follow one upon another; then go on."""
        blocks = [rows for rows in decoded.values() if rows is not None]
        if len(blocks) < len(decoded):
            return False
        first, last = next(iter(decoded)), self._last
        keys, lsns, flags = (
            pa.concat_arrays([rows.column(n) for rows in blocks])
            for n in range(len(SEGMENT_COLUMNS))
        )
        is_sound = (
            not (keys.null_count or lsns.null_count or flags.null_count)
            and self._is_summed_up(first, [rows.num_rows for rows in blocks], keys, lsns, flags)
            and not self._order_problem(keys, lsns)
            and bool(self._tail.bloom.may_contain_many(hash_keys(keys)).all())
            and self._bounds.agree(first, blocks)
        )
        if not is_sound:
            self._last = last
        return is_sound

    def _is_summed_up(
        self, first: int, counts: Sequence[int], keys: pa.Array, lsns: pa.Array, flags: pa.Array
    ) -> bool:
        """Return whether the index is right about the keys, versions and tombstones of blocks."""
        index = self._tail.row_index.slice(first, len(counts))
        ends = np.cumsum(counts)
        starts = np.append(0, ends[:-1])
        versions = lsns.to_numpy()
        tombstones = np.add.reduceat(flags.to_numpy(zero_copy_only=False), starts, dtype=np.int64)
        return bool(
            keys.take(pa.array(starts)).equals(index["key_first"])
            and keys.take(pa.array(ends - 1)).equals(index["key_last"])
            and (np.minimum.reduceat(versions, starts) == index["lsn_min"].to_numpy()).all()
            and (np.maximum.reduceat(versions, starts) == index["lsn_max"].to_numpy()).all()
            and (tombstones == index["tombstones"].to_numpy()).all()
        )

    def _check_each(self, decoded: Mapping[int, pa.RecordBatch | None]) -> None:
        for number, found in decoded.items():
            rows = None if found is None else self._summed_up(number, found)
            if rows is None:
                self._last = None
                continue
            try:
                self._check_rows(number, rows)
            except UnreadableError as error:
                self._tell(number, error)
                self._last = None

    def _summed_up(self, number: int, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return rows that are those of the index; None, and it is told, if there are none."""
        try:
            self._tail.check_rows(number, rows)
        except DamagedError:
            return self._decoded_again(number, self._tail.row_places[number])
        return rows

    def _tell(self, number: int, error: UnreadableError) -> None:
        self.errors.append(error)
        self.bad_rows.add(number)

    def _last_of(self, number: int) -> tuple[bytes, int] | None:
        """Return what the rows of the next block must sort behind; None: this one is damaged."""
        place = self._tail.row_places[number]
        try:
            rows = twice(lambda: self._tail.decode_rows(number, self._again(place)))
        except UnreadableError:
            return None  # whoever checks that block tells
        return rows.column(0)[-1].as_py(), -rows.column(1)[-1].as_py()

    def columns(self) -> None:
        for column, places in self._tail.column_places.items():
            for some in _runs(self._inside(places)):
                self._check_column(column, some)

    def _check_column(self, column: str, run: Sequence[_Numbered]) -> None:
        for (number, place), data in zip(run, self._fetch(run), strict=True):
            try:
                self._decoded_column(column, number, place, data)
            except UnreadableError as error:
                self.errors.append(error)
                self.bad_rows.update(self._tail.row_places.of_rows(place.row, place.rows))

    def _is_inside(self, offset: int) -> bool:
        return self._span[0] <= offset < self._span[1]

    def _inside(self, places: BlockPlaces) -> list[_Numbered]:
        numbered = enumerate(places)
        return [(number, place) for number, place in numbered if self._is_inside(place.offset)]

    def _fetch(self, run: Sequence[_Numbered]) -> list[pa.Buffer]:
        """Return the bytes of neighbours, fetched at once."""
        start, end = run[0][1].offset, run[-1][1].offset + run[-1][1].length
        data = pa.py_buffer(self._store.get_range(self._tail.key, start, end - start))
        self.blocks += len(run)
        # Not copied: slices of what was fetched.
        return [data.slice(place.offset - start, place.length) for _, place in run]

    def _decoded_column(
        self, column: str, number: int, place: BlockPlace, data: pa.Buffer
    ) -> pa.Array:
        try:
            return self._tail.decode_column(column, number, data)
        except DamagedError:
            return self._tail.decode_column(column, number, self._again(place))

    def _again(self, place: BlockPlace) -> bytes:
        return self._store.get_range(self._tail.key, place.offset, place.length)

    def _check_rows(self, number: int, rows: pa.RecordBatch) -> None:
        """Raise CorruptError unless rows are sorted, and what the index and the filter say of them."""
        tail = self._tail
        problem = self._order_problem(rows.column(0), rows.column(1))
        problem = problem or self._bounds.problem(number, rows)
        if not problem and not tail.bloom.may_contain_many(hash_keys(rows.column(0))).all():
            problem = "a key that the filter denies"
        if problem:
            offset = tail.row_places[number].offset
            raise CorruptError(tail.key, offset, f"row block {number} in order", problem)

    def _order_problem(self, keys: pa.Array, lsns: pa.Array) -> str:
        first, last = (keys[0].as_py(), -lsns[0].as_py()), (keys[-1].as_py(), -lsns[-1].as_py())
        before, self._last = self._last, last
        if before is not None and first <= before:
            return "rows that do not sort behind those of the block before"
        older, newer = keys.slice(0, len(keys) - 1), keys.slice(1)
        if pc.all(pc.less(older, newer), min_count=0).as_py():  # no key has two versions
            return ""
        falls = pc.greater(lsns.slice(0, len(keys) - 1), lsns.slice(1))
        in_order = pc.or_(pc.less(older, newer), pc.and_(pc.equal(older, newer), falls))
        if not pc.all(in_order, min_count=0).as_py():
            return "rows that are not sorted by key, newest version first"
        return ""


def _runs(places: Sequence[_Numbered]) -> Iterator[Sequence[_Numbered]]:
    """Yield blocks to fetch at once: neighbours by number and place, bounded in number and bytes."""
    first = 0
    for at in range(1, len(places)):
        (before, last), (number, place) = places[at - 1], places[at]
        is_next = number == before + 1 and place.offset == last.offset + last.length
        held = place.offset + place.length - places[first][1].offset
        if not is_next or at - first >= _AT_ONCE_BLOCKS or held > _AT_ONCE_BYTES:
            yield places[first:at]
            first = at
    if places:
        yield places[first:]


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
        low, high = keys_seen(ref)
        at = bisect_left(active, low, key=lambda one: one[0])
        if at and active[at - 1][1] > low:
            yield active[at - 1][2], ref
        elif at < len(active) and active[at][0] < high:
            yield active[at][2], ref
        active.insert(at, (low, high, ref))
        heapq.heappush(ends, (lsn_max_seen(ref), low, ref.id))


def twice(read: Callable[[], _T]) -> _T:
    """Return what `read` does; damage is looked at again before it counts."""
    try:
        return read()
    except DamagedError:
        return read()
