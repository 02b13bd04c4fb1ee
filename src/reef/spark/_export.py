"""A version of a namespace into files: the data source reads it, and Spark writes.

OUT becomes a folder of files, which must not be there before. In CSV, what is no plain value is JSON
text, and bytes are base64. Delta and Iceberg tables are made of the Parquet files that Spark wrote, by
their own packages: nothing is copied a second time. An Iceberg table has a catalog of its own, the
SQLite file `catalog.db` beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from urllib.parse import quote

import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

from reef.errors import InvalidInputError, UnavailableError
from reef.pipeline._export import OutputFormat, local_path, output_format
from reef.pipeline._pass import PassProgress, Watch
from reef.spark._export_plan import find_export
from reef.spark._watch import Counted, watching

_DATA = "data"


@dataclass(frozen=True)
class ExportResult:
    """What was copied."""

    namespace: str
    lsn: int
    """The version that it was."""
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

    `columns` come after that of the ids, or of the keys. `watch` is told how far it is. Raises
    InvalidInputError, also if `out` is there; NotFoundError, RetentionError, SnapshotExpiredError,
    UnavailableError.
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
    try:
        with watching(spark, None if watch is None else _telling(watch, found.bytes)):
            df = spark.read.format("reef").options(**found.texts).load()
            _write(df, namespace, out, kind)
    except PySparkException as error:
        _refuse(out, error)
    exported = found.version.place.namespace
    return ExportResult(exported, found.version.lsn, kind, out, tuple(df.columns))


def _telling(watch: Watch, size: int) -> Callable[[Counted], None]:
    """Spark does not count what the data source reads: bytes go by the tasks that are done."""

    def told(counted: Counted) -> None:
        done = size * counted.tasks_done // max(1, counted.tasks)
        watch(PassProgress(counted.tasks_done, counted.tasks, done, size, counted.rows, 0))

    return told


def _write(df: DataFrame, namespace: str, out: str, kind: OutputFormat) -> None:
    if kind == "csv":
        _plain(df).write.csv(out, header=True, escape='"')
    elif kind == "jsonl":
        df.write.json(out, ignoreNullFields=False)
    elif kind == "parquet":
        df.write.parquet(out)
    elif kind == "delta":
        _write_delta(df, local_path(out, kind))
    else:
        _write_iceberg(df, namespace, local_path(out, kind))


def _plain(df: DataFrame) -> DataFrame:
    """Return columns as CSV can hold them."""
    columns = []
    for field in df.schema:
        column = df["`" + field.name.replace("`", "``") + "`"]
        if isinstance(field.dataType, ArrayType | StructType | MapType):
            column = F.to_json(column)
        elif isinstance(field.dataType, BinaryType):
            column = F.base64(column)
        columns.append(column.alias(field.name))
    return df.select(columns)


def _write_delta(df: DataFrame, folder: str) -> None:
    deltalake = import_module("deltalake")
    df.write.parquet(folder)
    deltalake.convert_to_deltalake(folder)


def _write_iceberg(df: DataFrame, namespace: str, folder: str) -> None:
    catalogs = import_module("pyiceberg.catalog.sql")
    root = Path(folder).absolute()
    df.write.parquet(str(root / _DATA))
    files = sorted(str(path) for path in (root / _DATA).glob("*.parquet"))
    catalog = catalogs.SqlCatalog(
        "reef", uri=f"sqlite:///{root / 'catalog.db'}", warehouse=f"file://{quote(str(root))}"
    )
    catalog.create_namespace("reef")
    table = catalog.create_table(
        ("reef", namespace.rsplit("/", 1)[-1]), schema=pq.read_schema(files[0])
    )
    table.add_files([f"file://{file}" for file in files])


def _refuse(out: str, error: PySparkException) -> None:
    text = str(error)
    if "PATH_ALREADY_EXISTS" in text:
        raise InvalidInputError.of("OUT", out, "a folder that is not there yet") from error
    line = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    if "reef.errors.InvalidInputError: " in text:
        line = text.split("reef.errors.InvalidInputError: ", 1)[1].splitlines()[0]
        raise InvalidInputError(line) from error
    raise UnavailableError(f"Spark could not write {out}: {line}") from error
