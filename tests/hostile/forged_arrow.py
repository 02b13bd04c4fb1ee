"""Arrow messages that claim more than they hold, and compressed bytes that hold more than is good.

Every byte is the same in every run.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from reef.format import log_schema, with_field_id

VALUE = with_field_id(pa.field("value", pa.binary()), 1)
SCHEMA = log_schema([VALUE])
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"

_ZSTD_BLOCK_BYTES = 128 << 10
_OFFSETS, _DATA = 6, 7
"""Which of a message's buffers are those of the values."""


def rows(keys: int = 3) -> pa.RecordBatch:
    """Return a batch as the key-value face logs it."""
    names = [b"k%03d" % i for i in range(keys)]
    columns = [pa.array(names, pa.binary()), pa.array([False] * keys), pa.array(names, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def zstd_zeros(size: int) -> bytes:
    """Return a zstd frame of so many zeros: four bytes for each 128 KiB."""
    parts = [b"\x28\xb5\x2f\xfd", b"\xe0", struct.pack("<Q", size)]  # one segment, size in 8 bytes
    left = size
    while left:
        some = min(left, _ZSTD_BLOCK_BYTES)
        left -= some
        parts.append(struct.pack("<I", some << 3 | 1 << 1 | (not left))[:3] + b"\0")
    return b"".join(parts)


def plain_stream(batch: pa.RecordBatch, codec: str | None = None) -> bytes:
    """Return an Arrow stream of one batch."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


class Stream:
    """The stream of one compressed batch, whose buffers can be replaced."""

    def __init__(self, batch: pa.RecordBatch, codec: str) -> None:
        data = plain_stream(batch, codec)
        self._schema = batch.schema.serialize().to_pybytes()
        at = len(self._schema)
        _, length = struct.unpack_from("<II", data, at)
        self._metadata = bytearray(data[at + 8 : at + 8 + length])
        self._body = bytearray(data[at + 8 + length : -len(END_OF_STREAM)])
        message = self._target(0)
        self._length_at = self._field(message, 3)
        self._buffers_at = self._target(self._field(self._target(self._field(message, 2)), 2)) + 4

    def replace(self, number: int, claimed: int, stored: bytes) -> None:
        """Let buffer `number` be `stored`, which claims to be `claimed` bytes (-1: uncompressed)."""
        offset = len(self._body)
        data = struct.pack("<q", claimed) + stored
        self._body += data + bytes(-len(data) % 8)
        struct.pack_into("<qq", self._metadata, self._buffers_at + 16 * number, offset, len(data))
        struct.pack_into("<q", self._metadata, self._length_at, len(self._body))

    def claim(self, number: int, claimed: int) -> None:
        """Let buffer `number` claim to be `claimed` bytes."""
        (offset,) = struct.unpack_from("<q", self._metadata, self._buffers_at + 16 * number)
        struct.pack_into("<q", self._body, offset, claimed)

    @property
    def message(self) -> bytes:
        """The message of the batch alone."""
        head = struct.pack("<II", 0xFFFFFFFF, len(self._metadata))
        return head + bytes(self._metadata) + bytes(self._body)

    @property
    def data(self) -> bytes:
        """The whole stream."""
        return self._schema + self.message + END_OF_STREAM

    def _target(self, at: int) -> int:
        return at + int(struct.unpack_from("<I", self._metadata, at)[0])

    def _field(self, table: int, number: int) -> int:
        vtable = table - struct.unpack_from("<i", self._metadata, table)[0]
        place = struct.unpack_from("<H", self._metadata, vtable + 4 + 2 * number)[0]
        assert place, "the field is left out"
        return table + int(place)


def claiming(claimed: int, codec: str = "lz4") -> Stream:
    """Return a stream of three rows whose values claim to be `claimed` bytes."""
    stream = Stream(rows(), codec)
    stream.claim(_DATA, claimed)
    return stream


def bomb(size: int) -> Stream:
    """Return a stream of one row, whose value is so many zeros: it holds what it claims."""
    stream = Stream(rows(1), "zstd")
    stream.replace(_OFFSETS, -1, struct.pack("<ii", 0, size))
    stream.replace(_DATA, size, zstd_zeros(size))
    return stream


def echoing_schema(fields: int = 20_000, name_bytes: int = 50_000) -> bytes:
    """Return a schema message in which thousands of fields are one, which has a long name."""
    flat = _Flat()
    flat.pointer("message")
    flat.table("message", "h", 4, "B", 1, "p", "schema", "q", 0)
    flat.table("schema", "h", 0, "p", "fields")
    flat.vector("fields", fields, "field")
    flat.table("field", "p", "name", "B", 0, "B", 2, "p", "int", "", 0, "p", "children")
    flat.table("int", "i", 8, "B", 1)
    flat.vector("children", 0, "")
    flat.text("name", b"n" * name_bytes)
    metadata = flat.finished()
    return struct.pack("<II", 0xFFFFFFFF, len(metadata)) + metadata


class _Flat:
    """A flatbuffer, written from the front to the back."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._places: dict[str, int] = {}
        self._pointers: list[tuple[int, str]] = []

    def pointer(self, name: str) -> None:
        self._pointers.append((len(self._data), name))
        self._data += bytes(4)

    def table(self, name: str, *fields: object) -> None:
        """Write a table of fields, each of a kind ("p": a pointer, "": left out) and a value."""
        pairs = list(zip(fields[::2], fields[1::2], strict=True))
        self._data += bytes(-len(self._data) % 8)
        vtable = len(self._data)
        self._data += bytes(4 + 2 * len(pairs) + -(4 + 2 * len(pairs)) % 8)
        table = self._places[name] = len(self._data)
        self._data += struct.pack("<i", table - vtable)
        for number, (kind, value) in enumerate(pairs):
            if kind:
                size = 4 if kind == "p" else struct.calcsize(str(kind))
                self._data += bytes(-len(self._data) % size)
                place = len(self._data) - table
                struct.pack_into("<H", self._data, vtable + 4 + 2 * number, place)
                if kind == "p":
                    self.pointer(str(value))
                else:
                    self._data += struct.pack(f"<{kind}", value)
        sizes = (4 + 2 * len(pairs), len(self._data) - table)
        struct.pack_into("<2H", self._data, vtable, *sizes)

    def vector(self, name: str, count: int, of: str) -> None:
        self._data += bytes(-len(self._data) % 4)
        self._places[name] = len(self._data)
        self._data += struct.pack("<I", count)
        for _ in range(count):
            self.pointer(of)

    def text(self, name: str, text: bytes) -> None:
        self._data += bytes(-len(self._data) % 4)
        self._places[name] = len(self._data)
        self._data += struct.pack("<I", len(text)) + text + b"\0"

    def finished(self) -> bytes:
        for at, name in self._pointers:
            struct.pack_into("<I", self._data, at, self._places[name] - at)
        return bytes(self._data + bytes(-len(self._data) % 8))
