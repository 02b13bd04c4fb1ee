"""Bulk load: sorted segments written by tasks, committed by one record of the log.

plan = begin_load(context, "ns", job_key="2026-07-01")    # an intent stands; the schema is decided
part = write_part(context, plan.part(), batches)          # in tasks: one range of keys each
commit_load(context, plan, [part, ...])                   # all rows visible at one LSN; the intent ends

Invariants:

- Nothing is visible before the commit, and everything is after it, at one version.
- A job key is committed once, however often the load is tried (as long as the dedup window
  keeps it; a `source` and its `sequence` are kept for good).
- No key is in two parts, and none twice in a part.
- The intent stands until the record is durable. It is ended by the load itself, when its record is
  durable or when none was sent; by others only after they have opened the namespace for writing,
  which fences whoever may still be about to commit.
- Where tasks register the intent, none does so again after `close_load`, which comes before whatever
  ends it: a task may be late, nobody would end what it registers, and what was uploaded under an
  intent that has ended may be gone.

Crash points: before the commit there are an intent and segments that nothing names: the same job key
can be loaded anew, `abandon_load` lets collection have the rest. In the commit the namespace may
have new attributes and no new rows. After it the intent may still stand: to commit again ends it.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa

from reef.database import Database
from reef.documents import FACE as DOCUMENTS_FACE
from reef.documents import Documents
from reef.documents.types import Schema
from reef.engine import (
    ATTACH_DIGEST,
    Context,
    Face,
    Namespace,
    Receipt,
    check_idempotency_key,
    load_dedup,
    open_for_reading,
)
from reef.engine import open_for_writing as take_over
from reef.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    NotWrittenError,
    OutcomeUnknownError,
    ReefError,
    UnavailableError,
)
from reef.format import Manifest, SegmentRef
from reef.jobs._job import Job
from reef.jobs._load._part import LoadedPart, LoadPart, write_part
from reef.jobs._load._rows import (
    PAIRS_SCHEMA,
    row_schema,
    schema_for,
    stored_pairs,
    widening_rows,
)
from reef.kv import FACE as KV_FACE
from reef.kv import KeyValue
from reef.log import LogFold, LogReader
from reef.manifest import Head, end_intent, no_namespace
from reef.segment import Duplicates, SortedRuns
from reef.types import check_namespace, check_object_key

FaceName = Literal["documents", "kv"]
TARGET_BYTES_DEFAULT = 128 << 20
BUDGET_BYTES_DEFAULT = 256 << 20
KIND = "load"

_log = logging.getLogger("reef")

FACES: dict[FaceName, Face] = {"documents": DOCUMENTS_FACE, "kv": KV_FACE}
_MAY_BE_COMMITTED = (OutcomeUnknownError, UnavailableError)
_INPUT_ROWS = 1 << 16


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A load that has been begun. Small: it may go to another process, and be kept for a retry."""

    namespace: str
    face: FaceName
    job: str
    """The intent that its segments carry in their names."""
    job_key: str
    base: bytes
    """Documents: the schema that it found, as an Arrow IPC schema."""
    schema: bytes
    """Documents: the same with the attributes that it brings."""
    target_bytes: int
    duplicates: Duplicates
    codec: Literal["lz4", "zstd"]
    attempts: str = ""
    """What the intents of all attempts at it begin with, if there may be others."""

    @property
    def document_schema(self) -> Schema:
        """What documents are converted by: see `stored_rows`."""
        return _schema(self.schema)

    @property
    def row_schema(self) -> pa.Schema:
        """The columns that `write_part` takes."""
        return PAIRS_SCHEMA if self.face == "kv" else row_schema(self.document_schema)

    def part(self) -> LoadPart:
        """Return the descriptor of a part."""
        return LoadPart(
            namespace=self.namespace,
            job=self.job,
            schema=self.row_schema.serialize().to_pybytes(),
            target_bytes=self.target_bytes,
            duplicates=self.duplicates,
            codec=self.codec,
        )


@dataclass(frozen=True)
class LoadResult:
    """What a load has done."""

    namespace: str
    lsn: int | None
    """The version at which all of it is visible; None: there was nothing to load."""
    rows: int
    bytes: int
    segments: int
    dropped: int
    """Rows that gave way to a later one of the same id."""
    replayed: bool = False
    """Nothing was attached: the job key was committed before, at `lsn`."""


def find_load(context: Context, namespace: str, job_key: str) -> Receipt | None:
    """Return the receipt of a load of that key, if it was committed; takes nobody's place."""
    chain = context.chain(namespace)
    head = chain.load()
    key = check_idempotency_key(job_key)
    if head is None or head.manifest.state != "live" or key is None:
        return None
    manifest = head.manifest
    with suppress(NotFoundError):  # collected meanwhile: the commit will see it
        dedup = load_dedup(context, manifest)
        reader = LogReader(context.store, namespace, manifest.lsn_policy)
        for entry in reader.read(LogFold.of(manifest), last_known=manifest.wal_last_seen):
            if entry.is_valid:
                dedup.replay(entry.log)
        return dedup.find(key, ATTACH_DIGEST, chain.estimated_now_us)
    return None


def begin_load(
    context: Context,
    namespace: str,
    *,
    job_key: str,
    face: FaceName = "documents",
    columns: pa.Schema | None = None,
    declared: Mapping[str, str] | None = None,
    target_bytes: int = TARGET_BYTES_DEFAULT,
    duplicates: Duplicates = "error",
    codec: Literal["lz4", "zstd"] = "lz4",
) -> LoadPlan:
    """Register a load and decide its schema; makes the namespace if there is none.

    `columns` are those of the tables that come, by which new attributes get their types; `declared`
    says what Arrow cannot. Raises InvalidInputError, OutcomeUnknownError, UnavailableError.
    """
    check_idempotency_key(job_key)
    if target_bytes < 1:
        raise InvalidInputError.of("target_bytes", target_bytes, "at least 1")
    if duplicates not in ("error", "last"):
        raise InvalidInputError.of("duplicates", duplicates, "'error' or 'last'")
    if face not in FACES:
        raise InvalidInputError.of("face", face, "'documents' or 'kv'")
    arrow = current_schema(context, namespace, FACES[face])
    base = wider = b""
    if face == "documents":
        schema = Schema.from_arrow(arrow)
        base = schema_bytes(schema)
        wider = schema_bytes(schema if columns is None else schema_for(schema, columns, declared))
    job = Job.begin(context, namespace, KIND)
    return LoadPlan(
        namespace=namespace,
        face=face,
        job=job.id,
        job_key=job_key,
        base=base,
        schema=wider,
        target_bytes=target_bytes,
        duplicates=duplicates,
        codec=codec,
    )


def commit_load(
    context: Context,
    plan: LoadPlan,
    parts: Sequence[LoadedPart],
    *,
    into: Namespace | None = None,
    source: str | None = None,
    sequence: int | None = None,
) -> LoadResult:
    """Make all rows of `parts` visible at once, durably, and end the load.

    Through `into`, an open handle of the namespace that writes, or else by opening it, which fences
    whoever writes. Of a `source` that numbers its loads, a `sequence` that was reached before counts
    as loaded. Raises InvalidInputError (parts with keys in common), StalePlanError (another has added
    attributes: load anew), FencedError, OutcomeUnknownError, NotWrittenError. After an error the
    intent stands: commit again with the same plan and parts, or call `abandon_load`.
    """
    segments = [ref for part in parts for ref in part.segments]
    receipt: Receipt | None = None
    if segments:
        with _handle(context, plan, into) as handle:
            receipt = _attach(handle, plan, segments, source, sequence)
    try:
        end_load(context, plan)
    except ReefError as error:  # what was asked for is done
        _log.warning(
            "load %s of namespace %r is committed, but its intent may still stand (%s)",
            plan.job,
            plan.namespace,
            error,
        )
    dropped = sum(part.dropped for part in parts)
    if receipt is not None and receipt.replayed:
        return LoadResult(plan.namespace, receipt.lsn, 0, 0, 0, 0, replayed=True)
    return LoadResult(
        plan.namespace,
        None if receipt is None else receipt.lsn,
        sum(part.rows for part in parts),
        sum(part.bytes for part in parts),
        len(segments),
        dropped,
    )


def abandon_load(context: Context, plan: LoadPlan) -> None:
    """Give a load up: what it has uploaded may be collected, unless it was committed.

    Takes the writer's place first: a commit of this load that is on its way gets its slot before that
    or not at all. Raises UnavailableError, OutcomeUnknownError, FencedError.
    """
    take_over(context, plan.namespace, FACES[plan.face]).close()
    end_load(context, plan)


def end_load(context: Context, plan: LoadPlan) -> None:
    """End the intent of a load, and those that earlier attempts at it have left.

    For whoever has opened the namespace for writing since the last of them may have been committed;
    quiet if none stands. Raises UnavailableError, OutcomeUnknownError, NotFoundError.
    """

    def ended(head: Head | None) -> Manifest | None:
        if head is None:
            raise no_namespace(context.store.url, plan.namespace)
        manifest = head.manifest
        for intent in head.manifest.intents:
            is_earlier = plan.attempts and intent.id.startswith(plan.attempts)
            if intent.id == plan.job or is_earlier:
                manifest = end_intent(manifest, intent.id)
        return None if manifest is head.manifest else manifest

    chain = context.chain(plan.namespace)
    chain.load()  # "ended already" is only believed of the newest head
    chain.publish(ended)


def close_load(context: Context, namespace: str, job: str) -> None:
    """Keep tasks from registering a load from now on. Raises UnavailableError.

    What says so is an object that nothing names: collection takes it, a day later.
    """
    with suppress(AlreadyExistsError):
        context.store.upload(_closed_key(namespace, job), [b"No task may register this load.\n"])


def is_closed(context: Context, namespace: str, job: str) -> bool:
    """Return whether tasks must not register a load any more. Raises UnavailableError."""
    try:
        context.store.head(_closed_key(namespace, job))
    except NotFoundError:
        return False
    return True


def _closed_key(namespace: str, job: str) -> str:
    return check_object_key(f"namespaces/{check_namespace(namespace)}/segments/{job}.closed")


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

    `namespace` is a name, or an open handle, which is then not fenced by the load. `rows` are what
    `upsert` takes, or an iterable or reader of Arrow batches, which is never whole in memory: with an
    `id` for documents, `key` and `value` for `kv`. About `budget_bytes` of rows are held. A load of the
    same job key that was committed before is not repeated. Raises what `upsert` does for values;
    InvalidInputError for an id that comes twice, unless `duplicates="last"`; and what `commit_load`
    raises, whereupon the same job key can be tried again.
    """
    context = database.context() if isinstance(database, Database) else database
    into = None if isinstance(namespace, str) else namespace
    name = namespace if isinstance(namespace, str) else namespace.name
    face = face or ("kv" if isinstance(into, KeyValue) else "documents")
    earlier = find_load(context, name, job_key)
    if earlier is not None:
        return LoadResult(name, earlier.lsn, 0, 0, 0, 0, replayed=True)
    plan = begin_load(
        context,
        name,
        job_key=job_key,
        face=face,
        target_bytes=target_bytes,
        duplicates=duplicates,
        codec=codec,
    )
    try:
        with tempfile.TemporaryDirectory(prefix="reef-load-", dir=spill_folder) as folder:
            runs = SortedRuns(Path(folder), budget_bytes=budget_bytes, duplicates=duplicates)
            plan = _gather(plan, rows, runs)
            part = write_part(context, plan.part(), runs.merged(plan.row_schema))
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
    """Sort what is given; return the plan with the attributes that were new in it."""
    if plan.face == "kv":
        for table in _inputs(rows):
            runs.add(stored_pairs(table))
        return plan
    schema = plan.document_schema
    for table in _inputs(rows):
        stored, schema = widening_rows(schema, table, duplicates=plan.duplicates)
        runs.add(stored)
        runs.dropped += _count(table) - stored.num_rows
    return msgspec.structs.replace(plan, schema=schema_bytes(schema))


def _inputs(rows: object) -> Iterator[object]:
    """Yield what is given in portions, where it comes in such."""
    if isinstance(rows, pa.Table):
        yield from rows.to_batches(max_chunksize=_INPUT_ROWS)
    elif isinstance(rows, pa.RecordBatchReader | Iterator) or (
        isinstance(rows, list | tuple) and rows and isinstance(rows[0], pa.RecordBatch | pa.Table)
    ):
        yield from rows
    else:
        yield rows


def _count(table: object) -> int:
    if isinstance(table, pa.RecordBatch | pa.Table):
        return int(table.num_rows)
    if isinstance(table, Mapping):
        return max((len(column) for column in table.values()), default=0)
    return len(table)  # type: ignore[arg-type]


def _give_up(context: Context, plan: LoadPlan) -> None:
    """End a load of which nothing was sent, or nothing can become visible any more."""
    with suppress(ReefError):
        end_load(context, plan)


def _attach(
    handle: Namespace,
    plan: LoadPlan,
    segments: Sequence[SegmentRef],
    source: str | None,
    sequence: int | None,
) -> Receipt:
    key = check_idempotency_key(plan.job_key)
    if isinstance(handle, Documents):
        return handle.attach(
            segments,
            base=_schema(plan.base),
            schema=_schema(plan.schema),
            idempotency_key=key,
            source=source,
            sequence=sequence,
        )
    return handle._writing().attach(segments, idempotency_key=key, source=source, sequence=sequence)


@contextmanager
def _handle(context: Context, plan: LoadPlan, into: Namespace | None) -> Iterator[Namespace]:
    """Give the handle to commit by: the caller's, or one for the time being."""
    wanted = Documents if plan.face == "documents" else KeyValue
    if into is not None:
        if not isinstance(into, wanted) or into.name != plan.namespace:
            raise InvalidInputError.of("into", into, f"namespace {plan.namespace!r} of {plan.face}")
        yield into
        return
    with wanted(context, plan.namespace) as opened:
        yield opened


def current_schema(context: Context, namespace: str, face: Face) -> pa.Schema:
    """Return the columns of a namespace, which is made if there is none; takes nobody's place."""
    try:
        reader = open_for_reading(context, namespace, face)
    except NotFoundError:
        take_over(context, namespace, face).close()
        reader = open_for_reading(context, namespace, face)
    with_schema = reader.tail.schema
    reader.close()
    return face.schema if with_schema is None else with_schema


def schema_bytes(schema: Schema) -> bytes:
    """Return a schema as the Arrow IPC message that plans carry."""
    return bytes(schema.to_arrow().serialize().to_pybytes())


def _schema(data: bytes) -> Schema:
    return Schema.from_arrow(pa.ipc.read_schema(pa.py_buffer(data)))
