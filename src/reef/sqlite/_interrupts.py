"""Ctrl-C while SQLite calls Reef: it comes before such a call, inside of its `try`, or after it.

Python raises KeyboardInterrupt between any two instructions, so also at the entry of a function that
SQLite has called, before its `try` begins. There it does harm: ctypes prints it and leaves to chance
the number that SQLite gets, by which a page that was not written may count as written; apsw gives a
number after which SQLite goes on as if it had committed, or released a lock.

So Ctrl-C is put off for those few instructions: the handler looks at the frame that it interrupts, and
where that is one of `guarded`'s or one marked `at_entry`, it sends the signal again a moment later.
Anywhere else it raises KeyboardInterrupt, as Python's own handler does. It takes the place of that one
when the main thread opens a database, and gives it back with the last one. A program's own handler
stays; if that raises, this promise does not hold (docs/sqlite.md).
"""

from __future__ import annotations

import signal
import threading
from _thread import start_new_thread
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

from reef.clock import SystemClock

AGAIN_S = 0.01
"""After so long the signal is sent again: a call from SQLite is past its entry by then."""

Failed = Callable[[BaseException], int]
Handler = Callable[[int, FrameType | None], Any]
_F = TypeVar("_F", bound=Callable[..., Any])

_at_entry: set[CodeType] = set()
_all_through: set[CodeType] = set()
_is_for_good = False


def guarded(call: Callable[..., int], failed: Failed, *, again: bool = False) -> Callable[..., int]:
    """Return `call`, with its errors turned into numbers by `failed`.

    With `again` it is called once more if it was interrupted: for calls that must take place.
    """

    def run(*args: Any) -> int:
        try:
            return call(*args)
        except BaseException as error:  # noqa: BLE001 nothing may be raised into C
            number = failed(error)
            return call(*args) if again and not isinstance(error, Exception) else number

    return at_entry(run)


def at_entry(function: _F) -> _F:
    """Defer Ctrl-C while `function` itself runs, but not while its callees run."""
    _at_entry.add(function.__code__)
    return function


def all_through(function: _F) -> _F:
    """Defer Ctrl-C until `function`, and all that it calls, has returned."""
    _all_through.add(function.__code__)
    return function


def defer_interrupts(*, for_good: bool = False) -> None:
    """Take the place of Python's own handler of Ctrl-C, if it is in place; main thread only.

    `for_good`: nobody tells when SQLite has called for the last time.
    """
    global _is_for_good
    _is_for_good |= for_good
    _exchange(signal.default_int_handler, _interrupt)


def restore_interrupts() -> None:
    """Put Python's own handler back, unless this one is needed for good; main thread only."""
    if not _is_for_good:
        _exchange(_interrupt, signal.default_int_handler)


def _exchange(old: Handler, new: Handler) -> None:
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is old:
        signal.signal(signal.SIGINT, new)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if frame is not None and frame.f_code in _at_entry:
        start_new_thread(_send_again, (number,))
        return
    while frame is not None:
        if frame.f_code in _all_through:
            start_new_thread(_send_again, (number,))
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _send_again(number: int) -> None:
    SystemClock().sleep(AGAIN_S)
    ident = threading.main_thread().ident
    if ident is not None:
        signal.pthread_kill(ident, number)
