"""A store that holds log PUTs back."""

from __future__ import annotations

import threading

from reef.store import Store
from reef.testing import FaultyStore
from tests.support.waiting import DEADLINE_SECONDS


class Gate(FaultyStore):
    """Holds log PUTs back while it is shut, until they are let through."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._held = threading.Semaphore(0)
        self._go = threading.Semaphore(0)
        self.is_open = True

    def put_if_absent(self, key: str, data: object) -> None:
        if "/wal/" in key and not self.is_open:
            self._held.release()
            assert self._go.acquire(timeout=DEADLINE_SECONDS)
        super().put_if_absent(key, data)  # type: ignore[arg-type]

    def wait_until_held(self, count: int = 1) -> None:
        """Return when so many PUTs more are held back."""
        for _ in range(count):
            assert self._held.acquire(timeout=DEADLINE_SECONDS), "no PUT came"

    def let(self, count: int = 1) -> None:
        for _ in range(count):
            self._go.release()
