"""What a filter is made of: conditions on attributes, joined by And, Or and Not.

A tree is always in one form, so that two ways to say the same thing compare equal: no And within
an And, no Or within an Or, no Not of a Not, and no operator that a Not of another expresses
(NotEq, NotIn, ...). Values are as they are stored: a datetime is microseconds since 1970 in UTC, a
uuid is its 16 bytes; lists of values are sorted and hold each value once.

Logic is SQL's: a condition on a null attribute is neither true nor false but null, `Not` of null
is null, and what is null at the end does not match.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reef.documents.filter._pattern import Matcher, matcher
from reef.documents.types import Attribute, Type

Value: TypeAlias = str | bytes | int | float | bool
Order: TypeAlias = Literal["Eq", "Lt", "Lte", "Gt", "Gte"]

ID = Attribute(0, "id", Type.parse("string"))  # no attribute has the number 0: it is the key


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
class IsNull:
    """True if the attribute is null, false if it is not: the one condition that is never null."""

    attribute: Attribute


@dataclass(frozen=True)
class Compare:
    """Compares the attribute with a value."""

    order: Order
    attribute: Attribute
    value: Value

    @cached_property
    def scalar(self) -> pa.Scalar:
        return pa.scalar(self.value, self.attribute.type.physical)


@dataclass(frozen=True)
class CompareIncoming:
    """Compares the attribute with the incoming document's `other`, which has the same type."""

    order: Order
    attribute: Attribute
    other: Attribute


@dataclass(frozen=True)
class In:
    """True if the attribute is one of the values."""

    attribute: Attribute
    values: tuple[Value, ...]

    @cached_property
    def value_set(self) -> pa.Array:
        return _value_set(self.values, self.attribute.type.physical)

    @cached_property
    def plain_values(self) -> npt.NDArray[np.object_]:
        return np.array([plain_value(value) for value in self.values], dtype=object)


@dataclass(frozen=True)
class Contains:
    """True if any of the values is an item of the list, or a part of the string."""

    attribute: Attribute
    values: tuple[Value, ...]

    @cached_property
    def value_set(self) -> pa.Array:
        item = self.attribute.type.item
        assert item is not None
        return _value_set(self.values, item.physical)

    @cached_property
    def matcher(self) -> Matcher:
        return matcher("ContainsAny", *map(str, self.values))


@dataclass(frozen=True)
class Match:
    """True if the string matches the pattern: all of it (Glob, IGlob) or a part of it (Regex)."""

    kind: Literal["Glob", "IGlob", "Regex"]
    attribute: Attribute
    pattern: str

    @cached_property
    def matcher(self) -> Matcher:
        return matcher(self.kind, self.pattern)


Node: TypeAlias = And | Or | Not | IsNull | Compare | CompareIncoming | In | Contains | Match


def plain_value(value: Value) -> Value:
    """Return a value as the bounds of blocks are: bytes for text, a number for the rest."""
    if isinstance(value, str):
        return value.encode()
    return int(value) if isinstance(value, bool) else value


def joined(kind: type[And] | type[Or], parts: list[Node]) -> Node:
    """Return the parts under one And or Or; a part of the same kind gives up its own parts."""
    flat: list[Node] = []
    for part in parts:
        flat += part.parts if isinstance(part, kind) else (part,)
    return flat[0] if len(flat) == 1 else kind(tuple(flat))


def negated(node: Node) -> Node:
    """Return the opposite of `node`: null where it is null."""
    return node.part if isinstance(node, Not) else Not(node)


def leaves(node: Node) -> Iterator[IsNull | Compare | CompareIncoming | In | Contains | Match]:
    """Yield the conditions of a tree, from left to right."""
    if isinstance(node, And | Or):
        for part in node.parts:
            yield from leaves(part)
    elif isinstance(node, Not):
        yield from leaves(node.part)
    else:
        yield node


def _value_set(values: tuple[Value, ...], physical: pa.DataType) -> pa.Array:
    if pa.types.is_floating(physical) and 0.0 in values:
        values = (*values, -0.0)  # Arrow looks values up by their bits; zero has two forms
    return pa.array(values, physical)
