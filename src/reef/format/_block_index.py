"""Where the blocks of a segment are, and what is in them: the two index sections, as Arrow batches.

The row index has a row for each row block: its keys, versions, place and checksum, and for every
column that has an order `min:NAME`, `max:NAME` (of the values that are neither null nor NaN; null
if there are none) and `nulls:NAME`. Bounds of strings and bytes are cut to 64 bytes: the lower one
shortened, the upper one shortened and then raised, or null where it cannot be.

The column index has a row for each column block: which wide column, which rows, where.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

BOUND_BYTES_MAX = 64


class BlockPlace(NamedTuple):
    """Where a block lies: rows from `row`, bytes (frame included) from `offset`."""

    row: int
    rows: int
    offset: int
    length: int
    checksum: int


class BlockRanges(NamedTuple):
    """The keys and versions of the rows in each row block, as lists: they are bisected in."""

    key_first: list[bytes]
    key_last: list[bytes]
    lsn_min: list[int]
    lsn_max: list[int]
    tombstones: list[int]


def _fields(kind: pa.DataType, names: Iterable[str]) -> list[pa.Field]:
    return [pa.field(name, kind, nullable=False) for name in names]


_ROW_BLOCK = [
    *_fields(pa.binary(), ("key_first", "key_last")),
    *_fields(pa.int64(), ("lsn_min", "lsn_max", "tombstones", *BlockPlace._fields)),
]
COLUMN_INDEX_SCHEMA = pa.schema(_fields(pa.int64(), ("column", *BlockPlace._fields)))


class BlockPlaces:
    """The places of blocks that hold consecutive rows, as columns: a segment may have thousands."""

    def __init__(self, index: pa.RecordBatch) -> None:
        self.row, self.rows, self.offset, self.length, self.checksum = (
            index[name].to_numpy() for name in BlockPlace._fields
        )

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, i: int) -> BlockPlace:
        columns = (self.row, self.rows, self.offset, self.length, self.checksum)
        return BlockPlace(*(int(column[i]) for column in columns))

    def __iter__(self) -> Iterator[BlockPlace]:
        return (self[i] for i in range(len(self)))

    def of_rows(self, row: int, rows: int) -> range:
        """Return the numbers of the blocks that hold `rows` rows from `row`."""
        first = int(np.searchsorted(self.row, row, side="right")) - 1
        last = int(np.searchsorted(self.row, row + rows, side="left"))
        return range(first, last)

    def problem(self, rows: int) -> str:
        """Return what keeps the blocks from holding rows 0 to `rows`, each once, or ""."""
        ends = self.row + self.rows
        expected = np.append(0, ends[:-1])
        if (
            not len(self)
            or ends[-1] != rows
            or (self.row != expected).any()
            or (self.rows < 1).any()
        ):
            return f"blocks that do not hold rows 0 to {rows}, each once"
        return ""


def ordered_columns(schema: pa.Schema) -> list[pa.Field]:
    """Return the columns after the system's that have least and greatest values worth keeping."""
    return [field for field in list(schema)[3:] if _bound_type(field.type) is not None]


def row_index_schema(narrow: pa.Schema) -> pa.Schema:
    """Return the schema of the row index of a segment whose row blocks have schema `narrow`."""
    bounds = []
    for field in ordered_columns(narrow):
        kind = _bound_type(field.type)
        bounds += [
            pa.field(f"min:{field.name}", kind),
            pa.field(f"max:{field.name}", kind),
            pa.field(f"nulls:{field.name}", pa.int64(), nullable=False),
        ]
    return pa.schema([*_ROW_BLOCK, *bounds])


def bounds_of(column: pa.Array) -> tuple[object, object, int]:
    """Return the least and the greatest value of a column, shortened, and how many are null."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    found = pc.min_max(column)
    least, greatest = found["min"], found["max"]
    if not least.is_valid or (pa.types.is_floating(column.type) and math.isnan(least.as_py())):
        least = greatest = None  # nothing but nulls and NaN
    elif _bound_type(column.type) == pa.binary():
        # Not through a cast: that takes a hundred times as long.
        least = least.as_buffer().to_pybytes()[:BOUND_BYTES_MAX]
        greatest = _raised(greatest.as_buffer().to_pybytes())
    return least, greatest, column.null_count


def _raised(bound: bytes) -> bytes | None:
    """Return at most 64 bytes that sort at or above `bound`, or None if there are none."""
    if len(bound) <= BOUND_BYTES_MAX:
        return bound
    short = bound[:BOUND_BYTES_MAX].rstrip(b"\xff")
    return short[:-1] + bytes([short[-1] + 1]) if short else None


_ORDERED = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_timestamp,
    pa.types.is_date,
    pa.types.is_time,
)


def _bound_type(kind: pa.DataType) -> pa.DataType | None:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type  # so that it matters to nobody which ones a process knows
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pa.binary()
    return kind if any(is_one(kind) for is_one in _ORDERED) else None
