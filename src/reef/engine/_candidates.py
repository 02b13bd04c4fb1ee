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

from reef.engine._view import ReadState
from reef.segment import Prune, RowSource, SegmentSource, at_or_below, visible

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
    """Yield rows with the source that has them: the newest there at or below `lsn`, no tombstones.

    The columns are those of segments, as far as the source has them. Another source may have a newer
    version of a row. So may the same source, of the first row of a batch only: see `may_be_hidden`.
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
    """Yield the rows visible at `lsn` that `match` says yes to, in no order."""
    for source, rows in candidates(state, lsn, start=start, end=end, columns=columns, prune=prune):
        found = match(rows)
        if found.any():
            chosen = rows.filter(pa.array(found))
            if may_be_hidden(state, source, chosen, is_first=bool(found[0])):
                chosen = chosen.filter(pa.array(are_newest(state, lsn, chosen)))
            if chosen.num_rows:
                yield chosen


def may_be_hidden(
    state: ReadState, source: RowSource, rows: pa.RecordBatch, *, is_first: bool
) -> bool:
    """Return whether any of some rows of `source` may have a newer version.

    `is_first`: the first of them was the first of its batch: newer versions of its key may lie in the
    block before.
    """
    low, high = rows.column(0)[0].as_py(), rows.column(0)[-1].as_py()
    oldest = rows.column(1).to_numpy().min()
    is_split = is_first and isinstance(source, SegmentSource)
    return is_split or any(
        other is not source
        and other.lsn_max > oldest
        and other.key_min <= high
        and other.key_max >= low
        for other in state.sources
    )


def are_newest(state: ReadState, lsn: int, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return for each of some rows whether it is the newest of its key at or below `lsn`."""
    newest = state.newest(rows.column(0), lsn)
    is_newest: npt.NDArray[np.bool_] = newest == rows.column(1).to_numpy()
    return is_newest
