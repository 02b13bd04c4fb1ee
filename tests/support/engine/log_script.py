"""Logs written object by object, as any mixture of writers could have left them.

script = LogScript(store)              # a namespace whose log begins with a fence
script.data({b"a": b"1"})              # valid: names the last valid object
script.void({b"a": b"x"})              # names another: was in flight behind a write that lost
script.fence()                         # of the next epoch
script.damaged(); script.fence()       # an object that cannot be read; the fence names it
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import msgspec
import pyarrow as pa

from reef.engine import Context
from reef.format import (
    KEY,
    LSN,
    LogKind,
    LogObject,
    LogRecord,
    Manifest,
    Prev,
    SegmentOrigin,
    SegmentRef,
    SkippedSlot,
    damaged_checksum,
    encode_log,
    log_checksum,
    log_key,
    log_schema,
    segment_schema,
    with_field_id,
)
from reef.log import LogReader, Replay
from reef.manifest import Head, open_writer
from reef.segment import write_segment
from reef.store import Store, open_store
from reef.types import LSN_MAX, new_ulid, pack_lsn
from tests.support.engine.open_database import database
from tests.support.jobs.compactor import fold_log

NS = "ns"
VALUE = with_field_id(pa.field("value", pa.binary()), 1)
EXTRA = with_field_id(pa.field("extra", pa.int64()), 2)

Rows = Mapping[bytes, bytes | None]


class LogScript:
    """Writes the log of namespace "ns", one object after the other."""

    def __init__(self, store: Store, *, seed: int = 11, parallel: int = 1) -> None:
        self.store = store
        self.rng = random.Random(seed)
        database(store, seed=seed, max_parallel_writes=parallel).kv(NS).close()
        reader = LogReader(store, NS, "packed")
        replay = Replay.of(self.head())
        for _ in reader.read(replay):
            pass
        self.slot = replay.next_slot
        """The next one."""
        self.prev = replay.point.prev
        self.epoch = replay.point.epoch
        self.lsns = [0]
        """Of every valid record, from 0 on."""
        self.lost: list[SkippedSlot] = []
        self._stray = Prev(1, 77)

    def head(self) -> Manifest:
        head = database(self.store).context().chain(NS).load()
        assert head is not None
        return head.manifest

    def data(
        self, *batches: Rows, extra: int | None = None, key: bytes | None = None, sequence: int = 0
    ) -> int:
        """Write a valid object with a record for each batch; return the last version."""
        records = self._records(batches, extra, key, sequence)
        self._valid(LogKind.DATA, records)
        return records[-1].lsn

    def void(self, rows: Rows, *, key: bytes | None = None, behind_void: bool = False) -> None:
        """Write an object that names no valid one; `behind_void`: it names the last void one."""
        prev = self._stray if behind_void else Prev(max(1, self.slot - 2), 12345)
        data = self._make(LogKind.DATA, self._records([rows], None, key, 0), prev)
        self._stray = Prev(self.slot, log_checksum(data))
        self._put(data)

    def late(self, rows: Rows) -> None:
        """Write an object of an epoch that was fenced, which names the last valid one."""
        records = self._records([rows], None, None, 0)
        self._put(self._make(LogKind.DATA, records, self.prev, epoch=self.epoch - 1))

    def fence(self) -> None:
        """Write the fence of the next epoch, which names what cannot be read right before it."""
        chain = database(self.store, seed=self.slot).context().chain(NS)
        taken = chain.publish(lambda head: open_writer(head.manifest))  # type: ignore[union-attr]
        self.epoch = taken.manifest.writer_epoch
        lost, self.lost = tuple(self.lost), []
        self._valid(LogKind.FENCE, (LogRecord(skipped=lost),))

    def schema(self) -> int:
        """Add a column."""
        records = (LogRecord(lsn=pack_lsn(self.slot, 0), schema=pa.schema([VALUE, EXTRA])),)
        self._valid(LogKind.SCHEMA, records)
        return records[0].lsn

    def attach(self, rows: Rows) -> SegmentRef:
        """Upload a segment and attach it."""
        lsn = pack_lsn(self.slot, 0)
        ref = self._uploaded(rows, lsn)
        self._valid(LogKind.ATTACH, (LogRecord(lsn=lsn, segments=(ref,)),))
        return ref

    def damaged(self) -> SkippedSlot:
        """Write an object that nobody can read; the next fence names it."""
        data = bytearray(self._make(LogKind.DATA, self._records([{b"?": b"?"}], None, None, 0)))
        data[len(data) // 2] ^= 1
        skip = SkippedSlot(self.slot, damaged_checksum(bytes(data)))
        self.lost.append(skip)
        self._put(bytes(data))
        return skip

    def _records(
        self, batches: Sequence[Rows], extra: int | None, key: bytes | None, sequence: int
    ) -> tuple[LogRecord, ...]:
        return tuple(
            LogRecord(
                lsn=pack_lsn(self.slot, i),
                batch=_batch(rows, extra),
                idempotency_key=None if key is None else key + b"%d" % i,
                digest=None if key is None else b"d" * 16,
                outcomes=None if key is None else b"",
                source="stream" if sequence else None,
                sequence=sequence + i if sequence else None,
            )
            for i, rows in enumerate(batches)
        )

    def _valid(self, kind: LogKind, records: tuple[LogRecord, ...]) -> None:
        data = self._make(kind, records)
        self.prev = Prev(self.slot, log_checksum(data))
        self.lsns += [record.lsn for record in records if record.lsn]
        self._put(data)

    def _make(
        self,
        kind: LogKind,
        records: tuple[LogRecord, ...],
        prev: Prev | None = None,
        epoch: int | None = None,
    ) -> bytes:
        return encode_log(
            LogObject(
                kind=kind,
                slot=self.slot,
                epoch=epoch or self.epoch,
                writer_id=bytes(16),
                nonce=self.rng.randbytes(16),
                created_at_us=1_000_000 + self.slot,
                prev=prev or self.prev,
                records=records,
            )
        )

    def _put(self, data: bytes) -> None:
        self.store.put_if_absent(log_key(NS, self.slot), data)
        self.slot += 1

    def _uploaded(self, rows: Rows, lsn: int) -> SegmentRef:
        context = database(self.store, seed=self.slot).context()
        origin = SegmentOrigin(
            id=f"{new_ulid(context.clock, self.rng)}-load-x",
            namespace=NS,
            level=1,
            author="test",
            created_at_us=1,
        )
        batch = _batch(dict(sorted(rows.items())), None)
        lsns = pa.array([lsn] * batch.num_rows, pa.int64())
        columns = [batch.column(0), lsns, *batch.columns[1:]]
        schema = segment_schema([VALUE])
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        ref = write_segment(self.store, NS, schema, origin, None, [batch])
        return msgspec.structs.replace(ref, version=lsn, lsn_min=lsn, lsn_max=lsn)


def _batch(rows: Rows, extra: int | None) -> pa.RecordBatch:
    columns = [
        pa.array(list(rows), pa.binary()),
        pa.array([value is None for value in rows.values()], pa.bool_()),
        pa.array(list(rows.values()), pa.binary()),
    ]
    fields = [VALUE]
    if extra is not None:
        columns.append(pa.array([extra] * len(rows), pa.int64()))
        fields.append(EXTRA)
    return pa.RecordBatch.from_arrays(columns, schema=log_schema(fields))


def copied(store: Store) -> Store:
    """Return another store with the same objects."""
    other = open_store("memory://")
    for meta in store.list():
        other.put_if_absent(meta.key, store.get(meta.key))
    return other


def versions(store: Store, lsns: list[int]) -> dict[int, dict[bytes, bytes]]:
    """Return what a fresh reader sees at each version."""
    with database(store, seed=5).kv(NS, mode="r") as kv:
        return {lsn: dict(kv.at(lsn=lsn).items()) for lsn in lsns}


def folded_rows(store: Store) -> list[dict[str, object]]:
    """Return every row of every segment that the head names, columns and versions too."""
    context = database(store, seed=6).context()
    head = context.chain(NS).load()
    assert head is not None
    segments = context.segments(NS)
    rows = [
        row
        for ref in head.manifest.segments
        for batch in segments.open(ref).batches(b"", None, columns=None, reverse=False, lsn=LSN_MAX)
        for row in batch.to_pylist()
    ]
    for row in rows:
        row.setdefault("extra", None)
    return sorted(rows, key=lambda row: (row[KEY], row[LSN]))


def flush_at_once(context: Context) -> Manifest:
    """Fold the log as recovery and a flush would, in one go; return the manifest."""
    manifest = fold_log(context, NS)
    assert manifest is not None
    return manifest


def give_up(context: Context, *lost: SkippedSlot) -> None:
    """Name damaged objects in the manifest, as repair does."""

    def given_up(head: Head | None) -> Manifest:
        assert head is not None
        m = head.manifest
        return msgspec.structs.replace(
            m,
            skipped_slots=(*m.skipped_slots, *lost),
            wal_last_seen=max(m.wal_last_seen, *(skip.slot for skip in lost)),
        )

    context.chain(NS).publish(given_up)
