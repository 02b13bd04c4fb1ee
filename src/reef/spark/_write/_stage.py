"""Staging: a task of a write keeps its rows where only the commit finds them.

Few rows come back to the driver as they are, in the message of the task: no object, no request. More
are sorted in bounded memory and uploaded as segments, under the write's intent, which the first task
that needs it registers: a small write costs none. How few is bounded by the number of the task, so
that all messages together stay within about 250 MiB however many tasks there are.

A task may run twice and die anywhere: segments have names that no other attempt uses, and count only
when the commit names what came back. A task may come, or still go on, when the write is committed or
given up and its intent has ended: it fails, so that the intent does not stand again.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import msgspec
import pyarrow as pa

from reef.engine import Context
from reef.errors import InvalidInputError
from reef.jobs.load import LOAD_KIND, LoadedPart, LoadPlan, join_load, plan_load, write_part
from reef.segment import SortedRuns
from reef.spark._write._write_options import WriteOptions
from reef.types import new_ulid

INLINE_BYTES_MAX = 2 << 20
INLINE_BYTES_TOTAL = 32 << 20

ReadRows: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True)
class Write:
    """One write of a DataFrame: what its tasks, and its commit in another process, go by."""

    options: WriteOptions
    columns: bytes
    """Those of the DataFrame, as an Arrow IPC schema."""
    job: str
    """The intent in the names of its segments, if it uploads any."""
    job_key: str
    plan: LoadPlan | None = None
    """None: a task that uploads decides the schema."""
    source: str | None = None
    sequence: int | None = None
    attempts: str = ""
    """What the intents of all attempts at a micro-batch begin with."""
    read: ReadRows | None = None
    """What makes rows of what tasks get; None: they get rows."""

    @staticmethod
    def begin(
        context: Context,
        options: WriteOptions,
        columns: pa.Schema,
        *,
        source: str | None = None,
        sequence: int | None = None,
        read: ReadRows | None = None,
    ) -> Write:
        """Return a new write, whose schema is decided. Raises InvalidInputError.

        Makes the namespace if there is none.
        """
        id = new_ulid(context.clock, context.rng).lower()
        packed = columns.serialize().to_pybytes()
        if source is None or sequence is None:
            key = options.job_key or f"spark-{id}"
            write = Write(options, packed, f"{LOAD_KIND}-{id}", key)
        else:
            write = Write.numbered(options, packed, source, sequence, run=id)
        write = replace(write, read=read)
        return replace(write, plan=planned(context, write))

    @staticmethod
    def numbered(
        options: WriteOptions, columns: bytes, source: str, sequence: int, *, run: str
    ) -> Write:
        """Return one of the writes that a source numbers.

        All tasks of one `run` get the same intent. What other runs have left of it ends with it.
        """
        key = options.job_key or f"{source}/{sequence}"
        attempts = f"{LOAD_KIND}-{_short_hash(key)}-"
        return Write(
            options,
            columns,
            attempts + _short_hash(run),
            key,
            source=source,
            sequence=sequence,
            attempts=attempts,
        )

    def open(self) -> Context:
        """Return the bucket, opened."""
        return self.options.ref.bucket.open()

    @property
    def namespace(self) -> str:
        """The namespace that is written."""
        return self.options.ref.namespace


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """What one task has staged."""

    task: int
    inline: bytes | None = None
    """The rows as they came, as an Arrow stream."""
    part: LoadedPart | None = None
    """The rows as they were uploaded, in the columns of `plan`."""
    plan: LoadPlan | None = None
    source: str | None = None
    error: str | None = None
    """The error of a row, which running the task again would not fix."""
    rows: int = 0
    nbytes: int = 0


def _short_hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def used_columns(options: WriteOptions, columns: pa.Schema) -> list[str]:
    """Return the columns that an operation takes. Raises InvalidInputError."""
    names = list(columns.names)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidInputError(
            f"columns appear more than once: {', '.join(twice)}; give each column a name of its own"
        )
    if options.key_column not in names:
        advice = (
            "give the option face=kv"
            if {"key", "value"} <= {*names}
            else "rename the one that holds it"
        )
        raise InvalidInputError(
            f"the columns {', '.join(names)} have no {options.key_column!r} among them: {advice}"
        )
    if options.operation == "delete":
        return [options.key_column]
    return ["key", "value"] if options.face == "kv" else names


def planned(context: Context, write: Write) -> LoadPlan:
    """Return how rows of the write are stored, by the schema that the namespace has now.

    Registers nothing. Raises InvalidInputError.
    """
    options = write.options
    columns = pa.ipc.read_schema(pa.py_buffer(write.columns))
    return plan_load(
        context,
        write.namespace,
        job=write.job,
        job_key=write.job_key,
        face=options.face,
        columns=pa.schema([columns.field(name) for name in used_columns(options, columns)]),
        declared=options.declared,
        target_bytes=options.target_bytes,
        duplicates=options.duplicates,
        attempts=write.attempts,
    )


def inline_bytes_max(options: WriteOptions, task: int) -> int:
    """Return how many bytes of rows a task may send back to the driver."""
    if options.method == "bulk":
        return 0
    return min(INLINE_BYTES_MAX, INLINE_BYTES_TOTAL // (task + 1))


def stage(write: Write, batches: Iterable[pa.RecordBatch], task: int) -> Staged:
    """Keep the rows of a task, or their error, where the commit finds them."""
    try:
        return _stage_rows(write, batches, task)
    except InvalidInputError as error:
        return Staged(task=task, source=write.source, error=str(error))


def _stage_rows(write: Write, batches: Iterable[pa.RecordBatch], task: int) -> Staged:
    used = used_columns(write.options, pa.ipc.read_schema(pa.py_buffer(write.columns)))
    given = batches if write.read is None else map(write.read, batches)
    coming = (batch.select(used) for batch in given if batch.num_rows)
    buffered: list[pa.RecordBatch] = []
    nbytes = 0
    for batch in coming:
        buffered.append(batch)
        nbytes += batch.nbytes
        if nbytes > inline_bytes_max(write.options, task):
            return _upload(write, chain(buffered, coming), task)
    if not buffered:
        return Staged(task=task, source=write.source)
    return Staged(
        task=task,
        rows=sum(batch.num_rows for batch in buffered),
        nbytes=nbytes,
        inline=_as_ipc(buffered),
        source=write.source,
    )


def as_stored_rows(plan: LoadPlan, batch: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
    """Return rows of a DataFrame in the columns of segments. Raises InvalidInputError."""
    if plan.face == "kv" and "value" not in batch.schema.names:  # to be deleted: nobody looks at it
        batch = batch.append_column("value", pa.array([b""] * batch.num_rows, pa.binary()))
    return plan.stored(batch)


def inline_rows(staged: Staged) -> pa.Table:
    """Return the rows that came back in a message."""
    assert staged.inline is not None
    return pa.ipc.open_stream(pa.py_buffer(staged.inline)).read_all()


def _upload(write: Write, batches: Iterable[pa.RecordBatch], task: int) -> Staged:
    """Sort rows and write them as segments."""
    context = write.open()
    plan = write.plan or planned(context, write)
    join_load(context, plan)
    gone = 0

    def rows() -> Iterator[pa.RecordBatch]:
        """Give way in each batch to later rows of the same id, and count those that do."""
        nonlocal gone
        for batch in batches:
            kept = as_stored_rows(plan, batch)
            gone += batch.num_rows - kept.num_rows
            yield kept

    if write.options.is_sorted:
        part = write_part(context, plan, rows())
    else:
        with tempfile.TemporaryDirectory(prefix="reef-write-") as folder:
            runs = SortedRuns(
                Path(folder),
                budget_bytes=write.options.memory_bytes,
                duplicates=plan.duplicates,
            )
            for batch in rows():
                runs.add(batch)
            part = write_part(context, plan, runs.merged(plan.row_schema))
            gone += runs.dropped
    part = msgspec.structs.replace(part, dropped=part.dropped + gone)
    return Staged(
        task=task,
        rows=part.rows,
        nbytes=part.bytes,
        part=part,
        plan=plan,
        source=write.source,
    )


def _as_ipc(batches: list[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as out:
        for batch in batches:
            out.write_batch(batch)
    return bytes(sink.getvalue())
