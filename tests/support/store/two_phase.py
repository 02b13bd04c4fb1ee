"""What the tests of two-phase CAS share: clients that can die, and what records must keep.

A client here is a store with a database connection of its own; all clients of one `Site` share the
objects and the database file, as processes on several machines would.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from reef.clock import Clock
from reef.errors import UnavailableError
from reef.settings import Settings
from reef.store import MemoryStore, TwoPhaseStore, create
from reef.store.two_phase import PAGE_ROWS, TEMPORARY_PREFIX, PlainStore, Record, Records
from reef.testing import ManualClock
from reef.types import OBJECT_KEY_BYTES_MAX

EVER = 2**62
"""Later than any object: what is collected "before" it is everything."""


def commit(
    store: TwoPhaseStore,
    key: str,
    data: bytes,
    *,
    nonce: bytes = b"",
    retries: int = 50,
    clock: Clock | None = None,
    seed: int = 1,
) -> None:
    """Create an object through the loop that every commit goes through; by default its nonce is `data`."""
    create(
        store,
        key,
        data,
        nonce=nonce or data,
        is_collected=lambda: False,
        settings=Settings(cas_max_retries=retries),
        clock=clock or ManualClock(),
        rng=random.Random(seed),
    )


class Crash(BaseException):
    """The process is gone: no handler of errors runs."""


class Steps:
    """Remembers a client's steps, and does something just before one of them."""

    def __init__(self, at: int | str = -1, then: Callable[[], object] | None = None) -> None:
        self.seen: list[str] = []
        self._at = at
        self._then = then

    def __call__(self, name: str) -> None:
        here = self._at in (name, len(self.seen)) and name not in self.seen[self._first() :]
        self.seen.append(name)
        if here:
            if self._then is None:
                raise Crash(name)
            self._then()

    def _first(self) -> int:
        # A name means its first time; a number means just that step.
        return 0 if isinstance(self._at, str) else len(self.seen)


class Site:
    """A bucket without conditional writes, a database, and any number of clients."""

    def __init__(self, folder: Path, inner: MemoryStore | None = None) -> None:
        self.clock = ManualClock()
        self.inner = inner or MemoryStore(clock=self.clock)
        self.path = folder / "cas.db"
        self.records = Records(f"sqlite:///{self.path}", bucket="memory://site")
        self._opened = [self.records]
        self._seeds = itertools.count()

    def client(
        self,
        on_step: Callable[[str], None] = lambda _: None,
        *,
        inner: PlainStore | None = None,
        records: Records | None = None,
    ) -> TwoPhaseStore:
        if records is None:
            records = Records(f"sqlite:///{self.path}", bucket="memory://site")
            self._opened.append(records)
        return TwoPhaseStore(
            inner or self.inner,
            records,
            clock=self.clock,
            rng=random.Random(next(self._seeds)),
            on_step=on_step,
        )

    def temporaries(self) -> list[str]:
        return [meta.key for meta in self.inner.list(TEMPORARY_PREFIX)]

    def rows(self) -> list[Record]:
        return sorted([*self.records.pending(), *self.records.committed()])

    def get(self, key: str) -> bytes | None:
        return self.inner.get(key) if key in {meta.key for meta in self.inner.list()} else None

    def assert_tidy(self) -> None:
        """Nothing is left over: no temporary, nothing pending, no record without its object."""
        assert self.temporaries() == []
        assert [row for row in self.rows() if not row.committed or self.get(row[0]) is None] == []

    def close(self) -> None:
        for records in self._opened:
            records.close()


class FaultyRecords(Records):
    """Records whose answer to one call gets lost: before it was carried out, or after."""

    def __init__(self, url: str, *, bucket: str, call: str, when: str) -> None:
        super().__init__(url, bucket=bucket)
        self.fired = 0
        real = getattr(self, call)

        def faulty(*args: Any, **kwargs: Any) -> Any:
            if self.fired:
                return real(*args, **kwargs)
            self.fired += 1
            if when == "after":
                real(*args, **kwargs)
            raise UnavailableError(f"{call}: the answer was lost")

        setattr(self, call, faulty)


def race(rounds: int, racers: int, put: Callable[[int, int], None]) -> list[list[int]]:
    """Let `put(racer, round)` race; return for each round who did not raise."""
    barrier = threading.Barrier(racers)

    def run(racer: int) -> list[bool]:
        won = []
        for number in range(rounds):
            barrier.wait()
            won.append(False)
            try:
                with suppress(LostError):
                    put(racer, number)
                    won[-1] = True
            except BaseException:
                barrier.abort()  # or the others would wait for this one for ever
                raise
        return won

    with ThreadPoolExecutor(racers) as pool:
        futures = [pool.submit(run, racer) for racer in range(racers)]
    for error in filter(None, (future.exception() for future in futures)):
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    results = [future.result() for future in futures]
    return [[i for i, won in enumerate(column) if won] for column in zip(*results, strict=True)]


class LostError(Exception):
    """This racer did not win."""


class RecordsContract:
    """What two-phase CAS needs of its records. Subclasses give `records` (of a fresh bucket)."""

    @pytest.fixture
    def records(self) -> Iterator[Any]:
        raise NotImplementedError

    def test_a_destination_is_taken_once(self, records: Any) -> None:
        assert records.insert("wal/1", ".tmp/a")
        assert not records.insert("wal/1", ".tmp/b")
        assert records.find("wal/1") == Record("wal/1", ".tmp/a", False)
        assert records.find_source(".tmp/a") == Record("wal/1", ".tmp/a", False)
        assert records.find_source(".tmp/b") is None
        assert records.find("wal/2") is None

    def test_a_source_is_claimed_once(self, records: Any) -> None:
        assert records.insert(".tmp/a", ".tmp/a", committed=True)
        assert not records.insert("wal/1", ".tmp/a")
        assert records.find("wal/1") is None
        assert records.find_source(".tmp/a") == Record(".tmp/a", ".tmp/a", True)

    def test_commit_needs_the_very_record(self, records: Any) -> None:
        records.insert("wal/1", ".tmp/a")
        assert not records.commit("wal/1", ".tmp/b")
        assert not records.commit("wal/2", ".tmp/a")
        assert records.find("wal/1") == Record("wal/1", ".tmp/a", False)
        assert records.commit("wal/1", ".tmp/a")
        assert records.find("wal/1") == Record("wal/1", ".tmp/a", True)

    def test_committing_again_still_finds_the_record(self, records: Any) -> None:
        records.insert("wal/1", ".tmp/a")
        assert [records.commit("wal/1", ".tmp/a") for _ in range(2)] == [True, True]

    def test_remove_needs_the_very_record_in_that_state(self, records: Any) -> None:
        records.insert("wal/1", ".tmp/a")
        assert not records.remove("wal/1", ".tmp/a", committed=True)
        assert not records.remove("wal/1", ".tmp/b", committed=False)
        records.commit("wal/1", ".tmp/a")
        assert not records.remove("wal/1", ".tmp/a", committed=False)
        assert records.find("wal/1") is not None
        assert records.remove("wal/1", ".tmp/a", committed=True)
        assert records.find("wal/1") is None
        assert records.insert("wal/1", ".tmp/a")

    def test_records_come_by_state_and_in_byte_order(self, records: Any) -> None:
        keys = ["a-", "a.b", "a/b", "a0", "aB", "a_", "aa", "b", "B"]
        for i, key in enumerate(keys):
            records.insert(key, f".tmp/{i}", committed=i % 2 == 0)
        assert [r.destination for r in records.committed()] == sorted(keys[::2])
        assert [r.destination for r in records.pending()] == sorted(keys[1::2])


class SQLRecordsContract(RecordsContract):
    """What only databases can get wrong."""

    def test_keys_are_told_apart_by_their_bytes(self, records: Records) -> None:
        for i, key in enumerate(["wal/a", "wal/A", "wal/a.", "wal/a_", "wal/a-"]):
            assert records.insert(key, f".tmp/{i}")
        assert not records.insert("wal/A", ".tmp/9")
        assert records.insert("wal/source", ".tmp/F")
        assert records.insert("wal/Source", ".tmp/f")

    def test_the_longest_keys_are_kept_whole(self, records: Records) -> None:
        one, two = "k" * OBJECT_KEY_BYTES_MAX, "k" * (OBJECT_KEY_BYTES_MAX - 1) + "K"
        assert records.insert(one, ".tmp/1")
        assert records.insert(two, ".tmp/2")
        assert records.commit(one, ".tmp/1")
        assert records.find(one) == Record(one, ".tmp/1", True)
        assert records.find(two) == Record(two, ".tmp/2", False)

    def test_more_records_than_a_page_are_all_seen_while_they_go(self, records: Records) -> None:
        keys = [f"wal/{i:06}" for i in range(PAGE_ROWS + 7)]
        for i, key in enumerate(keys):
            records.insert(key, f".tmp/{i}")
        seen = []
        for record in records.pending():
            seen.append(record.destination)
            if len(seen) % 100 == 0:
                assert records.remove(record.destination, record.source, committed=False)
        assert seen == keys

    def test_among_racing_inserts_exactly_one_wins(self, records: Records) -> None:
        def insert(racer: int, number: int) -> None:
            if not records.insert(f"wal/{number}", f".tmp/{racer}-{number}"):
                raise LostError

        winners = race(30, 4, insert)
        assert [len(names) for names in winners] == [1] * 30
        for number, [racer] in enumerate(winners):
            found = records.find(f"wal/{number}")
            assert found is not None
            assert found.source == f".tmp/{racer}-{number}"
