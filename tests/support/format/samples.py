"""Small objects of each on-store format that use every field."""

from __future__ import annotations

import pyarrow as pa

from reef.format import (
    Boundary,
    Collection,
    DedupEntry,
    DedupRef,
    DedupStream,
    DedupWindow,
    Intent,
    Lease,
    LogKind,
    LogObject,
    LogRecord,
    Manifest,
    Origin,
    PendingDelete,
    Pin,
    Prev,
    Retention,
    SegmentOptions,
    SegmentOrigin,
    SegmentRef,
    SegmentWriter,
    SkippedSlot,
    Snapshot,
    WalAnchor,
    log_schema,
    schema_fingerprint,
    segment_schema,
    with_field_id,
)
from reef.types import pack_lsn

LOG_COLUMNS = [
    with_field_id(pa.field("title", pa.string()), 1),
    with_field_id(pa.field("price", pa.float64()), 2),
]
SEGMENT_COLUMNS = [
    *LOG_COLUMNS,
    with_field_id(pa.field("vector", pa.list_(pa.float32(), 4)), 7),
]
SCHEMA = pa.schema(SEGMENT_COLUMNS)


def sample_attached() -> SegmentRef:
    """Return a segment that log object 5 attached: all its rows are of that version."""
    return SegmentRef(
        id="01J9ZQ3V5N8W2X4Y6Z7A8B9C0K-bulk-load-1",
        level=0,
        rows=500,
        tombstones=0,
        key_min=b"b",
        key_max=b"c",
        lsn_min=pack_lsn(5, 0),
        lsn_max=pack_lsn(5, 0),
        size=9000,
        footer_length=700,
        checksum=0x99AABBCC,
        version=pack_lsn(5, 0),
    )


def sample_manifest() -> Manifest:
    """Return generation 7 of a branch: every field set, every list with an entry."""
    schema = SCHEMA.serialize().to_pybytes()
    return Manifest(
        namespace="what-if",
        generation=7,
        state="live",
        born=2,
        author="writer-01J9ZQ3V5N8W2X4Y6Z7A8B9C0D",
        nonce="00112233445566778899aabbccddeeff",
        created_at_us=1_760_000_000_123_456,
        predecessor_checksum=0xDEADBEEF,
        repaired_from=5,
        origin=Origin(
            namespace="products",
            generation=41,
            lsn=pack_lsn(90, 3),
            head=WalAnchor(slot=90, checksum=0x0BADF00D, epoch=9),
            nonce="8899aabbccddeeff0011223344556677",
        ),
        lsn_policy="packed",
        max_parallel_writes=4,
        writer_epoch=12,
        compactor_epoch=3,
        lease=Lease(
            holder="writer-01J9ZQ3V5N8W2X4Y6Z7A8B9C0D",
            host="worker-2.example",
            opened_at_us=1_760_000_000_000_000,
        ),
        wal_floor=101,
        wal_anchor=WalAnchor(slot=99, checksum=0x01020304, epoch=12),
        wal_last_seen=104,
        last_applied_lsn=pack_lsn(99, 1),
        dedup=DedupRef(id="01J9ZQ3V5N8W2X4Y6Z7A8B9C0E", size=210, checksum=0x0A0B0C0D),
        retention=Retention(floor_lsn=pack_lsn(50, 0), pitr_window_ms=604_800_000),
        schema=schema,
        schema_fingerprint=schema_fingerprint(schema),
        skipped_slots=(SkippedSlot(slot=97, checksum=0xFFFFFFFF),),
        intents=(
            Intent(
                id="compact-7f3a",
                kind="compact",
                author="spark-driver",
                opened_at_us=1_760_000_000_100_000,
                generation=6,
            ),
        ),
        pins=(
            Pin(
                generation=5,
                lsn=pack_lsn(95, 0),
                child="what-if-not",
                nonce="ffeeddccbbaa99887766554433221100",
            ),
        ),
        snapshots=(
            Snapshot(id="before-sale", generation=4, lsn=pack_lsn(92, 0), expires_at_us=0),
            Snapshot(
                id="nightly",
                generation=7,
                lsn=pack_lsn(102, 0),
                expires_at_us=1_760_086_400_000_000,
            ),
        ),
        gc=Collection(
            pending=(
                PendingDelete(
                    key="namespaces/what-if/segments/01J9ZQ3V5N8W2X4Y6Z7A8B9C0F-e11.seg",
                    since_generation=6,
                ),
            ),
            boundary=Boundary(slot=91, generation=2),
            grace_ms=900_000,
        ),
        segments=(
            SegmentRef(
                id="01J9ZQ3V5N8W2X4Y6Z7A8B9C0G-e12",
                level=0,
                rows=3,
                tombstones=1,
                key_min=b"a",
                key_max=b"z\xff\x00",
                lsn_min=pack_lsn(91, 0),
                lsn_max=pack_lsn(99, 1),
                size=4096,
                footer_length=512,
                checksum=0x11223344,
            ),
            SegmentRef(
                id="01J9ZQ3V5N8W2X4Y6Z7A8B9C0H",
                level=6,
                rows=1_000_000,
                tombstones=0,
                key_min=b"",
                key_max=b"\xff\xff\xff\xff",
                lsn_min=pack_lsn(1, 0),
                lsn_max=pack_lsn(120, 0),
                size=67_108_864,
                footer_length=65_536,
                checksum=0x55667788,
                namespace="products",
                clip_lsn=pack_lsn(90, 3),
                clip_key_min=b"m",
                clip_key_max=b"t\x80",
            ),
            sample_attached(),
        ),
    )


def sample_dedup() -> DedupWindow:
    """Return a window of two requests and two sources."""
    return DedupWindow(
        last_lsn=pack_lsn(99, 1),
        entries=(
            DedupEntry(
                key=b"order-17",
                lsn=pack_lsn(95, 0),
                digest=bytes(range(16)),
                receipt=b"\x93\x01\x02\x03",
                committed_at_us=1_760_000_000_000_001,
            ),
            DedupEntry(
                key=b"\x00\xff",
                lsn=pack_lsn(95, 1),
                digest=bytes(range(240, 256)),
                receipt=b"",
                committed_at_us=1_760_000_000_000_002,
            ),
        ),
        streams=(
            DedupStream(source="kafka/orders/0", sequence=0, lsn=pack_lsn(95, 0)),
            DedupStream(source="kafka/orders/1", sequence=2**63 - 1, lsn=pack_lsn(99, 1)),
        ),
    )


def sample_log(kind: LogKind = LogKind.DATA) -> LogObject:
    """Return log object 5 of epoch 2, of any kind, with every field that the kind has."""
    return LogObject(
        kind=kind,
        slot=5,
        epoch=2,
        writer_id=b"writer-of-epoch2",
        nonce=bytes(range(16)),
        created_at_us=1_760_000_000_000_000,
        prev=Prev(slot=3, checksum=0xCAFEF00D),
        records=_sample_records()[kind],
    )


def _sample_records() -> dict[LogKind, tuple[LogRecord, ...]]:
    rows = pa.record_batch(
        [
            pa.array([b"a", b"b\x00\xff"], pa.binary()),
            pa.array([False, True]),
            pa.array(["first", None]),
            pa.array([1.5, None]),
        ],
        schema=log_schema(LOG_COLUMNS),
    )
    return {
        LogKind.DATA: (
            LogRecord(
                lsn=pack_lsn(5, 0),
                batch=rows,
                idempotency_key=b"request-1",
                digest=b"0123456789abcdef",
                condition=b"must-exist",
                outcomes=b"\x01\x00",
            ),
            LogRecord(lsn=pack_lsn(5, 1), batch=rows.slice(0, 0), source="orders", sequence=41),
        ),
        LogKind.FENCE: (LogRecord(skipped=(SkippedSlot(slot=4, checksum=7),)),),
        LogKind.ATTACH: (LogRecord(lsn=pack_lsn(5, 0), segments=(sample_attached(),)),),
        LogKind.SCHEMA: (LogRecord(lsn=pack_lsn(5, 0), schema=pa.schema(LOG_COLUMNS)),),
    }


def sample_rows(rows: int = 6) -> pa.RecordBatch:
    """Return sorted segment rows: two versions of each key, the older of every third a tombstone."""
    return pa.record_batch(
        [
            pa.array([b"key-%06d" % (i // 2) for i in range(rows)], pa.binary()),
            pa.array([pack_lsn(10 - i % 2, i // 2 % 1000) for i in range(rows)], pa.int64()),
            pa.array([i % 6 == 1 for i in range(rows)], pa.bool_()),
            pa.array([None if i % 6 == 1 else f"title {i}" for i in range(rows)], pa.string()),
            pa.array([None if i % 6 == 1 else i / 4 for i in range(rows)], pa.float64()),
            pa.array([[i, -i, i / 2, 0.5] for i in range(rows)], pa.list_(pa.float32(), 4)),
        ],
        schema=segment_schema(SEGMENT_COLUMNS),
    )


def sample_segment(
    rows: pa.RecordBatch | None = None, options: SegmentOptions | None = None
) -> tuple[bytes, SegmentRef]:
    """Return a segment file, of several row and column blocks by default, and its reference."""
    rows = sample_rows() if rows is None else rows
    origin = SegmentOrigin(
        id="01J9ZQ3V5N8W2X4Y6Z7A8B9C0F-e2",
        namespace="what-if",
        level=1,
        author="writer-01J9ZQ3V5N8W2X4Y6Z7A8B9C0D",
        created_at_us=1_760_000_000_000_000,
        replaced_segments=("01J9ZQ3V5N8W2X4Y6Z7A8B9C0E",),
        replaced_slots=(7, 10),
        part=(2, 3),
    )
    options = options or SegmentOptions(row_block_bytes=100, column_block_bytes=40)
    writer = SegmentWriter(rows.schema, origin, options)
    data = b"".join(writer.parts([rows]))
    return data, writer.ref
