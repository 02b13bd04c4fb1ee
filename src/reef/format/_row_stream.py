"""Rows: the columns that every row has, and Arrow batches as bytes.

A row is a key, a version, whether it is a tombstone, and the columns of its face. In a log record
the version is the record's, so the column is left out there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa

from reef.errors import (
    CorruptError,
    FormatVersionError,
    InvariantError,
    TooLargeError,
    UnreadableError,
)
from reef.format._arrow_limits import (
    CONTINUED,
    PLAIN_BYTES,
    PREFIX,
    RawRoom,
    check_batch,
    check_schema,
    is_plain,
    message_bytes,
)
from reef.types import KEY_BYTES_MAX

KEY = "_key"
LSN = "_lsn"
TOMBSTONE = "_tombstone"

CODECS = ("lz4", "zstd")

_KEY_FIELD = pa.field(KEY, pa.binary(), nullable=False)
_LSN_FIELD = pa.field(LSN, pa.int64(), nullable=False)
_TOMBSTONE_FIELD = pa.field(TOMBSTONE, pa.bool_(), nullable=False)
LOG_COLUMNS = (_KEY_FIELD, _TOMBSTONE_FIELD)
SEGMENT_COLUMNS = (_KEY_FIELD, _LSN_FIELD, _TOMBSTONE_FIELD)
_RESERVED = {KEY, LSN, TOMBSTONE}
FIELD_ID = b"reef:field-id"

_KNOWN_MAX = 16
_NESTING_MAX = 32  # Arrow reads no more than 64
_VIEWS = (
    pa.types.is_string_view,
    pa.types.is_binary_view,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)
RECORD_BYTES_MAX = 1 << 30
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"

# Up to this, a codec costs more than it saves.
_PLAIN_BYTES_MAX = 2 << 10
_PLAIN_ROWS_MAX = 16
# From this on, threads pay for compressing columns.
_THREADS_BYTES_MIN = 1 << 20
_SAMPLED_BYTES_MIN = 256 << 10
_SAMPLE_BYTES_MAX = 128 << 10
WORTHWHILE = 15 / 16

_SMALL_STREAM_BYTES_MAX = 64 << 10
_SMALL_OPENING_BYTES_MAX = 16 << 10
_EXTENSION = b"ARROW:extension:"

# One column usually outweighs the others, so that threads cost more than they bring.
PLAIN = pa.ipc.IpcWriteOptions(use_threads=False)
_READ_OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)


class arrow_errors:
    """Turn whatever Arrow raises on bad bytes into CorruptError.

    Its errors have no common root: EOFError, StopIteration and UnicodeDecodeError have been met. Two
    are no damage: a process out of memory, which must never pass for a lost object, and a type or
    codec that this build of Arrow does not have.
    """

    def __init__(self, key: str, offset: int, expected: str) -> None:
        self._at = (key, offset, expected)

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None or isinstance(error, UnreadableError):
            return
        if isinstance(error, MemoryError):
            raise TooLargeError(*self._at, f"no memory for it ({str(error)[:200]})") from error
        if isinstance(error, pa.ArrowNotImplementedError):
            raise FormatVersionError(*self._at, f"what Arrow here lacks: {error}") from error
        if isinstance(error, Exception):
            raise CorruptError(*self._at, str(error)[:200] or repr(error)) from error


# The latest schemas that were found in order, by the identity of their first columns. To look at
# each of their fields takes longer than to encode a row, and most are the same.
_known_rows: dict[int, tuple[pa.Schema, ...]] = {id(LOG_COLUMNS): (), id(SEGMENT_COLUMNS): ()}


def log_schema(columns: list[pa.Field]) -> pa.Schema:
    """Return the schema of log batches that carry `columns`."""
    return pa.schema([*LOG_COLUMNS, *columns])


def segment_schema(columns: list[pa.Field]) -> pa.Schema:
    """Return the schema of segments that carry `columns`."""
    return pa.schema([*SEGMENT_COLUMNS, *columns])


def schema_problem(schema: pa.Schema, first: tuple[pa.Field, ...]) -> str:
    """Return what keeps `schema` from being one of rows whose first columns are `first`, or ""."""
    known = _known_rows.get(id(first))
    if known is None:
        return _schema_problem(schema, first)
    for one in known:
        # With metadata, because without it Arrow ignores the names of fields inside lists.
        if schema.equals(one, True):
            return ""
    problem = _schema_problem(schema, first)
    if not problem:
        _known_rows[id(first)] = (schema, *known[: _KNOWN_MAX - 1])
    return problem


def _schema_problem(schema: pa.Schema, first: tuple[pa.Field, ...]) -> str:
    names = schema.names
    if len(set(names)) != len(names):
        return "columns of the same name"
    found = [schema.field(i) for i in range(min(len(first), len(names)))]
    if [(f.name, f.type) for f in found] != [(f.name, f.type) for f in first]:
        wanted = ", ".join(f"{f.name} {f.type}" for f in first)
        return f"columns {', '.join(names[:4])}... instead of {wanted} first"
    reserved = _RESERVED.intersection(names[len(first) :])
    if reserved:
        return f"a column called {reserved.pop()}, which is reserved"
    return next((problem for field in schema if (problem := _type_problem(field.type))), "")


def _type_problem(kind: pa.DataType, depth: int = 1) -> str:
    """Return what keeps a type from being stored, or ""."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        return "a dictionary column"  # it would need messages of its own
    if any(is_view(kind) for is_view in _VIEWS):
        return f"a column of {kind}"  # a slice of one carries the whole
    if depth > _NESTING_MAX:
        return f"a column nested more than {_NESTING_MAX} deep"
    if depth > 1 and _is_weightless(kind):
        return f"a column of many {kind}, which take no bytes"  # 8 bytes may say 2**31 of them
    children = (kind.field(i).type for i in range(kind.num_fields))
    return next((problem for child in children if (problem := _type_problem(child, depth + 1))), "")


def _is_weightless(kind: pa.DataType) -> bool:
    """Return whether any number of values of a type may take no bytes."""
    is_empty: bool = pa.types.is_fixed_size_binary(kind) and kind.byte_width == 0
    is_empty |= pa.types.is_fixed_size_list(kind) and kind.list_size == 0
    is_empty |= pa.types.is_struct(kind) and kind.num_fields == 0
    is_empty |= pa.types.is_null(kind) or pa.types.is_run_end_encoded(kind)
    return is_empty


def batch_problem(batch: pa.RecordBatch, first: tuple[pa.Field, ...]) -> str:
    """Return what keeps `batch` from being rows whose first columns are `first`, or ""."""
    problem = schema_problem(batch.schema, first)
    if problem:
        return problem
    columns = [batch.column(i) for i in range(len(first))]
    problem = nulls_problem(columns, first)
    if problem:
        return problem
    keys = columns[0]
    if keys.total_values_length > KEY_BYTES_MAX:  # few keys together are within the limit of one
        offsets = np.frombuffer(keys.buffers()[1], np.int32, len(keys) + 1, keys.offset * 4)
        longest = int((offsets[1:] - offsets[:-1]).max())
        if longest > KEY_BYTES_MAX:
            return f"a key of {longest} bytes, which is more than {KEY_BYTES_MAX}"
    return ""


def nulls_problem(columns: Iterable[pa.Array], first: tuple[pa.Field, ...]) -> str:
    """Return that one of `columns`, which are those of `first`, has a null, or ""."""
    for column in columns:
        if column.null_count:
            return f"a null in {', '.join(f.name for f in first)}"
    return ""


# Stable ids of columns: a column keeps its own through every rename, and no other ever gets it.


def with_field_id(field: pa.Field, number: int) -> pa.Field:
    """Return `field` carrying the stable id `number`."""
    return field.with_metadata({**(field.metadata or {}), FIELD_ID: b"%d" % number})


def field_id(field: pa.Field) -> int | None:
    """Return the stable id that `field` carries, or None."""
    text = (field.metadata or {}).get(FIELD_ID, b"")
    return int(text) if text.isdigit() and len(text) <= 10 else None


def ids_problem(schema: pa.Schema) -> str:
    """Return what keeps the columns of `schema` from having a stable id each, or ""."""
    ids = [field_id(field) for field in schema]
    if None in ids or 0 in ids:
        return "a column without a stable id"
    return "" if len(set(ids)) == len(ids) else "two columns of one id"


def encode_rows(
    batch: pa.RecordBatch, codec: str, bytes_max: int | None = None
) -> bytes | pa.Buffer:
    """Return an Arrow IPC stream of one batch, compressed where that pays.

    Raises InvariantError for rows that a reader would refuse, or of more than `bytes_max` bytes.
    """
    if codec not in CODECS:
        raise InvariantError(f"codec {codec!r} is none of {CODECS}")
    check_valid(batch)
    if batch.num_rows <= _PLAIN_ROWS_MAX:
        # The same bytes that a stream's writer writes, in a third of its time.
        message = batch.serialize()
        if message.size <= _PLAIN_BYTES_MAX:
            return b"".join((schema_message(batch.schema), message, _END_OF_STREAM))
    size = int(batch.nbytes)
    if bytes_max is not None:
        check_size(size, bytes_max)
    if not is_worthwhile(batch, size, codec):
        return encode_stream(batch, PLAIN)
    options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=size >= _THREADS_BYTES_MIN)
    return encode_stream(batch, options)


def check_size(size: int, bytes_max: int) -> None:
    """Raise InvariantError unless the rows of a batch are small enough to be read again."""
    if size > bytes_max:
        raise InvariantError(f"a batch would hold {size} bytes of rows, more than {bytes_max}")


_latest: tuple[pa.Schema, bytes] = (pa.schema([]), b"")


def schema_message(schema: pa.Schema) -> bytes:
    """Return the message of a schema: most are the same as the one before."""
    global _latest
    known, message = _latest
    if not (message and schema.equals(known, True)):
        message = schema.serialize().to_pybytes()
        _latest = schema, message
    return message


def is_worthwhile(batch: pa.RecordBatch, size: int, codec: str) -> bool:
    """Return whether to compress `batch` of `size` bytes.

    A large one only if `codec` saves more than 1/16, judged by a sixteenth of its rows, or by 128 KiB
    of them if that is less. What it does not shrink, vectors under lz4 above all, is stored plain,
    and read without a copy.
    """
    if size < _SAMPLED_BYTES_MIN:
        return True
    rows = min(batch.num_rows // 16, batch.num_rows * _SAMPLE_BYTES_MAX // size)
    sample = batch.slice(batch.num_rows // 2, max(rows, 1))
    options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
    return bool(encode_stream(sample, options).size < sample.nbytes * WORTHWHILE)


def check_valid(batch: pa.RecordBatch) -> None:
    """Raise InvariantError unless Arrow finds every value of `batch` valid: a decoder will look."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvariantError(f"a batch would be refused when it is read: {error}") from error


def decode_schema(data: pa.Buffer, key: str, offset: int) -> pa.Schema:
    """Return the schema of an Arrow IPC schema message. Raises CorruptError."""
    with arrow_errors(key, offset, "an Arrow schema"):
        message = data.to_pybytes()
        is_checked = message in _checked_schemas
        if not is_checked:
            check_schema(memoryview(message))
        source = pa.BufferReader(data)
        schema = pa.ipc.read_schema(source)
        if source.tell() != data.size:
            raise CorruptError(key, offset + source.tell(), "the end of the schema", "more bytes")
        if not is_checked:
            _check_fields(message, schema)
    return schema


# The schema messages that were found in order lately: most are the same.
_checked_schemas: set[bytes] = set()


def _check_fields(message: bytes, schema: pa.Schema) -> None:
    """Raise unless `schema`, which `message` holds, has names of text and types that are stored."""
    _check_text(schema)
    if problem := next((p for field in schema if (p := _type_problem(field.type))), ""):
        raise ValueError(problem)
    if len(_checked_schemas) >= _KNOWN_MAX:
        _checked_schemas.clear()
    _checked_schemas.add(message)


def _check_text(fields: Iterable[pa.Field]) -> None:
    """Raise unless the names of `fields`, and of those in them, are text: Arrow looks only later."""
    for field in fields:
        field.name.encode()
        _check_text(field.type.field(i) for i in range(field.type.num_fields))


def encode_stream(
    batch: pa.RecordBatch,
    options: pa.ipc.IpcWriteOptions,
    allocate: Callable[[int], pa.Buffer] = pa.allocate_buffer,
) -> pa.Buffer:
    """Return an Arrow IPC stream of one batch, in memory from `allocate`."""
    # Written into memory that is large enough from the start: a sink that grows would copy what it
    # has again and again. A codec adds a few bytes to each buffer, and less than 1% to what it
    # cannot compress.
    size = pa.ipc.get_record_batch_size(batch)
    buffers = sum(len(column.buffers()) for column in batch.columns)
    room = size + size // 64 + 64 * buffers + batch.schema.serialize().size + 256
    buffer = allocate(room)
    sink = pa.FixedSizeBufferWriter(buffer)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return buffer.slice(0, sink.tell())


def decode_stream(
    data: pa.Buffer, key: str, offset: int, room: RawRoom | None = None
) -> pa.RecordBatch:
    """Return the one batch of an Arrow IPC stream that fills `data`. Raises CorruptError.

    What it takes uncompressed is taken out of `room` before it is allocated: by default, out of what
    a record may take.
    """
    with arrow_errors(key, offset, "an Arrow stream of one batch"):
        source = pa.BufferReader(data)
        opening = _opening(data)
        schema = _plain_schemas.get(opening)
        if schema is not None:
            source.seek(len(opening) - PREFIX.size)
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(source), schema)
        else:
            view = memoryview(data)
            at = message_bytes(view)
            message = view[:at].tobytes()
            is_checked = message in _checked_schemas
            if not is_checked:
                check_schema(view[:at])
            check_batch(view[at:], room or RawRoom(RECORD_BYTES_MAX))
            batch = pa.ipc.open_stream(source, options=_READ_OPTIONS).read_next_batch()
            if not is_checked:
                _check_fields(message, batch.schema)
        end = source.tell()
        if data.size - end != 8 or data.slice(end).to_pybytes() != _END_OF_STREAM:
            raise CorruptError(key, offset + end, "the end of the Arrow stream", "something else")
        batch.validate(full=True)
        if opening and opening not in _plain_schemas:
            _remember(opening, batch, data.size)
    return batch


# Most of the time that a small batch takes to read goes into its schema, and most have the same. So
# schemas are kept by the bytes that streams open with: those of the schema message, and the length
# of the next one's metadata, which tells plain batches from compressed ones. None: not like that.
_plain_schemas: dict[bytes, pa.Schema | None] = {}


def _opening(data: pa.Buffer) -> bytes:
    """Return the bytes that a small plain stream opens with, or b"" if they are not worth knowing."""
    if not 2 * PREFIX.size <= data.size <= _SMALL_STREAM_BYTES_MAX:
        return b""
    marker, length = PREFIX.unpack_from(data)
    end = PREFIX.size + length
    if marker != CONTINUED or end > min(data.size, _SMALL_OPENING_BYTES_MAX):
        return b""
    opening = data.slice(0, end + PLAIN_BYTES).to_pybytes()
    return opening[: end + PREFIX.size] if is_plain(opening[end:]) else b""


def _remember(opening: bytes, batch: pa.RecordBatch, size: int) -> None:
    """Keep the schema of a batch that was read and found in order, if the next one can use it."""
    message = opening[: -PREFIX.size]
    # Batches of another byte order need what only a stream's reader knows. So may those of a type
    # that is registered later.
    is_known = (
        _EXTENSION not in message
        and batch.schema.serialize().to_pybytes() == message
        and batch.serialize().size + len(message) + len(_END_OF_STREAM) == size
    )
    if len(_plain_schemas) >= _KNOWN_MAX:
        _plain_schemas.clear()
    _plain_schemas[opening] = batch.schema if is_known else None
