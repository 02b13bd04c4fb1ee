"""Many processes on one bucket, in one thread at a time, by one seed.

with Simulation(seed=7, network=Network.swarm(random.Random(7))) as sim:
    writer, reader = sim.process("writer"), sim.process("reader")
    writer.start(lambda: write(writer.store, writer.clock, writer.rng, writer.threads))
    reader.start(lambda: read(reader.store, reader.clock, reader.rng, reader.threads))
    sim.process("nemesis").start(lambda: strike(sim, writer))   # sleeps, then writer.kill()
    sim.run()
    sim.network = Network()                                     # nothing fails from here on
    sim.land()                                                  # what was still under way
    sim.call(lambda: check(sim.bucket))

Each actor is a real thread, but only the one that holds the baton runs. It is handed on at every
store request, sleep, wait, lock, start and join of a thread: what lies between two of those is one
step, so that two threads racing on plain memory in between are not explored.

An exception that leaves the `with` block or an actor carries the seed and the end of the trace. The
same seed gives the same run: `sim.digest` is a checksum of all that happened.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar, cast

from reef.store import MemoryStore
from tests.support.simulation._network import Network
from tests.support.simulation._process import Process
from tests.support.simulation._scheduler import SECOND_US, Scheduler, SimulationError
from tests.support.simulation._trace import Trace, Traced
from tests.support.waiting import DEADLINE_SECONDS

T = TypeVar("T")
EPOCH_US = 1_700_000_000_000_000
"""When a simulation begins, by the store's clock."""


class _BucketClock:
    """The store's own time, for Last-Modified."""

    def __init__(self, scheduler: Scheduler, resolution_us: int) -> None:
        self._scheduler = scheduler
        self._resolution_us = resolution_us

    def now_us(self) -> int:
        now_us = EPOCH_US + self._scheduler.now_us
        return now_us - now_us % self._resolution_us

    def monotonic(self) -> float:
        return self._scheduler.now_us / SECOND_US

    def sleep(self, seconds: float) -> None:
        raise SimulationError("a bucket does not sleep")


class Simulation:
    """One seeded world: a bucket, a network, and the processes on it."""

    def __init__(
        self,
        seed: int,
        *,
        network: Network | None = None,
        max_steps: int = 2_000_000,
        clock_skew: float = 60.0,
        whole_seconds: bool | None = None,
        hesitation: float = 0.1,
        list_page: int = 1000,
        trace_length: int = 100_000,
        trace_shown: int = 200,
        hang_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        """Nothing runs before `run`.

        `clock_skew` is how far the clocks of processes are off at most, in seconds; `whole_seconds`
        whether Last-Modified is rounded down to seconds, as on S3 (None: by seed); `hesitation` how
        often a thread that could go on lets others go first; `list_page` how many entries one LIST
        brings. `hang_seconds` of real time without a step end it: something waits for real.
        """
        self.seed = seed
        self.network = network or Network()
        self.rng = random.Random(f"{seed}/scenario")
        """For the scenario's own choices."""
        self._trace = Trace(trace_length)
        self._trace_shown = trace_shown
        self._scheduler = Scheduler(
            random.Random(f"{seed}/schedule"),
            max_steps=max_steps,
            hang_seconds=hang_seconds,
            trace=self._trace,
        )
        if whole_seconds is None:
            whole_seconds = random.Random(f"{seed}/bucket").random() < 0.5
        resolution_us = SECOND_US if whole_seconds else 1
        self.bucket = MemoryStore(clock=_BucketClock(self._scheduler, resolution_us))
        """The objects themselves, without a network; not to be used by actors' code under test."""
        self._clock_skew = clock_skew
        self._hesitation = hesitation
        self._list_page = list_page
        self._processes: dict[str, Process] = {}
        self._reported: BaseException | None = None

    def process(self, name: str) -> Process:
        """Return a new process. A name is used once: a process that comes back is another one."""
        if name in self._processes:
            raise SimulationError(
                f"there is, or was, a process {name!r}: give this one another name"
            )
        process = self._processes[name] = Process(
            name,
            self._scheduler,
            self.bucket,
            lambda: self.network,
            seed=str(self.seed),
            epoch_us=EPOCH_US,
            clock_skew=self._clock_skew,
            hesitation=self._hesitation,
            list_page=self._list_page,
        )
        return process

    def run(self) -> None:
        """Go on until every actor has ended but those that simulated code has started.

        Raises what an actor raised; SimulationError for a deadlock, for too many steps, or if
        something waits for real.
        """
        self._run(self._scheduler.run)

    def call(self, function: Callable[[], T], process: Process | None = None) -> T:
        """Run `function` as an actor, beside all the others, and return what it returned.

        It belongs to `process`, or to a new one. Raises SimulationError if that was killed.
        """
        process = process or self.process(f"caller-{len(self._processes) + 1}")
        actor = process.start(function, "call")
        self._run(lambda: self._scheduler.run(until=actor))
        if actor.is_crashed:
            raise SimulationError(f"{actor.name} was killed before it had an answer")
        return cast(T, actor.result)

    def land(self) -> None:
        """Carry out all requests that are still under way, and move on to when the last one lands."""
        self._scheduler.land()

    def note(self, what: str, outcome: str = "") -> None:
        """Write something into the trace, as done by the actor that runs now."""
        actor = self._scheduler.current
        self._scheduler.record(actor.name if actor is not None else "test", what, outcome)

    @property
    def now(self) -> float:
        """Virtual seconds since the beginning."""
        return self._scheduler.now_us / SECOND_US

    @property
    def steps(self) -> int:
        """How many things have happened so far."""
        return self._scheduler.step

    @property
    def trace(self) -> Sequence[Traced]:
        """What happened, in order: the last `trace_length` of it."""
        return self._trace.lines

    @property
    def digest(self) -> str:
        """A checksum of all that happened: equal for equal runs."""
        return self._trace.digest

    def report(self) -> str:
        """Return what a person needs to see when something is wrong: the seed, and the trace's end."""
        return f"Simulation(seed={self.seed}) repeats this.\n{self._trace.text(self._trace_shown)}"

    def close(self) -> None:
        """Kill what still runs."""
        self._scheduler.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        if error is not None:
            self._explain(error)
        self.close()

    def _run(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            self._explain(error)
            raise

    def _explain(self, error: BaseException) -> None:
        if error is not self._reported:
            self._reported = error
            error.add_note(self.report())
