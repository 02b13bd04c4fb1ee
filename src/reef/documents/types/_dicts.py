"""Tables → documents as dicts."""

from __future__ import annotations

import datetime
import uuid
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reef.documents.types._json import decode_json
from reef.documents.types._schema import Schema
from reef.documents.types._type import is_list


def documents_of(table: pa.Table | pa.RecordBatch, schema: Schema) -> list[dict[str, Any]]:
    """Return a dict for each row of `table`, whose columns have shown types; nulls are left out.

    Vectors become lists of floats, JSON what it stands for, UUIDs `uuid.UUID`, times aware
    datetimes in UTC. Columns that `schema` does not know are taken as they are.
    """
    names = table.schema.names
    columns = []
    for name, column in zip(names, table.columns, strict=True):
        attribute = schema.find(name)
        columns.append(values_of(column, attribute.type.text if attribute else ""))
    return [
        {name: value for name, value in zip(names, row, strict=True) if value is not None}
        for row in zip(*columns, strict=True)
    ]


def values_of(column: pa.Array | pa.ChunkedArray, text: str) -> list[Any]:
    """Return the values of a shown column, of the type `text`, as documents have them."""
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in values_of(chunk, text)]
    arrow = column.type
    if text == "json":
        return decode_json(column)
    if isinstance(arrow, pa.UuidType):
        return values_of(column.storage, "uuid")
    if text == "uuid":
        return [raw if raw is None else uuid.UUID(bytes=raw) for raw in column.to_pylist()]
    if pa.types.is_timestamp(arrow):
        return _times(column)
    if pa.types.is_fixed_size_list(arrow):
        return _values_of_vectors(column)
    if is_list(arrow):
        return _values_of_lists(column, text.removeprefix("[]"))
    values: list[Any] = column.to_pylist()
    return values


def _times(column: pa.Array) -> list[Any]:
    naive = column.cast(pa.timestamp("us")).to_pylist()
    return [time if time is None else time.replace(tzinfo=datetime.UTC) for time in naive]


def _values_of_vectors(column: pa.Array) -> list[Any]:
    numbers = column.flatten().to_numpy(zero_copy_only=False)
    return _with_nulls(column, numbers.reshape(-1, column.type.list_size).tolist())


def _values_of_lists(column: pa.Array, text: str) -> list[Any]:
    items = values_of(column.flatten(), text)
    lengths = pc.list_value_length(column).drop_null().to_numpy()
    offsets = np.concatenate(([0], np.cumsum(lengths))).tolist()
    return _with_nulls(column, [items[start:end] for start, end in pairwise(offsets)])


def _with_nulls(column: pa.Array, values: list[Any]) -> list[Any]:
    """Return `values`, those of `column` that are not null, with None where it is."""
    if not column.null_count:
        return values
    rest = iter(values)
    return [next(rest) if is_valid else None for is_valid in column.is_valid().to_pylist()]
