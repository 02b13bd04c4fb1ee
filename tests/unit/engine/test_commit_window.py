"""`group_commit_window`: which writes share a log object, and how long a write waits for others.

Time is simulated: a PUT takes 10 ms, everything else nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reef.database import Database
from reef.engine import Receipt
from reef.kv import KeyValue
from tests.support.simulation import Network, Process, Simulation

PUT_S = 0.010
MS = 0.001


class World:
    """One writer process, and what its clients did."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.process: Process = sim.process("writer")
        self.receipts: list[Receipt] = []
        self.seconds: list[float] = []

    def open(self, **settings: object) -> KeyValue:
        db = Database(
            self.process.store,
            clock=self.process.clock,
            rng=self.process.rng,
            threads=self.process.threads,
            **settings,
        )
        self.db = db
        return self.sim.call(lambda: db.kv("ns"), self.process)

    def put(self, kv: KeyValue, key: bytes, *, at_s: float = 0.0) -> None:
        """Have a client put `key` after `at_s` seconds."""

        def client() -> None:
            self.process.clock.sleep(at_s)
            begun = self.process.clock.monotonic()
            self.receipts.append(kv.put(key, b"v"))
            self.seconds.append(self.process.clock.monotonic() - begun)

        self.process.start(client, "client")

    def objects(self) -> list[int]:
        """Return how many batches each log object has, in order."""
        slots = [receipt.lsn >> 20 for receipt in self.receipts]
        return [slots.count(slot) for slot in sorted(set(slots))]


@pytest.fixture
def world() -> Iterator[World]:
    network = Network(latency=(PUT_S / 2, PUT_S / 2))
    with Simulation(1, network=network, hesitation=0.0) as sim:
        yield World(sim)


def test_writes_within_a_window_that_is_set_share_a_log_object(world: World) -> None:
    kv = world.open(group_commit_window="5ms")
    world.put(kv, b"a")
    world.put(kv, b"b", at_s=1 * MS)
    world.put(kv, b"c", at_s=6 * MS)
    world.sim.run()
    assert world.objects() == [2, 1]


@pytest.mark.parametrize("window", [None, 0])
def test_without_a_window_the_first_write_is_sent_at_once(
    world: World, window: float | None
) -> None:
    kv = world.open(group_commit_window=window)
    world.put(kv, b"a")
    world.put(kv, b"b", at_s=1 * MS)
    world.sim.run()
    assert world.objects() == [1, 1]
    assert world.seconds[0] == pytest.approx(PUT_S, abs=0.1 * MS)


def test_a_lone_write_waits_for_a_window_that_is_set(world: World) -> None:
    kv = world.open(group_commit_window="5ms")
    for at_s in (0.0, 0.1, 0.2):
        world.put(kv, b"k", at_s=at_s)
    world.sim.run()
    assert world.seconds == pytest.approx([PUT_S + 5 * MS] * 3, abs=0.1 * MS)


def test_a_lone_write_does_not_wait_by_default(world: World) -> None:
    kv = world.open()
    for at_s in (0.0, 0.1, 0.2):
        world.put(kv, b"k", at_s=at_s)
    world.sim.run()
    assert world.seconds == pytest.approx([PUT_S] * 3, abs=0.1 * MS)


def test_a_window_begins_with_the_first_write_of_an_object(world: World) -> None:
    kv = world.open(group_commit_window="12ms")
    world.put(kv, b"a")
    world.put(kv, b"b", at_s=13 * MS)  # while the first object is sent, until 22 ms
    world.put(kv, b"c", at_s=24 * MS)  # within 12 ms of it
    world.put(kv, b"d", at_s=26 * MS)
    world.sim.run()
    assert world.objects() == [1, 2, 1]


def test_a_full_log_object_is_sent_at_once(world: World) -> None:
    kv = world.open(group_commit_window="10s", group_commit_max_batches=2)
    world.put(kv, b"a")
    world.put(kv, b"b", at_s=1 * MS)
    world.sim.run()
    assert world.objects() == [2]
    assert world.seconds == pytest.approx([PUT_S + 1 * MS, PUT_S], abs=0.1 * MS)


def test_closing_ends_the_window(world: World) -> None:
    kv = world.open(group_commit_window="10s")
    world.put(kv, b"a")

    def close() -> None:
        world.process.clock.sleep(1 * MS)
        kv.close()

    world.process.start(close, "closer")
    world.sim.run()
    assert world.seconds == pytest.approx([PUT_S + 1 * MS], abs=0.1 * MS)


def test_a_schema_change_does_not_wait(world: World) -> None:
    world.open(group_commit_window="10s")
    docs = world.sim.call(lambda: world.db.namespace("docs"), world.process)
    begun = world.process.clock.monotonic()
    world.sim.call(lambda: docs.alter(add={"n": "int64"}), world.process)
    assert world.process.clock.monotonic() - begun < 1


def test_by_default_an_object_waits_for_the_writers_of_the_last_one(world: World) -> None:
    kv = world.open()

    def client(number: int) -> None:
        for _ in range(20):
            world.receipts.append(kv.put(b"k%d" % number, b"v"))
            world.process.clock.sleep(0.1 * MS * number)  # they come back one after the other

    for number in range(4):
        world.process.start(lambda number=number: client(number), "client")
    world.sim.run()
    assert world.objects().count(4) >= 18
