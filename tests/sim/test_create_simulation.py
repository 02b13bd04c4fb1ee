"""The loop that decides a conditional PUT, under every fault there is, by seed.

Several processes append to one log: each puts its batch at the first slot that it does not know to be
taken, and goes one further when it learns that somebody else has it. That is all that `create`
promises to make safe, and the history of each run must be one that could have been. Four ways to get
it wrong are shown to be noticed.
"""

from __future__ import annotations

import ast
import contextlib
import os
import random
import zlib
from collections.abc import Callable

import pytest

from reef.errors import (
    AlreadyExistsError,
    ConflictError,
    NotFoundError,
    NotWrittenError,
    OutcomeUnknownError,
    ReefError,
    UnavailableError,
)
from reef.settings import Settings
from reef.store import create
from reef.types import new_nonce
from tests.support.engine.write_history import (
    EVERYTHING,
    Version,
    Violation,
    Write,
    WriteHistory,
    check_replay,
)
from tests.support.simulation import Network, Process, Simulation

SEEDS = range(int(os.environ.get("SIM_SEEDS", "150")))
KEYS = [b"%d" % i for i in range(5)]

Rows = dict[bytes, Version]


def slot_key(slot: int) -> str:
    return f"wal/{slot:020}"


def encode(write: Write, nonce: bytes) -> bytes:
    body = nonce + repr((write.puts, write.deletes)).encode()
    return zlib.crc32(body).to_bytes(4, "big") + body


def fold(rows: Rows, data: bytes, slot: int) -> Rows:
    """Return the rows after one more object of the log. Raises ValueError if it is damaged."""
    if zlib.crc32(data[4:]) != int.from_bytes(data[:4], "big"):
        raise ValueError("damaged")
    puts, deletes = ast.literal_eval(data[20:].decode())
    kept = {key: row for key, row in rows.items() if key not in deletes}
    return kept | {key: Version(slot, value) for key, value in puts.items()}


class Appender:
    """A client of the log. Subclasses get it wrong."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.slot = 1

    def append(self, write: Write) -> int:
        nonce = new_nonce(self.process.rng)
        data = encode(write, nonce)
        while True:
            try:
                self.put(data, nonce)
            except ConflictError:
                self.slot += 1
            else:
                self.slot += 1
                return self.slot - 1

    def put(self, data: bytes, nonce: bytes) -> None:
        create(
            self.process.store,
            slot_key(self.slot),
            data,
            nonce=nonce,
            is_collected=lambda: False,
            settings=Settings(cas_max_retries=3),
            clock=self.process.clock,
            rng=self.process.rng,
        )


class TakesEveryRefusalForAConflict(Appender):
    def put(self, data: bytes, nonce: bytes) -> None:
        try:
            self.process.store.put_if_absent(slot_key(self.slot), data)
        except AlreadyExistsError as error:
            raise ConflictError(slot_key(self.slot), b"") from error


class TakesSilenceForFailure(Appender):
    def put(self, data: bytes, nonce: bytes) -> None:
        try:
            super().put(data, nonce)
        except OutcomeUnknownError as error:
            raise NotWrittenError("it said nothing") from error


class TakesSilenceForSuccess(Appender):
    def put(self, data: bytes, nonce: bytes) -> None:
        with contextlib.suppress(OutcomeUnknownError):
            super().put(data, nonce)


class RepeatsWithoutReadingBack(Appender):
    def put(self, data: bytes, nonce: bytes) -> None:
        for _ in range(4):
            try:
                return self.process.store.put_if_absent(slot_key(self.slot), data)
            except AlreadyExistsError as error:
                raise ConflictError(slot_key(self.slot), b"") from error
            except UnavailableError:
                self.process.clock.sleep(0.01)
        raise OutcomeUnknownError(slot_key(self.slot), "no clear answer")


def write_some(sim: Simulation, history: WriteHistory, process: Process, client: Appender) -> None:
    for number in range(sim.rng.randrange(3, 8)):
        some = process.rng.sample(KEYS, 2)
        puts = {some[0]: f"{process.name}-{number}".encode()}
        history.attempt(process.name, client.append, puts, some[1:])
        process.clock.sleep(process.rng.uniform(0, 0.1))


def follow(history: WriteHistory, process: Process, rounds: int) -> tuple[int, Rows]:
    """Read the log as far as it goes, again and again; return the last state."""
    slot, rows = 0, Rows()
    for _ in range(rounds):
        while True:
            try:
                data = process.store.get(slot_key(slot + 1))
                rows = fold(rows, data, slot + 1)
                slot += 1
            except NotFoundError:
                break
            except (UnavailableError, ValueError):
                continue  # asked again: nothing is damaged where it lies
        values = {key: row.value for key, row in rows.items()}
        history.record_read(process.name, slot, values, span=EVERYTHING)
        process.clock.sleep(process.rng.uniform(0, 0.2))
    return slot, rows


def strike(sim: Simulation, nemesis: Process, writers: list[Process]) -> None:
    for victim in sim.rng.sample(writers, 2):
        nemesis.clock.sleep(sim.rng.uniform(0, 1.0))
        sim.rng.choice((victim.kill, lambda victim=victim: victim.pause(sim.rng.uniform(0, 600))))()


def check(sim: Simulation, history: WriteHistory) -> int:
    """Compare with the bucket, when everything that is under way has landed."""
    sim.network = Network()
    sim.land()
    slot, rows, states = 0, Rows(), {0: Rows()}
    for slot, meta in enumerate(sim.bucket.list("wal/"), 1):
        if meta.key != slot_key(slot):
            raise Violation(f"a gap in the log: {meta.key} is number {slot}")
        states[slot] = rows = fold(rows, sim.bucket.get(meta.key), slot)
    return history.check(slot, rows, at=states.__getitem__)


def run(seed: int, kind: Callable[[Process], Appender] = Appender) -> Simulation:
    with Simulation(seed, network=Network.swarm(random.Random(seed), 0.5)) as sim:
        history = WriteHistory(sim.note)
        writers = [sim.process(f"writer-{i}") for i in range(3)]
        for process in writers:
            process.start(lambda p=process: write_some(sim, history, p, kind(p)))
        reader, nemesis = sim.process("reader"), sim.process("nemesis")
        reader.start(lambda: follow(history, reader, 10))
        nemesis.start(lambda: strike(sim, nemesis, writers))
        sim.run()
        committed = check(sim, history)
        late = sim.process("late-reader")
        slot, _ = sim.call(lambda: follow(history, late, 1), late)
        assert slot == committed
        check(sim, history)
    return sim


@pytest.mark.parametrize("seed", SEEDS)
def test_every_run_is_one_that_can_be(seed: int) -> None:
    run(seed)


@pytest.mark.parametrize("seed", range(5))
def test_a_run_repeats_itself(seed: int) -> None:
    check_replay(run, seed)


@pytest.mark.parametrize(
    "kind",
    [
        TakesEveryRefusalForAConflict,
        TakesSilenceForFailure,
        TakesSilenceForSuccess,
        RepeatsWithoutReadingBack,
    ],
)
def test_a_mistake_is_noticed(kind: type[Appender]) -> None:
    def found(seed: int) -> bool:
        try:
            run(seed, kind)
        except Violation as violation:
            return f"seed={seed}" in violation.__notes__[0]
        except ReefError:
            return False  # it gave up: no answer is not a wrong one
        return False

    count = sum(found(seed) for seed in range(100))
    print(f"{kind.__name__}: noticed in {count} of 100 runs")
    assert count
