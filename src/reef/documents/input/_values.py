"""Columns of the input → stored columns: which type they have if nobody said, then `coerce`.

Python values are grouped by kind, each kind becomes the Arrow type that holds all of it, and from
there on they go the way of Arrow input. A column of one kind costs no Python code per value.
"""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reef.documents.input._coerce import arrow_text, coerce, plain_array
from reef.documents.types import (
    CONVERSION_ERRORS,
    DIMENSION_MAX,
    InputColumn,
    ReadColumn,
    Type,
    encode_json,
    first_failure,
    first_true,
    first_valid,
    is_list,
    is_number_or_null,
)
from reef.errors import InvalidInputError

_JSON = Type.parse("json")
_NUMBERS = {"int", "float"}
_TIMES = {"date", "datetime", "datetime64", "timestamp"}
SPARSE_KEYS = {"indices", "values"}
_LISTS = (list, tuple, type(None))
_KEPT = "a type that Reef supports"
_VECTOR = f"a vector of 1 to {DIMENSION_MAX} numbers"


def read_arrow(column: pa.Array, known: Type | None, spot: InputColumn) -> ReadColumn | None:
    """Return `column` as stored, in the type `known` or, if there is none, in the one it has.

    Returns None for a new column that says nothing of its type. Raises InvalidInputError.
    """
    type = known or _inferred(plain_array(column), spot)
    return None if type is None else ReadColumn(type, coerce(column, type, spot))


def read_values(values: Sequence[Any], known: Type | None, spot: InputColumn) -> ReadColumn | None:
    """Return Python `values` as `read_arrow` does; None, NaT and NA are nulls."""
    types = set(map(type, values))
    kinds = set(map(_kind, types))
    if "null" in kinds:
        kinds.discard("null")
        if any(t is not type(None) and _kind(t) == "null" for t in types):
            values = [None if _kind(type(value)) == "null" else value for value in values]
    if not kinds:
        return ReadColumn(known, pa.nulls(len(values), known.physical)) if known else None
    if known is not None and known.kind == "json":
        return ReadColumn(known, encode_json(values, spot))
    if "other" in kinds and known is None:
        i = next(i for i, value in enumerate(values) if _kind(type(value)) == "other")
        raise spot.refusal(i, values[i], _KEPT, type(values[i]).__name__)
    if len(kinds) > 1:
        return _read_mixed(values, known, spot, kinds)
    (kind,) = kinds
    if kind == "dict" and known is None and not any(map(may_be_sparse, values)):
        return ReadColumn(_JSON, encode_json(values, spot))
    is_vector = known.kind == "vector" if known else is_vector_name(spot.name)
    column = (
        _arrays_of_lists(values, spot, is_vector)
        if kind == "list"
        else _NATURAL[kind](values, spot)
    )
    if column is not None:
        if known is None and kind == "array":
            known = _vector_of_halves_or_singles(values, spot)
        return read_arrow(column, known, spot)
    if known is None:
        return ReadColumn(_JSON, encode_json(values, spot))
    i = _first_value(values)
    raise spot.refusal(i, values[i], known.text, f"{type(values[i]).__name__} (json)")


def is_vector_name(name: str) -> bool:
    """Say whether lists of numbers under `name` are vectors unless the schema says otherwise."""
    return name == "vector" or name.endswith("_vector")


def _inferred(column: pa.Array, spot: InputColumn) -> Type | None:
    arrow = column.type
    i = first_valid(column)
    if i is None:
        return None
    if is_list(arrow):
        items = arrow.value_type
        if pa.types.is_null(items):
            if len(column.flatten()):
                raise spot.refusal(i, column[i], _KEPT, "a list that holds a null")
            return None
    try:
        if is_list(arrow) and is_vector_name(spot.name) and is_number_or_null(arrow.value_type):
            # By the first that has numbers: one that is empty is refused then, and not forgotten.
            telling = first_true(pc.greater(pc.list_value_length(column), 0))
            half = pa.types.is_float16(arrow.value_type)
            return None if telling is None else Type.vector(len(column[telling]), half=half)
        return Type.of_arrow(arrow)
    except InvalidInputError:
        if is_list(arrow) and is_number_or_null(arrow.value_type):
            got = f"a list of {len(column[i])} numbers"
            raise spot.refusal(i, column[i], _VECTOR, got) from None
        raise spot.refusal(i, column[i], _KEPT, str(arrow)) from None


def _read_mixed(
    values: Sequence[Any], known: Type | None, spot: InputColumn, kinds: set[str]
) -> ReadColumn | None:
    if known is None:
        if kinds == {"list", "array"}:
            return read_values(list(map(_list, values)), None, spot)
        known = _common(values, spot, kinds)
        if known.kind == "json":
            return ReadColumn(known, encode_json(values, spot))
    parts = [pa.nulls(1, known.physical)]
    places = np.zeros(len(values), np.int64)
    kind_of = [_kind(type(value)) for value in values]
    # In the order of their first rows, so that the first row that does not fit is the one named.
    for kind in sorted(kinds, key=kind_of.index):
        rows = np.array([i for i, found in enumerate(kind_of) if found == kind])
        group = [values[i] for i in rows]
        read = read_values(group, known, spot.within(rows.item))
        assert read is not None
        places[rows] = np.arange(len(rows)) + sum(map(len, parts))
        parts.append(read.values)
    return ReadColumn(known, pa.concat_arrays(parts).take(pa.array(places)))


def _common(values: Sequence[Any], spot: InputColumn, kinds: set[str]) -> Type:
    if kinds <= _NUMBERS:
        return Type.parse("float64")
    if kinds <= _TIMES:
        return Type.parse("datetime")
    if "dict" in kinds:
        return _JSON
    first = _first_value(values)
    kind = _kind(type(values[first]))
    i = next(i for i, v in enumerate(values) if _kind(type(v)) not in (kind, "null"))
    expected = f"the type of row {spot.row_of(first)} ({kind})"
    raise spot.refusal(i, values[i], expected, _kind(type(values[i])))


def _first_value(values: Sequence[Any]) -> int:
    return next(i for i, value in enumerate(values) if value is not None)


# --- kinds of Python values -----------------------------------------------------------------------

_KINDS: list[tuple[str, tuple[type, ...]]] = [
    ("null", (type(None),)),
    ("bool", (bool, np.bool_)),
    ("int", (int, np.integer)),
    ("float", (float, np.floating)),
    ("str", (str,)),
    ("bytes", (bytes, bytearray, memoryview)),
    ("datetime", (datetime.datetime,)),
    ("date", (datetime.date,)),
    ("datetime64", (np.datetime64,)),
    ("uuid", (uuid.UUID,)),
    ("decimal", (decimal.Decimal,)),
    ("dict", (Mapping,)),
    ("list", (list, tuple)),
    ("array", (np.ndarray,)),
]


class _KindOf(dict[type, str]):
    """The kind of each Python type that was seen."""

    def __missing__(self, type: type) -> str:
        kind = next((kind for kind, types in _KINDS if issubclass(type, types)), "other")
        if type.__module__.partition(".")[0] == "pandas":
            kind = {"NaTType": "null", "NAType": "null", "Timestamp": "timestamp"}.get(
                type.__name__, kind
            )
        if issubclass(type, np.timedelta64):  # NumPy counts it among the integers
            kind = "other"
        self[type] = kind
        return kind


_kind = _KindOf().__getitem__


def _arrow_array(values: Sequence[Any], arrow: pa.DataType | None, spot: InputColumn) -> pa.Array:
    try:
        return pa.array(values, arrow)
    except CONVERSION_ERRORS as error:
        i = first_failure(values, lambda part: pa.array(part, arrow))
        expected = arrow_text(arrow) if arrow else "values of one type"
        got = f"{type(values[i]).__name__} that it does not hold ({error})"
        raise spot.refusal(i, values[i], expected, got) from None


def _integers(values: Sequence[Any], spot: InputColumn) -> pa.Array:
    try:
        return pa.array(values, pa.int64())
    except CONVERSION_ERRORS:
        is_signed = min(value for value in values if value is not None) < 0
        return _arrow_array(values, pa.int64() if is_signed else pa.uint64(), spot)


def _uuids(values: Sequence[Any], spot: InputColumn) -> pa.Array:
    raw = [None if value is None else value.bytes for value in values]
    return pa.ExtensionArray.from_storage(pa.uuid(), pa.array(raw, pa.binary(16)))


def _datetimes64(values: Sequence[Any], spot: InputColumn) -> pa.Array:
    nat = np.datetime64("NaT", "s")
    times: Any = np.array([nat if value is None else value for value in values])
    return _arrow_array(times, None, spot)


def _timestamps(values: Sequence[Any], spot: InputColumn) -> pa.Array:
    """Nanoseconds are seen here: Arrow would cut them off."""
    return _datetimes64([value and value.to_datetime64() for value in values], spot)


def _dicts(values: Sequence[Any], spot: InputColumn) -> pa.Array | None:
    if any(value is not None and value.keys() != SPARSE_KEYS for value in values):
        return None
    parts = []
    for key in ("indices", "values"):
        lists = [None if value is None else _list(value[key]) for value in values]
        wrong = next((i for i, v in enumerate(lists) if not isinstance(v, _LISTS)), None)
        if wrong is not None:
            raise spot.refusal(wrong, values[wrong], "sparse", f"{key!r} that is not a list")
        column = _arrays_of_lists(lists, spot)
        if column is None:
            i = _first_value(lists)
            raise spot.refusal(i, values[i], "sparse", f"{key!r} that are not all numbers")
        parts.append(column)
    mask = pa.array([value is None for value in values])
    return pa.StructArray.from_arrays(parts, ["indices", "values"], mask=mask)


def may_be_sparse(value: Any) -> bool:
    """Say whether a dict is a sparse vector, or what became of one; others of its keys are JSON."""
    return (
        value is not None
        and value.keys() == SPARSE_KEYS
        and all(_may_be_numbers(_list(part)) for part in value.values())
    )


def _may_be_numbers(value: Any) -> bool:
    return isinstance(value, _LISTS) and {*map(_kind, set(map(type, value or ())))} <= {
        "null",
        *_NUMBERS,
    }


def _list(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _arrays_of_lists(
    values: Sequence[Any], spot: InputColumn, is_vector: bool = False
) -> pa.Array | None:
    flat = list(chain.from_iterable(value for value in values if value))
    kinds = set(map(_kind, set(map(type, flat))))
    kinds.discard("null")
    if kinds == _NUMBERS:
        kinds = {"float"}
    if len(kinds) > 1 or kinds & {"dict", "list", "array", "other"}:
        return None
    lengths = [-1 if value is None else len(value) for value in values]
    items = pa.nulls(len(flat))
    if kinds:
        spot = spot.within(
            lambda i: int(np.searchsorted(_list_offsets(lengths), i, side="right")) - 1
        )
        items = _NATURAL[kinds.pop()](flat, spot)
    return _list_array(items, lengths, is_vector)


def _arrays(values: Sequence[Any], spot: InputColumn) -> pa.Array | None:
    valid = [value for value in values if value is not None]
    if any(value.ndim != 1 for value in valid):
        return None
    if any(value.dtype.kind in "OVm" for value in valid):
        return _arrays_of_lists(list(map(_list, values)), spot)
    if len({"n" if value.dtype.kind in "iuf" else value.dtype.kind for value in valid}) > 1:
        return None
    flat = np.concatenate(valid)
    items = pa.array(flat.astype(flat.dtype.newbyteorder("="), copy=False))
    lengths = [-1 if value is None else len(value) for value in values]
    return _list_array(items, lengths, True)


def _vector_of_halves_or_singles(values: Sequence[Any], spot: InputColumn) -> Type | None:
    valid = [value for value in values if value is not None and value.size]
    if not valid or any(value.dtype.name not in ("float16", "float32") for value in valid):
        return None
    if len(valid[0]) > DIMENSION_MAX:
        got = f"a list of {len(valid[0])} numbers"
        raise spot.refusal(_first_value(values), valid[0], _VECTOR, got)
    return Type.vector(len(valid[0]), half=all(v.dtype.name == "float16" for v in valid))


def _list_array(items: pa.Array, lengths: list[int], is_vector: bool) -> pa.Array:
    """Return `items` as lists of `lengths`, of which -1 stands for null."""
    if is_vector and lengths[0] > 0 and lengths.count(lengths[0]) == len(lengths):
        return pa.FixedSizeListArray.from_arrays(items, lengths[0])  # the usual, and the quickest
    # Extension types are named here: Arrow would take the storage's.
    arrow = pa.list_(items.type)
    mask = pa.array([length < 0 for length in lengths])
    return pa.ListArray.from_arrays(_list_offsets(lengths), items, type=arrow, mask=mask)


def _list_offsets(lengths: list[int]) -> np.ndarray:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.maximum(lengths, 0).cumsum(out=offsets[1:])
    return offsets


def _array_as(arrow: pa.DataType | None) -> Callable[[Sequence[Any], InputColumn], pa.Array]:
    return lambda values, spot: _arrow_array(values, arrow, spot)


# Values, all of one kind or None, in Arrow's type for it; None if only JSON holds them.
_NATURAL: dict[str, Callable[[Sequence[Any], InputColumn], pa.Array | None]] = {
    "bool": _array_as(pa.bool_()),
    "int": _integers,
    "float": _array_as(pa.float64()),
    "str": _array_as(pa.string()),
    "bytes": _array_as(pa.binary()),
    "datetime": _array_as(Type.parse("datetime").physical),
    "date": _array_as(pa.date32()),
    "datetime64": _datetimes64,
    "timestamp": _timestamps,
    "uuid": _uuids,
    "decimal": _array_as(None),
    "dict": _dicts,
    "array": _arrays,
    "other": lambda values, spot: None,
}
