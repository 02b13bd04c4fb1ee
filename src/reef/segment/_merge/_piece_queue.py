"""The pieces that a merge holds of its sources, in the order in which they end.

A source gives its keys in the order asked, and for each key the newest version first. So the rows
that it gives later for a key are older versions. They are dropped here: no key is in two pieces.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from operator import gt, lt

import pyarrow as pa

_WEIGHT_BYTES = 256  # a larger row counts as several

Within = Callable[[bytes], bool]
"""Whether a key is within a round: true up to some key in the order of the merge, then false."""


class PieceQueue:
    """The rows of one source that a merge takes next, in pieces."""

    def __init__(self, rank: int, pieces: Iterator[pa.RecordBatch]) -> None:
        """`pieces` of the `rank`-th newest source: versions that are visible, or hidden by those."""
        self.rank = rank
        self.first = b""
        self.last: bytes | None = None
        """The last key read: later versions of it are dropped."""
        self.weight = 0
        """How many rows the last piece counts as."""
        self.is_ended = False
        """The source has no more pieces."""
        self._source = pieces
        self._pieces: deque[tuple[pa.RecordBatch, bytes]] = deque()
        """Pieces, each with its last key."""

    def fill(self) -> bool:
        """Fetch a piece if none is in memory. Return False if there are no more rows."""
        return bool(self._pieces) or self.pull()

    def pull(self) -> bool:
        """Fetch one more piece. Return False if there is none."""
        for rows in self._source:
            if rows.num_rows and self.last is not None and _key(rows, 0) == self.last:
                rows = rows.slice(_count(rows, self.last.__eq__))
            if rows.num_rows:
                if not self._pieces:
                    self.first = _key(rows, 0)
                self.last = _key(rows, -1)
                nbytes = pa.ipc.get_record_batch_size(rows)
                self.weight = max(rows.num_rows, nbytes // _WEIGHT_BYTES)
                self._pieces.append((rows, self.last))
                return True
        self.is_ended = True
        return False

    def cut(self, is_within: Within) -> list[pa.RecordBatch]:
        """Remove the rows whose keys are within the round, and return them."""
        parts: list[pa.RecordBatch] = []
        while self._pieces and is_within(self.first):
            rows, last = self._pieces.popleft()
            if is_within(last):
                parts.append(rows)
                rest = self._pieces[0][0] if self._pieces else None
            else:
                count = _count(rows, is_within)
                parts.append(rows.slice(0, count))
                rest = rows.slice(count)
                self._pieces.appendleft((rest, last))
            if rest is not None:
                self.first = _key(rest, 0)
        return parts


class Ends:
    """The last keys that queues have in memory, in order: the first of them bounds a round."""

    def __init__(self, queues: Iterable[PieceQueue], *, reverse: bool) -> None:
        self._is_before = gt if reverse else lt
        self._at = -1 if reverse else 0
        self._ends: list[tuple[bytes, int, PieceQueue]] = []
        self._first: bytes | None = None
        self._last = b""
        for queue in queues:
            self.add(queue)

    def add(self, queue: PieceQueue) -> None:
        """Add a queue that has rows, or update it."""
        is_before, last = self._is_before, queue.last
        assert last is not None
        if self._first is None:
            self._first, self._last = queue.first, last
        if is_before(queue.first, self._first):
            self._first = queue.first
        if is_before(self._last, last):
            self._last = last
        if not queue.is_ended:
            insort(self._ends, (last, queue.rank, queue))

    @property
    def nearest(self) -> bytes | None:
        """The last key of the queue that ends first; None if no source has more pieces."""
        return self._ends[self._at][0] if self._ends else None

    def pop(self) -> PieceQueue:
        """Remove the queue that ends first."""
        return self._ends.pop(self._at)[2]

    def have_before(self, key: bytes) -> bool:
        """Return whether any rows in memory lie before a key."""
        return self._first is not None and self._is_before(self._first, key)

    def are_before(self, key: bytes) -> bool:
        """Return whether all rows in memory lie before a key."""
        return self._first is not None and self._is_before(self._last, key)


def _key(rows: pa.RecordBatch, at: int) -> bytes:
    key: bytes = rows.column(0)[at].as_py()
    return key


def _count(rows: pa.RecordBatch, is_within: Within) -> int:
    """Return how many rows come before the first one whose key is not within."""
    keys = rows.column(0)
    return bisect_left(range(len(keys)), True, key=lambda i: not is_within(keys[i].as_py()))
