"""Time, as an object that is passed in, so that a simulator can own it.

Order never comes from a clock: what is read here is metadata, timeouts and backoff only.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Protocol

# Python's own stands still while the machine sleeps, on Linux and on macOS. On macOS the clock that
# POSIX calls monotonic does not.
_WAKEFUL = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


class Clock(Protocol):
    """The time that Reef uses."""

    def now_us(self) -> int:
        """Return the wall time in microseconds since 1970, UTC. Never used for ordering."""
        ...

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back, and runs on while the machine sleeps."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        ...


class SystemClock:
    """The machine's own time."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    # Themselves: a put asks for the time eight times.
    monotonic = staticmethod(
        time.monotonic if _WAKEFUL is None else partial(time.clock_gettime, _WAKEFUL)
    )
    sleep = staticmethod(time.sleep)
