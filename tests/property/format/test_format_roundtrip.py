"""Whatever rows there are, they come back; whatever bytes there are, only damage is raised."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from reef.errors import UnreadableError
from reef.format import (
    LogKind,
    LogObject,
    LogRecord,
    Prev,
    SegmentOptions,
    decode_dedup,
    decode_log,
    decode_manifest,
    decode_segment,
    encode_log,
    log_schema,
    segment_schema,
)
from reef.types import LSN_MAX, SLOT_MAX
from tests.support.format.samples import sample_segment

FIELDS = [
    pa.field("text", pa.string()),
    pa.field("real", pa.float64()),
    pa.field("flag", pa.bool_()),
    pa.field("raw", pa.binary()),
    pa.field("tags", pa.list_(pa.string())),
    pa.field("vector", pa.list_(pa.float32(), 3)),
]
keys = st.binary(max_size=40)
float32 = st.floats(width=32, allow_nan=False)
payloads = st.fixed_dictionaries(
    {
        "text": st.none() | st.text(max_size=80),
        "real": st.none() | st.floats(allow_nan=False),
        "flag": st.none() | st.booleans(),
        "raw": st.none() | st.binary(max_size=80),
        "tags": st.none() | st.lists(st.none() | st.text(max_size=5), max_size=3),
        "vector": st.none() | st.lists(float32, min_size=3, max_size=3),
    }
)


def columns_of(rows: list[dict[str, object]]) -> list[pa.Array]:
    return [pa.array([row[field.name] for row in rows], field.type) for field in FIELDS]


@st.composite
def log_objects(draw: st.DrawFn) -> LogObject:
    slot = draw(st.integers(1, SLOT_MAX))
    lsns = sorted(draw(st.sets(st.integers(1, LSN_MAX), min_size=1, max_size=4)))
    records = []
    for lsn in lsns:
        rows = draw(st.lists(st.tuples(keys, st.booleans(), payloads), max_size=5))
        batch = pa.record_batch(
            [
                pa.array([key for key, _, _ in rows], pa.binary()),
                pa.array([tombstone for _, tombstone, _ in rows], pa.bool_()),
                *columns_of([payload for _, _, payload in rows]),
            ],
            schema=log_schema(FIELDS),
        )
        key = draw(st.none() | st.binary(min_size=1, max_size=512))
        records.append(LogRecord(lsn=lsn, batch=batch, idempotency_key=key))
    return LogObject(
        kind=LogKind.DATA,
        slot=slot,
        epoch=draw(st.integers(1, LSN_MAX)),
        writer_id=draw(st.binary(min_size=16, max_size=16)),
        nonce=draw(st.binary(min_size=16, max_size=16).filter(any)),
        created_at_us=draw(st.integers(0, LSN_MAX)),
        prev=Prev(draw(st.integers(0, slot - 1)), draw(st.integers(0, 2**32 - 1))),
        records=tuple(records),
    )


@given(log_objects(), st.sampled_from(["lz4", "zstd"]))
def test_log_objects_come_back(log: LogObject, codec: str) -> None:
    assert decode_log(encode_log(log, codec=codec), slot=log.slot) == log


@given(
    st.dictionaries(st.tuples(keys, st.integers(1, LSN_MAX)), payloads, min_size=1, max_size=40),
    st.integers(1, 400),
    st.integers(1, 400),
    st.integers(1, 2000),
    st.sampled_from([None, (), ("text", "vector"), ("raw", "tags", "flag")]),
)
def test_segments_come_back(
    rows: dict[tuple[bytes, int], dict[str, object]],
    row_block_bytes: int,
    column_block_bytes: int,
    stripe_bytes: int,
    wide: tuple[str, ...] | None,
) -> None:
    ordered = sorted(rows, key=lambda version: (version[0], -version[1]))
    batch = pa.record_batch(
        [
            pa.array([key for key, _ in ordered], pa.binary()),
            pa.array([lsn for _, lsn in ordered], pa.int64()),
            pa.array([lsn % 3 == 0 for _, lsn in ordered], pa.bool_()),
            *columns_of([rows[version] for version in ordered]),
        ],
        schema=segment_schema(FIELDS),
    )
    options = SegmentOptions(
        row_block_bytes=row_block_bytes,
        column_block_bytes=column_block_bytes,
        stripe_bytes=stripe_bytes,
        wide=wide,
    )
    data, ref = sample_segment(batch, options)
    tail, table = decode_segment(data)
    assert table.combine_chunks() == pa.table(batch)
    assert (ref.rows, ref.key_min, ref.key_max) == (len(ordered), ordered[0][0], ordered[-1][0])
    for key, _ in ordered:
        blocks = tail.blocks_of(key, key + b"\0")
        covered = {
            row
            for block in blocks
            for row in range(tail.row_places[block].row, sum(tail.row_places[block][:2]))
        }
        assert {i for i, version in enumerate(ordered) if version[0] == key} <= covered


MAGICS = st.sampled_from([b"", b"RFWAL1\0\0\1\0\0\0", b"RFSEG1\0\0\1\0\0\0", b"RFDED1\0\0\1\0\0\0"])


@given(MAGICS, st.binary(max_size=300), st.sampled_from([b"", b"RFSEG1\0\0", b'"}\n']))
def test_whatever_the_bytes_only_damage_is_raised(head: bytes, body: bytes, end: bytes) -> None:
    for decode in (decode_log, decode_manifest, decode_dedup, decode_segment):
        try:
            decode(head + body + end)
        except UnreadableError:
            continue
        raise AssertionError("random bytes were taken for an object")
