r"""The log object as bytes.

    log object = head header record* footer
    head       = magic "RFWAL1\0\0", format version u32
    header     = kind u8, 3 zero bytes, object bytes u64, slot u64, first LSN u64, last LSN u64,
                 writer epoch u64, writer id 16 bytes, nonce 16 bytes, created at (µs) u64,
                 operations u64, prev slot u64, prev checksum u32, 4 zero bytes
    record     = length u32, crc32c of the payload u32, payload
    payload    = envelope length u32, envelope (MessagePack), zeros to a multiple of 8, body
    footer     = records u32, crc32c u32 of head, header, every record's length and checksum, and
                 the footer's count

All numbers are little-endian. Every byte is under exactly one checksum: a payload under its
record's, everything else, those checksums included, under the footer's, which is the checksum of
the object. The decoder is strict: short is `IncompleteError`, whatever else differs `CorruptError`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import groupby, repeat
from typing import Annotated, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa

from reef.errors import CorruptError, IncompleteError, InvalidInputError, InvariantError
from reef.format._arrow_limits import RawRoom
from reef.format._frame import HEAD_BYTES, LOG_MAGIC, check_head, crc32c, head
from reef.format._log_model import (
    DIGEST_BYTES,
    IDEMPOTENCY_KEY_BYTES_MAX,
    SOURCE_BYTES_MAX,
    LogKind,
    LogObject,
    LogRecord,
    Prev,
    log_problem,
)
from reef.format._manifest_model import LsnOrZero, LsnPolicy, SegmentRef, SkippedSlot
from reef.format._row_stream import (
    RECORD_BYTES_MAX,
    check_size,
    decode_schema,
    decode_stream,
    encode_rows,
)
from reef.types import SLOT_MAX, check_namespace, pack_lsn

_HEAD = head(LOG_MAGIC)
_ZEROS = bytes(8)
_HEADER = struct.Struct("<B3sQQQQQ16s16sQQQI4s")
_FRAME = struct.Struct("<II")
_LENGTH = struct.Struct("<I")
HEADER_BYTES = HEAD_BYTES + _HEADER.size
FOOTER_BYTES = _FRAME.size

BATCH_BYTES_MAX = RECORD_BYTES_MAX - (16 << 20)
"""Uncompressed: every row that is logged must fit into a block of a segment, with what Arrow adds."""

# Uncompressed, all records together: writers gather less than `log_segment_max_bytes` may be.
_OBJECT_RAW_BYTES_MAX = RECORD_BYTES_MAX + (64 << 20)

_BARE_ENVELOPE_BYTES_MAX = 14  # a version and nothing else, which `log_problem` has checked
_PART_BYTES_MIN = 64 << 10  # to copy less than that costs next to nothing

_Opaque: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=16 << 20)]


class _Header(NamedTuple):
    """The header's fields, in their order in the bytes."""

    kind: int
    zeros: bytes
    size: int
    slot: int
    lsn_first: int
    lsn_last: int
    epoch: int
    writer_id: bytes
    nonce: bytes
    created_at_us: int
    operations: int
    prev_slot: int
    prev_checksum: int
    more_zeros: bytes


class _Envelope(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What a record says of its body."""

    lsn: LsnOrZero
    idempotency_key: (
        Annotated[bytes, msgspec.Meta(min_length=1, max_length=IDEMPOTENCY_KEY_BYTES_MAX)] | None
    ) = None
    digest: (
        Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)] | None
    ) = None
    condition: _Opaque | None = None
    outcomes: _Opaque | None = None
    source: Annotated[str, msgspec.Meta(min_length=1, max_length=SOURCE_BYTES_MAX)] | None = None
    sequence: LsnOrZero | None = None
    skipped: tuple[SkippedSlot, ...] = ()
    segments: tuple[SegmentRef, ...] = ()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Envelope)


def log_key(namespace: str, slot: int) -> str:
    """Return the key of the log object `slot` of `namespace`. Raises InvalidInputError."""
    if not 1 <= slot <= SLOT_MAX:
        raise InvalidInputError.of("slot", slot, f"a number from 1 to {SLOT_MAX}")
    return f"namespaces/{check_namespace(namespace)}/wal/{slot:020d}.wal"


class SealedLog(msgspec.Struct, frozen=True):
    """The bytes of a log object. They never change, so that they can be sent again."""

    data: bytes | tuple[bytes | pa.Buffer, ...]
    """In one piece, or in parts where a body is large."""
    nbytes: int
    checksum: int


def encode_log(log: LogObject, *, codec: str = "lz4") -> bytes:
    """Return the bytes of `log`. Raises InvariantError before anything wrong could be written."""
    data = seal_log(log, codec=codec).data
    return data if isinstance(data, bytes) else b"".join(data)


def seal_log(
    log: LogObject, *, codec: str = "lz4", streams: Sequence[pa.Buffer | None] = ()
) -> SealedLog:
    """Return the bytes of `log` and their checksum. Raises like `encode_log`.

    `streams` has for each record its batch as `owned_rows` encoded it, or None; empty: all None.
    Large bodies are not copied: each stays the buffer that it was encoded into.
    """
    problem = log_problem(log)
    if problem:
        raise InvariantError(f"log object {log.slot} would have {problem}")
    size = HEADER_BYTES + FOOTER_BYTES
    frames: list[bytes] = []
    parts: list[bytes | pa.Buffer] = []
    for record, stream in zip(log.records, streams or repeat(None), strict=False):
        envelope, body = _encode_payload(record, stream, codec)
        length = len(envelope) + len(body)
        if length > RECORD_BYTES_MAX:
            raise InvariantError(f"a record of log object {log.slot} would be {length} bytes")
        frame = _FRAME.pack(length, crc32c(body, crc32c(envelope)))
        frames.append(frame)
        parts += (frame, envelope, body)
        size += _FRAME.size + length
    header = _HEAD + _HEADER.pack(*_header_of(log, size))
    count = _LENGTH.pack(len(frames))
    checksum = crc32c(b"".join((header, *frames, count)))
    parts = [header, *parts, count, _LENGTH.pack(checksum)]
    data = b"".join(parts) if size < _PART_BYTES_MIN else _packed(parts)
    return SealedLog(data, size, checksum)


def _packed(parts: list[bytes | pa.Buffer]) -> bytes | tuple[bytes | pa.Buffer, ...]:
    """Return `parts` with the small ones joined; as bytes, if all are small."""
    if max(map(len, parts)) < _PART_BYTES_MIN:
        return b"".join(parts)
    packed: list[bytes | pa.Buffer] = []
    for is_large, some in groupby(parts, lambda part: len(part) >= _PART_BYTES_MIN):
        if is_large:
            packed += some
        else:
            packed.append(b"".join(some))
    return tuple(packed)


def decode_log(
    data: bytes, *, key: str = "", slot: int | None = None, lsn_policy: LsnPolicy | None = None
) -> LogObject:
    """Return the log object that `data` is, every check made.

    `slot` is the one that its key names; under the policy "packed", versions are those of the slot.
    Raises IncompleteError, CorruptError, FormatVersionError.
    """
    check_head(data, LOG_MAGIC, key)
    if len(data) < HEADER_BYTES + FOOTER_BYTES:
        raise IncompleteError(key, len(data), "a header and a footer", "the end")
    header = _Header._make(_HEADER.unpack_from(data, HEAD_BYTES))
    _check_length(data, header.size, key)
    frames = _walk(data, key)
    _check_footer(data, frames, key)
    log = _decode_body(data, header, frames, key)
    if slot is not None and log.slot != slot:
        raise CorruptError(key, HEAD_BYTES, f"slot {slot}, as its key says", f"slot {log.slot}")
    if lsn_policy == "packed" and log.kind is not LogKind.FENCE:
        for ordinal, record in enumerate(log.records):
            if record.lsn != pack_lsn(log.slot, ordinal):
                said = f"version {record.lsn} of record {ordinal}"
                raise CorruptError(key, HEAD_BYTES, f"versions of slot {log.slot}", said)
    return log


def log_checksum(data: bytes, *, key: str = "") -> int:
    """Return the checksum that a successor's `prev` names, from the bytes of a log object.

    Looks at the first and the last bytes only. Raises like `decode_log`. For a damaged object, which
    is skipped by name, see `damaged_checksum`.
    """
    check_head(data, LOG_MAGIC, key)
    if len(data) < HEADER_BYTES + FOOTER_BYTES:
        raise IncompleteError(key, len(data), "a header and a footer", "the end")
    checksum: int = _LENGTH.unpack_from(data, len(data) - _LENGTH.size)[0]
    return checksum


def _header_of(log: LogObject, size: int) -> tuple[object, ...]:
    """Return the fields of `_Header`; plain, because a put has no time for names."""
    records = log.records
    operations = 0
    for record in records:  # a generator would take longer than the sum
        operations += record.operations
    return (
        log.kind,
        _ZEROS[:3],
        size,
        log.slot,
        records[0].lsn,
        records[-1].lsn,
        log.epoch,
        log.writer_id,
        log.nonce,
        log.created_at_us,
        operations,
        log.prev.slot,
        log.prev.checksum,
        _ZEROS[:4],
    )


def _encode_payload(
    record: LogRecord, stream: pa.Buffer | None, codec: str
) -> tuple[bytes, bytes | pa.Buffer]:
    envelope = _encoder.encode(
        _Envelope(
            lsn=record.lsn,
            idempotency_key=record.idempotency_key,
            digest=record.digest,
            condition=record.condition,
            outcomes=record.outcomes,
            source=record.source,
            sequence=record.sequence,
            skipped=record.skipped,
            segments=record.segments,
        )
    )
    if len(envelope) > _BARE_ENVELOPE_BYTES_MAX:
        try:
            _decoder.decode(envelope)
        except msgspec.ValidationError as error:
            raise InvariantError(f"a log record would have a wrong field: {error}") from error
    body: bytes | pa.Buffer = b""
    if stream is not None:
        body = stream
        check_size(body.size, BATCH_BYTES_MAX)
    elif record.batch is not None:
        body = encode_rows(record.batch, codec, BATCH_BYTES_MAX)
    elif record.schema is not None:
        body = record.schema.serialize()
    zeros = _ZEROS[: -(_LENGTH.size + len(envelope)) % 8]
    return _LENGTH.pack(len(envelope)) + envelope + zeros, body


def _check_length(data: bytes, size: int, key: str) -> None:
    if len(data) < size:
        raise IncompleteError(key, len(data), f"{size} bytes, as the header says", "the end")
    if len(data) > size:
        raise CorruptError(
            key, size, "the end, as the header says", f"{len(data) - size} bytes more"
        )


def _walk(data: bytes, key: str) -> list[tuple[int, int, int]]:
    """Return (offset, length, checksum) of every payload; they fill what lies before the footer."""
    frames = []
    at, end = HEADER_BYTES, len(data) - FOOTER_BYTES
    while at < end:
        if at + _FRAME.size > end:
            raise CorruptError(key, at, "a record or the footer", f"{end - at} bytes")
        length, checksum = _FRAME.unpack_from(data, at)
        at += _FRAME.size
        if length > end - at:
            raise CorruptError(key, at, f"a payload of {length} bytes", f"{end - at}")
        frames.append((at, length, checksum))
        at += length
    return frames


def _check_footer(data: bytes, frames: list[tuple[int, int, int]], key: str) -> None:
    at = len(data) - FOOTER_BYTES
    count, checksum = _FRAME.unpack_from(data, at)
    framing = (data[offset - _FRAME.size : offset] for offset, _, _ in frames)
    covered = crc32c(b"".join((data[:HEADER_BYTES], *framing, data[at : at + _LENGTH.size])))
    if covered != checksum:
        raise CorruptError(key, at, f"crc32c {checksum:08x} of the frame", f"{covered:08x}")
    if count != len(frames):
        raise CorruptError(key, at, f"{count} records, as the footer says", f"{len(frames)}")


def _decode_body(
    data: bytes, header: _Header, frames: list[tuple[int, int, int]], key: str
) -> LogObject:
    try:
        kind = LogKind(header.kind)
    except ValueError:
        raise CorruptError(key, HEAD_BYTES, "a kind from 1 to 4", f"kind {header.kind}") from None
    whole, room = pa.py_buffer(data), RawRoom(_OBJECT_RAW_BYTES_MAX)
    log = LogObject(
        kind=kind,
        slot=header.slot,
        epoch=header.epoch,
        writer_id=header.writer_id,
        nonce=header.nonce,
        created_at_us=header.created_at_us,
        prev=Prev(header.prev_slot, header.prev_checksum),
        records=tuple(_decode_record(whole, frame, kind, key, room) for frame in frames),
    )
    problem = log_problem(log)
    if problem:
        raise CorruptError(key, HEAD_BYTES, "a log object", problem)
    is_so = _header_of(log, len(data))
    if header != is_so:
        said = _Header._make(is_so)
        raise CorruptError(key, HEAD_BYTES, f"a header that says {said}", f"{header}")
    return log


def _decode_record(
    whole: pa.Buffer, frame: tuple[int, int, int], kind: LogKind, key: str, room: RawRoom
) -> LogRecord:
    offset, length, checksum = frame
    payload = whole.slice(offset, length)
    found = crc32c(payload)
    if found != checksum:
        raise CorruptError(key, offset, f"crc32c {checksum:08x} of the record", f"{found:08x}")
    view = memoryview(payload)
    if length < _LENGTH.size:
        raise CorruptError(key, offset, "an envelope", f"a record of {length} bytes")
    (envelope_bytes,) = _LENGTH.unpack_from(view)
    start = _LENGTH.size + envelope_bytes
    body_at = start + -start % 8
    if body_at > length or any(view[start:body_at]):
        raise CorruptError(key, offset, "an envelope padded with zeros", "something else")
    try:
        envelope = _decoder.decode(view[_LENGTH.size : start])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptError(key, offset, "an envelope", str(error)) from error
    body = payload.slice(body_at)
    batch, schema = None, None
    if kind is LogKind.DATA:
        batch = decode_stream(body, key, offset + body_at, room)
    elif kind is LogKind.SCHEMA:
        schema = decode_schema(body, key, offset + body_at)
    elif body.size:
        raise CorruptError(key, offset + body_at, "no body", f"{body.size} bytes")
    return LogRecord(batch=batch, schema=schema, **msgspec.structs.asdict(envelope))
