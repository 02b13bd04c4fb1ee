"""What the processes of the crash tests of passes do: build, drive until they are killed, and look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa

from reef import jobs
from reef.doctor import verify
from reef.errors import RetentionError
from reef.format import LogKind, decode_log
from reef.jobs import (
    CollectOptions,
    CompactionOptions,
    IndexOptions,
    InProcess,
    Job,
    RebuildOptions,
    bulk_load,
    end_job,
    standing_intents,
)
from reef.kv import KeyValue, KeyValueSnapshot
from reef.testing import Operation
from reef.types import unpack_lsn
from tests.support.crash.crash_points import NAMESPACE, POINTS, Scene, big_rows
from tests.support.engine.attaching import upload
from tests.support.engine.open_handles import handle_of

Rows = dict[bytes, bytes]
COLLECTS_MAX = 20
LOADED = {b"k%02d" % n: b"loaded" * 50 for n in range(0, 40, 3)} | {b"load/only": b"1"}
LOADED_BIG = {**LOADED, **big_rows(), b"load/only": b"2"}
JOB_KEY = "the load"


class Past(NamedTuple):
    """What a namespace must show at each version, and by its snapshot."""

    states: dict[int, Rows]
    snapshot: tuple[str, int]


def build(scene: Scene, is_big: bool) -> Past:
    """Write versions of the same keys into several segments, one of them loaded, and some log."""
    states: dict[int, Rows] = {0: {}}
    rows: Rows = {}
    snapshot: KeyValueSnapshot | None = None
    with scene.open(flush_interval=0) as kv:
        for n in range(18):
            puts = {b"k%02d" % ((n * 3 + i) % 40): b"%d" % n * 40 for i in range(6)}
            if is_big and n == 3:
                puts |= big_rows()
            gone = [b"k%02d" % ((n * 3 + 20) % 40), b"never"]
            lsn = kv.write(puts, gone, idempotency_key=b"w%d" % n).lsn
            rows = {key: value for key, value in {**rows, **puts}.items() if key not in gone}
            states[lsn] = rows
            if n % 3 == 2 and n < 15:
                kv.flush()
            if n == 6:
                snapshot = kv.snapshot(ttl=None)
            if n == 9:
                first = {b"k%02d" % i: b"first" for i in range(0, 40, 2)}
                loaded = bulk_load(scene.db, kv, _table(first), job_key="first", target_bytes=300)
                assert loaded.lsn is not None
                rows = rows | first
                states[loaded.lsn] = rows
    assert snapshot is not None
    return Past(states, (snapshot.id, snapshot.lsn))


def prepare_collection(scene: Scene) -> None:
    """Leave much to be collected: compacted segments, folded log, orphans of a job that is ended."""
    _index(scene)
    _compact(scene)
    context = scene.db.context()
    job = Job.begin(context, NAMESPACE, "load")
    upload(context, job, {b"k00": b"never"})
    job.end()
    for _ in range(2):
        context.chain(NAMESPACE).publish(lambda head: head.manifest)  # type: ignore[union-attr]


# Passes.


def _table(rows: Rows) -> pa.Table:
    return pa.table({"key": list(rows), "value": list(rows.values())})


def _index(scene: Scene) -> Any:
    options = IndexOptions(task_slots=2, memory_bytes=400)
    return jobs.index(scene.db, NAMESPACE, runner=_runner(scene), options=options)


def _compact(scene: Scene) -> Any:
    options = CompactionOptions(
        target_size_bytes=3000,
        min_input_files=2,
        full=True,
        memory_bytes=100 << 20,  # the least there is: few runs at a time, several publishes
    )
    return jobs.compact(scene.db, NAMESPACE, runner=_runner(scene), options=options)


def _compact_in_groups(scene: Scene) -> Any:
    """Publish what has keys in common in several groups."""
    options = CompactionOptions(
        target_size_bytes=6000,
        group_size_bytes=1,
        concurrency=2,
        min_input_files=2,
        full=True,
    )
    return jobs.compact(scene.db, NAMESPACE, runner=_runner(scene), options=options)


def _rebuild(scene: Scene) -> Any:
    options = RebuildOptions(fold=IndexOptions(task_slots=8, memory_bytes=1 << 26))
    return jobs.rebuild(scene.db, NAMESPACE, runner=_runner(scene), options=options)


def _compact_big(scene: Scene) -> Any:
    options = CompactionOptions(min_input_files=2, full=True)
    return jobs.compact(scene.db, NAMESPACE, runner=_runner(scene), options=options)


def _gc(scene: Scene) -> Any:
    options = CollectOptions(small_objects=0, task_objects=3)
    return jobs.collect(scene.db, NAMESPACE, runner=_runner(scene), options=options, apply=True)


def _load(scene: Scene) -> Any:
    return bulk_load(
        scene.db, NAMESPACE, _table(LOADED), job_key=JOB_KEY, face="kv", target_bytes=1500
    )


def _load_big(scene: Scene) -> Any:
    return bulk_load(scene.db, NAMESPACE, _table(LOADED_BIG), job_key=JOB_KEY, face="kv")


def _runner(scene: Scene) -> InProcess:
    return InProcess(scene.db.context())


PASSES: dict[str, Callable[[Scene], Any]] = {
    "index": _index,
    "compact": _compact,
    "compact in groups": _compact_in_groups,
    "big compact": _compact_big,
    "rebuild": _rebuild,
    "gc": _gc,
    "load": _load,
    "big load": _load_big,
}
LOADS = ("load", "big load")


def drive_and_die(scene: Scene, kind: str, point: str, nth: int) -> None:
    """Make a pass, and end in the midst of it."""
    scene.store.arm(point, nth)
    PASSES[kind](scene)


def count_points(scene: Scene, kind: str) -> dict[str, int]:
    """Make a pass; return how often it comes to each point."""
    counts: Counter[str] = Counter()

    def noted(when: str, operation: Operation, key: str) -> bool:
        for name, point in POINTS.items():
            is_here = not point.folder or f"/{point.folder}/" in key
            if is_here and (point.when, point.operation) == (when, operation):
                counts[name] += 1
        return False

    scene.store._is_here = noted  # type: ignore[method-assign]
    PASSES[kind](scene)
    return dict(counts)


# What is left.


class Left(NamedTuple):
    """What a killed driver has left, as the next process finds it, and what became of it."""

    is_loaded: bool
    floor: int
    intents: tuple[str, ...]
    orphans: tuple[str, ...]
    """Segments that neither a manifest nor the log names."""
    ended: tuple[str, ...]
    """Intents that stood after another pass: those of the killed one."""
    clipped: int
    """How many references show a part of their segment."""


def clear_up(scene: Scene, kind: str, past: Past) -> Left:
    """Check everything, make the pass again, end what was killed, collect, and check each time."""
    context = scene.db.context()
    is_loaded, floor = check(scene, past)
    intents = tuple(intent.id for intent in standing_intents(context, NAMESPACE))
    orphans = tuple(_orphans(scene))
    head = context.chain(NAMESPACE).load()
    assert head is not None
    clipped = sum(ref.clip_key_min is not None for ref in head.manifest.segments)
    again = PASSES[kind](scene)
    if kind in LOADS:
        assert again.replayed == is_loaded
    else:
        assert again.failed == ()
        assert again.namespaces[0].error is None
    assert check(scene, past)[0] == (is_loaded or kind in LOADS)
    ended = tuple(intent.id for intent in standing_intents(context, NAMESPACE))
    for id in ended:
        end_job(context, NAMESPACE, id)
    assert standing_intents(context, NAMESPACE) == ()
    for _ in range(COLLECTS_MAX):
        context.chain(NAMESPACE).publish(lambda head: head.manifest)  # type: ignore[union-attr]
        assert _gc(scene).failed == ()
        if not _orphans(scene):
            break
    else:
        raise AssertionError(f"still there: {_orphans(scene)}")
    check(scene, past)
    return Left(is_loaded, floor, intents, orphans, ended, clipped)


def check(scene: Scene, past: Past) -> tuple[bool, int]:
    """Compare every retained version; return whether the load is there, whole, and the floor."""
    report = verify(scene.db.context(), NAMESPACE, deep=True)
    assert report.problems == ()
    states = dict(past.states)
    with scene.db.kv(NAMESPACE, mode="r") as kv:
        newest = max(states)
        loaded = {None: {}, b"1": LOADED, b"2": LOADED_BIG}[kv.get(b"load/only")]
        if loaded:
            newest = kv.lsn
            states[newest] = states[max(states)] | loaded
        assert kv.lsn == newest
        floor = handle_of(kv).manifest.retention.floor_lsn
        for lsn, rows in states.items():
            if lsn >= floor:
                assert dict(kv.at(lsn=lsn).items()) == rows, lsn
            else:
                assert _is_refused(kv, lsn)
        assert dict(kv.items()) == states[newest]
        assert kv.get_many(list(states[newest])) == list(states[newest].values())
        id, lsn = past.snapshot
        assert dict(kv.at(snapshot=id).items()) == states[lsn]
        _check_feed(kv, states)
    return bool(loaded), floor


def _is_refused(kv: KeyValue, lsn: int) -> bool:
    try:
        kv.at(lsn=lsn)
    except RetentionError:
        return True
    return False


def _check_feed(kv: KeyValue, states: dict[int, Rows]) -> None:
    """Replay the feed from the oldest change that is kept: each version comes out as it is."""
    try:
        changes = [row for batch in kv.changes() for row in batch.to_pylist()]
    except RetentionError:  # what the log attaches was compacted, and collected
        return
    lsns = sorted(states)
    if not changes:  # all of the log was collected
        manifest = handle_of(kv).manifest
        assert manifest.gc.boundary.slot == manifest.wal_floor > unpack_lsn(lsns[-1])[0]
        return
    first = min(row["_lsn"] for row in changes)
    rows = dict(states[max(lsn for lsn in lsns if lsn < first)])
    assert sorted({row["_lsn"] for row in changes}) == [lsn for lsn in lsns if lsn >= first > 0]
    for row in changes:
        if row["_op"] == "delete":
            rows.pop(row["key"], None)
        else:
            rows[row["key"]] = row["value"]
    assert rows == states[lsns[-1]]


def _orphans(scene: Scene) -> list[str]:
    """Return what collection will find: segments that nothing names, but for what waits to go."""
    context = scene.db.context()
    report = verify(context, NAMESPACE)
    attached = set()
    for meta in scene.store.list(f"namespaces/{NAMESPACE}/wal/"):
        log = decode_log(scene.store.get(meta.key), key=meta.key)
        if log.kind is LogKind.ATTACH:
            attached |= {ref.id for record in log.records for ref in record.segments}
    names = [key.rsplit("/", 1)[1][:-4] for key in report.orphans if key.endswith(".seg")]
    return [name for name in names if name not in attached]
