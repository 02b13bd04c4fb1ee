"""Counting what a store is asked and what goes over the wire."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from typing_extensions import Buffer

from reef.store import Data, Store, size_of
from reef.testing._wrapper import Operation, T, WrapperStore


@dataclass(frozen=True)
class Counts:
    """Requests and payload bytes by operation; 0 for operations that never happened."""

    requests: Mapping[str, int]
    bytes: Mapping[str, int]

    @property
    def total(self) -> int:
        """All requests together."""
        return sum(self.requests.values())

    def __sub__(self, earlier: Counts) -> Counts:
        """What came after `earlier`."""
        return Counts(
            Counter(self.requests) - Counter(earlier.requests),
            Counter(self.bytes) - Counter(earlier.bytes),
        )


class CountingStore(WrapperStore):
    """Counts requests and bytes by operation, failed requests too. Safe among threads.

    An upload is one request whatever its parts. A list is one request per 1000 entries begun, at
    least one. Bytes are those given to `put_if_absent`, `put` and `upload`, and those that `get` and
    `get_range` brought back, merged gaps included.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    @property
    def counts(self) -> Counts:
        """What was counted since the beginning, or since `reset`."""
        with self._lock:
            return Counts(Counter(self._requests), Counter(self._bytes))

    def reset(self) -> Counts:
        """Begin again at zero; return what was counted so far."""
        with self._lock:
            counted = Counts(self._requests, self._bytes)
            self._requests, self._bytes = Counter(), Counter()
        return counted

    def put_if_absent(self, key: str, data: Data) -> None:
        self._add_bytes("put_if_absent", size_of(data))
        super().put_if_absent(key, data)

    def put(self, key: str, data: Buffer) -> None:
        self._add_bytes("put", memoryview(data).nbytes)
        super().put(key, data)

    def upload(self, key: str, parts: Iterable[Buffer]) -> None:
        super().upload(key, self._weighed(parts))

    def get(self, key: str) -> bytes:
        data = super().get(key)
        self._add_bytes("get", len(data))
        return data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        data = super().get_range(key, start, length)
        self._add_bytes("get_range", len(data))
        return data

    def _request(self, operation: Operation, key: str, call: Callable[[], T]) -> T:
        self._add_request(operation)
        return call()

    def _next_page(self) -> None:
        self._add_request("list")

    def _weighed(self, parts: Iterable[Buffer]) -> Iterator[Buffer]:
        for part in parts:
            self._add_bytes("upload", memoryview(part).nbytes)
            yield part

    def _add_request(self, operation: Operation) -> None:
        with self._lock:
            self._requests[operation] += 1

    def _add_bytes(self, operation: Operation, size: int) -> None:
        with self._lock:
            self._bytes[operation] += size
