"""Arrow lists of numbers → dense and sparse vectors, finite and of the right length, or not at all."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reef.documents.types import (
    SPARSE,
    InputColumn,
    Type,
    first_true,
    first_valid,
    is_list,
    is_number_or_null,
    is_sparse,
    list_of_each_item,
)
from reef.types import U32_MAX

_kinds = pa.types
_NUMPY: dict[pa.DataType, np.dtype[Any]] = {
    pa.float32(): np.dtype(np.float32),
    pa.float16(): np.dtype(np.float16),
}
_HALF_NOT_FINITE = 0x7C00  # the exponent of infinity and NaN


def to_vector(column: pa.Array, type: Type, spot: InputColumn) -> pa.Array | None:
    """Return `column` as vectors of `type`; None if it holds no lists of numbers.

    Raises InvalidInputError for a wrong dimension, nulls, NaN, infinity, and numbers too large.
    """
    arrow = column.type
    if not is_list(arrow) or not is_number_or_null(arrow.value_type):
        return None
    _check_dimension(column, type, spot)
    items = _valid_items(column)

    def row_of(i: int) -> int:
        return int(list_of_each_item(column)[i])

    if items.null_count:
        row = row_of(first_true(items.is_null()) or 0)
        raise spot.refusal(row, column[row], type.text, "a vector that holds a null")
    target = type.physical.value_type
    with np.errstate(all="ignore"):
        numbers = _narrowed(items, target)
        is_finite = _all_finite(numbers)
    if not is_finite:
        i = int(np.argmin(np.isfinite(numbers)))
        why = f"{items[i].as_py()} at place {i % type.dimension}"
        raise spot.refusal(row_of(i), column[row_of(i)], f"{type} of finite {target}", why)
    if arrow.equals(type.physical):
        return column
    return _vector_array(column, numbers, type)


def to_sparse(column: pa.Array, type: Type, spot: InputColumn) -> pa.Array | None:
    """Return `column` as sparse vectors with ascending indices; None if it holds none.

    Raises InvalidInputError for an index that is there twice or is not one, lists of different
    lengths, nulls, NaN, infinity, and numbers too large.
    """
    if not is_sparse(column.type):
        return None
    rows = pc.indices_nonzero(column.is_valid()).to_numpy()
    spot = spot.within(lambda i: int(rows[i]))
    valid = column.drop_null() if column.null_count else column

    def refuse(wrong: pa.Array, why: str) -> None:
        i = first_true(wrong)
        if i is not None:
            raise spot.refusal(i, valid[i], "sparse {'indices': [...], 'values': [...]}", why)

    names = [field.name for field in column.type]
    children = valid.flatten()
    indices, values = children[names.index("indices")], children[names.index("values")]
    refuse(pc.or_(indices.is_null(), values.is_null()), "a null in place of a list")
    lengths = pc.list_value_length(indices)
    refuse(pc.not_equal(lengths, pc.list_value_length(values)), "lists of different lengths")
    parents = np.repeat(np.arange(len(valid)), lengths.to_numpy())
    places, numbers = indices.flatten(), values.flatten()

    def refuse_items(wrong: np.ndarray, why: str) -> None:
        if wrong.any():
            row = int(parents[int(np.argmax(wrong))])
            refuse(pa.array(np.arange(len(valid)) == row), why)

    for items in (places, numbers):
        refuse_items(items.is_null().to_numpy(zero_copy_only=False), "a list that holds a null")
    positions = places.cast(pa.uint64(), safe=False).to_numpy()  # below zero becomes far above
    refuse_items(positions > U32_MAX, f"an index that is not from 0 to {U32_MAX}")
    with np.errstate(all="ignore"):
        weights = _narrowed(numbers, pa.float32())
    refuse_items(~np.isfinite(weights), "a value that is not a finite float32")
    key = parents.astype(np.uint64) << np.uint64(32) | positions
    order = np.argsort(key, kind="stable")
    twice = np.zeros(len(key), bool)
    twice[order[1:]] = np.diff(key[order]) == 0
    refuse_items(twice, "an index that appears twice")
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths.to_numpy()))).astype(np.int32))
    parts = [
        pa.ListArray.from_arrays(offsets, pa.array(positions[order].astype(np.uint32))),
        pa.ListArray.from_arrays(offsets, pa.array(weights[order])),
    ]
    made = pa.StructArray.from_arrays(parts, fields=list(SPARSE))
    return made if not column.null_count else _with_nulls_of(made, column)


def _with_nulls_of(made: pa.Array, column: pa.Array) -> pa.Array:
    """Return `made` with the nulls of `column` between its values."""
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    places = pa.array(np.cumsum(valid) - 1, mask=~valid)
    return made.take(places)


def _valid_items(column: pa.Array) -> pa.Array:
    """Return the items of the lists that are not null."""
    if column.null_count or not _kinds.is_fixed_size_list(column.type):
        return column.flatten()
    size = column.type.list_size
    return column.values.slice(column.offset * size, len(column) * size)


def _check_dimension(column: pa.Array, type: Type, spot: InputColumn) -> None:
    arrow = column.type
    if _kinds.is_fixed_size_list(arrow):
        if arrow.list_size == type.dimension:
            return
        i = first_valid(column)
    else:
        i = first_true(pc.not_equal(pc.list_value_length(column), type.dimension))
    if i is not None:
        value = column[i]
        raise spot.refusal(i, value, type.text, f"a list of {len(value)} numbers")


def _narrowed(items: pa.Array, target: pa.DataType) -> np.ndarray:
    """Return numbers in the precision of `target`; those too large become infinity."""
    if _kinds.is_null(items.type):
        items = items.cast(target)
    numbers: np.ndarray = items.to_numpy(zero_copy_only=False)
    return numbers.astype(_NUMPY[target], copy=False)


def _all_finite(numbers: np.ndarray) -> bool:
    if numbers.dtype == np.float16:
        bits = numbers.view(np.uint16) & _HALF_NOT_FINITE
        return not len(bits) or int(bits.max()) != _HALF_NOT_FINITE
    # A sum of squares is finite only if all are: one pass without memory. It may overflow.
    return math.isfinite(np.dot(numbers, numbers)) or bool(np.isfinite(numbers).all())


def _vector_array(column: pa.Array, numbers: np.ndarray, type: Type) -> pa.Array:
    if not column.null_count:
        return pa.FixedSizeListArray.from_arrays(pa.array(numbers), type=type.physical)
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    whole = np.zeros((len(column), type.dimension), numbers.dtype)
    whole[valid] = numbers.reshape(-1, type.dimension)
    return pa.FixedSizeListArray.from_arrays(
        pa.array(whole.reshape(-1)), type=type.physical, mask=pa.array(~valid)
    )
