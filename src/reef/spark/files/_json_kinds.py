"""What values of JSON are, summed up: small, and put together from many tasks into one type.

The type is the one that `read_values` finds if it is given all of the values at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec

from reef.documents.input import SPARSE_KEYS, is_vector_name, may_be_sparse
from reef.documents.types import Type
from reef.errors import InvalidInputError

_INT64_MIN, _INT64_MAX, _UINT64_MAX = -(2**63), 2**63 - 1, 2**64 - 1
_NUMBERS = {"int", "float"}
_NESTED = {"dict", "list"}
_NULL = "NoneType"
_SCALARS = {"bool": "bool", "float": "float64", "str": "string"}


class Kinds(msgspec.Struct, frozen=True):
    """The kinds of the values of an attribute, as far as they tell its type."""

    names: frozenset[str] = frozenset()
    """Python's: NoneType, bool, int, float, str, list, dict."""
    has_negative: bool = False
    """Whether an integer is below zero; and whether one is beyond int64, or beyond any type."""
    has_wide: bool = False
    has_huge: bool = False
    are_sparse: bool = True
    """Whether all objects have the keys of sparse vectors; and whether one may be such a vector."""
    may_be_sparse: bool = False
    items: Kinds | None = None
    """Of what is in the lists."""
    length: int = 0
    """Of the first list that is not empty."""

    @staticmethod
    def of(values: Sequence[Any]) -> Kinds:
        """Sum up values as a decoder of JSON gives them."""
        names = frozenset(kind.__name__ for kind in set(map(type, values)))
        low = high = 0
        if "int" in names:
            numbers = [value for value in values if type(value) is int]
            low, high = min(numbers), max(numbers)
        objects = [value for value in values if type(value) is dict] if "dict" in names else []
        items, length = None, 0
        if "list" in names:
            lists = [value for value in values if value and type(value) is list]
            items = Kinds.of(list(chain.from_iterable(lists)))
            length = len(lists[0]) if lists else 0
        return Kinds(
            names,
            low < 0,
            low < _INT64_MIN or high > _INT64_MAX,
            low < _INT64_MIN or high > _UINT64_MAX,
            all(value.keys() == SPARSE_KEYS for value in objects),
            any(map(may_be_sparse, objects)),
            items,
            length,
        )

    def merged(self, other: Kinds) -> Kinds:
        """Return what both are together; `other` comes later."""
        items = self.items or other.items
        if self.items is not None and other.items is not None:
            items = self.items.merged(other.items)
        return Kinds(
            self.names | other.names,
            self.has_negative or other.has_negative,
            self.has_wide or other.has_wide,
            self.has_huge or other.has_huge,
            self.are_sparse and other.are_sparse,
            self.may_be_sparse or other.may_be_sparse,
            items,
            self.length or other.length,
        )

    def type(self, name: str) -> Type | None:
        """Return the type that attribute `name` has by its values, None if they do not tell it.

        Raises InvalidInputError if no type holds all of them.
        """
        kinds = self.names - {_NULL}
        if not kinds:
            return None
        if kinds == {"list"}:
            return self._type_of_lists(name)
        if kinds == {"dict"}:
            return Type.parse("sparse" if self.are_sparse and self.may_be_sparse else "json")
        if "dict" in kinds:
            return Type.parse("json")
        if kinds == _NUMBERS:
            return Type.parse("float64")
        if len(kinds) > 1:
            raise InvalidInputError(
                f"attribute {name!r} has values of several kinds, "
                f"{' and '.join(sorted(kinds))}: give values of one kind, or declare it "
                "as json, which holds any"
            )
        (kind,) = kinds
        return Type.parse(_SCALARS.get(kind) or self._integer(name))

    def _type_of_lists(self, name: str) -> Type | None:
        assert self.items is not None
        kinds = self.items.names - {_NULL}
        if kinds & _NESTED or (len(kinds) > 1 and kinds != _NUMBERS):
            return Type.parse("json")
        if _NULL in self.items.names:
            raise InvalidInputError(
                f"attribute {name!r} has a list that holds a null: give lists without nulls"
            )
        if not kinds:
            return None
        if kinds <= _NUMBERS and is_vector_name(name):
            return Type.vector(self.length)
        item = self.items.type(name)
        return None if item is None else Type.list_of(item)

    def _integer(self, name: str) -> str:
        if not self.has_wide:
            return "int64"
        if self.has_huge or self.has_negative:
            raise InvalidInputError(
                f"attribute {name!r} has integers beyond 64 bits: give integers that "
                "int64 holds, or uint64"
            )
        return "uint64"
