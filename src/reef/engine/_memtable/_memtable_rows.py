"""The rows of a memtable by number, in chunks.

A chunk never changes. Small ones are joined, step by step: a batch of one row costs Arrow several
kilobytes, and a scan that gathers rows takes time for each chunk it touches.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reef.format import LSN, segment_schema
from reef.segment import align, union

Numbers = npt.NDArray[np.int64]

# This many neighbouring chunks of about the same size are joined. A chunk's grade depends on its
# rows. A chunk of the last grade, or of this many bytes, is never joined: touching new memory costs
# more than a scan gains.
_JOINED = 16
_GRADE_ROWS = (16, 256, 4096, 65536)
_TOP_GRADE = len(_GRADE_ROWS)
_TOP_BYTES = 256 << 10

# Measured bytes of a batch beside its values: for itself, and for each column.
_CHUNK_BYTES = 1024
_COLUMN_BYTES = 1024


class Chunk(NamedTuple):
    """A batch of rows, with the columns that a point read needs as Python values."""

    batch: pa.RecordBatch
    newest: int
    """The LSN of its last row."""
    lsns: array[int] | None
    """The LSN of each row; None: all are the same."""
    older: array[int] | None
    """The number of the version before each row, or -1; None: there are none."""
    tombstones: bytes | None
    """A byte for each row; None: there are none."""
    data_bytes: int

    @classmethod
    def of(cls, lsn: int, batch: pa.RecordBatch, nbytes: int | None, flags: bytes | None) -> Chunk:
        """Return the chunk of one log batch; `nbytes` and `flags` as `Memtable.apply` takes them."""
        if flags is None:
            flags = batch.column(1).to_numpy(zero_copy_only=False).tobytes()
        size = _data_bytes(batch) if nbytes is None else nbytes
        return cls(batch, lsn, None, None, flags if 1 in flags else None, size)

    def behind(self, older: Sequence[int]) -> Chunk:
        """Return the same chunk, with the number of the version before each row, or -1."""
        return self._replace(older=array("q", older)) if max(older) >= 0 else self

    def linked(self, older: Sequence[int]) -> Chunk:
        """Return the same as `behind`, but keep the numbers even if all are -1: they were looked up."""
        return self._replace(older=array("q", older))

    @classmethod
    def joined(cls, chunks: Sequence[Chunk]) -> Chunk:
        """Return one chunk with the rows of several that have the same columns."""
        batch = pa.concat_batches([chunk.batch for chunk in chunks])
        older = tombstones = None
        if any(chunk.older is not None for chunk in chunks):
            older = _numbers([c.older or c.repeated(-1) for c in chunks])
        if any(chunk.tombstones is not None for chunk in chunks):
            tombstones = b"".join(c.tombstones or bytes(c.batch.num_rows) for c in chunks)
        lsns = _numbers([c.lsns or c.repeated(c.newest) for c in chunks])
        return cls(batch, chunks[-1].newest, lsns, older, tombstones, _data_bytes(batch))

    def repeated(self, number: int) -> bytes:
        """Return a number for each row, as the bytes of an array of them."""
        one = number.to_bytes(8, sys.byteorder, signed=True)
        return one * int(self.batch.num_rows)

    def part(self, first: int, stop: int) -> Chunk:
        """Return a chunk of some of its rows, on memory of its own unless that is all of them."""
        if stop - first == self.batch.num_rows:
            return self
        batch = self.batch.take(pa.array(np.arange(first, stop)))
        return Chunk(
            batch,
            self.newest if self.lsns is None else self.lsns[stop - 1],
            None if self.lsns is None else self.lsns[first:stop],
            None if self.older is None else self.older[first:stop],
            None if self.tombstones is None else self.tombstones[first:stop],
            _data_bytes(batch),
        )

    def moved(self, by: int) -> Chunk:
        """Return the same chunk with the numbers of older versions shifted; those below 0 become -1."""
        if self.older is None:
            return self
        older = np.maximum(np.array(self.older) + by, -1)
        return self._replace(older=array("q", older.tobytes()))

    @property
    def nbytes(self) -> int:
        """Its bytes in memory."""
        rows = 8 * (self.lsns is not None) + 8 * (self.older is not None)
        rows += self.tombstones is not None
        overhead = _CHUNK_BYTES + _COLUMN_BYTES * self.batch.num_columns
        return int(self.data_bytes + overhead + rows * self.batch.num_rows)

    @property
    def is_large(self) -> bool:
        """Whether it is of the last grade, which is never joined."""
        return self.grade == _TOP_GRADE

    @property
    def grade(self) -> int:
        """Its size class. Neighbours of one class are joined, except in the last class."""
        if self.data_bytes >= _TOP_BYTES:
            return _TOP_GRADE
        return bisect_right(_GRADE_ROWS, self.batch.num_rows)


class MemtableRows:
    """The rows of a memtable by number. Only one thread may call what changes them."""

    def __init__(self) -> None:
        self.table: tuple[list[int], list[Chunk]] = ([], [])
        """The number of each chunk's first row, and the chunks. Take both at once."""
        self.count = 0
        self.nbytes = 0
        """Of the chunks."""
        self.columns: tuple[pa.Field, ...] = ()
        self._schema: pa.Schema | None = None
        self._trail = [0] * _TOP_GRADE
        """How many chunks of each grade are at the end, one grade after the other, small ones last."""

    def append(self, chunk: Chunk) -> int:
        """Add the rows of a chunk, and return the number of the first."""
        grade = chunk.grade
        schema = chunk.batch.schema
        if self._schema is None or not self._schema.equals(schema):
            self.columns = tuple(union(list(schema)[2:], self.columns))
            self._trail = [0] * _TOP_GRADE
            self._schema = schema  # last: who is interrupted before it does all of this again
        bases, chunks = self.table
        del chunks[len(bases) :]  # what an interrupted call has left: it must not be joined
        for smaller in range(grade):
            self._join(smaller)
        bases, chunks = self.table
        first = self.count
        chunks.append(chunk)
        self.count = first + chunk.batch.num_rows
        bases.append(first)
        self.nbytes += chunk.nbytes
        self._trail_on(grade)
        return first

    def replace(self, first: int, chunk: Chunk) -> None:
        """Replace the large chunk whose rows begin there by another one of the same rows."""
        bases, chunks = self.table
        at = bisect_left(bases, first)
        self.nbytes += chunk.nbytes - chunks[at].nbytes
        chunks[at] = chunk

    def _trail_on(self, grade: int) -> None:
        """Count the chunk at the end; if there are enough of its grade, join them."""
        if grade == _TOP_GRADE:
            self._trail = [0] * _TOP_GRADE
            return
        self._trail[grade] += 1
        if self._trail[grade] == _JOINED:
            self._join(grade)

    def _join(self, grade: int) -> None:
        """Join the chunks of one grade at the end. Readers keep the lists they took."""
        count, self._trail[grade] = self._trail[grade], 0
        if not count:
            return
        bases, chunks = self.table
        if count > 1:
            parts = chunks[-count:]
            joined = Chunk.joined(parts)
            self.nbytes += joined.nbytes - sum(part.nbytes for part in parts)
            self.table = bases[: len(bases) - count + 1], [*chunks[:-count], joined]
        self._trail_on(max(grade + 1, self.table[1][-1].grade))

    def count_through(self, lsn: int) -> int:
        """Return how many rows are of versions at or below `lsn`: those with the least numbers."""
        bases, chunks = self.table
        count = len(bases)
        at = bisect_right(chunks, lsn, 0, count, key=attrgetter("newest"))
        if at == count:
            return bases[at - 1] + chunks[at - 1].batch.num_rows if count else 0
        lsns = chunks[at].lsns
        return bases[at] + (0 if lsns is None else bisect_right(lsns, lsn))

    def first_lsn(self) -> int:
        """Return the LSN of the first row."""
        chunk = self.table[1][0]
        return chunk.newest if chunk.lsns is None else chunk.lsns[0]

    def slices(self, first: int, stop: int) -> Iterator[tuple[Chunk, int, int]]:
        """Yield the chunks that hold the rows from `first` up to `stop`, and which of theirs."""
        bases, chunks = self.table
        if first >= stop:
            return
        for at in range(bisect_right(bases, first) - 1, bisect_left(bases, stop)):
            base, chunk = bases[at], chunks[at]
            yield chunk, max(first - base, 0), min(stop - base, chunk.batch.num_rows)

    def gather(
        self, numbers: Numbers, columns: Sequence[pa.Field], piece_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows in the order of `numbers`, with the columns of segments, piece by piece."""
        bases, chunks = self.table
        schema = segment_schema(list(columns))
        places = np.searchsorted(np.array(bases), numbers, side="right") - 1
        for first, stop in _piece_bounds(places, chunks, piece_bytes):
            yield _gathered(numbers[first:stop], places[first:stop], bases, chunks, schema)


def _numbers(parts: Iterable[array[int] | bytes]) -> array[int]:
    return array("q", b"".join(parts))


def _data_bytes(batch: pa.RecordBatch) -> int:
    """Return about how many bytes a batch's values take, much faster than its `nbytes`."""
    return int(pa.ipc.get_record_batch_size(batch))


def _piece_bounds(
    places: Numbers, chunks: Sequence[Chunk], piece_bytes: int
) -> Iterator[tuple[int, int]]:
    """Yield the bounds of pieces of about so many bytes, by the mean row size of each chunk."""
    if not len(places):
        return
    means = np.array([chunk.data_bytes / chunk.batch.num_rows for chunk in chunks])
    ends = np.cumsum(means[places])
    numbers = (ends / piece_bytes).astype(np.int64)
    cuts = np.flatnonzero(np.diff(numbers)) + 1
    yield from pairwise([0, *cuts.tolist(), len(places)])


def _gathered(
    numbers: Numbers,
    places: Numbers,
    bases: Sequence[int],
    chunks: Sequence[Chunk],
    schema: pa.Schema,
) -> pa.RecordBatch:
    """Return some rows as one batch: those of each chunk taken together, then put in order."""
    order = np.argsort(places, kind="stable")
    sorted_places = places[order]
    cuts = np.flatnonzero(np.diff(sorted_places)) + 1
    lsns = np.empty(len(numbers), np.int64)
    narrow = pa.schema([field for field in schema if field.name != LSN])
    parts = []
    for first, stop in pairwise([0, *cuts.tolist(), len(numbers)]):
        at = int(sorted_places[first])
        chunk = chunks[at]
        rows = numbers[order[first:stop]] - bases[at]
        lsns[first:stop] = (
            chunk.newest if chunk.lsns is None else np.frombuffer(chunk.lsns, np.int64)[rows]
        )
        parts.append(_taken(align(chunk.batch, narrow), rows))
    batch = pa.concat_batches(parts) if len(parts) > 1 else parts[0]
    if (np.diff(order) != 1).any():
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        batch, lsns = batch.take(pa.array(back)), lsns[back]
    columns = batch.columns
    return pa.RecordBatch.from_arrays([columns[0], pa.array(lsns), *columns[1:]], schema=schema)


def _taken(batch: pa.RecordBatch, rows: Numbers) -> pa.RecordBatch:
    """Return some rows of a batch; consecutive ones share its memory."""
    if rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
        return batch.slice(int(rows[0]), len(rows))
    return batch.take(pa.array(rows))
