"""The order of a query's rows: by values, then by id. NaN comes after numbers, null after all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from reef.documents.types import Attribute, Schema
from reef.errors import InvalidInputError
from reef.format import KEY

OrderBy: TypeAlias = str | tuple[str, str] | Sequence[str | tuple[str, str]]
ORDERED_KINDS = ("string", "int64", "uint64", "float64", "bool", "datetime", "uuid", "bytes")

_DIRECTIONS = ("asc", "desc")
_RULE = (
    'the name of an attribute, ("name", "asc"), ("name", "desc"), or a list of those; values that '
    f"have an order are of type {', '.join(ORDERED_KINDS)}"
)
# Rows that wait before the best of them are chosen, beside a multiple of those that are kept.
_WAITING_ROWS = 16_384
_WAITING_BYTES = 32 << 20


@dataclass(frozen=True)
class Term:
    """An attribute to order by."""

    attribute: Attribute
    is_descending: bool


@dataclass(frozen=True)
class Order:
    """Attributes to order by, then the id."""

    terms: tuple[Term, ...] = ()
    is_id_descending: bool = False

    @staticmethod
    def of(order_by: OrderBy | None, schema: Schema) -> Order:
        """Return the requested order (None: by id). Raises InvalidInputError."""
        terms: dict[str, Term] = {}
        for name, is_descending in _terms(order_by):
            if name == "id":  # no two are the same: nothing after it matters
                return Order(tuple(terms.values()), is_descending)
            attribute = schema.attribute(name)
            if attribute.type.kind not in ORDERED_KINDS:
                raise InvalidInputError(
                    f"order_by = {name!r} is of type {attribute.type}, which has no "
                    f"order: expected {_RULE}"
                )
            terms.setdefault(name, Term(attribute, is_descending))
        return Order(tuple(terms.values()))

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that hold the values to order by, without the key."""
        return tuple([term.attribute.column for term in self.terms])

    def sorted(self, rows: pa.Table | pa.RecordBatch, limit: int | None = None) -> pa.Array:
        """Return the numbers of `rows` in order, of the first `limit` of them."""
        flags = [*(term.is_descending for term in self.terms), self.is_id_descending]
        names = (*self.columns, KEY)
        keys = [(n, "descending" if d else "ascending") for n, d in zip(names, flags, strict=True)]
        return pc.sort_indices(rows, sort_keys=keys).slice(0, limit)

    def position(self, rows: pa.RecordBatch, row: int) -> list[Any]:
        """Return the position of a row: the stored values that it is ordered by, and its key."""
        values = [_cursor_value(rows.column(name)[row]) for name in self.columns]
        return [*values, rows.column(KEY)[row].as_py()]

    def check_position(self, position: object) -> list[Any]:
        """Return `position` if `Order.position` could have made it. Raises ValueError."""
        if not isinstance(position, list) or len(position) != len(self.terms) + 1:
            raise ValueError("not a position of this order")
        for term, value in zip(self.terms, position[:-1], strict=True):
            _scalar(value, term.attribute)
        if not isinstance(position[-1], bytes):
            raise ValueError("not a position of this order")
        return position

    def behind(self, rows: pa.RecordBatch, position: Sequence[Any]) -> pa.BooleanArray:
        """Return which rows come after `position`. All columns of the order are there."""
        keys = rows.column(KEY)
        last = pa.scalar(position[-1], pa.binary())
        behind = pc.less(keys, last) if self.is_id_descending else pc.greater(keys, last)
        for term, value in reversed([*zip(self.terms, position[:-1], strict=True)]):
            after, same = _after_and_equal(rows.column(term.attribute.column), term, value)
            behind = pc.or_(after, pc.and_(same, behind))
        return behind


class FirstRows:
    """The first `limit` rows in an order, of any number of them that are shown to it."""

    def __init__(self, order: Order, limit: int) -> None:
        self._order = order
        self._limit = limit
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0
        self._nbytes = 0
        self._worst: list[Any] | None = None
        """Where the last of the first `limit` stood when they were last chosen."""

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows; all have the same columns."""
        if self._worst is not None:
            rows = rows.filter(pc.invert(self._order.behind(rows, self._worst)))
        if not rows.num_rows:
            return
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self._nbytes += rows.nbytes
        if self._rows > 2 * self._limit and (
            self._rows > 2 * self._limit + _WAITING_ROWS or self._nbytes > _WAITING_BYTES
        ):
            self._choose()

    def _choose(self) -> pa.RecordBatch:
        rows = pa.concat_batches(self._waiting)
        rows = rows.take(self._order.sorted(rows, self._limit))
        self._waiting, self._rows, self._nbytes = [rows], rows.num_rows, rows.nbytes
        if rows.num_rows == self._limit:
            self._worst = self._order.position(rows, rows.num_rows - 1)
        return rows

    def rows(self) -> pa.RecordBatch | None:
        """Return the first rows, in order; None if there were none at all."""
        return self._choose() if self._waiting else None


def _terms(order_by: OrderBy | None) -> list[tuple[str, bool]]:
    if order_by is None:
        return []
    if isinstance(order_by, str | tuple):
        return [_term(order_by)]
    if not isinstance(order_by, list):
        raise InvalidInputError.of("order_by", order_by, _RULE)
    return [_term(term) for term in order_by]


def _term(term: object) -> tuple[str, bool]:
    match term:
        case str(name):
            return name, False
        case (str(name), str(direction)) if direction.lower() in _DIRECTIONS:
            return name, direction.lower() == "desc"
    raise InvalidInputError.of("order_by", term, _RULE)


def _after_and_equal(column: pa.Array, term: Term, value: Any) -> tuple[pa.Array, pa.Array]:
    """Return which values come after `value`, and which are the same to the order."""
    is_null = column.is_null()
    if value is None:
        return pc.and_(is_null, False), is_null
    is_float = pa.types.is_floating(column.type)
    if is_float and math.isnan(value):
        return is_null, pc.is_nan(column).fill_null(False)
    scalar = _scalar(value, term.attribute)
    compare = pc.less if term.is_descending else pc.greater
    after = pc.or_(compare(column, scalar).fill_null(False), is_null)
    if is_float:
        after = pc.or_(after, pc.is_nan(column).fill_null(False))
    return after, pc.equal(column, scalar).fill_null(False)


def _cursor_value(scalar: pa.Scalar) -> Any:
    """Return a value as a number, text or bytes."""
    return scalar.value if pa.types.is_timestamp(scalar.type) else scalar.as_py()


def _scalar(value: Any, attribute: Attribute) -> pa.Scalar:
    """Return a value that `_cursor_value` made. Raises ValueError if it is none of that attribute."""
    types = {"string": str, "float64": float, "bool": bool, "uuid": bytes, "bytes": bytes}
    expected = types.get(attribute.type.kind, int)
    if value is not None and type(value) is not expected:
        raise ValueError(f"{value!r} is no {attribute.type}")
    try:
        return pa.scalar(value, attribute.type.physical)
    except (pa.ArrowException, OverflowError) as error:
        raise ValueError(str(error)) from error
