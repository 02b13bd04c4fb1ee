"""The change feed: one row for each committed operation, in the order of commits.

Rows have the columns `_key`, `_lsn`, `_tombstone`, `_committed_at`, then those asked for. Void
objects are in no feed. An attach object's rows are those of its segments, at its version, in order
of keys. With the before image, `_existed` says whether there was a row, and `_before` holds its
columns.

Columns are found by name: what a row was written without is null, and what is not asked for is left
out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reef.context import Context
from reef.engine._feed._before import with_before
from reef.engine._feed._feed_log import FeedLog
from reef.engine._feed._position import KnownPositions, Position
from reef.engine._handle import Handle
from reef.engine._read._view import View
from reef.errors import InvalidInputError, NotFoundError, RetentionError
from reef.format import KEY, LSN, TOMBSTONE, LogKind, Prev, SegmentRef
from reef.log import LogEntry
from reef.segment import align
from reef.types import LSN_MAX

BATCH_ROWS_MAX = 1 << 16
BATCH_BYTES_MAX = 8 << 20

OP = "_op"
COMMITTED_AT = "_committed_at"
_TIME = pa.timestamp("us", tz="UTC")


def feed_schema(columns: Sequence[pa.Field]) -> pa.Schema:
    """Return the schema of changes that carry `columns`."""
    return pa.schema(
        [
            pa.field(KEY, pa.binary(), nullable=False),
            pa.field(LSN, pa.int64(), nullable=False),
            pa.field(TOMBSTONE, pa.bool_(), nullable=False),
            pa.field(COMMITTED_AT, _TIME),
            *(field.with_nullable(True) for field in columns),
        ]
    )


def operations(tombstones: pa.Array) -> pa.Array:
    """Return what each change did: "upsert" or "delete"."""
    return pc.if_else(tombstones, "delete", "upsert")


def changes_of(
    handle: Handle,
    context: Context,
    known_positions: KnownPositions,
    columns: Sequence[pa.Field],
    *,
    after: int | None,
    upto: int | None,
    before: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield what was committed after version `after`, up to `upto`, as an open namespace sees it.

    Without `after`, from the oldest that the log has; without `upto`, up to the newest version as
    of this call.
    """
    newest = handle.newest_lsn()
    for asked in (after, upto):
        if asked is not None and asked > newest:
            handle.catch_up(asked)  # raises what says that it is not there yet
    last = newest if upto is None else upto
    if after is not None and after >= last:
        return iter(())
    chain = handle._chain
    log = FeedLog(context, handle.namespace, chain=chain, known_positions=known_positions)
    feed = Feed(context, handle.namespace, log=log, at_lsn=handle.at_lsn)
    place = log.earliest() if after is None else log.after(after)
    return feed.changes(place, last, columns, before=before)


class Feed:
    """The changes of one namespace, as rows with the requested columns."""

    def __init__(
        self,
        context: Context,
        namespace: str,
        *,
        log: FeedLog | None = None,
        at_lsn: Callable[[int], View] | None = None,
    ) -> None:
        """`at_lsn` returns views of the past, for before images."""
        self.log = log or FeedLog(context, namespace)
        self._segments = context.segments(namespace)
        self._at_lsn = at_lsn

    def changes(
        self,
        position: Position,
        upto: int,
        columns: Sequence[pa.Field],
        *,
        before: bool = False,
        leads_to: Prev | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield what was committed behind `position`, up to version `upto`, which must be visible.

        A batch has about 65,536 rows or 8 MiB, and ends within a version only where that is a large
        bulk load. Raises
        RetentionError if a log object, an attached segment or a before image is not kept any more.
        """
        entries = self.log.entries(position, upto, leads_to=leads_to)
        rows = self._rows(entries, position.lsn, upto, feed_schema(columns))
        return self._with_before(rows, columns) if before else rows

    def attached(
        self,
        refs: Sequence[SegmentRef],
        created_at_us: int,
        columns: Sequence[pa.Field],
        *,
        before: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of segments that one log object attaches, as `changes` does."""
        rows = self._attached(refs, created_at_us, feed_schema(columns))
        return self._with_before(rows, columns) if before else rows

    def _rows(
        self, entries: Iterator[LogEntry], after: int, upto: int, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        gathered = _FeedBatch(schema)
        for entry in entries:
            if entry.log.kind is LogKind.ATTACH:
                yield from gathered.take()
            for record in entry.log.records:
                if not after < record.lsn <= upto:
                    continue
                if record.segments:
                    yield from self._attached(record.segments, entry.log.created_at_us, schema)
                elif record.batch is not None:
                    gathered.add(record.batch, record.lsn, entry.log.created_at_us)
                    if gathered.is_full:
                        yield from gathered.take()
        yield from gathered.take()

    def _attached(
        self, refs: Sequence[SegmentRef], created_at_us: int, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of segments of one version; no key is in two of them."""
        gathered = _FeedBatch(schema)
        names = schema.names[4:]
        for ref in sorted(refs, key=lambda ref: ref.key_min):
            source = self._segments.open(ref)
            try:
                for rows in source.batches(b"", None, columns=names, reverse=False, lsn=LSN_MAX):
                    gathered.add(rows, source.lsn_max, created_at_us)
                    if gathered.is_full:
                        yield from gathered.take()
            except NotFoundError as error:
                raise RetentionError(
                    f"rows that LSN {source.lsn_max} attached are gone: {error}. They were compacted "
                    f"and collected: start from a snapshot, or after LSN "
                    f"{source.lsn_max}"
                ) from error
        yield from gathered.take()

    def _with_before(
        self, batches: Iterator[pa.RecordBatch], columns: Sequence[pa.Field]
    ) -> Iterator[pa.RecordBatch]:
        if self._at_lsn is None:
            raise InvalidInputError(
                "this feed has no before-images: open the namespace and call its "
                "changes(before_image=True)"
            )
        for batch in batches:
            yield with_before(batch, columns, self._at_lsn)


class _FeedBatch:
    """Gathers rows of several operations into one batch."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._layout = pa.schema(
            [
                schema.field(KEY),
                schema.field(TOMBSTONE),
                *(schema.field(n) for n in schema.names[4:]),
            ]
        )
        self._clear()

    def _clear(self) -> None:
        self._parts: list[pa.RecordBatch] = []
        self._lsns: list[int] = []
        self._times: list[int] = []
        self._rows = 0
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return self._rows >= BATCH_ROWS_MAX or self._bytes >= BATCH_BYTES_MAX

    def add(self, rows: pa.RecordBatch, lsn: int, created_at_us: int) -> None:
        """Take the rows of one operation."""
        self._parts.append(align(rows, self._layout))
        self._lsns.append(lsn)
        self._times.append(created_at_us)
        self._rows += rows.num_rows
        self._bytes += self._parts[-1].nbytes

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield the batch, if it has rows, and start a new one."""
        if self._rows:
            counts = [part.num_rows for part in self._parts]
            rows = pa.concat_batches(self._parts) if len(self._parts) > 1 else self._parts[0]
            times = pa.array(np.repeat(np.array(self._times, np.int64), counts)).cast(_TIME)
            arrays = [
                rows.column(0),
                pa.array(np.repeat(np.array(self._lsns, np.int64), counts)),
                rows.column(1),
                times,
                *rows.columns[2:],
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._clear()
