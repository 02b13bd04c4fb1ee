"""The rows that the log holds and no segment does yet, in memory.

Rows are numbered as they come. LSNs only rise, so of two versions of a key the one with the greater
number is the newer. Rows stay in the Arrow batches they came in; small batches are put together
into greater ones behind the scenes, which changes no number. A dict leads from a key to its newest
row, and each row to the version before it. For ordered reads there are runs: the keys of
consecutive rows, sorted when the first scan wants them, and merged like an LSM tree, so that a
scan sorts only what is new since the last one.

The first point read, or the next small batch, adds the keys of a large batch to the dict: loading
millions of rows and flushing them never pays for that.

One thread writes, any number read, without a lock but to fill the dict. What makes that safe:

- Rows are in place before the dict names them, and a read is bounded by an LSN that is given out
  only after `apply` has returned: what is half written is not visible to anybody.
- Chunks and runs never change. They are found through lists that only grow, or through an attribute
  that is replaced whole; a reader takes it once and goes on with what it got.
- `truncate` leaves the rows as they are and makes others: a reader keeps those it has begun with.
"""

from __future__ import annotations

import sys
import threading
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, compress, repeat
from typing import NamedTuple

import pyarrow as pa

from reef.engine._memtable._memtable_rows import Chunk, MemtableRows
from reef.engine._memtable._memtable_runs import Runs
from reef.errors import InvariantError
from reef.segment import Prune, RowVersion
from reef.types import KEY_BYTES_MAX, LSN_MAX

# Each piece is gathered from all chunks, so fewer pieces are less work.
_PIECE_BYTES = 4 << 20

# Beyond this many newer versions, looking into the sorted runs is cheaper than following the
# versions one by one.
_STEPS_MAX = 32

# Python's memory for an index entry, beside the key's bytes and the dict's table: a bytes object
# and a number, as the allocator rounds them.
_ENTRY_BYTES = 73

_new = tuple.__new__


class _MemtableState(NamedTuple):
    """State that a reader takes once: the newest row of each key, the rows, and their order."""

    newest: dict[bytes, int]
    rows: MemtableRows
    runs: Runs


class Memtable:
    """Versions of keys in memory: a RowSource. One thread may write while others read."""

    def __init__(self) -> None:
        rows = MemtableRows()
        self._state = _MemtableState({}, rows, Runs(rows))
        self._key_bytes = 0
        self._applied = 0
        self._lock = threading.Lock()
        """Held to change rows or index; never while waiting for anything."""
        self._unindexed: deque[int] = deque()
        """The first rows of large chunks whose keys the dict does not have yet, in order."""
        self._unindexed_rows = 0
        self.lsn_min = LSN_MAX
        """The least LSN of its rows; without rows, above every LSN that a read can have."""
        self.lsn_max = 0
        # Any key: a lookup in the index is cheaper than keeping a range.
        self.key_min = b""
        self.key_max = b"\xff" * KEY_BYTES_MAX

    @property
    def rows(self) -> int:
        """How many versions it holds."""
        return self._state.rows.count

    @property
    def nbytes(self) -> int:
        """Bytes in memory: rows, index and runs, with the overhead of Arrow and Python."""
        index, rows, runs = self._state
        count = len(index) + self._unindexed_rows  # they will be in the index
        entries = sys.getsizeof(index) + _ENTRY_BYTES * count + self._key_bytes
        return rows.nbytes + runs.nbytes + entries

    @property
    def columns(self) -> tuple[pa.Field, ...]:
        """The columns of its rows after the system's; where types differ, the newest."""
        return self._state.rows.columns

    def apply(
        self,
        lsn: int,
        batch: pa.RecordBatch,
        nbytes: int | None = None,
        flags: bytes | None = None,
    ) -> None:
        """Add the rows of a log batch as versions of `lsn`, which is above all others.

        `nbytes` is about what its values take, and `flags` has a 1 for each tombstone and a 0 for
        each other row, if the caller knows: Arrow takes its time to tell.
        Raises InvariantError if it is not, or if a key is twice in the batch: nothing was added.
        Duplicate keys in a large batch are found only when a point read indexes it.
        """
        if lsn <= self._applied:
            raise InvariantError(f"version {lsn} was applied after {self._applied}")
        chunk = Chunk.of(lsn, batch, nbytes, flags)
        if chunk.is_large:
            with self._lock:
                self._append_unindexed(chunk)
        elif batch.num_rows:
            keys = batch.column(0).to_pylist()
            if len(keys) > 1 and len(set(keys)) != len(keys):
                raise InvariantError(f"a key is twice in the batch of version {lsn}")
            if self._unindexed:
                self._index_all()
            with self._lock:
                self._append(chunk, keys)
        self._applied = lsn
        if batch.num_rows:
            if self.lsn_min > lsn:
                self.lsn_min = lsn
            self.lsn_max = lsn

    def _append(self, chunk: Chunk, keys: list[bytes]) -> None:
        """Append a chunk and index it; all rows before it are indexed. Lock held."""
        index, rows, _ = self._state
        if len(keys) == 1:  # the loop below, in a third of the time
            older = index.get(keys[0])
            index[keys[0]] = rows.append(chunk if older is None else chunk.behind((older,)))
            self._key_bytes += len(keys[0]) if older is None else 0
        else:
            self._append_linked(chunk.behind(list(map(index.get, keys, repeat(-1)))), keys)

    def _append_linked(self, chunk: Chunk, keys: list[bytes] | None = None) -> None:
        """Append a chunk that knows the versions before its rows. Lock held."""
        index, rows, _ = self._state
        keys = chunk.batch.column(0).to_pylist() if keys is None else keys
        known, first = len(index), rows.append(chunk)
        index.update(zip(keys, range(first, first + len(keys)), strict=True))
        self._key_bytes += (len(index) - known) * _mean_length(chunk.batch)

    def _append_unindexed(self, chunk: Chunk) -> None:
        """Append a large chunk. Lock held."""
        self._unindexed_rows += chunk.batch.num_rows
        self._key_bytes += chunk.batch.num_rows * _mean_length(chunk.batch)
        self._unindexed.append(self._state.rows.append(chunk))

    def _index_all(self) -> None:
        """Index every row."""
        while self._unindexed:
            with self._lock:
                if not self._unindexed:
                    return  # another thread did it meanwhile
                index, rows, _ = self._state
                first = self._unindexed[0]
                chunk = next(rows.slices(first, first + 1))[0]
                keys = chunk.batch.column(0).to_pylist()
                if len(set(keys)) != len(keys):
                    raise InvariantError(f"a key is twice in the batch of version {chunk.newest}")
                known = len(index)
                if chunk.older is None:  # else an interrupted caller has linked them already
                    rows.replace(first, chunk.linked(list(map(index.get, keys, repeat(-1)))))
                index.update(zip(keys, range(first, first + len(keys)), strict=True))
                added, mean = len(index) - known, _mean_length(chunk.batch)
                self._key_bytes -= (len(keys) - added) * mean
                self._unindexed_rows -= len(keys)
                self._unindexed.popleft()  # last: until then a reader waits for the lock

    def truncate(self, lsn: int) -> None:
        """Drop the versions above `lsn`: those before them are the newest again."""
        self._index_all()
        self._applied = min(self._applied, lsn)
        index, rows, runs = self._state
        count = rows.count_through(lsn)
        if count == rows.count:
            return
        kept = MemtableRows()
        for chunk, low, high in rows.slices(0, count):
            kept.append(chunk.part(low, high))
        dropped = [chunk.part(low, high) for chunk, low, high in rows.slices(count, rows.count)]
        keys = list(chain.from_iterable(chunk.batch.column(0).to_pylist() for chunk in dropped))
        older = list(chain.from_iterable(map(_older, dropped)))
        index = index.copy()
        # From new to old: the version before the oldest dropped one becomes the newest.
        index.update(zip(reversed(keys), reversed(older), strict=True))
        deque(map(index.__delitem__, compress(keys, map((-1).__eq__, older))), maxlen=0)
        self._state = _MemtableState(index, kept, runs.cut(kept))
        self.lsn_max = kept.table[1][-1].newest if count else 0
        if not count:
            self.lsn_min = LSN_MAX
        self._key_bytes = self._key_bytes * len(index) // max(1, len(index) + older.count(-1))

    def without_through(self, lsn: int) -> Memtable:
        """Return a memtable without the versions at or below `lsn`; itself if it has none of those.

        Reads of this one go on undisturbed.
        """
        rows = self._state.rows
        first = rows.count_through(lsn)
        if not first:
            self._applied = max(self._applied, lsn)
            return self
        fresh = Memtable()
        for chunk, low, high in rows.slices(first, rows.count):
            part = chunk.part(low, high)
            if part.is_large and part.lsns is None:
                fresh._append_unindexed(part._replace(older=None))
            else:
                fresh._index_all()
                fresh._append_linked(part.moved(-first))
        fresh._applied = max(self._applied, lsn)
        if fresh.rows:
            fresh.lsn_min, fresh.lsn_max = fresh._state.rows.first_lsn(), self.lsn_max
        return fresh

    def get(self, key: bytes, lsn: int) -> RowVersion | None:
        """Return the newest version of `key` at or below `lsn`, a tombstone too, or None."""
        if self._unindexed:
            self._index_all()
        index, rows, _ = state = self._state
        row = index.get(key, -1)
        bases, chunks = rows.table  # after the index: rows that it names are in place
        for _ in repeat(None, _STEPS_MAX):
            if row < 0:
                return None
            at = bisect_right(bases, row) - 1
            batch, newest, lsns, older, tombstones, _ = chunks[at]
            row -= bases[at]
            version = newest if lsns is None else lsns[row]
            if version <= lsn:
                is_tombstone = tombstones is not None and tombstones[row] == 1
                return _new(RowVersion, (version, is_tombstone, batch, row))
            row = -1 if older is None else older[row]
        return _get_sorted(state, key, lsn)

    def get_many(self, keys: Sequence[bytes], lsn: int) -> list[RowVersion | None]:
        """Return for each key what `get` would."""
        return list(map(self.get, keys, repeat(lsn)))

    def batches(
        self,
        start: bytes,
        end: bytes | None,
        *,
        columns: Sequence[str] | None,
        reverse: bool,
        lsn: int,
        prune: Prune | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the newest version at or below `lsn` of each key from `start` up to `end`.

        As `RowSource` says, but without older versions, which a read at `lsn` does not see.
        """
        _, rows, runs = self._state
        fields = rows.columns
        if columns is not None:
            known = {field.name: field for field in fields}
            fields = tuple(known[name] for name in columns if name in known)
        below = rows.count_through(lsn)
        for numbers in runs.numbers(start, end, below=below, every=False, reverse=reverse):
            yield from rows.gather(numbers, fields, _PIECE_BYTES)

    def flush_batches(
        self, lsn: int, columns: Sequence[pa.Field] | None = None, *, above: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yield every version above `above` up to `lsn` in the order of segments, in pieces of some MiB.

        All have the same schema: that of segments with `columns` (None: those of all its rows).
        """
        _, rows, runs = self._state
        fields = rows.columns if columns is None else columns
        below, first = rows.count_through(lsn), rows.count_through(above)
        if first == below:
            return
        for numbers in runs.numbers(b"", None, below=below, every=True, reverse=False):
            some = numbers[numbers >= first] if first else numbers
            if len(some):
                yield from rows.gather(some, fields, _PIECE_BYTES)


def _get_sorted(state: _MemtableState, key: bytes, lsn: int) -> RowVersion | None:
    """Like `Memtable.get`, by the sorted runs: for a key with very many versions."""
    _, rows, runs = state
    below = rows.count_through(lsn)
    for numbers in runs.numbers(key, key + b"\0", below=below, every=False, reverse=False):
        number = int(numbers[0])
        chunk, row, _ = next(rows.slices(number, number + 1))
        version = chunk.newest if chunk.lsns is None else chunk.lsns[row]
        is_tombstone = chunk.tombstones is not None and chunk.tombstones[row] == 1
        return RowVersion(version, is_tombstone, chunk.batch, row)
    return None


def _mean_length(batch: pa.RecordBatch) -> int:
    together: int = batch.column(0).nbytes
    return together // int(batch.num_rows) - 4  # without the offsets


def _older(chunk: Chunk) -> Sequence[int]:
    return array("q", repeat(-1, chunk.batch.num_rows)) if chunk.older is None else chunk.older
