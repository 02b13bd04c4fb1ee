"""Arrow lists and their items.

A list that is null may still have items, which nobody sees. `flatten` leaves them out, Arrow's
`list_parent_indices` does not: what is here goes along with `flatten`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


def list_lengths(column: pa.Array) -> npt.NDArray[np.integer[Any]]:
    """Return how many items each list has; one that is null has none."""
    lengths: npt.NDArray[np.integer[Any]] = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    return lengths


def list_of_each_item(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return the place of the list that each item of `column.flatten()` is in."""
    return np.repeat(np.arange(len(column)), list_lengths(column))


def hides_items(column: pa.ListArray) -> bool:
    """Say whether lists that are null hold items that no list shows."""
    if not column.null_count:
        return False
    ends = column.offsets
    there: int = ends[-1].as_py() - ends[0].as_py()
    return there != int(list_lengths(column).sum())


def rebuild_lists(column: pa.Array, items: pa.Array, arrow: pa.DataType) -> pa.Array:
    """Return the lists of `column` with `items`, one for each of its items, in their place."""
    offsets = np.zeros(len(column) + 1, np.int32)
    np.cumsum(list_lengths(column), out=offsets[1:])
    mask = column.is_null() if column.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), items, type=arrow, mask=mask)
