"""The store as maintenance uses it: a few requests at a time, before each of which a step may rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from typing_extensions import Buffer

from reef.clock import Clock
from reef.maintenance import Pace
from reef.store import Data, ObjectMeta, Store

CONCURRENCY = 4

T = TypeVar("T")


class PacedStore(Store):
    """Passes everything to `inner`; calls `before` ahead of each request and each part of an upload.

    The time of requests to a store elsewhere is not work: the step only waits for it.
    """

    def __init__(
        self, inner: Store, pace: Pace, clock: Clock, before: Callable[[], None] | None = None
    ) -> None:
        super().__init__(
            inner.url,
            concurrency=min(CONCURRENCY, inner.concurrency),
            merge_gap_bytes=inner.merge_gap_bytes,
        )
        self._inner = inner
        self._is_local = inner.concurrency == 1
        self._pace = pace
        self._clock = clock
        self._before = before or pace
        self.uploaded: list[str] = []
        """The keys of uploads that were begun."""

    def put_if_absent(self, key: str, data: Data) -> None:
        self._request(lambda: self._inner.put_if_absent(key, data))

    def upload(self, key: str, parts: Iterable[Buffer]) -> None:
        self._before()
        self.uploaded.append(key)
        self._inner.upload(key, self._paced(parts))

    def sweep(self, before_us: int) -> Sequence[str]:
        return self._request(lambda: self._inner.sweep(before_us))

    def get(self, key: str) -> bytes:
        return self._request(lambda: self._inner.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._request(lambda: self._inner.get_range(key, start, length))

    def head(self, key: str) -> ObjectMeta:
        return self._request(lambda: self._inner.head(key))

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectMeta]:
        self._before()
        for entry in self._inner.list(prefix, start_after):
            self._pace()
            yield entry

    def delete(self, key: str) -> None:
        self._request(lambda: self._inner.delete(key))

    def _request(self, call: Callable[[], T]) -> T:
        self._before()
        begun = self._clock.monotonic()
        try:
            return call()
        finally:
            if not self._is_local:
                self._pace.waited(self._clock.monotonic() - begun)

    def _paced(self, parts: Iterable[Buffer]) -> Iterator[Buffer]:
        for part in parts:
            self._pace()
            yield part
