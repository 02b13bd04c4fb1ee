"""A store that is further away than it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from reef.clock import Clock, SystemClock
from reef.errors import InvalidInputError
from reef.store import Store
from reef.testing._wrapper import OPERATIONS, Operation, T, WrapperStore


class LatencyStore(WrapperStore):
    """Makes every request wait before it is sent, on the clock given.

    `seconds` is for every operation, `per_operation` for those it names: a list waits once per
    1000 entries begun. Requests of several threads wait side by side.
    """

    def __init__(
        self,
        inner: Store,
        seconds: float = 0.0,
        *,
        per_operation: Mapping[Operation, float] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Raises InvalidInputError for an unknown operation or a negative wait."""
        super().__init__(inner)
        self._seconds = dict.fromkeys(OPERATIONS, seconds) | dict(per_operation or {})
        self._clock = clock or SystemClock()
        for name, wait in self._seconds.items():
            if name not in OPERATIONS:
                raise InvalidInputError.of("operation", name, "one of " + ", ".join(OPERATIONS))
            if not wait >= 0:
                raise InvalidInputError.of(f"latency of {name}", wait, "seconds, at least 0")

    def _request(self, operation: Operation, key: str, call: Callable[[], T]) -> T:
        self._wait(operation)
        return call()

    def _next_page(self) -> None:
        self._wait("list")

    def _wait(self, operation: Operation) -> None:
        if seconds := self._seconds[operation]:
            self._clock.sleep(seconds)
