"""Pruning by bounds alone: which blocks cannot hold a match, and which keys can.

For each block and condition there are two possible questions: may a row be there for which it is true, or
may one be there for which it is false (null is neither)? `Not` swaps the two. Both err on the side of
"yes": bounds of strings are wider than the strings, NaN lies outside every bound, and a column whose
bounds are not known may hold anything.
"""

from __future__ import annotations

from functools import reduce
from operator import and_, or_
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reef.documents.filter._nodes import And, Comparison, Node, Not, Or, plain_value
from reef.documents.filter._operands import Value
from reef.documents.filter._pattern import glob_prefix
from reef.documents.types import ID_ATTRIBUTE, Attribute
from reef.types import after_prefix

Answers: TypeAlias = npt.NDArray[np.bool_]
KeyRange: TypeAlias = tuple[bytes, bytes | None]

EVERY_KEY: KeyRange = (b"", None)

_KERNEL: Final = {"Lt": "less", "Lte": "less_equal", "Gt": "greater", "Gte": "greater_equal"}
_OPPOSITE: Final = {"Eq": "", "Lt": "Gte", "Lte": "Gt", "Gt": "Lte", "Gte": "Lt"}


class Blocks:
    """The bounds of the blocks of a segment, one row for each; `absent` columns are not in it."""

    def __init__(self, stats: pa.RecordBatch, absent: frozenset[str]) -> None:
        self.stats = stats
        self.absent = absent
        self.all = np.ones(stats.num_rows, dtype=bool)
        self.none = ~self.all

    def may(self, node: Node, truth: bool = True) -> Answers:
        """Return for each block whether `node` may be true, or be false, for a row of it."""
        match node:
            case Not(part):
                return self.may(part, not truth)
            case And(parts) | Or(parts):
                answers = [self.may(part, truth) for part in parts]
                if isinstance(node, And) == truth:
                    return reduce(and_, answers, self.all)
                return reduce(or_, answers, self.none)
        bounds = _Bounds.of(self, node.attribute)
        match node:
            case Comparison(_, "IsNull"):
                return bounds.has_null if truth else bounds.has_value
            case Comparison(_, "In") if truth:
                may = bounds.among(node.plain_values)
            case Comparison(_, "Glob", str(pattern)) if truth:
                may = bounds.starting(glob_prefix(pattern))
            case Comparison(_, operator, str() | bytes() | int() | float() as value) if (
                operator in _OPPOSITE
            ):
                may = (
                    bounds.compared(operator, value) if truth else bounds.differing(operator, value)
                )
            case _:
                may = self.all
        return may & bounds.has_value


class _Bounds:
    """What is known of one attribute: every value that is neither null nor NaN lies in low..high."""

    def __init__(
        self,
        blocks: Blocks,
        low: pa.Array,
        high: pa.Array,
        has_value: Answers,
        has_null: Answers,
        *,
        may_be_nan: bool = False,
    ) -> None:
        self.all = blocks.all
        self.may_be_nan = may_be_nan
        self.low, self.high = low, high
        self.has_value, self.has_null = has_value, has_null

    @staticmethod
    def of(blocks: Blocks, attribute: Attribute) -> _Bounds:
        stats, column = blocks.stats, attribute.column
        unknown = pa.nulls(stats.num_rows)
        if attribute.id == ID_ATTRIBUTE.id:
            keys = stats.column("key_first"), stats.column("key_last")
            return _Bounds(blocks, *keys, blocks.all, blocks.none)
        if column in blocks.absent:
            return _Bounds(blocks, unknown, unknown, blocks.none, blocks.all)
        if stats.schema.get_field_index(f"min:{column}") < 0:
            return _Bounds(blocks, unknown, unknown, blocks.all, blocks.all)
        nulls = stats.column(f"nulls:{column}").to_numpy()
        has_value = nulls < stats.column("rows").to_numpy()
        low, high = (_comparable_bounds(stats.column(f"{end}:{column}")) for end in ("min", "max"))
        may_be_nan = attribute.type.kind == "float64"
        return _Bounds(blocks, low, high, has_value, nulls > 0, may_be_nan=may_be_nan)

    def compared(self, order: str, value: Value) -> Answers:
        """Return for each block whether it may hold a value that compares so with `value`."""
        match order:
            case "Eq":
                return self._low("less_equal", value) & self._high("greater_equal", value)
            case "Lt" | "Lte":
                return self._low(_KERNEL[order], value)
            case _:
                return self._high(_KERNEL[order], value)

    def differing(self, order: str, value: Value) -> Answers:
        """Return for each block whether it may hold a value that does not."""
        if self.may_be_nan:
            return self.all
        if order == "Eq":
            return ~(self._low("equal", value, False) & self._high("equal", value, False))
        return self.compared(_OPPOSITE[order], value)

    def among(self, values: npt.NDArray[np.object_]) -> Answers:
        """Return whether one of the sorted `values` may be there."""
        if not len(values):
            return ~self.all
        if pa.types.is_null(self.low.type):
            return self.all
        lows = np.array(self.low.fill_null(values[0]).to_pylist(), dtype=object)
        at: npt.NDArray[np.int64] = np.searchsorted(values, lows)
        next_above = pa.array(values[np.minimum(at, len(values) - 1)], self.low.type)
        reaches = pc.greater_equal(self.high, next_above).fill_null(True)
        in_reach: Answers = reaches.to_numpy(zero_copy_only=False)
        return in_reach & (at < len(values))

    def starting(self, prefix: str) -> Answers:
        """Return whether a string that starts with `prefix` may be there."""
        first = prefix.encode()
        end = after_prefix(first)
        may: Answers = self._high("greater_equal", first)
        return may if end is None else may & self._low("less", end)

    def _low(self, function: str, value: Value, unknown: bool = True) -> Answers:
        return _compared(self.low, function, value, unknown)

    def _high(self, function: str, value: Value, unknown: bool = True) -> Answers:
        return _compared(self.high, function, value, unknown)


def key_range(node: Node) -> KeyRange:
    """Return keys (the last excluded, None for no end) outside of which nothing matches."""
    match node:
        case And(parts):
            lows, highs = _ends(parts)
            low = max(lows, default=b"")
            ends = [high for high in highs if high is not None]
            return low, max(low, min(ends)) if ends else None
        case Or(()):
            return b"", b""
        case Or(parts):
            lows, highs = _ends(parts)
            ends = [high for high in highs if high is not None]
            return min(lows), max(ends) if len(ends) == len(highs) else None
        case Comparison(attribute, operator, value) if attribute.id == ID_ATTRIBUTE.id:
            return _key_range_of(operator, value)
    return EVERY_KEY


def _key_range_of(operator: str, value: object) -> KeyRange:
    """Return the keys of the ids for which a condition may hold."""
    match operator, value:
        case "In", tuple(values):
            keys = [str(one).encode() for one in values]
            return (keys[0], keys[-1] + b"\0") if keys else (b"", b"")
        case "Glob", str(pattern):
            prefix = glob_prefix(pattern).encode()
            return prefix, after_prefix(prefix)
        case "Eq", str(id):
            return id.encode(), id.encode() + b"\0"
        case "Lt", str(id):
            return b"", id.encode()
        case "Lte", str(id):
            return b"", id.encode() + b"\0"
        case "Gt", str(id):
            return id.encode() + b"\0", None
        case "Gte", str(id):
            return id.encode(), None
    return EVERY_KEY


def _ends(parts: tuple[Node, ...]) -> tuple[list[bytes], list[bytes | None]]:
    ranges = [key_range(part) for part in parts]
    return [low for low, _ in ranges], [high for _, high in ranges]


def _compared(bounds: pa.Array, function: str, value: Value, unknown: bool) -> Answers:
    if pa.types.is_null(bounds.type):
        return np.full(len(bounds), unknown)
    answers: Answers
    if pa.types.is_primitive(bounds.type) and not bounds.null_count:
        answers = getattr(np, function)(bounds.to_numpy(), plain_value(value))
        return answers  # Arrow takes some ten times as long for a few hundred numbers
    scalar = pa.scalar(plain_value(value), bounds.type)
    found = pc.call_function(function, [bounds, scalar]).fill_null(unknown)
    answers = found.to_numpy(zero_copy_only=False)
    return answers


def _comparable_bounds(bounds: pa.Array) -> pa.Array:
    """Return bounds as the numbers and bytes that values in filters are."""
    if pa.types.is_timestamp(bounds.type):
        return bounds.view(pa.int64())
    return bounds.cast(pa.uint8()) if pa.types.is_boolean(bounds.type) else bounds
