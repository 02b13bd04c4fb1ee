"""All versions of several segments in one order: what a compaction reads.

The merge works in rounds, as that of reads does, on some blocks of each source at a time. A position
is a key and an LSN, in the order of segments: keys ascending, for each key from the newest version to
the oldest. What lies at or before the least of the sources' last positions is complete: whatever comes
later from any of them lies behind it. So those rows are put in order and given out; nothing is
dropped, tombstones neither.

Blocks that lie before the rows of every other source go through as they are: no sort, no copy. A source
is asked for its first block only when the merge reaches its keys, so segments that follow upon each
other cost what one of them costs; those that begin among the rows of a round are entered with it, as
long as they are small: many that each ended a round would cost the square of their number. Memory
holds `PIECE_BYTES` or a block of each source that is open, what its scan reads ahead, and the rows of
one round twice more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from reef.format import KEY, LSN, segment_schema
from reef.segment._read._segment_source import SegmentSource
from reef.segment._row_columns import align, union
from reef.types import LSN_MAX

PIECE_BYTES = 1 << 20
_SYSTEM = 3  # _key, _lsn, _tombstone
_ORDER = [(KEY, "ascending"), (LSN, "descending")]

_Position: TypeAlias = tuple[bytes, int]
"""A key and the negative of an LSN: they compare in the order of segments."""


def merge_versions(
    sources: Sequence[SegmentSource],
    *,
    start: bytes,
    end: bytes | None,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield every version from key `start` up to `end`, sorted by key, then from new to old.

    All batches have the columns of `versions_schema`. `end` None is past every key. Raises
    NotFoundError, UnavailableError, DamagedError.
    """
    inside = [
        source
        for source in sources
        if source.key_max >= start and (end is None or source.key_min < end)
    ]
    merging = _VersionMerge(inside, start, end, versions_schema(sources, columns))
    return (rows for rows in merging.rounds() if rows.num_rows)


def versions_schema(
    sources: Sequence[SegmentSource], columns: Sequence[str] | None = None
) -> pa.Schema:
    """Return the columns of segments together, those of `columns` if given, from their tails.

    If segments differ, the newest one decides, and every column may be null.
    """
    fields: list[pa.Field] = []
    for source in sorted(sources, key=lambda source: source.lsn_max):
        fields = union(list(source.tail().schema)[_SYSTEM:], fields)
    if columns is not None:
        known = {field.name: field for field in fields}
        fields = [known[name] for name in dict.fromkeys(columns) if name in known]
    return segment_schema(fields)


class _BatchRead(NamedTuple):
    """Rows in memory, their last position, and their bytes."""

    rows: pa.RecordBatch
    last: _Position
    nbytes: int


class _BatchQueue:
    """The rows of one source that come next: whole batches, and the rest of one in front."""

    def __init__(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
        self._batches = batches
        self._schema = schema
        self._batches_read: deque[_BatchRead] = deque()
        self.nbytes_read = 0
        self.is_ended = False
        self.first: _Position = (b"", 0)

    @property
    def last(self) -> _Position:
        """The last position of the rows in memory."""
        return self._batches_read[-1].last

    def fill(self) -> bool:
        """Fetch a piece, or the rest. Return False if there are no more rows."""
        while self.nbytes_read < PIECE_BYTES and not self.is_ended:
            batch = next(self._batches, None)
            if batch is None:
                self.is_ended = True
            elif batch.num_rows:
                nbytes = pa.ipc.get_record_batch_size(batch)
                last = _position(batch, batch.num_rows - 1)
                self._batches_read.append(_BatchRead(align(batch, self._schema), last, nbytes))
                self.nbytes_read += nbytes
        if self._batches_read:
            self.first = _position(self._batches_read[0].rows, 0)
        return bool(self._batches_read)

    def whole_before(self, bound: _Position | None) -> Iterator[pa.RecordBatch]:
        """Remove and return the batches that lie wholly before `bound` (None: all of them)."""
        while self._batches_read and (bound is None or self._batches_read[0].last < bound):
            yield self._taken()

    def through(self, bound: _Position | None) -> Iterator[pa.RecordBatch]:
        """Remove and return the rows at or before `bound` (None: all of them)."""
        while self._batches_read and (bound is None or self._batches_read[0].last <= bound):
            yield self._taken()
        if not self._batches_read or bound is None or bound < self.first:
            return
        rows, last, nbytes = self._batches_read[0]
        count = bisect_left(range(rows.num_rows), True, key=lambda i: _position(rows, i) > bound)
        if count:
            left = nbytes * (rows.num_rows - count) // rows.num_rows
            self._batches_read[0] = _BatchRead(rows.slice(count), last, left)
            self.nbytes_read -= nbytes - left
            yield rows.slice(0, count)

    def _taken(self) -> pa.RecordBatch:
        first = self._batches_read.popleft()
        self.nbytes_read -= first.nbytes
        return first.rows


class _VersionMerge:
    """The sources in the merge, and those not reached yet."""

    def __init__(
        self, sources: Sequence[SegmentSource], start: bytes, end: bytes | None, schema: pa.Schema
    ) -> None:
        # The next source to reach is at the end.
        self._waiting = sorted(sources, key=lambda source: source.key_min, reverse=True)
        self._start, self._end = start, end
        self._schema = schema
        self._names = schema.names[_SYSTEM:]
        self._queues: list[_BatchQueue] = []

    def rounds(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each round, in order."""
        while True:
            self._queues = [queue for queue in self._queues if queue.fill()]
            self._reach()
            if not self._queues:
                return
            leading = min(self._queues, key=lambda queue: queue.first)
            others = [queue.first for queue in self._queues if queue is not leading]
            alone = list(leading.whole_before(self._before_waiting(others)))
            if alone:
                yield from alone
                continue
            self._look_ahead()
            bound = self._before_waiting(
                [queue.last for queue in self._queues if not queue.is_ended]
            )
            parts = [part for queue in self._queues for part in queue.through(bound)]
            if len(parts) == 1:
                yield parts[0]
            else:
                rows = pa.concat_batches(parts)
                yield rows.take(pc.sort_indices(rows, sort_keys=_ORDER))

    def _reach(self) -> None:
        """Enter the sources whose keys begin at or before the first row at hand."""
        first = min((queue.first for queue in self._queues), default=None)
        while self._waiting and (first is None or self._waiting[-1].key_min <= first[0]):
            queue = self._enter()
            if queue is not None:
                first = queue.first if first is None else min(first, queue.first)

    def _look_ahead(self) -> None:
        """Also enter sources that begin among the rows of this round, as long as they are small.

        Each of them would end a round, and a round costs a step for every source that is open.
        """
        open_ends = [queue.last for queue in self._queues if not queue.is_ended]
        end = min(open_ends) if open_ends else max(queue.last for queue in self._queues)
        left = PIECE_BYTES
        while left > 0 and self._waiting and self._waiting[-1].key_min <= end[0]:
            queue = self._enter()
            if queue is not None:
                left -= queue.nbytes_read
                if not queue.is_ended:
                    end = min(end, queue.last)

    def _enter(self) -> _BatchQueue | None:
        """Open the next source; return None if it has no rows."""
        source = self._waiting.pop()
        batches = source.batches(
            self._start, self._end, columns=self._names, reverse=False, lsn=LSN_MAX
        )
        queue = _BatchQueue(batches, self._schema)
        if not queue.fill():
            return None
        self._queues.append(queue)
        return queue

    def _before_waiting(self, positions: list[_Position]) -> _Position | None:
        """Return the least of some positions and of the first one of the next source."""
        if self._waiting:
            positions = [*positions, (self._waiting[-1].key_min, -LSN_MAX - 1)]
        return min(positions, default=None)


def _position(batch: pa.RecordBatch, row: int) -> _Position:
    return batch.column(0)[row].as_py(), -batch.column(1)[row].as_py()
