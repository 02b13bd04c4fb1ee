"""Exact search: the documents whose vectors are nearest to one that is given.

Nothing is merged. Each source is asked by itself for the vectors it has, and the nearest rows of
all are kept, some more than are asked for: some may be old versions of documents. That is checked at
the end, and only for rows that would be returned. If too many were old, the search starts over and
keeps more. Memory holds a piece of a source and the rows that are kept, without their vectors.

If a filter leaves a handful of documents, their vectors are read one by one instead of all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reef.documents.filter import Filter
from reef.documents.query._distance import Distance, Floats, matrix_of
from reef.documents.query._matching import matching_documents
from reef.documents.query._selection import Selection
from reef.documents.query._stored_rows import LIMIT_MAX, StoredRows
from reef.documents.query._wide import rows_by_key
from reef.documents.types import Attribute, Schema
from reef.engine import FEW_ROWS_MAX, ReadState, View, are_newest, candidates
from reef.errors import InvalidInputError
from reef.format import KEY, LSN
from reef.segment import RowSource

DISTANCE = "_distance"

_GROWTH = 8
# How many rows more than asked for are kept: where none should be old, and where some may be.
_SPARE_ROWS = 16
_OLD_ROWS = 256
_OLD_SHARE = 4

Nearest = tuple[pa.BinaryArray, Floats]


def vector_attribute(schema: Schema, name: str | None) -> Attribute:
    """Return the attribute to search: the one called `name`, or the only one that holds vectors.

    Raises InvalidInputError.
    """
    vectors = [a for a in schema.attributes if a.type.kind == "vector"]
    named = vectors if name is None else [a for a in vectors if a.name == name]
    if len(named) == 1:
        return named[0]
    known = ", ".join(a.name for a in vectors) or "none"
    raise InvalidInputError.of(
        "vector_column",
        name,
        f"an attribute that holds vectors, which are: {known}",
        "lists of numbers under other names than 'vector' are plain lists, unless the namespace declares a vector: schema={'name': 'vector[3]'}",
    )


def run_search(
    view: View,
    schema: Schema,
    selection: Selection,
    distance: Distance,
    *,
    filter: Filter | None,
    limit: int,
) -> pa.Table:
    """Return the rows that are nearest, nearest first, with their distances."""
    keys, distances = search(view, distance, filter=filter, limit=limit)
    layout = StoredRows(view, schema, None).layout(selection.columns)
    nearest = selection.user_rows(rows_by_key(view, keys, layout, selection.wide))
    table = pa.Table.from_batches([nearest])
    return table.append_column(DISTANCE, pa.array(distances, pa.float32()))


def search(view: View, distance: Distance, *, filter: Filter | None, limit: int) -> Nearest:
    """Return the ids of the `limit` nearest documents that match, by distance and then id.

    Documents without a vector are not found.
    """
    if type(limit) is not int or limit < 0:
        raise InvalidInputError.of("limit", limit, "a whole number, at least 0")
    if not limit:
        return pa.array([], pa.binary()), np.empty(0, np.float32)
    most = min(limit, LIMIT_MAX)
    return view.read(lambda state: _Search(state, view.lsn, distance, filter).run(most))


class _NearestRows:
    """The nearest rows so far: all, or once it `is_cut`, those that are among the nearest `most`."""

    def __init__(self, most: int) -> None:
        self.bound = np.float32(np.inf)
        """What is further away is not among them."""
        self.is_cut = False
        self._most = most
        no_keys, no_lsns = pa.array([], pa.binary()), np.empty(0, np.int64)
        self._parts = [_candidate_rows(no_keys, no_lsns, np.empty(0, np.float32), [])]
        self._count = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows of `_candidate_rows`, none of them further than `bound`."""
        self._parts.append(rows)
        self._count += rows.num_rows
        if self._count > 2 * self._most:
            self._cut()

    def sorted(self) -> pa.RecordBatch:
        """Return the rows by distance and then key."""
        if self._count > self._most:
            self._cut()
        rows = pa.concat_batches(self._parts)
        return rows.take(pc.sort_indices(rows, sort_keys=_BY_DISTANCE))

    def _cut(self) -> None:
        """Keep the nearest `most`; of those that are equally far, the least keys."""
        rows = pa.concat_batches(self._parts)
        distances = rows.column("distance").to_numpy()
        self.bound = np.partition(distances, self._most - 1)[self._most - 1]
        rows = rows.filter(pa.array(distances <= self.bound))
        if rows.num_rows > self._most:
            rows = rows.take(pc.select_k_unstable(rows, self._most, _BY_DISTANCE))
        self._parts, self._count = [rows], rows.num_rows
        self.is_cut = True


_BY_DISTANCE = [("distance", "ascending"), (KEY, "ascending")]


def _candidate_rows(
    keys: pa.Array,
    lsns: npt.NDArray[np.int64],
    distances: Floats,
    is_sure: npt.NDArray[np.bool_] | Sequence[bool],
) -> pa.RecordBatch:
    """Return rows that may be among the nearest; those that nothing newer can hide are sure."""
    columns = [keys, pa.array(lsns), pa.array(distances), pa.array(is_sure, pa.bool_())]
    return pa.RecordBatch.from_arrays(columns, names=[KEY, LSN, "distance", "is_sure"])


class _Search:
    """A search in one state of a namespace."""

    def __init__(
        self,
        state: ReadState,
        lsn: int,
        distance: Distance,
        filter: Filter | None,
    ) -> None:
        self._state = state
        self._lsn = lsn
        self._distance = distance
        self._column = distance.column
        self._filter = filter
        self._start, self._end = (b"", None) if filter is None else filter.key_range()
        if not state.is_warm:
            state.warm(self._start, self._end)

    def run(self, limit: int) -> Nearest:
        if self._end is not None and self._start >= self._end:
            return pa.array([], pa.binary()), np.empty(0, np.float32)
        few = self._few()
        if few is not None:
            return self._nearest_of(few, limit)
        alone = self._alone()
        is_simple = len(alone) == len(self._state.sources)
        most = limit + _SPARE_ROWS if is_simple else max(_OLD_SHARE * limit, limit + _OLD_ROWS)
        while True:
            best = self._scanned(_NearestRows(most), alone)
            keys, distances = self._visible(best, limit)
            if len(keys) == limit or not best.is_cut:
                return keys, distances
            most *= _GROWTH

    # A few documents: their ids first, then their vectors.

    def _few(self) -> list[bytes] | None:
        """Return the keys of all documents that match, or None if they are many, or all."""
        if self._filter is None or self._column in self._filter.columns:
            return None
        keys: list[bytes] = []
        for rows in matching_documents(self._filter, self._state, self._lsn, ()):
            # A block holds some hundreds or thousands of vectors: of a few rows, each lies in another.
            if len(keys) + rows.num_rows > FEW_ROWS_MAX:
                return None
            keys += rows.column(0).to_pylist()
        return keys

    def _nearest_of(self, keys: list[bytes], limit: int) -> Nearest:
        latest = self._state.many(keys, self._lsn).few
        assert latest is not None  # there are at most FEW_ROWS_MAX
        with_one: list[bytes] = []
        vectors: list[pa.Array] = []
        for key, one in zip(keys, latest, strict=True):
            if one is not None and one.batch.schema.get_field_index(self._column) >= 0:
                value = one.batch.column(self._column).slice(one.row, 1)
                if not value.null_count:
                    with_one.append(key)
                    vectors.append(value)
        if not vectors:
            return pa.array([], pa.binary()), np.empty(0, np.float32)
        distances = self._distance.of(matrix_of(pa.concat_arrays(vectors)))
        ids = pa.array(with_one, pa.binary())
        rows = pa.RecordBatch.from_arrays([ids, pa.array(distances)], names=[KEY, "distance"])
        order = pc.sort_indices(rows, sort_keys=_BY_DISTANCE)[:limit]
        return ids.take(order), distances[order.to_numpy()]

    # Many: all vectors.

    def _alone(self) -> set[RowSource]:
        """Return the sources of which no row can be hidden by another source's."""
        sources = self._state.sources
        return {
            source
            for source in sources
            if not any(
                other is not source
                and other.lsn_max > source.lsn_min
                and other.key_min <= source.key_max
                and other.key_max >= source.key_min
                for other in sources
            )
        }

    def _scanned(self, best: _NearestRows, alone: set[RowSource]) -> _NearestRows:
        filtered = () if self._filter is None else self._filter.columns
        columns = [*dict.fromkeys([self._column, *filtered])]
        for source, rows in candidates(
            self._state,
            self._lsn,
            start=self._start,
            end=self._end,
            columns=columns,
            prune=None if self._filter is None else self._filter.prune,
        ):
            if rows.schema.get_field_index(self._column) < 0:
                continue
            vectors = rows.column(self._column)
            matrix = matrix_of(vectors)
            wanted = self._wanted(rows, vectors)
            if wanted is not None:
                if not len(wanted):
                    continue
                matrix = matrix[wanted]
            distances = self._distance.of(matrix)
            near = np.flatnonzero(distances <= best.bound)
            if not len(near):
                continue
            distances = distances[near]
            near = near if wanted is None else wanted[near]
            # Of the first row's key there may be a newer version right before it.
            is_sure = near > 0 if source in alone else np.zeros(len(near), np.bool_)
            lsns = rows.column(1).to_numpy()[near]
            keys = rows.column(0).take(pa.array(near))
            best.add(_candidate_rows(keys, lsns, distances, is_sure))
        return best

    def _wanted(self, rows: pa.RecordBatch, vectors: pa.Array) -> npt.NDArray[np.int64] | None:
        """Return which rows have a vector and match; None: all."""
        if self._filter is None and not vectors.null_count:
            return None
        wanted = np.ones(rows.num_rows, np.bool_)
        if self._filter is not None:
            wanted = self._filter.matches(rows)
        if vectors.null_count:
            wanted = wanted & vectors.is_valid().to_numpy(zero_copy_only=False)
        return None if wanted.all() else np.flatnonzero(wanted)

    def _visible(self, best: _NearestRows, limit: int) -> Nearest:
        """Return the nearest of the rows that nothing newer hides."""
        rows = best.sorted()
        is_sure = rows.column("is_sure").to_numpy(zero_copy_only=False)
        kept: list[pa.RecordBatch] = []
        missing, at_once = limit, max(limit, _SPARE_ROWS)
        for first in range(0, rows.num_rows, at_once):
            some = rows.slice(first, at_once)
            is_seen = is_sure[first : first + at_once].copy()
            if not is_seen.all():
                unsure = some.filter(pa.array(~is_seen))
                is_seen[~is_seen] = are_newest(self._state, self._lsn, unsure)
                some = some.filter(pa.array(is_seen))
            kept.append(some.slice(0, missing))
            missing -= kept[-1].num_rows
            if not missing:
                break
        seen = pa.concat_batches(kept) if kept else rows
        return seen.column(KEY), seen.column("distance").to_numpy()
