"""What a message claims is refused before anything is allocated for it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from reef.errors import CorruptError, TooLargeError
from reef.format import Unreadable, decode_schema, decode_stream, log_schema
from reef.format._arrow_limits import PLAIN_BYTES, RawRoom, is_plain
from reef.format._row_stream import LOG_COLUMNS, schema_problem
from tests.hostile.forged_arrow import Stream, bomb, claiming, echoing_schema, rows


def decoded(data: bytes, room: int = 1 << 30) -> pa.RecordBatch:
    return decode_stream(pa.py_buffer(data), "wal/1", 0, RawRoom(room))


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_an_honest_stream_is_read(codec: str) -> None:
    assert decoded(Stream(rows(), codec).data) == rows()


@pytest.mark.parametrize("claimed", [2**45, 2**62, 1 << 31])
@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_claim_beyond_the_limits_is_corrupt(codec: str, claimed: int) -> None:
    with pytest.raises(CorruptError, match=str(claimed)[:5]) as info:
        decoded(claiming(claimed, codec).data)
    assert info.value.key == "wal/1"


def test_lz4_cannot_be_more_than_255_times_as_small() -> None:
    with pytest.raises(CorruptError, match="more than 255 times as many"):
        decoded(claiming(100_000).data)


def test_zstd_may_hold_what_it_claims_within_the_limits() -> None:
    assert decoded(bomb(10_000_000).data).nbytes > 10_000_000
    with pytest.raises(CorruptError, match="1900000013 bytes uncompressed, more than 1073741824"):
        decoded(bomb(1_900_000_000).data)


def test_parts_of_an_object_share_what_they_may_take() -> None:
    room = RawRoom(1_500_000)
    data = pa.py_buffer(bomb(1_000_000).data)
    decode_stream(data, "", 0, room)
    with pytest.raises(CorruptError, match="more than 499987"):
        decode_stream(data, "", 0, room)


def test_a_claim_is_refused_even_when_the_schema_was_seen_before() -> None:
    plain = rows()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, plain.schema) as writer:
        writer.write_batch(plain)
    assert decoded(sink.getvalue().to_pybytes()) == decoded(sink.getvalue().to_pybytes())
    with pytest.raises(CorruptError):
        decoded(claiming(2**45).data)


def test_plain_messages_are_known_as_such() -> None:
    message = bytes(rows().serialize())
    assert is_plain(message[:PLAIN_BYTES])
    assert not is_plain(claiming(100).message[:PLAIN_BYTES])
    assert not is_plain(b"")


def test_a_schema_whose_fields_share_a_long_name_is_corrupt() -> None:
    assert len(decode_schema(pa.py_buffer(echoing_schema(3, 10)), "", 0)) == 3
    with pytest.raises(CorruptError, match="a schema of 130152 bytes that would take"):
        decode_schema(pa.py_buffer(echoing_schema()), "", 0)


@pytest.mark.parametrize(
    "item", [pa.null(), pa.struct([]), pa.binary(0), pa.list_(pa.int8(), 0)], ids=str
)
def test_lists_of_what_takes_no_bytes_are_not_stored(item: pa.DataType) -> None:
    schema = log_schema([pa.field("c", pa.list_(item))])
    assert "take no bytes" in schema_problem(schema, LOG_COLUMNS)
    with pytest.raises(CorruptError, match="take no bytes"):
        decode_schema(pa.py_buffer(schema.serialize().to_pybytes()), "", 0)
    assert schema_problem(log_schema([pa.field("c", item)]), LOG_COLUMNS) == ""


def test_an_object_that_is_too_large_crosses_between_processes() -> None:
    error = TooLargeError("k", 1, "a", "b")
    assert type(Unreadable.of(error).error()) is TooLargeError
