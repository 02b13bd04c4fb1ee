"""The newest versions of many keys, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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
    places: _Numbers

    @classmethod
    def of(cls, keys: pa.BinaryArray) -> SortedKeys:
        """Return what is asked by `keys`, in any order and perhaps with repetitions."""
        order = pc.array_sort_indices(keys)
        ordered = keys.take(order)
        is_new = changes(ordered)
        places = np.empty(len(keys), np.int64)
        places[order.to_numpy()] = np.cumsum(is_new) - 1
        return cls(ordered if is_new.all() else ordered.filter(pa.array(is_new)), places)


class Latest:
    """The newest version of each key of a read, and the rows of those that exist."""

    def __init__(self, asked: SortedKeys, lsns: _Numbers, parts: Sequence[Part]) -> None:
        """`lsns` and `parts` are of the keys in order."""
        self._asked = asked
        self.lsns: _Numbers = lsns[asked.places]
        """Of each key; 0: it has no version. A tombstone is a version."""
        self._parts = parts
        row = np.full(len(asked.keys), -1, np.int64)
        before = 0
        for part in parts:
            row[part.at] = np.arange(before, before + len(part.at))
            before += len(part.at)
        self._row: _Numbers = row[asked.places]
        """Where each key's row is among those of all parts, one part after the other."""
        self.exists: npt.NDArray[np.bool_] = self._row >= 0

    @property
    def fields(self) -> list[pa.Field]:
        """The columns that any row has, without the system's."""
        fields: list[pa.Field] = reduce(union, (part.batch.schema for part in self._parts), [])
        return [field for field in fields if field.name not in _SYSTEM]

    def rows(self, schema: pa.Schema, first: int = 0, count: int | None = None) -> pa.RecordBatch:
        """Return the columns of `schema` for `count` keys from `first` (None: all), in their order.

        Its columns may include the key and the version. Those of a key without a row are all null.
        """
        count = len(self._row) - first if count is None else count
        stored = pa.schema([field for field in schema if field.name not in (KEY, LSN)])
        row = self._row[first : first + count]
        parts = []
        for part in self._parts if len(stored) else ():
            batch = align(part.batch, stored)
            parts.append(batch if part.rows is None else batch.take(pa.array(part.rows)))
        if parts:
            found = pa.concat_batches(parts).take(pa.array(row, mask=row < 0)).columns
        else:
            found = [pa.nulls(count, field.type) for field in stored]
        columns = dict(zip(stored.names, found, strict=True))
        if KEY in schema.names:
            places = self._asked.places[first : first + count]
            columns[KEY] = self._asked.keys.take(pa.array(places, mask=row < 0))
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
