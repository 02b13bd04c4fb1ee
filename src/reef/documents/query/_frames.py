"""Arrow tables as the frames of other libraries, which are imported on first use."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pyarrow as pa

from reef.documents.query._page import AFTER
from reef.documents.types import marked_type, values_of
from reef.errors import InvalidInputError


def frame_of_pandas(table: pa.Table) -> Any:
    """Return a pandas DataFrame. Whole numbers and booleans beside nulls keep their type.

    pandas would make floats of the numbers, and change those that floats cannot hold. JSON and lists
    of UUIDs are objects, as in documents; the token of a page is in `attrs`. Raises InvalidInputError
    if pandas is not installed.
    """
    pandas = _imported("pandas")
    nullable = {
        pa.int64(): pandas.Int64Dtype(),
        pa.uint64(): pandas.UInt64Dtype(),
        pa.bool_(): pandas.BooleanDtype(),
    }
    with_nulls = {column.type for column in table.columns if column.null_count}
    objects = {}
    for i, field in enumerate(table.schema):
        type = marked_type(field)
        if type is not None:
            objects[field.name] = values_of(table.column(i), type.text)
            table = table.set_column(i, field.name, pa.nulls(table.num_rows))
    frame = table.to_pandas(types_mapper=lambda t: nullable.get(t) if t in with_nulls else None)
    for name, values in objects.items():
        frame[name] = pandas.Series(values, frame.index, dtype=object)
    if AFTER in (table.schema.metadata or {}):
        frame.attrs[AFTER.decode()] = table.schema.metadata[AFTER].decode()
    return frame


def frame_of_polars(table: pa.Table) -> Any:
    """Return a Polars DataFrame. Raises InvalidInputError if Polars is not installed."""
    polars = _imported("polars")
    batches = [_without_slices(batch) for batch in table.to_batches()]
    return polars.from_arrow(pa.Table.from_batches(batches, schema=table.schema))


def _without_slices(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with copies of vectors that have nulls among them: Polars takes no slices."""
    for i, field in enumerate(batch.schema):
        column = batch.column(i)
        if pa.types.is_fixed_size_list(field.type) and column.null_count:
            batch = batch.set_column(i, field, column.take(pa.array(np.arange(len(column)))))
    return batch


def _imported(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise InvalidInputError(
            f"{package} is not installed: install it, or use query(), which returns an Arrow table"
        ) from error
