"""Where the time of a durable put goes, stage by stage; nothing here has a bar."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import reef
import reef.kv._key_value
from bench._measure import Share
from bench._places import file_place
from bench.kernel import rows_of
from reef.engine._commit import Committer
from reef.engine._group import Group
from reef.engine._outbox import Outbox
from reef.store import FileStore

STAGES: dict[str, tuple[Any, str]] = {
    "the key and the value become an Arrow row": (reef.kv._key_value, "one_put"),
    "checks, version, memtable": (Committer, "_admit"),
    "the log object is encoded": (Group, "encode"),
    "the PUT: write, fsync, link, fsync": (FileStore, "put_if_absent"),
    "acknowledged": (Outbox, "_settle"),
}


def bench_put(count: int = 500) -> Iterator[Share]:
    """Stages of a put on `file://`, by their medians; the timers add about a microsecond each."""
    rows = rows_of(count)
    totals: list[float] = []
    taken: dict[str, list[float]] = {name: [] for name in STAGES}
    with ExitStack() as stack:
        place = stack.enter_context(file_place())
        kv = stack.enter_context(stack.enter_context(reef.connect(place.url)).kv("n"))
        for name, (owner, attribute) in STAGES.items():
            stack.enter_context(_timed(owner, attribute, taken[name]))
        for key, value in rows.items():
            begun = time.perf_counter()
            kv.put(key, value)
            totals.append(time.perf_counter() - begun)
    whole = statistics.median(totals)
    stages = {name: statistics.median(times) for name, times in taken.items()}
    stages["the rest: locks, metrics, the loop that decides"] = whole - sum(stages.values())
    for name, seconds in stages.items():
        yield Share(f"a put on file://: {name}", seconds, seconds / whole)
    yield Share("a put on file://: all of it", whole, 1.0, f"median of {count}")


@contextmanager
def _timed(owner: Any, attribute: str, into: list[float]) -> Iterator[None]:
    """Note how long each call of a function takes."""
    function = getattr(owner, attribute)
    now = time.perf_counter

    def timed(*args: Any, **options: Any) -> Any:
        begun = now()
        try:
            return function(*args, **options)
        finally:
            into.append(now() - begun)

    setattr(owner, attribute, timed)
    try:
        yield
    finally:
        setattr(owner, attribute, function)
