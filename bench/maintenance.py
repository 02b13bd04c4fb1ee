"""What self-maintenance costs a put, and what it saves a get: the same writes with it and without."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import reef
from bench._measure import Ratio, check, ratio_of
from bench._places import file_place

ROUNDS = 4
PUTS_PER_FLUSH = 20


def bench_maintenance(flushes: int = 60) -> Iterator[Ratio]:
    """Puts on `file://` with a flush each 20, in turns of a writer with maintenance and one without;
    then hot gets of both."""
    puts: dict[str, list[float]] = {"auto": [], "off": []}
    gets: dict[str, list[float]] = {"auto": [], "off": []}
    now = time.perf_counter
    for number in range(ROUNDS):
        for mode in ("auto", "off") if number % 2 else ("off", "auto"):
            with (
                file_place() as place,
                reef.connect(
                    place.url,
                    maintenance=mode,
                    flush_threshold_slots=PUTS_PER_FLUSH,
                    flush_interval=0,
                ) as db,
                db.kv("kept") as kv,
            ):
                rng = random.Random(number)
                keys = [b"k%08d" % rng.randrange(10**8) for _ in range(flushes * PUTS_PER_FLUSH)]
                for key in keys:
                    begun = now()
                    kv.put(key, key * 6)
                    puts[mode].append(now() - begun)
                kv.flush()
                check(kv.get(keys[0]) == keys[0] * 6, "what was put is there")
                some = rng.sample(keys, 200)
                for key in some:
                    kv.get(key)
                for key in some:
                    begun = now()
                    kv.get(key)
                    gets[mode].append(now() - begun)
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        ours, theirs = ([_at(puts[mode], share)] for mode in ("auto", "off"))
        yield _ratio(f"put on file://, {name}, with maintenance", ours, theirs)
    yield _ratio("hot get, with maintenance", gets["auto"], gets["off"])


def _ratio(name: str, ours: list[float], theirs: list[float]) -> Ratio:
    return ratio_of(name, ours, theirs, by="median", bar=None, against="maintenance off")


def _at(times: list[float], share: float) -> float:
    return sorted(times)[int(len(times) * share)]
