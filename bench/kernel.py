"""The kernel through its key-value face, timed, on a disk and on a real S3 server.

16 B keys and 1 KiB values that no codec can shrink. Reef runs with its default settings: fsync,
checksums, metrics, and the check after a lost reply.
"""

from __future__ import annotations

import itertools
import random
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Literal, TypeAlias

import reef
from bench._fresh import Pass, each, over, whole
from bench._measure import (
    Ratio,
    Scale,
    check,
    compare,
    in_turn,
    rated,
    ratio_of,
    with_fresh,
    within,
)
from bench._places import Place, file_place, seaweedfs_place
from bench.slate import Slate, Tuning, fast_copies
from reef.engine import Receipt
from reef.format import log_key
from reef.kv import KeyValue
from reef.store import open_store
from reef.types import unpack_lsn

KEYS = 10_000
BATCH = 1_000
SCANNED = 30_000
THREADS = 16
VALUE_BYTES = 1024
SLATE = "slatedb"
BARE = "bare put-if-absent"

PUT_EXTRA_S = 0.12e-3
"""What a put may take beside its PUT on file://."""
PUT_TIMES = 1.15
"""How many times its PUT a put may take on SeaweedFS."""
THREADS_EXTRA_S = 0.15e-3
"""What each put of 16 threads may take beside its sixteenth of a PUT, on file://."""
SLOW_PUT_S = 1e-3
"""Where a bare PUT takes so long, 16 threads must also reach THREADS_TIMES on file://."""
THREADS_TIMES = {"file://": 5.0, "SeaweedFS": 7.0}

Where: TypeAlias = Literal["memtable", "segments"]


def bench_file(scale: Scale) -> Iterator[Ratio]:
    """All timed figures in a folder on a disk."""
    yield from _bench(file_place, scale)


def bench_seaweedfs(scale: Scale) -> Iterator[Ratio]:
    """All timed figures on a SeaweedFS on this machine."""
    yield from _bench(seaweedfs_place, scale)


def _bench(place: Callable[[], AbstractContextManager[Place]], scale: Scale) -> Iterator[Ratio]:
    for figure in (_puts, _threads, _gets, _batches, _scans):
        with place() as here:  # empty, so that no figure meets what another has left
            yield from figure(here, scale)


def keys_of(count: int, first: int = 0) -> list[bytes]:
    """Return so many keys of 16 bytes."""
    return [b"key-%012d" % number for number in range(first, first + count)]


def rows_of(count: int, first: int = 0) -> dict[bytes, bytes]:
    """Return so many keys, each with a value of 1 KiB of its own."""
    rng = random.Random(first)
    return {key: rng.randbytes(VALUE_BYTES) for key in keys_of(count, first)}


def batches_of(rows: dict[bytes, bytes]) -> Iterator[dict[bytes, bytes]]:
    """Yield the rows a thousand at a time."""
    items = iter(rows.items())
    while batch := dict(itertools.islice(items, BATCH)):
        yield batch


# Puts.


def _puts(place: Place, scale: Scale) -> Iterator[Ratio]:
    """One durable put against the bare put-if-absent of the very bytes that it wrote."""
    ours: list[float] = []
    bare: list[float] = []
    rows = rows_of(scale.rows(600) + 50)
    with reef.connect(place.url) as db, db.kv("puts") as kv, open_store(place.url) as store:
        data = b""
        receipts: list[Receipt] = []
        put = each(rows.items(), 1, lambda row: receipts.append(kv.put(*row)))
        for i in range(len(rows)):
            put_bare = each([data], 1, partial(store.put_if_absent, _bare_key("puts", i)))
            sides = ((bare, put_bare), (ours, put))
            for times, run in sides if i % 2 else reversed(sides):
                times += run()
            data = store.get(log_key("puts", unpack_lsn(receipts[-1].lsn)[0]))
    result = ratio_of(
        f"put p50, {place.name}",
        ours[50:],
        bare[50:],
        by="median",
        bar=PUT_TIMES if place.name == "SeaweedFS" else None,
        note=f"{len(data):,} B log objects",
        against=BARE,
        at_most=True,
    )
    if place.name == "file://":
        extra = f"bare PUT + {PUT_EXTRA_S * 1e3:.2f} ms"
        result = within(result, result.rival_s + PUT_EXTRA_S, extra)
    yield with_fresh(
        result,
        partial(opened_puts, place, 1),
        partial(opened_bare_puts, place, data, 1),
        written_bytes=len(data),
    )


def _bare_key(name: str, number: int) -> str:
    return f"namespaces/bare-{name}/wal/{number + 1:020d}.wal"


@contextmanager
def opened_puts(place: Place, threads: int, count: int = 1) -> Iterator[Pass]:
    """So many threads that put so many single rows each; the seconds of one put on average."""
    numbers = itertools.count()
    value = random.Random(1).randbytes(VALUE_BYTES)
    with reef.connect(place.url) as db, db.kv(f"{threads}-threads") as kv:
        yield lambda: _seconds_per_put(
            kv, [keys_of(count, next(numbers) * count) for _ in range(threads)], value
        )


@contextmanager
def opened_bare_puts(place: Place, data: bytes, count: int) -> Iterator[Pass]:
    """So many bare PUTs, one after the other; the seconds of one on average."""
    name = random.randbytes(8).hex()
    keys = map(partial(_bare_key, name), itertools.count())
    with open_store(place.url) as store:

        def put_all() -> None:
            for key in itertools.islice(keys, count):
                store.put_if_absent(key, data)

        yield whole(put_all, count)


def _seconds_per_put(
    kv: KeyValue, keys: Sequence[Sequence[bytes]], value: bytes
) -> Sequence[float]:
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
    return [(time.perf_counter() - begun) / sum(map(len, keys))]


def _threads(place: Place, scale: Scale) -> Iterator[Ratio]:
    """Threads that put single rows, against one that does, beside bare PUTs."""
    count = scale.rows(60)
    data = random.Random(2).randbytes(VALUE_BYTES + 500)  # about what one put writes
    together = partial(opened_puts, place, THREADS, count)
    alone = partial(opened_puts, place, 1, count * 3)
    bare = partial(opened_bare_puts, place, data, count * 3)
    times = in_turn({"ours": together, "rival": alone, "bare": bare}, scale.rounds(7))
    bare_s = statistics.median(times["bare"])
    is_file = place.name == "file://"
    result = ratio_of(
        f"{THREADS} threads of puts, {place.name}",
        times["ours"],
        times["rival"],
        by="fastest",
        bar=None if is_file and bare_s < SLOW_PUT_S else THREADS_TIMES[place.name],
        against="one thread",
        note=f"{1 / min(times['ours']):,.0f} puts/s; a bare PUT takes {bare_s * 1e3:.2f} ms",
    )
    if is_file:
        extra = f"bare PUT / {THREADS} + {THREADS_EXTRA_S * 1e3:.2f} ms"
        result = within(result, bare_s / THREADS + THREADS_EXTRA_S, extra)
    yield with_fresh(result, together, alone)


# Gets.


def _gets(place: Place, scale: Scale) -> Iterator[Ratio]:
    """Single gets; the warm ones of keys that are in memory on both sides."""
    count = scale.rows(KEYS)
    rows = rows_of(count)
    wheres: tuple[Where, ...] = ("memtable", "segments")
    for where in wheres:
        if where == "segments":
            _load(place, "segments", rows)
        ours = partial(opened_gets, place, where, count)
        rival = partial(opened_slate_gets, place, where, count)
        hot = {"ours": partial(ours, is_hot=True), "rival": partial(rival, is_hot=True)}
        times = in_turn(hot, scale.rounds(40))
        result = ratio_of(
            f"hot get p50, from the {where}, {place.name}",
            times["ours"],
            times["rival"],
            by="median",
            bar=0.15,
            note=f"{count:,} keys; in a fresh process none was read before",
            against=SLATE,
            at_most=True,
        )
        yield with_fresh(result, ours, rival)


def _load(place: Place, name: str, rows: dict[bytes, bytes]) -> None:
    """Write the same rows into sorted files on both sides."""
    with reef.connect(place.url) as db, db.kv(name) as kv, Slate(place, name) as slate:
        for batch in batches_of(rows):
            kv.write(batch)
        kv.flush()
        slate.load(rows)


def _chosen(count: int) -> list[bytes]:
    return random.Random(2).choices(keys_of(count), k=8_000)


@contextmanager
def opened_gets(place: Place, where: Where, count: int, *, is_hot: bool = False) -> Iterator[Pass]:
    """200 gets of ours; `is_hot` reads every key before."""
    rows = rows_of(count)
    with reef.connect(place.url) as db, db.kv(where) as kv:
        for batch in batches_of(rows) if where == "memtable" else ():
            kv.write(batch)
        for key in rows if is_hot else ():
            check(kv.get(key) == rows[key], f"{key!r} has the value that was written")
        yield each(_chosen(count), 200, kv.get)


@contextmanager
def opened_slate_gets(
    place: Place, where: Where, count: int, *, is_hot: bool = False
) -> Iterator[Pass]:
    """200 gets of the rival's; `is_hot` reads every key before."""
    rows = rows_of(count)
    with Slate(place, where) as slate:
        if where == "memtable":
            with fast_copies():
                slate.write(rows)
        for key in rows if is_hot else ():
            check(slate.get(key) == rows[key], f"{key!r} has the value that was written")
        following = itertools.cycle(_chosen(count))
        yield lambda: slate.time_gets(list(itertools.islice(following, 200)))


# Batches and scans.


def _batches(place: Place, scale: Scale) -> Iterator[Ratio]:
    """Durable batches of a thousand rows, from a dict of Python bytes on both sides."""
    rounds = scale.rounds(7)
    for rival, is_fast, bar in (
        (SLATE, False, 10.0),
        (f"{SLATE}, its byte copy replaced", True, None),
    ):
        result = compare(
            f"batches of {BATCH:,} rows, {place.name}",
            partial(opened_batches, place, rounds),
            partial(opened_slate_batches, place, rounds, is_fast),
            bar=bar,
            rounds=rounds,
            against=rival,
            written_bytes=BATCH * (VALUE_BYTES + 16),
        )
        yield rated(result, BATCH, "rows")


def _batches_to_write(rounds: int) -> list[dict[bytes, bytes]]:
    return [rows_of(BATCH, first * BATCH) for first in range(rounds + 1)]


@contextmanager
def opened_batches(place: Place, rounds: int) -> Iterator[Pass]:
    """A batch of ours."""
    with reef.connect(place.url) as db, db.kv("batches") as kv:
        yield over(_batches_to_write(rounds), kv.write)


@contextmanager
def opened_slate_batches(place: Place, rounds: int, is_fast: bool) -> Iterator[Pass]:
    """A batch of the rival's; `is_fast` replaces how its binding copies bytes."""
    with ExitStack() as stack:
        slate = stack.enter_context(Slate(place, "batches"))
        if is_fast:
            stack.enter_context(fast_copies())
        yield over(_batches_to_write(rounds), slate.write)


def _scans(place: Place, scale: Scale) -> Iterator[Ratio]:
    """Everything read in order: as Arrow batches, and as pairs of Python bytes."""
    count = scale.rows(SCANNED)
    rows = rows_of(count)
    _load(place, "scans", rows)
    with reef.connect(place.url) as db, Slate(place, "scans") as slate:
        tuning = slate.best_tuning()
        check(list(db.kv("scans").items()) == list(rows.items()), "a scan returns what was written")
        check(slate.scan(tuning) == count, "and so does the rival's")
    per_call, ahead, tasks, cached = tuning
    for what in ("Arrow batches", "Python pairs"):
        result = compare(
            f"full scan as {what}, {place.name}",
            partial(opened_scan, place, what),
            partial(opened_slate_scan, place, tuning),
            bar=10.0,
            rounds=scale.rounds(7),
            against=f"{SLATE}, tuned",
        )
        tuned = f"next_batch({per_call:,}), ahead {ahead:,}, tasks {tasks}, cached {cached}"
        yield rated(result, count, "rows", tuned)


@contextmanager
def opened_scan(place: Place, what: str) -> Iterator[Pass]:
    """A scan of ours."""
    with reef.connect(place.url) as db, db.kv("scans") as kv:
        if what == "Arrow batches":
            yield whole(lambda: sum(batch.num_rows for batch in kv.scan()))
        else:
            yield whole(lambda: deque(kv.items(), maxlen=0))


@contextmanager
def opened_slate_scan(place: Place, tuning: Tuning) -> Iterator[Pass]:
    """A scan of the rival's."""
    with Slate(place, "scans") as slate:
        yield whole(lambda: slate.scan(tuning))
