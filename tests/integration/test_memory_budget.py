"""A whole life of a namespace within the memory that its settings allow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.waiting import DEADLINE_SECONDS

MIB = 1 << 20
MEMTABLE, CACHE, WRITTEN = 32 * MIB, 16 * MIB, 256 * MIB
# Beside both budgets: the log object on its way, a segment's stripe, portions of a scan, Arrow's own.
ROOM = 96 * MIB

LIFE = """
import resource, sys
import numpy as np
import pyarrow as pa
import reef

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

url, memtable, cache, written = sys.argv[1], *map(int, sys.argv[2:])
rng = np.random.default_rng(1)
settings = dict(memtable_max_bytes=memtable, flush_threshold_bytes=memtable // 4, block_cache_bytes=cache)
with reef.connect(url, **settings) as db:
    with db.kv("n") as kv:
        kv.put(b"warm", b"up")
        list(kv.scan())
        before = peak()
        for number in range(written >> 20):
            keys = [b"%012d" % key for key in rng.integers(0, 1 << 40, 1024)]
            kv.write(dict.fromkeys(keys, rng.bytes(1024)))
            if number % 8 == 0:
                kv.get_many(keys[::64])
    with db.kv("n", mode="r") as reader:
        rows = sum(batch.num_rows for batch in reader.scan())
        rows += sum(batch.num_rows for batch in reader.scan(reverse=True))
    print(rows, peak() - before)
"""


def test_a_life_of_many_times_the_memtable_stays_within_its_budget(tmp_path: Path) -> None:
    url = f"file://{tmp_path}?fsync=off"
    command = [sys.executable, "-c", LIFE, url, str(MEMTABLE), str(CACHE), str(WRITTEN)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=True
    )
    rows, grown = map(int, done.stdout.split())
    assert rows == 2 * ((WRITTEN >> 20) * 1024 + 1)
    assert grown < MEMTABLE + CACHE + ROOM
