"""Files into a namespace: Spark reads them, and writes as the data source does.

A CSV file has a header, and a line of it is a row: where a value goes over more than one, that has to
be said, and then a file is read by one task. A value that does not fit, and whatever Spark would leave
out or change without a word, is refused: nothing is loaded then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from reef.documents import Documents
from reef.documents.types import Schema, Type
from reef.errors import InvalidInputError, NotFoundError, UnavailableError
from reef.jobs import PassProgress, Watch
from reef.jobs.load import schema_for
from reef.spark._java_error import reason_of
from reef.spark._write._batch_write import load_rows, stored_bytes, write_rows
from reef.spark._write._write_commit import WriteResult
from reef.spark._write._write_options import WriteOptions
from reef.spark.files._ingest_files import Files, check_columns, check_lines
from reef.spark.files._ingest_read import ID, read_files
from reef.spark.files._input_format import LARGE_BYTES, check_options, input_format
from reef.spark.files._settings import set_for_a_while
from reef.spark.files._watch import Counted, watching

# Times without a zone are UTC, as everywhere in Reef; names differ by case; nothing is passed over.
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "true",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
}
_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
# What Spark says of files that it cannot read, rather than of itself.
_BAD_FILES = (
    "FAILED_READ_FILE",
    "MALFORMED",
    "INVALID_JSON",
    "CANNOT_MERGE",
    "CSV header",
    "onflicting",
)

_NO_NANOSECONDS = (
    " Spark has no nanoseconds: write the files with microseconds, as pyarrow does by "
    "coerce_timestamps='us', or load them by `reef docs put`"
)


def ingest(
    spark: SparkSession,
    url: str,
    namespace: str,
    files: Sequence[str],
    *,
    format: str | None = None,
    id: str = ID,
    schema: Mapping[str, str] | None = None,
    multiline: bool = False,
    watch: Watch | None = None,
    **options: object,
) -> WriteResult:
    """Load files into a namespace of documents and return the result.

    `id` is the column that has the ids. `schema` declares types. `multiline`: quoted values of CSV may
    have line breaks. `watch` is called with the progress. `options` are those of the data source
    (`operation`, `job_key`, `duplicates`, ...). Spark sorts large loads first. Raises
    InvalidInputError, UnavailableError, and what `reef.spark.write` does.
    """
    kind = input_format(files, format)
    check_options(files, kind, multiline=multiline)
    declared = dict(schema or {})
    write_options = WriteOptions.of_arguments(url, namespace, options)
    if write_options.face != "documents":
        raise InvalidInputError(
            f"face = {write_options.face!r} cannot be loaded from files: they hold documents"
        )
    known = _known(write_options)
    types = {name: Type.parse(text) for name, text in {**known, **declared}.items()}
    with _as_reef_errors(files), set_for_a_while(spark, _SETTINGS):
        there = Files.found(spark, files)
        with watching(spark, _progress_reporter(there, watch)):
            if kind == "csv":
                check_lines(there, may_break=multiline)
            if kind == "parquet" and write_options.operation == "patch":
                check_columns(there)
            found = read_files(
                there,
                kind,
                id,
                types,
                write_options.operation,
                declared=declared,
                multiline=multiline,
            )
            _check_schema_option(declared, found.columns.names)
            write_options = replace(write_options, declared={**found.declared, **declared})
            _check_schema(known, found.columns, write_options)
            if write_options.operation == "upsert" and _is_large(found.df, write_options):
                df = found.df if found.sortable is None else found.sortable
                return load_rows(df, write_options, columns=found.columns, read=found.read)
            return write_rows(found.df, write_options, columns=found.columns, read=found.read)


def _check_schema_option(declared: Mapping[str, str], columns: Sequence[str]) -> None:
    for name in declared:
        if name not in columns:
            raise InvalidInputError(
                f"--schema names {name!r}: expected one of the columns {', '.join(columns)}"
            )


def _check_schema(
    known: Mapping[str, str], columns: pa.Schema, write_options: WriteOptions
) -> None:
    """Raise InvalidInputError for columns that no namespace can have, before one is made."""
    if write_options.operation != "delete":
        schema = Schema.EMPTY.added({name: Type.parse(text) for name, text in known.items()})
        schema_for(schema, columns, write_options.declared)


def _progress_reporter(files: Files, watch: Watch | None) -> Callable[[Counted], None] | None:
    if watch is None:
        return None
    size = stored_bytes(files.texts()) or 0

    def report(counted: Counted) -> None:
        known = max(size, counted.bytes_past + size * counted.scans, counted.bytes_read)
        watch(
            PassProgress(
                counted.tasks_done, counted.tasks, counted.bytes_read, known, counted.rows, 0
            )
        )

    return report


def _known(options: WriteOptions) -> dict[str, str]:
    """Return the schema of the namespace, if there is one."""
    try:
        with Documents(options.ref.bucket.open(), options.ref.namespace, mode="r") as ns:
            return ns.schema
    except NotFoundError:
        return {}


def _is_large(df: DataFrame, options: WriteOptions) -> bool:
    """Return whether it is worth a sort by Spark, as far as Spark knows the size."""
    if options.method != "auto":
        return options.method == "bulk"
    size = stored_bytes(df)
    return size is None or size > LARGE_BYTES


@contextmanager
def _as_reef_errors(files: Sequence[str]) -> Iterator[None]:
    """Let what Spark says of files be one of our errors, in one line and not logged by others too."""
    loggers = [PySparkLogger.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(_silent)
    try:
        yield
    except AnalysisException as error:
        advice = _NO_NANOSECONDS if "(TIMESTAMP(NANOS" in str(error) else ""
        raise InvalidInputError(f"the files cannot be read: {reason_of(error)}{advice}") from error
    except (PySparkException, Py4JError, ConnectionError) as error:
        reason = reason_of(error)
        if any(word in str(error) for word in _BAD_FILES):
            raise InvalidInputError(
                f"the files cannot be read: {reason}; nothing was loaded"
            ) from error
        raise UnavailableError(
            f"Spark could not load {', '.join(files)}: {reason}; nothing was loaded"
        ) from error
    finally:
        for logger in loggers:
            logger.removeFilter(_silent)


def _silent(record: object) -> bool:
    return False
