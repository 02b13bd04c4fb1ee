"""Changes to every document that matches a filter, as one batch. The documents are searched twice:
before the writer's lock is taken, to bring blocks into memory, and under it, where no other write
can come in between.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import reduce

import numpy as np
import pyarrow as pa

from reef.documents._change import Change, columns_to_write
from reef.documents.filter import Filter
from reef.documents.query import matching_documents
from reef.engine import DELETED, WRITTEN, ReadState, Resolved, WriteRequest
from reef.errors import InvalidInputError
from reef.format import log_schema
from reef.segment import align, union
from reef.types import LSN_MAX

_NOTHING = pa.RecordBatch.from_pylist([], schema=log_schema([]))


def bulk_digest(filter: Filter, change: bytes) -> bytes:
    """Return the digest of a change of every matching document; `change` stands for the change."""
    return hashlib.blake2b(filter.encode() + change, digest_size=16).digest()


def delete_matching(
    filter: Filter, bytes_max: int, key: bytes | None, digest: bytes
) -> WriteRequest:
    """Return the request that deletes the documents that match."""

    def resolve(state: ReadState, lsn: int) -> Resolved:
        matches = (rows.select([0]) for rows in matching_documents(filter, state, lsn, ()))
        batches = _bounded(filter, matches, bytes_max)
        keys = pa.concat_arrays([rows.column(0) for rows in batches] or [pa.array([], pa.binary())])
        tombstones = pa.array(np.ones(len(keys), np.bool_))
        batch = pa.RecordBatch.from_arrays([keys, tombstones], schema=log_schema([]))
        return Resolved(batch, bytes([DELETED]) * len(keys))

    return _request(filter, resolve, key, digest)


def patch_matching(
    filter: Filter, change: Change, bytes_max: int, key: bytes | None, digest: bytes
) -> WriteRequest:
    """Return the request that makes the one patch of `change` to the documents that match."""
    patch_bytes = sum(change.batch.column(name).nbytes for name in change.patched)

    def resolve(state: ReadState, lsn: int) -> Resolved:
        matches = (
            rows.select([name for name in rows.schema.names if name not in change.patched])
            for rows in matching_documents(filter, state, lsn, None)
        )
        batches = _bounded(filter, matches, bytes_max, patch_bytes)
        there: list[pa.Field] = reduce(union, (rows.schema for rows in batches), [])
        fields = columns_to_write(change.schema, there, change.batch)
        schema = log_schema(fields)
        parts = [align(rows.remove_column(1), schema) for rows in batches]  # without the version
        rows = pa.concat_batches(parts) if parts else pa.RecordBatch.from_pylist([], schema=schema)
        patch = align(change.batch, schema)
        columns = [
            patch.column(name).take(pa.array(np.zeros(rows.num_rows, np.int64)))
            if name in change.patched
            else column
            for name, column in zip(schema.names, rows.columns, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        return Resolved(batch, bytes([WRITTEN]) * batch.num_rows)

    return _request(filter, resolve, key, digest)


def _request(
    filter: Filter,
    resolve: Callable[[ReadState, int], Resolved],
    key: bytes | None,
    digest: bytes,
) -> WriteRequest:
    """Return the request to log what `resolve` returns for what is visible at a version."""
    return WriteRequest(
        batch=_NOTHING,
        nbytes=0,
        resolve=lambda state: resolve(state, LSN_MAX),
        prepare=lambda view: view.read(lambda state: resolve(state, view.lsn)),
        condition=filter.encode(),
        idempotency_key=key,
        digest=None if key is None else digest,
    )


def _bounded(
    filter: Filter, batches: Iterable[pa.RecordBatch], bytes_max: int, row_bytes: int = 0
) -> list[pa.RecordBatch]:
    """Return all of `batches`, each row of which will have `row_bytes` more. Raises InvalidInputError."""
    bounded, size = [], 0
    for rows in batches:
        size += rows.nbytes + rows.num_rows * row_bytes
        if size > bytes_max:
            raise InvalidInputError(
                f"the rows of where = {filter} do not fit into one batch of "
                f"log_segment_max_bytes = {bytes_max}: narrow the filter, or raise that "
                "setting; nothing was written"
            )
        bounded.append(rows)
    return bounded
