"""Restores beside writers that take over from one another, under every fault, by seed.

Whatever came in between: the version that a restore was told is equal to the one that it names. And at
any time there was the end of the longest prefix of the log whose objects were there by then.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from reef.database import Database
from reef.errors import RetentionError
from reef.format import LogKind, decode_log
from reef.kv import KeyValue
from tests.support.engine import simulated_rivals as rivals
from tests.support.engine.simulated_rivals import Handles
from tests.support.engine.write_history import Violation, check_replay
from tests.support.simulation import Process, Simulation

FIRST = int(os.environ.get("SIM_FIRST", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("SIM_SEEDS", "200")) // 16)
NAMESPACE = "ns"
LOG = f"namespaces/{NAMESPACE}/wal/"
STEPS = 8


class RestoreWorld(rivals.RivalsWorld):
    """One run, and the restores that were acknowledged."""

    def __init__(self, settings: dict[str, Any]) -> None:
        # So little fits into a log object that many restores are attached segments.
        small = {"log_segment_max_bytes": 8 << 10, "delta_layer_target_bytes": 2 << 10}
        super().__init__({**settings, **small})
        self.restored: list[tuple[int, int]] = []


def opened(db: Database, parallel: int) -> KeyValue:
    return db.kv(NAMESPACE, max_parallel_writes=parallel)


def live_as_client(world: RestoreWorld, process: Process, handles: Handles[KeyValue]) -> None:
    rng = process.rng
    lsns = [0]
    for _ in range(STEPS):
        kv = handles.open()
        if kv is None:
            return
        if rng.random() < 0.35:
            done = rivals.tolerated(lambda: kv.restore(lsn=rng.choice(lsns)))  # noqa: B023
            if done is not None:
                world.restored.append((done.lsn, done.restored_lsn))
                lsns.append(done.lsn)
        else:
            keys = [b"k%d" % rng.randrange(12) for _ in range(rng.randint(1, 6))]
            puts = {key: rng.randbytes(rng.choice([8, 1300])) for key in keys[1:]}
            written = rivals.tolerated(lambda: kv.write(puts, set(keys[:1]) - {*puts}))  # noqa: B023
            if written is not None:
                lsns.append(written.lsn)
        if done_or_fenced(kv):
            handles.give_up(kv)
        if rng.random() < 0.2:
            rivals.tolerated(kv.flush)
        process.clock.sleep(rng.uniform(0, 0.5))


def done_or_fenced(kv: KeyValue) -> bool:
    return rivals.tolerated(kv.refresh) is None


def live_as_writer(world: RestoreWorld, process: Process) -> None:
    handles = Handles(world, process, opened)
    rivals.live_as_writer(process, lambda: live_as_client(world, process, handles))


def check(world: RestoreWorld, process: Process, mode: str) -> int:
    """Compare each restored version with its original; return how many there are."""
    db = world.database(process)
    kv = db.kv(NAMESPACE, mode=mode)
    for lsn, original in world.restored:
        if dict(kv.at(lsn=lsn).items()) != dict(kv.at(lsn=original).items()):
            raise Violation(f"LSN {lsn} is not equal to {original}, which it restores")
    check_times(db, kv, process)
    return len(world.restored)


def check_times(db: Database, kv: KeyValue, process: Process) -> None:
    objects = list(db.store.list(LOG))
    times = [meta.last_modified_us for meta in objects]
    for at_us in process.rng.sample(times, min(5, len(times))):
        end = next((i for i, time_us in enumerate(times) if time_us > at_us), len(times))
        logs = [decode_log(db.store.get(meta.key), key=meta.key) for meta in objects[:end]]
        newest = [log.lsn_last for log in logs if log.kind is not LogKind.FENCE]
        try:
            lsn = kv.at(time=at_us).lsn
        except RetentionError:
            lsn = -1
        same = dict(kv.at(lsn=max(newest, default=0)).items()) == dict(
            kv.at(lsn=max(lsn, 0)).items()
        )
        if lsn < 0 or not same:
            raise Violation(
                f"at {at_us} the newest version was {max(newest, default=0)}, not {lsn}"
            )


def run(seed: int) -> Simulation:
    return rivals.run(seed, RestoreWorld, live_as_writer, check)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_run_is_one_that_can_be(seed: int) -> None:
    run(seed)


def test_a_run_repeats_itself() -> None:
    check_replay(run, 0)
