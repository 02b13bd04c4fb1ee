"""Reads of documents at one version."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from reef.documents.filter import Filter, Where, parse_filter
from reef.documents.query import (
    Aggregates,
    Aggregation,
    Distance,
    Order,
    OrderBy,
    Query,
    Selection,
    StoredRows,
    explain_sql,
    frame_of_pandas,
    frame_of_polars,
    read_page,
    run_query,
    run_search,
    run_sql,
    vector_attribute,
)
from reef.documents.types import Schema, documents_of
from reef.engine import HeldSnapshot, SnapshotView, View
from reef.errors import InvalidInputError
from reef.segment import RowVersion, align

SEARCH_LIMIT_DEFAULT = 10
_METRIC_DEFAULT = "cosine"


class DocumentView:
    """The documents of a namespace at one version, which does not change."""

    def __init__(self, view: View, schema: Schema) -> None:
        """Reads show the attributes of `schema` only."""
        self._view = view
        self.schema = schema

    @property
    def lsn(self) -> int:
        """The version."""
        return self._view.lsn

    def get(self, id: str, *, columns: Sequence[str] | None = None) -> dict[str, Any] | None:
        """Return the document called `id`, or None. Raises InvalidInputError."""
        selection = Selection.of(self.schema, columns)
        key = _key_of_id("id", id)
        latest = self._view.one(key) if selection.wide else self._narrow(key)
        return None if latest is None else selection.document(id, latest)

    def get_many(
        self, ids: Iterable[str], *, columns: Sequence[str] | None = None
    ) -> list[dict[str, Any] | None]:
        """Return the document of each id, or None, in that order."""
        selection = Selection.of(self.schema, columns)
        if isinstance(ids, str) or not isinstance(ids, Iterable):
            raise InvalidInputError.of("ids", ids, "a list of ids")
        listed = ids.to_pylist() if isinstance(ids, pa.Array | pa.ChunkedArray) else list(ids)
        keys = [_key_of_id("id", id) for id in listed]
        latest = self._view.many(keys, wide=bool(selection.wide))
        if (few := latest.few) is not None:
            return [
                None if one is None else selection.document(id, one)
                for id, one in zip(listed, few, strict=True)
            ]
        rows = latest.rows(self._rows(None).layout(selection.columns))
        documents = documents_of(selection.user_rows(rows), self.schema)
        return [
            document if exists else None
            for document, exists in zip(documents, latest.exists.tolist(), strict=True)
        ]

    def count(self, where: Where | None = None) -> int:
        """Return how many documents there are, or how many match."""
        return sum(batch.num_rows for batch in self._rows(where).batches((), ordered=False))

    def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        start: str | None = None,
        end: str | None = None,
        reverse: bool = False,
        ordered: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """Return Arrow batches of documents by id, from `start` up to `end` (exclusive).

        `id` is the first column. Memory holds a few batches at a time. Without
        `ordered`, the same documents come in an order that costs less.
        """
        selection = Selection.of(self.schema, columns)
        low = b"" if start is None else _key_of_id("start", start)
        high = None if end is None else _key_of_id("end", end)
        rows = self._rows(where).batches(
            selection.columns, start=low, end=high, reverse=reverse, ordered=ordered
        )
        return map(selection.user_rows, rows)

    def query(
        self,
        *,
        where: Where | None = None,
        order_by: OrderBy | None = None,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
        after: str | pa.Table | None = None,
        vector: object = None,
        metric: str | None = None,
        vector_column: str | None = None,
    ) -> pa.Table:
        """Return the documents that match, in an order (by default of ids), up to `limit`.

        If there are more, the schema's metadata has `reef:after`: `after` takes that, or the
        table. With a vector, those nearest to it come first (10 unless `limit` says otherwise, by
        cosine unless `metric` does), with `_distance`. Raises InvalidInputError.
        """
        selection = Selection.of(self.schema, columns)
        filter = self._filter(where)
        _check_limit(limit)
        if vector is not None:
            if order_by is not None or after is not None:
                raise InvalidInputError(
                    "a search by vector is ordered by distance and has no pages: leave out order_by "
                    "and after, and ask for a greater limit"
                )
            column = vector_attribute(self.schema, vector_column)
            distance = Distance(_METRIC_DEFAULT if metric is None else metric, vector, column)
            most = SEARCH_LIMIT_DEFAULT if limit is None else limit
            return run_search(
                self._view, self.schema, selection, distance, filter=filter, limit=most
            )
        for name, value in (("vector_column", vector_column), ("metric", metric)):
            if value is not None:
                raise InvalidInputError(
                    f"{name} = {value!r} is given without vector: give the vector to search for, or "
                    f"leave {name} out"
                )
        order = Order.of(order_by, self.schema)
        page = read_page(after)
        position = None if page is None else page.start(self._view.life, self.lsn, order, filter)
        query = Query(
            filter=filter, order=order, limit=limit, selection=selection, position=position
        )
        return run_query(self._view, self.schema, query)

    def aggregate(
        self,
        aggregates: Aggregates,
        *,
        group_by: str | Sequence[str] | None = None,
        where: Where | None = None,
    ) -> pa.Table:
        """Return counts, sums, least and greatest values and averages, in all or by groups.

            {"n": "count", "total": ("sum", "price"), "best": ("max", "price")}

        Null values are left out, as in SQL. Without `group_by` there is one row; with it one for each
        group, in order of the groups. Raises InvalidInputError.
        """
        aggregation = Aggregation(aggregates, group_by, self.schema)
        rows = self._rows(where)
        layout = rows.layout(aggregation.columns)
        aligned = (align(some, layout) for some in rows.batches(aggregation.columns))
        return aggregation.run(aligned, layout)

    def sql(
        self,
        text: str,
        parameters: Sequence[Any] | None = None,
        *,
        timeout: float | str | None = None,
        memory_limit: int | str | None = None,
    ) -> pa.Table:
        """Return the result of a SELECT over the table `docs`.

        It is ended after `timeout` (seconds, or text such as "30s"; None: never), or if it takes more
        memory, or gives a larger result, than `memory_limit` (bytes, or text; by default 1 GB).
        Raises InvalidInputError.
        """
        return run_sql(self, text, parameters, timeout=timeout, memory_limit=memory_limit)

    def explain_sql(
        self,
        text: str,
        parameters: Sequence[Any] | None = None,
        *,
        timeout: float | str | None = None,
        memory_limit: int | str | None = None,
    ) -> str:
        """Run a SELECT, and return how: what its scans evaluated, and DuckDB's plan for the rest."""
        return explain_sql(self, text, parameters, timeout=timeout, memory_limit=memory_limit)

    def to_pandas(self, **query: Any) -> Any:
        """Return what `query` returns as a pandas DataFrame; see `frame_of_pandas`."""
        return frame_of_pandas(self.query(**query))

    def to_polars(self, **query: Any) -> Any:
        """Return what `query` returns as a Polars DataFrame."""
        return frame_of_polars(self.query(**query))

    def _narrow(self, key: bytes) -> RowVersion | None:
        """Return a row without the columns that cost reads of their own."""
        few = self._view.many([key], wide=False).few
        return few[0] if few else None

    def _rows(self, where: Where | None) -> StoredRows:
        return StoredRows(self._view, self.schema, self._filter(where))

    def _filter(self, where: Where | None) -> Filter | None:
        if where is None:
            return None
        filter = parse_filter(where, self.schema)
        if filter.needs_incoming:
            raise InvalidInputError(
                f"{filter!r} uses incoming values, which only the condition of a write has"
            )
        return filter


class DocumentSnapshot(HeldSnapshot, DocumentView):
    """A view that stays readable until it expires or is released, in this process or another."""

    def __init__(self, view: SnapshotView, schema: Schema) -> None:
        HeldSnapshot.__init__(self, view)
        DocumentView.__init__(self, view, schema)


def _key_of_id(name: str, id: object) -> bytes:
    if not isinstance(id, str):
        raise InvalidInputError.of(name, id, "the id of a document, which is text")
    try:
        return id.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError.of(name, id, f"text that UTF-8 can hold ({error})") from error


def _check_limit(limit: object) -> None:
    if limit is not None and (type(limit) is not int or limit < 1):
        raise InvalidInputError.of("limit", limit, "a whole number of at least 1, or None for all")
