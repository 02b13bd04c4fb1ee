"""Decoded parts of a segment as they lie in the block cache, ready for point reads.

A tail has its index as plain lists, to bisect in. A row block gets a list of its keys when the
first point read comes by: bisecting in that takes a fraction of a microsecond, where every step in
an Arrow array would make a scalar. Both know their bytes in memory, lists included.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import neg

import pyarrow as pa

from reef.format import SegmentTail

# Python's memory for a bytes object beside its bytes, with its place in a list; and for the rest of
# an entry: the objects themselves, their dicts, Arrow's own.
KEY_OVERHEAD_BYTES = 48
ENTRY_OVERHEAD_BYTES = 2048
_INDEX_ROW_OVERHEAD_BYTES = 600


class RowBlock:
    """The narrow columns of a row block; `make_lists` makes the lists that point reads need."""

    __slots__ = ("batch", "keys", "lsns", "nbytes", "tombstones")

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.nbytes = batch.get_total_buffer_size() + ENTRY_OVERHEAD_BYTES
        self.keys: list[bytes] | None = None
        self.lsns: memoryview
        self.tombstones: bytes | None
        """A byte for each row, or None: there are none."""

    def make_lists(self) -> int:
        """Make the lists that `find` looks into; return the block's bytes with them."""
        flags = self.batch.column(2)
        self.tombstones = None
        if flags.true_count:
            self.tombstones = flags.to_numpy(zero_copy_only=False).tobytes()
        self.lsns = memoryview(self.batch.column(1).to_numpy())
        column = self.batch.column(0)
        # Last: a reader without a lock that sees the keys must see the other fields, too.
        self.keys = column.to_pylist()
        lists: int = column.nbytes + len(column) * KEY_OVERHEAD_BYTES + len(self.tombstones or b"")
        return int(self.batch.get_total_buffer_size()) + ENTRY_OVERHEAD_BYTES + lists

    def find(self, key: bytes, lsn: int) -> int:
        """Return the row of the newest version of `key` at or below `lsn`, or -1."""
        keys = self.keys
        assert keys is not None, "make_lists comes first"
        row = bisect_left(keys, key)
        if row == len(keys) or keys[row] != key:
            return -1
        if self.lsns[row] <= lsn:
            return row
        end = bisect_right(keys, key, row)
        row = bisect_left(self.lsns, -lsn, row, end, key=neg)
        return row if row < end else -1


class ColumnBlock:
    """The values of one block of a wide column."""

    __slots__ = ("nbytes", "values")

    def __init__(self, values: pa.Array) -> None:
        self.values = values
        self.nbytes = values.get_total_buffer_size() + ENTRY_OVERHEAD_BYTES


class TailEntry:
    """A tail, and its row index as lists."""

    __slots__ = (
        "key_first",
        "key_last",
        "lsn_max",
        "lsn_min",
        "nbytes",
        "row_first",
        "tail",
        "wide",
        "wide_first",
        "wide_order",
    )

    def __init__(self, tail: SegmentTail, tail_bytes: int) -> None:
        index = tail.row_index
        self.tail = tail
        self.wide = tail.footer.wide
        self.row_first: list[int] = tail.row_places.row.tolist()
        self.wide_first: list[list[int]] = [
            tail.column_places[name].row.tolist() for name in self.wide
        ]
        """The first row of each block of each wide column."""
        narrow = [name for name in tail.schema.names if name not in self.wide]
        made = [*narrow, *self.wide]
        self.wide_order = [made.index(name) for name in tail.schema.names]
        """Where each column of a whole row is among the narrow ones with the wide ones behind."""
        self.key_first, self.key_last, self.lsn_min, self.lsn_max, _ = tail.ranges
        blocks = len(tail.row_places) + sum(map(len, tail.column_places.values()))
        self.nbytes = (
            tail_bytes  # its index may be slices of them
            + len(tail.bloom.data)
            + index.get_total_buffer_size()
            + index["key_first"].nbytes
            + index["key_last"].nbytes
            + 2 * len(self.key_first) * KEY_OVERHEAD_BYTES
            + blocks * _INDEX_ROW_OVERHEAD_BYTES
            + ENTRY_OVERHEAD_BYTES
        )

    def blocks_of(self, key: bytes, lsn: int) -> tuple[int, ...]:
        """Return the row blocks that can hold the newest version of `key` at or below `lsn`.

        At most two, neighbours, and the answer is in the first of them that has one: the versions of a
        key go on from block to block, ever older, and the index says how old.
        """
        first = bisect_left(self.key_last, key)
        if first == len(self.key_last) or self.key_first[first] > key:
            return ()
        here = (first,) if self.lsn_min[first] <= lsn else ()
        last = bisect_right(self.key_first, key) - 1
        if last == first or (here and self.key_first[first] == key):
            return here  # it is all there, or a version that is old enough is
        # Blocks after the first hold nothing but this key, save perhaps the last.
        pure = last + 1 if self.key_last[last] == key else last
        found = bisect_left(self.lsn_min, -lsn, first + 1, pure, key=neg)
        if found > first + 1:
            return (found,) if found <= last and self.lsn_min[found] <= lsn else ()
        # `found` is the block next to the first. If its newest version is too new, or just what is
        # asked for, those of the first block are too new for certain.
        if found < pure and self.lsn_max[found] >= lsn:
            return (found,)
        return (*here, found) if self.lsn_min[found] <= lsn else here

    def blocks_between(self, low: bytes, high: bytes, lsn: int) -> Iterator[int]:
        """Yield the row blocks that can hold what is newest at or below `lsn` of keys up to `high`.

        Perhaps one more for each key: what is left out are newer versions, and those of a key with many
        that lie behind one that is old enough.
        """
        firsts, lasts, oldest = self.key_first, self.key_last, self.lsn_min
        first = bisect_left(lasts, low)
        for number in range(first, bisect_right(firsts, high)):
            is_behind = (
                number > first
                and firsts[number - 1] == firsts[number] == lasts[number]
                and oldest[number - 1] <= lsn
            )
            if oldest[number] <= lsn and not is_behind:
                yield number
