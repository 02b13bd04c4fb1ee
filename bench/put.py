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
from bench._measure import Share
from bench._places import file_place
from bench.kernel import rows_of
from reef.format import log_key
from reef.store import open_store
from reef.types import unpack_lsn

SOURCE = Path(reef.__file__).parent
FILES = 16


def bench_put(count: int = 500) -> Iterator[Share]:
    """A put on `file://` against the bare put of the same bytes; then Reef's part of it by file."""
    rows = rows_of(count)
    yield from _around(rows)
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


def _by_file(rows: dict[bytes, bytes]) -> Iterator[Share]:
    """A put on `memory://`, and the time and calls of each of Reef's files under a profiler."""
    items = list(rows.items())
    with reef.connect("memory://") as db, db.kv("puts") as kv:
        times: list[float] = []
        for key, value in items:
            begun = time.perf_counter()
            kv.put(key, value)
            times.append(time.perf_counter() - begun)
        profile = cProfile.Profile()
        profile.enable()
        for key, value in items:
            kv.put(key, value)
        profile.disable()
    seconds: dict[str, float] = {}
    calls: dict[str, int] = {}
    for (file, _, _), (_, called, own, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        path = Path(file)
        name = str(path.relative_to(SOURCE)) if path.is_relative_to(SOURCE) else "outside of Reef"
        seconds[name] = seconds.get(name, 0.0) + own / len(items)
        calls[name] = calls.get(name, 0) + called
    outside = calls.pop("outside of Reef", 0) / len(items)
    inside, whole = sum(calls.values()) / len(items), sum(seconds.values())
    note = f"{inside:.0f} calls in {len(calls)} files, {outside:.0f} calls of others"
    yield Share("a put on memory://", statistics.median(times), 1.0, note)
    for name in sorted(seconds, key=seconds.__getitem__, reverse=True)[:FILES]:
        note = f"profiled, {calls[name] / len(items):.1f} calls" if name in calls else "profiled"
        yield Share(f"a put on memory://: {name}", seconds[name], seconds[name] / whole, note)
