"""Conditions of writes, as the log has them, in the words of those who gave them.

The log names an attribute by its column, which stays when the attribute is renamed. Here it has the
name that it has now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa

from reef.format import decode_schema

_NAME = b"reef:name"
_INCOMING = "Incoming"


def attribute_names(schema: bytes) -> dict[str, str]:
    """Return the names of attributes by their columns, from the schema in a manifest."""
    if not schema:
        return {}
    fields = list(decode_schema(pa.py_buffer(schema), "", 0))
    named = {f.name: (f.metadata or {}).get(_NAME, b"").decode(errors="replace") for f in fields}
    return {"a0": "id", **{column: name for column, name in named.items() if name}}


def decode_condition(record: bytes, names: Mapping[str, str]) -> Any:
    """Return a condition as its writer gave it. Raises ValueError for what is none."""
    try:
        match msgspec.msgpack.decode(record):
            case [1, tree]:
                return _where(tree, names)
            case other:
                return other
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _where(node: Any, names: Mapping[str, str]) -> Any:
    match node:
        case ["And" | "Or" as kind, *parts]:
            return [kind, [_where(part, names) for part in parts]]
        case ["Not", list(part)]:
            return ["Not", _where(part, names)]
        case [str(operator), str(column)]:
            return [_name(column, names), operator]
        case [str(operator), str(column), str(other)] if operator.endswith(_INCOMING):
            return [
                _name(column, names),
                operator.removesuffix(_INCOMING),
                f"incoming.{_name(other, names)}",
            ]
        case [str(operator), str(column), value]:
            return [_name(column, names), operator, value]
    return node


def _name(column: str, names: Mapping[str, str]) -> str:
    return names.get(column, f"{column} (since dropped)" if names else column)
