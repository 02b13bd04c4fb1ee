"""A database for asyncio."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from reef import database
from reef.aio._calls import Pool, Wrapped, pooled, streamed
from reef.aio._faces import Documents, Handle, KeyValue, Pages
from reef.engine import Namespace
from reef.metrics import Metrics
from reef.settings import parse_int

H = TypeVar("H", bound=Handle[Namespace])

THREADS_DEFAULT = 32
_NAMES_AT_ONCE = 100


class Opening(Generic[H]):
    """A namespace that is opened by `await`, or by `async with`, which closes it as well."""

    def __init__(self, open: Callable[[], Any], wrap: Callable[[Any, Pool], H], pool: Pool) -> None:
        self._open = open
        self._wrap = wrap
        self._pool = pool
        self._opened: H | None = None

    def __await__(self) -> Generator[Any, None, H]:
        return self._begin().__await__()

    async def __aenter__(self) -> H:
        self._opened = await self._begin()
        return self._opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._opened is not None:
            await self._opened.close()

    async def _begin(self) -> H:
        return self._wrap(await self._pool.run(self._open), self._pool)


class Database(Wrapped[database.Database]):
    """The namespaces of one bucket. Tasks may share it. Use as a context manager, or `close`."""

    def __init__(self, inner: database.Database, threads: int = THREADS_DEFAULT) -> None:
        """Use `inner`, with at most `threads` calls under way that have to wait for something."""
        super().__init__(inner, Pool(parse_int("threads", threads, 1, 10_000)))

    @property
    def metrics(self) -> Metrics:
        """What this process has counted; `metrics.text()` is what Prometheus reads."""
        return self._inner.metrics

    def namespace(self, name: str, **options: Any) -> Opening[Documents]:
        """Open documents: `await` it, or use it with `async with`. The options are `reef.Database`'s."""
        return Opening(partial(self._inner.namespace, name, **options), Documents, self._pool)

    def kv(self, name: str, **options: Any) -> Opening[KeyValue]:
        """Open keys and values: `await` it, or use it with `async with`."""
        return Opening(partial(self._inner.kv, name, **options), KeyValue, self._pool)

    def pages(self, name: str, **options: Any) -> Opening[Pages]:
        """Open a page store: `await` it, or use it with `async with`."""
        return Opening(partial(self._inner.pages, name, **options), Pages, self._pool)

    namespaces = streamed(database.Database.namespaces, at_once=_NAMES_AT_ONCE)
    drop = pooled(database.Database.drop)

    async def close(self) -> None:
        """Close the open namespaces once their calls have ended; release connections and threads."""
        await self._pool.run(self._inner.close)
        self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def connect(
    url: str | os.PathLike[str], *, threads: int = THREADS_DEFAULT, **settings: Any
) -> Database:
    """Open the bucket at `url`, as `reef.connect` does; nothing is asked of it yet.

    At most `threads` calls wait for the bucket at a time; more of them wait for a thread. Writers
    that wait together share log objects, so a server with many of them gains from more threads.
    """
    return Database(database.connect(url, **settings), threads)
