"""Maintenance by hand: steps run when a test says so, in its own thread."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from typing import Any

from reef.clock import Clock
from reef.database import Database
from reef.engine import Namespace
from reef.maintenance import MaintenancePool, Pace, Step, StepEndedError
from reef.store import Store
from reef.threads import SystemThreads
from tests.support.engine.open_handles import writer_of


class HandPool(MaintenancePool):
    """Keeps who asked; `work` runs their steps."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(SystemThreads(), clock)
        self.asked: list[Step] = []
        self.paces = 0

    def ask(self, step: Step) -> None:
        if step not in self.asked:
            self.asked.append(step)

    def drop(self, step: Step) -> None:
        if step in self.asked:
            self.asked.remove(step)

    def work(self, steps_max: int = 100) -> int:
        """Run the steps that are due; return how many there were."""
        steps = 0
        while self.asked and steps < steps_max:
            step = self.asked[0]
            is_due = False
            with suppress(StepEndedError):
                is_due = step.run(HandPace(self))
            steps += 1
            if not is_due and step in self.asked:
                self.asked.remove(step)
        return steps


class HandPace(Pace):
    """Never rests."""

    def __init__(self, pool: HandPool) -> None:
        self._pool = pool
        self.is_ended = False

    def __call__(self) -> None:
        self._pool.paces += 1


class HandKept(Database):
    """A database whose maintenance a test drives."""

    def __init__(self, store: Store, clock: Clock, **settings: object) -> None:
        super().__init__(store, clock=clock, rng=random.Random(1), **settings)
        self.pool = HandPool(clock)
        self._context = replace(self._context, maintenance=self.pool)


def maintenance_of(ns: Namespace) -> Any:
    """Return the maintenance of an open writer."""
    return writer_of(ns)._maintenance
