"""Rows: the columns that every row has, and Arrow batches as bytes.

A row is a key, a version, whether it is a tombstone, and the columns of its face. In a log record
the version is the record's, so the column is left out there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from reef.errors import CorruptError, InvariantError

KEY = "_key"
LSN = "_lsn"
TOMBSTONE = "_tombstone"

CODECS = ("lz4", "zstd")

_KEY_FIELD = pa.field(KEY, pa.binary(), nullable=False)
_LSN_FIELD = pa.field(LSN, pa.int64(), nullable=False)
_TOMBSTONE_FIELD = pa.field(TOMBSTONE, pa.bool_(), nullable=False)
LOG_COLUMNS = (_KEY_FIELD, _TOMBSTONE_FIELD)
SEGMENT_COLUMNS = (_KEY_FIELD, _LSN_FIELD, _TOMBSTONE_FIELD)

# One column usually outweighs the others, so that threads cost more than they bring.
_READ_OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)


@contextmanager
def arrow_errors(key: str, offset: int, expected: str) -> Iterator[None]:
    """Turn whatever Arrow raises on bad bytes into CorruptError.

    Its errors have no common root: EOFError, StopIteration, UnicodeDecodeError and MemoryError (for a
    length that no memory could hold) have all been met.
    """
    try:
        yield
    except CorruptError:
        raise
    except Exception as error:
        raise CorruptError(key, offset, expected, str(error)[:200] or repr(error)) from error


def log_schema(columns: list[pa.Field]) -> pa.Schema:
    """Return the schema of log batches that carry `columns`."""
    return pa.schema([*LOG_COLUMNS, *columns])


def segment_schema(columns: list[pa.Field]) -> pa.Schema:
    """Return the schema of segments that carry `columns`."""
    return pa.schema([*SEGMENT_COLUMNS, *columns])


def schema_problem(schema: pa.Schema, first: tuple[pa.Field, ...]) -> str:
    """Return what keeps `schema` from being one of rows whose first columns are `first`, or ""."""
    names = schema.names
    if len(set(names)) != len(names):
        return "columns of the same name"
    found = [schema.field(i) for i in range(min(len(first), len(names)))]
    if [(f.name, f.type) for f in found] != [(f.name, f.type) for f in first]:
        wanted = ", ".join(f"{f.name} {f.type}" for f in first)
        return f"columns {', '.join(names[:4])}... instead of {wanted} first"
    if any(pa.types.is_dictionary(field.type) for field in schema):
        return "a dictionary column"
    return ""


def batch_problem(batch: pa.RecordBatch, first: tuple[pa.Field, ...]) -> str:
    """Return what keeps `batch` from being rows whose first columns are `first`, or ""."""
    problem = schema_problem(batch.schema, first)
    if problem:
        return problem
    if any(batch.column(i).null_count for i in range(len(first))):
        return f"a null in {', '.join(f.name for f in first)}"
    return ""


def write_options(codec: str, *, threads: bool = True) -> pa.ipc.IpcWriteOptions:
    """Return how Reef writes Arrow: compressed, always.

    `threads` compresses the columns of a batch side by side, which pays for megabytes, not for
    blocks.
    """
    if codec not in CODECS:
        raise InvariantError(f"codec {codec!r} is none of {CODECS}")
    return pa.ipc.IpcWriteOptions(compression=codec, use_threads=threads)


def decode_schema(data: pa.Buffer, key: str, offset: int) -> pa.Schema:
    """Return the schema of an Arrow IPC schema message. Raises CorruptError."""
    with arrow_errors(key, offset, "an Arrow schema"):
        schema = pa.ipc.read_schema(data)
        _check_text(schema)
    return schema


def _check_text(fields: Iterable[pa.Field]) -> None:
    """Raise unless the names of `fields`, and of those in them, are text: Arrow looks only later."""
    for field in fields:
        field.name.encode()
        _check_text(field.type.field(i) for i in range(field.type.num_fields))


def encode_stream(batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions) -> pa.Buffer:
    """Return an Arrow IPC stream of one batch."""
    # Written into memory that is large enough from the start: a sink that grows would copy what it
    # has again and again. Codecs add less than 1% to what they cannot compress.
    schema = batch.schema.serialize().size
    room = batch.nbytes + batch.nbytes // 64 + 3 * schema + 4096
    buffer = pa.allocate_buffer(room, resizable=True)
    sink = pa.FixedSizeBufferWriter(buffer)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return buffer.slice(0, sink.tell())


def decode_stream(data: pa.Buffer, key: str, offset: int) -> pa.RecordBatch:
    """Return the one batch of an Arrow IPC stream that fills `data`. Raises CorruptError."""
    with arrow_errors(key, offset, "an Arrow stream of one batch"):
        source = pa.BufferReader(data)
        with pa.ipc.open_stream(source, options=_READ_OPTIONS) as reader:
            batches = list(reader)
        if len(batches) != 1:
            raise CorruptError(key, offset, "an Arrow stream of one batch", f"{len(batches)}")
        if source.tell() != data.size:
            raise CorruptError(
                key, offset + source.tell(), "the end of the Arrow stream", "more bytes"
            )
        batch = batches[0]
        _check_text(batch.schema)
        batch.validate(full=True)
    return batch
