"""Buckets with one hostile object each: what somebody who can write to a bucket could put there.

`CASES` has a function for each kind. It is given a small healthy bucket on a local disk, and puts
one object in, or forges one. Checksums are right: whoever forges an object can compute them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import msgspec
import pyarrow as pa
from crc32c import crc32c

import reef
from reef.errors import DamagedError
from reef.format import (
    BlockPlace,
    DedupEntry,
    DedupWindow,
    LogKind,
    LogObject,
    LogRecord,
    Manifest,
    PendingDelete,
    Pin,
    Prev,
    SegmentOptions,
    SegmentOrigin,
    SegmentRef,
    SegmentWriter,
    SkippedSlot,
    Snapshot,
    WalAnchor,
    decode_log,
    decode_manifest,
    dedup_checksum,
    encode_dedup,
    encode_log,
    encode_manifest,
    log_checksum,
    manifest_checksum,
    schema_fingerprint,
    segment_schema,
)
from reef.types import LSN_MAX, SLOT_MAX, pack_lsn
from tests.hostile import forged_arrow
from tests.support.format.manifest_bytes import sealed
from tests.support.format.samples import sample_log

NAMESPACE = "stock"
LOG_HEADER_BYTES = 120
ULID = "01J9ZQ3V5N8W2X4Y6Z7A8B9C0K"

_replace = msgspec.structs.replace


def make_healthy(root: Path) -> None:
    """Write a namespace with segments, a dedup window and log that is not folded."""
    with reef.connect(f"file://{root}?fsync=off", flush_interval=0) as db, db.kv(NAMESPACE) as kv:
        for commit in range(6):
            rows = {b"k%03d" % i: b"%d of %d" % (i, commit) for i in range(commit, 40 + commit)}
            kv.write(rows, idempotency_key=f"request-{commit}")
            if commit in (1, 3):
                kv.flush()


class Bucket:
    """A bucket to spoil."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "namespaces" / NAMESPACE

    @property
    def head(self) -> Manifest:
        path = max(p for p in self.folder.glob("manifest/*") if self._is_readable(p))
        return decode_manifest(path.read_bytes())

    @staticmethod
    def _is_readable(path: Path) -> bool:
        try:
            decode_manifest(path.read_bytes())
        except DamagedError:
            return False
        return True

    @property
    def last_slot(self) -> int:
        return max(int(path.stem) for path in self.folder.glob("wal/*.wal"))

    def put(self, name: str, data: bytes) -> None:
        """Write an object, in place of what is there."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)

    def publish(self, generation: int | None = None, **changes: object) -> None:
        """Put a manifest with some fields changed behind the head, as far as that encodes."""
        head = self.head
        number = head.generation + 1 if generation is None else generation
        changed = _replace(
            head,
            generation=number,
            nonce="f" * 31 + "0",
            predecessor_checksum=manifest_checksum(encode_manifest(head)),
            **changes,
        )
        self.put(f"manifest/{number:020d}.manifest.json", encode_manifest(changed))

    def append(self, data: bytes, *, codec_body: bool = True, kind: LogKind = LogKind.DATA) -> None:
        """Put a log object at the end whose only record has this body."""
        self.put_log(log_with_bodies(self._next(kind), [data]))

    def put_log(self, data: bytes) -> None:
        self.put(f"wal/{self.last_slot + 1:020d}.wal", data)

    def _next(self, kind: LogKind = LogKind.DATA) -> LogObject:
        """Return the log object that would come next."""
        last = self.folder / f"wal/{self.last_slot:020d}.wal"
        log = decode_log(last.read_bytes())
        slot = self.last_slot + 1
        batch = forged_arrow.rows()
        schema = pa.schema([forged_arrow.VALUE])
        record = LogRecord(
            lsn=pack_lsn(slot, 0),
            batch=batch if kind is LogKind.DATA else None,
            schema=schema if kind is LogKind.SCHEMA else None,
        )
        return LogObject(
            kind=kind,
            slot=slot,
            epoch=log.epoch,
            writer_id=log.writer_id,
            nonce=b"\7" * 16,
            created_at_us=1,
            prev=Prev(self.last_slot, log_checksum(last.read_bytes())),
            records=(record,),
        )

    def with_segment(self, data: bytes, ref: SegmentRef) -> None:
        """Let the head name this segment as the only one."""
        self.put(f"segments/{ref.id}.seg", data)
        head = self.head
        gone = tuple(
            PendingDelete(f"namespaces/{NAMESPACE}/segments/{s.id}.seg", head.generation + 1)
            for s in head.segments
        )
        pending = _replace(head.gc, pending=(*head.gc.pending, *gone))
        self.publish(segments=(ref,), gc=pending)


def log_with_bodies(log: LogObject, bodies: list[bytes]) -> bytes:
    """Return the bytes of `log` with the bodies of its records replaced, under right checksums."""
    data = encode_log(log)
    header, at, frames = bytearray(data[:LOG_HEADER_BYTES]), LOG_HEADER_BYTES, []
    for body in bodies:
        length, _ = struct.unpack_from("<II", data, at)
        payload = data[at + 8 : at + 8 + length]
        envelope = 4 + struct.unpack_from("<I", payload)[0]
        payload = payload[: envelope + -envelope % 8] + body
        frames.append((struct.pack("<II", len(payload), crc32c(payload)), payload))
        at += 8 + length
    size = len(header) + 8 + sum(8 + len(payload) for _, payload in frames)
    struct.pack_into("<Q", header, 16, size)
    count = struct.pack("<I", len(frames))
    covered = bytes(header) + b"".join(frame for frame, _ in frames) + count
    body = b"".join(frame + payload for frame, payload in frames)
    return bytes(header) + body + count + struct.pack("<I", crc32c(covered))


def segment(codec: str = "lz4", **origin: object) -> tuple[bytes, SegmentRef]:
    """Return a segment of three rows, and what a manifest says of it."""
    batch = forged_arrow.rows()
    schema = segment_schema([forged_arrow.VALUE])
    lsns = pa.array([pack_lsn(2, 0)] * 3, pa.int64())
    rows = pa.RecordBatch.from_arrays(
        [batch.column(0), lsns, batch.column(1), batch.column(2)], schema=schema
    )
    made = SegmentOrigin(
        id=f"{ULID}-e1", namespace=NAMESPACE, level=0, author="a", created_at_us=1, **origin
    )
    writer = SegmentWriter(schema, made, SegmentOptions(codec=codec))
    data = b"".join(map(bytes, writer.parts([rows])))
    return data, writer.ref


class _ForgedBlock(NamedTuple):
    rows: int
    parts: tuple[bytes, ...]
    checksum: int

    def place(self, offset: int) -> BlockPlace:
        return BlockPlace(0, self.rows, offset, sum(map(len, self.parts)), self.checksum)


def segment_of_block(body: bytes, codec: int, raw: int) -> tuple[bytes, SegmentRef]:
    """Return a segment whose one block is `body`, said to be `raw` bytes of `codec`."""

    def forged(_: object, batch: pa.RecordBatch) -> _ForgedBlock:
        framed = struct.pack("<BBHI", codec, -len(body) % 8, 0, raw) + body + bytes(-len(body) % 8)
        checksum = crc32c(framed)
        frame = struct.pack("<II", len(framed), checksum)
        return _ForgedBlock(batch.num_rows, (frame, framed), checksum)

    with mock.patch("reef.format._segment_block.BlockEncoder.encode", forged):
        return segment()


def segment_of_index(index: bytes) -> tuple[bytes, SegmentRef]:
    """Return a segment with this stream for its row index."""
    with mock.patch("reef.format._segment_writer.encode_rows", return_value=index):
        return segment()


def files() -> dict[str, bytes]:
    """Return forged objects by file name, for a fuzzer to begin with."""
    log = sample_log()
    bodies = {
        "lz4": forged_arrow.claiming(2**45).data,
        "zstd": forged_arrow.claiming(2**45, "zstd").data,
        "bomb": forged_arrow.bomb(50_000_000).data,
    }
    claim = forged_arrow.claiming(2**45).message
    return {
        **{f"hostile-{name}.wal": log_with_bodies(log, [body]) for name, body in bodies.items()},
        "hostile-lz4.seg": segment_of_block(b"\0" * 100, 1, 1 << 30)[0],
        "hostile-within.seg": segment_of_block(claim, 0, len(claim))[0],
        "hostile-index.seg": segment_of_index(forged_arrow.claiming(2**45).data)[0],
    }


Case = Callable[[Bucket], None]
CASES: dict[str, Case] = {}


def case(make: Case) -> Case:
    CASES[make.__name__] = make
    return make


# Manifests.


@case
def a_garbage_manifest_of_a_high_number(bucket: Bucket) -> None:
    bucket.put("manifest/00000000000050000000.manifest.json", b"garbage")


@case
def a_garbage_manifest_of_the_highest_number(bucket: Bucket) -> None:
    bucket.put(f"manifest/{LSN_MAX:020d}.manifest.json", b"garbage")


@case
def a_manifest_of_a_high_number(bucket: Bucket) -> None:
    bucket.publish(50_000_000)


@case
def a_manifest_of_the_highest_number(bucket: Bucket) -> None:
    bucket.publish(LSN_MAX)


@case
def a_manifest_repaired_from_far_below(bucket: Bucket) -> None:
    bucket.publish(1 << 40, repaired_from=bucket.head.generation)


@case
def a_high_wal_floor(bucket: Bucket) -> None:
    bucket.publish(wal_floor=SLOT_MAX - 1, wal_last_seen=SLOT_MAX - 1)


@case
def a_high_last_slot(bucket: Bucket) -> None:
    bucket.publish(wal_last_seen=SLOT_MAX)


@case
def a_high_boundary(bucket: Bucket) -> None:
    head = bucket.head
    boundary = _replace(head.gc.boundary, slot=1, generation=1)
    bucket.publish(1 << 45, gc=_replace(head.gc, boundary=boundary))


@case
def times_of_the_end_of_the_world(bucket: Bucket) -> None:
    head = bucket.head
    bucket.publish(
        created_at_us=LSN_MAX,
        lease=head.lease and _replace(head.lease, opened_at_us=LSN_MAX),
        retention=_replace(head.retention, pitr_window_ms=LSN_MAX),
        gc=_replace(head.gc, grace_ms=LSN_MAX),
        snapshots=(Snapshot("s", head.generation, head.last_applied_lsn, LSN_MAX),),
    )


@case
def a_grace_of_nothing_and_a_snapshot_of_long_ago(bucket: Bucket) -> None:
    head = bucket.head
    bucket.publish(
        gc=_replace(head.gc, grace_ms=0),
        snapshots=(Snapshot("s", head.generation, head.last_applied_lsn, 1),),
    )


@case
def the_highest_epochs(bucket: Bucket) -> None:
    bucket.publish(writer_epoch=LSN_MAX, compactor_epoch=LSN_MAX)


@case
def a_segment_of_any_size(bucket: Bucket) -> None:
    head = bucket.head
    first = _replace(head.segments[0], rows=LSN_MAX, size=LSN_MAX, footer_length=2**32 - 1)
    bucket.publish(segments=(first, *head.segments[1:]))


@case
def a_dedup_window_of_any_size(bucket: Bucket) -> None:
    head = bucket.head
    assert head.dedup is not None
    bucket.publish(dedup=_replace(head.dedup, size=LSN_MAX))


@case
def a_manifest_nested_deeply(bucket: Bucket) -> None:
    number = bucket.head.generation + 1
    body = b'{"namespace":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    bucket.put(f"manifest/{number:020d}.manifest.json", sealed(body))


@case
def a_manifest_of_a_schema_that_echoes(bucket: Bucket) -> None:
    number, schema = bucket.head.generation + 1, forged_arrow.echoing_schema()
    changed = _replace(
        bucket.head,
        generation=number,
        schema=schema,
        schema_fingerprint=schema_fingerprint(schema),
    )
    bucket.put(f"manifest/{number:020d}.manifest.json", sealed(msgspec.json.encode(changed)))


@case
def many_skipped_slots(bucket: Bucket) -> None:
    head = bucket.head
    skipped = tuple(SkippedSlot(slot, 7) for slot in range(1, 20_000))
    bucket.publish(skipped_slots=skipped, wal_last_seen=20_000)
    assert head.generation < bucket.head.generation


@case
def many_pins(bucket: Bucket) -> None:
    head = bucket.head
    pins = (Pin(head.generation, 1, "stock@b", f"{n:032x}") for n in range(1, 20_000))
    bucket.publish(pins=tuple(pins))


@case
def pages_of_any_size(bucket: Bucket) -> None:
    field = forged_arrow.VALUE.with_name("data")
    schema = pa.schema([field], {b"reef:face": b"pages", b"reef:page_size": b"9" * 18})
    data = schema.serialize().to_pybytes()
    bucket.publish(schema=data, schema_fingerprint=schema_fingerprint(data))


# The log.


@case
def a_log_object_that_claims_2_to_45_bytes(bucket: Bucket) -> None:
    bucket.append(forged_arrow.claiming(2**45).data)


@case
def a_zstd_record_that_claims_2_to_45_bytes(bucket: Bucket) -> None:
    bucket.append(forged_arrow.claiming(2**45, "zstd").data)


@case
def a_record_that_claims_a_negative_length(bucket: Bucket) -> None:
    bucket.append(forged_arrow.claiming(-(2**60)).data)


@case
def a_zstd_record_of_2_gigabytes(bucket: Bucket) -> None:
    bucket.append(forged_arrow.bomb(1_900_000_000).data)


@case
def a_zstd_record_as_large_as_is_allowed(bucket: Bucket) -> None:
    bucket.append(forged_arrow.bomb(1_000_000_000).data)


@case
def a_damaged_object_followed_by_others(bucket: Bucket) -> None:
    bucket.append(forged_arrow.claiming(2**45).data)
    bucket.put(f"wal/{bucket.last_slot + 1:020d}.wal", forged_arrow.claiming(2**45).data)


@case
def many_records_that_are_large_together(bucket: Bucket) -> None:
    log = bucket._next()
    records = [_replace(log.records[0], lsn=pack_lsn(log.slot, n)) for n in range(3)]
    bodies = [forged_arrow.bomb(400_000_000).data] * len(records)
    bucket.put_log(log_with_bodies(_replace(log, records=tuple(records)), bodies))


@case
def a_record_of_a_schema_that_echoes(bucket: Bucket) -> None:
    stream = forged_arrow.claiming(9)
    bucket.append(forged_arrow.echoing_schema() + stream.message + forged_arrow.END_OF_STREAM)


@case
def a_schema_object_that_echoes(bucket: Bucket) -> None:
    log = bucket._next(LogKind.SCHEMA)
    bucket.put_log(log_with_bodies(log, [forged_arrow.echoing_schema()]))


@case
def lists_of_nothing(bucket: Bucket) -> None:
    batch = forged_arrow.rows(1)
    offsets = pa.array([0, 2**31 - 2], pa.int32())
    lists = pa.ListArray.from_arrays(offsets, pa.nulls(2**31 - 2))
    field = pa.field("value", lists.type, metadata=forged_arrow.VALUE.metadata)
    schema = pa.schema([*list(batch.schema)[:2], field])
    columns = [batch.column(0), batch.column(1), lists]
    bucket.append(forged_arrow.plain_stream(pa.RecordBatch.from_arrays(columns, schema=schema)))


@case
def a_dictionary_that_claims_2_to_45_bytes(bucket: Bucket) -> None:
    values = pa.array([b"a" * 300] * 3, pa.binary()).dictionary_encode()
    batch = forged_arrow.rows()
    schema = pa.schema([*list(batch.schema)[:2], pa.field("value", values.type)])
    rows = pa.RecordBatch.from_arrays([batch.column(0), batch.column(1), values], schema=schema)
    data = forged_arrow.plain_stream(rows, "lz4")
    claim = struct.pack("<q", 300)
    assert data.count(claim)
    bucket.append(data.replace(claim, struct.pack("<q", 2**45)))


@case
def outcomes_of_more_rows_than_there_can_be(bucket: Bucket) -> None:
    log = bucket._next()
    runs = b"\1" + struct.pack("<I", 2**32 - 1) * 1000 + b"\2" * 1000
    record = _replace(log.records[0], idempotency_key=b"hostile", digest=bytes(16), outcomes=runs)
    bucket.put_log(encode_log(_replace(log, records=(record,))))


@case
def a_condition_nested_deeply(bucket: Bucket) -> None:
    log = bucket._next()
    record = _replace(log.records[0], condition=b"\x91" * 100_000 + b"\0")
    bucket.put_log(encode_log(_replace(log, records=(record,))))


@case
def a_condition_nested_as_deep_as_msgpack_goes(bucket: Bucket) -> None:
    log = bucket._next()
    record = _replace(log.records[0], condition=b"\x91" * 900 + b"\0")
    bucket.put_log(encode_log(_replace(log, records=(record,))))


@case
def a_log_object_of_the_highest_slot(bucket: Bucket) -> None:
    log = bucket._next()
    record = _replace(log.records[0], lsn=pack_lsn(SLOT_MAX, 0))
    data = encode_log(_replace(log, slot=SLOT_MAX, created_at_us=LSN_MAX, records=(record,)))
    bucket.put(f"wal/{SLOT_MAX:020d}.wal", data)


@case
def a_log_object_of_the_highest_epoch(bucket: Bucket) -> None:
    log = _replace(bucket._next(), epoch=LSN_MAX, created_at_us=LSN_MAX)
    bucket.put_log(encode_log(log))


@case
def a_log_object_that_attaches_a_segment_of_any_size(bucket: Bucket) -> None:
    log = bucket._next(LogKind.ATTACH)
    lsn = log.records[0].lsn
    _, ref = segment()
    ref = _replace(
        ref, size=LSN_MAX, rows=LSN_MAX, footer_length=2**32 - 1, lsn_min=lsn, lsn_max=lsn
    )
    record = _replace(log.records[0], segments=(_replace(ref, version=lsn),))
    bucket.put_log(encode_log(_replace(log, records=(record,))))


# Segments.


@case
def an_lz4_block_that_claims_a_gigabyte(bucket: Bucket) -> None:
    bucket.with_segment(*segment_of_block(b"\0" * 100, 1, 1 << 30))


@case
def a_zstd_block_of_a_gigabyte(bucket: Bucket) -> None:
    bucket.with_segment(*segment_of_block(forged_arrow.zstd_zeros(1 << 30), 2, 1 << 30))


@case
def a_block_that_is_compressed_within(bucket: Bucket) -> None:
    message = forged_arrow.claiming(2**45).message
    bucket.with_segment(*segment_of_block(message, 0, len(message)))


@case
def an_index_that_claims_2_to_45_bytes(bucket: Bucket) -> None:
    bucket.with_segment(*segment_of_index(forged_arrow.claiming(2**45).data))


@case
def an_index_of_a_gigabyte(bucket: Bucket) -> None:
    bucket.with_segment(*segment_of_index(forged_arrow.bomb(1_000_000_000).data))


@case
def a_damaged_segment_made_of_all_slots(bucket: Bucket) -> None:
    data, ref = segment(replaced_slots=(1, SLOT_MAX), part=(1, LSN_MAX))
    spoilt = bytearray(data)
    spoilt[40] ^= 1
    bucket.with_segment(bytes(spoilt), ref)


# Dedup windows.


def _window(bucket: Bucket, window: DedupWindow) -> None:
    data = encode_dedup(window)
    bucket.put(f"dedup/{ULID}.dedup", data)
    head = bucket.head
    assert head.dedup is not None
    ref = _replace(head.dedup, id=ULID, size=len(data), checksum=dedup_checksum(data))
    old = PendingDelete(f"namespaces/{NAMESPACE}/dedup/{head.dedup.id}.dedup", head.generation + 1)
    bucket.publish(dedup=ref, gc=_replace(head.gc, pending=(*head.gc.pending, old)))


@case
def a_receipt_of_more_rows_than_there_can_be(bucket: Bucket) -> None:
    runs = b"\1" + struct.pack("<I", 2**32 - 1) * 1000 + b"\2" * 1000
    entry = DedupEntry(b"request-0", 1 << 20, bytes(16), runs, LSN_MAX)
    _window(bucket, DedupWindow(bucket.head.last_applied_lsn, (entry,), ()))


@case
def a_window_of_the_highest_lsn(bucket: Bucket) -> None:
    _window(bucket, DedupWindow(LSN_MAX, (), ()))


@case
def a_chain_of_the_highest_anchor(bucket: Bucket) -> None:
    anchor = WalAnchor(SLOT_MAX - 2, 7, bucket.head.writer_epoch)
    bucket.publish(
        wal_floor=SLOT_MAX - 1,
        wal_anchor=anchor,
        wal_last_seen=SLOT_MAX - 1,
        last_applied_lsn=pack_lsn(SLOT_MAX - 2, 0),
    )
