"""Writers of one namespace that take over from one another, whatever its face: how such a run goes.

A face brings what its processes were told (its `RivalsWorld`), what a client does, and the verdict.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from reef.database import Database
from reef.errors import ClosedError, FencedError, OutcomeUnknownError, UnavailableError
from tests.support.simulation import Network, Process, Simulation

TRIES = 4

Handle = TypeVar("Handle")


class RivalsWorld:
    """One run: its writers, and how they open their databases."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.writers: list[Process] = []

    def database(self, process: Process) -> Database:
        return Database(
            process.store,
            clock=process.clock,
            rng=process.rng,
            threads=process.threads,
            **{"maintenance": "off", **self.settings},
        )


class Handles(Generic[Handle]):
    """The handle that the clients of a process share."""

    def __init__(
        self, world: RivalsWorld, process: Process, open_handle: Callable[[Database, int], Handle]
    ) -> None:
        self._world = world
        self._process = process
        self._open_handle = open_handle
        """Given a database and how many log objects may be in flight."""
        self._lock = process.threads.condition()
        self._handle: Handle | None = None

    def open(self) -> Handle | None:
        with self._lock:
            for _ in range(TRIES):
                if self._handle is None:
                    db = self._world.database(self._process)
                    parallel = self._process.rng.choice([1, 2, 8])
                    self._handle = tolerated(
                        lambda db=db, n=parallel: self._open_handle(db, n)  # type: ignore[misc]
                    )
            return self._handle

    def give_up(self, handle: Handle) -> None:
        with self._lock:
            if self._handle is handle:
                self._handle = None


def tolerated(action: Callable[[], Any]) -> Any:
    """Return what came of it, or None if it failed as it may."""
    try:
        return action()
    except (FencedError, ClosedError, OutcomeUnknownError, UnavailableError):
        return None


def live_as_writer(process: Process, live_as_client: Callable[[], None]) -> None:
    """From some time on, let up to three clients live."""
    process.clock.sleep(process.rng.uniform(0, 5))
    clients = [
        process.threads.start(live_as_client, name=f"client-{n}")
        for n in range(process.rng.randint(1, 3))
    ]
    for client in clients:
        client.join()


def live_as_nemesis(process: Process, writers: Sequence[Process]) -> None:
    """Kill one, put others to sleep."""
    for _ in range(4):
        process.clock.sleep(process.rng.uniform(0, 8))
        victim = process.rng.choice(writers)
        if victim.is_killed:
            continue
        if process.rng.random() < 0.7:
            victim.pause(process.rng.choice([1, 30, 300]) * process.rng.random())
        else:
            victim.kill()


AnyWorld = TypeVar("AnyWorld", bound=RivalsWorld)


def run(
    seed: int,
    make_world: Callable[[dict[str, Any]], AnyWorld],
    live: Callable[[AnyWorld, Process], None],
    check: Callable[[AnyWorld, Process, str], object],
) -> Simulation:
    """One run, from beginning to verdict: of whoever opens to write, and of a reader after that."""
    rng = random.Random(f"{seed}/shape")
    network = Network.swarm(random.Random(seed), rng.choice([0.0, 0.1, 0.3]))
    network = replace(network, slow=rng.choice([0.0, 0.05]), late=(0.1, 600.0))
    with Simulation(seed, network=network) as sim:
        world = make_world(
            {"flush_threshold_slots": rng.choice([3, 8, 1000]), "row_block_bytes": 1024}
        )
        for n in range(rng.randint(2, 3)):
            process = sim.process(f"writer-{n}")
            process.start(lambda process=process: live(world, process))  # type: ignore[misc]
            world.writers.append(process)
        nemesis = sim.process("nemesis")
        nemesis.start(lambda: live_as_nemesis(nemesis, world.writers))
        sim.run()
        sim.network = Network()
        sim.land()
        for mode in ("w", "r"):
            process = sim.process(f"check-{mode}")
            sim.call(lambda p=process, m=mode: check(world, p, m), process)  # type: ignore[misc]
    return sim
