"""`reef docs get`, `query`, `count` and `sql`: they fence nobody."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reef.cli import PROBLEM
from reef.cli._report import Report
from reef.cli.arguments import Namespace, Url, Version, connect, name_and_branch
from reef.cli.docs._docs_options import (
    Columns,
    Output,
    Where,
    column_list,
    column_names,
    numbers_of,
    order_of,
)
from reef.cli.docs._rows_output import TABLE_ROWS, Printer, chosen_format, open_output
from reef.errors import InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa

    from reef.documents import DocumentView

_PAGE_ROWS = 5000


def get(
    url: Url,
    namespace: Namespace,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids of documents.")],
    version: Version,
    output: Output,
    columns: Columns = None,
) -> None:
    """Print documents by id. Exit code 2 and a line on stderr for each id that does not exist."""
    from reef.cli.docs._text_cells import printed_row

    format = chosen_format(output, otherwise="jsonl")
    with _open_documents(url, namespace, version) as view:
        types = view.schema.as_dict()
        names = column_names(columns, types)
        found = view.get_many(ids, columns=column_list(columns))
    with open_output(output.path) as write:
        printer = Printer(write, format, names)
        for document in found:
            if document is None:
                printer.nothing()
            else:
                printer.rows([printed_row(document, names, types)])
        printer.end()
    missing = [id for id, document in zip(ids, found, strict=True) if document is None]
    for id in missing:
        print(f"reef: document {id!r} does not exist", file=sys.stderr)
    if missing:
        raise typer.Exit(PROBLEM)


def query(
    url: Url,
    namespace: Namespace,
    version: Version,
    output: Output,
    where: Where = None,
    order_by: Annotated[
        str | None,
        typer.Option(metavar="'A desc, B'", help="Sort by these attributes. [default: by id]"),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=2**31 - 1,
            metavar="N",
            help="The most documents. [default: all; in a table, 50]",
        ),
    ] = None,
    columns: Columns = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", help="Continue after a page, at the version of that page."),
    ] = None,
    vector: Annotated[
        str | None,
        typer.Option(
            metavar="'[0.1, ...]'",
            help="Nearest to this vector first, with _distance. [default limit: 10]",
        ),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(metavar="METRIC", help="cosine, l2 or dot. [default: cosine]")
    ] = None,
    vector_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The attribute to search, if several hold vectors."),
    ] = None,
) -> None:
    """Print documents that match a filter or are near a vector.

    A table omits vectors unless --columns names them. If more documents follow, the token for
    --after is on stderr, or in the JSON.
    """
    from reef.cli.docs._text_cells import printed_rows

    format = chosen_format(output, otherwise="table", limit=limit)
    query: dict[str, Any] = {"where": where, "order_by": order_of(order_by)}
    if vector is not None:
        query |= {"vector": numbers_of(vector), "metric": metric, "vector_column": vector_column}
    elif vector_column is not None:
        raise InvalidInputError(
            "--vector-column is given without --vector: give the vector to search for, "
            "or leave it out"
        )
    elif metric is not None:
        raise InvalidInputError(
            "--metric is given without --vector: give the vector to search for, or leave it out"
        )
    elif format == "table":
        limit = limit or TABLE_ROWS
    with _open_documents(url, namespace, version, after) as view:
        types = view.schema.as_dict()
        query["columns"] = column_list(columns)
        if columns is None and format == "table":
            query["columns"] = [
                n for n, t in types.items() if not t.startswith(("vector", "sparse"))
            ]
        names = ["id", *(types if query["columns"] is None else query["columns"])]
        names = [*dict.fromkeys(names), *(["_distance"] if vector is not None else [])]
        pages = _ResultPages(view, query, limit, after)
        portions = iter(pages)
        first = list(itertools.islice(portions, 1))  # an error here leaves no output
        with open_output(output.path) as write:
            printer = Printer(write, format, names)
            for batch in itertools.chain(first, portions):
                printer.rows(printed_rows(batch.select(names), types))
            printer.end(lsn=view.lsn, after=pages.token)
    if pages.token is not None and format != "json":
        print(f"reef: more documents follow: --after {pages.token}", file=sys.stderr)


def count(url: Url, namespace: Namespace, version: Version, where: Where = None) -> Report:
    """Print the number of documents, or of those that match --where."""
    with _open_documents(url, namespace, version) as view:
        found = view.count(where)
    return Report({"count": found, "lsn": view.lsn}, [str(found)])


def sql(
    url: Url,
    namespace: Namespace,
    text: Annotated[
        str,
        typer.Argument(metavar="SELECT", help="A SELECT on the table docs; - reads it from stdin."),
    ],
    version: Version,
    output: Output,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Run it, then print the conditions that its scans evaluated, and the plan.",
        ),
    ] = False,
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="End it after that time, such as 30s. [default: never]"
        ),
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="The most memory for its work, and for its result. [default: 1GB]",
        ),
    ] = None,
) -> None:
    """Run a SELECT on the table `docs`. Prints the first 50 rows, or all with another --format."""
    from reef.cli.docs._text_cells import printed_rows

    format = chosen_format(output, otherwise="table")
    if text == "-":
        text = sys.stdin.read() if sys.stdin else ""
    with _open_documents(url, namespace, version) as view:
        if explain:
            plan = view.explain_sql(text, timeout=timeout, memory_limit=memory_limit)
            with open_output(output.path) as write:
                write(f"{plan}\n".encode())
            return
        found = view.sql(text, timeout=timeout, memory_limit=memory_limit)
    rest = max(0, found.num_rows - TABLE_ROWS) if format == "table" else 0
    with open_output(output.path) as write:
        printer = Printer(write, format, found.schema.names, key="rows", keep_nulls=True)
        for batch in found.slice(0, found.num_rows - rest).to_batches(max_chunksize=_PAGE_ROWS):
            printer.rows(printed_rows(batch, {}))
        printer.end(lsn=view.lsn)
    if rest:
        print(f"reef: {rest} more rows; --format jsonl or csv prints all", file=sys.stderr)


class _ResultPages:
    """What a query gives, in portions; afterwards `token` is that of the next page, if there is one."""

    def __init__(
        self, view: DocumentView, query: dict[str, Any], limit: int | None, after: str | None
    ) -> None:
        self._view = view
        self._query = query
        self._limit = limit
        self._after = after
        self.token: str | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        is_by_id = self._query["order_by"] is None and "vector" not in self._query
        if is_by_id and self._limit is None and self._after is None:
            yield from self._view.scan(where=self._query["where"], columns=self._query["columns"])
            return
        left, after = self._limit, self._after
        while True:
            rows = left
            if is_by_id:
                rows = _PAGE_ROWS if left is None else min(left, _PAGE_ROWS)
            table = self._view.query(**self._query, limit=rows, after=after)
            found = (table.schema.metadata or {}).get(b"reef:after")
            after = None if found is None else found.decode()
            left = None if left is None else left - table.num_rows
            yield from table.to_batches(max_chunksize=_PAGE_ROWS)
            if after is None or left == 0:
                self.token = after
                return


@contextlib.contextmanager
def _open_documents(
    url: str, namespace: str, version: Version, after: str | None = None
) -> Iterator[DocumentView]:
    """Open a version, by default that of the page `after`, or the newest."""
    from reef.documents import page_version

    with connect(url) as db, db.namespace(**name_and_branch(namespace), mode="r") as ns:
        if not version.is_newest:
            view = ns.at(**version.as_dict())
            if version.is_time:
                print(f"reef: at LSN {view.lsn}", file=sys.stderr)
            yield view
            return
        lsn = page_version(after, (ns.name, ns.born))
        yield ns.view() if lsn is None else ns.at(lsn=lsn)
