"""Wide columns for rows that are known, and rows by id.

The values of a wide column lie in blocks of their own. For few rows each is read as a point; for
more, the blocks that hold them are gone through, which costs nothing for each row.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reef.engine import ReadState, View
from reef.errors import InvariantError
from reef.format import LSN
from reef.segment import Found, SegmentSource, align, lookup_many

POINTS_MAX = 256


def rows_by_key(
    view: View, keys: pa.Array, layout: pa.Schema, wide: Collection[str]
) -> pa.RecordBatch:
    """Return the rows of `keys`, which are all there, in that order, with the columns of `layout`.

    `layout` begins with the key and the version; `wide` are those of its columns that are wide.
    """
    listed = keys.to_pylist()
    found = _all_of(view.read(lambda state: state.get_many(listed, view.lsn, wide=False)))
    narrow = pa.schema([field for field in layout if field.name not in wide])
    rows = _taken(found, narrow)
    if wide:
        rows = with_wide(view, rows, [layout.field(name) for name in wide])
    return rows.select(layout.names)


def with_wide(view: View, rows: pa.RecordBatch, wide: Sequence[pa.Field]) -> pa.RecordBatch:
    """Return `rows`, whose first columns are key and version, with the values of wide columns."""
    layout = pa.schema([rows.schema.field(0), rows.schema.field(1), *wide])
    values = view.read(lambda state: _wide_values(state, view.lsn, rows, layout))
    arrays = [*rows.columns, *values.columns[2:]]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*rows.schema, *wide]))


def _wide_values(
    state: ReadState, lsn: int, rows: pa.RecordBatch, layout: pa.Schema
) -> pa.RecordBatch:
    keys = rows.column(0).to_pylist()
    if len(keys) <= POINTS_MAX:
        points = _taken(_all_of(state.get_many(keys, lsn)), layout)
        if not points.column(1).equals(rows.column(1)):
            raise InvariantError(f"rows that were found at LSN {lsn} are of other versions now")
        return points
    memory = [source for source in state.sources if not isinstance(source, SegmentSource)]
    versions = rows.column(1).to_numpy()
    held = lookup_many(memory, keys, lsn)
    is_held = np.fromiter(
        (f is not None and f.lsn == v for f, v in zip(held, versions.tolist(), strict=True)),
        np.bool_,
        len(keys),
    )
    parts, places = [], []
    if is_held.any():
        parts.append(_taken([held[i] for i in np.flatnonzero(is_held)], layout))  # type: ignore[misc]
        places.append(np.flatnonzero(is_held))
    if not is_held.all():
        stored = _Stored(rows.column(0), versions, layout, ~is_held)
        stored.read(state, lsn)
        parts += stored.parts
        places += stored.places
    at = np.concatenate(places) if places else np.zeros(0, np.int64)
    if len(at) != len(keys):
        raise InvariantError(f"of {len(keys)} rows that were found, {len(at)} are still there")
    back = np.empty(len(at), np.int64)
    back[at] = np.arange(len(at))
    return pa.concat_batches(parts).take(pa.array(back))


class _Stored:
    """Rows of segments that are looked for by key and version, and those that were found."""

    def __init__(
        self,
        keys: pa.Array,
        versions: npt.NDArray[np.int64],
        layout: pa.Schema,
        wanted: npt.NDArray[np.bool_],
    ) -> None:
        self._keys = keys
        self._versions = np.where(wanted, versions, -1)
        self._layout = layout
        self._sorted: list[bytes] = sorted(keys.filter(pa.array(wanted)).to_pylist())
        self.parts: list[pa.RecordBatch] = []
        self.places: list[npt.NDArray[np.int64]] = []
        """Which of the rows looked for those of each part are."""

    def read(self, state: ReadState, lsn: int) -> None:
        """Go through the blocks that may hold them."""
        first, end = self._sorted[0], self._sorted[-1] + b"\0"
        columns = self._layout.names[2:]
        for source in state.sources:
            if not isinstance(source, SegmentSource) or source.lsn_min > lsn:
                continue
            batches = source.batches(
                first, end, columns=columns, reverse=False, lsn=lsn, prune=self._may_hold
            )
            found = [rows for batch in batches if (rows := self._with_keys(batch)) is not None]
            if found:
                self._take(pa.concat_batches(found))

    def _may_hold(self, index: pa.RecordBatch, _: Collection[str]) -> npt.NDArray[np.bool_]:
        """Return which blocks have a key that is looked for between their first and last."""
        ordered = np.array(self._sorted, dtype=object)
        firsts = np.array(index.column("key_first").to_pylist(), dtype=object)
        lasts = np.array(index.column("key_last").to_pylist(), dtype=object)
        below = np.searchsorted(ordered, firsts, side="left")
        through = np.searchsorted(ordered, lasts, side="right")
        holds: npt.NDArray[np.bool_] = through > below
        return holds

    def _with_keys(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return the rows with keys that are looked for; most batches have few of them, or none."""
        keys = batch.column(0)
        low = bisect_left(self._sorted, keys[0].as_py())
        high = bisect_right(self._sorted, keys[-1].as_py())
        if low == high:
            return None
        few = pa.array(self._sorted[low:high], pa.binary())
        mask = pc.is_in(keys, value_set=few).to_numpy(zero_copy_only=False)
        return batch.take(pa.array(np.flatnonzero(mask)))

    def _take(self, rows: pa.RecordBatch) -> None:
        """Take those of the versions that are looked for."""
        at = pc.index_in(rows.column(0), value_set=self._keys).to_numpy().astype(np.int64)
        is_it = self._versions[at] == rows.column(1).to_numpy()
        self.parts.append(align(rows.filter(pa.array(is_it)), self._layout))
        self.places.append(at[is_it])


def _all_of(found: Sequence[Found | None]) -> list[Found]:
    """Return rows that an earlier read of the same version has found: all of them are there."""
    there = [one for one in found if one is not None and not one.tombstone]
    if len(there) < len(found):
        raise InvariantError(f"of {len(found)} rows that were found, {len(there)} are still there")
    return there


def _taken(found: Sequence[Found], layout: pa.Schema) -> pa.RecordBatch:
    """Return the rows that were found, in that order, with the columns of `layout`.

    Rows of one batch are taken together. The version is that of the finding.
    """
    groups: dict[int, tuple[pa.RecordBatch, list[int], list[int]]] = {}
    for i, one in enumerate(found):
        _, rows, places = groups.setdefault(id(one.batch), (one.batch, [], []))
        rows.append(one.row)
        places.append(i)
    payload = pa.schema([field for field in layout if field.name != LSN])
    names = frozenset(payload.names)
    parts = []
    for batch, rows, _ in groups.values():
        own = batch.select([name for name in batch.schema.names if name in names])
        parts.append(align(own.take(pa.array(rows)), payload))
    if not parts:
        return pa.RecordBatch.from_pylist([], schema=layout)
    order = np.concatenate([places for _, _, places in groups.values()])
    taken = pa.concat_batches(parts).take(pa.array(np.argsort(order)))
    versions = pa.array([one.lsn for one in found], pa.int64())
    columns = [versions if name == LSN else taken.column(name) for name in layout.names]
    return pa.RecordBatch.from_arrays(columns, schema=layout)
