"""Files → a DataFrame as a write takes it: rows by the names of their columns, and text as it stands.

Parquet comes with its types. CSV is read as text: columns have the types that are known, from the
schema of the namespace or declared, and for the others the files are looked through once more; tasks
read the text then (`_cells`). JSON lines are looked through for types first; objects in them, and ids,
are kept as the text that they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from reef.documents._types import Type
from reef.errors import InvalidInputError
from reef.pipeline._ingest import InputFormat
from reef.spark._cells import Cells
from reef.spark._ingest_files import Files

ID = "id"
_UINT64 = DecimalType(20, 0)
_NOTHING = "\x01"
"""What stands for an empty cell while Spark reads it, so that a quoted one is another."""


@dataclass(frozen=True)
class Found:
    """The rows of files."""

    df: DataFrame
    declared: dict[str, str]
    """Types that were found and that Arrow does not tell."""
    cells: dict[str, Cells]
    """Columns that are text still, and what tasks are to read it as."""


def read(
    files: Files,
    kind: InputFormat,
    id: str,
    types: Mapping[str, Type],
    *,
    declared: Collection[str] = (),
    multiline: bool = False,
) -> Found:
    """Return the rows of files, with the ids in the column `id`. Raises InvalidInputError.

    `types` are those that are known; the caller has given those of `declared`.
    """
    if kind == "parquet":
        found = Found(files.reader(mergeSchema=True).parquet(*files.paths), {}, {})
    elif kind == "csv":
        found = read_csv(files, id, types, declared, multiline)
    else:
        found = _read_json(files, id, types, declared)
    df = found.df
    if id not in df.columns:
        raise InvalidInputError.of("--id", id, f"one of the columns {', '.join(df.columns)}")
    if id != ID and ID in df.columns:
        raise InvalidInputError.of("--id", id, f"{ID!r}, or files without a column of that name")
    numbers = {
        field.name: _unsigned(field)
        for field in df.schema
        if field.name != id and field.name not in types and _is_decimal(field.dataType)
    }
    columns = [
        column_of(name).cast("string").alias(ID) if name == id else column_of(name)
        for name in df.columns
    ]
    return Found(df.select(columns), {**found.declared, **numbers}, found.cells)


def read_csv(
    files: Files, id: str, types: Mapping[str, Type], declared: Collection[str], multiline: bool
) -> Found:
    """Return rows of text; a header that differs from the others is refused when it is read."""
    reader = files.reader(
        header=True,
        mode="FAILFAST",
        escape='"',
        multiLine=multiline,
        enforceSchema=False,
        nullValue=_NOTHING,
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
    return Found(df.select(columns), found, cells)


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


def _read_json(
    files: Files, id: str, types: Mapping[str, Type], declared: Collection[str]
) -> Found:
    reader = files.reader(mode="FAILFAST")
    schema = reader.json(files.paths).schema
    objects = {field.name: "json" for field in schema if _has_objects(field.dataType)}
    fields = [
        StructField(
            field.name,
            StringType() if field.name in objects or field.name == id else field.dataType,
        )
        for field in schema
    ]
    df = reader.schema(StructType(fields)).json(files.paths)
    cells = {
        field.name: Cells(types[field.name].text, field.name in declared)
        for field in df.schema
        if field.name in types and _is_text_of(field.dataType, types[field.name])
    }
    return Found(df, {name: text for name, text in objects.items() if name not in types}, cells)


def _is_text_of(kind: DataType, type: Type) -> bool:
    """Return whether a column is text, or base64 in lists, that stands for something else."""
    if isinstance(kind, ArrayType):
        return type.text == "[]bytes" and isinstance(kind.elementType, StringType)
    return isinstance(kind, StringType)


def _has_objects(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _has_objects(kind.elementType) or isinstance(kind.elementType, ArrayType)
    return isinstance(kind, StructType | MapType)


def _is_decimal(kind: DataType) -> bool:
    return isinstance(kind.elementType if isinstance(kind, ArrayType) else kind, DecimalType)


def _unsigned(field: StructField) -> str:
    """Return the type of decimals, which is how Spark has uint64. Raises InvalidInputError."""
    kind = field.dataType
    is_list = isinstance(kind, ArrayType)
    if (kind.elementType if isinstance(kind, ArrayType) else kind) == _UINT64:
        return "[]uint64" if is_list else "uint64"
    raise InvalidInputError.of(
        f"attribute {field.name!r}",
        kind.simpleString(),
        f"a type that Reef has: declare one, such as --schema {field.name}=float64",
    )


def column_of(name: str) -> Column:
    """Return a column by its name, whatever is in that."""
    return F.col("`" + name.replace("`", "``") + "`")
