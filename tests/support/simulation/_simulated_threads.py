"""Threads and conditions of a simulated process: `reef.threads.Threads` on the one scheduler."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from tests.support.simulation._network import between_us
from tests.support.simulation._scheduler import Actor, Scheduler, ceil_us

if TYPE_CHECKING:
    from tests.support.simulation._process import Process

SPURIOUS = 0.01
"""How often a wait returns without news: rarely, but it must be survived."""
_HESITATION = (0.000_001, 0.01)


class SimulatedThread:
    """A thread that was started by simulated code."""

    def __init__(self, scheduler: Scheduler, actor: Actor) -> None:
        self.actor = actor
        self._scheduler = scheduler

    def join(self) -> None:
        """Return when it has ended."""
        self._scheduler.join(self.actor)


class SimulatedThreads:
    """A `reef.threads.Threads`: what it starts belongs to the process, and dies with it.

    At the rate `hesitation`, a thread that takes a lock, is notified or has started another lets
    others go first, for up to 10 ms.
    """

    def __init__(self, scheduler: Scheduler, process: Process, hesitation: float) -> None:
        self._scheduler = scheduler
        self._process = process
        self._hesitation = hesitation
        self._conditions = 0

    def condition(self) -> SimulatedCondition:
        """Return a new condition with a lock of its own."""
        self._conditions += 1
        name = f"condition {self._conditions} of {self._process.name}"
        return SimulatedCondition(self._scheduler, self._process, name, self._hesitation)

    def signal(self) -> SimulatedSignal:
        """Return a new signal."""
        return SimulatedSignal(self._scheduler, self._process)

    def start(self, target: Callable[[], None], *, name: str) -> SimulatedThread:
        """Run `target` in a thread of its own; the simulation does not wait for it to end."""
        actor = self._scheduler.enter(self._process)
        started = self._process.add(target, name, is_background=True)
        if actor is not None:
            self._scheduler.wake(actor)
            self._scheduler.park(actor, f"the start of {started.name}")
        return SimulatedThread(self._scheduler, started)


class SimulatedSignal:
    """A `reef.threads.Signal`."""

    def __init__(self, scheduler: Scheduler, process: Process) -> None:
        self._scheduler = scheduler
        self._process = process
        self._actor: Actor | None = None
        self._is_given = False

    def wait(self) -> None:
        """Return when it was given."""
        actor = self._scheduler.enter(self._process)
        if actor is None:
            if not self._is_given:
                self._scheduler.refuse("only an actor can wait for a signal: call run()")
            return
        self._actor = actor
        while not self._is_given:
            self._scheduler.park(actor, "a signal")

    def give(self) -> None:
        """Let the one who waits go on."""
        if not self._is_given:
            self._is_given = True
            if self._actor is not None:
                self._scheduler.wake(self._actor)


class _Waiter:
    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.is_notified = False


class SimulatedCondition:
    """A `reef.threads.Condition`. For the threads of one process; not re-entrant."""

    def __init__(
        self, scheduler: Scheduler, process: Process, name: str, hesitation: float
    ) -> None:
        self._scheduler = scheduler
        self._process = process
        self._name = name
        self._hesitation = hesitation
        self._owner: Actor | None = None
        self._is_held_outside = False
        self._contenders: list[Actor] = []
        self._waiters: list[_Waiter] = []

    def __enter__(self) -> bool:
        actor = self._scheduler.enter(self._process)
        if actor is None:
            if self._is_held_outside or self._owner is not None:
                self._scheduler.refuse(
                    f"{self._name} is held: outside of run() nobody will give it back"
                )
            self._is_held_outside = True
            return True
        if self._owner is actor:
            self._scheduler.refuse(f"{actor.name} takes the lock of {self._name} a second time")
        if (delay_us := self._hesitate()) is not None:
            self._scheduler.wake(actor, delay_us)
            self._scheduler.park(actor, f"a moment, before taking the lock of {self._name}")
        self._take(actor)
        return True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        if self._scheduler.current is None:
            self._is_held_outside = False
        elif self._owner is self._scheduler.current:
            # Otherwise it was killed while it waited, and the lock is somebody else's.
            self._give_back()

    def wait(self, timeout: float | None = None) -> bool:
        """Let go of the lock until notified, then take it again; False after `timeout` seconds."""
        scheduler = self._scheduler
        actor = self._holder("wait")
        waiter = _Waiter(actor)
        self._waiters.append(waiter)
        self._give_back()
        what = f"news on {self._name}"
        until_us = None
        if timeout is not None:
            what = f"{what}, for {timeout:g} s"
            until_us = scheduler.now_us + max(0, ceil_us(timeout))
            scheduler.wake(actor, until_us - scheduler.now_us)
        if scheduler.rng.random() < SPURIOUS:
            scheduler.wake(actor, between_us(_HESITATION, scheduler.rng))
        try:
            scheduler.park(actor, what)
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        is_late = until_us is not None and scheduler.now_us >= until_us
        self._take(actor)
        return waiter.is_notified or not is_late

    def notify_all(self) -> None:
        """Wake all that wait, once the lock is given back."""
        if self._scheduler.current is not None:
            self._holder("notify")
        for waiter in self._waiters:
            waiter.is_notified = True
            self._scheduler.wake(waiter.actor, self._hesitate() or 0)
        self._waiters.clear()

    def _holder(self, verb: str) -> Actor:
        actor = self._scheduler.enter(self._process)
        if actor is None:
            self._scheduler.refuse(f"only an actor can {verb} on {self._name}: call run()")
        if self._owner is not actor:
            self._scheduler.refuse(f"{actor.name} wants to {verb} on {self._name} without its lock")
        return actor

    def _take(self, actor: Actor) -> None:
        if self._is_held_outside:
            self._scheduler.refuse(f"{self._name} is held by code outside of run()")
        while self._owner is not None:
            self._contenders.append(actor)
            try:
                self._scheduler.park(actor, f"the lock of {self._name}, held by {self._owner.name}")
            finally:
                self._contenders.remove(actor)
        self._owner = actor

    def _give_back(self) -> None:
        self._owner = None
        if self._contenders:
            self._scheduler.wake(self._scheduler.rng.choice(self._contenders))

    def _hesitate(self) -> int | None:
        """Return for how long a thread lets others go first, now and then."""
        rng = self._scheduler.rng
        if not self._hesitation or rng.random() >= self._hesitation:
            return None
        return between_us(_HESITATION, rng) if rng.random() < 0.5 else 0
