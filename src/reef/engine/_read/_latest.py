"""The newest versions of many keys: rows one by one while they are few, columns otherwise.

`_thresholds.py` has the numbers, and the measurement behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, reduce
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reef.engine._read._thresholds import FEW_ROWS_MAX
from reef.format import KEY, LSN, TOMBSTONE
from reef.segment import RowVersion, align, changes, union

_SYSTEM = frozenset((KEY, LSN, TOMBSTONE))

_Numbers = npt.NDArray[np.int64]


class Part(NamedTuple):
    """Rows of one batch, and which of the keys each of them has."""

    batch: pa.RecordBatch
    rows: _Numbers | None
    """None: all, in their order."""
    at: _Numbers


class SortedKeys(NamedTuple):
    """Keys that a read asks for: in order, each once; and where each of them is in that order."""

    keys: pa.BinaryArray
    positions: _Numbers

    @classmethod
    def of(cls, keys: pa.BinaryArray) -> SortedKeys:
        """Sort `keys`, which may be in any order and repeat."""
        order = pc.array_sort_indices(keys)
        ordered = keys.take(order)
        is_new = changes(ordered)
        positions = np.empty(len(keys), np.int64)
        positions[order.to_numpy()] = np.cumsum(is_new) - 1
        return cls(ordered if is_new.all() else ordered.filter(pa.array(is_new)), positions)


class Columns(NamedTuple):
    """Sorted keys, their versions, and the parts that have their rows."""

    sorted_keys: SortedKeys
    lsns: _Numbers
    parts: Sequence[Part]


class Points(NamedTuple):
    """Keys in any order, and the newest version of each."""

    keys: Sequence[bytes] | pa.BinaryArray
    versions: list[RowVersion | None]

    def columns(self) -> Columns:
        """Return the same as columns."""
        keys = self.keys if isinstance(self.keys, pa.Array) else pa.array(self.keys, pa.binary())
        sorted_keys = SortedKeys(keys, np.arange(len(keys)))
        return Columns(sorted_keys, versions_of(self.versions), parts_of(self.versions))


class Latest:
    """The newest version of each key of a read, and the rows of those that exist."""

    def __init__(self, read: Columns | Points) -> None:
        """`read` is the sources' answer: columns of sorted keys, or rows one by one."""
        self._read = read

    @property
    def few(self) -> list[RowVersion | None] | None:
        """The rows one by one, if there are so few that columns would take longer to make."""
        if isinstance(self._read, Columns) or len(self._read.versions) > FEW_ROWS_MAX:
            return None
        return [None if one is None or one.tombstone else one for one in self._read.versions]

    @cached_property
    def _columns(self) -> Columns:
        return self._read if isinstance(self._read, Columns) else self._read.columns()

    @cached_property
    def lsns(self) -> _Numbers:
        """The version of each key, 0 for none. A tombstone is a version."""
        if isinstance(self._read, Points):
            return versions_of(self._read.versions)
        return self._read.lsns[self._read.sorted_keys.positions]

    @cached_property
    def _row(self) -> _Numbers:
        """Where each key's row is among those of all parts, one part after the other; -1: nowhere."""
        sorted_keys, _, parts = self._columns
        row = np.full(len(sorted_keys.keys), -1, np.int64)
        before = 0
        for part in parts:
            row[part.at] = np.arange(before, before + len(part.at))
            before += len(part.at)
        return row[sorted_keys.positions]

    @cached_property
    def exists(self) -> npt.NDArray[np.bool_]:
        """Whether each key has a row."""
        return self._row >= 0

    @property
    def fields(self) -> list[pa.Field]:
        """The columns that any row has, without the system's."""
        fields: list[pa.Field] = reduce(
            union, (part.batch.schema for part in self._columns.parts), []
        )
        return [field for field in fields if field.name not in _SYSTEM]

    def rows(self, schema: pa.Schema, first: int = 0, count: int | None = None) -> pa.RecordBatch:
        """Return the columns of `schema` for `count` keys from `first` (None: all), in their order.

        Its columns may include the key and the version. Those of a key without a row are all null.
        """
        count = len(self._row) - first if count is None else count
        stored = pa.schema([field for field in schema if field.name not in (KEY, LSN)])
        row = self._row[first : first + count]
        parts = []
        for part in self._columns.parts if len(stored) else ():
            batch = align(part.batch, stored)
            parts.append(batch if part.rows is None else batch.take(pa.array(part.rows)))
        if parts:
            found = pa.concat_batches(parts).take(pa.array(row, mask=row < 0)).columns
        else:
            found = [pa.nulls(count, field.type) for field in stored]
        columns = dict(zip(stored.names, found, strict=True))
        if KEY in schema.names:
            sorted_keys = self._columns.sorted_keys
            positions = sorted_keys.positions[first : first + count]
            columns[KEY] = sorted_keys.keys.take(pa.array(positions, mask=row < 0))
        if LSN in schema.names:
            columns[LSN] = pa.array(self.lsns[first : first + count], mask=row < 0)
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def parts_of(found: Sequence[RowVersion | None]) -> list[Part]:
    """Return the rows that point reads have found, those of one batch together."""
    batches: dict[int, tuple[pa.RecordBatch, list[int], list[int]]] = {}
    for i, one in enumerate(found):
        if one is not None and not one.tombstone:
            _, rows, at = batches.setdefault(id(one.batch), (one.batch, [], []))
            rows.append(one.row)
            at.append(i)
    return [
        Part(batch, np.array(rows, np.int64), np.array(at, np.int64))
        for batch, rows, at in batches.values()
    ]


def versions_of(found: Sequence[RowVersion | None]) -> _Numbers:
    """Return the version of each, 0 for none."""
    return np.fromiter((0 if one is None else one.lsn for one in found), np.int64, len(found))
