"""Conditions that a query engine pushes into a scan, as filters of Reef.

They come as an Arrow expression. Arrow has no way to look into one but to serialize it
(`docs/decisions/0010-pushdown.md` says why not as Substrait): as a batch with the literals, whose
schema's metadata are the calls, in order, each with its end.

    call=and_kleene   call=less  field_ref=price  literal=0  end=less   ...

pyarrow gives metadata as a dict, which keeps one value of each key. The Arrow C data interface has
all of them, in a layout that Arrow documents and keeps (`ArrowSchema.metadata`): the number of pairs
as int32, then for each pair the length of the key, the key, the length of the value, the value.

A condition that no filter says exactly is left to Arrow, which evaluates the whole expression on the
rows that the filter lets through. So a filter may say less than the expression, never more, and
`Pushed.rest` says what was left: `explain_sql` shows it.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from reef.documents.filter import parse_filter
from reef.documents.types import Schema
from reef.errors import InvalidInputError

_log = logging.getLogger("reef.documents")

_ORDERS: Final = {
    "equal": "Eq",
    "not_equal": "NotEq",
    "less": "Lt",
    "less_equal": "Lte",
    "greater": "Gt",
    "greater_equal": "Gte",
}
_JOINS: Final = {"and_kleene": "And", "or_kleene": "Or"}
_METADATA_AT = 2 * ctypes.sizeof(ctypes.c_void_p)
"""Where `metadata` is in the struct ArrowSchema: behind `format` and `name`."""

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]

# ("call", function, arguments, options), ("field_ref", name) or ("literal", value)
_Tree: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class Pushed:
    """What was pushed into a scan."""

    where: tuple[Any, ...] | None
    """As a filter: the expression, or less than it."""
    names: frozenset[str]
    """The columns that the expression asks about."""
    rest: pc.Expression | None
    """What is to be evaluated on rows that the filter lets through; None: nothing more."""


def pushed_filter(expression: pc.Expression, schema: Schema) -> Pushed:
    """Return a filter for an expression over columns of documents, as far as there is one."""
    every = frozenset(["id", *schema.names])
    try:
        root, names = _parsed_expression(expression)
    except (LookupError, ValueError, pa.ArrowException) as error:
        _log.warning(
            "cannot read the Arrow expression %s, so no block is pruned: %s", expression, error
        )
        return Pushed(None, every, expression)
    parts = list(_conjuncts(root))
    filters = [where for part in parts if (where := _checked_filter(part, schema)) is not None]
    where = ("And", filters) if filters else None
    return Pushed(where, names & every, None if len(filters) == len(parts) else expression)


def _parsed_expression(expression: pc.Expression) -> tuple[_Tree, frozenset[str]]:
    """Return the tree of an expression and the names in it. Raises LookupError, ValueError."""
    _, (data, *_) = expression.__reduce__()
    with pa.ipc.open_file(data) as file:
        batch = file.get_batch(0)
    items = _metadata_of(batch.schema)
    names = frozenset(value for key, value in items if key == "field_ref")
    rest = iter(items)
    root = _tree(rest, batch)
    if root is None or next(rest, None) is not None:
        raise ValueError(f"an expression does not end where it should: {items}")
    return root, names


def _metadata_of(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return every key and value of a schema's metadata, in order, repeated keys among them."""
    capsule = schema.__arrow_c_schema__()  # it owns what is read here
    at = ctypes.c_void_p.from_address(_pointer_of(capsule, b"arrow_schema") + _METADATA_AT).value
    if at is None:
        return []
    count = ctypes.c_int32.from_address(at).value
    at += 4
    texts: list[str] = []
    for _ in range(2 * count):
        size = ctypes.c_int32.from_address(at).value
        texts.append(ctypes.string_at(at + 4, size).decode())
        at += 4 + size
    return list(zip(texts[::2], texts[1::2], strict=True))


def _tree(items: Iterator[tuple[str, str]], literals: pa.RecordBatch) -> _Tree | None:
    """Return what comes next; None is the end of a call. Raises ValueError."""
    key, value = next(items, ("end", ""))
    match key:
        case "field_ref":
            return key, value
        case "literal" | "options":
            return key, literals.column(int(value))[0].as_py()
        case "call":
            arguments: list[_Tree] = []
            options: dict[str, Any] = {}
            while (part := _tree(items, literals)) is not None:
                if part[0] == "options":
                    options = part[1]
                else:
                    arguments.append(part)
            return key, value, arguments, options
        case "end":
            return None
    raise ValueError(f"an expression with {key!r} is not known")


def _conjuncts(node: _Tree) -> Iterator[_Tree]:
    match node:
        case ("call", "and_kleene", [left, right], _):
            yield from _conjuncts(left)
            yield from _conjuncts(right)
        case _:
            yield node


def _checked_filter(node: _Tree, schema: Schema) -> tuple[Any, ...] | None:
    """Return the filter that says the same as `node`, if the attributes' types allow for it."""
    where = _filter_of(node)
    if where is None:
        return None
    try:
        parse_filter(where, schema)
    except InvalidInputError:
        return None
    return where


def _filter_of(node: _Tree) -> tuple[Any, ...] | None:
    """Return the filter that says exactly the same as `node`, also of nulls, or None."""
    match node:
        case ("call", function, [left, right], _) if function in _JOINS:
            sides = [_filter_of(left), _filter_of(right)]
            return None if None in sides else (_JOINS[function], sides)
        case ("call", "invert", [part], _):
            where = _filter_of(part)
            return None if where is None else ("Not", where)
        case ("call", "is_null", [("field_ref", name)], options) if not options.get("nan_is_null"):
            return (name, "IsNull")
        case ("call", "is_valid", [("field_ref", name)], _):
            return ("Not", (name, "IsNull"))
        case ("call", function, [("field_ref", name), ("literal", value)], _) if (
            function in _ORDERS
        ):
            return None if value is None else (name, _ORDERS[function], value)
        case (
            "call",
            "if_else",
            [
                ("call", "is_valid", [("field_ref", name)], _),
                ("call", "is_in", [("field_ref", same)], {"value_set": list(values)}),
                ("literal", None),
            ],
            _,
        ) if name == same and None not in values:
            return (name, "In", values)
    return None
