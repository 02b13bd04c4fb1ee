"""Work in the background: one thread per process, a small share of its time, nothing that lasts.

Open writers ask for steps; the pool runs one step at a time, those who ask in turn. Its thread begins
with the first step and ends with the last, so that an idle process has none. A step calls its `Pace`
before every request and every block: there it rests, and there it ends if its owner closes.

It ends where its owner is closed, at exit and at fork: nothing of it is needed for correctness, and a
step that dies anywhere leaves what a killed process leaves.
"""

from __future__ import annotations

import atexit
import logging
import os
from contextlib import suppress
from functools import cache
from typing import Protocol
from weakref import WeakSet

from reef.clock import Clock, SystemClock
from reef.threads import Condition, SystemThreads, Threads

SHARE = 0.2
"""How much of the time a step works; it rests for the others."""
SHARE_MAX = 0.5
"""How much it works at most: where what is due has piled up."""
SLICE_S = 0.005
"""So long it works before it rests."""
REST_S_MAX = 10.0
BUSY_WAIT_S = 0.005
BUSY_WAITS_MAX = 4
"""So often it lets commits that queue go first, each time it has rested."""
_EXIT_S = 10.0

_log = logging.getLogger("reef.maintenance")


class StepEndedError(Exception):
    """The owner of a step is closed, or the process ends: the step ends where it is."""


class Step(Protocol):
    """Who asks for steps."""

    def run(self, pace: Pace) -> bool:
        """Do one step; return whether another one is due. Raises StepEndedError."""
        ...

    def is_busy(self) -> bool:
        """Whether callers wait for what the step would slow down."""
        ...

    def share(self) -> float:
        """How much of the time it may work: `SHARE` up to `SHARE_MAX`."""
        ...


class MaintenancePool:
    """Runs the steps of a process. Thread-safe."""

    def __init__(self, threads: Threads, clock: Clock) -> None:
        self._threads = threads
        self._clock = clock
        self._begin()
        if isinstance(threads, SystemThreads):
            _pools().add(self)

    def _begin(self) -> None:
        self._cond: Condition = self._threads.condition()
        self._waiting: dict[int, Step] = {}
        self._running: Step | None = None
        self._pace: Pace | None = None
        self._has_thread = False
        self._is_over = False

    def ask(self, step: Step) -> None:
        """Let `step` run when it is its turn; once, however often it is asked for before."""
        with self._cond:
            if self._is_over:
                return
            self._waiting[id(step)] = step
            if self._has_thread:
                return
            try:
                self._threads.start(self._run, name="reef-maintenance")
            except RuntimeError as error:  # no more threads: the next flush asks again
                del self._waiting[id(step)]
                _log.warning("no thread for maintenance: %s", error)
                return
            self._has_thread = True

    def drop(self, step: Step) -> None:
        """Return when `step` neither runs nor waits for its turn."""
        with self._cond:
            self._waiting.pop(id(step), None)
            while self._running is step:
                if self._pace is not None:
                    self._pace.end()
                self._cond.notify_all()
                self._cond.wait()
            self._waiting.pop(id(step), None)

    def end(self) -> None:
        """End the step that runs, at its next request or block, and start none any more."""
        with self._cond:
            self._is_over = True
            self._waiting.clear()
            deadline = self._clock.monotonic() + _EXIT_S
            while self._has_thread and self._clock.monotonic() < deadline:
                if self._pace is not None:
                    self._pace.end()
                self._cond.notify_all()
                self._cond.wait(_EXIT_S)

    def forget_threads(self) -> None:
        """Begin anew in a forked child, which has none of the parent's threads."""
        self._begin()

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            step, pace = taken
            is_due = False
            try:
                is_due = step.run(pace)
            except StepEndedError:
                pass
            finally:
                self._done(step, is_due and not pace.is_ended)
            del step, taken  # an owner that nobody has any more can go

    def _take(self) -> tuple[Step, Pace] | None:
        with self._cond:
            if not self._waiting:
                self._has_thread = False
                self._cond.notify_all()
                return None
            step = self._waiting.pop(next(iter(self._waiting)))
            self._running = step
            self._pace = Pace(self._cond, self._clock, step)
            return step, self._pace

    def _done(self, step: Step, is_due: bool) -> None:
        with self._cond:
            self._running = self._pace = None
            if is_due and not self._is_over:
                self._waiting.setdefault(id(step), step)
            self._cond.notify_all()


class Pace:
    """When a step rests, and when it ends."""

    def __init__(self, cond: Condition, clock: Clock, step: Step) -> None:
        self._cond = cond
        self._clock = clock
        self._step = step
        self._since = clock.monotonic()
        self.is_ended = False

    def end(self) -> None:
        """Let the step end at its next call. The pool's lock is held."""
        self.is_ended = True

    def waited(self, seconds: float) -> None:
        """Take note of time in which the step did not work: it waited for a store elsewhere."""
        self._since = min(self._since + seconds, self._clock.monotonic())

    def __call__(self) -> None:
        """Rest, if the share of time is used up. Raises StepEndedError."""
        if self.is_ended:
            raise StepEndedError
        worked = self._clock.monotonic() - self._since
        if worked < SLICE_S:
            return
        self._rest(min(worked * (1 / self._step.share() - 1), REST_S_MAX))
        for _ in range(BUSY_WAITS_MAX):
            if not self._step.is_busy():
                break
            self._rest(BUSY_WAIT_S)
        self._since = self._clock.monotonic()

    def _rest(self, seconds: float) -> None:
        until = self._clock.monotonic() + seconds
        with self._cond:
            while not self.is_ended and (left := until - self._clock.monotonic()) > 0:
                self._cond.wait(left)
        if self.is_ended:
            raise StepEndedError


@cache
def process_pool() -> MaintenancePool:
    """Return the one pool of this process."""
    return MaintenancePool(SystemThreads(), SystemClock())


@cache
def _pools() -> WeakSet[MaintenancePool]:
    """Return the pools that end with this process."""
    pools: WeakSet[MaintenancePool] = WeakSet()

    def end() -> None:
        for pool in list(pools):
            with suppress(Exception):
                pool.end()

    def forget_threads() -> None:
        for pool in list(pools):
            pool.forget_threads()

    atexit.register(end)
    os.register_at_fork(after_in_child=forget_threads)
    return pools
