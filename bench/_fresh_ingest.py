"""The first ingest of a process, which is the one that a user's job makes, against LanceDB's.

Nothing is warm but the interpreter's imports: no memory was touched before, and none can be used
again. Each run is a process of its own; both sides take turns.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import reef
from bench import lance
from bench._corpus import BATCH, batches_of, documents_of, emptied, rated, shuffled, timed
from bench._measure import Ratio, ratio_of
from bench._memory import MemoryUse, memory_use
from bench.lance import Lance

_OURS = "reef"


class FirstPass(msgspec.Struct, frozen=True):
    """What the first ingest of one process took."""

    seconds: float
    written: int
    memory: MemoryUse


def bench_fresh_ingest(here: Path, documents: int, rounds: int = 5) -> Iterator[Ratio]:
    """Everything in batches, each committed, by processes that have just begun."""
    sides = (_OURS, *map(str, lance.PARALLELISMS))
    passes: dict[str, list[FirstPass]] = {side: [] for side in sides}
    for turn in range(rounds):
        shift = turn % len(sides)
        for side in sides[shift:] + sides[:shift]:
            passes[side].append(_in_a_process(here, side, documents))
            emptied(here / "reef")
    seconds = {side: [one.seconds for one in some] for side, some in passes.items()}
    way = min(sides[1:], key=lambda side: statistics.median(seconds[side]))
    result = ratio_of(
        f"ingest in batches of {BATCH:,}, fsync=off, first pass of a process",
        seconds[_OURS],
        seconds[way],
        by="median",
        bar=1.5,
        against=lance.NAME,
    )
    memory = f"{_memory(passes[_OURS])}; rival: {_memory(passes[way])}"
    yield rated(result, documents, f"add, write_parallelism={way}; {memory}")


def _memory(passes: list[FirstPass]) -> str:
    """Return what the median pass, by time in the kernel, took of memory."""
    middle = sorted(passes, key=lambda one: one.memory.system_s)[len(passes) // 2]
    return middle.memory.per_byte(middle.written)


def _in_a_process(here: Path, side: str, documents: int) -> FirstPass:
    command = [sys.executable, "-m", "bench._fresh_ingest", str(here), side, str(documents)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return msgspec.json.decode(done.stdout, type=FirstPass)


def first_pass(here: Path, side: str, documents: int) -> FirstPass:
    """Ingest once in this process and say what it took."""
    table = documents_of(shuffled(documents))
    batches = batches_of(table)
    times: list[float] = []

    def run(ingest: Any) -> MemoryUse:
        return memory_use(lambda: times.append(timed(ingest)))

    if side == _OURS:
        url = f"file://{here}/reef?fsync=off"
        with reef.connect(url) as db, db.namespace("documents") as ns:
            memory = run(lambda: [ns.upsert(batch) for batch in batches])
    else:
        parallelism = None if side == "None" else int(side)
        with Lance(here / "reef" / "rival", table.schema) as made:
            memory = run(partial(made.add, batches, parallelism))
    return FirstPass(times[0], table.nbytes, memory)


if __name__ == "__main__":
    folder, which, count = sys.argv[1:]
    sys.stdout.buffer.write(msgspec.json.encode(first_pass(Path(folder), which, int(count))))
