"""Which value of the input cannot be accepted, and why: row, attribute, expected, got."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from reef.documents.types._type import Type
from reef.errors import InvalidInputError

CONVERSION_ERRORS = (pa.ArrowException, ArithmeticError, RecursionError, TypeError, ValueError)

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60
_short.maxlist = _short.maxdict = 4


@dataclass(frozen=True, slots=True)
class InputColumn:
    """The attribute being read, and the row of the input that its i-th value comes from."""

    name: str
    row_of: Callable[[int], int] = int

    def within(self, row_of: Callable[[int], int]) -> InputColumn:
        """Return the spot of values that come from this one's: value i from this one's row_of(i)."""
        outer = self.row_of
        return InputColumn(self.name, lambda i: outer(row_of(i)))

    def refusal(self, i: int, value: object, expected: str, got: str) -> InvalidInputError:
        """Return the error that says that value i is not what was expected. Rows count from 0."""
        return InvalidInputError(
            f"row {self.row_of(i)}, attribute {self.name!r} = {short_text(value)}: "
            f"expected {expected}, got {got}; nothing was written"
        )


class ReadColumn(NamedTuple):
    """A column that was read: its type, and its values as they are stored."""

    type: Type
    values: pa.Array


def short_text(value: Any) -> str:
    """Return a short text of `value` for a message."""
    if isinstance(value, pa.Scalar):
        try:
            value = value.as_py()
        except (
            ValueError,
            OverflowError,
        ):  # a time that Python has no object for, text that is not UTF-8
            return f"a value of type {value.type}"
    return _short.repr(value)


def first_failure(values: Any, convert: Callable[[Any], object]) -> int:
    """Return the index of the first of `values` (which can be sliced) that `convert` fails on."""
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            convert(values[low:middle])
        except CONVERSION_ERRORS:
            high = middle
        else:
            low = middle
    return low


def first_true(mask: pa.Array) -> int | None:
    """Return the index of the first true value of the boolean array `mask`, or None."""
    if not mask.true_count:
        return None
    index: int = mask.index(pa.scalar(True)).as_py()
    return index


def first_valid(column: pa.Array) -> int | None:
    """Return the index of the first value of `column` that is not null, or None."""
    if not column.null_count:
        return 0 if len(column) else None
    return first_true(column.is_valid())
