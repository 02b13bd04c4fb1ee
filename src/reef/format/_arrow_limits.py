"""What reading an Arrow message would allocate, from its metadata, before Arrow reads it.

Arrow believes what a message says: a compressed buffer of 100 bytes that claims 2**45 is allocated
first and found wrong afterwards, and a schema whose fields share one long name gets a copy of it for
each. So the claims are added up here. Metadata is a flatbuffer: a table begins with the distance back
to its vtable, which has the place of each field in the table, or 0 where it is left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

PREFIX = struct.Struct("<II")
"""What a message begins with: a marker, and the length of its metadata."""
CONTINUED = 0xFFFFFFFF

_I16, _U16 = struct.Struct("<h"), struct.Struct("<H")
_I32, _U32 = struct.Struct("<i"), struct.Struct("<I")
_BUFFER = struct.Struct("<qq")
_FIELDS_MAX = 8
_PLACES = [struct.Struct(f"<{count}H") for count in range(_FIELDS_MAX + 1)]
_LEFT_OUT = (0,) * _FIELDS_MAX

_V5 = 4
_SCHEMA, _RECORD_BATCH = 1, 3
_LZ4 = 0
_LZ4_RATIO_MAX = 255

# A schema this small cannot grow much, whatever it shares; a larger one is looked at once.
_SCHEMA_BYTES_MIN = 4 << 10
_SCHEMA_GROWTH_MAX = 16
_FIELD_BYTES = 256


def check_lz4(raw: int, stored: int) -> None:
    """Raise ValueError if `stored` bytes of lz4 cannot be `raw` bytes uncompressed."""
    if raw > stored * _LZ4_RATIO_MAX:
        raise ValueError(
            f"{stored} bytes of lz4 that claim to be {raw}, more than {_LZ4_RATIO_MAX} times as many"
        )


def is_plain(message: bytes) -> bool:
    """Return whether a record batch is sure to be uncompressed, from its first `PLAIN_BYTES` bytes.

    Such a message is laid out as Arrow here writes it. False says nothing.
    """
    return bool(_PLAIN) and message[8:40] == _PLAIN[8:40] and message[48:] == _PLAIN[48:]


class RawRoom:
    """How many bytes the parts of one object may still take uncompressed."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


def check_batch(data: memoryview, room: RawRoom) -> None:
    """Take what the record batch message in `data` takes uncompressed out of `room`.

    If it is not compressed, Arrow allocates nothing. Raises ValueError, IndexError or struct.error if
    it takes more than that, or more than its codec can mean, or is no message as Reef writes it.
    """
    metadata, body = _parts(data)
    batch = _table(metadata, _message(metadata, _RECORD_BATCH)[2])
    if not batch[3]:
        return
    # A buffer begins with its uncompressed length, -1 if it is not compressed. Arrow refuses what
    # lies outside of the body, or is not aligned.
    words, raw = body[: len(body) & -8].cast("q"), 0
    for offset, length in _BUFFER.iter_unpack(_vector(metadata, batch[2], _BUFFER.size)):
        if length and (said := words[offset >> 3]) > 0:
            raw += said
    codec = _table(metadata, batch[3])[0]
    if not codec or metadata[codec] == _LZ4:
        check_lz4(raw, len(body))
    if raw > room.left:
        raise ValueError(f"rows of {raw} bytes uncompressed, more than {room.left}")
    room.left -= raw


def check_schema(data: memoryview) -> None:
    """Raise ValueError or struct.error if reading the schema message in `data` takes far more memory."""
    if len(data) < _SCHEMA_BYTES_MIN:
        return
    metadata, _ = _parts(data)
    schema = _table(metadata, _message(metadata, _SCHEMA)[2])
    size = _Sizes(metadata).of_all(schema[1]) + _pairs_bytes(metadata, schema[2])
    if size > _SCHEMA_GROWTH_MAX * len(data):
        raise ValueError(f"a schema of {len(data)} bytes that would take {size} in memory")


def message_bytes(data: memoryview) -> int:
    """Return how long the schema message is that `data` begins with."""
    marker, length = PREFIX.unpack_from(data)
    if marker != CONTINUED or length > len(data) - PREFIX.size:
        raise ValueError("no Arrow message")
    return PREFIX.size + int(length)


class _Sizes:
    """What the fields of a schema take in memory; a field that several share counts each time."""

    def __init__(self, metadata: memoryview) -> None:
        self._metadata = metadata
        self._known: dict[int, int] = {}

    def of_all(self, at: int) -> int:
        """Return what the vector of fields takes that the field at `at` points to."""
        return sum(map(self._of, _tables(self._metadata, at)))

    def _of(self, table: int) -> int:
        size = self._known.get(table)
        if size is None:
            metadata, field = self._metadata, _fields(self._metadata, table)
            size = _FIELD_BYTES + _text_bytes(metadata, field[0])
            size += self.of_all(field[5]) + _pairs_bytes(metadata, field[6])
            self._known[table] = size
        return size


def _parts(data: memoryview) -> tuple[memoryview, memoryview]:
    """Return the metadata and the body of the message that fills `data`."""
    end = message_bytes(data)
    return data[PREFIX.size : end], data[end:]


def _message(metadata: memoryview, kind: int) -> tuple[int, ...]:
    """Return where the fields of a message are. Raises ValueError if it is not of `kind`."""
    message = _fields(metadata, *_U32.unpack_from(metadata))
    version = _I16.unpack_from(metadata, message[0])[0] if message[0] else 0
    found = metadata[message[1]] if message[1] else 0
    # Older versions have other ways to say that they are compressed. Reef never wrote one.
    if version != _V5 or found != kind or not message[2] or message[4]:
        raise ValueError(f"a message of version {version} and kind {found}, or with metadata")
    return message


def _fields(metadata: memoryview, table: int) -> tuple[int, ...]:
    """Return where each of the first 8 fields of a table is; 0: it is left out."""
    vtable = table - _I32.unpack_from(metadata, table)[0]
    if vtable < 0:
        raise ValueError("a vtable outside of the metadata")
    places = _PLACES[min(_U16.unpack_from(metadata, vtable)[0] // 2 - 2, _FIELDS_MAX)]
    found = places.unpack_from(metadata, vtable + 4)
    return tuple([place and table + place for place in found]) + _LEFT_OUT[len(found) :]


def _table(metadata: memoryview, at: int) -> tuple[int, ...]:
    """Return where the fields of the table are that the field at `at` points to."""
    return _fields(metadata, _target(metadata, at))


def _target(metadata: memoryview, at: int) -> int:
    return at + int(_U32.unpack_from(metadata, at)[0])


def _vector(metadata: memoryview, at: int, size: int) -> memoryview:
    """Return the elements, of `size` bytes each, that the field at `at` points to."""
    if not at:
        return metadata[:0]
    start = _target(metadata, at)
    end = start + _U32.size + _U32.unpack_from(metadata, start)[0] * size
    if end > len(metadata):
        raise ValueError("a vector longer than the metadata")
    return metadata[start + _U32.size : end]


def _tables(metadata: memoryview, at: int) -> Iterator[int]:
    """Yield where each table of a vector of them is."""
    elements = _vector(metadata, at, _U32.size)
    start = _target(metadata, at) + _U32.size if at else 0
    for number, (offset,) in enumerate(_U32.iter_unpack(elements)):
        yield start + number * _U32.size + offset


def _text_bytes(metadata: memoryview, at: int) -> int:
    return len(_vector(metadata, at, 1))


def _pairs_bytes(metadata: memoryview, at: int) -> int:
    """Return what a vector of keys and values takes."""
    size = 0
    for table in _tables(metadata, at):
        key, value, *_ = _fields(metadata, table)
        size += _FIELD_BYTES + _text_bytes(metadata, key) + _text_bytes(metadata, value)
    return size


def _plain_head() -> bytes:
    """Return how an uncompressed record batch begins, if its tables say so within these bytes."""
    message = bytes(pa.record_batch({"column": [1]}).serialize())
    metadata, _ = _parts(memoryview(message))
    fields = _message(metadata, _RECORD_BATCH)
    batch = _target(metadata, fields[2])
    vtable = batch - _I32.unpack_from(metadata, batch)[0]
    end = max(batch + _I32.size, vtable + _U16.unpack_from(metadata, vtable)[0])
    is_as_known = PREFIX.size + end <= PLAIN_BYTES and PREFIX.size + fields[3] == 40
    return message[:PLAIN_BYTES] if is_as_known and not _fields(metadata, batch)[3] else b""


PLAIN_BYTES = 64
# Up to here only two things vary: the length of the metadata, and in bytes 40 to 48 that of the body.
_PLAIN = _plain_head()
