"""Methods of a handle as coroutines: each runs in the pool, or at once if memory has what it needs.

Invariants:

- The event loop never waits for a store, a disk or another thread's request.
- A handle is used as threads use it: the pool adds no lock, and no order between calls.
- An iterator is advanced by one thread at a time, and closed once its last step has ended, even if
  the task that was waiting for that step was cancelled.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from itertools import islice
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from reef.fork import abandon_in_child, forked_error
from reef.threads import WouldWaitError, without_waiting

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
T = TypeVar("T")
W = TypeVar("W")
P = ParamSpec("P")


class Pool:
    """The threads that calls of one database run in."""

    def __init__(self, threads: int) -> None:
        self._executor: ThreadPoolExecutor | None = ThreadPoolExecutor(
            threads, thread_name_prefix="reef-aio"
        )
        """None: it was closed; what is called then, a closed handle refuses in a thread of the loop's."""
        self._is_abandoned = False
        abandon_in_child(self)

    def abandon(self) -> None:
        """Be closed, in a forked process: the threads are the parent's."""
        self._is_abandoned = True

    async def run(self, call: Callable[[], T]) -> T:
        """Return what `call` does; cancelled before a thread has taken it, it is not called."""
        if self._is_abandoned:
            raise forked_error("this handle")
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def submit(self, call: Callable[[], object]) -> None:
        """Run `call` when a thread is free; nobody waits for it."""
        asyncio.get_running_loop().run_in_executor(self._executor, call)

    def close(self) -> None:
        """Let the threads end when their calls have."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False)


class Wrapped(Generic[S_co]):
    """A handle or a view of Reef, and the pool that its methods run in."""

    def __init__(self, inner: S_co, pool: Pool) -> None:
        self._inner = inner
        self._pool = pool

    def __repr__(self) -> str:
        return f"aio.{self._inner!r}"


def pooled(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[Wrapped[S], P], Coroutine[Any, Any, T]]:
    """Return `method` as a coroutine that runs in the pool."""

    @wraps(method)
    async def call(self: Wrapped[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._pool.run(partial(method, self._inner, *args, **kwargs))

    return call


def from_memory(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[Wrapped[S], P], Coroutine[Any, Any, T]]:
    """Return a point read as a coroutine: at once where memory has all of it, else in the pool."""

    @wraps(method)
    async def call(self: Wrapped[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with without_waiting():
                return method(self._inner, *args, **kwargs)
        except WouldWaitError:
            pass
        return await self._pool.run(partial(method, self._inner, *args, **kwargs))

    return call


def streamed(
    method: Callable[Concatenate[S, P], Iterator[T]], *, at_once: int = 1
) -> Callable[Concatenate[Wrapped[S], P], AsyncIterator[T]]:
    """Return `method` as an asynchronous iterator, which takes `at_once` items from each step."""

    @wraps(method)
    async def call(self: Wrapped[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        steps = _Steps(partial(method, self._inner, *args, **kwargs), at_once)
        try:
            while some := await self._pool.run(steps.next):
                for one in some:
                    yield one
        finally:
            if not steps.is_over:
                self._pool.submit(steps.close)

    return call


class _Steps(Generic[T]):
    """An iterator that threads of a pool advance in turn."""

    def __init__(self, begin: Callable[[], Iterator[T]], at_once: int) -> None:
        self._begin = begin
        self._at_once = at_once
        self._items: Iterator[T] | None = None
        self._turn = threading.Lock()
        self.is_over = False

    def next(self) -> list[T]:
        """Return the next items; none at the end."""
        with self._turn:
            if self.is_over:
                return []
            if self._items is None:
                self._items = self._begin()
            some = [*islice(self._items, self._at_once)]
            self.is_over = not some
            return some

    def close(self) -> None:
        """End the iterator, once the step under way has ended."""
        with self._turn:
            self.is_over = True
            close = getattr(self._items, "close", None)
            if close is not None:
                close()


def wrapped(
    method: Callable[Concatenate[S, P], T], wrap: Callable[[T, Pool], W]
) -> Callable[Concatenate[Wrapped[S], P], Coroutine[Any, Any, W]]:
    """Return `method` as a coroutine whose result is wrapped in its turn."""

    @wraps(method)
    async def call(self: Wrapped[S], /, *args: P.args, **kwargs: P.kwargs) -> W:
        result = await self._pool.run(partial(method, self._inner, *args, **kwargs))
        return wrap(result, self._pool)

    return call
