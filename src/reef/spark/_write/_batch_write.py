"""Batch writes: the writer that Spark makes on the driver, calls in its tasks, and commits by.

    df.write.format("reef").options(url="s3://bucket", namespace="products").mode("append").save()

Rows are upserted by their `id` (`operation` says what else there is). In one of two ways, which
`method` chooses, or the size does:

    log   up to 8 MiB, and whatever is no upsert: through the log, atomic by batches of half of
          `log_segment_max_bytes`, that is in one batch unless there is more. Tasks with more than
          2 MiB of rows upload them first.
    bulk  sorted segments, written by the tasks and committed by one record of the log: visible all at
          once or not at all, at one version. If tasks have keys in common, because nothing sorted the
          DataFrame, the driver merges their segments first, in bounded memory: `bulk_load` has Spark
          sort it, and saves that.

Spark pickles the writer for its tasks, and for the processes in which it commits or aborts: all that
they need is in it, small, and they open the bucket by themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from reef.documents.input import ID
from reef.documents.types import Type
from reef.engine import check_stream
from reef.errors import InvalidInputError, ReefError
from reef.jobs.load import LoadPlan
from reef.spark._write._stage import ReadRows, Staged, Write, stage
from reef.spark._write._write_commit import WriteResult, abort, commit, earlier_load
from reef.spark._write._write_options import KEY_BYTES_MAX, WriteOptions

_log = logging.getLogger("reef.spark")

PARTITION_BYTES = 256 << 20
PARTITIONS_MAX = 10_000


@dataclass
class StagedRows(WriterCommitMessage):
    """The message of a task to the driver."""

    staged: Staged


class ReefWriter(DataSourceArrowWriter):
    """Writes a DataFrame into a namespace."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Decide how rows are stored. Raises InvalidInputError."""
        columns = arrow_columns(schema)
        check_declared(options, columns)
        self._write = Write.begin(options.ref.bucket.open(), options, columns)
        assert self._write.plan is not None
        _check_column_types(options, self._write.plan)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        return StagedRows(stage(self._write, iterator, task_number()))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make the rows visible."""
        result = commit(self._write, [one for one in staged_of(messages) if one is not None])
        _log.info("wrote to namespace %r: %s", self._write.namespace, result)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Give the write up."""
        abort(self._write, staged_of(messages))


def writer_of(options: WriteOptions, schema: StructType, overwrite: bool) -> ReefWriter:
    """Return the writer of a DataFrame. Raises InvalidInputError."""
    if overwrite:
        raise InvalidInputError(
            "mode = 'overwrite' cannot be written: use append, by which rows are "
            "upserted by their id and nothing else is touched; to start over, write to "
            "a new namespace"
        )
    return ReefWriter(options, schema)


def write(
    df: DataFrame,
    url: str,
    namespace: str,
    *,
    source: str | None = None,
    sequence: int | None = None,
    **options: Any,
) -> WriteResult:
    """Write a DataFrame as the data source does, and return the result.

    `options` are those of the data source. If a `source` numbers its writes, a `sequence` that was
    reached before counts as written, for good. Within `foreachBatch`, use the id of the query and
    that of the batch. Unlike `save()` it raises our errors as they are: those of `commit`, and
    InvalidInputError. If the job key was loaded before, it only reads the receipt.
    """
    check_stream(source, sequence)
    if source is not None and len(source.encode()) > KEY_BYTES_MAX:
        raise InvalidInputError.of("source", source[:64], f"at most {KEY_BYTES_MAX} bytes of text")
    write_options = WriteOptions.of_arguments(url, namespace, options)
    return write_rows(df, write_options, source=source, sequence=sequence)


def write_rows(
    df: DataFrame,
    write_options: WriteOptions,
    *,
    source: str | None = None,
    sequence: int | None = None,
    columns: pa.Schema | None = None,
    read: ReadRows | None = None,
) -> WriteResult:
    """Do what `write` does; `read` makes rows, with these columns, of what tasks get."""
    context = write_options.ref.bucket.open()
    earlier = earlier_load(context, write_options)
    if earlier is not None:
        return WriteResult("bulk", earlier.lsn, 0, replayed=True)
    columns = columns or arrow_columns(df.schema)
    writing = Write.begin(
        context, write_options, columns, source=source, sequence=sequence, read=read
    )
    # Spark would look names up again, and takes those with dots and backticks for something else.
    names = df.columns
    df = df.toDF(*(f"c{number}" for number in range(len(names))))
    staged: list[Staged | None] = [None]
    try:
        found = df.mapInArrow(_Stage(writing, names), "staged binary").collect()
        staged = [msgspec.msgpack.decode(row[0], type=Staged) for row in found]
        return commit(writing, [one for one in staged if one is not None])
    except BaseException:
        with suppress(ReefError):
            abort(writing, staged)
        raise


def bulk_load(df: DataFrame, url: str, namespace: str, **options: Any) -> WriteResult:
    """Sort a DataFrame by its ids with Spark and load it at once: `method="bulk"`, without a merge.

    `options` are those of the data source, and `partitions`: how many ranges of keys to cut it into,
    by default as many as its size suggests. Spark reads the DataFrame twice, the first time for a
    sample of its ids. Of rows with the same id, with `duplicates="last"`, any one stays. Raises what
    `write` does.
    """
    count = options.pop("partitions", None)
    write_options = WriteOptions.of_arguments(url, namespace, {**options, "method": "bulk"})
    if write_options.key_column not in df.columns:
        raise InvalidInputError(
            f"the columns {', '.join(df.columns)} have no {write_options.key_column!r} among them: rename "
            "the one that holds it"
        )
    if count is not None and (not isinstance(count, int) or count < 1):
        raise InvalidInputError.of("partitions", count, "a number of at least 1")
    return load_rows(df, write_options, partitions=count)


def load_rows(
    df: DataFrame,
    write_options: WriteOptions,
    *,
    partitions: int | None = None,
    columns: pa.Schema | None = None,
    read: ReadRows | None = None,
) -> WriteResult:
    """Do what `bulk_load` does, with `columns` and `read` as `write_rows` takes them."""
    write_options = replace(write_options, method="bulk", is_sorted=True)
    count, by = partitions or _partitions(df), df[write_options.key_column]
    ranged = df.repartitionByRange(by) if count is None else df.repartitionByRange(count, by)
    return write_rows(ranged.sortWithinPartitions(by), write_options, columns=columns, read=read)


class _Stage:
    """What a task of `write` does, for `mapInArrow`."""

    def __init__(self, writing: Write, names: list[str]) -> None:
        """`names` are those of the columns that come."""
        self._write = writing
        self._names = names

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        named = (batch.rename_columns(self._names) for batch in batches)
        staged = stage(self._write, named, task_number())
        packed = pa.array([msgspec.msgpack.encode(staged)], pa.binary())
        yield pa.RecordBatch.from_arrays([packed], names=["staged"])


def arrow_columns(schema: StructType) -> pa.Schema:
    """Return the columns of a DataFrame as tasks get them. Raises InvalidInputError."""
    for field in schema:
        if _holds_variant(field.dataType):
            raise InvalidInputError(
                f"column {field.name!r} is of type {field.dataType.simpleString()}, which "
                "Reef cannot read: convert it to JSON text with to_json"
            )
    return to_arrow_schema(schema, timezone="UTC")


def _holds_variant(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_holds_variant(field.dataType) for field in kind)
    if isinstance(kind, MapType):
        return _holds_variant(kind.keyType) or _holds_variant(kind.valueType)
    if isinstance(kind, ArrayType):
        return _holds_variant(kind.elementType)
    return isinstance(kind, VariantType)


def check_declared(options: WriteOptions, columns: pa.Schema) -> None:
    """Raise InvalidInputError for declared columns that do not exist, or have a type."""
    for name in options.declared:
        if options.face != "documents" or name == ID or name not in columns.names:
            raise InvalidInputError(
                f"declared names {name!r}: expected one of the columns "
                f"{', '.join(columns.names)}, but not {ID}"
            )


def _check_column_types(options: WriteOptions, plan: LoadPlan) -> None:
    """Raise InvalidInputError for a declared type of an attribute that has another one."""
    for name, text in options.declared.items():
        known = plan.document_schema.find(name)
        if known is not None and known.type != Type.parse(text):
            raise InvalidInputError(
                f"declared has {name}={text}, but the attribute is {known.type.text} "
                "already: leave it out"
            )


def staged_of(messages: Sequence[WriterCommitMessage | None]) -> list[Staged | None]:
    """Return the messages of tasks, None for those that did not come back."""
    return [one.staged if isinstance(one, StagedRows) else None for one in messages]


def task_number() -> int:
    """Return the number of this task among those of its job."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _partitions(df: DataFrame) -> int | None:
    """Return how many ranges a DataFrame is worth, None if only Spark can tell while it runs."""
    size = stored_bytes(df)
    if size is None or size > 1 << 50:  # what Spark does not know it takes for huge
        return None
    least = df.sparkSession.sparkContext.defaultParallelism
    return min(PARTITIONS_MAX, max(least, -(-size // PARTITION_BYTES)))


def stored_bytes(df: DataFrame) -> int | None:
    """Return how large Spark takes a DataFrame for: files are as large as they are.

    None through Spark Connect, which does not tell.
    """
    plan = getattr(df, "_jdf", None)
    if plan is None:
        return None
    return int(str(plan.queryExecution().optimizedPlan().stats().sizeInBytes()))
