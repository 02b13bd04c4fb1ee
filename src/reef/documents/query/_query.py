"""Queries: the rows that match, in an order, up to a limit, from the end of a page on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from reef.documents.filter import Filter
from reef.documents.query._page import AFTER, page_end
from reef.documents.query._row_order import FirstRows, Order
from reef.documents.query._selection import Selection
from reef.documents.query._stored_rows import LIMIT_MAX, MATCHES_MAX, StoredRows
from reef.documents.query._wide import with_wide
from reef.documents.types import Schema
from reef.engine import View
from reef.segment import align

_MATCHES_MIN = 1024


@dataclass(frozen=True, kw_only=True)
class Query:
    """The arguments of a query, checked."""

    filter: Filter | None
    order: Order
    limit: int | None
    selection: Selection
    position: list[Any] | None
    """Where the page before ended."""


def run_query(view: View, schema: Schema, query: Query) -> pa.Table:
    """Return the rows that `query` asks for; if there are more, with the token of the next page."""
    # One more tells whether there is one.
    rows_max = None if query.limit is None else min(query.limit, LIMIT_MAX) + 1
    rows = StoredRows(view, schema, query.filter)
    if not query.order.terms:
        batches = _by_id(rows, query, rows_max)
    elif rows_max is None:
        batches = _sorted(rows, query)
    else:
        batches = _best(view, rows, query, rows_max)
    metadata = None
    if query.limit is not None:
        batches, last = _cut_to_limit(batches, query.limit)
        if last is not None:
            position = query.order.position(last, last.num_rows - 1)
            metadata = {AFTER: page_end(view, query.order, query.filter, position).token()}
    selected = [query.selection.user_rows(batch) for batch in batches]
    user_schema = query.selection.arrow
    return pa.Table.from_batches(selected, schema=user_schema).replace_schema_metadata(metadata)


def _by_id(rows: StoredRows, query: Query, rows_max: int | None) -> list[pa.RecordBatch]:
    """Return the first rows by id."""
    start, end = b"", None
    reverse = query.order.is_id_descending
    if query.position is not None:
        last = query.position[-1]
        start, end = (b"", last) if reverse else (last + b"\0", None)
    # The better a filter matches, the sooner a scan from the start has enough.
    most = MATCHES_MAX if rows_max is None else max(_MATCHES_MIN, 2 * rows_max)
    batches: list[pa.RecordBatch] = []
    left = rows_max
    for some in rows.batches(
        query.selection.columns, start=start, end=end, reverse=reverse, matches_max=most
    ):
        batches.append(some if left is None else some.slice(0, left))
        if left is not None:
            left -= batches[-1].num_rows
            if not left:
                break
    return batches


def _behind(rows: StoredRows, query: Query, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Yield the rows that come after the page before, with exactly `columns`."""
    layout = rows.layout(columns)
    for some in rows.batches(columns):
        some = align(some, layout)
        if query.position is not None:
            some = some.filter(query.order.behind(some, query.position))
        if some.num_rows:
            yield some


def _sorted(rows: StoredRows, query: Query) -> list[pa.RecordBatch]:
    """Return all rows, sorted."""
    columns = tuple(dict.fromkeys((*query.selection.columns, *query.order.columns)))
    table = pa.Table.from_batches(_behind(rows, query, columns), schema=rows.layout(columns))
    batches: list[pa.RecordBatch] = table.take(query.order.sorted(table)).to_batches()
    return batches


def _best(view: View, rows: StoredRows, query: Query, rows_max: int) -> list[pa.RecordBatch]:
    """Return the first rows in order; wide columns are read for those alone."""
    wide = query.selection.wide
    narrow = [name for name in query.selection.columns if name not in wide]
    columns = tuple(dict.fromkeys((*narrow, *query.order.columns)))
    best = FirstRows(query.order, rows_max)
    for some in _behind(rows, query, columns):
        best.add(some)
    first = best.rows()
    if first is None:
        return []
    return [with_wide(view, first, list(rows.layout(wide))[2:])] if wide else [first]


def _cut_to_limit(
    batches: list[pa.RecordBatch], limit: int
) -> tuple[list[pa.RecordBatch], pa.RecordBatch | None]:
    """Return the first `limit` rows, and the last batch of them if there are more."""
    counts = np.cumsum([some.num_rows for some in batches])
    if not batches or counts[-1] <= limit:
        return batches, None
    last = batches[-1].slice(0, batches[-1].num_rows - 1)
    return ([*batches[:-1], last], last) if last.num_rows else (batches[:-1], batches[-2])
