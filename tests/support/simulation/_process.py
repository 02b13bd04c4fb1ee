"""A simulated process: what is injected into the code under test, and what can be done to it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from reef.store import Store
from tests.support.simulation._network import Network
from tests.support.simulation._scheduler import SECOND_US, Actor, Scheduler, ceil_us
from tests.support.simulation._simulated_store import InFlight, SimulatedStore
from tests.support.simulation._simulated_threads import SimulatedThreads

if TYPE_CHECKING:
    from reef.clock import Clock
    from reef.threads import Threads


class SimulatedClock:
    """A `reef.clock.Clock` on virtual time, as wrong as clocks are: each process has its own origin."""

    def __init__(
        self, scheduler: Scheduler, process: Process, epoch_us: int, monotonic_us: int
    ) -> None:
        self._scheduler = scheduler
        self._process = process
        self._epoch_us = epoch_us
        self._monotonic_us = monotonic_us

    def now_us(self) -> int:
        return self._epoch_us + self._scheduler.now_us

    def monotonic(self) -> float:
        return (self._monotonic_us + self._scheduler.now_us) / SECOND_US

    def sleep(self, seconds: float) -> None:
        """Return `seconds` later; outside of `run`, move time on by that."""
        if not seconds >= 0:
            raise ValueError(f"cannot sleep for {seconds} seconds")
        delay_us = ceil_us(seconds)
        actor = self._scheduler.enter(self._process)
        if actor is None:
            self._scheduler.now_us += delay_us
            return
        self._scheduler.wake(actor, delay_us)
        self._scheduler.park(actor, f"{seconds:g} s to pass")


class Process:
    """Threads that live and die together, with a store, a clock, an rng and Threads of their own."""

    def __init__(
        self,
        name: str,
        scheduler: Scheduler,
        bucket: Store,
        network: Callable[[], Network],
        *,
        seed: str,
        epoch_us: int,
        clock_skew: float,
        hesitation: float,
        list_page: int,
    ) -> None:
        self.name = name
        self.rng = random.Random(f"{seed}/{name}")
        skew_us = round(self.rng.uniform(-clock_skew, clock_skew) * SECOND_US)
        origin_us = self.rng.randrange(10**6 * SECOND_US)
        self.clock: Clock = SimulatedClock(scheduler, self, epoch_us + skew_us, origin_us)
        self.threads: Threads = SimulatedThreads(scheduler, self, hesitation)
        self.store = SimulatedStore(bucket, scheduler, self, network, list_page=list_page)
        self.is_killed = False
        self.paused_until_us = 0
        self.yields = 0
        """How often a thread of this process has handed the baton on."""
        self._scheduler = scheduler
        self._actors: list[Actor] = []
        self._names: Counter[str] = Counter()
        self._kill_at_yield = 0
        self._kill_in_flight: InFlight | None = None

    def start(self, target: Callable[[], object], name: str = "main") -> Actor:
        """Add an actor that runs `target`; the simulation goes on until it has ended."""
        return self.add(target, name, is_background=False)

    def add(self, target: Callable[[], object], name: str, *, is_background: bool) -> Actor:
        """Add an actor. Names are made unique by a number."""
        full = f"{self.name}/{name}"
        self._names[full] += 1
        if (number := self._names[full]) > 1:
            full = f"{full}#{number}"
        actor = Actor(self, target, full, is_background=is_background)
        self._actors.append(actor)
        self._scheduler.start(actor)
        return actor

    def kill(self, in_flight: InFlight | None = None) -> None:
        """End all its threads, each where it is. What they had sent is lost or not, by seed.

        They unwind, but reach nobody any more: each thing they ask for raises SimulatedCrash. Called
        by one of them, it does not return.
        """
        if self.is_killed:
            return
        self.is_killed = True
        self._scheduler.record(self.name, "kill", f"after {self.yields} yields")
        self.store.leave_in_flight(in_flight)
        for actor in self._actors:
            if not actor.is_finished and actor is not self._scheduler.current:
                self._scheduler.wake_to_crash(actor)
        current = self._scheduler.current
        if current is not None and current.process is self:
            self._scheduler.enter(self)

    def kill_at_yield(self, number: int, in_flight: InFlight | None = None) -> None:
        """Kill it when its threads hand the baton on for the `number`-th time, from 1."""
        self._kill_at_yield = number
        self._kill_in_flight = in_flight

    def pause(self, seconds: float) -> None:
        """Let none of its threads go on for `seconds`: what it has sent arrives meanwhile."""
        self.paused_until_us = self._scheduler.now_us + ceil_us(seconds)
        self._scheduler.record(self.name, "pause", f"{seconds:g} s")

    def count_yield(self) -> None:
        """Note that one of its threads is about to hand the baton on. Raises SimulatedCrash."""
        self.yields += 1
        if self.yields == self._kill_at_yield:
            self.kill(self._kill_in_flight)

    def __repr__(self) -> str:
        return f"Process({self.name!r})"
