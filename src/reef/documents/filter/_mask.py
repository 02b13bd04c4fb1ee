"""Which rows of a batch a filter matches, told by Arrow kernels: nothing here looks at one row."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reef.documents.filter._nodes import And, Comparison, Node, Not, Or
from reef.documents.types import ID_ATTRIBUTE, Attribute, list_of_each_item

_COMPARE: Final = {
    "Eq": pc.get_function("equal"),
    "Lt": pc.get_function("less"),
    "Lte": pc.get_function("less_equal"),
    "Gt": pc.get_function("greater"),
    "Gte": pc.get_function("greater_equal"),
}
_NUMBERS: Final = ("int64", "uint64", "float64")
_COMPARE_PLAINLY: Final = {
    "Eq": np.equal,
    "Lt": np.less,
    "Lte": np.less_equal,
    "Gt": np.greater,
    "Gte": np.greater_equal,
}
_AND, _OR = pc.get_function("and_kleene"), pc.get_function("or_kleene")
_VALUES_FEW = 4096
_NULL = pa.scalar(None, pa.bool_())


class Batches:
    """The rows a filter is asked about, and the incoming documents beside them, row for row."""

    def __init__(self, rows: pa.RecordBatch, incoming: pa.RecordBatch | None) -> None:
        self.rows = rows
        self.incoming = incoming
        self.count: int = rows.num_rows

    def evaluated(self, node: Node) -> pa.BooleanArray:
        """Return true, false or null for each row."""
        match node:
            case And(parts):
                return self._joined(_AND, parts, empty=True)
            case Or(parts):
                return self._joined(_OR, parts, empty=False)
            case Not(part):
                return pc.invert(self.evaluated(part))
        column = _filter_column(self.rows, node.attribute)
        if node.operator == "IsNull":
            return self._all(True) if column is None else column.is_null()
        if column is None:
            return pa.nulls(self.count, pa.bool_())
        match node.operator:
            case "In":
                return _kept_null(pc.is_in(column, value_set=_in_reach(node, column)), column)
            case "Contains" if node.attribute.type.kind == "list":
                return _any_item(column, node.value_set)
            case "Contains" | "Glob" | "IGlob" | "Regex":
                return node.matcher(column)
        if isinstance(node.value, Attribute):
            return self._compared(node.operator, column, node.value)
        return _COMPARE[node.operator].call([column, node.scalar])

    def compared_plainly(self, node: Node) -> npt.NDArray[np.bool_] | None:
        """Return what `evaluated` does for numbers of which none is null; None for the rest.

        Arrow's calls take several times as long as NumPy's for as many rows as a block has.
        """
        match node:
            case And(parts) | Or(parts) if parts:
                join = np.logical_and if isinstance(node, And) else np.logical_or
                answers = [self.compared_plainly(part) for part in parts]
                known = [answer for answer in answers if answer is not None]
                return reduce(join, known) if len(known) == len(parts) else None
            case Comparison(attribute, operator, int() | float() as value) if (
                operator in _COMPARE_PLAINLY and attribute.type.kind in _NUMBERS
            ):
                column = _filter_column(self.rows, attribute)
                if column is None or column.null_count:
                    return None
                found: npt.NDArray[np.bool_] = _COMPARE_PLAINLY[operator](column.to_numpy(), value)
                return found
        return None

    def _joined(
        self, function: pc.Function, parts: tuple[Node, ...], *, empty: bool
    ) -> pa.BooleanArray:
        if not parts:
            return self._all(empty)
        return reduce(lambda left, right: function.call([left, right]), map(self.evaluated, parts))

    def _all(self, value: bool) -> pa.BooleanArray:
        return pa.array(np.full(self.count, value))

    def _compared(self, order: str, column: pa.Array, other: Attribute) -> pa.BooleanArray:
        assert self.incoming is not None
        given = _filter_column(self.incoming, other)
        if given is None:
            return pa.nulls(self.count, pa.bool_())
        return _COMPARE[order].call([column, given])


def _filter_column(batch: pa.RecordBatch, attribute: Attribute) -> pa.Array | None:
    if attribute.id == ID_ATTRIBUTE.id:
        return batch.column("_key").view(pa.string())  # ids are UTF-8, checked when written
    index = batch.schema.get_field_index(attribute.column)
    return None if index < 0 else batch.column(index)


def _in_reach(node: Comparison, column: pa.Array) -> pa.Array:
    """Return the values that lie between the least and the greatest of the column.

    Arrow hashes the values anew for each batch, which for long lists costs more than all the rest.
    """
    kind = node.attribute.type.kind
    values: tuple[Any, ...] = node.values
    if len(values) <= _VALUES_FEW or kind not in ("string", "int64", "uint64", "datetime"):
        return node.value_set
    found = pc.min_max(column)
    low, high = found["min"], found["max"]
    if not low.is_valid:
        return node.value_set.slice(0, 0)
    low, high = (low.value, high.value) if kind == "datetime" else (low.as_py(), high.as_py())
    start, stop = bisect_left(values, low), bisect_right(values, high)
    return node.value_set.slice(start, stop - start)


def _any_item(column: pa.ListArray, value_set: pa.Array) -> pa.BooleanArray:
    """Say which lists hold any of the values; no list, no answer."""
    items = column.flatten()
    if len(value_set) == 1:
        is_equal = _COMPARE["Eq"].call([items, value_set[0]])
    else:
        is_equal = pc.is_in(items, value_set=value_set)
    is_found = is_equal.to_numpy(zero_copy_only=False)
    holds = np.zeros(len(column), dtype=bool)
    holds[list_of_each_item(column)[is_found]] = True
    return _kept_null(pa.array(holds), column)


def _kept_null(answer: pa.BooleanArray, column: pa.Array) -> pa.BooleanArray:
    return answer if not column.null_count else pc.if_else(column.is_valid(), answer, _NULL)
