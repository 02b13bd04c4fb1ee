"""Values in filters: checked against the type of the attribute and brought into its stored form.

Nothing is rounded: a value that the type cannot hold exactly is refused. Only a bound for integers
may be a fraction, because it stands for a whole number: `< 1.5` is `< 2`.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Final, TypeAlias
from uuid import UUID

import numpy as np
import pyarrow as pa

from reef.documents.types import MICROSECONDS_MAX, MICROSECONDS_MIN, Attribute, Type
from reef.errors import InvalidInputError

VALUES_MAX = 65_536

Value: TypeAlias = str | bytes | int | float | bool

_BELOW_MICROSECONDS = re.compile(r"[.,]\d{7}")
_FINER = ("ns", "ps", "fs", "as")  # than microseconds, for NumPy
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIME = (
    "a datetime, a date or ISO 8601 text, of at most microseconds, in the years 1 to 9999 of UTC"
)
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def stored_value(attribute: Attribute, operator: str, value: object, type: Type) -> Value:
    """Return `value` as a value of `type` is stored. Raises InvalidInputError if it is none."""
    check, expected = _CHECKS[type.kind]
    plain = _python_value(value)
    found = check(plain)
    if found is None:
        raise mismatch(attribute, operator, expected, value)
    return found


def stored_bound(attribute: Attribute, order: str, value: object) -> Value:
    """Return the stored form of what an attribute is compared with. Raises InvalidInputError."""
    plain = _python_value(value)
    is_whole = attribute.type.kind in ("int64", "uint64")
    if is_whole and order != "Eq" and isinstance(plain, float) and math.isfinite(plain):
        plain = math.ceil(plain) if order in ("Lt", "Gte") else math.floor(plain)
    return stored_value(attribute, order, plain, attribute.type)


def stored_values(
    attribute: Attribute, operator: str, values: object, type: Type
) -> tuple[Value, ...]:
    """Return the stored form of a list of values, sorted, each once. Raises InvalidInputError."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        values = list(values)  # some have times that Python does not
    if not isinstance(values, list | tuple | set | frozenset | np.ndarray):
        raise mismatch(
            attribute, operator, f"a list of values, each {_CHECKS[type.kind][1]}", values
        )
    if len(values) > VALUES_MAX:
        raise mismatch(attribute, operator, f"at most {VALUES_MAX} values", len(values))
    if isinstance(values, np.ndarray):
        values = [*values.ravel()] if values.dtype.kind == "M" else values.ravel().tolist()
    return tuple(sorted({stored_value(attribute, operator, value, type) for value in values}))


def shown_value(value: Value, type: Type) -> object:
    """Return a stored value as a user would write it."""
    if type.kind == "datetime":
        assert isinstance(value, int)
        return (_EPOCH + value * _MICROSECOND).isoformat()
    if type.kind == "uuid":
        assert isinstance(value, bytes)
        return str(UUID(bytes=value))
    return value


def mismatch(attribute: Attribute, operator: str, expected: str, got: object) -> InvalidInputError:
    """Return the error for a value or an operator that does not suit an attribute."""
    return InvalidInputError(
        f"the filter on attribute {attribute.name!r} of type {attribute.type} cannot be used: "
        f"{operator} expected {expected}, got {_SHORT.repr(got)} ({type(got).__name__})"
    )


def time_of(text: str) -> datetime:
    """Return the time that ISO 8601 text says. Raises ValueError, also below microseconds."""
    if _BELOW_MICROSECONDS.search(text):
        raise ValueError(text)
    return datetime.fromisoformat(text)


def _python_value(value: object) -> object:
    if isinstance(value, np.datetime64) and np.datetime_data(value.dtype)[0] in _FINER:
        whole = value.astype("datetime64[us]")  # of others, Python's is a number
        return whole.item() if whole == value else value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, pa.Scalar):
        try:
            return value.as_py()
        except (ValueError, OverflowError):  # a time that Python does not have
            return value
    return value


def _string(value: object) -> str | None:
    if not isinstance(value, str):
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    return str(value)


def _whole_number(low: int, high: int) -> Callable[[object], int | None]:
    def check(value: object) -> int | None:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            return None
        return int(value) if low <= value <= high else None

    return check


def _float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found + 0.0 if found == value else None  # NaN differs from itself; -0.0 becomes 0.0


def _bool(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _datetime(value: object) -> int | None:
    if getattr(value, "nanosecond", 0):
        return None  # pandas': nothing is rounded
    if isinstance(value, str):
        try:
            value = time_of(value)
        except ValueError:
            return None
    if not isinstance(value, date):
        return None
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    found: object = (value - _EPOCH) // _MICROSECOND
    if not isinstance(found, int):
        return None  # pandas has a datetime that is no time
    return found if MICROSECONDS_MIN <= found <= MICROSECONDS_MAX else None


def _uuid(value: object) -> bytes | None:
    if isinstance(value, str):
        try:
            value = UUID(value)
        except ValueError:
            return None
    return value.bytes if isinstance(value, UUID) else None


def _bytes_value(value: object) -> bytes | None:
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else None


_CHECKS: Final[dict[str, tuple[Callable[[object], Value | None], str]]] = {
    "string": (_string, "text (str, valid as UTF-8)"),
    "int64": (_whole_number(-(2**63), 2**63 - 1), "a whole number from -2^63 to 2^63-1"),
    "uint64": (_whole_number(0, 2**64 - 1), "a whole number from 0 to 2^64-1"),
    "float64": (_float, "a number that a float64 holds exactly, not NaN"),
    "bool": (_bool, "True or False"),
    "datetime": (_datetime, _TIME),
    "uuid": (_uuid, "a uuid.UUID or its text"),
    "bytes": (_bytes_value, "bytes"),
}
