"""The object store as Reef sees it: seven requests, and uploads in parts.

Invariants every store keeps, proved by the contract suite (`reef/testing/contract.py`):

- `put_if_absent` is one atomic step. Among racing creators exactly one succeeds, and what it wrote
  is whole. There is no default: a store that cannot do it must not pretend.
- It makes a single attempt. `AlreadyExistsError` and `UnavailableError` both leave open whether
  this very call created the object (`NotWrittenError` alone does not): only `reef.store.create`
  may decide that, by reading back.
- Reading after a successful write sees it. `list` gives keys in byte order.
- `get_range` gives exactly the bytes asked for, or raises.
- `delete` of what is not there succeeds.
"""

from __future__ import annotations

import builtins
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Self, TypeAlias

from typing_extensions import Buffer

from reef.errors import NotFoundError
from reef.store._byte_ranges import cut_range, merge_ranges

CONCURRENCY_DEFAULT = 16
MERGE_GAP_BYTES_DEFAULT = 64 << 10


class ObjectMeta(NamedTuple):
    """An object in a store, without its bytes."""

    key: str
    size: int
    last_modified_us: int
    """The store's own clock, in microseconds since 1970; S3 rounds to seconds."""


Data: TypeAlias = Buffer | tuple[Buffer, ...]
"""The bytes of an object: in one piece, or in parts that follow each other."""


def parts_of(data: Data) -> tuple[Buffer, ...]:
    """Return the parts of `data`, in order."""
    return data if isinstance(data, tuple) else (data,)


def bytes_of(data: Data) -> bytes:
    """Return `data` in one piece; a copy, unless it is bytes already."""
    return data if isinstance(data, bytes) else b"".join(map(as_view, parts_of(data)))


def size_of(data: Data) -> int:
    """Return how many bytes `data` has."""
    return len(data) if isinstance(data, bytes) else sum(as_view(p).nbytes for p in parts_of(data))


def as_view(data: Buffer) -> memoryview:
    """Return the bytes of any buffer (an array, an Arrow buffer) as they lie in memory."""
    view = memoryview(data)
    # A view without bytes, or with gaps between them, cannot be cast.
    return view.cast("B") if view.c_contiguous and view.nbytes else memoryview(view.tobytes())


class Store(ABC):
    """A bucket, or a prefix of one. Keys are relative to it. Safe to share among threads."""

    url: str
    """The URL, for people: without credentials."""

    def __init__(
        self,
        url: str,
        *,
        concurrency: int = CONCURRENCY_DEFAULT,
        merge_gap_bytes: int = MERGE_GAP_BYTES_DEFAULT,
        pool: Executor | None = None,
    ) -> None:
        self.url = url
        self.concurrency = concurrency
        self.merge_gap_bytes = merge_gap_bytes
        self._pool = pool
        self._pool_lock = threading.Lock()
        self._pool_pid = 0
        self._owns_pool = pool is None

    @abstractmethod
    def put_if_absent(self, key: str, data: Data) -> None:
        """Create `key` holding `data`, in one attempt. The store keeps no part of it.

        Raises AlreadyExistsError if the name is taken (perhaps by this very call, if the client
        below repeated it), NotWrittenError if nothing was written for certain, UnavailableError if
        there was no clear answer.
        """

    @abstractmethod
    def upload(self, key: str, parts: Iterable[Buffer]) -> None:
        """Create a large object in parts; it becomes visible whole, when the last part is there.

        Making a part may use the store; a part must not change once it was handed over.
        For names that no other writer will ever use (they carry a ULID): unlike `put_if_absent`,
        it does not arbitrate. Raises UnavailableError; the object may then exist or not.
        """

    @abstractmethod
    def sweep(self, before_us: int) -> Sequence[str]:
        """Discard the parts and temporaries that unfinished writes began before that time.

        Returns their keys. A write that began earlier and still runs may fail.
        """

    def reserve(self) -> AbstractContextManager[None]:
        """Return a context in which this thread's `put_if_absent` may use room that is kept back.

        Only collection does: it has to write before it can free anything. A store that can run full
        keeps such room, and again after `sweep`.
        """
        return nullcontext()

    @abstractmethod
    def get(self, key: str) -> bytes:
        """Return the whole object. Raises NotFoundError, UnavailableError."""

    @abstractmethod
    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return exactly `length` (at least 1) bytes from `start`.

        Raises NotFoundError, UnavailableError, IncompleteError if the object ends before that.
        """

    @abstractmethod
    def head(self, key: str) -> ObjectMeta:
        """Return the object's size and time. Raises NotFoundError, UnavailableError."""

    @abstractmethod
    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectMeta]:
        """Yield the objects under the folder `prefix` with keys above `start_after`, in byte order."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove the object; succeeds if it is not there. Raises UnavailableError."""

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        """Return the bytes of each (start, length), in the order asked.

        Ranges no further apart than `merge_gap_bytes` share one request of at most 16 MiB. One
        `get_many`, `get_ranges` or `upload` has at most `concurrency` requests in flight.
        """
        merged, places = merge_ranges(ranges, self.merge_gap_bytes)
        if len(merged) <= 1 or self.concurrency == 1:
            chunks = [self.get_range(key, start, length) for start, length in merged]
        else:
            chunks = list(self._executor().map(lambda r: self.get_range(key, *r), merged))
        return [cut_range(chunks, place) for place in places]

    def get_many(self, keys: Sequence[str]) -> builtins.list[bytes | None]:
        """Return each whole object, in the order asked; None where there is none.

        One GET for each, concurrently. Raises UnavailableError.
        """
        if len(keys) <= 1 or self.concurrency == 1:
            return [self._get_or_none(key) for key in keys]
        return [*self._executor().map(self._get_or_none, keys)]

    def close(self) -> None:
        """Release threads and connections. The store must not be used afterwards."""
        if self._owns_pool and self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _get_or_none(self, key: str) -> bytes | None:
        try:
            return self.get(key)
        except NotFoundError:
            return None

    def _executor(self) -> Executor:
        with self._pool_lock:
            # A fork inherits the pool, but none of its threads.
            if self._pool is None or (self._owns_pool and self._pool_pid != os.getpid()):
                self._pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="reef-store")
                self._pool_pid = os.getpid()
            return self._pool

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"
