"""Conditions that a query engine pushes into a scan, as filters of Reef.

They come as an Arrow expression. Arrow has no way to look into one but to serialize it: as a batch
with the literals, whose schema's metadata are the calls, in order, each with its end.

    call=and_kleene   call=less  field_ref=price  literal=0  end=less   ...

A condition that no filter says exactly is left to Arrow, which evaluates the whole expression on the
rows that the filter lets through. So a filter may say less than the expression, never more, and
`Pushed.rest` says what was left: `explain_sql` shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from reef.documents.filter import parse_filter
from reef.documents.query._arrow_metadata import metadata_of
from reef.documents.types import Schema
from reef.errors import InvalidInputError

_ORDERS: Final = {
    "equal": "Eq",
    "not_equal": "NotEq",
    "less": "Lt",
    "less_equal": "Lte",
    "greater": "Gt",
    "greater_equal": "Gte",
}
_JOINS: Final = {"and_kleene": "And", "or_kleene": "Or"}


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
        root, names = _parsed(expression)
    except (LookupError, ValueError, pa.ArrowException):
        return Pushed(None, every, expression)
    parts = list(_conjuncts(root))
    filters = [where for part in parts if (where := _checked(part, schema)) is not None]
    where = ("And", filters) if filters else None
    return Pushed(where, names & every, None if len(filters) == len(parts) else expression)


@dataclass(frozen=True)
class _Call:
    function: str
    arguments: tuple[Any, ...]
    options: dict[str, Any] | None


@dataclass(frozen=True)
class _Field:
    name: str


@dataclass(frozen=True)
class _Literal:
    value: Any


def _parsed(expression: pc.Expression) -> tuple[object, frozenset[str]]:
    """Return the tree of an expression and the names in it. Raises LookupError, ValueError."""
    _, (data, *_) = expression.__reduce__()
    with pa.ipc.open_file(data) as file:
        batch = file.get_batch(0)
    items = metadata_of(batch.schema)
    names = frozenset(value for key, value in items if key == "field_ref")
    rest = iter(items)
    root = _tree(rest, batch)
    if next(rest, None) is not None:
        raise ValueError(f"an expression goes on behind its end: {items}")
    return root, names


def _tree(items: Iterator[tuple[str, str]], literals: pa.RecordBatch) -> object:
    key, value = next(items, ("end", ""))
    match key:
        case "field_ref":
            return _Field(value)
        case "literal":
            return _Literal(literals.column(int(value))[0].as_py())
        case "options":
            return literals.column(int(value))[0].as_py()
        case "call":
            arguments: list[object] = []
            while (argument := _tree(items, literals)) is not None:
                arguments.append(argument)
            options = arguments.pop() if arguments and isinstance(arguments[-1], dict) else None
            return _Call(value, tuple(arguments), options)  # type: ignore[arg-type]
        case "end":
            return None
    raise ValueError(f"an expression with {key!r} is not known")


def _conjuncts(node: object) -> Iterator[object]:
    match node:
        case _Call("and_kleene", (left, right)):
            yield from _conjuncts(left)
            yield from _conjuncts(right)
        case _:
            yield node


def _checked(node: object, schema: Schema) -> tuple[Any, ...] | None:
    """Return the filter that says the same as `node`, if the attributes' types allow for it."""
    where = _where(node)
    if where is None:
        return None
    try:
        parse_filter(where, schema)
    except InvalidInputError:
        return None
    return where


def _where(node: object) -> tuple[Any, ...] | None:
    """Return the filter that says exactly the same as `node`, also of nulls, or None."""
    match node:
        case _Call(function, (left, right)) if function in _JOINS:
            sides = [_where(left), _where(right)]
            return None if None in sides else (_JOINS[function], sides)
        case _Call("invert", (part,)):
            where = _where(part)
            return None if where is None else ("Not", where)
        case _Call("is_null", (_Field(name),), options) if not (options or {}).get("nan_is_null"):
            return (name, "IsNull")
        case _Call("is_valid", (_Field(name),)):
            return ("Not", (name, "IsNull"))
        case _Call(function, (_Field(name), _Literal(value))) if function in _ORDERS:
            return None if value is None else (name, _ORDERS[function], value)
        case _Call(
            "if_else",
            (
                _Call("is_valid", (_Field(name),)),
                _Call("is_in", (_Field(same),), {"value_set": list(values)}),
                _Literal(None),
            ),
        ) if name == same and None not in values:
            return (name, "In", values)
    return None
