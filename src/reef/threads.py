"""Threads, as an object that is passed in, so that a scheduler of a test can own them.

Whoever starts a thread, or waits for one, does it through `Threads`. A plain `threading.Lock` that
is never held while something waits needs no scheduler and may stay plain.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Protocol


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
        """Let go of the lock until notified, then take it again; False after `timeout` seconds.

        It may return without any news: what is waited for is looked at again by the caller.
        """
        ...

    def notify_all(self) -> None:
        """Wake all that wait, once the lock is given back."""
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

    def start(self, target: Callable[[], None], *, name: str) -> Joinable:
        """Run `target` in a thread of its own, which does not keep the process alive."""
        ...


class SystemThreads:
    """The machine's own threads."""

    def condition(self) -> Condition:
        return threading.Condition(threading.Lock())

    def start(self, target: Callable[[], None], *, name: str) -> Joinable:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread
