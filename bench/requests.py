"""Requests of the kernel to its store, counted: the same on every store."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeVar

from bench._measure import Count, Scale, check
from bench.kernel import rows_of
from reef.database import Database
from reef.store import MemoryStore, Store
from reef.testing import CountingStore, Operation, WrapperStore
from tests.support.simulation import Simulation

T = TypeVar("T")

UNFOLDED = 100
RUNS = 8
SAMPLES = 300
HOUR_S = 3600


class _RecordingStore(WrapperStore):
    """Keeps every request with its key, and whether it found an object."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.requests: list[tuple[Operation, str, bool]] = []

    def _request(self, operation: Operation, key: str, call: Callable[[], T]) -> T:
        is_answered = False
        try:
            answer = call()
            is_answered = True
            return answer
        finally:
            self.requests.append((operation, key, is_answered))


def bench_requests(scale: Scale) -> Iterator[Count]:
    """Opening a reader, a writer's turn, a cold point read, and an idle hour."""
    yield from _opening()
    yield from _turns()
    yield from _cold_reads(scale.rows(SAMPLES))
    yield from _idle_hour()


def _opening() -> Iterator[Count]:
    store = MemoryStore()
    with Database(store).kv("n") as kv:
        kv.write(rows_of(1000))
        kv.flush()
        for key, value in rows_of(UNFOLDED).items():
            kv.put(key, value)
    recording = _RecordingStore(store)
    with Database(recording).kv("n", mode="r"):
        counts = Counter(
            (operation, key.split("/")[2], is_answered)
            for operation, key, is_answered in recording.requests
        )
    what = f"opening a reader, {UNFOLDED} unfolded log objects"
    past_end = counts.pop(("get", "wal", False), 0)
    yield Count(f"{what}: LIST", counts.pop(("list", "manifest", True), 0), 1)
    yield Count(f"{what}: GET of a manifest", counts.pop(("get", "manifest", True), 0), 1)
    yield Count(f"{what}: GET of a log object", counts.pop(("get", "wal", True), 0), UNFOLDED)
    yield Count(
        f"{what}: GET behind the log's end",
        past_end,
        32,
        "side by side with the others: they find the end of the log without a LIST, and tell it from "
        "a hole",
    )
    yield Count(f"{what}: anything else", sum(counts.values()), 0)


def _turns() -> Iterator[Count]:
    """Opening for writing behind a writer that was killed, then behind one that was closed.

    One LIST is of the unfolded log, before the epoch is taken: nobody takes over a log with a hole.
    """
    store = MemoryStore()
    Database(store).kv("n").put(b"k", b"v")
    for before, puts, lists in (("killed", 2, 4), ("closed", 1, 3)):
        counting = CountingStore(store)
        kv = Database(counting).kv("n")
        opened = counting.counts
        what = f"opening a writer behind one that was {before}"
        yield Count(f"{what}: PUT", opened.requests.get("put_if_absent", 0), puts)
        yield Count(f"{what}: LIST", opened.requests.get("list", 0), lists)
        kv.put(b"k", b"v")
        committed = counting.counts
        kv.close()
        closing = counting.counts - committed
        yield Count(f"closing a writer (the one before was {before})", closing.total, 2)


def _cold_reads(samples: int) -> Iterator[Count]:
    """Point reads by readers just opened, over runs that all span the key's range."""
    store = MemoryStore()
    rows = rows_of(RUNS * 1000)
    keys = list(rows)
    with Database(store).kv("n") as kv:
        for run in range(RUNS):
            kv.write({key: rows[key] for key in keys[run::RUNS]})
            kv.flush()
    most = blocks = 0
    for key in random.Random(3).sample(keys[RUNS:-RUNS], samples):
        recording = _RecordingStore(store)
        reader = Database(recording).kv("n", mode="r")
        recording.requests.clear()
        check(reader.get(key) == rows[key], f"{key!r} has the value that was written")
        by_run = Counter(key for _, key, _ in recording.requests)
        most = max(most, *by_run.values())
        blocks += by_run.total() - len(by_run)  # beside the tail of each run
    what = f"cold point read, {RUNS} runs of {len(rows) // RUNS:,} rows"
    yield Count(
        f"{what}: GETs of one run, at most", most, 2, "its tail, with the filter, then one block"
    )
    yield Count(
        f"{what}: blocks fetched by {samples} reads",
        blocks,
        samples + max(2, samples // 10),
        "one run has the key; more are false positives of the filters",
    )


def _idle_hour() -> Iterator[Count]:
    """An hour of simulated time, in which every wait and every sleep of every thread ends."""
    with Simulation(seed=1) as sim:
        process = sim.process("writer")
        counting = CountingStore(process.store)

        def live() -> int:
            db = Database(counting, clock=process.clock, rng=process.rng, threads=process.threads)
            kv = db.kv("n")
            for key, value in rows_of(10).items():
                kv.put(key, value)
            counting.reset()
            process.clock.sleep(HOUR_S)
            return counting.counts.total

        yield Count("an idle hour of an open writer: requests", sim.call(live, process), 0)
