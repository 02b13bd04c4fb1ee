"""The stored rows that a filter lets through, in order of ids.

A filter that lets few rows through is answered source by source, without a merge: blocks that its
bounds rule out are not read, what matches is gathered, and point reads check whether another source
has a newer version. Once that costs too much, a merged scan of the key range that may match takes
over. Wide columns are read for rows that match only, unless most do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reef.documents.filter import Filter
from reef.documents.query._selection import wide_of
from reef.documents.query._wide import with_wide
from reef.documents.types import Schema
from reef.engine import Cover, ReadState, View, are_newest
from reef.format import KEY, LSN
from reef.segment import RowSource, SegmentSource, align, at_or_below

LIMIT_MAX = 1 << 62
"""A greater limit is lowered to this: no namespace has as many rows, and Arrow counts in 64 bits."""
MATCHES_MAX = 20_000
"""Gather up to this many matches; beyond, a merged scan costs less."""
_MATCHES_BYTES_MAX = 64 << 20
"""Gather up to this many bytes of matches: they are in memory together."""
_UNVERIFIED_ROWS_MAX = 2_000
"""Up to this many matches may need a point read that looks for a newer version."""
_MERGED_ROWS_PER_READ = 64
"""A point read costs about as much as merging this many rows."""
_LAYERS_PER_READ = 8
"""With more layers, a point read costs more: it may have to look into each."""
_PIECE_BYTES = 16 << 20
"""Wide columns are read for rows of about this many bytes at a time."""
_SLICED_ROWS_MAX = 16
"""Slice up to this many matches of a batch: that takes a fraction of the time of Arrow's `take`."""
_KEPT_BLOCKS_MAX = 64
"""Slices keep up to this many blocks in memory; then they are copied."""
_SPANS_MAX = 64
"""A merged scan reads up to this many spans of keys; neighbours beyond are read as one."""


class StoredRows:
    """Rows as they are stored, at one version: all, or those that a filter lets through."""

    def __init__(self, view: View, schema: Schema, filter: Filter | None) -> None:
        self._view = view
        self._filter = filter
        self._wide = frozenset(wide_of(schema.attributes))
        self._fields = {field.name: field for field in schema.to_arrow()}

    def layout(self, columns: Sequence[str]) -> pa.Schema:
        """Return the schema of rows with `columns`: the key and the version come first."""
        fields = [self._fields[name] for name in columns]
        return pa.schema([pa.field(KEY, pa.binary()), pa.field(LSN, pa.int64()), *fields])

    def batches(
        self,
        columns: Sequence[str],
        *,
        start: bytes = b"",
        end: bytes | None = None,
        reverse: bool = False,
        ordered: bool = True,
        matches_max: int = MATCHES_MAX,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that match, by id, with those of `columns`, and others, that are stored.

        Without `ordered`, they come in any order, which costs less.

        If more than about `matches_max` match, they are read in order from the beginning.
        """
        filter = self._filter
        if filter is None:
            yield from self._view.scan(
                start=start, end=end, reverse=reverse, columns=columns, ordered=ordered
            )
            return
        low, high = filter.key_range()
        start = max(start, low)
        end = high if end is None else end if high is None else min(end, high)
        if end is not None and start >= end:
            return
        few = self._few(filter, columns, start, end, min(matches_max, MATCHES_MAX))
        if few is not None:
            yield from self._in_pieces(few, columns, reverse)
            return
        to_read = [*dict.fromkeys((*columns, *filter.columns))]
        spans = self._spans(filter, start, end)
        for low, high in reversed(spans) if reverse else spans:
            for rows in self._view.scan(
                start=low, end=high, reverse=reverse, columns=to_read, ordered=ordered
            ):
                mask = filter.mask(rows)
                matches = mask.true_count
                if matches:
                    yield rows if matches == rows.num_rows else rows.filter(mask)

    def _spans(self, filter: Filter, start: bytes, end: bytes | None) -> list[tuple[bytes, bytes]]:
        """Return from which key up to which (exclusive) there may be matches, in order.

        A newer version that hides one has the same key, so that a merge of these keys finds it.
        """
        lsn = self._view.lsn

        def read(state: ReadState) -> list[tuple[bytes, bytes]]:
            unsorted: list[tuple[bytes, bytes]] = []

            def look(index: pa.RecordBatch, names: Collection[str]) -> npt.NDArray[np.bool_]:
                unsorted.extend(_key_spans(index, filter.prune(index, names)))
                return np.zeros(index.num_rows, np.bool_)  # nothing is read here

            for source in state.sources:
                if _is_outside(source, lsn, start, end):
                    continue
                is_segment = isinstance(source, SegmentSource)
                for rows in source.batches(
                    start,
                    end,
                    columns=filter.columns,
                    reverse=False,
                    lsn=lsn,
                    prune=look if is_segment else None,
                ):
                    at, keys = filter.matches(rows).nonzero()[0], rows.column(0)
                    if len(at):
                        unsorted.append((keys[int(at[0])].as_py(), keys[int(at[-1])].as_py()))
            return unsorted

        spans: list[tuple[bytes, bytes]] = []
        for low, last in sorted(self._view.read(read)):
            low, high = max(low, start), last + b"\0"
            high = high if end is None else min(high, end)
            if low >= high:
                continue
            if spans and (low <= spans[-1][1] or len(spans) == _SPANS_MAX):
                spans[-1] = spans[-1][0], max(high, spans[-1][1])
            else:
                spans.append((low, high))
        return spans

    def _few(
        self, filter: Filter, columns: Sequence[str], start: bytes, end: bytes | None, most: int
    ) -> pa.RecordBatch | None:
        """Return the rows that match, sorted, without wide columns; None if they are too many."""
        narrow = [name for name in columns if name not in self._wide]
        to_read = [*dict.fromkeys((*narrow, *filter.columns))]
        layout, lsn = self.layout(narrow), self._view.lsn

        def read(state: ReadState) -> pa.RecordBatch | None:
            if not state.is_warm:
                state.warm(start, end)
            matches = _MatchBuilder(state, lsn, most)
            for source in state.sources:
                if _is_outside(source, lsn, start, end):
                    continue
                for rows in source.batches(
                    start, end, columns=to_read, reverse=False, lsn=lsn, prune=filter.prune
                ):
                    if source.lsn_max > lsn:
                        rows = at_or_below(rows, lsn)
                    if not matches.take(rows, filter):
                        return None
                if not matches.judge(source, layout):
                    return None
            return matches.rows(layout)

        return self._view.read(read)

    def _in_pieces(
        self, rows: pa.RecordBatch, columns: Sequence[str], reverse: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield sorted rows, in reverse if asked, with the wide ones of `columns`."""
        wide = [self._fields[name] for name in columns if name in self._wide]
        if reverse:
            rows = rows.take(pa.array(np.arange(rows.num_rows)[::-1]))
        row_bytes = sum(f.type.list_size * f.type.value_type.bit_width // 8 for f in wide)
        step = max(1, _PIECE_BYTES // row_bytes if row_bytes else rows.num_rows)
        for first in range(0, rows.num_rows, step):
            piece = rows.slice(first, step)
            yield with_wide(self._view, piece, wide) if wide else piece


def _key_spans(
    index: pa.RecordBatch, worth: npt.NDArray[np.bool_]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the first and the last key of blocks in a row that are worth reading."""
    at = worth.nonzero()[0]
    first, last = index.column("key_first"), index.column("key_last")
    for some in np.split(at, (np.diff(at) > 1).nonzero()[0] + 1):
        if len(some):
            yield first[int(some[0])].as_py(), last[int(some[-1])].as_py()


def _is_outside(source: RowSource, lsn: int, start: bytes, end: bytes | None) -> bool:
    if source.lsn_min > lsn or source.key_max < start:
        return True
    return end is not None and source.key_min >= end


class _MatchBuilder:
    """Rows that match, source by source, those apart that something newer may hide."""

    def __init__(self, state: ReadState, lsn: int, most: int) -> None:
        self._state = state
        self._lsn = lsn
        self._left = most
        self._bytes_left = _MATCHES_BYTES_MAX
        stored = sum(ref.rows for ref in state.manifest.segments)
        unverified = max(_UNVERIFIED_ROWS_MAX, stored // _MERGED_ROWS_PER_READ)
        self._unverified_left = unverified // max(1, len(state.layers) // _LAYERS_PER_READ)
        self._taken: list[pa.RecordBatch] = []
        self._before: list[pa.Array] = []
        """The key of the row before each of them: the same one's, if that is newer."""
        self._firsts: list[int] = []
        """Where rows are among those taken that were the first of their batch."""
        self._count = 0
        self._sliced_from, self._kept_blocks = 0, 0
        """Of those taken, the first that may be a slice; how many blocks such slices keep in memory."""
        self._certain: list[pa.RecordBatch] = []
        self._unverified: list[pa.RecordBatch] = []

    def take(self, rows: pa.RecordBatch, filter: Filter) -> bool:
        """Take the rows of a source that match; return False if they have become too many."""
        at = filter.matches(rows).nonzero()[0]
        if not len(at):
            return True
        if rows.column(2).true_count:  # tombstones are no rows
            at = at[~rows.column(2).to_numpy(zero_copy_only=False)[at]]
        if not len(at):
            return True
        if at[0] == 0:
            self._firsts.append(self._count)
        keys = rows.column(0)
        if len(at) <= _SLICED_ROWS_MAX:
            numbers = at.tolist()
            self._taken += [rows.slice(i, 1) for i in numbers]
            self._before += [keys.slice(max(i - 1, 0), 1) for i in numbers]
            self._kept_blocks += 1
            if self._kept_blocks == _KEPT_BLOCKS_MAX:
                self._copy_slices()
        else:
            chosen = rows if len(at) == rows.num_rows else rows.take(pa.array(at))
            self._taken.append(chosen)
            self._before.append(keys.take(pa.array(np.maximum(at - 1, 0))))
            self._bytes_left -= chosen.get_total_buffer_size()
        self._count += len(at)
        self._left -= len(at)
        return self._left >= 0 and self._bytes_left >= 0

    def _copy_slices(self) -> None:
        """Copy the slices that were taken: each keeps all of its block in memory."""
        at = self._sliced_from
        self._taken[at:] = [pa.concat_batches(self._taken[at:])]
        self._before[at:] = [pa.concat_arrays(self._before[at:])]
        self._sliced_from, self._kept_blocks = at + 1, 0

    def judge(self, source: RowSource, layout: pa.Schema) -> bool:
        """Tell which of the rows taken from `source` are the newest for certain.

        Return False if too many may not be.
        """
        if not self._taken:
            return True
        rows = align(pa.concat_batches(self._taken), layout)
        is_first = np.zeros(rows.num_rows, np.bool_)
        is_first[self._firsts] = True
        is_newest = pc.not_equal(rows.column(0), pa.concat_arrays(self._before))
        is_newest = is_newest.to_numpy(zero_copy_only=False) | is_first
        self._taken, self._before, self._firsts, self._count = [], [], [], 0
        self._sliced_from, self._kept_blocks = 0, 0
        if not is_newest.all():
            rows, is_first = rows.filter(pa.array(is_newest)), is_first[is_newest]
            if not rows.num_rows:
                return True
        hidden = self._may_be_hidden(source, rows)
        if isinstance(source, SegmentSource):
            # Newer versions of the first key of a batch may lie in the block before.
            hidden |= is_first
        count = int(hidden.sum())
        if count:
            self._unverified.append(rows.filter(pa.array(hidden)))
            self._unverified_left -= count
        if count < rows.num_rows:
            self._certain.append(rows.filter(pa.array(~hidden)) if count else rows)
        return self._unverified_left >= 0

    def _may_be_hidden(self, source: RowSource, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return which rows of `source` another one may have a newer version of."""
        elsewhere = self._cover.newest_elsewhere(source, rows.column(0))
        hidden: npt.NDArray[np.bool_] = rows.column(1).to_numpy() < elsewhere
        return hidden

    @cached_property
    def _cover(self) -> Cover:
        return Cover(self._state.sources, self._lsn)

    def rows(self, layout: pa.Schema) -> pa.RecordBatch:
        """Return the rows that nothing hides, sorted by key."""
        certain = self._certain
        if self._unverified:
            unverified = pa.concat_batches(self._unverified)
            is_newest = are_newest(self._state, self._lsn, unverified)
            certain.append(unverified.filter(pa.array(is_newest)))
        if not certain:
            return pa.RecordBatch.from_pylist([], schema=layout)
        rows = pa.concat_batches(certain)
        return rows.take(pc.array_sort_indices(rows.column(0)))
