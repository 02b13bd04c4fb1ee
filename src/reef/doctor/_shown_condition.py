"""Conditions of writes, as the log has them, in the words of those who gave them.

The log names an attribute by its column, which stays when the attribute is renamed. Here it has the
name that it has now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa

from reef.doctor._newest_readable import newest_readable_manifest
from reef.errors import NotFoundError, UnreadableError
from reef.format import LogKind, decode_log, decode_schema, log_key
from reef.gc import read_log_kind
from reef.log import list_slots
from reef.store import Store

_NAME = b"reef:name"
_INCOMING = "Incoming"
_SLOTS_MAX = 1000  # one small GET each


def attribute_names(store: Store, namespace: str) -> dict[str, str]:
    """Return the names that attributes have now, by column, as far as that can be read.

    The newest schema is that of the unfolded log, or else the manifest's.
    """
    listed = store.list(f"namespaces/{namespace}/manifest/")
    head, _ = newest_readable_manifest(store, listed)
    if head is None:
        return {}
    schema = decode_schema(pa.py_buffer(head.schema), "", 0) if head.schema else pa.schema([])
    unfolded = [slot for slot in list_slots(store, namespace).items() if slot[0] >= head.wal_floor]
    for slot, size in reversed(unfolded[-_SLOTS_MAX:]):
        found = _schema_in(store, log_key(namespace, slot), slot, size)
        if found is not None:
            schema = found
            break
    named = {f.name: (f.metadata or {}).get(_NAME, b"").decode(errors="replace") for f in schema}
    return {"a0": "id", **{column: name for column, name in named.items() if name}}


def _schema_in(store: Store, key: str, slot: int, size: int) -> pa.Schema | None:
    """Return the schema that a log object brings, None if it brings none or cannot be read."""
    try:
        if read_log_kind(store, key, slot=slot, size=size) is LogKind.SCHEMA:
            return decode_log(store.get(key), key=key, slot=slot).records[-1].schema
    except (NotFoundError, UnreadableError):
        pass
    return None


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
