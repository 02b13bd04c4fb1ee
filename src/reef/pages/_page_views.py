"""Reads of pages at one version."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import pyarrow as pa

from reef.engine import HeldSnapshot, SnapshotView, View
from reef.errors import UnavailableError, UnreadableError
from reef.pages._ahead import Ahead
from reef.pages._page_rows import DATA_FIELD, EXTENT_KEY, data_of, extent_of, keys_of, page_key

_COLUMNS = pa.schema([DATA_FIELD])


class PageView:
    """The pages at one version; nothing changes in it any more. Threads may share it."""

    def __init__(self, view: View, page_size: int, ahead_bytes: int) -> None:
        """`ahead_bytes` bounds what is fetched ahead when pages are read one after the other."""
        self.page_size = page_size
        self._view = view
        self._ahead = Ahead(page_size, ahead_bytes)

    @property
    def lsn(self) -> int:
        """The version."""
        return self._view.lsn

    @property
    def n_pages(self) -> int:
        """How far the store extends: 1 + the greatest page id since the last truncate."""
        return extent_of(self._view.one(EXTENT_KEY))

    def get_page(self, page_id: int) -> bytes | None:
        """Return a page, or None if there is no such page."""
        return page_of(self._view, self._ahead, page_id)

    def get_pages(self, page_ids: Iterable[int]) -> list[bytes | None]:
        """Return each page, or None; the blocks that are needed are fetched at once."""
        return pages_of(self._view, keys_of(page_ids))


class PageSnapshot(HeldSnapshot, PageView):
    """A view that stays readable until it expires or is released, in this process or another."""

    def __init__(self, view: SnapshotView, page_size: int, ahead_bytes: int) -> None:
        HeldSnapshot.__init__(self, view)
        PageView.__init__(self, view, page_size, ahead_bytes)


def page_of(view: View, ahead: Ahead, page_id: int) -> bytes | None:
    """Return a page of a view, or None, and have those that come next in memory if it is of a run."""
    key = page_key(page_id)
    if run := ahead.next(page_id):
        bring_ahead(view, ahead, key, page_key(run))
    found = view.one(key)
    return None if found is None else data_of(found)


def pages_of(view: View, keys: list[bytes]) -> list[bytes | None]:
    """Return what a view has under each key."""
    found = view.many(keys)
    if (few := found.few) is not None:
        return [None if row is None else data_of(row) for row in few]
    values: list[bytes | None] = found.rows(_COLUMNS).column(0).to_pylist()
    return values


def bring_ahead(view: View, ahead: Ahead, low: bytes, high: bytes) -> None:
    """Have in memory what reads of the pages from `low` to `high` need, as far as it can be had.

    A page that cannot be read raises when a caller reads it.
    """
    with suppress(UnavailableError, UnreadableError):
        view.read(lambda state: state.bring(low, high, view.lsn, bytes_max=ahead.bytes_max))
