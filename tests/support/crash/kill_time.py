"""Time for the kill loop: the machine's, with a gap longer than the grace period before each cycle.

What the cycles before have left may be collected, at once. What the processes of one cycle do to
each other stays within the grace period, however slow the machine is.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from reef.clock import SystemClock
from reef.store import ObjectMeta, open_store
from reef.testing import WrapperStore

GRACE_SECONDS = 600
_GAP_US = 2 * GRACE_SECONDS * 1_000_000


class Timeline:
    """Moments of real time, and the moments that the processes of the loop take them for."""

    def __init__(self) -> None:
        self._cycles_us: list[int] = []

    def begin_cycle(self) -> None:
        """Put a gap between what was until now and what comes."""
        self._cycles_us.append(_now_us())

    def told_us(self, real_us: int) -> int:
        """Return what a moment is taken for."""
        return real_us + _GAP_US * bisect_right(self._cycles_us, real_us)

    def real_us(self, told_us: int) -> int:
        """Return the real moment that is taken for `told_us`; of one in a gap, where the gap is."""
        starts = [start + _GAP_US * number for number, start in enumerate(self._cycles_us)]
        passed = bisect_right(starts, told_us)
        real_us = told_us - _GAP_US * passed
        return max(real_us, self._cycles_us[passed - 1]) if passed else real_us


class TimelineClock(SystemClock):
    """The wall clock of a process on a timeline."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def now_us(self) -> int:
        return self._timeline.told_us(_now_us())


class TimelineStore(WrapperStore):
    """A store whose clock is on a timeline too."""

    def __init__(self, url: str, timeline: Timeline) -> None:
        super().__init__(open_store(url))
        self._timeline = timeline
        # Its times are rounded down: to the kernel's ticks, and by servers to seconds.
        self._resolution_us = 20_000 if url.startswith("file:") else 1_000_000

    def head(self, key: str) -> ObjectMeta:
        return self._told(super().head(key))

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectMeta]:
        return map(self._told, super().list(prefix, start_after))

    def sweep(self, before_us: int) -> Sequence[str]:
        return super().sweep(self._timeline.real_us(before_us))

    def _told(self, meta: ObjectMeta) -> ObjectMeta:
        later_us = self._timeline.told_us(meta.last_modified_us + self._resolution_us)
        return meta._replace(last_modified_us=later_us - self._resolution_us)


def _now_us() -> int:
    return time.time_ns() // 1000
