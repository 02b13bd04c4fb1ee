"""The kernel under every fault there is, by seed: several processes on one namespace.

Writers take over from one another, each with several clients and up to eight writes in flight.
Readers follow, keep snapshots and look back. A compactor merges, a job folds the log, a collector
deletes with a short grace period. Requests are lost, come late, come twice; processes are killed, or
sleep for a long time and wake. Some writes are loads: segments, attached by a record. What came of
it must be a history that can be: see `tests/support/engine/write_history.py`. Nobody may ever be told
of damage; in the end an object of the log is deleted, and everybody must be.

A run that fails is repeated by its seed, which is the test's parameter and in the report.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from reef.doctor import repair, verify
from reef.errors import CorruptError, NotFoundError, RetentionError
from reef.format import KEY, LSN, LogKind, decode_log, log_checksum, log_key
from reef.kv import KeyValue
from reef.log import list_log
from tests.support.code_without_guards import Edit, Guard, removed
from tests.support.engine.log_script import copied
from tests.support.engine.open_database import database as open_database
from tests.support.engine.open_handles import handle_of
from tests.support.engine.simulated_lives import (
    NAMESPACE,
    PARALLEL,
    KernelWorld,
    Shape,
    live_as_collector,
    live_as_compactor,
    live_as_nemesis,
    live_as_prober,
    live_as_reader,
    live_as_writer,
)
from tests.support.engine.write_history import Version, Violation, WriteHistory, check_replay
from tests.support.jobs.passes import index, rebuild
from tests.support.simulation import Network, Process, Simulation

FIRST = int(os.environ.get("SIM_FIRST", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("SIM_SEEDS", "200")))


# The verdict.


def rows_of(view: Any) -> dict[bytes, Version]:
    """Return all rows with their versions."""
    rows: dict[bytes, Version] = {}
    for batch in view.scan():
        columns = (batch.column(name).to_pylist() for name in (KEY, LSN, "value"))
        rows.update({key: Version(lsn, value) for key, lsn, value in zip(*columns, strict=True)})
    return rows


def check(world: KernelWorld, process: Process, *, writes: bool) -> int:
    """Compare with what a fresh handle finds; `writes`: one that takes the namespace over."""
    kv = world.database(process).kv(NAMESPACE, mode="w" if writes else "r")
    handle = handle_of(kv)

    def at(lsn: int) -> dict[bytes, Version] | None:
        if writes or process.rng.random() > 12 / len(world.history.writes):
            return None  # every single one would take most of the time
        try:
            return rows_of(handle.at_lsn(lsn))
        except RetentionError:
            return None

    committed = world.history.check(kv.lsn, rows_of(handle.view()), at=at)
    for taken in world.taken:
        view = kv.at(snapshot=taken.id)
        if view.lsn != taken.lsn or dict(view.items()) != taken.rows:
            raise Violation(f"snapshot {taken.id} at {taken.lsn} has changed")
    check_log(world, kv)
    report = verify(world.database(process).context(), NAMESPACE)
    if report.problems:
        raise Violation(f"`reef verify` finds {report.problems}")
    return committed


def check_log(world: KernelWorld, kv: KeyValue) -> None:
    """The log has no gap up to where it ends, and holds just the commits that are not folded."""
    manifest = handle_of(kv).manifest
    point = (manifest.wal_anchor.slot, manifest.wal_anchor.checksum)
    epoch, slot, lsns = manifest.wal_anchor.epoch, manifest.wal_floor, set[int]()
    for data in log_objects(world, slot):
        log = decode_log(data, slot=slot)
        if (log.prev.slot, log.prev.checksum) == point and log.epoch >= epoch:
            point, epoch = (slot, log_checksum(data)), log.epoch
            if log.kind in (LogKind.DATA, LogKind.ATTACH):
                lsns.update(record.lsn for record in log.records)
        slot += 1
    committed = {write.lsn for write in world.history.writes if write.lsn is not None}
    unfolded = {lsn for lsn in committed if lsn > manifest.last_applied_lsn}
    if not unfolded <= lsns:
        raise Violation(f"acked, and not in the log's chain: {sorted(unfolded - lsns)}")
    if kv.mode == "w":
        behind = [
            m.key
            for m in world.sim.bucket.list(f"namespaces/{NAMESPACE}/wal/", log_key(NAMESPACE, slot))
        ]
        if behind:
            raise Violation(f"a gap in the log: slot {slot} is absent, and {behind} are there")


def check_hole(world: KernelWorld, rng: random.Random) -> None:
    """Delete a log object that others follow, from a copy: everybody is told, and repair keeps the rest."""
    bucket = copied(world.sim.bucket)
    context = open_database(bucket).context()
    head = context.chain(NAMESPACE).load()
    assert head is not None
    listed = list_log(bucket, NAMESPACE, head.manifest.wal_floor)
    slots = range(listed.first, listed.end - head.parallel_writes_max)
    if not slots:
        return
    slot = rng.choice(slots)
    key = log_key(NAMESPACE, slot)
    with open_database(bucket).kv(NAMESPACE, mode="r") as kv:
        before = rows_of(handle_of(kv).view())
    bucket.delete(key)
    for use in (
        lambda: open_database(bucket).kv(NAMESPACE, mode="r"),
        lambda: open_database(bucket).kv(NAMESPACE),
        lambda: index(context, NAMESPACE),
        lambda: rebuild(context, NAMESPACE),
    ):
        with pytest.raises(CorruptError, match=key):
            use()
    if key not in [problem.key for problem in verify(context, NAMESPACE).problems]:
        raise Violation(f"`reef verify` does not find the hole at {slot}")
    report = repair(context, NAMESPACE, apply=True, accept_loss=True)
    if not report.is_mended:
        raise Violation(f"a hole at {slot} is not mended: {report}")
    for mode in ("r", "w"):
        with open_database(bucket).kv(NAMESPACE, mode=mode) as kv:  # type: ignore[arg-type]
            after = rows_of(handle_of(kv).view())
            for found, version in before.items():
                if version.lsn >> 20 != slot and after.get(found) != version:
                    raise Violation(f"{found!r} is not {version} after a repair of slot {slot}")


def log_objects(world: KernelWorld, slot: int) -> Iterator[bytes]:
    while True:
        try:
            yield world.sim.bucket.get(log_key(NAMESPACE, slot))
        except NotFoundError:
            return
        slot += 1


# Writes in flight everywhere, while one writer takes over from the other.
STORM = Shape(
    writers=(2, 3),
    clients=(4, 8),
    openings=(2, 3),
    writes=12,
    parallel=(2, 8, 8),
    pause=0.1,
    faults=(0.0, 0.1, 0.4),
    slow=(0.05, 0.2),
    readers=(0, 1),
    collections=(0,),
    compactors=(0, 1),
    strikes=(0, 3),
    dozes=0.01,
    naps=(0.5, 5),
    closes=0.3,
    settings={"group_commit_max_batches": (1, 2), "flush_threshold_slots": (5, 1000)},
)

# Everything is folded, superseded and collected while somebody sleeps.
SLEEPERS = Shape(
    writers=(2, 3),
    clients=(1, 3),
    openings=(1, 2),
    writes=10,
    parallel=PARALLEL,
    pause=8.0,
    faults=(0.0, 0.05),
    slow=(0.0, 0.02),
    readers=(1, 2),
    collections=(8, 12),
    compactors=(1, 2),
    strikes=(6, 10),
    dozes=0.02,
    naps=(20, 100, 300),
    closes=0.3,
    settings={
        "gc_grace": (4, 15),
        "retained_generations": (1,),
        "flush_threshold_slots": (2, 4),
        "flush_interval": (5,),
    },
)

# Some of everything.
MIXED = Shape(
    writers=(1, 2, 3),
    clients=(1, 2, 4),
    openings=(1, 2, 3),
    writes=8,
    parallel=PARALLEL,
    pause=1.0,
    faults=(0.0, 0.1, 0.3),
    slow=(0.0, 0.01, 0.1),
    readers=(0, 1, 2),
    collections=(0, 2, 5),
    compactors=(0, 1, 2),
    strikes=(0, 2, 5),
    dozes=0.005,
    naps=(1, 30, 600),
    closes=0.3,
    settings={
        "gc_grace": (10, 60, 600),
        "retained_generations": (1, 2, 5),
        "flush_threshold_slots": (4, 12, 1000),
        "flush_interval": (0, 20),
        "group_commit_max_batches": (1, 256),
    },
)

# Writers come and go: nearly each one ends cleanly, and the next ones open at the same time, behind an
# end that is just being published, while what is folded is collected and some sleep through all that.
ENDINGS = Shape(
    writers=(2, 3, 4),
    clients=(1, 2),
    openings=(4, 6),
    writes=2,
    parallel=PARALLEL,
    pause=1.0,
    faults=(0.0, 0.05, 0.2),
    slow=(0.0, 0.02, 0.1),
    readers=(0, 1),
    collections=(5, 10),
    compactors=(0, 1),
    strikes=(0, 3, 6),
    dozes=0.02,
    naps=(1, 20, 100),
    closes=0.9,
    settings={
        "gc_grace": (2, 10),
        "retained_generations": (1,),
        "flush_threshold_slots": (1, 3, 1000),
        "flush_interval": (0, 5),
    },
)
SHAPES = (STORM, SLEEPERS, MIXED, ENDINGS)

# Writers that look after their namespace themselves, beside jobs, collectors and each other.
UPKEEP = Shape(
    writers=(2, 3),
    clients=(1, 2),
    openings=(1, 2),
    writes=30,
    parallel=PARALLEL,
    pause=2.0,
    faults=(0.0, 0.0, 0.1),
    slow=(0.0, 0.02),
    readers=(0, 1),
    collections=(0, 4),
    compactors=(0, 0, 1),
    strikes=(0, 2, 3),
    dozes=0.005,
    naps=(1, 20),
    closes=0.3,
    settings={
        "maintenance": ("auto",),
        "gc_grace": (4, 30),
        "retained_generations": (1, 3),
        "flush_threshold_slots": (1, 2),
    },
)


def run(seed: int, shape: Shape | None = None) -> Simulation:
    """One run, from beginning to verdict."""
    rng = random.Random(f"{seed}/shape")
    shape = shape or SHAPES[seed % len(SHAPES)]
    network = Network.swarm(random.Random(seed), rng.choice(shape.faults))
    network = replace(network, slow=rng.choice(shape.slow), late=(0.1, 600.0))
    with Simulation(seed, network=network) as sim:
        settings = {name: rng.choice(values) for name, values in shape.settings.items()}
        settings |= {"row_block_bytes": 4096, "block_cache_bytes": 1 << 20}
        world = KernelWorld(sim, WriteHistory(sim.note), shape, settings)
        people(world, rng)
        sim.run()
        sim.network = Network()
        sim.land()
        for writes in (False, True):
            process = sim.process(f"check-{writes}")
            sim.call(lambda p=process, w=writes: check(world, p, writes=w), process)  # type: ignore[misc]
            if not writes:
                check_hole(world, rng)
    return sim


def people(world: KernelWorld, rng: random.Random) -> None:
    """Start whoever takes part."""
    sim, shape = world.sim, world.shape

    def start(name: str, life: Callable[..., None], **arguments: int) -> Process:
        process = sim.process(name)
        process.start(lambda: life(world, process, **arguments))
        return process

    for n in range(rng.choice(shape.writers)):
        openings = rng.choice(shape.openings)
        world.writers.append(start(f"writer-{n}", live_as_writer, openings=openings))
    for n in range(rng.choice(shape.readers)):
        world.others.append(start(f"reader-{n}", live_as_reader, rounds=20))
    for n in range(rng.choice(shape.compactors)):
        world.others.append(start(f"compactor-{n}", live_as_compactor, rounds=6))
    world.others.append(start("prober", live_as_prober, rounds=rng.choice((0, 12))))
    world.others.append(start("collector", live_as_collector, rounds=rng.choice(shape.collections)))
    start("nemesis", live_as_nemesis, strikes=rng.choice(shape.strikes))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_run_is_one_that_can_be(seed: int) -> None:
    run(seed)


UPKEEP_SEEDS = range(FIRST, FIRST + int(os.environ.get("SIM_SEEDS", "5")))


@pytest.mark.parametrize("seed", UPKEEP_SEEDS)
def test_every_run_of_writers_with_maintenance_is_one_that_can_be(seed: int) -> None:
    run(seed, UPKEEP)


def test_maintenance_takes_part_and_repeats_itself() -> None:
    sims: list[Simulation] = []

    def traced(seed: int) -> Simulation:
        sims.append(run(seed, UPKEEP))
        return sims[-1]

    check_replay(traced, 2)
    done = {one.request for one in sims[0].trace if "reef-maintenance" in one.actor}
    assert {"upload", "delete"} <= {request.partition(" ")[0] for request in done}


@pytest.mark.parametrize("seed", range(3))
def test_a_run_repeats_itself(seed: int) -> None:
    check_replay(run, seed)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if _is_there(context, log_key(namespace, slot)):", "if False:"),
        ("if newest is None or _is_past(newest.manifest, head.manifest, slot):", "if False:"),
        ("if at - slot >= head.parallel_writes_max", "if at > slot"),
    ],
)
def test_a_false_alarm_is_found(old: str, new: str) -> None:
    """Without one of the checks that a hole has to pass, somebody is told of damage."""
    edits = [Edit("reef.engine._holes:check_end", old, new)]
    if "at > slot" in new:
        where = "reef.engine._holes:check_end"
        edits.append(Edit(where, "if witness - slot < parallel:", "if False:"))
    with removed(Guard("no false alarm", tuple(edits))):
        assert any(_is_told_of_damage(seed) for seed in SEEDS)


def _is_told_of_damage(seed: int) -> bool:
    try:
        run(seed)
    except CorruptError:
        return True
    return False
