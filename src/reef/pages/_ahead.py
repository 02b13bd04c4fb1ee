"""Reading ahead: pages that are read one after the other are fetched a run at a time.

The first pages of a run are read as they are asked for. From the second on in a row, the blocks of
the pages to come are brought into the block cache, twice as many each time, up to a bound: a scan of
a cold store costs a request for some megabytes, not one for each block. Nothing is done in the
background, and nothing for pages that are read in no order. What is brought is decided by blocks, not
by pages, so that it costs next to nothing where everything is in memory already.
"""

from __future__ import annotations

from reef.types import U32_MAX

_FIRST_BYTES = 256 << 10
_MIN_PAGES = 2


class Ahead:
    """Detects pages read in a row. Threads may share it: at worst it misses a run."""

    __slots__ = ("_due", "_expected", "_least", "_most", "_pages", "bytes_max")

    def __init__(self, page_size: int, most_bytes: int) -> None:
        """Bring at most `most_bytes` at a time; 0 never does."""
        self.bytes_max = most_bytes
        self._least = max(_MIN_PAGES, _FIRST_BYTES // page_size)
        self._most = most_bytes // page_size
        self._pages = self._least
        self._expected = -1
        self._due = 0
        """The page of the run from which on nothing was brought yet."""

    def next(self, page_id: int) -> int:
        """Take note of a read; return the last page to be brought now from this one on, or 0."""
        page_id = int(page_id)  # of a narrow type, it would come round
        if page_id != self._expected:
            if page_id != self._expected - 1:  # the same one again ends no run
                self._pages = self._least
                self._due = page_id + 1
            self._expected = page_id + 1
            return 0
        self._expected = page_id + 1
        if page_id < self._due:
            return 0
        pages = min(self._pages, self._most)
        if pages < _MIN_PAGES:
            return 0
        self._pages = pages * 2
        self._due = page_id + pages
        return min(page_id + pages - 1, U32_MAX)
