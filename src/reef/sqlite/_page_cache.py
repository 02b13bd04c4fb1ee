"""The pages of the newest version that were read or written last, for hot reads."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

CACHE_BYTES_MAX = 64 << 20
_ENTRY_BYTES = 200  # what a page costs beside its bytes


class PageCache:
    """Pages with the version from which on they are so, up to the newest. Its owner's lock guards
    writes; reads need none.

    The step that moves the newest version also replaces or drops the written pages here, so a read at
    a version that is not below a page's own may use it.
    """

    def __init__(self, page_size: int) -> None:
        self._most = CACHE_BYTES_MAX // (page_size + _ENTRY_BYTES)
        self.pages: dict[int, tuple[bytes, int]] = {}
        """By page id: the bytes, and the version from which on they are current."""

    def put(self, pages: Mapping[int, bytes], lsn: int) -> None:
        """Take in pages that are current from `lsn` on; the oldest entries make room."""
        cached = self.pages
        if len(pages) > self._most:
            for page_id in pages:
                cached.pop(page_id, None)
            return
        for page_id, data in pages.items():
            cached[page_id] = (data, lsn)
        over = len(cached) - self._most
        if over > 0:
            for page_id in list(islice(cached, over)):
                del cached[page_id]

    def cut(self, n_pages: int) -> None:
        """Drop the pages that were cut off."""
        for page_id in [one for one in self.pages if one >= n_pages]:
            del self.pages[page_id]

    def clear(self) -> None:
        """Drop everything: it is not known which pages have changed."""
        self.pages.clear()
