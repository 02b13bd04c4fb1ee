"""Streaming reads: the change feed of a namespace as a Spark stream.

    spark.readStream.format("reef")
        .options(url=..., namespace=..., starting="snapshot", before="true").load()

One row for each committed operation: `_op` ("upsert", "delete"; "snapshot" for the rows that a
stream begins with), `_lsn`, `_committed_at` (null for "snapshot"), the columns of the namespace, and
with `before` a struct `_before` of them, null where there was no row.

An offset is an LSN, with the place in the log that belongs to it, so that a restart need not look
for it: {"lsn": 5, "slot": ...}. {"lsn": 5} alone will do. Between two offsets lie the same rows
whenever they are asked for: micro-batches can be replayed. A micro-batch takes at most
`max_bytes_per_batch` of log (256 MiB) or `max_slots_per_batch` objects, at least one object, and
ends behind an attach object, which is never split.

A stream that begins with a snapshot takes one, unless one is given. The offset behind its rows names
it: where a micro-batch begins there, the rows have been taken in, and the snapshot is released.

The columns are settled when the stream starts: attributes that are added later are left out, and
one that is renamed goes on under its old name, until the query is started again.

What it costs: a poll of an idle namespace is one ranged GET. A new log object is a ranged GET of
its header on the driver, and a GET by the task that reads it; the newest is read by both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from reef.engine import BEFORE, COMMITTED_AT, OP, FeedLog, Position, take_snapshot
from reef.errors import InvalidInputError, NotFoundError
from reef.format import KEY, LSN
from reef.log import ChainPoint
from reef.manifest import release_snapshot
from reef.spark.source._feed_options import FeedOptions
from reef.spark.source._feed_plan import (
    FeedPart,
    Part,
    SnapshotPart,
    StreamShape,
    plan_log,
    read_part,
)
from reef.spark.source._read_version import ReadVersion, find_version
from reef.spark.source._scan_plan import PushedFilters, Scan, plan_scan
from reef.spark.source._spark_columns import Column, select_columns, spark_columns
from reef.types import LSN_MAX, new_ulid

_OWN = {
    OP: pa.field(OP, pa.string(), nullable=False),
    LSN: pa.field(LSN, pa.int64(), nullable=False),
    COMMITTED_AT: pa.field(COMMITTED_AT, pa.timestamp("us", tz="UTC")),
}
_PREFIX = "stream-"
_TAKEN = "taken"

Offset = dict[str, Any]


def stream_schema(version: ReadVersion, options: FeedOptions) -> StructType:
    """Return the columns of a stream of changes."""
    columns = select_columns(spark_columns(version.face, version.columns), options.columns)
    fields = [*_OWN.values(), *(column.field for column in columns)]
    if options.before:
        before = [c.field for c in columns if c.stored != KEY] or [c.field for c in columns]
        fields.append(pa.field(BEFORE, pa.struct(before)))
    return from_arrow_schema(pa.schema(fields))


class FeedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the changes of a namespace. Spark calls it on the driver, and `read` in its workers."""

    def __init__(self, options: FeedOptions, version: ReadVersion, schema: StructType) -> None:
        """`version` tells the columns; `schema` names those that the stream has.

        Raises InvalidInputError.
        """
        self._options = options
        self._shape = _shape(options, version, schema)
        self._log: FeedLog | None = None
        self._upto = LSN_MAX
        self._initial: Offset | None = None
        self._released: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_log": None}  # workers make their own

    def initialOffset(self) -> Offset:
        """Return where a new query begins: the same whenever Spark asks, which it does twice.

        Raises RetentionError for an LSN that was collected, InvalidInputError for one that does not
        exist yet: commits below it would be skipped silently.
        """
        if self._initial is None:
            self._initial = self._begin()
        return self._initial

    def _begin(self) -> Offset:
        log, starting = self._feed(), self._options.starting
        if starting == "snapshot":
            return self._snapshot()
        if starting == "earliest":
            return _offset(log.earliest())
        newest = log.newest()
        if isinstance(starting, str):
            return _offset(newest)
        if starting > newest.lsn:
            raise InvalidInputError.of(
                "starting", starting, f"an LSN up to {newest.lsn}, the newest version"
            )
        return _offset(log.after(starting))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return what one micro-batch may take."""
        if self._options.slots_max is not None:
            return ReadMaxFiles(self._options.slots_max)
        assert self._options.bytes_max is not None
        return ReadMaxBytes(self._options.bytes_max)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return how far the next micro-batch goes: `start` itself if nothing was committed."""
        log = self._feed()
        if "snapshot" in start:
            behind = _offset(log.after(start["lsn"]))
            is_own = start["snapshot"].startswith(_PREFIX)
            return {**behind, _TAKEN: start["snapshot"]} if is_own else behind
        self._release(start.get(_TAKEN))
        is_all = isinstance(limit, ReadAllAvailable)
        position = self._position(start)
        end = log.advance(
            position,
            bytes_max=None if is_all else self._options.bytes_max,
            slots_max=None if is_all else self._options.slots_max,
            upto=self._upto,
        )
        return _offset(end) if end.lsn > position.lsn else start

    def prepareForTriggerAvailableNow(self) -> None:
        """Take the newest version as the end of the query."""
        self._upto = self._feed().newest().lsn

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the parts between two offsets, which the same rows always lie in."""
        parts: Sequence[Part]
        if start == end:
            parts = []
        elif "snapshot" in start:
            parts = self._snapshot_parts(start)
        elif "slot" not in end:  # written by hand: the log does not say where it is
            parts = [FeedPart(self._position(start), end["lsn"], None)]
        else:
            position, size = self._position(start), self._options.partition_bytes
            parts = plan_log(self._feed(), position, self._position(end), size)
        return list(map(InputPartition, parts))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part."""
        return read_part(partition.value, self._shape)

    def _release(self, taken: str | None) -> None:
        """Release the snapshot that the stream took, once."""
        if taken is None or taken == self._released:
            return
        chain = self._options.ref.bucket.open().chain(self._options.ref.namespace)
        with suppress(NotFoundError):
            chain.publish(
                lambda head: None if head is None else release_snapshot(head.manifest, taken)
            )
        self._released = taken

    def _feed(self) -> FeedLog:
        if self._log is None:
            ref = self._options.ref
            self._log = FeedLog(ref.bucket.open(), ref.namespace)
        return self._log

    def _position(self, offset: Offset) -> Position:
        if "slot" not in offset:
            return self._feed().after(offset["lsn"])
        point = ChainPoint(offset["prev"], offset["checksum"], offset["epoch"])
        return Position(offset["lsn"], offset["slot"], point)

    def _snapshot(self) -> Offset:
        """Return the offset before the rows of a snapshot: the one that was given, or a new one."""
        id = self._options.snapshot
        if id is None:
            context = self._options.ref.bucket.open()
            id = _PREFIX + new_ulid(context.clock, context.rng)
            chain = context.chain(self._options.ref.namespace)
            ttl_s = self._options.snapshot_ttl_s
            newest = self._feed().newest
            take_snapshot(context, chain, lambda: (newest().lsn, 0), ttl_s, id=id, keeps_log=True)
        version = find_version(self._options.read(id))
        return {"snapshot": id, "lsn": version.lsn}

    def _snapshot_parts(self, start: Offset) -> list[SnapshotPart]:
        version = find_version(self._options.read(start["snapshot"]))
        scan = Scan(version, self._shape.columns, PushedFilters(), 1)
        ranges = plan_scan(scan, partition_bytes=self._options.partition_bytes, min_partitions=1)
        return [SnapshotPart(version, keys) for keys in ranges]


def _offset(position: Position) -> Offset:
    slot, checksum, epoch = position.point
    return {
        "lsn": position.lsn,
        "slot": position.next_slot,
        "prev": slot,
        "checksum": checksum,
        "epoch": epoch,
    }


def _shape(options: FeedOptions, version: ReadVersion, schema: StructType) -> StreamShape:
    every = {column.name: column for column in spark_columns(version.face, version.columns)}
    layout: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    if OP not in layout.names:
        raise InvalidInputError(
            f"the columns of the stream, {', '.join(layout.names)}, have no {OP} among "
            "them, without which a deletion looks like a row: leave .schema() out, and "
            "give the option starting"
        )
    wanted: dict[str, Column] = {}
    for field in layout:
        names = [field.name]
        if field.name == BEFORE:
            names = [inner.name for inner in field.type]
        elif field.name in _OWN:
            continue
        for name in names:
            wanted.update(
                {column.name: column for column in select_columns(tuple(every.values()), (name,))}
            )
    return StreamShape(options.ref, version.face, tuple(wanted.values()), layout)
