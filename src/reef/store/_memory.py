"""`memory://NAME`: a bucket that lives as long as the process, for tests and trials."""

from __future__ import annotations

import os
import threading
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

from typing_extensions import Buffer

from reef.clock import Clock, SystemClock
from reef.errors import AlreadyExistsError, IncompleteError, NotFoundError
from reef.store._base import Data, ObjectMeta, Store, bytes_of
from reef.store._byte_ranges import check_range
from reef.types import check_object_key, check_prefix


class _MemoryBucket:
    """The objects of one name, shared by every store opened on it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.keys: list[str] = []


_buckets: dict[str, _MemoryBucket] = {}
_buckets_lock = threading.Lock()


def _renew_locks() -> None:
    """Take new locks in a forked process: a thread of the parent may hold the old ones."""
    global _buckets_lock
    _buckets_lock = threading.Lock()
    for bucket in _buckets.values():
        bucket.lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)


class MemoryStore(Store):
    """All objects in a dict under a lock. Two stores of one name in one process share them."""

    def __init__(self, name: str = "", prefix: str = "", *, clock: Clock | None = None) -> None:
        """Open bucket `name`; without a name, a new one that nobody else can reach."""
        super().__init__("memory://" + f"{name}/{prefix}".strip("/"), concurrency=1)
        self._clock = clock or SystemClock()
        self._prefix = prefix
        if name:
            with _buckets_lock:
                self._bucket = _buckets.setdefault(name, _MemoryBucket())
        else:
            self._bucket = _MemoryBucket()

    def put_if_absent(self, key: str, data: Data) -> None:
        self._set(key, data, overwrite=False)

    def put(self, key: str, data: Data) -> None:
        """Write `key` whatever is there."""
        self._set(key, data, overwrite=True)

    def copy(self, source: str, destination: str) -> None:
        """Write the bytes of `source` to `destination`. Raises NotFoundError."""
        self._set(destination, self.get(source), overwrite=True)

    def upload(self, key: str, parts: Iterable[Buffer]) -> None:
        self._set(key, tuple(parts), overwrite=True)

    def sweep(self, before_us: int) -> Sequence[str]:
        return []

    def get(self, key: str) -> bytes:
        return self._find(key)[0]

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(start, length)
        data = self._find(key)[0][start : start + length]
        if len(data) != length:
            raise IncompleteError(key, start, f"{length} bytes", f"{len(data)}")
        return data

    def head(self, key: str) -> ObjectMeta:
        data, modified = self._find(key)
        return ObjectMeta(key, len(data), modified)

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectMeta]:
        skip = len(self._prefix)
        under = self._prefix + check_prefix(prefix)
        at = max(under, self._prefix + start_after)
        while True:
            with self._bucket.lock:
                i = bisect_right(self._bucket.keys, at)
                page = self._bucket.keys[i : i + 1000]
                found = [(key, *self._bucket.objects[key]) for key in page]
            for key, data, modified in found:
                if not key.startswith(under):
                    return
                yield ObjectMeta(key[skip:], len(data), modified)
            if not page:
                return
            at = page[-1]

    def delete(self, key: str) -> None:
        full = self._prefix + check_object_key(key)
        with self._bucket.lock:
            if self._bucket.objects.pop(full, None) is not None:
                del self._bucket.keys[bisect_right(self._bucket.keys, full) - 1]

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} cannot go to another process: it lives in this process only")

    def _set(self, key: str, data: Data, *, overwrite: bool) -> None:
        full = self._prefix + check_object_key(key)
        value = (bytes_of(data), self._clock.now_us())
        with self._bucket.lock:
            if full not in self._bucket.objects:
                insort(self._bucket.keys, full)
            elif not overwrite:
                raise AlreadyExistsError(f"{key!r} exists in {self.url}")
            self._bucket.objects[full] = value

    def _find(self, key: str) -> tuple[bytes, int]:
        full = self._prefix + check_object_key(key)
        with self._bucket.lock:
            found = self._bucket.objects.get(full)
        if found is None:
            raise NotFoundError(f"{key!r} is not in {self.url}")
        return found
