"""Waiting for what other threads, processes and servers do."""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE_SECONDS = 300


def until(holds: Callable[[], object], what: str = "a condition") -> None:
    """Return as soon as something holds; raise when it does not for too long."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited in vain for {DEADLINE_SECONDS} s: {what}")
        time.sleep(0.01)
