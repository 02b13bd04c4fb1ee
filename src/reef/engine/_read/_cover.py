"""Which sources may have newer versions of a key: the key ranges that they cover.

A row is certainly the newest of its key if no other source that covers the key has newer versions. The
ranges of all sources cut the keys into stretches, and of each stretch two sources are enough to tell:
those with the newest versions, of which one may be the row's own. So a lookup costs a binary search
among the stretches, however many sources there are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reef.segment import RowSource

_Numbers = npt.NDArray[np.int64]


class Cover:
    """The ranges of keys of some sources, as they are now, that have versions at or below an LSN."""

    def __init__(self, sources: Sequence[RowSource], lsn: int) -> None:
        self._number = {id(source): number for number, source in enumerate(sources)}
        changes: list[tuple[bytes, bool, int]] = []
        for number, source in enumerate(sources):
            low, high = source.key_min, source.key_max
            if source.lsn_min <= lsn and low <= high:
                changes += [(low, True, number), (high + b"\0", False, number)]
        self._edges = [b""]
        """The first key of each stretch."""
        newest = [(0, -1)]
        second = [0]
        covering: list[tuple[int, int]] = []
        """A heap: the negative of the newest version, and the source; some have ended."""
        is_ended: set[int] = set()
        for key, is_begin, number in sorted(changes):
            if is_begin:
                heappush(covering, (-sources[number].lsn_max, number))
            else:
                is_ended.add(number)
            best = _top(covering, is_ended)
            next_best = None
            if best is not None:
                heappop(covering)
                next_best = _top(covering, is_ended)
                heappush(covering, best)
            if key != self._edges[-1]:
                self._edges.append(key)
                newest.append((0, -1))
                second.append(0)
            newest[-1] = (0, -1) if best is None else (-best[0], best[1])
            second[-1] = 0 if next_best is None else -next_best[0]
        self._newest = np.array([lsn for lsn, _ in newest], np.int64)
        self._newest_of = np.array([number for _, number in newest], np.int64)
        self._second = np.array(second, np.int64)

    def newest_elsewhere(self, source: RowSource, keys: pa.BinaryArray) -> _Numbers:
        """Return for each key, which are sorted, the newest version that other sources may have.

        That is 0 where none of them covers it.
        """
        at = self._stretches(keys)
        is_own = self._newest_of[at] == self._number[id(source)]
        elsewhere: _Numbers = np.where(is_own, self._second[at], self._newest[at])
        return elsewhere

    def _stretches(self, keys: pa.BinaryArray) -> _Numbers:
        """Return in which stretch each key lies."""
        edges, count = self._edges, len(keys)
        first = bisect_right(edges, keys[0].as_py()) - 1
        last = bisect_right(edges, keys[-1].as_py()) - 1
        if last - first < count:  # fewer edges than keys
            steps = np.zeros(count + 1, np.int64)
            for edge in edges[first + 1 : last + 1]:
                steps[bisect_left(range(count), edge, key=lambda i: keys[i].as_py())] += 1
            return first + np.cumsum(steps[:count])
        return np.array([bisect_right(edges, key) - 1 for key in keys.to_pylist()], np.int64)


def _top(heap: list[tuple[int, int]], is_ended: set[int]) -> tuple[int, int] | None:
    """Return the first of a heap that has not ended; those before it are removed."""
    while heap and heap[0][1] in is_ended:
        heappop(heap)
    return heap[0] if heap else None
