"""Where the time of a durable put goes; nothing here has a bar.

Black box: it calls `kv.put` and looks on from outside, so that it measures any version of Reef.
"""

from __future__ import annotations

import cProfile
import pstats
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import reef
from bench._measure import Share, check
from bench._places import file_place
from bench.kernel import rows_of
from reef.engine import Memtable
from reef.format import decode_log, log_key, seal_log
from reef.store import MemoryStore, open_store
from reef.types import unpack_lsn

SOURCE = Path(reef.__file__).parent
FILES = 16


def bench_put(count: int = 500) -> Iterator[Share]:
    """A put on `file://` against the bare put of the same bytes; then Reef's part of it, in memory."""
    rows = rows_of(count)
    yield from _around(rows)
    yield from _by_part(rows)
    yield from _by_file(rows)


def _around(rows: dict[bytes, bytes]) -> Iterator[Share]:
    """What a put takes beside the bare put-if-absent of the object that it wrote, in alternation."""
    ours: list[float] = []
    bare: list[float] = []
    now = time.perf_counter
    with (
        file_place() as place,
        reef.connect(place.url) as db,
        db.kv("puts") as kv,
        open_store(place.url) as store,
    ):
        slot = unpack_lsn(kv.put(b"first", bytes(1024)).lsn)[0]
        data = store.get(log_key("puts", slot))
        for number, (key, value) in enumerate(rows.items(), 1):
            copy = log_key("bare", number)
            for is_bare in (True, False) if number % 2 else (False, True):
                begun = now()
                if is_bare:
                    store.put_if_absent(copy, data)
                else:
                    kv.put(key, value)
                (bare if is_bare else ours).append(now() - begun)
    whole, put = statistics.median(ours), statistics.median(bare)
    yield Share("a put on file://", whole, 1.0, f"median of {len(rows)}")
    yield Share("a put on file://: the bare put-if-absent", put, put / whole)
    yield Share("a put on file://: what Reef adds", whole - put, 1 - put / whole)


def _by_part(rows: dict[bytes, bytes]) -> Iterator[Share]:
    """A put on `memory://`, in turn with each part of it alone, on the log object that it wrote."""
    whole: list[float] = []
    times: dict[str, list[float]] = {"encode the log object": [], "memtable": [], "bare put": []}
    memtable, bare = Memtable(), MemoryStore()
    now = time.perf_counter
    with reef.connect("memory://") as db, db.kv("puts") as kv:
        for key, value in rows.items():
            begun = now()
            lsn = kv.put(key, value).lsn
            whole.append(now() - begun)
            at = log_key("puts", unpack_lsn(lsn)[0])
            log = decode_log(db.store.get(at))
            check(len(log.records) == 1, "a put of a lone writer is a log object of its own")
            batch = log.records[0].batch
            nbytes = batch.nbytes
            begun = now()
            sealed = seal_log(log)
            encoded = now()
            memtable.apply(lsn, batch, nbytes)
            applied = now()
            bare.put_if_absent(at, sealed.data)
            stored = now()
            alone = (encoded - begun, applied - encoded, stored - applied)
            for some, seconds in zip(times.values(), alone, strict=True):
                some.append(seconds)
    put = statistics.median(whole)
    parts = {part: statistics.median(seconds) for part, seconds in times.items()}
    parts["the rest"] = put - sum(parts.values())
    yield Share("a put on memory://", put, 1.0, f"median of {len(rows)}")
    for part, seconds in parts.items():
        yield Share(f"a put on memory://: {part}", seconds, seconds / put)


def _by_file(rows: dict[bytes, bytes]) -> Iterator[Share]:
    """The time and the calls of each of Reef's files under a profiler, of a put on `memory://`."""
    items = list(rows.items())
    with reef.connect("memory://") as db, db.kv("puts") as kv:
        for key, value in items:  # for the code and the caches
            kv.put(key, value)
        profile = cProfile.Profile()
        profile.enable()
        for key, value in items:
            kv.put(key, value)
        profile.disable()
    seconds: dict[str, float] = {}
    calls: dict[str, int] = {}
    functions = 0
    for (file, _, _), (_, called, own, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        path = Path(file)
        is_ours = path.is_relative_to(SOURCE)
        functions += is_ours
        name = str(path.relative_to(SOURCE)) if is_ours else "outside of Reef"
        seconds[name] = seconds.get(name, 0.0) + own / len(items)
        calls[name] = calls.get(name, 0) + called
    outside = calls.pop("outside of Reef", 0) / len(items)
    inside, whole = sum(calls.values()) / len(items), sum(seconds.values())
    note = f"{inside:.0f} calls of {functions} functions in {len(calls)} files; {outside:.0f} of others"
    yield Share("a put on memory://, profiled", whole, 1.0, note)
    for name in sorted(seconds, key=seconds.__getitem__, reverse=True)[:FILES]:
        note = f"{calls[name] / len(items):.1f} calls" if name in calls else ""
        yield Share(f"a put, profiled: {name}", seconds[name], seconds[name] / whole, note)
