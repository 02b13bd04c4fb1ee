"""Checking a segment: its tail against the manifest, and in depth every block of the file.

A deep check looks at everything that a reader relies on: the checksum of each block, rows sorted within
a block and across blocks, the bounds and sums that the index gives, and a filter that admits every key.
Damage is read again before it counts. A damaged block is reported, and the others are checked all the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reef.errors import CorruptError, DamagedError, NotFoundError, UnreadableError
from reef.format import (
    BlockPlace,
    BlockPlaces,
    Section,
    SegmentRef,
    SegmentTail,
    bounds_of,
    check_preamble,
    damaged_checksum,
    decode_tail,
    hash_keys,
    ordered_columns,
    segment_key,
)
from reef.store import Store

_PREAMBLE_BYTES = 16
_FRAME_BYTES = 8
_AT_ONCE_BLOCKS = 64
_AT_ONCE_BYTES = 16 << 20

_T = TypeVar("_T")
_Numbered: TypeAlias = tuple[int, BlockPlace]
_Sorted: TypeAlias = tuple[bytes, int]
"""The sort order of rows: the key, then the version, newest first."""


@dataclass(frozen=True)
class CheckedSegment:
    """The result of checking a segment that a manifest names."""

    key: str
    ref: SegmentRef
    is_missing: bool = False
    tail: SegmentTail | None = None
    """None: it cannot be read."""
    errors: tuple[UnreadableError, ...] = ()
    """Damage to the whole or to single blocks, in the order of the file."""
    bad_rows: tuple[int, ...] = ()
    """The row blocks whose rows, or whose values of wide columns, are damaged."""
    blocks: int = 0
    """How many were checked."""

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
) -> CheckedSegment:
    """Check a segment; `size` is what a LIST shows, None if the segment is not there.

    `deep` reads blocks too: all of them, or those that begin within the range of bytes `span`. Raises
    UnavailableError.
    """
    key = segment_key(ref.namespace or namespace, ref.id)
    if size is None:
        return CheckedSegment(key, ref, is_missing=True)
    if size != ref.size:
        wrong = CorruptError(key, 0, f"{ref.size} bytes, as the manifest says", f"{size}")
        return CheckedSegment(key, ref, errors=(wrong,))
    try:
        tail = _twice(lambda: _read_tail(store, key, ref))
    except NotFoundError:
        return CheckedSegment(key, ref, is_missing=True)
    except UnreadableError as error:
        return CheckedSegment(key, ref, errors=(error,))
    if not deep:
        return CheckedSegment(key, ref, tail=tail)
    try:
        return _check_blocks(store, ref, tail, span or (0, ref.size))
    except NotFoundError:  # collected since its tail was read
        return CheckedSegment(key, ref, is_missing=True)


def _read_tail(store: Store, key: str, ref: SegmentRef) -> SegmentTail:
    """Return the tail of a segment, which agrees with `ref`. Raises UnreadableError."""
    data = store.get_range(key, ref.size - ref.footer_length, ref.footer_length)
    tail = decode_tail(data, key=key, size=ref.size, ref=ref)
    footer = tail.footer
    got = (footer.tombstones, footer.lsn_min, footer.lsn_max)
    expected = (ref.tombstones, ref.lsn_min, ref.lsn_max)
    if got != expected and (ref.version is None or got[0] != expected[0]):
        what = "the tombstones and LSNs that the manifest says"
        raise CorruptError(key, ref.size - ref.footer_length, f"{what}, {expected}", f"{got}")
    return tail


def _check_blocks(
    store: Store, ref: SegmentRef, tail: SegmentTail, span: tuple[int, int]
) -> CheckedSegment:
    check = _DeepCheck(store, tail, span)
    check.preamble()
    check.sections(ref.size - ref.footer_length)
    check.rows()
    check.columns()
    return CheckedSegment(
        tail.key,
        ref,
        tail=tail,
        errors=tuple(sorted(check.errors, key=lambda error: error.offset)),
        bad_rows=tuple(sorted(check.bad_rows)),
        blocks=check.blocks,
    )


class _DeepCheck:
    """Reads the blocks of a segment that begin within a range of bytes, each once."""

    def __init__(self, store: Store, tail: SegmentTail, span: tuple[int, int]) -> None:
        self._store = store
        self._tail = tail
        self._span = span
        self.errors: list[UnreadableError] = []
        self.bad_rows: set[int] = set()
        self.blocks = 0
        self._last: tuple[int, _Sorted] | None = None
        """The last sound block and its last row; None at the start, and after a damaged one."""
        self._bounds = IndexedBounds(tail.row_index)

    def preamble(self) -> None:
        """Check how the segment begins."""
        key = self._tail.key
        if self._is_inside(0):
            self._check_twice(
                lambda: check_preamble(self._store.get_range(key, 0, _PREAMBLE_BYTES), key=key)
            )

    def sections(self, tail_at: int) -> None:
        """Check the sections before the tail that are not blocks."""
        for section in self._tail.footer.sections:
            if section.offset < tail_at and self._is_inside(section.offset):
                self._check_twice(partial(self._check_section, section))

    def _check_twice(self, check: Callable[[], None]) -> None:
        try:
            _twice(check)
        except UnreadableError as error:
            self.errors.append(error)

    def _check_section(self, section: Section) -> None:
        offset, length = section.offset + _FRAME_BYTES, section.length
        got = damaged_checksum(
            self._store.get_range(self._tail.key, offset, length) if length else b""
        )
        if got != section.checksum:
            expected = f"crc32c {section.checksum:08x} of section {section.name!r}"
            raise CorruptError(self._tail.key, offset, expected, f"{got:08x}")

    def rows(self) -> None:
        before = -1
        for run in _runs(self._inside(self._tail.row_places)):
            if run[0][0] != before + 1:
                self._last = self._end_of(run[0][0] - 1)
            before = run[-1][0]
            self._check_run(run)

    def _check_run(self, run: Sequence[_Numbered]) -> None:
        """Fetch and check neighbours. Returning releases them before the next are fetched."""
        decoded: dict[int, pa.RecordBatch] = {}
        for one, data in zip(run, self._fetch(run), strict=True):
            try:
                decoded[one[0]] = self._decoded(self._tail.decode_rows, one, data)
            except UnreadableError as error:
                self._add(one[0], error)
        if decoded:
            self._check_decoded(decoded)

    def _decoded(self, decode: Callable[[int, Any], _T], one: _Numbered, data: pa.Buffer) -> _T:
        """Return a block, decoded by `decode`; a damaged one is read again, alone."""
        number, place = one
        try:
            return decode(number, data)
        except DamagedError:
            return decode(number, self._read(place))

    def _check_decoded(self, decoded: Mapping[int, pa.RecordBatch]) -> None:
        """Check the order of rows, the bounds in the index and the filter, for many blocks at once."""
        blocks = list(decoded.values())
        keys, lsns = (pa.concat_arrays([rows.column(n) for rows in blocks]) for n in (0, 1))
        starts = np.cumsum([0, *(rows.num_rows for rows in blocks[:-1])])
        unsorted = _blocks_of(_misplaced(keys, lsns, starts), starts)
        denied = np.flatnonzero(~self._tail.bloom.may_contain_many(hash_keys(keys)))
        denied_in = _blocks_of(denied, starts)
        for at, (number, rows) in enumerate(decoded.items()):
            first, last = _row(rows, 0), _row(rows, -1)
            if self._last is not None and self._last[0] == number - 1 and first <= self._last[1]:
                problem = "rows that do not sort behind those of the block before"
            elif at in unsorted:
                problem = "rows that are not sorted by key, newest version first"
            else:
                problem = self._bounds.problem(number, rows)
                if not problem and at in denied_in:
                    problem = "a key that the filter denies"
            self._last = None if problem else (number, last)
            if problem:
                offset = self._tail.row_places[number].offset
                expected = f"row block {number} in order"
                self._add(number, CorruptError(self._tail.key, offset, expected, problem))

    def _add(self, number: int, error: UnreadableError) -> None:
        self.errors.append(error)
        self.bad_rows.add(number)

    def _end_of(self, number: int) -> tuple[int, _Sorted] | None:
        """Return a block and its last row; None: it is damaged, which its own part reports."""
        place = self._tail.row_places[number]
        try:
            rows = _twice(lambda: self._tail.decode_rows(number, self._read(place)))
        except UnreadableError:
            return None
        return number, _row(rows, -1)

    def columns(self) -> None:
        for column, places in self._tail.column_places.items():
            for run in _runs(self._inside(places)):
                self._check_column(column, run)

    def _check_column(self, column: str, run: Sequence[_Numbered]) -> None:
        decode = partial(self._tail.decode_column, column)
        for one, data in zip(run, self._fetch(run), strict=True):
            try:
                self._decoded(decode, one, data)
            except UnreadableError as error:
                self.errors.append(error)
                place = one[1]
                self.bad_rows.update(self._tail.row_places.of_rows(place.row, place.rows))

    def _is_inside(self, offset: int) -> bool:
        return self._span[0] <= offset < self._span[1]

    def _inside(self, places: BlockPlaces) -> list[_Numbered]:
        numbered = enumerate(places)
        return [(number, place) for number, place in numbered if self._is_inside(place.offset)]

    def _fetch(self, run: Sequence[_Numbered]) -> list[pa.Buffer]:
        """Return the bytes of neighbours, fetched at once and not copied."""
        start, end = run[0][1].offset, run[-1][1].offset + run[-1][1].length
        data = pa.py_buffer(self._store.get_range(self._tail.key, start, end - start))
        self.blocks += len(run)
        return [data.slice(place.offset - start, place.length) for _, place in run]

    def _read(self, place: BlockPlace) -> bytes:
        return self._store.get_range(self._tail.key, place.offset, place.length)


def _runs(places: Sequence[_Numbered]) -> Iterator[Sequence[_Numbered]]:
    """Yield blocks to fetch at once: neighbours by number and place, bounded in number and bytes."""
    first = 0
    for at in range(1, len(places)):
        (before, last), (number, place) = places[at - 1], places[at]
        is_next = number == before + 1 and place.offset == last.offset + last.length
        nbytes = place.offset + place.length - places[first][1].offset
        if not is_next or at - first >= _AT_ONCE_BLOCKS or nbytes > _AT_ONCE_BYTES:
            yield places[first:at]
            first = at
    if places:
        yield places[first:]


def _row(rows: pa.RecordBatch, at: int) -> _Sorted:
    return rows.column(0)[at].as_py(), -rows.column(1)[at].as_py()


def _misplaced(
    keys: pa.Array, lsns: pa.Array, starts: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the rows that do not sort after the row before them in the same block."""
    lower, upper = keys.slice(0, len(keys) - 1), keys.slice(1)
    is_behind = pc.less(lower, upper)
    if not pc.all(is_behind, min_count=0).as_py():  # some key has several versions
        is_older = pc.greater(lsns.slice(0, len(lsns) - 1), lsns.slice(1))
        is_behind = pc.or_(is_behind, pc.and_(pc.equal(lower, upper), is_older))
    rows = np.flatnonzero(~is_behind.to_numpy(zero_copy_only=False)) + 1
    return rows[~np.isin(rows, starts)]


def _blocks_of(rows: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]) -> set[int]:
    """Return the positions of the blocks, which begin at `starts`, that some rows are in."""
    return set((np.searchsorted(starts, rows, side="right") - 1).tolist())


def _twice(read: Callable[[], _T]) -> _T:
    """Return what `read` returns; if it finds damage, read once more before raising."""
    try:
        return read()
    except DamagedError:
        return read()


class IndexedBounds:
    """The bounds that the row index of a segment gives."""

    def __init__(self, index: pa.RecordBatch) -> None:
        self._index = index
        self._values: dict[str, list[Any]] = {}
        """Columns of the index as Python values: nearly all bounds agree, and compare fast so."""
        self._columns: list[tuple[int, str]] | None = None

    def problem(self, number: int, rows: pa.RecordBatch) -> str:
        """Return the first column of block `number` whose bounds the index has wrong, or ""."""
        for at, name in self._ordered(rows.schema):
            bounds = bounds_of(rows.column(at))
            for what, value in zip(("min", "max", "nulls"), bounds, strict=True):
                if not self._agrees(f"{what}:{name}", number, value):
                    return f"a column {name!r} whose {what} is not what the index says"
        return ""

    def _ordered(self, schema: pa.Schema) -> list[tuple[int, str]]:
        """Return the positions and names of the columns that have bounds."""
        if self._columns is None:  # they are the same in every block
            names = [field.name for field in ordered_columns(schema)]
            self._columns = [(schema.get_field_index(name), name) for name in names]
        return self._columns

    def _agrees(self, name: str, number: int, value: object) -> bool:
        indexed = self._values.get(name)
        if indexed is None:
            indexed = self._values[name] = self._index[name].to_pylist()
        plain = value.as_py() if isinstance(value, pa.Scalar) else value
        if type(plain) is type(indexed[number]) and plain == indexed[number]:
            return True
        column = self._index[name]
        return bool(pa.array([value], column.type).equals(column.slice(number, 1)))
