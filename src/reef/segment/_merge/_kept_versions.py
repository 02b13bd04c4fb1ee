"""Retention: which versions a compaction keeps. One rule for every face.

For each key these stay:

- every version above the floor;
- for each retained point (a snapshot, a pin, the floor itself) the newest version at or below it:
  what a read at that point finds. The newest version of a key is always among them: either it is
  above the floor, or it is what the floor sees.

A tombstone kept by this rule is still dropped if nothing is left for it to hide. That takes three
things. No older version of the key stays in the output. There is no older run that could hold one:
`is_bottom`, which only the caller knows. And it is at or below the floor: above it, the history of a
key is promised as it was, its end included. With the oldest tombstone gone, the next one may be
the oldest, so it is the unbroken row of them at the old end of a key that goes. To a read at any
retained point a key without versions is as absent as one that ends in a tombstone.

Newer runs that are not part of the compaction need not be considered: a version that they hide at every
point is kept too long, never too short. Nor do later writes: their LSNs are higher.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reef.segment._row_columns import changes

_Flags = npt.NDArray[np.bool_]
_Lsns = npt.NDArray[np.int64]


def keep_versions(
    batches: pa.Table | Iterable[pa.RecordBatch],
    *,
    floor_lsn: int,
    points: Iterable[int],
    is_bottom: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `batches` that retention keeps; a batch that is kept whole is not copied.

    `batches` have the columns of segments and are sorted by key, then by LSN descending; a key may
    go on from one to the next. `points` are the retained LSNs; the floor is always one of them.
    `is_bottom`: no run that is older than these rows holds any of their keys.
    """
    if isinstance(batches, pa.Table):
        batches = batches.to_batches()
    rule = _Rule(floor_lsn, points, is_bottom=is_bottom)
    for batch in batches:
        if batch.num_rows and (kept := rule.kept(batch)).num_rows:
            yield kept


class _Rule:
    """The rule, and its state: the last row before, and the tombstones that it holds back.

    Held back are tombstones at the end of a batch that the next one decides on: whether an older
    version of their key stays. Each of them is what some point sees, so they are never many.
    """

    def __init__(self, floor_lsn: int, points: Iterable[int], *, is_bottom: bool) -> None:
        self._floor = floor_lsn
        # Those above the floor decide nothing: everything there stays.
        below = {point for point in points if point < floor_lsn}
        self._points: _Lsns = np.array(sorted({*below, floor_lsn}), np.int64)
        self._is_bottom = is_bottom
        self._last: tuple[bytes, int] | None = None
        self._undecided: pa.RecordBatch | None = None

    def kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that are certain to stay."""
        keys, lsns = batch.column(0), batch.column(1).to_numpy()
        is_first = changes(keys)
        is_first[0] = self._last is None or self._last[0] != keys[0].as_py()
        keep = self._is_needed(lsns, is_first)
        self._last = keys[-1].as_py(), int(lsns[-1])
        kept = batch if keep.all() else batch.filter(pa.array(keep))
        if not self._is_bottom:
            return kept
        if self._undecided is not None:
            if is_first[0]:
                self._undecided = None  # no older version of their key has come
            else:
                kept = pa.concat_batches([self._undecided, kept])
        return self._without_idle(kept, self._last[0])

    def _is_needed(self, lsns: _Lsns, is_first: _Flags) -> _Flags:
        """Return which rows lie above the floor, or are visible at some retained point."""
        # A row is seen by the points from its own LSN up to that of the next newer version.
        first_point = np.searchsorted(self._points, lsns)
        end_point = np.empty_like(first_point)
        end_point[1:] = first_point[:-1]
        end_point[0] = 0 if self._last is None else np.searchsorted(self._points, self._last[1])
        end_point[is_first] = len(self._points)
        needed: _Flags = (lsns > self._floor) | (first_point < end_point)
        return needed

    def _without_idle(self, rows: pa.RecordBatch, last_key: bytes) -> pa.RecordBatch:
        """Return kept rows without tombstones that hide nothing, holding back the undecided."""
        self._undecided = None
        count = rows.num_rows
        if not count or not rows.column(2).true_count:
            return rows
        keys = rows.column(0)
        tombstones = rows.column(2).to_numpy(zero_copy_only=False)
        solid = ~tombstones | (rows.column(1).to_numpy() > self._floor)
        # A tombstone stays if a row that is not one follows before its key ends.
        end_of_key = _next(np.append(changes(keys)[1:], True))
        keep = _next(solid) <= end_of_key
        if not keep[-1] and keys[-1].as_py() == last_key:
            decided = np.flatnonzero(keep | (end_of_key < count - 1))
            self._undecided = rows.slice(int(decided[-1]) + 1 if len(decided) else 0)
        return rows if keep.all() else rows.filter(pa.array(keep))


def _next(flags: _Flags) -> npt.NDArray[np.intp]:
    """Return for each place the next one that is set, itself included; past the end if none is."""
    places = np.where(flags, np.arange(len(flags)), len(flags))
    found: npt.NDArray[np.intp] = np.minimum.accumulate(places[::-1])[::-1]
    return found
