"""A clock that moves only by a call, or when a caller sleeps on it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

EPOCH_US_DEFAULT = 1_700_000_000_000_000


class ManualClock:
    """A `reef.clock.Clock` for deterministic tests: sleeping takes no time and moves it on."""

    def __init__(self, now_us: int = EPOCH_US_DEFAULT) -> None:
        self._lock = threading.Lock()
        self._start_us = now_us
        self._elapsed = 0.0
        self._sleeps: list[float] = []

    def now_us(self) -> int:
        with self._lock:
            return self._start_us + round(self._elapsed * 1_000_000)

    def monotonic(self) -> float:
        with self._lock:
            return self._elapsed

    def sleep(self, seconds: float) -> None:
        """Move on by `seconds` at once, and remember it in `sleeps`."""
        if not seconds >= 0:
            raise ValueError(f"cannot sleep for {seconds} seconds")
        with self._lock:
            self._elapsed += seconds
            self._sleeps.append(seconds)

    def advance(self, seconds: float) -> None:
        """Move on by `seconds` without anybody having slept."""
        if not seconds >= 0:
            raise ValueError(f"time does not go back: {seconds} seconds")
        with self._lock:
            self._elapsed += seconds

    @property
    def sleeps(self) -> Sequence[float]:
        """Every sleep so far, in order."""
        with self._lock:
            return tuple(self._sleeps)
