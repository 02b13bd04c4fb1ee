"""A store that counts what it is asked, for `reef.metrics`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from typing import NoReturn, TypeVar

from typing_extensions import Buffer

from reef.clock import Clock
from reef.errors import AlreadyExistsError, NotFoundError
from reef.fork import abandon_in_child, forked_error
from reef.metrics import Metrics
from reef.store._base import Data, ObjectMeta, Store, size_of
from reef.threads import check_may_wait

LIST_PAGE = 1000
"""Entries that one LIST request brings, on every service there is."""

T = TypeVar("T")


class MeteredStore(Store):
    """Passes everything to `inner`, and counts requests, bytes and errors by kind.

    The kind is the name of the method. Merged ranges and each object of `get_many` count as the
    requests that are really made; an upload counts as one, a list as one per 1000 entries begun.
    "Not found" and "already exists" are answers, not errors. Closing it closes `inner`.
    Under `without_waiting`, every request but a PUT raises before it is made.
    """

    def __init__(self, inner: Store, metrics: Metrics, clock: Clock) -> None:
        super().__init__(
            inner.url, concurrency=inner.concurrency, merge_gap_bytes=inner.merge_gap_bytes
        )
        self.inner = inner
        self._metrics = metrics
        self._clock = clock
        self._note_put = metrics.recorder(
            *("reef_requests_total", "reef_request_bytes_total", "reef_put_seconds"),
            kind="put_if_absent",
        )
        abandon_in_child(self)

    def abandon(self) -> None:
        """Send nothing more, in a forked process: connections are the parent's."""
        self.inner = _ParentStore(self.url)

    def put_if_absent(self, key: str, data: Data) -> None:
        size = size_of(data)
        begun = self._clock.monotonic()
        try:
            self.inner.put_if_absent(key, data)
        except AlreadyExistsError:
            raise
        except Exception:
            self._metrics.count("reef_request_errors_total", kind="put_if_absent")
            raise
        finally:
            self._note_put(1, size, self._clock.monotonic() - begun)

    def upload(self, key: str, parts: Iterable[Buffer]) -> None:
        self._request("upload", lambda: self.inner.upload(key, self._weighed(parts)))

    def sweep(self, before_us: int) -> Sequence[str]:
        return self._request("sweep", lambda: self.inner.sweep(before_us))

    def reserve(self) -> AbstractContextManager[None]:
        return self.inner.reserve()

    def get(self, key: str) -> bytes:
        data = self._request("get", lambda: self.inner.get(key))
        self._sent("get", len(data))
        return data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        data = self._request("get_range", lambda: self.inner.get_range(key, start, length))
        self._sent("get_range", len(data))
        return data

    def head(self, key: str) -> ObjectMeta:
        return self._request("head", lambda: self.inner.head(key))

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectMeta]:
        check_may_wait()
        self._metrics.count("reef_requests_total", kind="list")
        entries = self.inner.list(prefix, start_after)
        for count in itertools.count():
            entry = self._watch("list", lambda: next(entries, None))
            if entry is None:
                return
            if count and count % LIST_PAGE == 0:
                self._metrics.count("reef_requests_total", kind="list")
            yield entry

    def delete(self, key: str) -> None:
        self._request("delete", lambda: self.inner.delete(key))

    def close(self) -> None:
        self.inner.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    def _executor(self) -> Executor:
        check_may_wait()
        return self.inner._executor()

    def _request(self, kind: str, call: Callable[[], T]) -> T:
        check_may_wait()
        self._metrics.count("reef_requests_total", kind=kind)
        return self._watch(kind, call)

    def _watch(self, kind: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except (NotFoundError, AlreadyExistsError):
            raise
        except Exception:
            self._metrics.count("reef_request_errors_total", kind=kind)
            raise

    def _weighed(self, parts: Iterable[Buffer]) -> Iterator[Buffer]:
        for part in parts:
            self._sent("upload", memoryview(part).nbytes)
            yield part

    def _sent(self, kind: str, size: int) -> None:
        self._metrics.count("reef_request_bytes_total", size, kind=kind)


class _ParentStore(Store):
    """The store of a database in a forked process."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise forked_error(f"the database at {self.url}")

    put_if_absent = upload = sweep = get = get_range = head = list = delete = _refuse
    _executor = _refuse
