"""The task of a bulk load: one range of keys, in order, becomes segments of about the target size.

Each attempt writes segments with names of its own. Nothing names them before the load is committed with
those that came back; collection takes the others once the intent of the load has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa

from reef.engine import Context
from reef.format import SegmentOptions, SegmentOrigin, SegmentRef
from reef.jobs._job import new_segment_id
from reef.jobs.load._load_plan import LoadPlan
from reef.segment import UniqueKeys, align, write_segment

_LEVEL = 1  # parts of one sorted run, without keys in common
_PIECE_BYTES_MAX = 1 << 20


class LoadedPart(msgspec.Struct, frozen=True, kw_only=True):
    """What a task has written. Nothing names it yet."""

    segments: tuple[SegmentRef, ...]
    rows: int
    bytes: int
    dropped: int
    """Rows that a later one of the same key replaced."""


def write_part(context: Context, plan: LoadPlan, batches: Iterable[pa.RecordBatch]) -> LoadedPart:
    """Write one range of keys as segments of about `target_bytes`; a task of a load.

    `batches` have the columns of segments (`_key`, `_lsn`, `_tombstone`, then those of the face; missing
    ones are null), in order of keys. They are used as they come, in bounded memory. Raises
    InvalidInputError, which names an id that comes twice or out of order, and UnavailableError: what was
    uploaded stays unnamed then.
    """
    schema = plan.row_schema
    unique = UniqueKeys(plan.duplicates)
    aligned = (align(batch, schema) for batch in batches)
    portions = _SegmentCutter(unique.batches(aligned), plan.target_bytes)
    options = SegmentOptions(codec=plan.codec, row_block_bytes=context.settings.row_block_bytes)
    segments: list[SegmentRef] = []
    while portions.has_more():
        origin = SegmentOrigin(
            id=new_segment_id(context, plan.job),
            namespace=plan.namespace,
            level=_LEVEL,
            author=context.author,
            created_at_us=context.clock.now_us(),
        )
        rows = portions.take()
        ref = write_segment(context.store, plan.namespace, schema, origin, options, rows)
        portions.wrote(ref.size)
        segments.append(ref)
    return LoadedPart(
        segments=tuple(segments),
        rows=sum(ref.rows for ref in segments),
        bytes=sum(ref.size for ref in segments),
        dropped=unique.dropped,
    )


class _SegmentCutter:
    """Cuts a stream of batches so that each portion makes a segment of about the target size."""

    def __init__(self, batches: Iterator[pa.RecordBatch], target_bytes: int) -> None:
        self._target_bytes = target_bytes
        self._pieces = self._cut(batches)
        self._next: tuple[pa.RecordBatch, float] | None = None
        self._taken_bytes = 0.0
        self._shrinks = 1.0  # size of the last segment, as a share of its rows' size in memory

    def has_more(self) -> bool:
        """Return whether there are rows left."""
        if self._next is None:
            self._next = next(self._pieces, None)
        return self._next is not None

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the next segment."""
        self._taken_bytes = 0.0
        while self.has_more() and self._taken_bytes * self._shrinks < self._target_bytes:
            assert self._next is not None
            rows, nbytes = self._next
            self._next = None
            self._taken_bytes += nbytes
            yield rows

    def wrote(self, size: int) -> None:
        """Take note of how large the last segment became."""
        self._shrinks = size / max(1.0, self._taken_bytes)

    def _cut(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, float]]:
        piece_bytes = min(_PIECE_BYTES_MAX, self._target_bytes)
        for batch in batches:
            if not batch.num_rows:
                continue
            row_bytes = max(1.0, batch.nbytes / batch.num_rows)
            step = max(1, int(piece_bytes / row_bytes))
            for first in range(0, batch.num_rows, step):
                rows = batch.slice(first, step)
                yield rows, row_bytes * rows.num_rows
