"""The bugs that bit SlateDB, by their number in its tracker: writers that slept, or open at once."""

from __future__ import annotations

import threading

import pytest

from reef.errors import AlreadyExistsError, FencedError, OutcomeUnknownError
from reef.kv import KeyValue
from reef.testing import Fault
from tests.support.code_without_guards import Edit
from tests.support.engine.collecting import NAMESPACE
from tests.support.jobs.compactor import fold_log
from tests.support.regressions import (
    DEAD,
    LOST,
    Acked,
    Guards,
    Missed,
    another,
    attempt,
    check,
    check_log,
    open_world,
    others_go_on,
    parallel_writes,
    rows,
    stale_writer,
    write,
)

GUARDS = Guards()

FENCES_STAY = (
    Edit(
        "reef.gc._survey:ObjectListing._list_log", "elif meta.size == FENCE_BYTES:", "elif False:"
    ),
    Edit("reef.gc._folded_slots:FoldedSlots.read", "if kind is LogKind.FENCE", "if False"),
)


@parallel_writes
@GUARDS.needed(
    "fences are never collected: the slot that an old writer takes next holds one",
    *FENCES_STAY,
    symptom=LOST,
)
def test_352_a_writer_that_slept_through_a_collection_cannot_write(parallel: int) -> None:
    """A stale writer re-creates a log slot that was collected: gc/_survey.py, gc/_folded_slots.py."""
    world = open_world(parallel)
    sleeper, _, acked = stale_writer(world)
    new = others_go_on(world, acked)
    errors: list[Exception] = []
    attempt(sleeper, b"asleep", acked, errors)
    write(new, acked, rows("after", 3))
    check(world, acked)
    check_log(world)
    assert [type(error) for error in errors] == [FencedError]
    with pytest.raises(FencedError):
        sleeper.put(b"asleep", b"again")


@parallel_writes
@GUARDS.needed(
    "fences are never collected: what an old writer had in flight meets them, however late",
    *FENCES_STAY,
    symptom=LOST,
)
def test_1622_writes_in_flight_land_after_a_collection(parallel: int) -> None:
    """The same with its PUTs on their way, as many as may be: gc/_survey.py, gc/_folded_slots.py."""
    world = open_world(parallel, group_commit_max_batches=1)
    sleeper, faulty, acked = stale_writer(world)
    faulty.arm(Fault("stall", on="put_if_absent", key="*/wal/*", times=parallel))
    errors: list[Exception] = []
    threads = [
        threading.Thread(target=attempt, args=(sleeper, b"late%d" % i, acked, errors))
        for i in range(parallel)
    ]
    for number, thread in enumerate(threads, 1):
        thread.start()
        faulty.wait_for_stalled(number)
    new = others_go_on(world, acked)
    faulty.release()
    for thread in threads:
        thread.join()
    write(new, acked, rows("after", 3))
    check(world, acked)
    check_log(world)
    assert [type(error) for error in errors] == [FencedError] * parallel


BOUNDARY_CHECKED = Edit(
    "reef.engine._open_namespace:_standing",
    "None if newest.manifest.gc.boundary.slot > slot else newest",
    "newest",
)
LISTED_IS_THERE = (
    Edit(
        "reef.engine._open_namespace:_take_log",
        "if _missing(manifest, tail, last_known) and _standing(chain, epoch, tail.replay.reach) is None:",
        "if False:",
    ),
    Edit(
        "reef.engine._open_namespace:_take_log", "check_whole(manifest, tail, last_known)", "pass"
    ),
)
"""What was listed before the epoch was taken and is gone: it was collected, or it is damage."""
EPOCH_CHECKED = (
    Edit(
        "reef.engine._open_namespace:_standing",
        "if newest.manifest.writer_epoch > epoch:",
        "if False:",
    ),
    Edit("reef.engine:Writer.adopt", "if head.manifest.writer_epoch > self.epoch:", "if False:"),
)
EPOCH_CHECKED_IN_THE_LOG = Edit(
    "reef.log._fence:check_epoch", "if entry.log.epoch > epoch:", "if False:"
)


@parallel_writes
@GUARDS.needed(
    "an opener's fences count only at or above the boundary",
    BOUNDARY_CHECKED,
    *LISTED_IS_THERE,
    symptom=DEAD,
)
def test_1682_a_fence_below_the_replay_boundary_does_not_count(parallel: int) -> None:
    """An absent slot may be a collected one; engine/_open_namespace.py looks at the head after its fences.

    The opener has taken its epoch and sleeps. Its predecessor, not fenced yet, goes on; a job folds
    the log, and all of it is collected. The slot where the opener puts its fence was folded long ago.
    """
    world = open_world(parallel)
    old, _, acked = stale_writer(world)

    def folded_and_collected() -> None:
        write(old, acked, rows("more"))
        fold_log(world.database(world.inner).context(), NAMESPACE)
        world.age()
        world.collect(world.inner)
        assert world.manifest.gc.boundary.slot > 10

    world.store.once("get", ".wal", folded_and_collected)
    opener = world.kv()
    errors: list[Exception] = []
    attempt(opener, b"opener", acked, errors)
    attempt(old, b"old", acked, errors)
    check(world, acked)
    check_log(world)
    assert b"opener" in acked, f"who opened last {DEAD}: {errors}"
    assert [type(error) for error in errors] == [FencedError]


@parallel_writes
@GUARDS.needed(
    "an opener that was overtaken and collected over is fenced, or starts over",
    BOUNDARY_CHECKED,
    *LISTED_IS_THERE,
    *EPOCH_CHECKED,
    symptom=DEAD,
    parallel=[1],
)
@GUARDS.needed(
    "with more than one fence, it meets the other's before it looks at the head",
    BOUNDARY_CHECKED,
    *LISTED_IS_THERE,
    *EPOCH_CHECKED,
    EPOCH_CHECKED_IN_THE_LOG,
    symptom=DEAD,
)
def test_1682_an_opener_slept_through_another_open_and_a_collection(parallel: int) -> None:
    """As above, by a newer writer: engine/_open_namespace.py refuses either for the epoch or the boundary."""
    world = open_world(parallel)
    _, _, acked = stale_writer(world)
    newer: list[KeyValue] = []
    world.store.once("get", ".wal", lambda: newer.append(others_go_on(world, acked)))
    errors: list[Exception] = []
    try:
        attempt(world.kv(), b"opener", acked, errors)
    except FencedError as error:
        errors.append(error)
    write(newer[0], acked, rows("after", 3))
    check(world, acked)
    check_log(world)
    assert [type(error) for error in errors] == [FencedError], f"the opener {DEAD}: {errors}"


@parallel_writes
@GUARDS.needed(
    "a newer epoch, met in the log or in the head, ends an opener",
    EPOCH_CHECKED_IN_THE_LOG,
    *EPOCH_CHECKED,
    symptom=f"InvariantError|{LOST}",
)
@GUARDS.needed(
    "an epoch is given to one of those who ask for it at once: each manifest carries a nonce",
    Edit(
        "reef.manifest:ManifestChain._stamp", "nonce=new_nonce(self._rng).hex()", 'nonce="0" * 32'
    ),
    Edit(
        "reef.manifest:ManifestChain._stamp", "created_at_us=self.clock.now_us()", "created_at_us=1"
    ),
    Edit(
        "reef.engine._open_namespace:_take_epoch",
        "opened_at_us=context.clock.now_us()",
        "opened_at_us=1",
    ),
    symptom=f"InvariantError|two writers|{LOST}",
)
def test_271_two_writers_open_at_once(parallel: int) -> None:
    """One of two is left, wherever the first stops in opening: log/_fence.py, manifest/_manifest_chain.py.

    The one that was overtaken is told while it opens, or has taken over itself.
    """
    stops = 0
    while stop_in_opening(parallel, stops):
        stops += 1
    assert stops > 4 + parallel


def stop_in_opening(parallel: int, stop: int) -> bool:
    """Let a second writer open and write before request number `stop` of the first one's opening."""
    world = open_world(parallel)
    acked: Acked = {}
    second: list[KeyValue] = []
    requests = 0

    def before(operation: str, key: str) -> None:
        nonlocal requests
        if requests == stop and not second:
            second.append(another(world))
            write(second[0], acked, rows("second", 3))
        requests += 1

    world.store.before = before
    alive: list[KeyValue] = []
    errors: list[Exception] = []
    try:
        alive.append(world.kv())
    except FencedError as error:
        errors.append(error)
    if not second:
        return False
    world.store.before = lambda operation, key: None
    for kv in (*alive, *second):
        attempt(kv, b"alive%d" % len(acked), acked, errors)
    check(world, acked)
    check_log(world)
    assert [type(error) for error in errors] == [FencedError], f"two writers, stop {stop}: {errors}"
    return True


@parallel_writes
@GUARDS.needed(
    "only the next opener goes by an end: whoever comes after it may have a writer to fence",
    Edit("reef.manifest:open_writer", "m.ended.epoch == m.writer_epoch", "True"),
    Edit(
        "reef.engine._open_namespace:_begins_behind_end",
        "and ended.epoch == manifest.writer_epoch - 1",
        "",
    ),
    Edit(
        "reef.engine._open_namespace:_begins_behind_end",
        "and ended.slot == replay.next_slot == replay.reach",
        "",
    ),
    symptom=LOST,
)
def test_a_writer_without_a_fence_slept_through_a_collection(parallel: int) -> None:
    """Behind a writer that was closed, none is put: the next one puts it where this one would write."""
    world = open_world(parallel)
    first = another(world)
    first.close()
    fences = world.slots()
    sleeper, _, acked = stale_writer(world)
    assert [*fences, *range(fences[-1] + 1, fences[-1] + 4)] == world.slots()
    new = others_go_on(world, acked)
    errors: list[Exception] = []
    attempt(sleeper, b"asleep", acked, errors)
    write(new, acked, rows("after", 3))
    check(world, acked)
    check_log(world)
    assert [type(error) for error in errors] == [FencedError]


@parallel_writes
@GUARDS.needed(
    "a writer that does not know what became of a write publishes no end",
    Edit(
        "reef.engine._commit._queue:CommitQueue.slot_ended",
        "if self.in_flight or self.pending or self.failure is not None:",
        "if False:",
    ),
    symptom="NoneType",
)
def test_a_write_is_on_its_way_when_its_writer_is_closed(parallel: int) -> None:
    world = open_world(parallel)
    closing, faulty, acked = stale_writer(world)
    faulty.arm(Fault("lands_late", on="put_if_absent", key="*/wal/*", times=0))
    faulty.arm(Fault("timeout_before", on="get", key="*/wal/*", times=0))
    with pytest.raises(OutcomeUnknownError):
        closing.put(b"unknown", b"u")
    closing.close()
    new = another(world)
    assert [type(error) for error in faulty.land()] == [AlreadyExistsError]  # the fence is there
    write(new, acked, rows("new", 3))
    check(world, acked)
    check_log(world)
    assert b"unknown" not in world.contents()


@pytest.mark.parametrize("missed", GUARDS, ids=str)
def test_each_regression_fails_without_its_guard(missed: Missed) -> None:
    missed.check()
