"""What the wrappers share: every request passes one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal, TypeVar, cast, get_args

from typing_extensions import Buffer

from reef.store import Data, ObjectMeta, Store

if TYPE_CHECKING:
    from reef.store.two_phase import PlainStore

Operation = Literal[
    "put_if_absent",
    "upload",
    "sweep",
    "get",
    "get_range",
    "head",
    "list",
    "delete",
    "put",
    "copy",
]
"""What a store is asked: the names of its methods. The last two only exist below two-phase CAS."""

OPERATIONS: tuple[Operation, ...] = get_args(Operation)
LIST_PAGE = 1000
"""Entries that one LIST request brings, on every service there is."""

T = TypeVar("T")


class WrapperStore(Store):
    """A store that passes everything to `inner`; subclasses change what happens on the way.

    Every request goes through `_request`. `get_ranges` and `get_many` are not passed on as such:
    they ask `get_range` for each merged range, and `get` for each object, here, so that wrappers see
    the requests that are really made.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(
            inner.url, concurrency=inner.concurrency, merge_gap_bytes=inner.merge_gap_bytes
        )
        self.inner = inner

    def _request(self, operation: Operation, key: str, call: Callable[[], T]) -> T:
        """Carry out one request; `call` does it for real. For `list`, `key` is the prefix."""
        return call()

    def _next_page(self) -> None:
        """Have a LIST send another request: the one before has brought `LIST_PAGE` entries."""

    def put_if_absent(self, key: str, data: Data) -> None:
        self._request("put_if_absent", key, lambda: self.inner.put_if_absent(key, data))

    def upload(self, key: str, parts: Iterable[Buffer]) -> None:
        self._request("upload", key, lambda: self.inner.upload(key, parts))

    def sweep(self, before_us: int) -> Sequence[str]:
        return self._request("sweep", "", lambda: self.inner.sweep(before_us))

    def reserve(self) -> AbstractContextManager[None]:
        return self.inner.reserve()

    def get(self, key: str) -> bytes:
        return self._request("get", key, lambda: self.inner.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._request("get_range", key, lambda: self.inner.get_range(key, start, length))

    def head(self, key: str) -> ObjectMeta:
        return self._request("head", key, lambda: self.inner.head(key))

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectMeta]:
        entries = self._request("list", prefix, lambda: self.inner.list(prefix, start_after))
        for i, entry in enumerate(entries):
            if i and i % LIST_PAGE == 0:
                self._next_page()
            yield entry

    def delete(self, key: str) -> None:
        self._request("delete", key, lambda: self.inner.delete(key))

    def put(self, key: str, data: Buffer) -> None:
        """Write `key` whatever is there, where the store inside can."""
        self._request("put", key, lambda: cast("PlainStore", self.inner).put(key, data))

    def copy(self, source: str, destination: str) -> None:
        """Copy an object on the server, where the store inside can."""
        self._request(
            "copy", source, lambda: cast("PlainStore", self.inner).copy(source, destination)
        )

    def close(self) -> None:
        """Close this store and the one inside."""
        super().close()
        self.inner.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"
