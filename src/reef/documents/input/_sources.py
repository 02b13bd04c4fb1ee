"""The forms that input may have → named columns of one length: lists of Python values, or Arrow arrays.

pandas and Polars are recognised without being imported: a caller that passes one has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from reef.documents.types import ATTRIBUTES_MAX, CONVERSION_ERRORS, Type, marked_type
from reef.errors import InvalidInputError

Column: TypeAlias = "list[Any] | pa.Array"

_FORMS = (
    "a list of dicts, a dict of lists or arrays, a pyarrow Table, RecordBatch or RecordBatchReader, "
    "or a DataFrame of pandas or Polars"
)
_COLUMN_FORMS = "a list, a NumPy array of one or two dimensions, an Arrow array or a series"


@dataclass(frozen=True, slots=True)
class SourceColumns:
    """Columns of `count` values each, and the dicts they come from if their keys differ."""

    columns: dict[str, Column]
    count: int
    uneven: Sequence[Mapping[str, Any]] = ()
    marked: Mapping[str, Type] = field(default_factory=dict)
    """The types that a table from another read says its columns have, if they have values."""

    def present(self, names: Iterable[str]) -> dict[str, pa.Array] | None:
        """Return, for each of `names` that some row does not have, which rows do; None if all do."""
        masks = {name: [name in row for row in self.uneven] for name in names if self.uneven}
        return {name: pa.array(m) for name, m in masks.items() if not all(m)} or None


def input_columns(data: Any) -> SourceColumns:
    """Return `data`, in any accepted form, as columns. Raises InvalidInputError."""
    if isinstance(data, SourceColumns):
        return data
    if isinstance(data, (list, tuple)):
        return _of_rows(data)
    if isinstance(data, Mapping):
        return _of_columns(data)
    if isinstance(data, pa.RecordBatchReader):
        return _of_table(data.read_all())
    if isinstance(data, (pa.Table, pa.RecordBatch)):
        return _of_table(data)
    if _is_of("pandas", "DataFrame", data):
        return _of_pandas(data)
    if _is_of("polars", "DataFrame", data) and any(map(_is_object, data.dtypes)):
        return SourceColumns(
            {name: _column_of_input(name, data[name]) for name in data.columns}, len(data)
        )
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        try:
            return _of_table(pa.table(data))
        except CONVERSION_ERRORS as error:
            raise InvalidInputError(
                f"data is of type {type(data).__name__} ({error}): expected {_FORMS}"
            ) from error
    raise InvalidInputError(f"data is of type {type(data).__name__}: expected {_FORMS}")


def _is_of(module: str, name: str, value: object) -> bool:
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, getattr(loaded, name, ()))


def _is_object(dtype: object) -> bool:
    """Say whether Polars holds Python objects, of which Arrow would get the addresses."""
    return bool(dtype == sys.modules["polars"].Object)


def _of_rows(rows: Sequence[Any]) -> SourceColumns:
    if not all(issubclass(type, Mapping) for type in set(map(type, rows))):
        i = next(i for i, row in enumerate(rows) if not isinstance(row, Mapping))
        raise InvalidInputError(
            f"row {i} is of type {type(rows[i]).__name__}: expected a dict; data is {_FORMS}"
        )
    shapes = dict.fromkeys(map(tuple, rows))
    if len(shapes) == 1:
        (names,) = shapes
        return SourceColumns({name: list(map(itemgetter(name), rows)) for name in names}, len(rows))
    names = tuple(dict.fromkeys(name for shape in shapes for name in shape))
    is_uneven = len(set(map(frozenset, shapes))) > 1
    if is_uneven and len(names) > ATTRIBUTES_MAX + 1:  # each would take a place in every row
        raise InvalidInputError(
            f"the documents have {len(names)} attributes: expected at most "
            f"{ATTRIBUTES_MAX}, and an id"
        )
    columns: dict[str, Column] = {name: [row.get(name) for row in rows] for name in names}
    return SourceColumns(columns, len(rows), rows if is_uneven else ())


def _of_columns(data: Mapping[Any, Any]) -> SourceColumns:
    columns = {name: _column_of_input(name, values) for name, values in data.items()}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidInputError(
            f"the columns have different lengths, {lengths}: give as many values in "
            f"each; one document goes in a list, [{{...}}]"
        )
    return SourceColumns(columns, next(iter(lengths.values()), 0))


def _of_table(table: pa.Table | pa.RecordBatch) -> SourceColumns:
    names = table.schema.names
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InvalidInputError(
            f"columns have the same name, {twice}: give every column a name of its own"
        )
    columns = zip(names, table.columns, strict=True)
    return SourceColumns(
        {name: _one_array(name, column) for name, column in columns},
        table.num_rows,
        marked=_marked(table),
    )


def _marked(table: pa.Table | pa.RecordBatch) -> dict[str, Type]:
    types = {field.name: marked_type(field) for field in table.schema if field.metadata}
    return {
        name: type
        for name, type in types.items()
        if type is not None and table.column(name).null_count < table.num_rows
    }


def _of_pandas(frame: Any) -> SourceColumns:
    if frame.index.name == "id" and "id" not in frame.columns:
        frame = frame.reset_index()
    if not frame.columns.is_unique:
        raise InvalidInputError(
            f"columns of the frame have the same name, {list(frame.columns)}: give "
            "every column a name of its own"
        )
    return SourceColumns(
        {name: _column_of_input(name, frame[name]) for name in frame.columns}, len(frame)
    )


def _column_of_input(name: str, values: Any) -> Column:
    if isinstance(values, list):
        return values
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return _one_array(name, values)
    try:
        if isinstance(values, np.ndarray):
            return _of_numpy(name, values)
        if _is_of("pandas", "Series", values):
            return _of_series(name, values)
        if _is_of("polars", "Series", values) and _is_object(values.dtype):
            return list(values.to_list())
        if hasattr(values, "__arrow_c_stream__"):
            return _one_array(name, pa.chunked_array(values))
        if hasattr(values, "__arrow_c_array__"):
            return _one_array(name, pa.array(values))
    except CONVERSION_ERRORS as error:
        raise InvalidInputError(
            f"column {name!r} is of type {type(values).__name__}, for which Arrow has "
            f"no type ({error})"
        ) from error
    if isinstance(values, Sequence) and not isinstance(values, (str, bytes, bytearray, memoryview)):
        return list(values)
    raise InvalidInputError(
        f"column {name!r} is of type {type(values).__name__}: expected {_COLUMN_FORMS}; "
        f"give one document in a list, [{{...}}]"
    )


def _of_numpy(name: str, values: np.ndarray) -> Column:
    if values.dtype.kind == "O":
        return values.tolist() if values.ndim else [values.item()]
    if values.ndim not in (1, 2):
        raise InvalidInputError(
            f"column {name!r} is an array of {values.ndim} dimensions: expected {_COLUMN_FORMS}"
        )
    native = values.astype(values.dtype.newbyteorder("="), copy=False)
    if values.ndim == 1:
        return pa.array(native)
    items = pa.array(native.reshape(-1))
    if not values.shape[1]:
        return [[] for _ in range(len(values))]
    return pa.FixedSizeListArray.from_arrays(items, values.shape[1])


def _of_series(name: str, series: Any) -> Column:
    if series.dtype == object:
        return [
            None if is_na is True else value
            for value, is_na in zip(series.tolist(), series.isna().tolist(), strict=True)
        ]
    return _one_array(name, pa.array(series, from_pandas=True))


def _one_array(name: str, column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return `column` in one piece, every offset and text of it checked."""
    try:
        if isinstance(column, pa.ChunkedArray):
            column = column.unify_dictionaries() if column.num_chunks > 1 else column
            column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            raise InvalidInputError(
                f"column {name!r} has {column.nbytes} bytes, which is too large for a "
                "batch: write it in smaller batches"
            )
        column.validate(full=True)
    except CONVERSION_ERRORS as error:
        raise InvalidInputError(
            f"column {name!r} of type {column.type} cannot be taken: {error}"
        ) from error
    return column
