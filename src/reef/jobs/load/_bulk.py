"""A bulk load in this process: rows in any order, sorted on local disk and written as one part."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa

from reef.database import Database
from reef.engine import Context, Namespace
from reef.errors import (
    NotWrittenError,
    OutcomeUnknownError,
    ReefError,
    UnavailableError,
)
from reef.jobs.load._load_commit import LoadResult, commit_load, find_load
from reef.jobs.load._load_intent import end_load, register_load
from reef.jobs.load._load_part import write_part
from reef.jobs.load._load_plan import (
    TARGET_BYTES_DEFAULT,
    FaceName,
    LoadPlan,
    packed_schema,
    plan_load,
)
from reef.jobs.load._segment_rows import stored_pairs, widening_rows
from reef.kv import KeyValue
from reef.segment import Duplicates, SortedRuns

BUDGET_BYTES_DEFAULT = 256 << 20
_MAY_BE_COMMITTED = (OutcomeUnknownError, UnavailableError)
_INPUT_ROWS = 1 << 16


def bulk_load(
    database: Database | Context,
    namespace: str | Namespace,
    rows: object,
    *,
    job_key: str,
    face: FaceName | None = None,
    target_bytes: int = TARGET_BYTES_DEFAULT,
    budget_bytes: int = BUDGET_BYTES_DEFAULT,
    duplicates: Duplicates = "error",
    codec: Literal["lz4", "zstd"] = "lz4",
    spill_folder: str | None = None,
) -> LoadResult:
    """Load rows in any order in this process: sorted on local disk, committed all at once.

    `namespace` is a name, or an open handle, which the load then does not fence. `rows` are what
    `upsert` takes, or an iterable or reader of Arrow batches, which is never whole in memory: with an
    `id` for documents, `key` and `value` for `kv`. About `budget_bytes` of rows are in memory at once. A
    load of the same job key that was committed before is not repeated. Raises what `upsert` does for
    values; InvalidInputError for an id that comes twice, unless `duplicates="last"`; and what
    `commit_load` raises: then the same job key can be tried again.
    """
    context = database.context() if isinstance(database, Database) else database
    into = None if isinstance(namespace, str) else namespace
    name = namespace if isinstance(namespace, str) else namespace.name
    face = face or ("kv" if isinstance(into, KeyValue) else "documents")
    earlier = find_load(context, name, job_key)
    if earlier is not None:
        return LoadResult(name, earlier.lsn, 0, 0, 0, 0, replayed=True)
    plan = plan_load(
        context,
        name,
        job_key=job_key,
        face=face,
        target_bytes=target_bytes,
        duplicates=duplicates,
        codec=codec,
    )
    register_load(context, plan)
    try:
        with tempfile.TemporaryDirectory(prefix="reef-load-", dir=spill_folder) as folder:
            runs = SortedRuns(Path(folder), budget_bytes=budget_bytes, duplicates=duplicates)
            plan = _gather(plan, rows, runs)
            part = write_part(context, plan, runs.merged(plan.row_schema))
            part = msgspec.structs.replace(part, dropped=part.dropped + runs.dropped)
    except BaseException:
        _give_up(context, plan)
        raise
    try:
        return commit_load(context, plan, [part], into=into)
    except ReefError as error:
        if isinstance(error, NotWrittenError) or not isinstance(error, _MAY_BE_COMMITTED):
            _give_up(context, plan)
        raise


def _gather(plan: LoadPlan, rows: object, runs: SortedRuns) -> LoadPlan:
    """Sort the rows; return the plan with the attributes that were new in them."""
    if plan.face == "kv":
        for table in _inputs(rows):
            runs.add(stored_pairs(table))
        return plan
    schema = plan.document_schema
    for table in _inputs(rows):
        stored, schema = widening_rows(schema, table, duplicates=plan.duplicates)
        runs.add(stored)
        runs.dropped += _row_count(table) - stored.num_rows
    return msgspec.structs.replace(plan, schema=packed_schema(schema))


def _inputs(rows: object) -> Iterator[object]:
    """Yield the rows in portions, if they come in portions."""
    if isinstance(rows, pa.Table):
        yield from rows.to_batches(max_chunksize=_INPUT_ROWS)
    elif isinstance(rows, pa.RecordBatchReader | Iterator) or (
        isinstance(rows, list | tuple) and rows and isinstance(rows[0], pa.RecordBatch | pa.Table)
    ):
        yield from rows
    else:
        yield rows


def _row_count(table: object) -> int:
    if isinstance(table, pa.RecordBatch | pa.Table):
        return int(table.num_rows)
    if isinstance(table, Mapping):
        return max((len(column) for column in table.values()), default=0)
    return len(table)  # type: ignore[arg-type]


def _give_up(context: Context, plan: LoadPlan) -> None:
    """End a load of which nothing can become visible any more."""
    with suppress(ReefError):
        end_load(context, plan)
