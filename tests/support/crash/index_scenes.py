"""What the processes of the crash tests of index do."""

from __future__ import annotations

from reef.jobs import IndexOptions, IndexResult, InProcess
from tests.support.crash.crash_points import NAMESPACE, Scene, big_rows, rows_of
from tests.support.jobs.passes import index

BATCHES = tuple(b"w%d" % n for n in range(6))


def write(scene: Scene, is_big: bool) -> None:
    """Write some batches, each under a key of its own; and nothing is flushed."""
    with scene.open() as kv:
        for name in BATCHES:
            kv.write(rows_of(name), idempotency_key=name)
        if is_big:
            kv.write(big_rows())


def fold_and_die(scene: Scene, point: str, nth: int) -> None:
    """Fold the log in several parts, and end in the midst of it."""
    scene.store.arm(point, nth)
    fold(scene)


def fold(scene: Scene) -> int | None:
    """Fold the log in several parts; return the generation."""
    context = scene.db.context()
    options = IndexOptions(task_slots=3)
    result: IndexResult = index(context, NAMESPACE, InProcess(context), options=options)
    return result.generation


def retry(scene: Scene) -> list[tuple[int, bool]]:
    """Repeat every batch with its key."""
    with scene.open() as kv:
        receipts = [kv.write(rows_of(name), idempotency_key=name) for name in BATCHES]
    return [(receipt.lsn, receipt.replayed) for receipt in receipts]
