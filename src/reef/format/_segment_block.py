"""A block of a segment as bytes: an Arrow batch, compressed where that pays, under a checksum."""

from __future__ import annotations

import struct
from typing import NamedTuple

import pyarrow as pa

from reef.errors import CorruptError, IncompleteError, InvariantError
from reef.format._arrow_limits import PLAIN_BYTES, RawRoom, check_batch, check_lz4, is_plain
from reef.format._block_index import BlockPlace
from reef.format._frame import crc32c
from reef.format._row_stream import PLAIN, WORTHWHILE, arrow_errors, encode_stream
from reef.format._segment_model import FRAME

_HEAD = struct.Struct("<BBHI")
_CODEC_NUMBERS = {"plain": 0, "lz4": 1, "zstd": 2}
_CODECS = {1: pa.Codec("lz4_raw"), 2: pa.Codec("zstd")}
_RAW_BYTES_MAX = 1 << 30
BLOCK_BYTES_MIN = FRAME.size + _HEAD.size + 1

# A block that its codec barely shrinks is stored plain, to be read without a copy: vectors under
# lz4, most of all. Whether the codec has become worthwhile is tried again once in a while.
_PLAIN_RUN = 16


class Block(NamedTuple):
    """A finished block: which rows it holds, and their bytes, frame included."""

    row: int
    rows: int
    parts: tuple[bytes, pa.Buffer, bytes]
    checksum: int

    def place(self, offset: int) -> BlockPlace:
        """Return what an index says of the block when its frame starts at `offset`."""
        return BlockPlace(self.row, self.rows, offset, sum(map(len, self.parts)), self.checksum)


class BlockEncoder:
    """Encodes the rows of some columns, block after block."""

    def __init__(self, schema: pa.Schema, codec: str) -> None:
        self._codec = _CODEC_NUMBERS[codec]
        # A stream is a schema message, the batch message that we want, and 8 bytes that end it.
        sink = pa.BufferOutputStream()
        pa.ipc.new_stream(sink, schema, options=PLAIN).close()
        self._schema_bytes = sink.getvalue().size - 8
        self._plain_left = 0
        self._row = 0

    def encode(self, batch: pa.RecordBatch) -> Block:
        """Return the block of `batch`, which goes on where the one before ended."""
        stream = encode_stream(batch, PLAIN)
        message = stream.slice(self._schema_bytes, stream.size - self._schema_bytes - 8)
        if message.size > _RAW_BYTES_MAX:
            raise InvariantError(f"a block of {message.size} bytes is more than a segment takes")
        number, body = self._compressed(message)
        padding = bytes(-body.size % 8)
        head = _HEAD.pack(number, len(padding), 0, message.size)
        checksum = crc32c(padding, crc32c(body, crc32c(head)))
        frame = FRAME.pack(len(head) + body.size + len(padding), checksum)
        block = Block(self._row, batch.num_rows, (frame + head, body, padding), checksum)
        self._row += batch.num_rows
        return block

    def _compressed(self, message: pa.Buffer) -> tuple[int, pa.Buffer]:
        """Return the number of a codec, and what it makes of `message`."""
        if self._plain_left:
            self._plain_left -= 1
            return _CODEC_NUMBERS["plain"], message
        body = _CODECS[self._codec].compress(message, asbytes=False)
        if body.size > message.size * WORTHWHILE:
            self._plain_left = _PLAIN_RUN
            return _CODEC_NUMBERS["plain"], message
        return self._codec, body


def decode_block(
    block: pa.Buffer, place: BlockPlace, schema: pa.Schema, key: str
) -> pa.RecordBatch:
    """Return the rows of a block from its bytes, frame included."""
    if block.size != place.length:
        raise IncompleteError(key, place.offset, f"{place.length} bytes", f"{block.size}")
    framed = block.slice(FRAME.size)
    got = (framed.size, crc32c(framed))
    if not FRAME.unpack_from(block) == got == (place.length - FRAME.size, place.checksum):
        raise CorruptError(key, place.offset, f"crc32c {place.checksum:08x}", f"{got[1]:08x}")
    batch = decode_framed(framed, place.offset, schema, key)
    if batch.num_rows != place.rows:
        raise CorruptError(key, place.offset, f"{place.rows} rows", f"{batch.num_rows}")
    return batch


def decode_framed(framed: pa.Buffer, offset: int, schema: pa.Schema, key: str) -> pa.RecordBatch:
    """Return the rows of a block at `offset` from what its frame holds, which is under its checksum."""
    with arrow_errors(key, offset, "an Arrow record batch"):
        message = _decompress(framed, offset, key)
        if not is_plain(message.slice(0, PLAIN_BYTES).to_pybytes()):
            check_batch(memoryview(message), RawRoom(0))  # the block as a whole is compressed
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
    return batch


def _decompress(framed: pa.Buffer, offset: int, key: str) -> pa.Buffer:
    """Return the Arrow message of a block from what its frame holds."""
    codec, padding, zero, raw = _HEAD.unpack_from(framed)
    body_bytes = framed.size - _HEAD.size - padding
    if zero or padding > 7 or body_bytes < 1 or raw > _RAW_BYTES_MAX:
        raise CorruptError(key, offset, "a block's head", f"{codec, padding, zero, raw}")
    if padding and any(memoryview(framed)[-padding:]):
        raise CorruptError(key, offset, f"{padding} zeros at its end", "something else")
    body = framed.slice(_HEAD.size, body_bytes)
    if codec == _CODEC_NUMBERS["lz4"]:
        check_lz4(raw, body_bytes)
    if codec in _CODECS:
        return _CODECS[codec].decompress(body, decompressed_size=raw, asbytes=False)
    if codec != _CODEC_NUMBERS["plain"] or raw != body_bytes:
        raise CorruptError(key, offset, "a known codec", f"{codec, raw}")
    return body
