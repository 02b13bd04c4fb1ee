"""The kernel through its key-value face, timed, on a disk and on a real S3 server.

16 B keys and 1 KiB values that no codec can shrink. Reef runs as it comes: with fsync, checksums,
metrics, and the loop that decides about lost replies.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import reef
from bench._measure import Ratio, compare, ratio_of
from bench._places import Place, file_place, seaweedfs_place
from bench.slate import Slate, fast_copies
from reef.format import log_key
from reef.kv import KeyValue
from reef.store import open_store
from reef.types import unpack_lsn

KEYS = 10_000
BATCH = 1_000
SCANNED = 30_000
THREADS = 16
SLATE = "slatedb"


def bench_file() -> Iterator[Ratio]:
    """All timed figures in a folder on a disk."""
    yield from _bench(file_place)


def bench_seaweedfs() -> Iterator[Ratio]:
    """All timed figures on a SeaweedFS on this machine."""
    yield from _bench(seaweedfs_place)


def _bench(place: Callable[[], AbstractContextManager[Place]]) -> Iterator[Ratio]:
    for figure in (_puts, _threads, _gets, _batches, _scans):
        with place() as here:  # empty, so that no figure meets what another has left
            yield from figure(here)


def keys_of(count: int, first: int = 0) -> list[bytes]:
    """Return so many keys of 16 bytes."""
    return [b"key-%012d" % number for number in range(first, first + count)]


def rows_of(count: int, first: int = 0) -> dict[bytes, bytes]:
    """Return so many keys, each with a value of 1 KiB of its own."""
    rng = random.Random(first)
    return {key: rng.randbytes(1024) for key in keys_of(count, first)}


def _puts(place: Place, count: int = 600) -> Iterator[Ratio]:
    """One durable put against the bare put-if-absent of the very bytes that it wrote."""
    rows = rows_of(count)
    ours: list[float] = []
    bare: list[float] = []
    now = time.perf_counter
    with reef.connect(place.url) as db, db.kv("puts") as kv, open_store(place.url) as store:
        data = b""
        for i, (key, value) in enumerate(rows.items()):
            copy = f"namespaces/bare/wal/{i + 1:020d}.wal"
            for is_bare in (True, False) if i % 2 else (False, True):
                begun = now()
                if is_bare:
                    store.put_if_absent(copy, data)
                else:
                    receipt = kv.put(key, value)
                (bare if is_bare else ours).append(now() - begun)
            data = store.get(log_key("puts", unpack_lsn(receipt.lsn)[0]))
    yield ratio_of(
        f"put p50, {place.name}",
        ours[50:],
        bare[50:],
        by="median",
        bar=1.25,
        note=f"{len(data):,} B log objects",
        against="bare put-if-absent",
        at_most=True,
    )


def _threads(place: Place, rounds: int = 7, puts_each: int = 60) -> Iterator[Ratio]:
    """Threads that put single rows, against one that does."""
    value = random.Random(1).randbytes(1024)
    numbers = itertools.count()
    alone: list[float] = []
    together: list[float] = []
    with reef.connect(place.url) as db, db.kv("threads") as kv:
        _seconds_per_put(kv, [keys_of(50)], value)
        for _ in range(rounds):
            for threads, times in ((1, alone), (THREADS, together)):
                each = puts_each * (3 if threads == 1 else 1)
                keys = [keys_of(each, next(numbers) * 1000) for _ in range(threads)]
                times.append(_seconds_per_put(kv, keys, value))
    yield ratio_of(
        f"{THREADS} threads of puts, {place.name}",
        together,
        alone,
        by="fastest",
        bar=5.0,
        note=f"{1 / min(together):,.0f} puts/s",
        against="one thread",
    )


def _seconds_per_put(kv: KeyValue, keys: Sequence[Sequence[bytes]], value: bytes) -> float:
    """Return what a put takes on average while a thread for each list of keys puts them."""
    gate = threading.Barrier(len(keys) + 1)

    def put_all(mine: Sequence[bytes]) -> None:
        gate.wait()
        for key in mine:
            kv.put(key, value)

    threads = [threading.Thread(target=put_all, args=(mine,)) for mine in keys]
    for thread in threads:
        thread.start()
    gate.wait()
    begun = time.perf_counter()
    for thread in threads:
        thread.join()
    return (time.perf_counter() - begun) / sum(map(len, keys))


def _gets(place: Place, rounds: int = 40, gets_each: int = 200) -> Iterator[Ratio]:
    """Single gets of keys that are in memory on both sides."""
    rows = rows_of(KEYS)
    with reef.connect(place.url) as db, db.kv("gets") as kv, Slate(place, "gets") as slate:
        for where in ("the memtable", "segments"):
            for start in range(0, KEYS, BATCH):
                kv.write(dict(itertools.islice(rows.items(), start, start + BATCH)))
            if where == "segments":
                kv.flush()
                slate.load(rows)
            else:
                with fast_copies():
                    slate.write(rows)
            chosen = random.Random(2).choices(list(rows), k=rounds * gets_each)
            for key in rows:  # hot, and the same on both sides
                if kv.get(key) != rows[key] or slate.get(key) != rows[key]:
                    raise AssertionError(f"{key!r} came back with another value")
            ours: list[float] = []
            rival: list[float] = []
            for i in range(rounds):
                some = chosen[i * gets_each : (i + 1) * gets_each]
                if i % 2:
                    ours += _time_gets(kv, some)
                rival += slate.time_gets(some)
                if not i % 2:
                    ours += _time_gets(kv, some)
            yield ratio_of(
                f"hot get p50, from {where}, {place.name}",
                ours,
                rival,
                by="median",
                bar=0.15,
                note=f"{KEYS:,} keys",
                against=SLATE,
                at_most=True,
            )


def _time_gets(kv: KeyValue, keys: Sequence[bytes]) -> list[float]:
    times = []
    now, get = time.perf_counter, kv.get
    for key in keys:
        begun = now()
        get(key)
        times.append(now() - begun)
    return times


def _batches(place: Place, rounds: int = 7) -> Iterator[Ratio]:
    """Durable batches of a thousand rows, from a dict of Python bytes on both sides."""
    batches = [rows_of(BATCH, first * BATCH) for first in range(rounds + 1)]
    with reef.connect(place.url) as db, db.kv("batches") as kv, Slate(place, "batches") as slate:

        def against(rival: str, bar: float | None) -> Ratio:
            mine, theirs = iter(batches), iter(batches)
            result = compare(
                f"batches of {BATCH:,} rows, {place.name}",
                lambda: kv.write(next(mine)),
                lambda: slate.write(next(theirs)),
                bar=bar,
                rounds=rounds,
                against=rival,
            )
            rows_s = f"{BATCH / result.ours_s:,.0f} rows/s to {BATCH / result.rival_s:,.0f}"
            return _noted(result, rows_s)

        yield against(SLATE, 10.0)
        with fast_copies():
            yield against(f"{SLATE}, its byte copy replaced", None)


def _scans(place: Place, rounds: int = 7) -> Iterator[Ratio]:
    """Everything read in order: as Arrow batches, and as pairs of Python bytes."""
    rows = rows_of(SCANNED)
    with reef.connect(place.url) as db, db.kv("scans") as kv, Slate(place, "scans") as slate:
        items = list(rows.items())
        for start in range(0, SCANNED, BATCH):
            kv.write(dict(items[start : start + BATCH]))
        kv.flush()
        slate.load(rows)
        tuning = slate.best_tuning()
        if list(kv.items()) != items or slate.scan(tuning) != SCANNED:
            raise AssertionError("a scan did not bring what was written")
        for what, scan in (
            ("Arrow batches", lambda: sum(batch.num_rows for batch in kv.scan())),
            ("Python pairs", lambda: deque(kv.items(), maxlen=0)),
        ):
            result = compare(
                f"full scan as {what}, {place.name}",
                scan,
                lambda: slate.scan(tuning),
                bar=10.0,
                rounds=rounds,
                against=f"{SLATE}, tuned",
            )
            per_call, ahead, tasks, cached = tuning
            yield _noted(
                result,
                f"{SCANNED / result.ours_s:,.0f} rows/s to {SCANNED / result.rival_s:,.0f} "
                f"(next_batch({per_call:,}), ahead {ahead:,}, tasks {tasks}, cached {cached})",
            )


def _noted(result: Ratio, note: str) -> Ratio:
    return Ratio(**{**result.__dict__, "note": note})
