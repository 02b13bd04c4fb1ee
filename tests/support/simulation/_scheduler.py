"""One baton among real threads, handed on in a seeded order, on a clock that jumps.

Invariants:

- One thread runs: the one that holds the baton. The others are parked in `park`, or not begun.
- All that will happen is in one queue, ordered by virtual time, then by a random number, then by age.
  Nothing here asks the machine for time, looks at ids or iterates over a set: the same seed and the
  same code give the same run.
- Code takes no time. Time moves when the baton is handed on, to when the next thing happens.
- An actor of a killed process runs only to unwind: whatever it asks for raises `SimulatedCrash`.

An actor that gives up the baton decides itself, in its own thread, who is next: a switch costs one
hand-over, and none if it is next itself.
"""

from __future__ import annotations

import heapq
import math
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tests.support.simulation._trace import Trace

if TYPE_CHECKING:
    from types import FrameType

    from tests.support.simulation._process import Process

CRASHES_MAX = 1000
"""How often an actor may be told that its process is dead before it is given up."""
SECOND_US = 1_000_000
_AT_ONCE = -1.0
_OWN = (str(Path(__file__).parent), threading.__file__)


def ceil_us(seconds: float) -> int:
    """Return microseconds, rounded up: who waits until a deadline has reached it then."""
    return math.ceil(seconds * SECOND_US)


class SimulatedCrash(BaseException):
    """The process of this thread was killed. Not an Exception: nothing in the program handles it."""


class SimulationError(AssertionError):
    """The simulated program can not go on, or has left the simulation. Says who waits where."""


class Actor:
    """One thread of a simulated process."""

    def __init__(
        self, process: Process, target: Callable[[], object], name: str, *, is_background: bool
    ) -> None:
        self.process = process
        self.name = name
        self.is_background = is_background
        """Whether the simulation may end while it still runs."""
        self.is_finished = False
        self.is_crashed = False
        """Whether it ended because its process was killed."""
        self.result: object = None
        """What its function returned."""
        self._target = target
        self._baton = threading.Lock()
        self._baton.acquire()
        self._thread: threading.Thread | None = None
        self._ident = 0
        self._turn = 0  # wake-ups that were meant for an earlier turn are stale
        self._waits_for = "its first turn"
        self._crashes = 0
        self._joiners: list[Actor] = []

    def __repr__(self) -> str:
        return f"Actor({self.name!r})"


class Scheduler:
    """Runs actors one at a time. Its rng decides every order that is not decided by time."""

    def __init__(self, rng: random.Random, *, max_steps: int, hang_seconds: float, trace: Trace):
        self.rng = rng
        self.now_us = 0
        self.step = 0
        self.current: Actor | None = None
        self.actors: list[Actor] = []
        self.failure: BaseException | None = None
        self._trace = trace
        self._max_steps = max_steps
        self._hang_seconds = hang_seconds
        self._events: list[tuple[int, float, int, Actor | None, int | Callable[[], None]]] = []
        self._count = 0
        self._until: Actor | None = None
        self._foreground = 0
        self._is_closing = False
        self._is_hung = False
        self._main = threading.Lock()
        self._main.acquire()

    # What actors, and what they use, call with the baton in hand

    def enter(self, process: Process) -> Actor | None:
        """Return the actor that asks something of `process`; None outside of `run`.

        Raises SimulatedCrash if it is dead, SimulationError in a thread that is not of that process.
        """
        actor = self.current
        if actor is not None and actor._ident != threading.get_ident():
            name = threading.current_thread().name
            self.refuse(f"thread {name!r} is no actor: start it through the Threads given")
        if actor is not None and actor.process.is_killed:
            self._crash(actor)
        if process.is_killed:
            raise SimulatedCrash(process.name)
        if actor is not None and actor.process is not process:
            self.refuse(f"{actor.name} uses what was made for {process.name}")
        return actor

    def refuse(self, what: str) -> NoReturn:
        """Raise SimulationError, here and, should this be handled by somebody, from `run`."""
        error = SimulationError(what)
        if self.current is not None and self.failure is None:
            self.failure = error
        raise error

    def park(self, actor: Actor, waits_for: str) -> None:
        """Hand the baton on; return when `actor` is woken. Raises SimulatedCrash."""
        actor.process.count_yield()  # may kill it, here
        actor._waits_for = waits_for
        after = self._next()
        if after is not actor:
            self._hand(after)
            actor._baton.acquire()
        actor._waits_for = ""
        if actor.process.is_killed:
            self._crash(actor)

    def wake(self, actor: Actor, delay_us: int = 0) -> None:
        """Let `actor` go on from where it is parked, or will be next, after `delay_us`.

        Of several such wake-ups the first counts.
        """
        self._push(self.now_us + delay_us, self.rng.random(), actor, actor._turn)

    def wake_to_crash(self, actor: Actor) -> None:
        """Let `actor`, whose process is dead, unwind before anything else happens."""
        self._push(self.now_us, _AT_ONCE, actor, actor._turn)

    def call(self, delay_us: int, action: Callable[[], None]) -> None:
        """Have `action` done after `delay_us`, by nobody in particular."""
        self._push(self.now_us + delay_us, self.rng.random(), None, action)

    def start(self, actor: Actor) -> None:
        """Add an actor; its first turn is now, or a little later."""
        self.actors.append(actor)
        self._foreground += not actor.is_background
        self.wake(actor)

    def join(self, actor: Actor) -> None:
        """Return when `actor` has ended."""
        waiting = self.enter(actor.process)
        if waiting is None:
            if not actor.is_finished:
                self.refuse(f"only an actor can wait for {actor.name} to end: call run()")
            return
        while not actor.is_finished:
            actor._joiners.append(waiting)
            self.park(waiting, f"the end of {actor.name}")

    def record(self, actor: str, request: str, outcome: str) -> None:
        """Write down what happened."""
        self._trace.add(self.step, self.now_us, actor, request, outcome)

    # What the test's own thread calls

    def run(self, until: Actor | None = None) -> None:
        """Go on until `until` has ended, or every actor that is not in the background.

        Raises what an actor raised, or SimulationError.
        """
        self._until = until
        if (first := self._next()) is not None:
            self._hand(first)
            self._await_baton()
        if self.failure is not None:
            raise self.failure

    def land(self) -> None:
        """Do all that nobody in particular is to do, at its time, and move on to the last of it."""
        events, self._events = self._events, []
        for event in sorted(events):
            time_us, _, _, actor, action = event
            if actor is None and callable(action):
                self.now_us = max(self.now_us, time_us)
                self.step += 1
                action()
            else:
                heapq.heappush(self._events, event)

    def close(self) -> None:
        """Unwind every thread that was started."""
        self._is_closing = True
        for actor in self.actors:
            actor.process.is_killed = True
        if self.current is not None and not self._is_hung:  # `run` was interrupted
            self._await_baton()
        for actor in self.actors:
            if actor._thread is not None and not actor.is_finished and not self._is_hung:
                self._hand(actor)
                self._await_baton()

    def who_waits_where(self) -> str:
        """Return a line for each actor that has not ended."""
        frames = sys._current_frames()
        return "\n".join(
            f"  {actor.name} waits for {actor._waits_for or 'nothing: it runs'}{_where(actor, frames)}"
            for actor in self.actors
            if not actor.is_finished
        )

    # Inside

    def _push(
        self, time_us: int, order: float, actor: Actor | None, what: int | Callable[[], None]
    ) -> None:
        self._count += 1
        heapq.heappush(self._events, (time_us, order, self._count, actor, what))

    def _next(self) -> Actor | None:
        """Let things happen until it is an actor's turn; None if it is the turn of `run`."""
        while not self._is_over():
            if not self._events:
                self._fail("deadlock: nothing will ever happen")
                continue
            time_us, _, _, actor, what = heapq.heappop(self._events)
            if actor is None:
                self._begin_step(time_us)
                assert callable(what)
                what()
            elif what == actor._turn and not actor.is_finished:
                process = actor.process
                if process.paused_until_us > max(time_us, self.now_us) and not process.is_killed:
                    self._push(process.paused_until_us, self.rng.random(), actor, actor._turn)
                    continue
                self._begin_step(time_us)
                actor._turn += 1
                return actor
        return None

    def _begin_step(self, time_us: int) -> None:
        self.now_us = max(self.now_us, time_us)
        self.step += 1
        if self.step >= self._max_steps:
            self._fail(f"no end after {self.step} steps")

    def _is_over(self) -> bool:
        if self.failure is not None or self._is_closing:
            return True
        if self._events and self._events[0][1] == _AT_ONCE:
            return False  # the dead are unwound first
        return self._until.is_finished if self._until is not None else self._foreground == 0

    def _fail(self, what: str) -> None:
        if self.failure is None:
            self.failure = SimulationError(f"{what}\n{self.who_waits_where()}")

    def _await_baton(self) -> None:
        """Return when the baton has come back to the test's own thread."""
        step = -1
        while not self._main.acquire(timeout=self._hang_seconds):
            if self.step == step and self.current is not None:
                self._is_hung = True
                raise SimulationError(
                    f"{self.current.name} has kept the baton for {self._hang_seconds:g} seconds of "
                    f"real time: it waits for something that is not simulated, or never yields\n"
                    f"{self.who_waits_where()}"
                )
            step = self.step

    def _hand(self, actor: Actor | None) -> None:
        self.current = actor
        if actor is None:
            self._main.release()
        elif actor._thread is None:
            actor._thread = threading.Thread(
                target=self._main_of, args=(actor,), name=actor.name, daemon=True
            )
            actor._thread.start()
        else:
            actor._baton.release()

    def _main_of(self, actor: Actor) -> None:
        actor._ident = threading.get_ident()
        try:
            if not actor.process.is_killed:
                actor._waits_for = ""
                actor.result = actor._target()
        except SimulatedCrash:
            pass
        except BaseException as error:  # noqa: BLE001 it is raised again, by `run`
            # While a dead process unwinds, anything may go wrong in it: nobody is left to see it.
            if not actor.process.is_killed and self.failure is None:
                self.record(actor.name, "raised", repr(error))
                self.failure = error
        self._finish(actor)

    def _finish(self, actor: Actor) -> None:
        actor.is_finished = True
        actor.is_crashed = actor.process.is_killed
        self._foreground -= not actor.is_background
        for joiner in actor._joiners:
            self.wake(joiner)
        self._hand(self._next())

    def _crash(self, actor: Actor) -> NoReturn:
        actor._crashes += 1
        if actor._crashes > CRASHES_MAX:
            self._fail(
                f"{actor.name} goes on after SimulatedCrash: something catches BaseException"
            )
            self._finish(actor)
            while True:
                actor._baton.acquire()
        raise SimulatedCrash(actor.process.name)


def _where(actor: Actor, frames: dict[int, FrameType]) -> str:
    """Return where the program is, below all that belongs to the simulation."""
    thread = actor._thread
    frame = frames.get(thread.ident) if thread is not None and thread.ident is not None else None
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    if frame is None:
        return ""
    return f", in {frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"
