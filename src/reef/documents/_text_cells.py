"""Values of documents from the text of a file: a cell of CSV, or what JSON has as text."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any

CELL_ERRORS = (ValueError, KeyError, TypeError, RecursionError)
"""What a reader raises for text that it cannot read."""

_INTEGER = re.compile(r"[+-]?[0-9]+")
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


def reader_of(type: str) -> Callable[[str], Any] | None:
    """Return what reads a cell of a type; None: the text is taken as it is."""
    if type in ("string", "datetime", "uuid"):
        return None
    if type in ("int64", "uint64"):
        return _integer
    if type == "float64":
        return _number
    if type == "bool":
        return lambda text: _BOOLEANS[text.lower()]
    if type == "bytes":
        return lambda text: base64.b64decode(text, validate=True)
    import msgspec

    decode = msgspec.json.Decoder().decode
    if type == "[]bytes":
        return lambda text: [base64.b64decode(item, validate=True) for item in decode(text)]
    return decode


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _number(text: str) -> float:
    if "_" in text:
        raise ValueError(text)
    return float(text)
