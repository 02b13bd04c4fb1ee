"""Threads, as an object that is passed in, so that a scheduler of a test can own them.

All code starts threads, and waits for them, through `Threads`. A plain `threading.Lock` that
is never held while something waits needs no scheduler and may stay plain.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from types import TracebackType
from typing import Generic, Protocol, TypeVar


class Condition(Protocol):
    """A lock, as a context manager, on which its holder can wait for news. Not re-entrant."""

    def __enter__(self) -> bool:
        """Take the lock."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        """Give the lock back."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock until notified, then take it again; False after `timeout` seconds.

        It may return without any news: the caller checks its condition again.
        """
        ...

    def notify_all(self) -> None:
        """Wake all that wait, once the lock is given back."""
        ...


class Signal(Protocol):
    """What one thread waits for and another gives, once. Cheap enough to make one for each wait."""

    def wait(self) -> None:
        """Return when it was given, at once if it was before."""
        ...

    def give(self) -> None:
        """Wake the waiter; a second call does nothing."""
        ...


class Joinable(Protocol):
    """A thread that was started."""

    def join(self) -> None:
        """Return when it has ended."""
        ...


class Threads(Protocol):
    """What Reef asks of threads."""

    def condition(self) -> Condition:
        """Return a new condition with a lock of its own."""
        ...

    def signal(self) -> Signal:
        """Return a new signal."""
        ...

    def start(self, target: Callable[[], None], *, name: str) -> Joinable:
        """Run `target` in a thread of its own, which does not keep the process alive."""
        ...


class _SystemCondition(type(threading.RLock())):  # type: ignore[misc]
    """A lock whose `with` runs no line of Python: an interrupt in one could leave it taken.

    It checks its owner, and is held again after a wait whatever interrupts.
    """

    def __init__(self) -> None:
        self._news = threading.Condition(self)

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_owned():
            raise RuntimeError("wait() without the lock")
        try:
            return self._news.wait(timeout)
        finally:
            if not self._is_owned():  # interrupted after it was released, before the wait
                self._acquire_restore((1, threading.get_ident()))

    def notify_all(self) -> None:
        self._news.notify_all()


class _SystemSignal:
    """A lock that is taken from the start: to wait is to take it again."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self) -> None:
        self._lock.acquire()

    def give(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            return  # given before


class SystemThreads:
    """The machine's own threads."""

    def condition(self) -> Condition:
        return _SystemCondition()

    def signal(self) -> Signal:
        return _SystemSignal()

    def start(self, target: Callable[[], None], *, name: str) -> Joinable:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread


class _ThisThread(threading.local):
    may_wait = True


_this_thread = _ThisThread()


class WouldWaitError(Exception):
    """A call under `without_waiting` came to where it would ask a store or a disk; nothing was done."""


@contextmanager
def without_waiting() -> Iterator[None]:
    """Let calls of this thread raise WouldWaitError where they would wait for a store or a disk."""
    _this_thread.may_wait = False
    try:
        yield
    finally:
        _this_thread.may_wait = True


def check_may_wait() -> None:
    """Raise WouldWaitError under `without_waiting`."""
    if not _this_thread.may_wait:
        raise WouldWaitError


T = TypeVar("T")


def for_each(
    items: Iterable[T], work: Callable[[T], None], *, width: int, threads: Threads
) -> None:
    """Do `work` on every item, `width` at a time; one by one in this thread if that is 1.

    The first error ends it, and is raised when what was under way has ended too. An interrupt is raised
    at once: what was under way goes on, and nothing more is begun.
    """
    if width <= 1:
        for item in items:
            work(item)
        return
    check_may_wait()
    left = iter(items)
    first = [*islice(left, width)]
    lanes = _Lanes(chain(first, left), work)
    try:
        started = [
            threads.start(lanes.run, name=f"reef-lane-{lane}") for lane, _ in enumerate(first)
        ]
        for thread in started:
            thread.join()
    except BaseException as interrupt:
        lanes.error = interrupt
        raise
    if lanes.error is not None:
        raise lanes.error


class _Lanes(Generic[T]):
    """Threads that take the next item as soon as they are free."""

    def __init__(self, items: Iterator[T], work: Callable[[T], None]) -> None:
        self._items = items
        self._work = work
        self._lock = threading.Lock()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while self.error is None:
                with self._lock:
                    item = next(self._items)
                self._work(item)
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001 raised again where the threads are joined
            self.error = self.error or error


def run_to_end(work: Callable[[], T], *, threads: Threads, called_off: Callable[[], None]) -> T:
    """Do `work` in a thread of its own, so that an interrupt such as Ctrl-C falls between its steps.

    On an interrupt of this thread, calls `called_off`, by which `work` should learn that it can end
    early, and raises the interrupt when `work` has ended. Raises what `work` raises.
    """
    errand = _Errand(work, threads)
    try:
        threads.start(errand.run, name="reef-steps")
        errand.wait()
    except BaseException:
        called_off()
        errand.call_off()
        raise
    if errand.error is not None:
        raise errand.error
    return errand.results[0]


class _Errand(Generic[T]):
    """One piece of work in another thread, and whether it has begun and ended."""

    def __init__(self, work: Callable[[], T], threads: Threads) -> None:
        self._work = work
        self._changed = threads.condition()
        self._is_called_off = self._has_begun = self._is_over = False
        self.results: list[T] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        with self._changed:
            if self._is_called_off:
                return
            self._has_begun = True
        try:
            self.results.append(self._work())
        except BaseException as error:  # noqa: BLE001 raised where it is waited for
            self.error = error
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def wait(self) -> None:
        with self._changed:
            while not self._is_over:
                self._changed.wait()

    def call_off(self) -> None:
        """Keep the work from beginning; wait for its end if it has begun."""
        with self._changed:
            self._is_called_off = True
            while self._has_begun and not self._is_over:
                self._changed.wait()
