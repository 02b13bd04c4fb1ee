"""The rival: SlateDB, by its Python package `slatedb`, in the best forms that its API offers.

Its calls are coroutines. Times are taken inside one, around the awaited call alone, so that
starting an event loop is not counted against it.
"""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from slatedb import uniffi
from slatedb.uniffi._slatedb_uniffi import slatedb as binding

from bench._places import Place

T = TypeVar("T")

_ALL = uniffi.KeyRange(start=None, start_inclusive=False, end=None, end_inclusive=False)

# Rows per call, bytes read ahead, requests at once, blocks kept in its cache.
Tuning = tuple[int, int, int, bool]
TUNINGS: Sequence[Tuning] = [
    (rows, ahead, tasks, cached)
    for rows in (100, 1_000, 10_000)
    for ahead, tasks in ((1, 1), (8 << 20, 4))
    for cached in (False, True)
]


class Slate:
    """An open SlateDB of its own, with its stock settings. Use as a context manager."""

    def __init__(self, place: Place, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        kind = uniffi.ObjectStoreType.LOCAL
        if place.rival_kind == "s3":
            kind = uniffi.ObjectStoreType.S3
        store = uniffi.ObjectStoreBuilder(kind)
        for key, value in place.rival_options.items():
            store.with_config(key, value)
        self._db = self._run(uniffi.DbBuilder(name, store.build()).build())

    def write(self, rows: Mapping[bytes, bytes]) -> None:
        """Write a batch and wait until it is in the object store."""
        self._run(self._write(rows))

    def load(self, rows: Mapping[bytes, bytes]) -> None:
        """Write many rows, in batches, quickly, and fold them into sorted files."""
        items = list(rows.items())
        with fast_copies():
            for start in range(0, len(items), 1000):
                self.write(dict(items[start : start + 1000]))
        options = uniffi.FlushOptions(flush_type=uniffi.FlushType.MEM_TABLE)
        self._run(self._db.flush_with_options(options))

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`."""
        value: bytes | None = self._run(self._db.get(key))
        return value

    def time_gets(self, keys: Sequence[bytes]) -> list[float]:
        """Return the seconds that each get took."""
        return self._run(self._time_gets(keys))

    def scan(self, tuning: Tuning) -> int:
        """Read everything and return how many rows there were."""
        return self._run(self._scan(tuning))

    def best_tuning(self) -> Tuning:
        """Return the tuning that scans fastest here, each tried twice."""

        def seconds(tuning: Tuning) -> float:
            begun = time.perf_counter()
            self.scan(tuning)
            return time.perf_counter() - begun

        return min(TUNINGS, key=lambda tuning: min(seconds(tuning), seconds(tuning)))

    def close(self) -> None:
        """Shut the database and its event loop down."""
        self._run(self._db.shutdown())
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    async def _write(self, rows: Mapping[bytes, bytes]) -> None:
        batch = uniffi.WriteBatch()
        for key, value in rows.items():
            batch.put(key, value)
        await self._db.write(batch)
        await self._db.flush()  # else it is durable up to 100 ms later

    async def _time_gets(self, keys: Sequence[bytes]) -> list[float]:
        times = []
        now, get = time.perf_counter, self._db.get
        for key in keys:
            begun = now()
            await get(key)
            times.append(now() - begun)
        return times

    async def _scan(self, tuning: Tuning) -> int:
        rows, ahead, tasks, cached = tuning
        options = uniffi.ScanOptions(
            durability_filter=uniffi.DurabilityLevel.MEMORY,
            dirty=False,
            read_ahead_bytes=ahead,
            max_fetch_tasks=tasks,
            cache_blocks=cached,
        )
        scan = await self._db.scan_with_options(_ALL, options)
        count = 0
        while True:
            batch = await scan.next_batch(rows)
            count += len(batch)
            if len(batch) < rows:
                return count


@contextmanager
def fast_copies() -> Iterator[None]:
    """Let the binding copy bytes into Rust's memory at once, not one by one in a Python loop."""
    stock = binding._UniffiRustBufferBuilder.write

    def write(self: Any, value: bytes) -> None:
        with self._reserve(len(value)):
            start = ctypes.addressof(self.rbuf.data.contents) + self.rbuf.len
            ctypes.memmove(start, value, len(value))

    binding._UniffiRustBufferBuilder.write = write
    try:
        yield
    finally:
        binding._UniffiRustBufferBuilder.write = stock
