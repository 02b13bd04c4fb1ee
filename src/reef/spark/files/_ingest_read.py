"""Files → a DataFrame as a write takes it: rows by the names of their columns, and text as it stands.

Parquet comes with its types. CSV is read as text: columns have the types that are known, from the
schema of the namespace or declared, and for the others the files are looked through once more; tasks
read the text then (`_cells`). Of JSON lines tasks get the lines (`_ingest_json`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    IntegerType,
    IntegralType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from reef.documents.types import Type
from reef.errors import InvalidInputError
from reef.spark._write._batch_write import arrow_columns
from reef.spark._write._stage import ReadRows
from reef.spark._write._write_options import Operation
from reef.spark.files._file_cells import Cells, read_cells
from reef.spark.files._ingest_files import NOTHING, Files
from reef.spark.files._ingest_json import ReadLines, check_shapes, lines_of, look_through, with_ids
from reef.spark.files._input_format import InputFormat

ID = "id"
_UINT64 = DecimalType(20, 0)


@dataclass(frozen=True)
class FileRows:
    """The rows of files."""

    df: DataFrame
    columns: pa.Schema
    """Of the rows."""
    declared: dict[str, str]
    """Types that were found and that Arrow cannot express."""
    read: ReadRows | None = None
    """What makes rows of `df` in tasks; None: it has rows."""
    sortable: DataFrame | None = None
    """The same as `df` with a column of ids, if that has none."""


def read_files(
    files: Files,
    kind: InputFormat,
    id: str,
    types: Mapping[str, Type],
    operation: Operation,
    *,
    declared: Collection[str] = (),
    multiline: bool = False,
) -> FileRows:
    """Return the rows of files, with the ids in the column `id`. Raises InvalidInputError.

    `types` are those that are known; the caller has given those of `declared`.
    """
    if kind == "jsonl":
        return _read_json(files, id, types, operation)
    cells: dict[str, Cells] = {}
    found: dict[str, str] = {}
    if kind == "parquet":
        df = files.reader(mergeSchema=True).parquet(*files.paths)
        df = _without_nothing(df, {id, *types})
    else:
        df, cells, found = read_csv(files, id, types, declared, multiline)
    if id not in df.columns:
        raise InvalidInputError.of("--id", id, f"one of the columns {', '.join(df.columns)}")
    _check_id_column(id, df.columns)
    numbers = {
        field.name: _unsigned(field)
        for field in df.schema
        if field.name != id and field.name not in types and _is_decimal(field.dataType)
    }
    columns = [
        column_of(name).cast("string").alias(ID) if name == id else column_of(name)
        for name in df.columns
    ]
    df = df.select(columns)
    # Of what is to be deleted only the ids are looked at.
    read = partial(read_cells, cells=cells) if cells and operation != "delete" else None
    return FileRows(df, arrow_columns(df.schema), {**found, **numbers}, read)


def _without_nothing(df: DataFrame, known: set[str]) -> DataFrame:
    """Return rows of Parquet without columns that have no type: Spark takes them for int, all null."""
    names = [field.name for field in df.schema if isinstance(field.dataType, IntegerType)]
    names = [name for name in names if name not in known]
    if not names:
        return df
    has_some = df.select([F.max(column_of(name).isNotNull()) for name in names]).head()
    assert has_some is not None
    empty = {name for name, some in zip(names, has_some, strict=True) if not some}
    return df.select([column_of(name) for name in df.columns if name not in empty])


def read_csv(
    files: Files, id: str, types: Mapping[str, Type], declared: Collection[str], multiline: bool
) -> tuple[DataFrame, dict[str, Cells], dict[str, str]]:
    """Return rows of text, the types to read it as, and which of these were found.

    A header that differs from the others is refused when it is read.
    """
    reader = files.reader(
        header=True,
        mode="FAILFAST",
        escape='"',
        multiLine=multiline,
        enforceSchema=False,
        nullValue=NOTHING,
    )
    names = reader.csv(files.paths).columns
    known = {name: type.text for name, type in types.items() if name in names and name != id}
    found: dict[str, str] = {}
    if any(name not in known and name != id for name in names):
        inferred = reader.options(inferSchema=True).csv(files.paths).schema
        found = {
            field.name: _text_type(field)
            for field in inferred
            if field.name != id and field.name not in known
        }
    cells = {n: Cells(text, n in declared) for n, text in {**known, **found}.items()}
    text = StructType([StructField(name, StringType()) for name in names])
    df = reader.options(inferSchema=False).schema(text).csv(files.paths)
    # A quoted cell with nothing in it is empty text, and no number.
    columns = [
        column_of(name)
        if name not in cells or cells[name].type in ("string", "bytes")
        else F.nullif(column_of(name), F.lit("")).alias(name)
        for name in names
    ]
    return df.select(columns), cells, found


def _text_type(field: StructField) -> str:
    """Return the type of a column of CSV, by what Spark takes its text for."""
    kind = field.dataType
    if isinstance(kind, DecimalType):
        return _unsigned(field)
    if isinstance(kind, IntegralType):
        return "int64"
    if isinstance(kind, FractionalType):
        return "float64"
    if isinstance(kind, BooleanType):
        return "bool"
    if isinstance(kind, TimestampType | TimestampNTZType | DateType):
        return "datetime"
    return "string"


def _read_json(files: Files, id: str, known: Mapping[str, Type], operation: Operation) -> FileRows:
    df = lines_of(files)
    found = look_through(files, df, id)
    folders = arrow_columns(StructType(df.schema.fields[1:]))
    _check_id_column(id, found.attributes)
    for name in folders.names:
        if name == id or name in found.attributes:
            raise InvalidInputError(
                f"{name!r} is both a key of lines and the name of their folders: rename one"
            )
    if operation == "patch":
        check_shapes(found)
    types = {} if operation == "delete" else found.types(known)
    texts = {name: type.text for name, type in types.items()}
    attributes = [pa.field(name, type.physical) for name, type in types.items()]
    return FileRows(
        df,
        pa.schema([pa.field(ID, pa.string()), *attributes, *folders]),
        {name: text for name, text in texts.items() if name not in known},
        ReadLines(id, texts, folders.names),
        with_ids(df, id),
    )


def _check_id_column(id: str, names: Iterable[str]) -> None:
    if id != ID and ID in names:
        raise InvalidInputError(
            f"--id = {id!r}, but the files have a column {ID!r} as well: give --id "
            f"{ID}, or files without that column"
        )


def _is_decimal(kind: DataType) -> bool:
    return isinstance(kind.elementType if isinstance(kind, ArrayType) else kind, DecimalType)


def _unsigned(field: StructField) -> str:
    """Return the type of decimals, which is how Spark has uint64. Raises InvalidInputError."""
    kind = field.dataType
    is_list = isinstance(kind, ArrayType)
    if (kind.elementType if isinstance(kind, ArrayType) else kind) == _UINT64:
        return "[]uint64" if is_list else "uint64"
    raise InvalidInputError(
        f"attribute {field.name!r} is of type {kind.simpleString()}, which Reef does "
        f"not support: declare a type, such as --schema {field.name}=float64"
    )


def column_of(name: str) -> Column:
    """Return a column by its name, whatever is in that."""
    return F.col("`" + name.replace("`", "``") + "`")
