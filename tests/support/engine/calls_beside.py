"""Calls that run in a thread beside the test."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.support.waiting import DEADLINE_SECONDS


class Beside(threading.Thread):
    """A call that runs beside the test, from now on."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._told: list[object] = []
        self.start()

    def run(self) -> None:
        try:
            self._told.append(self._call())
        except BaseException as error:  # noqa: BLE001 the test looks at it
            self._told.append(error)

    def finish(self) -> object:
        """Wait for its end; return what it returned or raised."""
        self.join(timeout=DEADLINE_SECONDS)
        assert not self.is_alive(), "it hangs"
        return self._told[0]
