"""Rows of the log, gathered in the order of their versions and read out in the order of segments.

Small batches are put together on the way, so that memory holds rows and not what Arrow adds to each
batch. The keys are sorted once, at the end, and the rows gathered piece by piece: the content is
what a writer's flush of the same rows gives.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reef.engine._memtable._memtable_rows import Chunk, MemtableRows, Numbers

# The most batches that wait to be joined: each takes some kilobytes beside its values.
_BATCHES_MAX = 1024
# Each piece of the output is gathered from all chunks, so fewer pieces are less work.
_CHUNK_BYTES = 16 << 20
_PIECE_BYTES = 4 << 20


class _Versions(NamedTuple):
    """Rows of one schema, with the version of each."""

    batch: pa.RecordBatch
    lsns: Numbers


class FoldRows:
    """The rows of a segment to be. For one thread."""

    def __init__(self) -> None:
        self._rows = MemtableRows()
        self._batches: list[tuple[pa.RecordBatch, int]] = []
        self._joined: list[_Versions] = []
        self._waiting_bytes = 0
        self.nbytes = 0
        """About how many bytes the values take, versions included."""

    def add(self, lsn: int, batch: pa.RecordBatch) -> None:
        """Add the rows of a log batch as versions of `lsn`, which is above all others."""
        if not batch.num_rows:
            return
        if self._batches and not self._batches[-1][0].schema.equals(batch.schema, True):
            self._seal()
        self._batches.append((batch, lsn))
        size = pa.ipc.get_record_batch_size(batch)
        self._waiting_bytes += size
        self.nbytes += size + 8 * batch.num_rows
        if self._waiting_bytes >= _CHUNK_BYTES:
            self._seal()
        elif len(self._batches) > _BATCHES_MAX:
            self._join()

    def sorted(self) -> Iterator[pa.RecordBatch]:
        """Yield every row by key, then from the newest version to the oldest; all of one schema."""
        self._seal()
        if self._rows.count:
            yield from self._rows.gather(self._order(), self._rows.columns, _PIECE_BYTES)

    def _order(self) -> Numbers:
        """Return the numbers of all rows in the order of segments."""
        keys = pa.concat_arrays([chunk.batch.column(0) for chunk in self._rows.table[1]])
        # The sort is stable: from the newest row to the oldest, of one key the newer come first.
        newest_first = np.arange(len(keys) - 1, -1, -1)
        order = pc.array_sort_indices(keys.take(pa.array(newest_first)))
        numbers: Numbers = newest_first[order.to_numpy()]
        return numbers

    def _join(self) -> None:
        """Join the waiting batches but the last: the next batch is compared with its schema."""
        batches, self._batches = self._batches[:-1], self._batches[-1:]
        if batches:
            self._joined.append(_joined_versions(batches))

    def _seal(self) -> None:
        """Make a chunk of the waiting batches, which have one schema."""
        if not self._batches:
            return
        parts = [*self._joined, _joined_versions(self._batches)]
        self._batches, self._joined, self._waiting_bytes = [], [], 0
        batch, lsns = parts[0]
        if len(parts) > 1:
            batch = pa.concat_batches([part.batch for part in parts])
            lsns = np.concatenate([part.lsns for part in parts])
        size = pa.ipc.get_record_batch_size(batch)
        self._rows.append(Chunk(batch, int(lsns[-1]), array("q", lsns.tobytes()), None, None, size))


def _joined_versions(batches: list[tuple[pa.RecordBatch, int]]) -> _Versions:
    rows = [batch.num_rows for batch, _ in batches]
    lsns = np.repeat(np.array([lsn for _, lsn in batches], np.int64), rows)
    return _Versions(pa.concat_batches([batch for batch, _ in batches]), lsns)
