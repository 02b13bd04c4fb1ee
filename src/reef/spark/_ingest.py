"""Files into a namespace: Spark reads them, and writes as the data source does.

Parquet comes with its types. CSV has a header; columns whose types are known, from the schema of the
namespace or declared, are read as those, and the file is looked through once more for the types of
the others. A line is a row: where a value goes over more than one, that has to be said, and then a
file is read by one task; without it, a file in which that is found is refused. JSON lines are looked
through for types first; objects in them are kept as JSON, as they are. A value that does not fit is
refused: nothing is loaded then.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from reef.documents import Documents
from reef.documents._types import Type
from reef.errors import InvalidInputError, NotFoundError, UnavailableError
from reef.pipeline._ingest import LARGE_BYTES, InputFormat, input_format
from reef.pipeline._pass import PassProgress, Watch
from reef.spark._watch import Counted, watching
from reef.spark._write import bulk_load, write
from reef.spark._write_commit import WriteResult
from reef.spark._write_options import WriteOptions

_SQL_TYPES = {
    "int64": "bigint",
    "uint64": "decimal(20,0)",
    "float64": "double",
    "bool": "boolean",
    "datetime": "timestamp",
}
_ID = "id"
_STRICT = {"mode": "FAILFAST"}

# Whole fields, and then one that is begun by a quote and not ended. Possessive: it never goes back.
_QUOTED = r'"[^"]*+(?:""[^"]*+)*+'
_OPEN_LINE = rf'^(?:(?:{_QUOTED}"[^,]*+|[^",][^,]*+|),)*+{_QUOTED}$'
_SHOWN = 80


def ingest(
    spark: SparkSession,
    url: str,
    namespace: str,
    files: Sequence[str],
    *,
    format: str | None = None,
    id: str = _ID,
    schema: Mapping[str, str] | None = None,
    multiline: bool = False,
    watch: Watch | None = None,
    **options: object,
) -> WriteResult:
    """Load files into a namespace of documents and return what was done.

    `id` is the column that has the ids. `schema` declares types. `multiline`: quoted values of CSV may
    have line breaks. `watch` is told how far it is. `options` are those of the data source
    (`operation`, `job_key`, `duplicates`, ...); what is large is sorted by Spark first. Raises
    InvalidInputError, UnavailableError, and what `reef.spark.write` does.
    """
    kind = input_format(files, format)
    declared = dict(schema or {})
    texts: dict[str, Any] = {
        name: str(value) for name, value in options.items() if value is not None
    }
    asked = WriteOptions.of({**texts, "url": url, "namespace": namespace})
    if asked.face != "documents":
        raise InvalidInputError.of("face", asked.face, "documents: files hold those")
    types = {name: Type.parse(text) for name, text in {**_known(asked), **declared}.items()}
    with _told_plainly(files), watching(spark, _telling(spark, files, watch)):
        if kind == "csv" and not multiline:
            _check_lines(spark, files)
        df, found = _read(spark, list(files), kind, id, types, multiline)
        declared = {**found, **declared}
        if declared:
            texts["declared"] = json.dumps(declared)
        load = bulk_load if asked.operation == "upsert" and _is_large(df, asked) else write
        return load(df, url, namespace, **texts)


def _telling(
    spark: SparkSession, files: Sequence[str], watch: Watch | None
) -> Callable[[Counted], None] | None:
    if watch is None:
        return None
    size = _stored_bytes(spark.read.text(list(files))) or 0

    def told(counted: Counted) -> None:
        known = max(size, counted.bytes_past + size * counted.scans, counted.bytes_read)
        watch(
            PassProgress(
                counted.tasks_done, counted.tasks, counted.bytes_read, known, counted.rows, 0
            )
        )

    return told


def _check_lines(spark: SparkSession, files: Sequence[str]) -> None:
    """Raise InvalidInputError for a quoted value that goes on in the next line.

    Spark would take the next line for a row of its own, often without a word.
    """
    line = F.col("value")
    texts = spark.read.text(list(files))
    found = texts.where(line.contains('"') & line.rlike(_OPEN_LINE)).limit(1).collect()
    if found:
        raise InvalidInputError.of(
            "CSV",
            found[0][0][:_SHOWN],
            "lines that end outside of quotes: in this one a quoted value goes on in the next; "
            "with --multiline that is a row, and each file is read by one task",
        )


def _read(
    spark: SparkSession,
    files: list[str],
    kind: InputFormat,
    id: str,
    types: Mapping[str, Type],
    multiline: bool,
) -> tuple[DataFrame, dict[str, str]]:
    """Return the rows of files, and types that were found and Arrow does not tell."""
    found: dict[str, str] = {}
    if kind == "parquet":
        df = spark.read.parquet(*files)
    elif kind == "csv":
        df = _read_csv(spark, files, id, types, multiline)
    else:
        df, found = _read_json(spark, files)
    if id not in df.columns:
        raise InvalidInputError.of("--id", id, f"one of the columns {', '.join(df.columns)}")
    if id != _ID and _ID in df.columns:
        raise InvalidInputError.of("--id", id, f"{_ID!r}, or files without a column of that name")
    columns = [
        F.col(_quoted(name)).cast("string").alias(_ID)
        if name == id
        else _typed(F.col(_quoted(name)), df.schema[name].dataType, types.get(name)).alias(name)
        for name in df.columns
    ]
    return df.select(columns), {name: text for name, text in found.items() if name not in types}


def _read_csv(
    spark: SparkSession, files: list[str], id: str, types: Mapping[str, Type], multiline: bool
) -> DataFrame:
    reader = spark.read.options(header=True, mode="FAILFAST", escape='"', multiLine=multiline)
    df = reader.csv(files)
    if all(name in types or name == id for name in df.columns):
        return df
    inferred = reader.options(inferSchema=True).csv(files).schema
    fields = [
        StructField(
            field.name, StringType() if field.name in types or field.name == id else field.dataType
        )
        for field in inferred
    ]
    return reader.schema(StructType(fields)).csv(files)


def _read_json(spark: SparkSession, files: list[str]) -> tuple[DataFrame, dict[str, str]]:
    """Return rows in which objects are the text that they were, and the names of those columns."""
    reader = spark.read.options(mode="FAILFAST")
    df = reader.json(files)
    objects = {field.name: "json" for field in df.schema if _has_objects(field.dataType)}
    if not objects:
        return df, {}
    fields = [
        StructField(field.name, StringType() if field.name in objects else field.dataType)
        for field in df.schema
    ]
    return reader.schema(StructType(fields)).json(files), objects


def _has_objects(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _has_objects(kind.elementType) or isinstance(kind.elementType, ArrayType)
    return isinstance(kind, StructType | MapType)


def _typed(column: Column, given: DataType, type: Type | None) -> Column:
    """Return text as what it stands for; what has a type already is left to the write."""
    if type is None or not isinstance(given, StringType):
        return column
    if type.kind == "list":
        assert type.item is not None
        return F.from_json(column, f"array<{_SQL_TYPES.get(type.item.kind, 'string')}>", _STRICT)
    if type.kind == "vector":
        return F.from_json(column, "array<float>", _STRICT)
    if type.kind == "sparse":
        return F.from_json(column, "struct<indices: array<bigint>, values: array<float>>", _STRICT)
    if type.kind == "bytes":
        return F.unbase64(column)
    return column.cast(_SQL_TYPES[type.kind]) if type.kind in _SQL_TYPES else column


def _known(options: WriteOptions) -> dict[str, str]:
    """Return the schema of the namespace, if there is one."""
    try:
        with Documents(options.place.bucket.open(), options.place.namespace, mode="r") as ns:
            return ns.schema
    except NotFoundError:
        return {}


def _is_large(df: DataFrame, options: WriteOptions) -> bool:
    """Return whether it is worth a sort by Spark, as far as Spark knows the size."""
    if options.method != "auto":
        return options.method == "bulk"
    size = _stored_bytes(df)
    return size is None or size > LARGE_BYTES


def _stored_bytes(df: DataFrame) -> int | None:
    """Return how large Spark takes a DataFrame for: files are as large as they are.

    None through Spark Connect, which does not tell.
    """
    plan = getattr(df, "_jdf", None)
    if plan is None:
        return None
    return int(str(plan.queryExecution().optimizedPlan().stats().sizeInBytes()))


@contextmanager
def _told_plainly(files: Sequence[str]) -> Iterator[None]:
    """Let what Spark says of files be one of our errors, without its stack."""
    try:
        yield
    except AnalysisException as error:
        raise InvalidInputError(f"the files cannot be read: {_first_line(error)}") from error
    except PySparkException as error:
        raise UnavailableError(
            f"Spark could not load {', '.join(files)}: {_first_line(error)}; nothing was loaded"
        ) from error


def _first_line(error: PySparkException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "Exception:" in line or line.startswith("[")]
    return (telling or lines or [type(error).__name__])[0]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
