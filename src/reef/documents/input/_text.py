"""Documents from the text of a file: a line of JSON, a cell of CSV, or what JSON has as text."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable
from typing import Any

import msgspec

from reef.errors import InvalidInputError

CELL_ERRORS = (ValueError, KeyError, TypeError, RecursionError)
"""What a reader raises for text that it cannot read."""

LIKE_A_NAME = r"^\s*(\+|-?0[0-9])"
"""Digits that are a name as often as a number: 00501, +4930123456."""

_NUMBERS = ("int64", "uint64", "float64")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_LIKE_A_NAME = re.compile(LIKE_A_NAME)
_DECODE = msgspec.json.Decoder().decode
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


def parse_document(line: str, place: str) -> dict[str, Any]:
    """Return the object that a line is. Raises InvalidInputError, which begins with `place`."""
    try:
        row = _DECODE(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInputError(f"{place} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise InvalidInputError(
            f"{place}: expected a JSON object, which is a document, got {type(row).__name__}"
        )
    return row


def cell_reader(type: str, *, is_declared: bool) -> Callable[[str], Any] | None:
    """Return a reader of cells of a type; None: the text is kept unchanged.

    Numbers that may be codes are refused unless their type is declared: the digits that they would
    lose could not be restored.
    """
    if type in ("string", "datetime", "uuid"):
        return None
    if type in _NUMBERS:
        read = _parse_number if type == "float64" else _integer
        return read if is_declared else lambda text: read(_surely_a_number(text, type))
    if type == "bool":
        return lambda text: _BOOLEANS[text.lower()]
    if type == "bytes":
        return lambda text: base64.b64decode(text, validate=True)
    if type == "[]bytes":
        return lambda text: [base64.b64decode(item, validate=True) for item in _DECODE(text)]
    return _DECODE


def cell_failure(type: str, error: Exception) -> str:
    """Return what a cell was instead of a value of `type`, by what its reader raised."""
    if isinstance(error, _NotANumber):
        return str(error)
    return "text" if type in (*_NUMBERS, "bool") else f"text ({error})"


class _NotANumber(ValueError):
    """Why text is not read as a number, for the user."""


def _surely_a_number(text: str, type: str) -> str:
    if _LIKE_A_NAME.match(text):
        raise _NotANumber(
            "text that loses zeros or a sign as a number: leave them out, or declare by --schema "
            f"that it is {type}, or string, before it is first written"
        )
    return text


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _parse_number(text: str) -> float:
    if "_" in text:
        raise ValueError(text)
    number = float(text)
    if math.isinf(number) and any(map(str.isdigit, text)):
        raise _NotANumber("a number that is too large")
    return number
