"""Aggregates of documents: count, sum, min, max and avg, in all or by groups.

Rows are gone through once, in portions: each gives partial results for its groups, and partial
results are put together as they become many. Sums of whole numbers are kept in two halves, of the
upper and the lower 32 bits: they are exact, and one that does not fit its type is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reef.documents.query._row_order import ORDERED_KINDS
from reef.documents.types import Attribute, Schema
from reef.errors import InvalidInputError
from reef.format import KEY

Aggregates: TypeAlias = Mapping[str, str | tuple[str, str]]

_PORTION_ROWS = 1 << 16
_PORTION_BYTES = 32 << 20
_PARTIAL_ROWS_MAX = 1 << 17
_NUMBERS = ("int64", "uint64", "float64")
_FUNCTIONS = ("count", "sum", "min", "max", "avg")
_RULE = '"count", or ("count" | "sum" | "min" | "max" | "avg", "name of an attribute")'
_HALF = pa.scalar(32, pa.int64())
_AGAIN = {"count_all": "sum", "count": "sum", "sum": "sum", "min": "min", "max": "max"}


@dataclass(frozen=True)
class _Aggregate:
    name: str
    function: str
    attribute: Attribute | None

    @property
    def column(self) -> str:
        assert self.attribute is not None
        return _stored_name(self.attribute)

    @property
    def is_whole(self) -> bool:
        """Whether it adds up whole numbers."""
        kind = "" if self.attribute is None else self.attribute.type.kind
        return self.function in ("sum", "avg") and kind in ("int64", "uint64")

    def parts(self) -> Iterator[tuple[str, str]]:
        """Yield the columns of a portion and what is made of each."""
        if self.attribute is None:
            yield "", "count_all"
            return
        if self.is_whole:
            yield f"upper:{self.column}", "sum"
            yield f"lower:{self.column}", "sum"
        elif self.function in ("sum", "avg"):
            yield self.column, "sum"
        if self.function in ("count", "avg"):
            yield self.column, "count"
        if self.function in ("min", "max"):
            yield self.column, self.function


class Aggregation:
    """Aggregates and what they are grouped by, checked."""

    def __init__(
        self, aggregates: Aggregates, group_by: str | Sequence[str] | None, schema: Schema
    ) -> None:
        self._schema = schema
        self._groups = self._group_attributes(group_by)
        if not isinstance(aggregates, Mapping) or not aggregates:
            raise InvalidInputError.of("aggregates", aggregates, f"a dict of names to {_RULE}")
        self._aggregates = [self._parsed(*item) for item in aggregates.items()]
        for name in {group.name for group in self._groups} & set(aggregates):
            raise InvalidInputError(
                f"aggregates names a result {name!r}, by which rows are grouped as "
                "well: give it another name"
            )
        self._keys = [_stored_name(group) for group in self._groups]
        self._parts = [*dict.fromkeys(p for one in self._aggregates for p in one.parts())]
        used = [*self._groups, *(a.attribute for a in self._aggregates if a.attribute)]
        self.columns: tuple[str, ...] = tuple(
            dict.fromkeys(attribute.column for attribute in used if attribute.id)
        )
        """The columns that are needed, without the key."""

    def run(self, batches: Iterable[pa.RecordBatch], layout: pa.Schema) -> pa.Table:
        """Return the results over rows with the columns of `layout`, sorted by group, nulls last."""
        partial = self._partial(pa.Table.from_batches([], schema=layout))
        rows_max = _PARTIAL_ROWS_MAX
        for table in _tables(batches, layout):
            partial = pa.concat_tables([partial, self._partial(table)])
            if partial.num_rows > rows_max:
                partial = self._again(partial)
                # Of many groups, not all of them again for each portion.
                rows_max = max(_PARTIAL_ROWS_MAX, 2 * partial.num_rows)
        partial = self._again(partial)
        if self._keys:
            partial = partial.take(pc.sort_indices(partial, [(k, "ascending") for k in self._keys]))
        groups = [_group_keys(partial[_stored_name(group)], group) for group in self._groups]
        results = [self._result(one, partial) for one in self._aggregates]
        names = [*(group.name for group in self._groups), *(one.name for one in self._aggregates)]
        return pa.Table.from_arrays([*groups, *results], names)

    def _group_attributes(self, group_by: str | Sequence[str] | None) -> list[Attribute]:
        names = [] if group_by is None else [group_by] if isinstance(group_by, str) else group_by
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise InvalidInputError.of("group_by", group_by, "names of attributes")
        attributes = [self._schema.attribute_or_id(name) for name in dict.fromkeys(names)]
        for attribute in attributes:
            _check_kind("group_by", attribute, ORDERED_KINDS)
        return attributes

    def _parsed(self, name: object, what: object) -> _Aggregate:
        if not isinstance(name, str):
            raise InvalidInputError.of("aggregates", name, "a name for each result")
        match what:
            case "count" | ("count",):
                return _Aggregate(name, "count", None)
            case (str(function), str(of)) if function in _FUNCTIONS:
                attribute = self._schema.attribute_or_id(of)
                if function in ("sum", "avg"):
                    _check_kind(function, attribute, _NUMBERS)
                if function in ("min", "max"):
                    _check_kind(function, attribute, ORDERED_KINDS)
                return _Aggregate(name, function, attribute)
        raise InvalidInputError.of(f"aggregate {name}", what, _RULE)

    def _partial(self, table: pa.Table) -> pa.Table:
        """Return the partial results of some rows."""
        for group in self._groups:
            if group.type.kind == "float64":
                i = table.schema.get_field_index(group.column)
                # Grouped apart from the values: sums and bounds are over these as they are.
                table = table.append_column(
                    _stored_name(group, "group:"), _one_zero_one_nan(table[i])
                )
        keys = [self._key_of(group) for group in self._groups]
        for one in self._aggregates:
            upper = f"upper:{one.column}" if one.is_whole else ""
            if upper and upper not in table.schema.names:
                halves = _halves(table[one.column])
                table = table.append_column(upper, halves[0])
                table = table.append_column(f"lower:{one.column}", halves[1])
        parts = [([] if how == "count_all" else column, how) for column, how in self._parts]
        grouped = table.group_by(keys, use_threads=False).aggregate(parts)
        results = ["count_all" if how == "count_all" else f"{c}_{how}" for c, how in self._parts]
        names = [*self._keys, *map(_part_name, self._parts)]
        return grouped.select([*keys, *results]).rename_columns(names)

    @staticmethod
    def _key_of(group: Attribute) -> str:
        return (
            _stored_name(group, "group:") if group.type.kind == "float64" else _stored_name(group)
        )

    def _again(self, partial: pa.Table) -> pa.Table:
        """Return partial results with one row for each group."""
        parts = [(_part_name(part), _AGAIN[part[1]]) for part in self._parts]
        grouped = partial.group_by(self._keys, use_threads=False).aggregate(parts)
        results = [f"{name}_{how}" for name, how in parts]
        names = [*self._keys, *map(_part_name, self._parts)]
        return grouped.select([*self._keys, *results]).rename_columns(names)

    def _result(self, one: _Aggregate, partial: pa.Table) -> pa.Array:
        columns = [partial[_part_name(part)].combine_chunks() for part in one.parts()]
        if one.function == "count":
            return columns[0].fill_null(0).cast(pa.int64())
        if one.function in ("min", "max"):
            assert one.attribute is not None
            return _group_keys(columns[0], one.attribute)
        if one.function == "avg":
            *sums, count = columns
            total = _approximate(*sums) if one.is_whole else sums[0]
            return pc.if_else(
                pc.greater(count, 0), pc.divide(total, count.cast(pa.float64())), None
            )
        return _exact_sum(one, *columns) if one.is_whole else columns[0]


def _stored_name(attribute: Attribute, prefix: str = "") -> str:
    return prefix + (attribute.column if attribute.id else KEY)


def _part_name(part: tuple[str, str]) -> str:
    return ":".join(part)


def _check_kind(what: str, attribute: Attribute, kinds: Sequence[str]) -> None:
    if attribute.type.kind not in kinds:
        raise InvalidInputError(
            f"{what} = {attribute.name!r} is of type {attribute.type}: expected an "
            f"attribute of type {', '.join(kinds)}"
        )


def _tables(batches: Iterable[pa.RecordBatch], layout: pa.Schema) -> Iterator[pa.Table]:
    """Yield batches in tables of some size: grouping costs by the table, too."""
    waiting: list[pa.RecordBatch] = []
    rows = nbytes = 0
    for batch in batches:
        waiting.append(batch)
        rows, nbytes = rows + batch.num_rows, nbytes + batch.nbytes
        if rows >= _PORTION_ROWS or nbytes >= _PORTION_BYTES:
            yield pa.Table.from_batches(waiting, schema=layout)
            waiting, rows, nbytes = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting, schema=layout)


def _one_zero_one_nan(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return numbers of which those that are equal have the same bits."""
    return pc.if_else(pc.is_nan(column), float("nan"), pc.add(column, 0.0))


def _halves(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Return the upper and the lower 32 bits of whole numbers; the upper ones with the sign."""
    kind = column.type
    upper = pc.shift_right(column, _HALF.cast(kind))
    lower = pc.bit_wise_and(column, pa.scalar(2**32 - 1, kind))
    return upper.cast(pa.int64()), lower.cast(pa.int64())


def _approximate(upper: pa.Array, lower: pa.Array) -> pa.Array:
    return pc.add(
        pc.multiply(upper.cast(pa.float64(), safe=False), 2.0**32),
        lower.cast(pa.float64(), safe=False),
    )


def _exact_sum(one: _Aggregate, upper: pa.Array, lower: pa.Array) -> pa.Array:
    """Return the exact sum. Raises InvalidInputError if it does not fit."""
    assert one.attribute is not None
    # Carry, so that the lower half is 32 bits again: then the upper one alone tells what fits.
    carry = pc.shift_right(lower, _HALF)
    upper = pc.add(upper, carry)
    lower = pc.bit_wise_and(lower, pa.scalar(2**32 - 1, pa.int64()))
    is_signed = one.attribute.type.kind == "int64"
    bounds = pc.min_max(upper).as_py()
    least, most = (-(2**31), 2**31 - 1) if is_signed else (0, 2**32 - 1)
    if bounds["min"] is not None and not least <= bounds["min"] <= bounds["max"] <= most:
        raise InvalidInputError(
            f"the sum of attribute {one.attribute.name!r} does not fit {one.attribute.type}: ask for "
            "avg and count, or sum fewer documents"
        )
    high, low = (_as_unsigned(half) for half in (upper, lower))
    total = (high << np.uint64(32)) | low
    kind = one.attribute.type.physical
    values = pa.array(total.view(np.int64) if is_signed else total, kind)
    return pc.if_else(upper.is_valid(), values, pa.scalar(None, kind))


def _as_unsigned(half: pa.Array) -> Any:
    return half.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)


def _group_keys(values: pa.Array | pa.ChunkedArray, attribute: Attribute) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not attribute.id:
        return values.view(pa.string())
    logical = attribute.type.logical
    return values if values.type == logical else pa.ExtensionArray.from_storage(logical, values)
