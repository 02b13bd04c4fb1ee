"""Rows on memory of their own: after a write has copied them, a caller may change its buffers.

A large batch that no codec makes smaller is copied once: into the Arrow stream that is logged. The
memtable keeps slices of that stream, and the store is given the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from reef.format._arena import Arena
from reef.format._row_stream import (
    PLAIN,
    check_valid,
    encode_rows,
    encode_stream,
    is_worthwhile,
    schema_message,
)

_arena = Arena()

_PATTERNS_MAX = 2048  # of about 1 KiB each; keys of one length, with any value, fit
_PATTERN_VALUES_MAX = 3 << 9  # bytes; a row of more may be compressed


class OwnedRows(NamedTuple):
    """A copy of a caller's rows."""

    batch: pa.RecordBatch
    stream: pa.Buffer | None
    """The batch as it is logged, if that is the memory it lies in; None: it is not encoded yet."""


def owned(*arrays: pa.Array) -> pa.Array:
    """Return `arrays` as one, on memory that nobody else has, no larger than its values.

    What came from a caller may lie in a buffer that is used again, or in one that is far larger.
    """
    # Arrow may hand out an array that is alone as it is; of two it always makes a new one.
    return pa.concat_arrays([*arrays, arrays[0].slice(0, 0)])


def owned_rows(batch: pa.RecordBatch, codec: str = "lz4") -> OwnedRows:
    """Return a copy of `batch`, which is its encoded form where that is plain.

    Raises InvariantError for rows that a reader would refuse.
    """
    if is_worthwhile(batch, int(batch.nbytes), codec):
        columns = [owned(column) for column in batch.columns]
        return OwnedRows(pa.RecordBatch.from_arrays(columns, schema=batch.schema), None)
    stream = encode_stream(batch, PLAIN, _arena.take)
    source = pa.BufferReader(stream)
    source.seek(len(schema_message(batch.schema)))
    copy = pa.ipc.read_record_batch(pa.ipc.read_message(source), batch.schema)
    check_valid(copy)  # the copy: the caller may have changed the original meanwhile
    return OwnedRows(copy, stream)


class _Pattern(NamedTuple):
    """The stream of a batch of one row, without the bytes of its first and last value."""

    before: bytes
    between: bytes
    after: bytes
    schema_bytes: int
    schema: pa.Schema


class SingleRows:
    """Batches of one row each, with a binary first and last column and the same values in between.

    Arrow takes several times as long to build and encode one row as to read it. So a small row is
    written into the stream of an earlier one whose first and last values had the same lengths.
    """

    def __init__(self, build: Callable[[bytes, bytes], pa.RecordBatch]) -> None:
        """`build` makes the batch from the first and the last value, neither of them null."""
        self._build = build
        self._patterns: dict[tuple[int, int], _Pattern | None] = {}
        """By the lengths of both values. None: such a row came once, and may never come again."""

    def row(self, first: bytes, last: bytes) -> OwnedRows:
        """Return the batch of one row."""
        pattern = self._patterns.get((len(first), len(last)))
        if pattern is None:
            batch = self._build(first, last)
            if first and last and len(first) + len(last) <= _PATTERN_VALUES_MAX:
                self._learn(batch, first, last)
            return OwnedRows(batch, None)
        before, between, after, schema_bytes, schema = pattern
        stream = pa.py_buffer(b"".join((before, first, between, last, after)))
        return OwnedRows(pa.ipc.read_record_batch(stream.slice(schema_bytes), schema), stream)

    def _learn(self, batch: pa.RecordBatch, first: bytes, last: bytes) -> None:
        """Make a pattern of a row if it is the second one of its lengths."""
        lengths, patterns = (len(first), len(last)), self._patterns
        if lengths not in patterns:
            if len(patterns) >= _PATTERNS_MAX:
                patterns.clear()
            patterns[lengths] = None
            return
        data = encode_rows(batch, "lz4")
        stream, schema_bytes = pa.py_buffer(data), len(schema_message(batch.schema))
        copy = pa.ipc.read_record_batch(stream.slice(schema_bytes), batch.schema)
        begin, at = (
            copy.column(i).buffers()[2].address - stream.address for i in (0, copy.num_columns - 1)
        )
        if data[begin : begin + len(first)] == first and data[at : at + len(last)] == last:
            between, after = data[begin + len(first) : at], data[at + len(last) :]
            patterns[lengths] = _Pattern(data[:begin], between, after, schema_bytes, batch.schema)
