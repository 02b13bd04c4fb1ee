"""Ordered reads of a segment: portions of blocks, one ahead, no copies and no loop over rows.

A portion is what one request, or a few side by side, brings: 1 MiB at first, then up to 8 MiB. The
next one is on its way while the current one is consumed, where the store has threads; where it has
none, requests take no time to speak of, and portions end at 2 MiB: their memory is used again soon.
Blocks that are in memory are used. A scan keeps its own there if they are no more than a sixteenth
of the cache, or fit into what is unused of it: more would push out what point reads use. Blocks that
are not kept are slices of their portion.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reef.errors import DamagedError
from reef.format import KEY, LSN, TOMBSTONE
from reef.segment._read._block import ColumnBlock, RowBlock, TailEntry
from reef.segment._read._fetch import detached, fetch, fetch_ahead
from reef.segment._read._loader import Loader, Wanted
from reef.segment._row_source import Clip, Prune

PORTION_BYTES_MIN = 1 << 20
PORTION_BYTES_MAX = 8 << 20
_GROWTH = 2  # of a block in memory against its bytes in the file, roughly
_SYSTEM = (KEY, LSN, TOMBSTONE)


def scan(
    loader: Loader,
    clipped: Clip,
    start: bytes,
    end: bytes | None,
    *,
    columns: Sequence[str] | None,
    reverse: bool,
    lsn: int,
    prune: Prune | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a segment from key `start` up to `end`, as `RowSource.batches` says."""
    start = max(start, clipped.key_min)
    end = clipped.key_end if end is None else min(end, clipped.key_end)
    file_lsn = clipped.file_lsn(lsn)
    if start >= end or not file_lsn:
        return
    entry = loader.tail(clipped)
    layout = _ScanColumns(entry, clipped.ref.version, columns)
    first, last = bisect_left(entry.key_last, start), bisect_left(entry.key_first, end)
    numbers = [n for n in range(first, last) if entry.lsn_min[n] <= file_lsn]
    if prune is not None and numbers:
        worth = prune(entry.tail.row_index, entry.tail.schema.names)
        numbers = [n for n in numbers if worth[n]]
    if not numbers:
        return
    if reverse:
        numbers.reverse()
    reading = _BlockReads(loader, entry, layout.wide, numbers)
    blocks = (_block_rows(reading, layout, number, start, end) for number in reading)
    if reverse:
        yield from _in_reverse(entry, numbers, blocks, file_lsn)
        return
    for number, pieces in zip(numbers, blocks, strict=True):
        for piece in pieces:
            # A clip is a promise; other versions above the LSN asked for are left to the merge.
            if clipped.ref.clip_lsn is not None and entry.lsn_max[number] > file_lsn:
                piece = piece.filter(pc.less_equal(piece.column(1), file_lsn))
            if piece.num_rows:
                yield piece


class _ScanColumns:
    """The columns of a scan, and how they are put together."""

    def __init__(
        self, entry: TailEntry, version: int | None, columns: Sequence[str] | None
    ) -> None:
        schema = entry.tail.schema
        own = schema.names[3:]
        asked = own if columns is None else [*dict.fromkeys(columns)]
        self._names = [name for name in asked if name in own]
        self.wide = [name for name in self._names if name in entry.wide]
        self._schema = pa.schema([schema.field(name) for name in (*_SYSTEM, *self._names)])
        self._version = version
        narrow = [name for name in own if name not in entry.wide]
        self._is_whole = version is None and self._names == narrow

    def make(self, rows: pa.RecordBatch, values: Mapping[str, pa.Array]) -> pa.RecordBatch:
        """Return the batch to yield, from narrow columns and the values of wide ones."""
        if self._is_whole:
            return rows
        lsns = rows.column(1)
        if self._version is not None:
            lsns = pa.array(np.full(rows.num_rows, self._version, np.int64))
        payload = [values[n] if n in values else rows.column(n) for n in self._names]
        return pa.RecordBatch.from_arrays(
            [rows.column(0), lsns, rows.column(2), *payload], schema=self._schema
        )


def _block_rows(
    reading: _BlockReads, layout: _ScanColumns, number: int, start: bytes, end: bytes
) -> list[pa.RecordBatch]:
    """Return the rows of a block with keys from `start` up to `end`, cut where wide blocks are."""
    entry = reading.entry
    is_cut = entry.key_first[number] < start or entry.key_last[number] >= end
    batch, keys = reading.rows(number, with_keys=is_cut)
    low, high = 0, batch.num_rows
    if is_cut:
        low, high = _rows_below(batch, keys, start), _rows_below(batch, keys, end)
    if not layout.wide:
        whole = low == 0 and high == batch.num_rows
        return [layout.make(batch if whole else batch.slice(low, high - low), {})]
    row = int(entry.tail.row_places.row[number])
    cuts = {row + low, row + high}
    for column in layout.wide:
        starts = entry.tail.column_places[column].row
        cuts.update(starts[(starts > row + low) & (starts < row + high)].tolist())
    edges = sorted(cuts)
    return [
        layout.make(
            batch.slice(a - row, b - a),
            {column: reading.values(column, a, b - a) for column in layout.wide},
        )
        for a, b in pairwise(edges)
    ]


def _rows_below(batch: pa.RecordBatch, keys: list[bytes] | None, key: bytes) -> int:
    """Return how many rows have keys below `key`."""
    if keys is not None:
        return bisect_left(keys, key)
    below: int = pc.less(batch.column(0), pa.scalar(key, pa.binary())).true_count
    return below


class _Portion(NamedTuple):
    """Blocks that are read together, and the pending request for those not in memory."""

    wanted: Sequence[Wanted]
    missing: Sequence[Wanted]
    come: Callable[[], list[pa.Buffer]]


class _BlockReads:
    """The blocks of a scan: iterating yields their numbers, each when its bytes are there."""

    def __init__(
        self, loader: Loader, entry: TailEntry, wide: Sequence[str], numbers: Sequence[int]
    ) -> None:
        self.entry = entry
        self._loader = loader
        self._wide = wide
        sizes = self._sizes(numbers)
        is_local = loader.store.concurrency == 1
        ends = _portion_ends(sizes, PORTION_BYTES_MAX // 4 if is_local else PORTION_BYTES_MAX)
        self._portions = [numbers[a:b] for a, b in pairwise([0, *ends])]
        cache = loader.cache
        room = max(cache.capacity_bytes // 16, (cache.capacity_bytes - cache.nbytes) // _GROWTH)
        self._keeps = bool(sizes.sum() <= room)
        self._cached: dict[Wanted, RowBlock | ColumnBlock] = {}
        self._data: dict[Wanted, pa.Buffer] = {}
        self._values: dict[Wanted, pa.Array] = {}

    def __iter__(self) -> Iterator[int]:
        ahead: _Portion | None = None
        for i, numbers in enumerate(self._portions):
            portion = ahead or self._begin(numbers, ())
            ahead = None
            if i + 1 < len(self._portions):
                ahead = self._begin(self._portions[i + 1], portion.wanted)
            self._data.update(zip(portion.missing, self._arrived(portion), strict=True))
            yield from numbers
            # A block of a wide column may go on in the next portion; nothing else does.
            self._forget_all_but({*ahead.wanted} if ahead else set())

    def _forget_all_but(self, wanted: set[Wanted]) -> None:
        for held in (self._cached, self._data, self._values):
            for want in [want for want in held if want not in wanted]:
                del held[want]

    def rows(self, number: int, *, with_keys: bool) -> tuple[pa.RecordBatch, list[bytes] | None]:
        """Return the narrow columns of a row block; a list of its keys if it was in the cache."""
        want = Wanted(self.entry, number)
        block = self._cached.pop(want, None)
        if isinstance(block, RowBlock):  # read again: a list is worth making
            return block.batch, self._loader.keys(want, block) if with_keys else None
        data = self._data.pop(want)
        if not self._keeps:
            return self._loader.decode(want, data), None
        batch = self._loader.decode(want, detached(data))
        self._loader.keep(want, batch)
        return batch, None

    def values(self, column: str, row: int, rows: int) -> pa.Array:
        """Return values of a wide column, all of which lie in one block."""
        places = self.entry.tail.column_places[column]
        number = places.of_rows(row, rows)[0]
        want = Wanted(self.entry, number, column)
        found = self._values.get(want)
        if found is None:
            block = self._cached.pop(want, None)
            if isinstance(block, ColumnBlock):
                found = block.values
            else:
                data = self._data.pop(want)
                found = self._loader.decode(want, detached(data) if self._keeps else data)
                if self._keeps:
                    self._loader.keep(want, found)
            self._values[want] = found
        return found.slice(row - int(places.row[number]), rows)

    def _begin(self, numbers: Sequence[int], on_the_way: Sequence[Wanted]) -> _Portion:
        """Find out where the blocks of a portion are, and request those that are in no cache."""
        wanted = self._wanted(numbers)
        known = set(on_the_way)
        missing: list[Wanted] = []
        for want in wanted:
            if want in known:
                continue
            block = self._loader.cache.use("block", want.cache_key)
            if block is not None:
                self._cached[want] = block
            elif (data := self._loader.on_disk(want)) is not None:
                self._data[want] = data
            else:
                missing.append(want)
        extents = [want.extent for want in missing]
        return _Portion(wanted, missing, fetch_ahead(self._loader.store, extents))

    def _arrived(self, portion: _Portion) -> list[pa.Buffer]:
        try:
            return portion.come()
        except DamagedError:
            return fetch(self._loader.store, [want.extent for want in portion.missing])

    def _wanted(self, numbers: Sequence[int]) -> list[Wanted]:
        """Return the row blocks, and the blocks of wide columns that hold the same rows."""
        wanted = [Wanted(self.entry, number) for number in numbers]
        rows = self.entry.tail.row_places
        for column in self._wide:
            places = self.entry.tail.column_places[column]
            blocks = dict.fromkeys(
                block
                for number in numbers
                for block in places.of_rows(int(rows.row[number]), int(rows.rows[number]))
            )
            wanted += [Wanted(self.entry, block, column) for block in blocks]
        return wanted

    def _sizes(self, numbers: Sequence[int]) -> npt.NDArray[np.float64]:
        """Return about how many bytes are to be read for each row block."""
        tail = self.entry.tail
        rows = tail.row_places.rows[numbers]
        sizes: npt.NDArray[np.float64] = tail.row_places.length[numbers].astype(np.float64)
        for column in self._wide:
            sizes += rows * (tail.column_places[column].length.sum() / tail.footer.rows)
        return sizes


def _portion_ends(sizes: npt.NDArray[np.float64], bytes_max: int) -> list[int]:
    """Return where portions end that grow up to `bytes_max`, each of one block at least."""
    so_far = np.cumsum(sizes)
    ends: list[int] = []
    at, most = 0, PORTION_BYTES_MIN
    while at < len(sizes):
        before = so_far[at - 1] if at else 0
        at = max(at + 1, int(np.searchsorted(so_far, before + most, side="right")))
        ends.append(at)
        most = min(2 * most, bytes_max)
    return ends


def _reversed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return sorted rows with their keys in descending order; each key's rows stay as they are."""
    keys = batch.column(0)
    count = batch.num_rows
    is_new = pc.not_equal(keys.slice(1), keys.slice(0, max(count - 1, 0)))
    if is_new.true_count == len(is_new):
        order = np.arange(count - 1, -1, -1)
    else:
        group = np.append(0, np.cumsum(is_new.to_numpy(zero_copy_only=False)))
        order = np.argsort(-group, kind="stable")
    return batch.take(pa.array(order))


def _in_reverse(
    entry: TailEntry,
    numbers: list[int],
    blocks: Iterable[list[pa.RecordBatch]],
    file_lsn: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of blocks, given from the last to the first, in reverse.

    Versions above `file_lsn` are left out. The versions of a key may go on from block to block: they wait
    in memory until the block comes in which they begin.
    """
    waiting: list[pa.RecordBatch] = []
    for i, (number, pieces) in enumerate(zip(numbers, blocks, strict=True)):
        if entry.lsn_max[number] > file_lsn:
            pieces = [piece.filter(pc.less_equal(piece.column(1), file_lsn)) for piece in pieces]
        waiting = [*pieces, *waiting]
        key = entry.key_first[number]
        goes_on = i + 1 < len(numbers) and entry.key_last[numbers[i + 1]] == key
        if goes_on and entry.key_last[number] == key:
            continue  # nothing but versions of one key
        if not waiting:
            continue
        rows = pa.concat_batches(waiting) if len(waiting) > 1 else waiting[0]
        waiting = []
        if goes_on:
            head = pc.equal(rows.column(0), pa.scalar(key, pa.binary())).true_count
            waiting, rows = [rows.slice(0, head)], rows.slice(head)
        if rows.num_rows:
            yield _reversed(rows)
