"""A piece of the feed in parts that can be read side by side, and the rows of one part. No Spark.

Parts are runs of log objects of about equal size, planned from headers. Each carries how it enters
the chain and what it must lead to, so that a task decides what is valid as everybody does. What is
attached is read segment by segment. A snapshot is read by key ranges.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock

import pyarrow as pa

from reef.engine import (
    BEFORE,
    COMMITTED_AT,
    EXISTED,
    OP,
    Face,
    Feed,
    FeedLog,
    Position,
    Reader,
    open_for_reading,
    operations,
)
from reef.errors import SnapshotExpiredError
from reef.format import KEY, LSN, TOMBSTONE, LogKind, Prev, SegmentRef
from reef.spark.source._read_options import NamespaceRef
from reef.spark.source._read_version import ReadVersion, open_version, version_expired
from reef.spark.source._scan_plan import ScanRange
from reef.spark.source._spark_columns import Column, spark_batch

_READERS_MAX = 4


@dataclass(frozen=True)
class FeedPart:
    """The operations behind `start`, up to version `upto`."""

    start: Position
    upto: int
    leads_to: Prev | None


@dataclass(frozen=True)
class AttachedPart:
    """Segments that one operation attached."""

    refs: tuple[SegmentRef, ...]
    created_at_us: int


@dataclass(frozen=True)
class SnapshotPart:
    """Keys of a snapshot."""

    version: ReadVersion
    keys: ScanRange


Part = FeedPart | AttachedPart | SnapshotPart


def plan_log(log: FeedLog, start: Position, end: Position, part_bytes: int) -> list[Part]:
    """Return the parts between two positions, in order: the same ones at every call.

    Raises RetentionError if some of it was collected.
    """
    if start.lsn >= end.lsn:
        return []
    links = log.course(start, end.point.slot)
    if links is None:
        return [FeedPart(start, end.lsn, end.point.prev)]
    after = [link.before.prev for link in links[1:]] + [end.point.prev]
    parts: list[Part] = []
    first: Position | None = None  # where the last part began, if it may go on
    lsn, size = start.lsn, 0
    for link, leads_to in zip(links, after, strict=True):
        header = link.header
        if header.lsn_last <= start.lsn:
            continue
        position = Position(lsn, header.slot, link.before)
        lsn = header.lsn_last
        if header.kind is LogKind.ATTACH:
            parts += _attached_parts(log, position, lsn, leads_to, part_bytes)
            first = None
        elif first is None or size + header.size > part_bytes:
            first, size = position, header.size
            parts.append(FeedPart(first, lsn, leads_to))
        else:
            size += header.size
            parts[-1] = FeedPart(first, lsn, leads_to)
    return parts


def _attached_parts(
    log: FeedLog, position: Position, lsn: int, leads_to: Prev, part_bytes: int
) -> Iterator[AttachedPart]:
    for entry in log.entries(position, lsn, leads_to=leads_to):
        for record in entry.log.records:
            refs = sorted(record.segments, key=lambda ref: ref.key_min)
            for group in _groups(refs, part_bytes):
                yield AttachedPart(group, entry.log.created_at_us)


def _groups(refs: Sequence[SegmentRef], most_bytes: int) -> Iterator[tuple[SegmentRef, ...]]:
    group: list[SegmentRef] = []
    for ref in refs:
        if group and sum(one.size for one in group) + ref.size > most_bytes:
            yield tuple(group)
            group = []
        group.append(ref)
    if group:
        yield tuple(group)


@dataclass(frozen=True)
class StreamShape:
    """What the rows of a stream look like: settled when it starts."""

    ref: NamespaceRef
    face: str
    columns: tuple[Column, ...]
    """Those that the stream's rows have, beside the feed's own."""
    layout: pa.Schema
    """Exactly what Spark gets."""

    @property
    def has_before(self) -> bool:
        return BEFORE in self.layout.names

    def stored(self) -> list[pa.Field]:
        """Return the columns to read, as they are stored."""
        return [
            pa.field(column.stored, pa.binary() if column.type is None else column.type.physical)
            for column in self._needed
            if column.stored != KEY
        ]

    @property
    def _needed(self) -> tuple[Column, ...]:
        return tuple({c.stored: c for c in (*self.columns, *self.before)}.values())

    @property
    def before(self) -> tuple[Column, ...]:
        """The columns of the before image."""
        if not self.has_before:
            return ()
        named = {column.name: column for column in self.columns}
        return tuple(named[field.name] for field in self.layout.field(BEFORE).type)

    def given(self, rows: pa.RecordBatch, op: pa.Array) -> pa.RecordBatch:
        """Return rows of the feed as Spark gets them."""
        own = {OP: op, LSN: rows.column(LSN), COMMITTED_AT: rows.column(COMMITTED_AT)}
        if self.has_before:
            own[BEFORE] = self._before(rows)
        named = {column.name: column for column in self.columns}
        plain = [name for name in self.layout.names if name not in own]
        layout = pa.schema([self.layout.field(name) for name in plain])
        if plain:
            found = spark_batch(rows, tuple(named[name] for name in plain), layout)
            own.update(zip(plain, found.columns, strict=True))
        arrays = [own[field.name].cast(field.type) for field in self.layout]
        return pa.RecordBatch.from_arrays(arrays, schema=self.layout)

    def _before(self, rows: pa.RecordBatch) -> pa.Array:
        kind = self.layout.field(BEFORE).type
        if BEFORE not in rows.schema.names:  # of a snapshot
            return pa.nulls(rows.num_rows, kind)
        before = rows.column(BEFORE)
        stored = [KEY, *(field.name for field in before.type)]
        batch = pa.RecordBatch.from_arrays([rows.column(KEY), *before.flatten()], names=stored)
        existed = rows.column(EXISTED).to_numpy(zero_copy_only=False)
        layout = pa.schema([kind.field(i) for i in range(kind.num_fields)])
        columns = spark_batch(batch, self.before, layout).columns
        return pa.StructArray.from_arrays(columns, fields=list(layout), mask=pa.array(~existed))


def read_part(part: Part, shape: StreamShape) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part. Raises RetentionError, SnapshotExpiredError, UnavailableError."""
    if isinstance(part, SnapshotPart):
        yield from _of_snapshot(part, shape)
        return
    context = shape.ref.bucket.open()
    at_lsn = _reader(shape).at_lsn if shape.has_before else None
    feed = Feed(context, shape.ref.namespace, at_lsn=at_lsn)
    stored, before = shape.stored(), shape.has_before
    if isinstance(part, FeedPart):
        rows = feed.changes(part.start, part.upto, stored, before=before, leads_to=part.leads_to)
    else:
        rows = feed.attached(part.refs, part.created_at_us, stored, before=before)
    for batch in rows:
        yield shape.given(batch, operations(batch.column(TOMBSTONE)))


def _of_snapshot(part: SnapshotPart, shape: StreamShape) -> Iterator[pa.RecordBatch]:
    names = [field.name for field in shape.stored()]
    view = open_version(part.version).view()
    try:
        for rows in view.scan(
            start=part.keys.start, end=part.keys.end, columns=names, ordered=False
        ):
            times = pa.nulls(rows.num_rows, pa.timestamp("us", tz="UTC"))
            timed = rows.append_column(COMMITTED_AT, times)
            yield shape.given(timed, pa.repeat("snapshot", rows.num_rows))
    except SnapshotExpiredError as error:
        raise version_expired(part.version, error) from error


_readers: OrderedDict[tuple[object, ...], Reader] = OrderedDict()
_readers_lock = Lock()


def _reader(shape: StreamShape) -> Reader:
    """Return a reader of the namespace, the same each time within one process."""
    context = shape.ref.bucket.open()
    key = (os.getpid(), id(context), shape.ref.namespace)
    with _readers_lock:
        if key not in _readers:
            face = Face(shape.face, pa.schema([]))
            _readers[key] = open_for_reading(context, shape.ref.namespace, face)
            while len(_readers) > _READERS_MAX:
                _readers.popitem(last=False)
        _readers.move_to_end(key)
        return _readers[key]
