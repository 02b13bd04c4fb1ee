"""SQL over the documents of one version: DuckDB, on the same scan as everybody else.

The documents are the table `docs`, with the columns `id` and one for each attribute. DuckDB asks for
the columns it needs, and passes on conditions for the scan to evaluate; they prune blocks as any
filter does. Everything else of the query is DuckDB's.

A query reads `docs` and nothing else: no file, no network, no variable of the program. It has a
database of its own, in memory, which is gone when it ends; it may take `memory_limit` of memory for
its work, as much for its result, and spills nothing to disk. `explain_sql` shows which conditions
the scans evaluated.

A query runs in a thread of its own, and the caller waits: DuckDB notices neither signals nor time,
but ends when another thread interrupts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from reef.clock import SystemClock
from reef.documents.filter import Where
from reef.documents.input import coerce
from reef.documents.query._pushdown import Pushed, pushed_filter
from reef.documents.types import InputColumn, Schema, Type
from reef.errors import InvalidInputError
from reef.settings import parse_bytes, parse_seconds
from reef.threads import SystemThreads

TABLE = "docs"
MEMORY_LIMIT = "1GB"
TEXT_CHARS_MAX = 1 << 20
_MEMORY_LIMIT_LEAST = 1 << 20
_STOP_S = 0.05  # between two interrupts: one that comes before DuckDB runs a statement is lost

_BATCH_ROWS = 1 << 17
_OUT_OF_MEMORY = "Out of Memory Error"

T = TypeVar("T")

_UUID = Type.parse("uuid")

Parameters = Sequence[Any] | Mapping[str, Any]
# In this order: the directory cannot be changed any more once access is disabled.
_SETTINGS = (
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


def run_sql(
    view: SqlSource,
    text: str,
    parameters: Parameters | None = None,
    *,
    timeout: float | str | None = None,
    memory_limit: int | str | None = None,
) -> pa.Table:
    """Return what one SELECT over the table `docs` returns.

    `parameters` are for `?` (a list) or `$name` (a dict) in the text. A uuid comes back as one.
    `timeout` is how long it may take (None: as long as it takes), `memory_limit` how much memory
    (None: `MEMORY_LIMIT`). Raises InvalidInputError if that is not enough, or with what DuckDB says
    of the query; what a scan raises.
    """

    def run(query: _Query[pa.Table]) -> pa.Table:
        relation = query.connection.sql(text, params=query.parameters)
        types = [str(type) for type in relation.types]
        reader = relation.to_arrow_reader(_BATCH_ROWS)
        return _with_uuids(pa.Table.from_batches(query.bounded(reader), reader.schema), types)

    return _Query(view, text, parameters, timeout, memory_limit).result(run)


def explain_sql(
    view: SqlSource,
    text: str,
    parameters: Parameters | None = None,
    *,
    timeout: float | str | None = None,
    memory_limit: int | str | None = None,
) -> str:
    """Run one SELECT and return how it was run: each scan, and DuckDB's plan for everything else.

    Of each scan: its rows, its columns, the conditions that Reef evaluated while it read, and those
    that Arrow evaluated on the rows that were left. Takes and raises what `run_sql` does.
    """

    def run(query: _Query[str]) -> str:
        plan = query.connection.execute(f"explain {text}", query.parameters).fetchall()[0][1]
        relation = query.connection.sql(text, params=query.parameters)
        for _ in query.bounded(relation.to_arrow_reader(_BATCH_ROWS)):
            pass
        scans = [str(scan) for scan in query.documents.scans]
        return "\n".join([*scans, "DuckDB, for everything else:", str(plan).rstrip()])

    query: _Query[str] = _Query(view, text, parameters, timeout, memory_limit)
    return query.result(run)


class _Query(Generic[T]):
    """One run of a query, in a thread of its own; that thread opens and closes DuckDB."""

    connection: duckdb.DuckDBPyConnection
    """It sees the documents and nothing else."""

    def __init__(
        self,
        view: SqlSource,
        text: str,
        parameters: Parameters | None,
        timeout: float | str | None,
        memory_limit: int | str | None,
    ) -> None:
        if not isinstance(text, str) or len(text) > TEXT_CHARS_MAX:
            raise InvalidInputError.of(
                "sql", str(text)[:64], f"the text of a SELECT, at most {TEXT_CHARS_MAX} characters"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidInputError(f"the query has text that UTF-8 cannot hold: {error}") from None
        _check_names(view.schema)
        self._text = text
        self._timeout_s = None if timeout is None else parse_seconds("timeout", timeout, low=0.001)
        self._limit = MEMORY_LIMIT if memory_limit is None else memory_limit
        self._limit_bytes = parse_bytes("memory_limit", self._limit, _MEMORY_LIMIT_LEAST, 1 << 50)
        # A dict of its own: DuckDB takes nothing else for names.
        self.parameters = dict(parameters) if isinstance(parameters, Mapping) else parameters
        self.documents = _Dataset(view)
        self._clock = SystemClock()
        self._cond = SystemThreads().condition()
        self._is_over = False
        self._result: list[T] = []
        self._failure: BaseException | None = None

    def result(self, run: Callable[[_Query[T]], T]) -> T:
        """Return what `run` returns; end it after the timeout, or when the caller is interrupted."""
        SystemThreads().start(lambda: self._run(run), name="reef-sql")
        try:
            is_in_time = self._wait(self._timeout_s)
        except BaseException:
            self._stop()
            raise
        if not is_in_time:
            self._stop()
            raise InvalidInputError(
                f"the query took longer than timeout = {self._timeout_s:g} s and was ended: select "
                "less, or give a longer timeout"
            )
        if self._failure is not None:
            raise self._failure
        return self._result[0]

    def bounded(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a result. Raises InvalidInputError if they are too many."""
        nbytes = 0
        for batch in batches:
            nbytes += batch.nbytes
            if nbytes > self._limit_bytes:
                raise InvalidInputError(
                    f"the result of the query takes more than memory_limit = {self._limit}: select "
                    "fewer rows or columns, or give a larger memory_limit"
                )
            yield batch

    def _run(self, run: Callable[[_Query[T]], T]) -> None:
        try:
            self._result.append(self._connected(run))
        except BaseException as error:  # noqa: BLE001 raised again where the result is awaited
            self._failure = error
        finally:
            with self._cond:
                self._is_over = True
                self._cond.notify_all()

    def _connected(self, run: Callable[[_Query[T]], T]) -> T:
        self.connection = connection = duckdb.connect(":memory:")
        try:
            for setting in (f"memory_limit = '{self._limit_bytes} bytes'", *_SETTINGS):
                connection.execute(f"set {setting}")
            _check_statement(connection, self._text)
            connection.register(TABLE, self.documents)
            connection.execute("set lock_configuration = true")
            return run(self)
        except (duckdb.Error, pa.ArrowException, OSError) as error:  # the last two: of a result
            if self.documents.failure is not None:
                raise self.documents.failure from error
            raise self._refused(error) from error
        finally:
            connection.close()

    def _wait(self, seconds: float | None) -> bool:
        """Return whether it was over within that time."""
        deadline = None if seconds is None else self._clock.monotonic() + seconds
        with self._cond:
            while not self._is_over:
                left = None if deadline is None else deadline - self._clock.monotonic()
                if left is not None and left <= 0:
                    return False
                self._cond.wait(left)
        return True

    def _stop(self) -> None:
        """End it, and wait until it has ended: its scans use the view."""
        self.documents.is_stopped = True
        while not self._is_over:
            with suppress(AttributeError, duckdb.Error):  # not connected yet, or closed
                self.connection.interrupt()
            self._wait(_STOP_S)

    def _refused(self, error: Exception) -> InvalidInputError:
        text = str(error).strip()
        if text.startswith(_OUT_OF_MEMORY):
            return InvalidInputError(
                f"the query needs more than {self._limit} of memory: select fewer rows or columns, "
                f"order and join less, or give a larger memory_limit ({text.partition(chr(10))[0]})"
            )
        hint = " (the table is called docs)" if isinstance(error, duckdb.CatalogException) else ""
        return InvalidInputError(f"DuckDB refuses the query{hint}: {text}")


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
        self.is_stopped = False
        """Nobody waits for the rows any more."""
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
                if self.is_stopped:
                    return
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
