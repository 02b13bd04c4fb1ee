"""A document with a value of each type, and all that there is to see of a namespace."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from reef.documents import Documents

WHEN = datetime(2024, 5, 6, 7, 8, 9, 10, tzinfo=UTC)
KEY = uuid.UUID(int=7)
DOCUMENT = {
    "id": "a",
    "title": "x",
    "n": -1,
    "count": 2**63,
    "price": 0.5,
    "flag": True,
    "when": WHEN,
    "key": KEY,
    "raw": b"\0\xff",
    "tags": ["u", "v"],
    "free": {"a": [1, None, {"b": "é"}]},
    "vector": [1.0, 0.5],
}
TYPES = {
    "title": "string",
    "n": "int64",
    "count": "uint64",
    "price": "float64",
    "flag": "bool",
    "when": "datetime",
    "key": "uuid",
    "raw": "bytes",
    "tags": "[]string",
    "free": "json",
    "vector": "vector[2]",
}


def everything(ns: Documents) -> tuple[dict[str, str], list[dict[str, Any]], int]:
    """Return all that a refused write must leave as it is."""
    rows = [row for batch in ns.scan() for row in batch.to_pylist()]
    return ns.schema, rows, ns.lsn
