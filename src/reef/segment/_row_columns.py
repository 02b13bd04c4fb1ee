"""The columns of batches: by name where schemas differ, where keys change, on memory of their own."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reef.errors import InvariantError


def align(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return `batch` with exactly the columns of `schema`: by name, null where it has none.

    Nothing is copied but columns of another type, which are cast. Raises InvariantError for one that
    cannot be.
    """
    found = batch.schema
    if found.equals(schema):
        return batch
    number = {name: i for i, name in enumerate(found.names)}
    arrays = []
    for field in schema:
        at = number.get(field.name)
        column = pa.nulls(batch.num_rows, field.type) if at is None else batch.column(at)
        arrays.append(column if column.type == field.type else _cast(column, field))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvariantError(
            f"column {field.name!r} of type {column.type} cannot be read as {field.type}: {error}"
        ) from error


def union(newer: Iterable[pa.Field], older: Iterable[pa.Field]) -> list[pa.Field]:
    """Return the columns of both, those of `older` first; where both have one, the newer one's.

    All may be null: rows that were written before a column was added have none.
    """
    fields = {field.name: field for field in older}
    fields.update((field.name, field) for field in newer)
    return [field.with_nullable(True) for field in fields.values()]


def changes(keys: pa.Array) -> npt.NDArray[np.bool_]:
    """Return for each of some sorted keys whether it is another than the one before it."""
    flags = np.ones(len(keys), np.bool_)
    if len(keys) > 1:
        other = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1))
        if other.true_count < len(other):
            flags[1:] = other.to_numpy(zero_copy_only=False)
    return flags


def at_or_below(rows: pa.RecordBatch, lsn: int) -> pa.RecordBatch:
    """Return a source's rows at or below `lsn`; there is at least one."""
    lsns = rows.column(1).to_numpy()
    return rows if lsns.max() <= lsn else rows.filter(pa.array(lsns <= lsn))


def without_tombstones(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows that are not tombstones; without a copy if that is all rows."""
    dead = rows.column(2)
    return rows.filter(pc.invert(dead)) if dead.true_count else rows


def visible(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the newest version of each key, without tombstones; no copy if that is all rows."""
    keep = changes(rows.column(0))
    if rows.column(2).true_count:
        keep &= ~rows.column(2).to_numpy(zero_copy_only=False)
    return rows if keep.all() else rows.filter(pa.array(keep))
