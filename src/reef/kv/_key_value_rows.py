"""Keys and values as the rows that the kernel stores, and back."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reef.engine import Face
from reef.errors import InvalidInputError
from reef.format import (
    KEY,
    TOMBSTONE,
    OwnedRows,
    SingleRows,
    log_schema,
    owned,
    with_field_id,
)
from reef.types import KEY_BYTES_MAX

VALUE = "value"
_VALUE_FIELD = with_field_id(pa.field(VALUE, pa.binary()), 1)
FACE = Face("kv", pa.schema([_VALUE_FIELD]))
LOG_SCHEMA = log_schema([_VALUE_FIELD])
SCAN_SCHEMA = pa.schema([pa.field("key", pa.binary()), pa.field("value", pa.binary())])

_BINARY = pa.binary()
_OFFSETS = struct.Struct("<ii")
_ONE_PUT = pa.array([False])
_ONE_DELETE = pa.array([True])
_NO_VALUE = pa.nulls(1, _BINARY)

Puts: TypeAlias = Mapping[bytes, bytes] | pa.Table | pa.RecordBatch


def check_key(key: object) -> bytes:
    """Return `key` as bytes. Raises InvalidInputError."""
    if type(key) is not bytes:
        key = _as_bytes("key", key)
    if len(key) > KEY_BYTES_MAX:
        raise InvalidInputError(
            f"the key {key[:64]!r}... has {len(key)} bytes: expected at most {KEY_BYTES_MAX}"
        )
    return key


def one_put(key: object, value: object) -> OwnedRows:
    """Return the row of one key and its value."""
    if type(value) is not bytes:
        value = _as_bytes("value", value)
    return _single_puts.row(check_key(key), value)


def _put_row(key: bytes, value: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [_array_of_one(key), _ONE_PUT, _array_of_one(value)], schema=LOG_SCHEMA
    )


_single_puts = SingleRows(_put_row)


def one_delete(key: object) -> pa.RecordBatch:
    """Return the row that deletes one key."""
    columns = [_array_of_one(check_key(key)), _ONE_DELETE, _NO_VALUE]
    return pa.RecordBatch.from_arrays(columns, schema=LOG_SCHEMA)


def _array_of_one(value: bytes) -> pa.Array:
    """Return an array of one value, in a third of the time that `pa.array` takes."""
    buffers = [None, _offsets_of(len(value)), pa.py_buffer(value)]
    return pa.Array.from_buffers(_BINARY, 1, buffers, 0)


@lru_cache(1024)
def _offsets_of(length: int) -> pa.Buffer:
    return pa.py_buffer(_OFFSETS.pack(0, length))


def rows_of(puts: Puts | None, deletes: Iterable[bytes] | None) -> pa.RecordBatch:
    """Return the rows of a request: puts first, then deletes. Raises InvalidInputError."""
    put_keys, values = _puts(puts)
    gone = _keys(deletes)
    keys = pa.concat_arrays([put_keys, gone]) if len(gone) else put_keys
    if not len(keys):
        raise InvalidInputError("nothing to write: give puts or deletes")
    _check_keys(keys)
    count, deleted = len(put_keys), len(gone)
    tombstones = pa.array(np.repeat([False, True], [count, deleted]))
    if deleted:
        values = pa.concat_arrays([values, pa.nulls(deleted, _BINARY)])
    return pa.RecordBatch.from_arrays([keys, tombstones, values], schema=LOG_SCHEMA)


def digest_of(batch: pa.RecordBatch, *parts: bytes | None) -> bytes:
    """Return the 16-byte digest of a logical request: of its rows and everything else in it."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(b"\0" if part is None else b"\1" + len(part).to_bytes(8, "little") + part)
    digest.update(batch.num_rows.to_bytes(8, "little"))
    digest.update(batch.column(TOMBSTONE).to_numpy(zero_copy_only=False))
    for name in (KEY, VALUE):
        _digest_binary(digest, batch.column(name))
    return digest.digest()


def key_values(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches of key and value from those of the kernel."""
    for batch in batches:
        columns = [batch.column(KEY), batch.column(VALUE)]
        yield pa.RecordBatch.from_arrays(columns, schema=SCAN_SCHEMA)


def pairs(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[bytes, bytes]]:
    """Return an iterator of each key with its value, from batches of the kernel."""
    # A chain, as no line of Python then runs for each row.
    return chain.from_iterable(
        zip(batch.column(KEY).to_pylist(), batch.column(VALUE).to_pylist(), strict=True)
        for batch in batches
    )


def _puts(puts: Puts | None) -> tuple[pa.Array, pa.Array]:
    if puts is None:
        return pa.array([], _BINARY), pa.array([], _BINARY)
    if isinstance(puts, pa.Table | pa.RecordBatch):
        missing = {"key", "value"} - set(puts.schema.names)
        if missing:
            raise InvalidInputError(
                f"puts has the columns {puts.schema.names}: expected a table with the "
                "columns key and value"
            )
        return owned(binary_column(puts, "key")), owned(binary_column(puts, "value"))
    if isinstance(puts, Mapping):
        return _array("key", puts.keys()), _array("value", puts.values())
    raise InvalidInputError(
        f"puts is of type {type(puts).__name__}: expected a mapping of bytes to bytes, "
        "or an Arrow table"
    )


def binary_column(table: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    """Return a column as binary, without nulls. Raises InvalidInputError."""
    column = table.column(name)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.null_count:
        raise InvalidInputError(
            f"column {name!r} has a null: give bytes in every row, and use deletes to delete"
        )
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.cast(
            pa.large_binary() if pa.types.is_large_string(column.type) else _BINARY
        )
    try:
        return column.cast(_BINARY)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(
            f"column {name!r} is of type {column.type}: expected a binary column ({error})"
        ) from error


def _keys(keys: object) -> pa.Array:
    if keys is None:
        return pa.array([], _BINARY)
    if isinstance(keys, bytes | str) or not isinstance(keys, Iterable):
        raise InvalidInputError.of("deletes", keys, "a list of keys")
    return _array("key", keys)


def _array(name: str, values: Iterable[object]) -> pa.Array:
    # pyarrow would take text as its UTF-8 bytes, which a reader would not get back as text.
    listed = [v if type(v) is bytes else _as_bytes(name, v) for v in values]
    return pa.array(listed, _BINARY)


def _as_bytes(name: str, value: object) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InvalidInputError.of(
            name,
            value,
            f"bytes, got {type(value).__name__}",
            "encode text yourself, such as 'a'.encode()",
        )
    return bytes(value)


def _check_keys(keys: pa.Array) -> None:
    longest = pc.max(pc.binary_length(keys)).as_py()
    if longest > KEY_BYTES_MAX:
        raise InvalidInputError(f"a key has {longest} bytes: expected at most {KEY_BYTES_MAX}")
    if len(keys) > 1 and pc.count_distinct(keys).as_py() < len(keys):
        counts = keys.value_counts()
        twice = counts.filter(pc.greater(counts.field("counts"), 1))[0]["values"].as_py()
        raise InvalidInputError(
            f"key {twice[:64]!r} appears more than once in puts and deletes: give each key once"
        )


def _digest_binary(digest: hashlib.blake2b, column: pa.Array) -> None:
    lengths = pc.fill_null(pc.binary_length(column), -1)
    digest.update(lengths.to_numpy(zero_copy_only=False))
    _, offsets, data = column.buffers()
    if data is not None and len(column):
        bounds = np.frombuffer(offsets, np.int32)[column.offset :][: len(column) + 1]
        digest.update(memoryview(data)[bounds[0] : bounds[-1]])
