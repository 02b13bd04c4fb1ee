"""What a filter is made of: comparisons of attributes, joined by And, Or and Not.

A comparison is what callers write: an attribute, an operator and a value.

A tree is always in one form, so that two ways to say the same thing compare equal: no And within
an And, no Or within an Or, no Not of a Not, no operator that a Not of another expresses (NotEq,
NotIn, ...), and no ContainsAny, which is Contains of several values. Values are as they are stored:
a datetime is microseconds since 1970 in UTC, a uuid is its 16 bytes; lists of values are sorted and
hold each value once.

Logic is SQL's: a comparison of a null attribute is neither true nor false but null, `Not` of null
is null, and what is null at the end does not match.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reef.documents.filter._operands import Value, shown_value
from reef.documents.filter._pattern import Matcher, matcher
from reef.documents.types import Attribute

_NEGATABLE = ("Eq", "In", "Contains", "Glob")


@dataclass(frozen=True)
class Incoming:
    """In the condition of a write: the value that the incoming document has for an attribute."""

    name: str


@dataclass(frozen=True)
class And:
    """True if all parts are; without parts it is true."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Or:
    """True if any part is; without parts it is false."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Not:
    """True if its part is false."""

    part: Node


@dataclass(frozen=True)
class Comparison:
    """What holds of one attribute; what `value` is depends on the operator.

    IsNull                None; the one comparison that is never null
    Eq Lt Lte Gt Gte      a value, or an attribute of the incoming document, of the same type
    In                    values: the attribute is one of them
    Contains              values: any is an item of the list, or a part of the string
    Glob IGlob Regex      a pattern, for all of the string (globs) or a part of it
    """

    attribute: Attribute
    operator: str
    value: Value | tuple[Value, ...] | Attribute | None = None

    @property
    def is_incoming(self) -> bool:
        """Whether it compares with the incoming document."""
        return isinstance(self.value, Attribute)

    @cached_property
    def scalar(self) -> pa.Scalar:
        """The value, as Arrow compares with it."""
        return pa.scalar(self.value, self.attribute.type.physical)

    @cached_property
    def value_set(self) -> pa.Array:
        """The values, as Arrow looks them up."""
        physical = (self.attribute.type.item or self.attribute.type).physical
        values = self.values
        if pa.types.is_floating(physical) and 0.0 in values:
            values = (*values, -0.0)  # Arrow looks values up by their bits; zero has two forms
        return pa.array(values, physical)

    @cached_property
    def matcher(self) -> Matcher:
        """What tells which strings match."""
        if self.operator == "Contains":
            return matcher("ContainsAny", *map(str, self.values))
        return matcher(self.operator, str(self.value))

    @property
    def values(self) -> tuple[Value, ...]:
        """The values of In and Contains."""
        assert isinstance(self.value, tuple)
        return self.value

    @cached_property
    def plain_values(self) -> npt.NDArray[np.object_]:
        """The values as the bounds of blocks are."""
        return np.array([plain_value(value) for value in self.values], dtype=object)


Node: TypeAlias = And | Or | Not | Comparison


def plain_value(value: Value) -> Value:
    """Return a value as the bounds of blocks are: bytes for text, a number for the rest."""
    if isinstance(value, str):
        return value.encode()
    return int(value) if isinstance(value, bool) else value


def flattened(kind: type[And] | type[Or], parts: list[Node]) -> Node:
    """Return the parts under one And or Or; a part of the same kind gives up its own parts."""
    flat: list[Node] = []
    for part in parts:
        flat += part.parts if isinstance(part, kind) else (part,)
    return flat[0] if len(flat) == 1 else kind(tuple(flat))


def negated(node: Node) -> Node:
    """Return the opposite of `node`: null where it is null."""
    return node.part if isinstance(node, Not) else Not(node)


def comparisons_of(node: Node) -> Iterator[Comparison]:
    """Yield the comparisons of a tree, from left to right."""
    if isinstance(node, And | Or):
        for part in node.parts:
            yield from comparisons_of(part)
    elif isinstance(node, Not):
        yield from comparisons_of(node.part)
    else:
        yield node


def tuples_of(node: Node) -> tuple[Any, ...]:
    """Return the tuples that say `node`, with values as a caller would write them."""
    match node:
        case And(parts) | Or(parts):
            return type(node).__name__, [tuples_of(part) for part in parts]
        case Not(part):
            inner = tuples_of(part)
            if isinstance(part, Comparison) and inner[1] in _NEGATABLE:
                return inner[0], f"Not{inner[1]}", *inner[2:]
            return "Not", inner
    attribute, operator, value = node.attribute, node.operator, node.value
    kind = attribute.type.item or attribute.type
    if value is None:
        return attribute.name, operator
    if isinstance(value, Attribute):
        return attribute.name, operator, Incoming(value.name)
    if not isinstance(value, tuple):
        return attribute.name, operator, shown_value(value, kind)
    shown = [shown_value(one, kind) for one in value]
    if operator == "Contains" and len(shown) == 1:
        return attribute.name, operator, *shown
    return attribute.name, "ContainsAny" if operator == "Contains" else operator, shown


def encoded(node: Node) -> list[Any]:
    """Return `node` as lists, text, numbers and bytes, by columns and in stored values."""
    match node:
        case And(parts) | Or(parts):
            return [type(node).__name__, *map(encoded, parts)]
        case Not(part):
            return ["Not", encoded(part)]
        case Comparison(attribute, operator, None):
            return [operator, attribute.column]
        case Comparison(attribute, operator, Attribute() as other):
            return [f"{operator}Incoming", attribute.column, other.column]
        case Comparison(attribute, operator, value):
            return [operator, attribute.column, value]
