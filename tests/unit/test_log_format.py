"""The log object: what round trips, what is refused, and with which error."""

from __future__ import annotations

import dataclasses
import struct

import pyarrow as pa
import pytest

from reef.errors import CorruptError, FormatVersionError, IncompleteError, InvariantError
from reef.format import (
    LogKind,
    LogObject,
    LogRecord,
    Prev,
    decode_log,
    encode_log,
    encode_manifest,
    log_checksum,
    log_key,
    log_schema,
)
from reef.format._frame import crc32c
from reef.format._log import HEADER_BYTES
from reef.types import SLOT_MAX, pack_lsn
from tests.samples import LOG_COLUMNS, sample_log, sample_manifest, sample_segment


def changed(log: LogObject, **fields: object) -> LogObject:
    return dataclasses.replace(log, **fields)


def record(log: LogObject, **fields: object) -> LogObject:
    return changed(log, records=(dataclasses.replace(log.records[0], **fields),))


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
    with pytest.raises(InvariantError):
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
