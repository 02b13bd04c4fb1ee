"""Rows on memory of their own: after a write has copied them, a caller may change its buffers.

A large batch that no codec makes smaller is copied once: into the Arrow stream that is logged. The
memtable keeps slices of that stream, and the store is given the same bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from reef.format._arena import Arena
from reef.format._rows import PLAIN, check_valid, encode_stream, is_worthwhile, schema_message

_arena = Arena()


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
