"""Changes of documents, as people see them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from reef.documents.query import Selection
from reef.engine import BEFORE, COMMITTED_AT, EXISTED, OP, operations
from reef.format import KEY, LSN, TOMBSTONE


def stored_columns(selection: Selection) -> list[pa.Field]:
    """Return the columns that hold the attributes of a selection."""
    return [pa.field(a.column, a.type.physical) for a in selection.attributes]


def document_changes(
    batches: Iterable[pa.RecordBatch], selection: Selection, *, before_image: bool
) -> Iterator[pa.RecordBatch]:
    """Yield changes with the columns `_op`, `_lsn`, `_committed_at`, `id`, and the attributes.

    With the before image also `_before`, a struct of the attributes, null where there was no
    document of that id. A namespace without attributes has `_before` as a struct of `id` alone.
    """
    for rows in batches:
        shown = selection.user_rows(rows)
        names = [OP, LSN, COMMITTED_AT, *shown.schema.names]
        arrays = [
            operations(rows.column(TOMBSTONE)),
            rows.column(LSN),
            rows.column(COMMITTED_AT),
            *shown.columns,
        ]
        if before_image:
            names.append(BEFORE)
            arrays.append(_before(rows, selection))
        yield pa.RecordBatch.from_arrays(arrays, names=names)


def _before(rows: pa.RecordBatch, selection: Selection) -> pa.Array:
    before = rows.column(BEFORE)
    columns = dict(zip([f.name for f in before.type], before.flatten(), strict=True))
    stored = pa.RecordBatch.from_arrays(
        [rows.column(KEY), *columns.values()], names=[KEY, *columns]
    )
    shown = selection.user_rows(stored)
    first = 1 if len(shown.schema) > 1 else 0
    fields = [shown.schema.field(i) for i in range(first, len(shown.schema))]
    existed = rows.column(EXISTED).to_numpy(zero_copy_only=False)
    return pa.StructArray.from_arrays(
        shown.columns[first:],
        fields=[field.with_nullable(True) for field in fields],
        mask=pa.array(~existed),
    )
