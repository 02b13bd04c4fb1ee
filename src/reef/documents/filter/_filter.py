"""Filters: they choose the documents of a read, a condition or a bulk change.

    ("price", "Lt", 10)    ("And", [f, g])    ("Or", [f, g])    ("Not", f)    ("tags", "IsNull")

and the same as SQL text: `price < 10 and tags contains 'x'`. "id" is an attribute like any other,
of type string. A filter is checked against the schema when it is made, in full:
evaluating it later cannot fail because of its content.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from reef.documents.filter._mask import Batches
from reef.documents.filter._nodes import (
    And,
    Comparison,
    Incoming,
    Node,
    Not,
    Or,
    comparisons_of,
    encoded,
    flattened,
    negated,
    tuples_of,
)
from reef.documents.filter._operands import mismatch, stored_bound, stored_value, stored_values
from reef.documents.filter._parse_sql import parse_sql
from reef.documents.filter._pattern import problem_of
from reef.documents.filter._prune import Answers, Blocks, KeyRange, key_range
from reef.documents.types import ID_ATTRIBUTE, Attribute, Schema
from reef.errors import InvalidInputError

__all__ = ["Filter", "Incoming", "Where", "parse_filter"]

Where: TypeAlias = str | Sequence[Any]

NESTING_MAX = 64
CONDITIONS_MAX = 65_536
PARTS_MAX = 1024  # they become one pattern, compiled for each batch

_ORDERS: Final = ("Eq", "Lt", "Lte", "Gt", "Gte")
_NEGATIVE: Final = {
    "NotEq": "Eq",
    "NotIn": "In",
    "NotContains": "Contains",
    "NotGlob": "Glob",
}
_OPERATORS: Final = (
    *_ORDERS,
    *_NEGATIVE,
    *("In", "Contains", "ContainsAny", "Glob", "IGlob", "Regex", "IsNull"),
)
_SUITS: Final[dict[str, tuple[str, ...]]] = {
    "string": _OPERATORS,
    "bool": ("Eq", "NotEq", "In", "NotIn", "IsNull"),
    "list": ("Contains", "NotContains", "ContainsAny", "IsNull"),
    **dict.fromkeys(("vector", "sparse", "json"), ("IsNull",)),
}
_SUITS_REST: Final = (*_ORDERS, "NotEq", "In", "NotIn", "IsNull")
_SHAPES: Final = (
    '("attribute", "Operator", value), ("attribute", "IsNull"), ("And", [filters]), '
    '("Or", [filters]) or ("Not", filter)'
)


class Filter:
    """A checked filter; two are equal if they ask the same of the same attributes."""

    def __init__(self, root: Node) -> None:
        self._root = root
        comparisons = list(comparisons_of(root))
        self.names: frozenset[str] = frozenset(one.attribute.name for one in comparisons)
        """The attributes of stored documents that it asks about."""
        attributes = (one.attribute for one in comparisons)
        self.columns: tuple[str, ...] = tuple(
            dict.fromkeys(
                attribute.column for attribute in attributes if attribute.id != ID_ATTRIBUTE.id
            )
        )
        """The columns that hold them, without the key."""
        self.needs_incoming: bool = any(one.is_incoming for one in comparisons)

    def mask(
        self, batch: pa.RecordBatch, incoming: pa.RecordBatch | None = None
    ) -> pa.BooleanArray:
        """Return which rows match, without nulls; columns that `batch` lacks are null in all rows.

        Raises InvalidInputError if the filter uses incoming values and none are given.
        """
        if self.needs_incoming and incoming is None:
            raise InvalidInputError(
                f"{self!r} uses incoming values, which only the condition of a write has"
            )
        found = Batches(batch, incoming).evaluated(self._root)
        return found.fill_null(False) if found.null_count else found

    def matches(self, batch: pa.RecordBatch, incoming: pa.RecordBatch | None = None) -> Answers:
        """Return what `mask` does, for NumPy."""
        plain = Batches(batch, None).compared_plainly(self._root)
        if plain is not None:
            return plain
        found: Answers = self.mask(batch, incoming).to_numpy(zero_copy_only=False)
        return found

    def may_match(self, stats: pa.RecordBatch, absent: frozenset[str] = frozenset()) -> Answers:
        """Return for each block whether a row of it may match, by its row of a segment's row index.

        `absent` are the columns that the segment has not: they are null in all rows. Other columns
        without bounds in `stats` may hold anything.
        """
        return Blocks(stats, absent).may(self._root)

    def prune(self, index: pa.RecordBatch, names: Collection[str]) -> Answers:
        """Return which blocks of a segment that has the columns `names` can hold a match."""
        return self.may_match(index, frozenset(self.columns) - frozenset(names))

    def key_range(self) -> KeyRange:
        """Return the first key that may match, and one that all that may match are below, or None."""
        return key_range(self._root)

    def encode(self) -> bytes:
        """Return what tells this filter from others, by columns, which a rename does not change."""
        return msgspec.msgpack.encode([1, encoded(self._root)])

    @cached_property
    def where(self) -> tuple[Any, ...]:
        """The filter as tuples, from which `parse_filter` makes an equal one."""
        return tuples_of(self._root)

    def __eq__(self, other: object) -> bool:
        return self._root == other._root if isinstance(other, Filter) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._root)

    def __repr__(self) -> str:
        return f"Filter({_REPR.repr(self.where)})"


_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxtuple, _REPR.maxlist, _REPR.maxstring = 12, 12, 12, 80


def parse_filter(where: Where, schema: Schema) -> Filter:
    """Return the filter that tuples or SQL text say.

    Raises InvalidInputError, which names the attribute, what was expected and what was given, or
    the position in the text.
    """
    return Filter(
        _TupleParser(schema).node(parse_sql(where) if isinstance(where, str) else where, 1)
    )


class _TupleParser:
    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._conditions = 0

    def node(self, where: object, depth: int) -> Node:
        if depth > NESTING_MAX:
            raise InvalidInputError(
                f"the filter is nested more than {NESTING_MAX} deep: flatten it"
            )
        match where:
            case ("And" | "Or" as word, [*parts]):
                nodes = [self.node(part, depth + 1) for part in parts]
                return flattened(And if word == "And" else Or, nodes)
            case ("Not", [*_] as part):
                return negated(self.node(part, depth + 1))
            case (str(name), str(operator), *rest) if len(rest) <= 1:
                return self._condition(name, operator, rest)
        raise InvalidInputError.of("filter", where, f"one of {_SHAPES}")

    def _condition(self, name: str, operator: str, rest: list[object]) -> Node:
        self._conditions += 1
        if self._conditions > CONDITIONS_MAX:
            raise InvalidInputError(
                f"the filter has more than {CONDITIONS_MAX} conditions: use In for lists of values"
            )
        attribute = self._schema.attribute_or_id(name)
        if operator not in _OPERATORS:
            raise InvalidInputError(
                f"the filter has the operator {operator!r}: expected one of {', '.join(_OPERATORS)}"
            )
        if len(rest) != (operator != "IsNull"):
            expected = "no value" if operator == "IsNull" else "a value"
            raise mismatch(attribute, operator, expected, rest[0] if rest else None)
        suits = _SUITS.get(attribute.type.kind, _SUITS_REST)
        if operator in ("Eq", "NotEq") and rest[0] is None:
            is_null = Comparison(attribute, "IsNull")
            return is_null if operator == "Eq" else Not(is_null)
        if operator not in suits:
            raise InvalidInputError(
                f"the filter on attribute {name!r} of type {attribute.type} cannot be used: "
                f"expected one of {', '.join(suits)}, got {operator}"
            )
        if operator == "IsNull":
            return Comparison(attribute, "IsNull")
        if operator in _NEGATIVE:
            return Not(self._positive(attribute, _NEGATIVE[operator], rest[0]))
        return self._positive(attribute, operator, rest[0])

    def _positive(self, attribute: Attribute, operator: str, value: object) -> Comparison:
        type = attribute.type.item or attribute.type
        if operator in _ORDERS:
            if isinstance(value, Incoming):
                return Comparison(attribute, operator, self._incoming(attribute, operator, value))
            return Comparison(attribute, operator, stored_bound(attribute, operator, value))
        if operator in ("In", "ContainsAny"):
            values = stored_values(attribute, operator, value, type)
            if operator == "In":
                is_one = len(values) == 1
                return Comparison(attribute, *(("Eq", values[0]) if is_one else ("In", values)))
            if attribute.type.kind == "string":
                if len(values) > PARTS_MAX:
                    expected = f"at most {PARTS_MAX} parts of a string"
                    raise mismatch(attribute, operator, expected, len(values))
                _check_patterns(attribute, operator, *map(str, values))
            return Comparison(attribute, "Contains", values)
        stored = stored_value(attribute, operator, value, type)
        if operator == "Contains":
            return Comparison(attribute, "Contains", (stored,))
        _check_patterns(attribute, operator, str(stored))
        return Comparison(attribute, operator, stored)

    def _incoming(self, attribute: Attribute, order: str, value: Incoming) -> Attribute:
        other = self._schema.attribute_or_id(value.name)
        if other.type != attribute.type:
            expected = f"an incoming value of type {attribute.type}"
            raise mismatch(attribute, order, expected, f"{other.name}: {other.type}")
        return other


def _check_patterns(attribute: Attribute, operator: str, *patterns: str) -> None:
    problem = problem_of(operator, *patterns)
    if problem:
        raise mismatch(attribute, operator, f"a valid pattern ({problem})", ", ".join(patterns))
