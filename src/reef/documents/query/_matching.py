"""The documents that a filter lets through, found source by source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from reef.documents.filter import Filter
from reef.engine import ReadState, matching


def matching_documents(
    filter: Filter, state: ReadState, lsn: int, columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """Yield the documents visible at `lsn` that match, in no order.

    They have `columns` (None: all), as far as their source has them, beside those of the filter.
    """
    start, end = filter.key_range()
    to_read = None if columns is None else [*dict.fromkeys((*filter.columns, *columns))]
    return matching(
        state,
        lsn,
        filter.matches,
        start=start,
        end=end,
        columns=to_read,
        prune=filter.prune,
    )
