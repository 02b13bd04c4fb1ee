"""SQL over the documents of one version: DuckDB, on the same scan as everybody else.

The documents are the table `docs`, with the columns `id` and one for each attribute. DuckDB asks for
the columns it needs, and passes on conditions for the scan to evaluate; they prune blocks as any
filter does. Everything else of the query is DuckDB's.

A query reads `docs` and nothing else: no file, no network, no variable of the program. It has a
database of its own, in memory, which is gone when it ends; it may take `MEMORY_LIMIT` of memory for
its work and spills nothing to disk. `explain_sql` shows which conditions the scans evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from reef.documents.filter import Where
from reef.documents.input import coerce
from reef.documents.query._pushdown import Pushed, pushed_filter
from reef.documents.types import InputColumn, Schema, Type
from reef.errors import InvalidInputError

TABLE = "docs"
MEMORY_LIMIT = "1GB"
TEXT_CHARS_MAX = 1 << 20

_UUID = Type.parse("uuid")

Parameters = Sequence[Any] | Mapping[str, Any]
# In this order: the directory cannot be changed any more once access is disabled.
_SETTINGS = (
    f"memory_limit = '{MEMORY_LIMIT}'",
    "temp_directory = ''",
    "autoload_known_extensions = false",
    "autoinstall_known_extensions = false",
    "python_enable_replacements = false",
    "enable_external_access = false",
    "TimeZone = 'UTC'",
)


class SqlSource(Protocol):
    """What SQL reads: documents at one version."""

    @property
    def schema(self) -> Schema: ...

    def scan(
        self, *, columns: Sequence[str] | None = None, where: Where | None = None
    ) -> Iterator[pa.RecordBatch]: ...


def run_sql(view: SqlSource, text: str, parameters: Parameters | None = None) -> pa.Table:
    """Return what one SELECT over the table `docs` returns.

    `parameters` are for `?` (a list) or `$name` (a dict) in the text. A uuid comes back as one.
    Raises InvalidInputError with what DuckDB says of the query; what a scan raises.
    """

    with _connected(view, text, parameters) as (connection, given, _):
        result = connection.sql(text, params=given)
        return _with_uuids(result.to_arrow_table(), [str(type) for type in result.types])


def explain_sql(view: SqlSource, text: str, parameters: Parameters | None = None) -> str:
    """Run one SELECT and return how it was run: each scan, and DuckDB's plan for everything else.

    Of each scan: its rows, its columns, the conditions that Reef evaluated while it read, and those
    that Arrow evaluated on the rows that were left. Raises what `run_sql` raises.
    """

    with _connected(view, text, parameters) as (connection, given, documents):
        plan = connection.execute(f"explain {text}", given).fetchall()[0][1]
        connection.sql(text, params=given).to_arrow_table()
        scans = [str(scan) for scan in documents.scans]
        return "\n".join([*scans, "DuckDB, for everything else:", str(plan).rstrip()])


@contextmanager
def _connected(
    view: SqlSource, text: str, parameters: Parameters | None
) -> Iterator[tuple[duckdb.DuckDBPyConnection, object, _Dataset]]:
    """Yield a connection that sees the documents and nothing else, the parameters, the documents."""
    if not isinstance(text, str) or len(text) > TEXT_CHARS_MAX:
        raise InvalidInputError.of(
            "sql", str(text)[:64], f"the text of a SELECT, at most {TEXT_CHARS_MAX} characters"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"the query has text that UTF-8 cannot hold: {error}") from None
    _check_names(view.schema)
    documents = _Dataset(view)
    connection = duckdb.connect(":memory:")
    try:
        for setting in _SETTINGS:
            connection.execute(f"set {setting}")
        _check_statement(connection, text)
        connection.register(TABLE, documents)
        connection.execute("set lock_configuration = true")
        # A dict of its own: DuckDB takes nothing else for names.
        given = dict(parameters) if isinstance(parameters, Mapping) else parameters
        yield connection, given, documents
    except duckdb.Error as error:
        if documents.failure is not None:
            raise documents.failure from error
        raise _refused_query(error) from error
    finally:
        connection.close()


def _check_statement(connection: duckdb.DuckDBPyConnection, text: str) -> None:
    statements = connection.extract_statements(text)
    kinds = [statement.type for statement in statements]
    if kinds != [duckdb.StatementType.SELECT]:
        got = ", ".join(kind.name for kind in kinds) or "nothing"
        raise InvalidInputError(
            f"the SQL is {got}: expected one SELECT; documents are changed by upsert, "
            "patch and delete"
        )


def _check_names(schema: Schema) -> None:
    """Raise InvalidInputError if two names differ in case only: SQL would take one for the other."""
    seen: dict[str, str] = {}
    for name in ("id", *schema.names):
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise InvalidInputError(
                f"SQL does not tell the attributes {other!r} and {name!r} apart: rename one with alter"
            )


def _refused_query(error: duckdb.Error) -> InvalidInputError:
    if isinstance(error, duckdb.OutOfMemoryException):
        return InvalidInputError(
            f"the query needs more than {MEMORY_LIMIT} of memory: select fewer rows or columns, or "
            f"order and join less ({_first_line(error)})"
        )
    hint = " (the table is called docs)" if isinstance(error, duckdb.CatalogException) else ""
    return InvalidInputError(f"DuckDB refuses the query{hint}: {str(error).strip()}")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


@dataclass
class _ScanNote:
    """What one scan was asked for, and gave."""

    columns: list[str]
    pushed: Pushed
    rows: int = 0

    def __str__(self) -> str:
        where, rest = self.pushed.where, self.pushed.rest
        if where is not None and len(where[1]) == 1:
            where = where[1][0]  # one condition, without And
        return (
            f"scan of {TABLE}: {self.rows} rows\n"
            f"  columns:           {', '.join(self.columns) or 'none'}\n"
            f"  filtered by Reef:  {'nothing' if where is None else where}\n"
            f"  filtered by Arrow: {'nothing' if rest is None else rest}"
        )


class _Dataset(pyarrow.dataset.Dataset):  # type: ignore[misc]
    """Documents as a dataset of Arrow: the one kind of source that DuckDB tells what it needs."""

    def __init__(self, view: SqlSource) -> None:  # not Arrow's own, which refuses to be called
        self._view = view
        self._schema = _sql_schema(view.schema)
        self.failure: Exception | None = None
        """What a scan has raised, which DuckDB knows only the text of."""
        self.scans: list[_ScanNote] = []

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return self._schema

    def scanner(
        self, columns: list[str] | None = None, filter: pc.Expression | None = None, **_: object
    ) -> _Scanner:
        """Return a scan of some columns of the rows for which `filter` holds."""
        names = self._schema.names if columns is None else columns
        shape = pa.schema([self._schema.field(name) for name in names])
        pushed = Pushed(None, frozenset(), None)
        if filter is not None:
            pushed = pushed_filter(filter, self._view.schema)
        return _Scanner(self, shape, pushed)

    def batches(self, shape: pa.Schema, pushed: Pushed) -> Iterator[pa.RecordBatch]:
        """Yield rows with the columns of `shape`."""
        names = [*shape.names, *(sorted(pushed.names) if pushed.rest is not None else ())]
        to_read = [*dict.fromkeys(name for name in names if name != "id")]
        note = _ScanNote(list(shape.names), pushed)
        self.scans.append(note)
        try:
            for batch in self._view.scan(columns=to_read, where=pushed.where):
                if pushed.rest is not None:
                    batch = batch.filter(pushed.rest)
                if batch.num_rows:
                    note.rows += batch.num_rows
                    yield _shaped(batch, shape)
        except Exception as error:
            self.failure = error
            raise


class _Scanner:
    """What DuckDB takes for a scanner of Arrow."""

    def __init__(self, dataset: _Dataset, shape: pa.Schema, pushed: Pushed) -> None:
        self._dataset = dataset
        self._pushed = pushed
        self.projected_schema = shape

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows, read as the caller consumes them."""
        shape = self.projected_schema
        return pa.RecordBatchReader.from_batches(shape, self._dataset.batches(shape, self._pushed))


def _sql_schema(schema: Schema) -> pa.Schema:
    attributes = [pa.field(a.name, _sql_type(a.type)) for a in schema.attributes]
    return pa.schema([pa.field("id", pa.string()), *attributes])


def _sql_type(type: Type) -> pa.DataType:
    """Return the Arrow type that DuckDB is shown: it has no float16."""
    if type.kind == "vector":
        return pa.list_(pa.float32(), type.dimension)
    return type.logical


def _shaped(batch: pa.RecordBatch, shape: pa.Schema) -> pa.RecordBatch:
    columns = [batch.column(name) for name in shape.names]
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(columns, shape, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=shape)


def _with_uuids(table: pa.Table, types: list[str]) -> pa.Table:
    """Return the result with uuids as such: DuckDB gives their text."""
    for i, type in enumerate(types):
        if type == "UUID" and pa.types.is_string(table.column(i).type):
            name = table.schema.field(i).name
            stored = coerce(table.column(i).combine_chunks(), _UUID, InputColumn(name))
            uuids = pa.ExtensionArray.from_storage(_UUID.logical, stored)
            table = table.set_column(i, pa.field(name, _UUID.logical), uuids)
    return table
