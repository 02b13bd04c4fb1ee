"""What the processes of the crash matrix do: up to a point where they end, or to look at the result."""

from __future__ import annotations

import signal
from collections.abc import Collection
from typing import Literal, NamedTuple

from reef.engine import open_for_reading
from reef.errors import FencedError
from reef.kv import FACE, KeyValue, KeyValueSnapshot
from reef.manifest import Head, end_intent
from tests.support.crash.crash_points import NAMESPACE, Scene, big_rows, rows_of
from tests.support.waiting import until

BEFORE = (b"a", b"b")
"""Batches that were acknowledged before anything goes wrong."""


class Look(NamedTuple):
    """What a fresh process finds."""

    rows: dict[bytes, bytes]
    lsns: dict[bytes, int]
    lsn: int
    generation: int
    writer_epoch: int
    wal_floor: int
    last_applied_lsn: int
    segments: tuple[str, ...]
    pending: tuple[str, ...]
    boundary: tuple[int, int]
    intents: tuple[str, ...]
    objects: tuple[str, ...]

    def stored(self, folder: str) -> set[str]:
        """Return the names of the objects in a folder, without what follows the first dot."""
        found = (key.removeprefix(f"namespaces/{NAMESPACE}/") for key in self.objects)
        return {
            key.split("/", 1)[1].split(".", 1)[0] for key in found if key.startswith(f"{folder}/")
        }

    @property
    def orphans(self) -> set[str]:
        """Segments that are there and that the manifest does not name."""
        return self.stored("segments") - set(self.segments)


def look(scene: Scene) -> Look:
    """Open for reading and tell everything that there is."""
    reader = open_for_reading(scene.db.context(), NAMESPACE, FACE)
    rows, lsns = {}, {}
    for batch in reader.view().scan():
        columns = (batch.column(name).to_pylist() for name in ("_key", "_lsn", "value"))
        for key, lsn, value in zip(*columns, strict=True):
            rows[key], lsns[key] = value, lsn
    m = reader.manifest
    return Look(
        rows,
        lsns,
        reader.lsn,
        m.generation,
        m.writer_epoch,
        m.wal_floor,
        m.last_applied_lsn,
        tuple(ref.id for ref in m.segments),
        tuple(entry.key for entry in m.gc.pending),
        (m.gc.boundary.slot, m.gc.boundary.generation),
        tuple(intent.id for intent in m.intents),
        tuple(meta.key for meta in scene.store.list(f"namespaces/{NAMESPACE}/")),
    )


def reopen(scene: Scene, parallel: int, name: bytes) -> dict[bytes, bytes]:
    """Take the namespace over, read everything, write one batch, and read that too."""
    with scene.open(parallel) as kv:
        rows = dict(kv.items())
        assert kv.get_many(list(rows)) == list(rows.values())
        lsn = kv.write(rows_of(name)).lsn
        assert kv.get(b"hot") == name
        assert dict(kv.items()) == {**rows, **rows_of(name)}
        assert dict(kv.at(lsn=lsn - 1).items()) == rows
    return rows


# Writing.


def write_and_die(
    scene: Scene,
    parallel: int,
    point: str,
    nth: int,
    order: Literal["", "in_order", "lowest_last"],
    key: bytes | None = None,
) -> None:
    """Write two batches, then as many at once as may be in flight, and end in the midst of them."""
    kv = scene.open(parallel)
    for name in BEFORE:
        scene.put(kv, name)
    scene.store.arm(point, nth, order=order)
    if parallel == 1:
        scene.put(kv, b"w0", key=key)
    else:
        scene.put_together(kv, [b"w%d" % n for n in range(parallel)])


def retry(scene: Scene, name: bytes, key: bytes) -> tuple[int, bool, int]:
    """Repeat a batch with its key; return its receipt's LSN, whether it was known, and the newest LSN."""
    with scene.open() as kv:
        receipt = kv.write(rows_of(name), idempotency_key=key)
        return receipt.lsn, receipt.replayed, kv.lsn


def fill(kv: KeyValue, count: int, first: int = 0) -> None:
    """Write batches that overlap in keys, with deletes and idempotency keys."""
    for n in range(first, first + count):
        kv.write(*_filling(n), idempotency_key=b"fill%d" % n)


def filled(count: int) -> dict[bytes, bytes]:
    """Return what is visible after `fill`."""
    rows: dict[bytes, bytes] = {}
    for n in range(count):
        puts, deletes = _filling(n)
        rows.update(puts)
        for key in deletes:
            rows.pop(key, None)
    return rows


def _filling(n: int) -> tuple[dict[bytes, bytes], list[bytes]]:
    puts = {b"k%02d" % ((n * 3 + i) % 40): b"%d" % n for i in range(6)}
    deletes = [b"gone%d" % n, b"k%02d" % ((n * 3 + 20) % 40)] if n % 3 == 0 else []
    return puts, deletes


def build(scene: Scene, parallel: int, batches: int, flush_every: int) -> None:
    """Make a namespace of several segments and some log behind them."""
    with scene.open(parallel) as kv:
        for n in range(batches):
            fill(kv, 1, n)
            if flush_every and n % flush_every == flush_every - 1:
                kv.flush()


def flush_and_die(scene: Scene, parallel: int, point: str, batches: int) -> None:
    """Write, flush, and end in the midst of the flush."""
    kv = scene.open(parallel)
    fill(kv, batches)
    scene.tell("filled")
    scene.store.arm(point)
    kv.flush()


def flush(scene: Scene, parallel: int) -> None:
    """Take over and fold the log into a segment."""
    with scene.open(parallel) as kv:
        kv.flush()


def upload_and_die(scene: Scene, parallel: int) -> None:
    """Write so much that its segment is uploaded in parts, and end between them."""
    kv = scene.open(parallel, log_segment_max_bytes=32 << 20)
    kv.write(big_rows())
    scene.tell("filled")
    scene.store.arm("during segment upload")
    kv.flush()


# Compaction and collection.


def compact(scene: Scene, point: str) -> None:
    """Merge all segments into one; with a point, end there."""
    compactor = scene.compactor()
    plan = compactor.plan()
    if point:
        scene.store.arm(point)
    compactor.publish(plan, compactor.write(plan))


def end_intents(scene: Scene) -> None:
    """End the intents of jobs that are known to be dead."""
    chain = scene.db.context().chain(NAMESPACE)
    head = chain.load()
    assert head is not None

    def ended(id: str) -> Head:
        return chain.publish(lambda head: end_intent(head.manifest, id))  # type: ignore[union-attr]

    for intent in head.manifest.intents:
        ended(intent.id)


def collect_and_die(scene: Scene, point: str, nth: int) -> None:
    """Collect garbage until that comes to the point where it ends."""
    scene.store.arm(point, nth)

    def goes_on() -> bool:
        scene.collect()  # on S3, time comes in whole seconds
        return False

    until(goes_on, "collection comes to the point")


def collect_once(scene: Scene) -> None:
    """Collect garbage."""
    scene.collect()


def collect_all(scene: Scene, slots: Collection[str] = (), spared: Collection[str] = ()) -> None:
    """Collect until everything is gone that may go: on S3, time comes in whole seconds.

    That is what no manifest names but `spared`, what waits to go, and the log objects in `slots`.
    """

    def is_gone() -> bool:
        scene.collect()
        found = look(scene)
        left = {*(found.orphans - set(spared)), *(found.stored("wal") & set(slots)), *found.pending}
        return not left

    until(is_gone, "everything is gone that may go")


# Two processes at once.


def hold_the_pen(scene: Scene, parallel: int, first: bytes) -> None:
    """Be the writer; write and flush when told to."""
    kv = scene.open(parallel)
    scene.put(kv, first)
    scene.tell("ready")
    while (name := scene.hear()) != "end":
        if name == "flush":
            kv.flush()
            scene.tell("flushed")
        else:
            scene.put(kv, name)


def open_and_sleep(scene: Scene, parallel: int, point: str, nth: int) -> None:
    """Take the namespace over, sleeping at a point of that; then write."""
    scene.store.arm(point, nth, how=signal.SIGSTOP)
    kv = scene.open(parallel)
    scene.tell("opened", dict(kv.items()))
    scene.put(kv, b"c")


def sleep_while_writing(scene: Scene, parallel: int) -> None:
    """Fall asleep with writes under way; awake again, try to go on as if nothing had happened."""
    kv = scene.open(parallel)
    scene.put(kv, b"a")
    # In order: so that none of the others is sent while the last one falls asleep.
    order: Literal["", "in_order"] = "in_order" if parallel > 1 else ""
    scene.store.arm("before wal put", parallel, how=signal.SIGSTOP, order=order)
    scene.put_together(kv, [b"late%d" % n for n in range(parallel)])
    before = scene.store.requests
    for n in range(3):
        scene.put(kv, b"later%d" % n)
    try:
        kv.flush()
    except FencedError:
        scene.tell("flush fenced")
    scene.tell("requests", scene.store.requests - before)
    scene.tell("rows", dict(kv.items()))


def scan_slowly(scene: Scene, is_snapshot: bool) -> None:
    """Begin to read, wait until told, read the rest; all of it at the version it began with."""
    kv = scene.db.kv(NAMESPACE, mode="r", block_cache_bytes=0)
    view = kv.snapshot(ttl=None) if is_snapshot else kv.at(lsn=kv.lsn)
    batches = view.items()
    rows = [next(batches)]
    scene.tell("reading", view.lsn)
    while scene.hear() != "end":
        rows.append(next(batches))
        scene.tell("read")
    rows += batches
    scene.tell("rows", dict(rows), dict(view.items()))
    if isinstance(view, KeyValueSnapshot):
        view.release()


def write_with_clock(scene: Scene, name: bytes, key: bytes) -> None:
    """Write a batch by a clock that is wrong, flush, write another, and end."""
    kv = scene.open()
    scene.put(kv, name, key=key)
    kv.flush()
    scene.put(kv, name + b"2")
    scene.store.arm("after manifest put")
    kv.flush()
