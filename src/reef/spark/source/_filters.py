"""Filters that Spark pushes down → filters of documents and key ranges, where both mean the same.

Whatever is doubtful stays with Spark. What was looked at, case by case:

- Nulls: both use SQL's logic, and a row counts if all filters are true. `<=>` is made of Eq and
  IsNull, because it is never null.
- NaN: in Spark it equals itself and is above every number; in a filter of documents it compares
  false with everything. So `>` and `>=` become Not of the opposite, and NaN itself is not pushed.
- Strings, bytes: both compare by bytes. Columns with another collation are not pushed by Spark.
- UUIDs are text in Spark: in lower case with dashes their text sorts as their bytes do.
- Unsigned numbers are decimals in Spark: whole ones are pushed.
- Times: those with a time zone are. Spark's dates and times without one are not.
- Lists, vectors, JSON: whether they are null, no more.

For keys and values the key range is all that is used, and Spark looks at the rows again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from reef.documents.filter import VALUES_MAX, like_to_glob, parse_filter
from reef.documents.types import Schema
from reef.errors import InvalidInputError
from reef.spark.source._scan_plan import PushedFilters
from reef.spark.source._spark_columns import Column

Where = tuple[Any, ...]

_ORDERS = {
    EqualTo: "Eq",
    GreaterThan: "Gt",
    GreaterThanOrEqual: "Gte",
    LessThan: "Lt",
    LessThanOrEqual: "Lte",
}
_OPPOSITE = {"Gt": "Lte", "Gte": "Lt"}
_ORDERED = frozenset(("string", "int64", "uint64", "float64", "datetime", "uuid", "bytes"))


class _DoubtfulError(Exception):
    """A filter, or a value in it, of which it is not certain that both sides see it alike."""


def push_documents(
    filters: Sequence[Filter], columns: Sequence[Column], schema: Schema, before: PushedFilters
) -> tuple[PushedFilters, list[Filter]]:
    """Return the filter for documents, and the filters that Spark has to evaluate itself.

    `before` is what is asked of them already.
    """
    known = {column.name: column for column in columns}
    taken: list[Where] = [] if before.where is None else [before.where]
    left: list[Filter] = []
    for filter in filters:
        try:
            where = _where_of(filter, known)
            parse_filter(where, schema)
        except (_DoubtfulError, InvalidInputError):
            left.append(filter)
        else:
            taken.append(where)
    return (PushedFilters.of(("And", taken), schema) if taken else before), left


def push_keys(filters: Sequence[Filter]) -> PushedFilters:
    """Return the keys that filters on the column `key` leave; they do not say all that filters do."""
    start, end = b"", None
    for filter in filters:
        low, high = _filtered_keys(filter)
        start = max(start, low)
        end = high if end is None else end if high is None else min(end, high)
    return PushedFilters(start, end)


def _where_of(filter: Filter, known: dict[str, Column]) -> Where:
    if isinstance(filter, Not):
        if isinstance(filter.child, In) and None in filter.child.value:
            raise _DoubtfulError  # never true
        return "Not", _where_of(filter.child, known)
    column = _filtered_column(filter, known)
    name, kind = column.name, _kind(column)
    match filter:
        case IsNull():
            return name, "IsNull"
        case IsNotNull():
            return "Not", (name, "IsNull")
        case EqualNullSafe(_, None):
            return name, "IsNull"
        case EqualNullSafe(_, value):
            equal = (name, "Eq", _filter_value(kind, value))
            return "And", [("Not", (name, "IsNull")), equal]
        case In(_, values):
            if len(values) > VALUES_MAX:
                raise _DoubtfulError
            return name, "In", [_filter_value(kind, value) for value in values if value is not None]
        case StringStartsWith(_, str(text)) if kind == "string":
            return name, "Glob", _literal(text) + "*"
        case StringEndsWith(_, str(text)) if kind == "string":
            return name, "Glob", "*" + _literal(text)
        case StringContains(_, str(text)) if kind == "string":
            return name, "Glob", "*" + _literal(text) + "*"
    order = _ORDERS.get(type(filter), "")
    if not order or (order != "Eq" and kind not in _ORDERED):
        raise _DoubtfulError
    value = _filter_value(kind, filter.value)  # type: ignore[attr-defined]
    if kind == "float64" and order in _OPPOSITE:
        return "Not", (name, _OPPOSITE[order], value)
    return name, order, value


def _filtered_column(filter: Filter, known: dict[str, Column]) -> Column:
    path: tuple[str, ...] = getattr(filter, "attribute", ())
    if len(path) != 1 or path[0] not in known:
        raise _DoubtfulError
    return known[path[0]]


def _kind(column: Column) -> str:
    return "bytes" if column.type is None else column.type.kind


def _literal(text: str) -> str:
    return like_to_glob("".join(f"\\{char}" if char in "%_\\" else char for char in text), "\\")


def _filter_value(kind: str, value: object) -> object:
    """Return a value of Spark's as a filter of documents takes it; raise if it is not certain."""
    match kind, value:
        case ("string", str()) | ("bool", bool()):
            return value
        case ("bytes", bytes() | bytearray()):
            return bytes(value)
        case ("uuid", str()) if _is_canonical(value):
            return value
        case ("int64" | "uint64", int()) if not isinstance(value, bool):
            return value
        case ("uint64", Decimal()) if value == value.to_integral_value():
            return int(value)
        case ("float64", float()) if not math.isnan(value):
            return value
        case ("datetime", datetime()) if value.tzinfo is not None:
            return value
    raise _DoubtfulError


def _is_canonical(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def _filtered_keys(filter: Filter) -> tuple[bytes, bytes | None]:
    if getattr(filter, "attribute", ()) != ("key",):
        return b"", None
    match filter:
        case EqualTo(_, bytes(key)) | EqualNullSafe(_, bytes(key)):
            return key, key + b"\0"
        case GreaterThan(_, bytes(key)):
            return key + b"\0", None
        case GreaterThanOrEqual(_, bytes(key)):
            return key, None
        case LessThan(_, bytes(key)):
            return b"", key
        case LessThanOrEqual(_, bytes(key)):
            return b"", key + b"\0"
        case In(_, keys) if keys and all(isinstance(key, bytes) for key in keys):
            return min(keys), max(keys) + b"\0"
    return b"", None
