"""Wide columns for rows that are known, and rows by id.

The values of a wide column lie in blocks of their own: they are read once the rows are known.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from reef.engine import Latest, View
from reef.errors import InvariantError


def rows_by_key(
    view: View, keys: pa.Array, layout: pa.Schema, wide: Collection[str]
) -> pa.RecordBatch:
    """Return the rows of `keys`, which are all there, in that order, with the columns of `layout`.

    `layout` begins with the key and the version; `wide` are those of its columns that are wide.
    """
    return _all_of(view.many(keys, wide=bool(wide))).rows(layout)


def with_wide(view: View, rows: pa.RecordBatch, wide: Sequence[pa.Field]) -> pa.RecordBatch:
    """Return `rows`, whose first columns are key and version, with the values of wide columns."""
    latest = _all_of(view.many(rows.column(0)))
    if (latest.lsns != rows.column(1).to_numpy()).any():
        raise InvariantError(f"rows that were found at LSN {view.lsn} are of other versions now")
    arrays = [*rows.columns, *latest.rows(pa.schema(wide)).columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*rows.schema, *wide]))


def _all_of(latest: Latest) -> Latest:
    """Return rows that an earlier read of the same version has found: all of them are there."""
    if not latest.exists.all():
        raise InvariantError(
            f"of {len(latest.exists)} rows that were found, {int(latest.exists.sum())} are still there"
        )
    return latest
