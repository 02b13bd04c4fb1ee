"""Batch reads: the reader that Spark plans with on the driver and calls in its workers.

Spark pickles the reader before it asks for partitions: what `partitions` finds out must be in the
partitions, and all the rest is settled when the reader is made, or when filters are pushed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from reef.errors import InvalidInputError
from reef.spark._freeze import freeze_imports
from reef.spark.source._filters import push_documents, push_keys
from reef.spark.source._read_options import ReadOptions
from reef.spark.source._read_version import ReadVersion
from reef.spark.source._scan_plan import (
    Scan,
    ScanRange,
    plan_scan,
    pushed_where,
    read_range,
    schema_of,
)
from reef.spark.source._spark_columns import Column, select_columns, spark_columns


class ReefReader(DataSourceReader):
    """Reads one version of a namespace, with the columns of a Spark schema."""

    def __init__(self, options: ReadOptions, version: ReadVersion, schema: StructType) -> None:
        every = spark_columns(version.face, version.columns)
        self._options = options
        columns = select_columns(every, tuple(schema.fieldNames()))
        self._layout: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        _check_schema_types(schema, columns)
        pushed = pushed_where(options.where, version)
        self._scan = Scan(version, columns, pushed, options.batch_bytes)

    def partitions(self) -> Sequence[InputPartition]:
        """Return key ranges of about equal size; with nothing to read, one that reads nothing."""
        freeze_imports()
        ranges = plan_scan(
            self._scan,
            partition_bytes=self._options.partition_bytes,
            min_partitions=self._options.min_partitions,
        )
        return [InputPartition(keys) for keys in ranges or [ScanRange(b"", b"")]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        freeze_imports()
        return read_range(self._scan, partition.value, self._layout)


class PushingReader(ReefReader):
    """A reader that takes over filters. Spark refuses one in a session that pushes none."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keep filters that stored rows can answer; return those left to Spark."""
        version, before = self._scan.version, self._scan.pushed
        if version.face == "kv":
            self._scan = replace(self._scan, pushed=push_keys(filters))
            return filters
        every = spark_columns(version.face, version.columns)
        pushed, left = push_documents(filters, every, schema_of(version), before)
        self._scan = replace(self._scan, pushed=pushed)
        return left


def reader_of(options: ReadOptions, version: ReadVersion, schema: StructType) -> ReefReader:
    """Return a reader, one that takes over filters if that is requested, or safe.

    In PySpark 4.3.0 it is not: a DataFrame has one plan of what to read, the last filter's. A query
    without a filter, or the other side of a self-join, then reads too few rows, without a word. The
    versions that keep such plans apart are those that push limits down as well. Until then the
    option `where` filters at the source: it belongs to the DataFrame, and cannot leak.
    """
    pushes = hasattr(DataSourceReader, "pushLimit") if options.pushes is None else options.pushes
    return (PushingReader if pushes else ReefReader)(options, version, schema)


def spark_schema(version: ReadVersion, names: tuple[str, ...] | None) -> StructType:
    """Return the schema that Spark sees: all columns, or those called `names`."""
    columns = select_columns(spark_columns(version.face, version.columns), names)
    return from_arrow_schema(pa.schema([column.field for column in columns]))


def _check_schema_types(schema: StructType, columns: tuple[Column, ...]) -> None:
    """Raise InvalidInputError if a schema names another type than a column has."""
    for wanted, column in zip(schema.fields, columns, strict=True):
        has: StructField = from_arrow_schema(pa.schema([column.field])).fields[0]
        if wanted.dataType.simpleString() != has.dataType.simpleString():
            raise InvalidInputError(
                f"the schema gives column {column.name!r} the type "
                f"{wanted.dataType.simpleString()}: expected "
                f"{has.dataType.simpleString()}; cast it in the query"
            )
