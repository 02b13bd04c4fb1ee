"""A known history of pages: what every page holds at every LSN, without a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from reef.pages import WalRecord

SIZE = 16
_PAGE = np.dtype([("page", "<u4"), ("mark", "<u4"), ("lsn", "<u8")])

Numbers = npt.NDArray[np.int64]


class PageHistory:
    """Versions of pages: each page holds its own number, a mark of its store, and its LSN.

    A dict from (page, LSN) to data would say the same; this is one that can be asked for all pages at
    once: versions lie in order of page and LSN, and the one at or below another is found by halving.
    """

    def __init__(self, mark: int = 0) -> None:
        self.mark = mark
        self._pages: list[Numbers] = []
        self._lsns: list[Numbers] = []
        self._gone: list[npt.NDArray[np.bool_]] = []
        self._marks: list[Numbers] = []
        self._extents: list[tuple[int, int]] = [(0, 0)]
        self._sorted: tuple[Numbers, npt.NDArray[np.bool_], Numbers] | None = None

    @property
    def versions(self) -> int:
        """How many versions of pages there are, those that cut pages off included."""
        return sum(map(len, self._pages))

    @property
    def head(self) -> int:
        return self._extents[-1][0]

    def fork(self, lsn: int, mark: int) -> PageHistory:
        """Return one that goes on from this one's state at `lsn`."""
        fork = PageHistory(mark)
        for pages, lsns, gone, marks in zip(
            self._pages, self._lsns, self._gone, self._marks, strict=True
        ):
            some = lsns <= lsn
            fork._add(pages[some], lsns[some], gone[some], marks[some])
        fork._extents = [one for one in self._extents if one[0] <= lsn]
        return fork

    def write(self, lsn: int, pages: Numbers) -> list[WalRecord]:
        """Give `pages`, each once, a version; return the records that say so."""
        count = len(pages)
        self._add(pages, _all(lsn, count), np.zeros(count, np.bool_), _all(self.mark, count))
        self._extents.append((lsn, max(self.extent(lsn), int(pages.max()) + 1)))
        data = self._data(pages, _all(lsn, count), _all(self.mark, count)).tobytes()
        return [
            WalRecord(page, lsn, data[i * SIZE : (i + 1) * SIZE])
            for i, page in enumerate(pages.tolist())
        ]

    def cut(self, lsn: int, n_pages: int) -> None:
        """Cut the store to `n_pages`."""
        gone = np.arange(n_pages, max(n_pages, self.extent(lsn)), dtype=np.int64)
        count = len(gone)
        self._add(gone, _all(lsn, count), np.ones(count, np.bool_), _all(self.mark, count))
        self._extents.append((lsn, n_pages))

    def extent(self, lsn: int) -> int:
        """Return how far the store extends at `lsn`."""
        return max((one for one in self._extents if one[0] <= lsn), key=lambda one: one[0])[1]

    def at(self, lsn: int, pages: Sequence[int]) -> list[bytes | None]:
        """Return what each page holds at `lsn`."""
        keys, gone, marks = self._in_order()
        asked = np.array(pages, np.int64)
        found = np.searchsorted(keys, asked << 32 | lsn, side="right") - 1
        there = keys[np.maximum(found, 0)]
        is_there = (found >= 0) & (there >> 32 == asked) & ~gone[np.maximum(found, 0)]
        data = self._data(asked, there & 0xFFFFFFFF, marks[np.maximum(found, 0)]).tobytes()
        return [
            data[i * SIZE : (i + 1) * SIZE] if is_one else None
            for i, is_one in enumerate(is_there.tolist())
        ]

    def differences(
        self, lsn: int, pages: Sequence[int], found: Sequence[bytes | None]
    ) -> Iterator[tuple[int, bytes | None, bytes | None]]:
        """Yield the pages that differ from what they hold at `lsn`: what they are, and should be."""
        expected = self.at(lsn, pages)
        if list(found) != expected:
            for page, is_now, should in zip(pages, found, expected, strict=True):
                if is_now != should:
                    yield page, is_now, should

    def _add(
        self, pages: Numbers, lsns: Numbers, gone: npt.NDArray[np.bool_], marks: Numbers
    ) -> None:
        self._pages.append(pages)
        self._lsns.append(lsns)
        self._gone.append(gone)
        self._marks.append(marks)
        self._sorted = None

    def _in_order(self) -> tuple[Numbers, npt.NDArray[np.bool_], Numbers]:
        if self._sorted is None:
            keys = np.concatenate(self._pages) << 32 | np.concatenate(self._lsns)
            order = np.argsort(keys)
            gone, marks = np.concatenate(self._gone), np.concatenate(self._marks)
            self._sorted = keys[order], gone[order], marks[order]
        return self._sorted

    @staticmethod
    def _data(pages: Numbers, lsns: Numbers, marks: Numbers) -> npt.NDArray[np.void]:
        data = np.zeros(len(pages), _PAGE)
        data["page"], data["lsn"], data["mark"] = pages, lsns, marks
        return data


def _all(value: int, count: int) -> Numbers:
    return np.full(count, value, np.int64)
