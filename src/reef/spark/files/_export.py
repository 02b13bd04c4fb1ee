"""A version of a namespace into files: the data source reads it, and Spark writes.

OUT becomes a folder of files, which must not be there before, and is not there after a failure. In
CSV, what is no plain value is JSON text, and bytes are base64; in JSON lines, JSON is what it is. Times
are in UTC, to the microsecond, in every format. Delta and Iceberg tables are made of the Parquet files
that Spark wrote, by their own packages: nothing is copied a second time. An Iceberg table has a catalog
of its own, the SQLite file `catalog.db` beside it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

from reef import errors
from reef.errors import InvalidInputError, ReefError, UnavailableError, UnreadableError
from reef.jobs import PassProgress, Watch
from reef.spark._java_error import reason_of
from reef.spark.files._export_plan import find_export
from reef.spark.files._output_format import OutputFormat, check_out, folder_of, output_format
from reef.spark.files._settings import set_for_a_while
from reef.spark.files._watch import Counted, watching
from reef.spark.source import spark_columns

_DATA = "data"
_TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "timeZone": "UTC"}
# A plain text column: JSON has no characters that would need quotes.
_AS_IT_IS = {"extension": "json", "sep": "\x01", "quote": "\x00", "escape": "\x00"}
# Spark's own choice, INT96, holds nanoseconds of 64 bits for most readers: the years 1677 to 2262.
_PARQUET = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
_OUR_ERROR = re.compile(r"^reef\.errors\.(\w+): (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class ExportResult:
    """The result of an export."""

    namespace: str
    lsn: int
    """The version that was copied."""
    format: OutputFormat
    out: str
    columns: tuple[str, ...]


def export(
    spark: SparkSession,
    url: str,
    namespace: str,
    out: str,
    *,
    format: str = "parquet",
    branch: str | None = None,
    lsn: int | None = None,
    snapshot: str | None = None,
    generation: int | None = None,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    watch: Watch | None = None,
) -> ExportResult:
    """Copy one version of a namespace, the newest unless another is asked for, to `out`.

    `columns` come after that of the ids, or of the keys. `watch` is called with the progress.
    Raises InvalidInputError, also if `out` exists; NotFoundError, RetentionError,
    SnapshotExpiredError, UnavailableError.
    """
    kind = output_format(format)
    found = find_export(
        url,
        namespace,
        branch=branch,
        lsn=lsn,
        snapshot=snapshot,
        generation=generation,
        columns=columns,
        where=where,
    )
    folder = check_out(out, kind)
    try:
        with (
            _cleared_on_failure(folder_of(out)),
            set_for_a_while(spark, _PARQUET),
            watching(spark, None if watch is None else _progress_reporter(watch, found.bytes)),
        ):
            df = spark.read.format("reef").options(**found.texts).load()
            every = spark_columns(found.version.face, found.version.columns)
            objects = {one.name for one in every if one.type and one.type.kind == "json"}
            _write_files(df, namespace, folder, kind, objects)
    except (PySparkException, Py4JError, ConnectionError) as error:
        _raise_reef_error(out, error)
    exported = found.version.ref.namespace
    return ExportResult(exported, found.version.lsn, kind, out, tuple(df.columns))


def _progress_reporter(watch: Watch, size: int) -> Callable[[Counted], None]:
    """Spark does not count what the data source reads: bytes go by the tasks that are done."""

    def report(counted: Counted) -> None:
        done = size * counted.tasks_done // max(1, counted.tasks)
        watch(PassProgress(counted.tasks_done, counted.tasks, done, size, counted.rows, 0))

    return report


@contextmanager
def _cleared_on_failure(folder: str | None) -> Iterator[None]:
    """Take away what a failure leaves of a local folder that was not there: the next try needs it."""
    was_there = folder is None or os.path.lexists(folder)
    try:
        yield
    except BaseException as error:
        if folder is not None and not was_there and not _is_taken(error):
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _write_files(
    df: DataFrame, namespace: str, out: str, kind: OutputFormat, objects: Set[str]
) -> None:
    if kind == "csv":
        _csv_columns(df).write.options(**_TIMES).csv(
            out,
            header=True,
            escape='"',
            ignoreLeadingWhiteSpace=False,
            ignoreTrailingWhiteSpace=False,
        )
    elif kind == "jsonl" and objects.isdisjoint(df.columns):
        df.write.options(**_TIMES).json(out, ignoreNullFields=False)
    elif kind == "jsonl":
        _json_lines(df, objects).write.options(**_AS_IT_IS).csv(out)
    elif kind == "parquet":
        df.write.parquet(out)
    elif kind == "delta":
        _write_delta(df, out)
    else:
        _write_iceberg(df, namespace, out)


def _json_lines(df: DataFrame, objects: Set[str]) -> DataFrame:
    """Return rows as lines of JSON, in which `objects`, whose text is JSON, stand as they are.

    Spark's own writer would have them as text within text; its variants change numbers and orders.
    """
    options = {**_TIMES, "ignoreNullFields": "false"}
    members = []
    for name in df.columns:
        column = df["`" + name.replace("`", "``") + "`"]
        if name in objects:
            key = f"{json.dumps(name, ensure_ascii=False)}:"
            members.append(F.concat(F.lit(key), F.coalesce(column, F.lit("null"))))
        else:
            one = F.to_json(F.struct(column.alias(name)), options)
            members.append(F.substr(one, F.lit(2), F.length(one) - 2))  # without its braces
    return df.select(F.concat(F.lit("{"), F.concat_ws(",", *members), F.lit("}")))


def _csv_columns(df: DataFrame) -> DataFrame:
    """Return columns as CSV can hold them."""
    columns = []
    for field in df.schema:
        column = df["`" + field.name.replace("`", "``") + "`"]
        if isinstance(field.dataType, ArrayType | StructType | MapType):
            column = F.to_json(column, _TIMES)
        elif isinstance(field.dataType, BinaryType):
            column = F.base64(column)
        columns.append(column.alias(field.name))
    return df.select(columns)


def _write_delta(df: DataFrame, folder: str) -> None:
    deltalake = import_module("deltalake")
    df.write.parquet(f"file://{folder}")
    deltalake.convert_to_deltalake(folder)


def _write_iceberg(df: DataFrame, namespace: str, folder: str) -> None:
    catalogs = import_module("pyiceberg.catalog.sql")
    root = Path(folder)
    df.write.parquet(f"file://{root / _DATA}")
    files = sorted(str(path) for path in (root / _DATA).glob("*.parquet"))
    # Paths as they are: PyIceberg takes what stands behind file:// for the name of a file.
    catalog = catalogs.SqlCatalog(
        "reef", uri=f"sqlite:///{root / 'catalog.db'}", warehouse=f"file://{root}"
    )
    catalog.create_namespace("reef")
    table = catalog.create_table(
        ("reef", namespace.rsplit("/", 1)[-1]), schema=pq.read_schema(files[0])
    )
    table.add_files([f"file://{file}" for file in files])


def _is_taken(error: BaseException) -> bool:
    return "PATH_ALREADY_EXISTS" in str(error)


def _raise_reef_error(out: str, error: Exception) -> NoReturn:
    """Raise what Spark says as an error of ours."""
    if _is_taken(error):
        raise InvalidInputError(
            f"OUT {str(out)!r} exists already: give a folder that does not exist"
        ) from error
    found = _OUR_ERROR.findall(str(error))
    if found:
        raise _error_of(*found[-1]) from error
    left = "" if folder_of(out) else "; remove what was written there before you try again"
    raise UnavailableError(f"Spark could not write {out}: {reason_of(error)}{left}") from error


def _error_of(name: str, message: str) -> ReefError:
    """Return the error that was raised in a Python worker, of which Spark gives the text alone."""
    kind: type[ReefError] = getattr(errors, name, ReefError)
    if issubclass(kind, UnreadableError):
        form = f"(.*) is {kind.what} at byte ([0-9]+): expected (.*), got (.*); "
        parts = re.fullmatch(form + re.escape(kind.advice), message)
        if parts is not None:
            return kind(parts[1], int(parts[2]), parts[3], parts[4])
    if kind.__init__ is ReefError.__init__:
        return kind(message)
    return UnavailableError(message)
