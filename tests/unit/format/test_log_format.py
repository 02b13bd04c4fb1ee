"""The log object: what round trips, what is refused, and with which error."""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from reef.errors import (
    CorruptError,
    DamagedError,
    FormatVersionError,
    IncompleteError,
    InvalidInputError,
    InvariantError,
    TooLargeError,
)
from reef.format import (
    LogKind,
    LogObject,
    LogRecord,
    Prev,
    SkippedSlot,
    _log_object,
    _row_stream,
    damaged_checksum,
    decode_log,
    encode_log,
    encode_manifest,
    log_checksum,
    log_key,
    log_schema,
    owned_rows,
    seal_log,
    with_field_id,
)
from reef.format._frame import crc32c
from reef.format._log_object import HEADER_BYTES
from reef.types import SLOT_MAX, pack_lsn
from tests.support.format.samples import (
    LOG_COLUMNS,
    sample_attached,
    sample_log,
    sample_manifest,
    sample_segment,
)


def changed(log: LogObject, **fields: object) -> LogObject:
    return msgspec.structs.replace(log, **fields)


NESTED_DICTIONARY = pa.list_(pa.struct([("d", pa.dictionary(pa.int32(), pa.string()))]))


def rows_with(name: str, column: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(
        [[b"a"], [False], column], schema=log_schema([pa.field(name, column.type)])
    )


def record(log: LogObject, **fields: object) -> LogObject:
    return changed(log, records=(msgspec.structs.replace(log.records[0], **fields),))


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("kind", LogKind)
def test_every_kind_round_trips(kind: LogKind, codec: str) -> None:
    log = sample_log(kind)
    data = encode_log(log, codec=codec)
    assert decode_log(data, slot=5) == log
    assert len(data) % 8 == 0


def test_many_batches_share_one_object_and_keep_their_own_records() -> None:
    batch = sample_log().records[0].batch
    records = tuple(
        LogRecord(lsn=pack_lsn(5, i), batch=batch, idempotency_key=b"k%d" % i) for i in range(300)
    )
    log = decode_log(encode_log(changed(sample_log(), records=records)))
    assert [r.idempotency_key for r in log.records] == [b"k%d" % i for i in range(300)]
    assert (log.lsn_first, log.lsn_last) == (pack_lsn(5, 0), pack_lsn(5, 299))
    assert log.operations == 600


def test_an_empty_batch_is_a_batch() -> None:
    log = record(sample_log(), batch=sample_log().records[0].batch.slice(0, 0))
    assert decode_log(encode_log(log)).operations == 0


def test_the_checksum_is_the_last_four_bytes_and_tells_nonces_apart() -> None:
    one = encode_log(sample_log())
    other = encode_log(changed(sample_log(), nonce=b"another author's"))
    assert log_checksum(one) == struct.unpack("<I", one[-4:])[0]
    assert log_checksum(one) != log_checksum(other)


def test_the_nonce_is_found_in_the_bytes() -> None:
    assert encode_log(sample_log()).count(sample_log().nonce) == 1


def test_keys_sort_like_slots() -> None:
    slots = [1, 9, 10, 99, 1000, SLOT_MAX]
    keys = [log_key("products", slot) for slot in slots]
    assert keys == sorted(keys)
    assert keys[0] == "namespaces/products/wal/00000000000000000001.wal"
    with pytest.raises(InvalidInputError):
        log_key("products", 0)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (changed(sample_log(), slot=0), "slot 0"),
        (changed(sample_log(), slot=SLOT_MAX + 1), "slot"),
        (changed(sample_log(), prev=Prev(5, 1)), "prev slot 5"),
        (changed(sample_log(), prev=Prev(4, 2**32)), "prev checksum"),
        (changed(sample_log(), epoch=0), "epoch 0"),
        (changed(sample_log(), created_at_us=-1), "time -1"),
        (changed(sample_log(), writer_id=b"short"), "writer id"),
        (changed(sample_log(), nonce=bytes(16)), "zeros"),
        (changed(sample_log(), nonce=b"15 bytes only.."), "nonce"),
        (changed(sample_log(), records=()), "no record"),
        (changed(sample_log(), records=sample_log().records[::-1]), "do not increase"),
        (changed(sample_log(), records=sample_log().records[:1] * 2), "do not increase"),
        (record(sample_log(), lsn=0), "versions 0"),
        (record(sample_log(LogKind.FENCE), lsn=1), "fence with versions"),
        (changed(sample_log(), kind=LogKind.FENCE), "fence"),
        (changed(sample_log(), kind=LogKind.ATTACH), "not of a attach"),
        (record(sample_log(), batch=None), "not of a data"),
        (record(sample_log(), source="s"), "source without a sequence"),
        (record(sample_log(), idempotency_key=b""), "wrong field"),
        (record(sample_log(), idempotency_key=b"x" * 513), "wrong field"),
        (record(sample_log(), digest=b"short"), "wrong field"),
        (record(sample_log(), batch=pa.record_batch({"_key": [b"a"]})), "instead of"),
        (
            record(
                sample_log(),
                batch=pa.record_batch(
                    [pa.array([None], pa.binary()), pa.array([False])],
                    schema=pa.schema([("_key", pa.binary()), ("_tombstone", pa.bool_())]),
                ),
            ),
            "a null",
        ),
        (record(sample_log(LogKind.ATTACH), lsn=pack_lsn(5, 1)), "another version"),
        (
            record(
                sample_log(LogKind.ATTACH), segments=(replace(sample_attached(), namespace="x"),)
            ),
            "another namespace",
        ),
        (
            record(sample_log(LogKind.SCHEMA), schema=pa.schema([("title", pa.string())])),
            "without a stable id",
        ),
        (
            record(sample_log(LogKind.SCHEMA), schema=pa.schema([LOG_COLUMNS[0]] * 2)),
            "same name",
        ),
        (
            record(
                sample_log(LogKind.SCHEMA),
                schema=pa.schema([LOG_COLUMNS[0], with_field_id(LOG_COLUMNS[1], 1)]),
            ),
            "two columns of one id",
        ),
        (record(sample_log(), batch=rows_with("_lsn", pa.array([7]))), "_lsn, which is reserved"),
        (
            record(
                sample_log(),
                batch=rows_with("deep", pa.array([[{"d": "x"}]], NESTED_DICTIONARY)),
            ),
            "dictionary",
        ),
        (
            record(
                sample_log(),
                batch=pa.record_batch([[b"k" * 4097], [False]], schema=log_schema([])),
            ),
            "a key of 4097 bytes",
        ),
        (
            record(
                sample_log(),
                batch=pa.record_batch(
                    [[b"a"], [False], pa.array(["x"]).dictionary_encode()],
                    schema=log_schema([pa.field("d", pa.dictionary(pa.int32(), pa.string()))]),
                ),
            ),
            "dictionary",
        ),
    ],
)
def test_nothing_wrong_is_ever_encoded(broken: LogObject, says: str) -> None:
    with pytest.raises(InvariantError, match=says):
        encode_log(broken)


def test_an_object_at_the_wrong_key_is_corrupt() -> None:
    with pytest.raises(CorruptError, match="slot 6, as its key says, got slot 5"):
        decode_log(encode_log(sample_log()), key="wal/6", slot=6)


def test_an_empty_object_is_incomplete() -> None:
    with pytest.raises(IncompleteError, match="an empty object"):
        decode_log(b"", key="wal/5")


def test_objects_of_other_kinds_are_named() -> None:
    with pytest.raises(CorruptError, match="got a manifest"):
        decode_log(encode_manifest(sample_manifest()))
    with pytest.raises(CorruptError, match="got a segment"):
        decode_log(sample_segment()[0])
    with pytest.raises(CorruptError, match="hello"):
        decode_log(b"hello, this is somebody's text file")


def test_a_future_version_asks_for_a_newer_reef() -> None:
    data = encode_log(sample_log())
    with pytest.raises(FormatVersionError, match=r"format version 2.*use a version of Reef"):
        decode_log(data[:8] + struct.pack("<I", 2) + data[12:])


def test_trailing_bytes_are_corrupt() -> None:
    with pytest.raises(CorruptError, match="4 bytes more"):
        decode_log(encode_log(sample_log()) + b"junk")


def test_a_record_of_the_wrong_kind_under_right_checksums_is_corrupt() -> None:
    """Checksums guard against damage; the rules guard against a writer that has gone wrong."""
    data = bytearray(encode_log(sample_log()))
    data[12] = LogKind.FENCE
    with pytest.raises(CorruptError):
        decode_log(_resealed(data))
    data[12] = 99
    with pytest.raises(CorruptError, match="kind 99"):
        decode_log(_resealed(data))


def _resealed(data: bytearray) -> bytes:
    """Return `data` with its footer's checksum made right again."""
    covered = bytes(data[:HEADER_BYTES])
    at = HEADER_BYTES
    while at < len(data) - 8:
        covered += bytes(data[at : at + 8])
        at += 8 + struct.unpack_from("<I", data, at)[0]
    covered += bytes(data[-8:-4])
    return bytes(data[:-4]) + struct.pack("<I", crc32c(covered))


def test_the_columns_of_a_schema_object_come_back() -> None:
    log = decode_log(encode_log(sample_log(LogKind.SCHEMA)))
    assert log.records[0].schema == pa.schema(LOG_COLUMNS)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("columns", [0, 1, 99, 400])
@pytest.mark.parametrize("rows", [0, 1, 3, 500])
def test_any_number_of_columns(columns: int, rows: int, codec: str) -> None:
    """What the codecs and Arrow add to small buffers must fit, too."""
    kinds = [pa.string(), pa.list_(pa.string()), pa.struct([("x", pa.int8()), ("y", pa.string())])]
    fields = [pa.field(f"column {i}", kinds[i % 3]) for i in range(columns)]
    values: list[list[object]] = [[None, "text"], [None, ["a", None]], [None, {"x": 1, "y": "b"}]]
    batch = pa.record_batch(
        [
            pa.array([b"%d" % i for i in range(rows)], pa.binary()),
            pa.array([False] * rows, pa.bool_()),
            *(
                pa.array([values[i % 3][r % 2] for r in range(rows)], f.type)
                for i, f in enumerate(fields)
            ),
        ],
        schema=log_schema(fields),
    )
    assert (
        decode_log(encode_log(record(sample_log(), batch=batch), codec=codec)).records[0].batch
        == batch
    )


def test_a_slice_of_a_union_is_encoded() -> None:
    """Arrow writes more for it than the slice itself holds."""
    union = pa.UnionArray.from_dense(
        pa.array([0, 1] * 500, pa.int8()),
        pa.array([i // 2 for i in range(1000)], pa.int32()),
        [pa.array(range(500)), pa.array([str(i) for i in range(500)])],
    )
    batch = pa.record_batch(
        [[b"a"] * 1000, [False] * 1000, union], schema=log_schema([pa.field("u", union.type)])
    )
    log = record(sample_log(), batch=batch.slice(990, 3))
    assert decode_log(encode_log(log)).records[0].batch.num_rows == 3


@pytest.mark.parametrize("seen_before", [False, True])
def test_running_out_of_memory_is_not_damage(
    monkeypatch: pytest.MonkeyPatch, seen_before: bool
) -> None:
    """A commit must never be passed over because a machine was short of memory."""

    def exhausted(*_: object, **__: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 419430400 failed")

    data = encode_log(sample_log())
    monkeypatch.setattr(_row_stream, "_plain_schemas", {})
    if seen_before:
        decode_log(data)
    monkeypatch.setattr(pa.ipc, "read_record_batch" if seen_before else "open_stream", exhausted)
    with pytest.raises(TooLargeError, match="more memory"):
        decode_log(data)
    assert not issubclass(TooLargeError, DamagedError)


@pytest.mark.parametrize("seen_before", [False, True])
def test_what_this_arrow_lacks_is_not_damage(
    monkeypatch: pytest.MonkeyPatch, seen_before: bool
) -> None:
    def lacking(*_: object, **__: object) -> None:
        raise pa.ArrowNotImplementedError("Support for codec 'x' not built")

    data = encode_log(sample_log())
    monkeypatch.setattr(_row_stream, "_plain_schemas", {})
    if seen_before:
        decode_log(data)
    monkeypatch.setattr(pa.ipc, "read_record_batch" if seen_before else "open_stream", lacking)
    with pytest.raises(FormatVersionError, match="codec 'x'"):
        decode_log(data)


def test_packed_versions_belong_to_their_slot() -> None:
    log = sample_log()
    assert decode_log(encode_log(log), lsn_policy="packed") == log
    shifted = changed(
        log, records=tuple(msgspec.structs.replace(r, lsn=r.lsn + 1) for r in log.records)
    )
    assert decode_log(encode_log(shifted), lsn_policy="caller") == shifted
    with pytest.raises(CorruptError, match="versions of slot 5"):
        decode_log(encode_log(shifted), lsn_policy="packed")
    fence = sample_log(LogKind.FENCE)
    assert decode_log(encode_log(fence), lsn_policy="packed") == fence


@pytest.mark.parametrize("data", [b"", b"abc", b"RFWAL1\0\0\1\0\0\0"])
def test_what_is_no_log_object_has_no_checksum(data: bytes) -> None:
    with pytest.raises((IncompleteError, CorruptError)):
        log_checksum(data)
    assert damaged_checksum(data) == crc32c(data)


@pytest.mark.parametrize("slots", [(5,), (6,), (4, 4)])
def test_a_fence_skips_slots_below_it_each_once(slots: tuple[int, ...]) -> None:
    skipped = tuple(SkippedSlot(slot, 1) for slot in slots)
    with pytest.raises(InvariantError, match="skipped slots"):
        encode_log(record(sample_log(LogKind.FENCE), skipped=skipped))


def test_values_that_a_reader_would_refuse_are_not_logged() -> None:
    """What is acknowledged must be readable."""
    broken = pa.StringArray.from_buffers(
        1, pa.py_buffer(struct.pack("<ii", 0, 2)), pa.py_buffer(b"\xff\xfe")
    )
    with pytest.raises(InvariantError, match="refused when it is read"):
        encode_log(record(sample_log(), batch=rows_with("s", broken)))


def test_a_batch_that_no_segment_could_hold_is_not_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_log_object, "BATCH_BYTES_MAX", 64 << 10)
    huge = pa.array([b"x" * (1 << 10)] * 100, pa.large_binary())
    batch = pa.record_batch(
        [[b"a"] * 100, [False] * 100, huge],
        schema=log_schema([pa.field("v", pa.large_binary())]),
    )
    with pytest.raises(InvariantError, match="bytes of rows"):
        encode_log(record(sample_log(), batch=batch))


def vectors_of(compressible: bool) -> pa.RecordBatch:
    """Return rows with vectors, of so many bytes that a sample says whether to compress them."""
    vectors = np.full((4000, 32), 0.25, np.float32)
    if not compressible:
        vectors = np.random.default_rng(1).random((4000, 32), dtype=np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 32)
    return pa.record_batch(
        [[b"%04d" % i for i in range(4000)], [False] * 4000, column],
        schema=log_schema([pa.field("v", column.type)]),
    )


@pytest.mark.parametrize("first", [0, 7])
@pytest.mark.parametrize("compressible", [False, True])
def test_rows_that_are_encoded_already_are_the_same_bytes(compressible: bool, first: int) -> None:
    given = vectors_of(compressible).slice(first)
    batch, stream = owned_rows(given)
    assert batch == given
    assert (stream is None) is compressible
    small, log = sample_log(LogKind.DATA).records[0], sample_log()
    large = replace(small, lsn=small.lsn + 1, batch=batch)
    for records, streams in (((large,), [stream]), ((small, large), [None, stream])):
        log = changed(log, records=records)
        sealed = seal_log(log, streams=streams)
        whole = sealed.data if isinstance(sealed.data, bytes) else b"".join(sealed.data)
        assert whole == encode_log(log)
        assert sealed.nbytes == len(whole)
        assert sealed.checksum == log_checksum(whole)


def test_rows_that_are_encoded_already_are_not_copied_again() -> None:
    batch, stream = owned_rows(vectors_of(False))
    data = seal_log(record(sample_log(), batch=batch), streams=[stream]).data
    assert [part.address for part in data if isinstance(part, pa.Buffer)] == [stream.address]
    address = batch["v"].values.buffers()[1].address
    assert stream.address <= address < stream.address + stream.size


def test_rows_that_are_encoded_already_are_no_larger_than_a_segment_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch, stream = owned_rows(vectors_of(False))
    monkeypatch.setattr(_log_object, "BATCH_BYTES_MAX", stream.size - 1)
    with pytest.raises(InvariantError, match="bytes of rows"):
        seal_log(record(sample_log(), batch=batch), streams=[stream])


@pytest.mark.parametrize("compressible", [False, True])
def test_what_its_codec_barely_shrinks_is_read_without_a_copy(compressible: bool) -> None:
    batch = vectors_of(compressible)
    data = encode_log(record(sample_log(), batch=batch))
    found = decode_log(data).records[0].batch
    assert found == batch
    whole = pa.py_buffer(data)
    address = found["v"].values.buffers()[1].address
    assert (whole.address <= address < whole.address + whole.size) is not compressible
