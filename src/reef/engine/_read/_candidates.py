"""Rows that may be what a filter or a search looks for, found without a merge.

A merge has to see every key. A filter that lets few rows through is faster the other way round: each
source is asked by itself, blocks that cannot hold a match are not read, and each match is checked for
a newer version that hides it. The check is a point read without the wide columns, and is left out
where no other source has keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reef.engine._read._cover import Cover
from reef.engine._read._view import ReadState
from reef.segment import Prune, RowSource, SegmentSource, at_or_below, visible

# Up to this much is gathered of rows that newer versions may hide, and checked at once.
_CHECKED_ROWS_MAX = 1024
_CHECKED_BYTES_MAX = 4 << 20

Match = Callable[[pa.RecordBatch], npt.NDArray[np.bool_]]


def candidates(
    state: ReadState,
    lsn: int,
    *,
    start: bytes,
    end: bytes | None,
    columns: Sequence[str] | None,
    prune: Prune | None = None,
) -> Iterator[tuple[RowSource, pa.RecordBatch]]:
    """Yield rows and their source: the newest there at or below `lsn`, without tombstones.

    The columns are those of segments, as far as the source has them. Another source may have a newer
    version of a row. So may the same source, of the first row of a batch only: the versions of a key
    may go on from block to block, and the one before may not have been worth reading.
    """
    for source in state.sources:
        if source.lsn_min > lsn or source.key_max < start:
            continue
        if end is not None and source.key_min >= end:
            continue
        for batch in source.batches(
            start, end, columns=columns, reverse=False, lsn=lsn, prune=prune
        ):
            rows = batch if source.lsn_max <= lsn else at_or_below(batch, lsn)
            if rows.num_rows and (rows := visible(rows)).num_rows:
                yield source, rows


def matching(
    state: ReadState,
    lsn: int,
    match: Match,
    *,
    start: bytes,
    end: bytes | None,
    columns: Sequence[str] | None,
    prune: Prune | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows visible at `lsn` for which `match` is true, in no order."""
    cover = Cover(state.sources, lsn)
    unchecked: list[pa.RecordBatch] = []
    count = nbytes = 0
    for source, rows in candidates(state, lsn, start=start, end=end, columns=columns, prune=prune):
        found = match(rows)
        if not found.any():
            continue
        chosen = rows.filter(pa.array(found))
        elsewhere = cover.newest_elsewhere(source, chosen.column(0))
        is_split = bool(found[0]) and isinstance(source, SegmentSource)
        if not is_split and (chosen.column(1).to_numpy() >= elsewhere).all():
            yield chosen
            continue
        unchecked.append(chosen)
        count += chosen.num_rows
        nbytes += chosen.get_total_buffer_size()
        if count >= _CHECKED_ROWS_MAX or nbytes >= _CHECKED_BYTES_MAX:
            yield from _unhidden(state, lsn, unchecked)
            unchecked, count, nbytes = [], 0, 0
    if unchecked:
        yield from _unhidden(state, lsn, unchecked)


def _unhidden(
    state: ReadState, lsn: int, unchecked: Sequence[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that are the newest of their keys: all sources are asked once."""
    is_newest = are_newest(
        state, lsn, pa.concat_batches([rows.select([0, 1]) for rows in unchecked])
    )
    first = 0
    for rows in unchecked:
        some = is_newest[first : first + rows.num_rows]
        first += rows.num_rows
        if some.any():
            yield rows.filter(pa.array(some))


def are_newest(state: ReadState, lsn: int, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return for each of some rows whether it is the newest of its key at or below `lsn`."""
    newest = state.many(rows.column(0), lsn, wide=False).lsns
    is_newest: npt.NDArray[np.bool_] = newest == rows.column(1).to_numpy()
    return is_newest
