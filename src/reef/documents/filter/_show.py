"""A filter as tuples, for people, and as plain lists, for digests and the log."""

from __future__ import annotations

from typing import Any

from reef.documents.filter._nodes import (
    And,
    Compare,
    CompareIncoming,
    Contains,
    In,
    Incoming,
    IsNull,
    Match,
    Node,
    Not,
    Or,
    Value,
)
from reef.documents.filter._values import shown_value
from reef.documents.types import Attribute

_NEGATABLE = ("Eq", "In", "Contains", "Glob")


def filter_tuples(node: Node) -> tuple[Any, ...]:
    """Return the tuples that say `node`."""
    match node:
        case And(parts):
            return "And", [filter_tuples(part) for part in parts]
        case Or(parts):
            return "Or", [filter_tuples(part) for part in parts]
        case Not(part):
            inner = filter_tuples(part)
            is_condition = not isinstance(part, And | Or)
            if is_condition and inner[1] in _NEGATABLE:
                return inner[0], f"Not{inner[1]}", *inner[2:]
            return "Not", inner
        case IsNull(attribute):
            return attribute.name, "IsNull"
        case Compare(order, attribute, value):
            return attribute.name, order, shown_value(value, attribute.type)
        case CompareIncoming(order, attribute, other):
            return attribute.name, order, Incoming(other.name)
        case In(attribute, values):
            return attribute.name, "In", _shown_values(attribute, values)
        case Contains(attribute, (value,)):
            return attribute.name, "Contains", _shown_values(attribute, (value,))[0]
        case Contains(attribute, values):
            return attribute.name, "ContainsAny", _shown_values(attribute, values)
        case Match(kind, attribute, pattern):
            return attribute.name, kind, pattern


def encoded(node: Node) -> list[Any]:
    """Return `node` as lists, text, numbers and bytes, by columns and in stored values."""
    match node:
        case And(parts):
            return ["And", *map(encoded, parts)]
        case Or(parts):
            return ["Or", *map(encoded, parts)]
        case Not(part):
            return ["Not", encoded(part)]
        case IsNull(attribute):
            return ["IsNull", attribute.column]
        case Compare(order, attribute, value):
            return [order, attribute.column, value]
        case CompareIncoming(order, attribute, other):
            return [f"{order}Incoming", attribute.column, other.column]
        case In(attribute, values):
            return ["In", attribute.column, values]
        case Contains(attribute, values):
            return ["Contains", attribute.column, values]
        case Match(kind, attribute, pattern):
            return [kind, attribute.column, pattern]


def _shown_values(attribute: Attribute, values: tuple[Value, ...]) -> list[object]:
    type = attribute.type.item or attribute.type
    return [shown_value(value, type) for value in values]
