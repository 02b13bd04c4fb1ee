"""Handing parts to a client that would run their source in the wrong place.

obstore asks the iterator it is given for the next part from inside its own event loop, where any
other request to any store panics. But making a part often means reading from a store: that is what
a compaction does. So the source runs in the caller's thread, and the client in one of its own.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from typing_extensions import Buffer

from reef.store._base import as_view

_PARTS_AHEAD = 2


class _Abandoned(Exception):
    """The source of the parts failed: tells the client to give up the upload."""


def send_parts(parts: Iterable[Buffer], send: Callable[[Iterator[memoryview]], None]) -> None:
    """Call `send` with the parts, in another thread, and raise what it raises.

    If making a part fails, `send` meets an error where the next part would be, and the caller the
    original one. At most two parts wait to be sent.
    """
    feed: queue.Queue[memoryview | BaseException | None] = queue.Queue(_PARTS_AHEAD)
    with ThreadPoolExecutor(1, thread_name_prefix="reef-upload") as thread:
        sending = thread.submit(send, _received(feed))
        sending.add_done_callback(lambda _: _drain(feed))
        try:
            for part in parts:
                if sending.done():
                    break
                feed.put(as_view(part))
        except BaseException as error:
            _end(feed, sending, error)
            sending.exception()
            raise
        _end(feed, sending, None)
        sending.result()


def _received(feed: queue.Queue[memoryview | BaseException | None]) -> Iterator[memoryview]:
    while (item := feed.get()) is not None:
        if isinstance(item, BaseException):
            raise _Abandoned from item
        yield item


def _end(
    feed: queue.Queue[memoryview | BaseException | None],
    sending: Future[None],
    how: BaseException | None,
) -> None:
    if not sending.done():
        feed.put(how)


def _drain(feed: queue.Queue[memoryview | BaseException | None]) -> None:
    """Empty the queue, so that a producer blocked on it does not wait for ever."""
    with contextlib.suppress(queue.Empty):
        while True:
            feed.get_nowait()
