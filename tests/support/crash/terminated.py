"""Commands in processes of their own that get SIGTERM at one of their requests."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from reef import cli
from reef.store import Store, open_store
from reef.testing import Operation, WrapperStore
from tests.support.crash.crash_points import forking
from tests.support.waiting import DEADLINE_SECONDS, until

T = TypeVar("T")


class TerminatingStore(WrapperStore):
    """Sends SIGTERM to its own process before or after the nth request that matches.

    "stuck": before it, then once more, and the request never returns.
    """

    def __init__(self, inner: Store, when: str, match: str, nth: int) -> None:
        super().__init__(inner)
        self._when = when
        self._match = match
        self._left = nth
        self._lock = threading.Lock()

    def _request(self, operation: Operation, key: str, call: Callable[[], T]) -> T:
        with self._lock:
            self._left -= self._match in f"{operation} {key}"
            is_here = self._left == 0
            self._left -= is_here
        if is_here and self._when in ("before", "stuck"):
            terminate()
        if is_here and self._when == "stuck":
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait()
        result = call()
        if is_here and self._when == "after":
            terminate()
        return result


def terminate() -> None:
    """Send this process SIGTERM and wait until its main thread has taken it: a second one does more."""
    first = signal.getsignal(signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    until(lambda: signal.getsignal(signal.SIGTERM) != first, "the main thread to take SIGTERM")


def _run(arguments: Sequence[str], when: str, match: str, nth: int) -> None:
    def opened(url: str) -> Store:
        return TerminatingStore(open_store(url), when, match, nth)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reef.database.open_store", opened)
        cli.main(arguments)


def terminated(arguments: Sequence[str], when: str, match: str, nth: int = 1) -> int | None:
    """Return the exit code of a command that gets SIGTERM at a request, if it comes so far."""
    process = forking().Process(target=_run, args=(arguments, when, match, nth))
    process.start()
    process.join(DEADLINE_SECONDS)
    process.kill()
    return process.exitcode
