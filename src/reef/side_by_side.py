"""Requests for many objects at once, as many as the store takes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Generic, TypeVar

from reef.threads import Threads

T = TypeVar("T")


def for_each(
    items: Iterable[T], work: Callable[[T], None], *, width: int, threads: Threads
) -> None:
    """Do `work` on every item, `width` at a time; one by one in this thread if that is 1.

    The first error ends it, and is raised when what was under way has ended too.
    """
    if width <= 1:
        for item in items:
            work(item)
        return
    left = iter(items)
    first = [*islice(left, width)]
    lanes = _Lanes(chain(first, left), work)
    started = [threads.start(lanes.run, name=f"reef-lane-{lane}") for lane, _ in enumerate(first)]
    for thread in started:
        thread.join()
    if lanes.error is not None:
        raise lanes.error


class _Lanes(Generic[T]):
    """Threads that take the next item as soon as they are free."""

    def __init__(self, items: Iterator[T], work: Callable[[T], None]) -> None:
        self._items = items
        self._work = work
        self._lock = threading.Lock()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            while self.error is None:
                with self._lock:
                    item = next(self._items)
                self._work(item)
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001 raised again by whoever waits for the threads
            self.error = self.error or error
