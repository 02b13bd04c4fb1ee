"""Streaming writes: each micro-batch is committed once, however often Spark tries it.

    df.writeStream.format("reef").options(url=..., namespace=..., checkpointLocation=...).start()

A micro-batch is known by the id of its query, which lives in the checkpoint, and its number. Both are
committed along with its rows, in the same object of the log, and the highest number of a query is kept
for good: a batch that is not above it was committed before, and is passed over.

A small micro-batch goes through the log, in one object: it costs what opening the namespace for
writing costs, and one PUT. A larger one is a bulk load. One that is neither (patches, deletions or
creations of more than half of `log_segment_max_bytes`) goes through the log in several batches: if the
driver dies between two of them, those that were committed are found again by idempotency keys, within
`dedup_max_age`.

With the option `query_id` batches are counted under a name of the user's instead. Then a checkpoint
that starts over needs a new one: its batches begin with number 0 again, and would all be passed over.

Spark has no mode `update` for sinks in Python. What needs it writes in `foreachBatch`, once as well:

    def put(df, number):
        reef.spark.write(df, url, namespace, source="counts-1", sequence=number)

Spark makes a new writer for the tasks of a micro-batch, and another for its commit: what the latter
has to know comes in the messages of the tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from reef.errors import InvalidInputError
from reef.spark._write._batch_write import (
    StagedRows,
    arrow_columns,
    check_declared,
    staged_of,
    task_number,
)
from reef.spark._write._stage import Write, stage, used_columns
from reef.spark._write._write_commit import abort, commit
from reef.spark._write._write_options import WriteOptions

_log = logging.getLogger("reef.spark")

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"
_RUN = "spark.jobGroup.id"  # of a stream: another one each time the query is started


class ReefStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream into a namespace."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Look at the options; nothing is asked of the bucket. Raises InvalidInputError."""
        columns = arrow_columns(schema)
        used_columns(options, columns)
        check_declared(options, columns)
        self._options = options
        self._columns = columns.serialize().to_pybytes()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        source = self._options.query_id or _property(_QUERY)
        batch = _property(_BATCH)
        if source is None or batch is None or _property(_RUN) is None:
            raise InvalidInputError(
                "Spark does not tell the id of this query: give it as the option query_id"
            )
        return StagedRows(
            stage(self._batch(source, int(batch), _property(_RUN)), iterator, task_number())
        )

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Make the rows of a micro-batch visible, unless they were before."""
        staged = [one for one in staged_of(messages) if one is not None]
        source = next((one.source for one in staged if one.source), self._options.query_id)
        if source is None:  # no task: no rows
            return
        result = commit(self._batch(source, batchId), staged)
        _log.info("micro-batch %d of query %s: %s", batchId, source, result)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Give a micro-batch up; Spark tries it again when the query is started again."""
        staged = staged_of(messages)
        source = next((one.source for one in staged if one and one.source), self._options.query_id)
        if source is not None:
            abort(self._batch(source, batchId), staged)

    def _batch(self, source: str, number: int, run: str | None = None) -> Write:
        """Return a micro-batch as a write."""
        if run is None:
            run = self._options.ref.bucket.open().rng.randbytes(16).hex()
        return Write.numbered(self._options, self._columns, source, number, run=run)


def stream_writer_of(
    options: WriteOptions, schema: StructType, overwrite: bool
) -> ReefStreamWriter:
    """Return the writer of a stream. Raises InvalidInputError."""
    if overwrite:
        raise InvalidInputError(
            "outputMode = 'complete' cannot be written: use append, by which rows are "
            "upserted by their id and nothing else is touched; for aggregates, use "
            "reef.spark.write(..., source=, sequence=) in foreachBatch"
        )
    return ReefStreamWriter(options, schema)


def _property(name: str) -> str | None:
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)
