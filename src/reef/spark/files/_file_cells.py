"""Text of files → the columns that a write takes, in tasks: what it says, or a refusal.

Text is read as `reef docs put` reads it, a column at a time by Arrow where that can. Datetimes, UUIDs
and JSON stay text: the write reads them by itself, with the same strictness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from reef.documents.input import CELL_ERRORS, LIKE_A_NAME, cell_failure, cell_reader, coerce
from reef.documents.types import CONVERSION_ERRORS, InputColumn, Type, first_failure
from reef.errors import InvalidInputError

_PLAIN = ("int64", "uint64", "float64", "bool")
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")  # in JSON, where Spark writes them as text


class Cells(NamedTuple):
    """The type that the text of a column is read as."""

    type: str
    is_declared: bool = True
    """Whether the user gave the type, or it was found: in the namespace, or in the text."""


def read_cells(batch: pa.RecordBatch, cells: Mapping[str, Cells]) -> pa.RecordBatch:
    """Return rows with the columns that `cells` gives types for read as these.

    They are text. Raises InvalidInputError, which names the attribute.
    """
    if not cells:
        return batch
    columns = [
        _typed_cells(column, cells[name], InputColumn(name)) if name in cells else column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _typed_cells(column: pa.Array, cells: Cells, spot: InputColumn) -> pa.Array:
    type = Type.parse(cells.type)
    if type.kind in ("string", "datetime", "uuid", "json") or pa.types.is_null(column.type):
        return column
    if type.kind in _PLAIN:
        column = pc.utf8_trim_whitespace(column)
        unsure = "x" if cells.is_declared else f"x|{LIKE_A_NAME}"
        if not pc.any(pc.match_substring_regex(column, unsure, ignore_case=True)).as_py():
            try:
                values = column.cast(type.physical)
                if type.kind != "float64" or not pc.any(pc.is_inf(values)).as_py():
                    return values
            except pa.ArrowInvalid:
                pass  # such as +7; or the error below names the value
    return _read_one_by_one(column, type, spot, cells.is_declared)


def _read_one_by_one(
    column: pa.Array, type: Type, spot: InputColumn, is_declared: bool
) -> pa.Array:
    """Return the values of cells one by one; what they are given as loses nothing, or is refused."""
    cells = column.to_pylist()
    read = cell_reader(type.text, is_declared=is_declared)
    assert read is not None
    values = []
    for i, cell in enumerate(cells):
        try:
            values.append(None if cell is None else _cell_value(cell, type, read))
        except CELL_ERRORS as error:
            raise spot.refusal(i, cell, type.text, cell_failure(type.text, error)) from error

    def given(some: list[Any]) -> pa.Array:
        is_plain = type.kind in _PLAIN or (type.text == "[]uint64" and _are_integers(some))
        return pa.array(some, type.physical if is_plain else None)

    try:
        return coerce(given(values), type, spot)
    except InvalidInputError:
        raise
    except CONVERSION_ERRORS as error:
        i = first_failure(values, lambda some: coerce(given(some), type, spot))
        got = f"what {type.text} does not hold"
        raise spot.refusal(i, cells[i], type.text, got) from error


def _cell_value(cell: str, type: Type, read: Callable[[str], Any]) -> Any:
    value = read(cell)
    if type.kind in ("list", "vector") and not isinstance(value, list):
        raise ValueError("no list")
    if '"' in cell and (type.kind == "vector" or type.text == "[]float64"):
        value = [float(item) if item in _NO_NUMBERS else item for item in value]
    return value


def _are_integers(values: list[Any]) -> bool:
    """Return whether lists hold integers alone: beyond int64 Arrow has to be told, and others it cuts."""
    return all(type(item) is int for value in values if value for item in value)
