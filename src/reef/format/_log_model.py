"""What a log object says, and what must hold in it."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import msgspec
import pyarrow as pa

from reef.format._manifest_model import SegmentRef, SkippedSlot
from reef.format._row_stream import LOG_COLUMNS, batch_problem, ids_problem, schema_problem
from reef.types import LSN_MAX, NONCE_BYTES, SLOT_MAX, U32_MAX

IDEMPOTENCY_KEY_BYTES_MAX = 512
SOURCE_BYTES_MAX = 512
DIGEST_BYTES = 16
WRITER_ID_BYTES = 16


class LogKind(IntEnum):
    """What a log object does."""

    DATA = 1
    """Rows and tombstones, a record for each client batch."""
    FENCE = 2
    """Takes the slot from every older writer; names the slots that are to be skipped."""
    ATTACH = 3
    """Names segments uploaded beforehand, all of whose rows take the record's version."""
    SCHEMA = 4
    """A new schema."""


class Prev(NamedTuple):
    """The last valid log object before this one; slot 0 if there is none."""

    slot: int = 0
    checksum: int = 0


class LogRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One client batch, or what a fence, an attach or a schema change says."""

    lsn: int = 0
    """The version of everything in it; 0 in a fence, which has none."""
    batch: pa.RecordBatch | None = None
    """DATA: `_key`, `_tombstone` and the columns of the face."""
    segments: tuple[SegmentRef, ...] = ()
    """ATTACH: the segments, in no order; their `version` is the record's."""
    schema: pa.Schema | None = None
    """SCHEMA: the columns of the face, each with its stable id, from this version on."""
    skipped: tuple[SkippedSlot, ...] = ()
    """FENCE: damaged objects below it that every reader passes over from now on."""
    idempotency_key: bytes | None = None
    digest: bytes | None = None
    """Of the logical request, so that a key reused for another one is noticed."""
    condition: bytes | None = None
    """The predicate that held when the batch was accepted, as its face encodes it."""
    outcomes: bytes | None = None
    """Per-row outcomes of the receipt, as its face encodes them."""
    source: str | None = None
    """The stream it came from, and its place in it."""
    sequence: int | None = None

    @property
    def operations(self) -> int:
        """How many rows it writes or deletes."""
        if self.batch is not None:
            return int(self.batch.num_rows)
        return sum(segment.rows for segment in self.segments)


class LogObject(msgspec.Struct, frozen=True, kw_only=True):
    """What one conditional PUT commits."""

    kind: LogKind
    slot: int
    epoch: int
    writer_id: bytes
    nonce: bytes
    created_at_us: int
    prev: Prev
    records: tuple[LogRecord, ...]

    @property
    def lsn_first(self) -> int:
        return self.records[0].lsn if self.records else 0

    @property
    def lsn_last(self) -> int:
        return self.records[-1].lsn if self.records else 0

    @property
    def operations(self) -> int:
        """How many rows it writes or deletes."""
        return sum(record.operations for record in self.records)


def log_problem(log: LogObject) -> str:
    """Return the rule that `log` breaks, or "" if it breaks none."""
    if not 1 <= log.slot <= SLOT_MAX:
        return f"slot {log.slot}, which is not from 1 to {SLOT_MAX}"
    if not 0 <= log.prev.slot < log.slot:
        return f"prev slot {log.prev.slot}, which is not below slot {log.slot}"
    if not 0 <= log.prev.checksum <= U32_MAX:
        return f"prev checksum {log.prev.checksum}, which is not 32 bits"
    if not 1 <= log.epoch <= LSN_MAX or not 0 <= log.created_at_us <= LSN_MAX:
        return f"epoch {log.epoch} or time {log.created_at_us} out of range"
    if len(log.writer_id) != WRITER_ID_BYTES or len(log.nonce) != NONCE_BYTES:
        return "a writer id or nonce that is not 16 bytes"
    if not any(log.nonce):
        return "a nonce of zeros"
    if not log.records:
        return "no record"
    problem = _fence_problem(log) if log.kind is LogKind.FENCE else _versions_problem(log)
    if problem:
        return problem
    for record in log.records:
        problem = _record_problem(log.kind, record)
        if problem:
            return problem
    return ""


def _fence_problem(log: LogObject) -> str:
    if len(log.records) != 1 or log.records[0].lsn != 0:
        return "a fence with versions or with several records"
    skipped = [slot.slot for slot in log.records[0].skipped]
    if skipped and (len(set(skipped)) != len(skipped) or max(skipped) >= log.slot):
        return f"skipped slots {skipped}, which are not below it, each once"
    return ""


def _versions_problem(log: LogObject) -> str:
    before = 0
    for record in log.records:
        if record.lsn <= before or record.lsn > LSN_MAX:
            first, last = log.records[0].lsn, log.records[-1].lsn
            if first < 1 or last > LSN_MAX:
                return f"versions {first} to {last}, which are not from 1 to {LSN_MAX}"
            return "versions that do not increase"
        before = record.lsn
    return ""


# By kind: whether a record of it has a batch, segments and a schema.
_HOLDS = {
    LogKind.DATA: (True, False, False),
    LogKind.FENCE: (False, False, False),
    LogKind.ATTACH: (False, True, False),
    LogKind.SCHEMA: (False, False, True),
}


def _record_problem(kind: LogKind, record: LogRecord) -> str:
    holds = (record.batch is not None, bool(record.segments), record.schema is not None)
    if holds != _HOLDS[kind] or (record.skipped and kind is not LogKind.FENCE):
        return f"a record that is not of a {kind.name.lower()} object"
    if (record.source is None) != (record.sequence is None):
        return "a source without a sequence, or the other way round"
    if record.batch is not None:
        return batch_problem(record.batch, LOG_COLUMNS)
    if record.schema is not None:
        return schema_problem(record.schema, ()) or ids_problem(record.schema)
    return next((p for segment in record.segments if (p := _attach_problem(record, segment))), "")


def _attach_problem(record: LogRecord, segment: SegmentRef) -> str:
    if not segment.version == segment.lsn_min == segment.lsn_max == record.lsn:
        return f"segment {segment.id} at another version than the record's {record.lsn}"
    if segment.namespace or (segment.clip_lsn, segment.clip_key_min, segment.clip_key_max) != (
        None,
        None,
        None,
    ):
        return f"segment {segment.id} of another namespace, or clipped"
    return ""
