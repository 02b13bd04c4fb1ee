"""The order of a memtable's rows: sorted runs of their keys, made when somebody scans.

A run never changes. New rows are sorted into a run of their own, and runs are merged as in an LSM
tree, so that each is several times as long as the next: a scan between two writes sorts what was
written, and now and then some more. A read takes the tuple of runs once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reef.engine._memtable._memtable_rows import MemtableRows, Numbers
from reef.segment import changes

# A run is merged with the one before it, unless that one is this many times as long.
_RATIO = 4
# Rows that a scan looks at in one step: few at first, because it may end soon.
_WINDOW_ROWS_FIRST = 1 << 10
_WINDOW_ROWS_MAX = 1 << 15


class _SortedRun(NamedTuple):
    """Consecutive rows, sorted by key, then from the newest version to the oldest."""

    keys: pa.Array
    numbers: Numbers
    stop: int
    """The number of the first row after them."""

    key_at: Callable[[int], bytes]

    @classmethod
    def of(cls, keys: pa.Array, numbers: Numbers, stop: int) -> _SortedRun:
        # A binary search by hand: otherwise every probe would make an Arrow scalar.
        _, offsets, data = keys.buffers()
        ends = memoryview(offsets).cast("B").cast("i")[keys.offset :]
        values = memoryview(data) if data is not None else memoryview(b"")
        return cls(keys, numbers, stop, lambda i: bytes(values[ends[i] : ends[i + 1]]))

    def place(self, key: bytes) -> int:
        """Return how many keys of the run are below `key`."""
        return bisect_left(range(len(self.numbers)), key, key=self.key_at)

    def place_after(self, key: bytes) -> int:
        """Return how many keys of the run are at or below `key`."""
        return bisect_right(range(len(self.numbers)), key, key=self.key_at)

    def between(self, start: bytes, end: bytes | None) -> tuple[pa.Array, Numbers]:
        """Return the keys from `start` up to `end`, and the numbers of their rows."""
        first = self.place(start) if start else 0
        stop = len(self.numbers) if end is None else max(first, self.place(end))
        return self.keys.slice(first, stop - first), self.numbers[first:stop]


class Runs:
    """The sorted runs of all rows of a memtable, brought up to date by each read."""

    def __init__(self, rows: MemtableRows) -> None:
        self._rows = rows
        self._runs: tuple[_SortedRun, ...] = ()
        self.nbytes = 0

    def cut(self, rows: MemtableRows) -> Runs:
        """Return the runs of `rows`, which are the first of these rows."""
        fresh = Runs(rows)
        kept = []
        for run in self._runs:
            if run.stop > rows.count:
                stays = run.numbers < rows.count
                run = _SortedRun.of(
                    run.keys.filter(pa.array(stays)), run.numbers[stays], rows.count
                )
            if len(run.numbers):
                kept.append(run)
        fresh._set(kept)
        return fresh

    def numbers(
        self, start: bytes, end: bytes | None, *, below: int, every: bool, reverse: bool
    ) -> Iterator[Numbers]:
        """Yield the numbers of rows with keys from `start` up to `end`, sorted, window by window.

        Rows from the number `below` on are left out. Of each key there is the newest version of
        the others; with `every`, which goes forward only, all of them.
        """
        runs = self._sorted(below)
        for low, high in _windows(runs, start, end, reverse=reverse):
            parts = []
            for run in reversed(runs):
                keys, numbers = run.between(low, high)
                if run.stop > below:
                    is_old = numbers < below
                    keys, numbers = keys.filter(pa.array(is_old)), numbers[is_old]
                if len(numbers):
                    parts.append((keys, numbers))
            if parts:
                keys, numbers = _merged(parts)
                newest = numbers if every else numbers[changes(keys)]
                yield newest[::-1] if reverse else newest

    def _sorted(self, below: int) -> tuple[_SortedRun, ...]:
        """Return runs of all rows up to `below` at least, those of older rows first.

        Readers that sort at the same time do the same work; any of the results may be kept.
        """
        runs = list(self._runs)
        first = runs[-1].stop if runs else 0
        if first >= below:
            return tuple(runs)
        runs.append(self._run(first, self._rows.count))
        while len(runs) > 1 and len(runs[-2].numbers) < _RATIO * len(runs[-1].numbers):
            newer, older = runs.pop(), runs.pop()
            keys, numbers = _merged([newer[:2], older[:2]])
            runs.append(_SortedRun.of(keys, numbers, newer.stop))
        self._set(runs)
        return tuple(runs)

    def _set(self, runs: Sequence[_SortedRun]) -> None:
        self._runs = tuple(runs)
        self.nbytes = sum(run.keys.get_total_buffer_size() + run.numbers.nbytes for run in runs)

    def _run(self, first: int, stop: int) -> _SortedRun:
        parts = self._rows.slices(first, stop)
        keys = pa.concat_arrays(
            [c.batch.column(0).slice(low, high - low) for c, low, high in parts]
        )
        numbers = np.arange(first, stop)
        rows = pa.record_batch([keys, numbers], ["key", "number"])
        by = [("key", "ascending"), ("number", "descending")]
        order = pc.sort_indices(rows, sort_keys=by)
        return _SortedRun.of(keys.take(order), numbers[order.to_numpy()], stop)


def _merged(parts: Sequence[tuple[pa.Array, Numbers]]) -> tuple[pa.Array, Numbers]:
    """Return sorted keys and their rows as one; those of newer rows come first in `parts`."""
    if len(parts) == 1:
        return parts[0]
    keys = pa.concat_arrays([keys for keys, _ in parts])
    order = pc.array_sort_indices(keys)  # stable: of one key, the newer rows stay first
    return keys.take(order), np.concatenate([numbers for _, numbers in parts])[order.to_numpy()]


def _windows(
    runs: Sequence[_SortedRun], start: bytes, end: bytes | None, *, reverse: bool
) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield ranges of keys that make up the one from `start` to `end`, in the order of the scan.

    Each has some thousand rows of the longest run, so that a scan which ends early is cheap.
    """
    if not runs:
        return
    run = max(runs, key=lambda run: len(run.numbers))
    first = run.place(start) if start else 0
    stop = len(run.numbers) if end is None else run.place(end)
    step = _WINDOW_ROWS_FIRST
    while stop - first > step:
        if reverse:
            stop = run.place(run.key_at(stop - step))
            if stop <= first:
                break
            edge = run.key_at(stop)
            yield edge, end
            end = edge
        else:
            first = run.place_after(run.key_at(first + step))
            if first >= stop:
                break
            edge = run.key_at(first)
            yield start, edge
            start = edge
        step = min(4 * step, _WINDOW_ROWS_MAX)
    yield start, end
