"""index: parts of the log folded side by side, stitched along the chain, published in one step."""

from __future__ import annotations

import itertools
import random
from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from reef.engine._open import load_dedup
from reef.errors import (
    CorruptError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from reef.format import (
    Manifest,
    SkippedSlot,
    damaged_checksum,
    decode_schema,
    decode_segment,
    log_key,
    segment_key,
)
from reef.gc import collect
from reef.manifest import end_intent
from reef.pipeline._fold import FoldedPart
from reef.pipeline._index import IndexPlan, IndexResult, finish_index, index, plan_index, run_parts
from reef.pipeline._index_plan import Backlog, IndexOptions
from reef.pipeline._job import Job, new_segment_id
from reef.pipeline._tasks import InProcess, Outcome
from reef.store import Store
from reef.testing import Fault, FaultyStore
from tests.collecting import HookedStore
from tests.kernel import contents, database, flip
from tests.log_script import NS, LogScript, copied, flush_at_once, folded_rows, give_up, versions

ONE_EACH = IndexOptions(task_slots=1)


def run(store: Store, options: IndexOptions | None = None, *, seed: int = 9) -> IndexResult:
    context = database(store, seed=seed).context()
    return index(context, NS, InProcess(context), options=options)


def head(store: Store) -> Manifest:
    found = database(store).context().chain(NS).load()
    assert found is not None
    return found.manifest


def keys(store: Store, folder: str) -> list[str]:
    return [meta.key for meta in store.list(f"namespaces/{NS}/{folder}/")]


def check_same_as_before(
    script: LogScript, options: IndexOptions | None = None
) -> tuple[IndexResult, Manifest]:
    """Fold, and compare with what readers saw, and with what a flush of it all in one go writes."""
    store = script.store
    before = versions(store, script.lsns)
    other = copied(store)
    flushed = flush_at_once(database(other, seed=4).context())
    result = run(store, options)
    manifest = head(store)
    assert versions(store, script.lsns) == before
    assert folded_rows(store) == folded_rows(other)
    for name in ("wal_floor", "wal_anchor", "last_applied_lsn", "schema", "skipped_slots"):
        assert getattr(manifest, name) == getattr(flushed, name), name
    assert (manifest.dedup is None) == (flushed.dedup is None)
    assert not manifest.intents
    assert result.generation == manifest.generation
    return result, manifest


# The job itself.


def test_a_job_registers_publishes_and_ends(store: Store) -> None:
    context = database(store).context()
    with pytest.raises(NotFoundError):
        Job.begin(context, NS, "index")
    database(store).kv(NS).close()
    job = Job.begin(context, NS, "index")
    assert job.id == job.id.lower()
    assert job.compactor_epoch is None
    assert [intent.id for intent in head(store).intents] == [job.id]
    assert new_segment_id(context, job.id).partition("-")[2] == job.id
    assert new_segment_id(context, job.id) != new_segment_id(context, job.id)
    segment_key(NS, new_segment_id(context, job.id))
    job.publish(lambda m: end_intent(m, job.id))
    assert not head(store).intents
    generation = head(store).generation
    job.end()
    assert head(store).generation == generation


def test_a_compactor_takes_its_epoch_in_the_same_generation(store: Store) -> None:
    database(store).kv(NS).close()
    context, generation = database(store).context(), head(store).generation
    first = Job.begin(context, NS, "compact", compactor=True)
    second = Job.begin(context, NS, "compact", compactor=True)
    assert (first.compactor_epoch, second.compactor_epoch) == (1, 2)
    assert head(store).generation == generation + 2
    first.end()
    second.end()
    assert not head(store).intents


# Nothing to do.


def test_nothing_to_fold_writes_nothing(store: Store) -> None:
    context = database(store).context()
    with pytest.raises(NotFoundError):
        run(store)
    with database(store).kv(NS) as kv:
        assert plan_index(context, NS) is None  # a fence only
        kv.put(b"a", b"1")
        kv.flush()
    before = [meta.key for meta in store.list()]
    result = run(store)
    assert result == IndexResult(NS)
    assert [meta.key for meta in store.list()] == before


def test_small_backlogs_are_passed_over(store: Store) -> None:
    script = LogScript(store)
    script.data({b"a": b"1"})
    script.data({b"b": b"2"})
    assert run(store, IndexOptions(min_slots=3)).generation is None
    assert run(store, IndexOptions(min_bytes=1 << 20)).generation is None
    assert not keys(store, "segments")
    assert run(store, IndexOptions(min_slots=2, min_bytes=500)).generation is not None
    with pytest.raises(InvalidInputError, match="task_bytes"):
        run(store, IndexOptions(task_bytes=0))


@pytest.mark.parametrize("seed", range(20))
def test_parts_are_of_one_size_and_leave_nothing_out(store: Store, seed: int) -> None:
    rng = random.Random(seed)
    sizes = array("q", [rng.choice([0, 100, 300, 999]) for _ in range(rng.randint(1, 400))])
    backlog = Backlog(LogScript(store).head(), sizes)
    options = IndexOptions(task_bytes=rng.choice([1, 5000, 20_000, 1 << 30]))
    parts = list(backlog.parts("index-x", options))
    assert sum(part.log_bytes for part in parts) == sum(sizes)
    edges = [(part.slot_first, part.slot_last) for part in parts]
    assert edges[0][0] == backlog.manifest.wal_floor
    assert edges[-1][1] == backlog.slot_last
    assert all(a[1] + 1 == b[0] for a, b in pairwise(edges))
    if options.task_bytes > 1:
        wanted = max(1, -(-sum(sizes) // options.task_bytes))
        assert len(parts) == wanted
        assert all(abs(part.log_bytes - sum(sizes) / wanted) <= 1000 for part in parts)
    few = list(backlog.parts("index-x", IndexOptions(task_slots=7)))
    assert [part.slot_last - part.slot_first + 1 for part in few[:-1]] == [7] * (len(few) - 1)


# Content.


@pytest.mark.parametrize("options", [None, ONE_EACH, IndexOptions(task_slots=3, memory_bytes=1)])
def test_the_content_is_that_of_a_flush(store: Store, options: IndexOptions | None) -> None:
    script = LogScript(store)
    for i in range(10):
        script.data({b"k%d" % (i % 4): b"%d" % i, b"only%d" % i: b"x"}, {b"k%d" % (i % 3): None})
    result, manifest = check_same_as_before(script, options)
    assert result.rows == 30
    assert result.slot_last == script.slot - 1
    assert result.segments == manifest.segments
    assert all(ref.level == 0 and ref.id.endswith(result.job_id or "?") for ref in result.segments)
    again = run(store, options)
    assert again.generation is None


def test_segments_of_full_memory_are_disjoint_and_name_their_slots(store: Store) -> None:
    script = LogScript(store)
    for i in range(12):
        script.data({b"k%d" % (i % 5): bytes(1000)})
    script.fence()
    result, manifest = check_same_as_before(script, IndexOptions(memory_bytes=3000))
    assert len(result.tasks) == 1
    assert len(result.segments) >= 4
    covered: list[tuple[int, int]] = []
    for ref in reversed(result.segments):  # from old to new
        tail, _ = decode_segment(store.get(segment_key(NS, ref.id)))
        assert tail.footer.replaced_slots is not None
        covered.append(tail.footer.replaced_slots)
    assert covered[0][0] == 1 or covered[0][0] == result.slot_first
    assert covered[-1][1] <= manifest.wal_floor - 1
    assert all(a[1] + 1 == b[0] for a, b in itertools.pairwise(covered))
    ordered = sorted(manifest.segments, key=lambda ref: ref.lsn_min)
    assert all(a.lsn_max < b.lsn_min for a, b in itertools.pairwise(ordered))


def test_many_small_batches_and_changing_columns(store: Store) -> None:
    script = LogScript(store)
    script.data(*({b"%d" % (i % 700): b"v%d" % i} for i in range(3000)))
    script.schema()
    for i in range(40):
        script.data({b"%d" % (i % 7): b"w"}, extra=i if i % 3 else None)
    script.lsns = [*script.lsns[:3000:500], *script.lsns[3000::7]]
    result, manifest = check_same_as_before(script, IndexOptions(task_slots=9))
    assert len(result.tasks) > 3
    schema = decode_schema(pa.py_buffer(manifest.schema), "", 0)
    assert schema.names == ["value", "extra"]


# The chain across parts.


def strange(script: LogScript) -> None:
    script.data({b"a": b"1"}, {b"b": b"1"}, key=b"one-")
    script.void({b"a": b"void"}, key=b"void-")
    script.void({b"a": b"void too"}, behind_void=True)
    script.data({b"a": b"2"}, sequence=7)
    script.fence()
    script.late({b"a": b"late"})
    script.data({b"c": b"3"}, key=b"two-")
    script.damaged()
    script.damaged()
    script.fence()
    script.attach({b"b": b"bulk", b"z": b"bulk"})
    script.schema()
    script.data({b"b": None, b"z": b"newer"}, extra=5)
    script.attach({b"z": b"bulk again"})
    script.void({b"z": b"void"})
    script.fence()


@pytest.mark.parametrize("task_slots", range(1, 20))
def test_every_border_between_parts(store: Store, task_slots: int) -> None:
    script = LogScript(store)
    strange(script)
    result, _manifest = check_same_as_before(script, IndexOptions(task_slots=task_slots))
    assert result.voids == 4
    assert len(result.damaged) == 2 == len(result.skipped)
    assert {ref.version for ref in result.attached} <= set(script.lsns)
    assert len(result.attached) == 2
    # Runs that overlap in keys do not overlap in LSNs: rows never lie around an attached segment.
    for ref in result.segments:
        assert not any(ref.lsn_min < a.lsn_max < ref.lsn_max for a in result.attached)
    if task_slots == 1:
        assert result.reruns > 0
    if task_slots == 19:
        assert result.reruns == 0
        assert len(result.tasks) == 1


def test_a_part_that_assumed_wrongly_is_folded_again_from_the_truth(store: Store) -> None:
    script = LogScript(store)
    script.data({b"a": b"1"})
    first = script.slot
    script.void({b"a": b"void"})
    script.data({b"a": b"2"})
    context = database(store, seed=3).context()
    plan = plan_index(context, NS, IndexOptions(task_slots=2))
    assert plan is not None
    (outcomes,) = run_parts([plan], InProcess(context))
    wrong = outcomes[-1].result
    assert plan.parts[-1].slot_first == first
    assert wrong is not None
    assert wrong.rows == 1
    assert wrong.voids == 1
    result = finish_index(context, plan, outcomes, InProcess(context))
    assert result.reruns == 1
    assert result.rows == 2
    assert result.voids == 1
    assert [task.counted for task in result.tasks].count(False) == 1
    assert contents(store) == {b"a": b"2"}
    named = {segment_key(NS, ref.id) for ref in head(store).segments}
    assert len(set(keys(store, "segments")) - named) == 1  # what the wrong one wrote


def test_an_epoch_that_is_too_low_is_found_at_a_border(store: Store) -> None:
    script = LogScript(store)
    script.data({b"a": b"1"})
    script.fence()
    script.late({b"a": b"late"})  # names the fence, which is valid, but is of an older epoch
    result, _ = check_same_as_before(script, ONE_EACH)
    assert result.reruns == 1
    assert result.voids == 1
    assert contents(store) == {b"a": b"1"}


# Where the log ends.


def test_what_lies_behind_a_gap_is_left(store: Store) -> None:
    script = LogScript(store)
    script.data({b"a": b"1"})
    gap = script.slot
    script.slot += 1
    script.data({b"a": b"in flight"})
    result = run(store, ONE_EACH)
    assert result.slot_last == gap - 1 == head(store).wal_floor - 1
    assert contents(store) == {b"a": b"1"}


@pytest.mark.parametrize("task_slots", [1, 100])
def test_damage_at_the_head_is_left_to_whoever_decides_about_it(
    store: Store, task_slots: int
) -> None:
    script = LogScript(store)
    script.data({b"a": b"1"})
    lost = [script.damaged(), script.damaged()]
    result = run(store, IndexOptions(task_slots=task_slots))
    assert result.slot_last == lost[0].slot - 1
    assert [d.slot for d in result.damaged] == [skip.slot for skip in lost]
    tail, _ = decode_segment(store.get(segment_key(NS, result.segments[0].id)))
    assert tail.footer.replaced_slots is not None
    assert tail.footer.replaced_slots[1] == lost[0].slot - 1
    again = run(store, ONE_EACH)  # nothing but damage
    assert again.generation is None
    assert len(again.damaged) == 2
    assert not head(store).intents
    with database(store, seed=2).kv(NS) as kv:
        kv.put(b"b", b"2")
        assert run(store, ONE_EACH, seed=3).generation is not None
        assert contents(store) == dict(kv.items()) == {b"a": b"1", b"b": b"2"}
    assert set(lost) <= set(head(store).skipped_slots)


@pytest.mark.parametrize("task_slots", [1, 2, 3, 100])
def test_damage_that_is_followed_is_an_error_and_publishes_nothing(
    store: Store, task_slots: int
) -> None:
    script = LogScript(store)
    script.data({b"a": b"1"})
    lost = script.damaged()
    script.data({b"a": b"2"})
    floor = head(store).wal_floor
    with pytest.raises(CorruptError, match="reef repair") as raised:
        run(store, IndexOptions(task_slots=task_slots))
    assert raised.value.key == log_key(NS, lost.slot)
    assert head(store).wal_floor == floor
    assert not head(store).intents


@pytest.mark.parametrize("task_slots", [1, 2, 100])
@pytest.mark.parametrize("is_followed", [True, False])
def test_what_repair_gave_up_is_passed_over(
    store: Store, task_slots: int, is_followed: bool
) -> None:
    script = LogScript(store)
    script.data({b"a": b"1"})
    lost = script.damaged()
    context = database(store).context()
    give_up(context, lost)
    if is_followed:
        script.void({b"a": b"void"})
        script.prev = type(script.prev)(lost.slot, 99)  # it names the one that is lost
        script.data({b"b": b"2"})
        result, _ = check_same_as_before(script, IndexOptions(task_slots=task_slots))
        assert contents(store) == {b"a": b"1", b"b": b"2"}
    else:
        result = run(store, IndexOptions(task_slots=task_slots))
        # Whoever follows can name only what is lost: the gap stays in the log until then.
        assert result.slot_last == lost.slot - 1
        generation = head(store).generation
        assert run(store).generation is None
        assert head(store).generation == generation  # by the manifest alone: nothing to fold
        script.prev = type(script.prev)(lost.slot, 99)
        script.data({b"b": b"2"})
        assert contents(store) == {b"a": b"1", b"b": b"2"}
        assert run(store).generation is not None
        assert contents(store) == {b"a": b"1", b"b": b"2"}


def test_an_object_that_was_seen_and_is_gone_is_no_end_of_the_log(store: Store) -> None:
    kv = database(store).kv(NS)
    receipts = [kv.put(b"k%d" % i, b"v") for i in range(4)]
    with kv.snapshot(ttl=None, id="seen"):
        pass
    kv.close()
    store.delete(log_key(NS, receipts[2].lsn >> 20))
    with pytest.raises(CorruptError, match="reef repair"):
        run(store)
    assert not keys(store, "segments")


def test_an_object_that_vanishes_after_the_plan_is_lost(store: Store) -> None:
    script = LogScript(store)
    for i in range(3):
        script.data({b"k%d" % i: b"v"})
    context = database(store, seed=3).context()
    plan = plan_index(context, NS, ONE_EACH)
    assert plan is not None
    store.delete(log_key(NS, script.slot - 2))
    (outcomes,) = run_parts([plan], InProcess(context))
    with pytest.raises(CorruptError, match=log_key(NS, script.slot - 2)):
        finish_index(context, plan, outcomes, InProcess(context))
    assert not head(store).intents
    assert not head(store).segments


# Beside others.


class Meddling(InProcess):
    """Runs tasks, and something else before or after them."""

    def __init__(self, context: Any, meddle: Callable[[int], None]) -> None:
        super().__init__(context)
        self.meddle = meddle
        self.runs = 0

    def run(self, task: Any, descriptors: Sequence[Any], result: Any, **how: Any) -> list[Any]:
        outcomes = super().run(task, descriptors, result, **how)
        self.runs += 1
        self.meddle(self.runs)
        return outcomes


def test_a_writer_goes_on_meanwhile(store: Store) -> None:
    kv = database(store, seed=2).kv(NS)
    model: dict[bytes, bytes] = {}
    context = database(store, seed=3).context()

    def write(n: int) -> None:
        for i in range(5):
            model[b"%d-%d" % (n, i)] = model[b"same"] = b"%d" % i
            kv.write({b"%d-%d" % (n, i): b"%d" % i, b"same": b"%d" % i})

    write(0)
    result = index(context, NS, Meddling(context, write), options=ONE_EACH)
    assert result.generation is not None
    assert result.plans == 1
    assert dict(kv.items()) == contents(store) == model
    write(7)
    kv.flush()  # it finds that somebody has folded
    assert dict(kv.items()) == contents(store) == model
    write(8)
    assert index(context, NS, InProcess(context)).generation is not None
    kv.put(b"last", b"x")
    model[b"last"] = b"x"
    assert dict(kv.items()) == contents(store) == model
    kv.close()


def test_a_flush_in_between_makes_it_plan_anew(store: Store) -> None:
    kv = database(store, seed=2).kv(NS)
    context = database(store, seed=3).context()
    kv.put(b"a", b"1")

    def flush(n: int) -> None:
        if n == 1:
            kv.put(b"b", b"2")
            kv.flush()
            kv.put(b"c", b"3")

    result = index(context, NS, Meddling(context, flush))
    assert result.plans == 2
    assert result.rows == 1
    assert dict(kv.items()) == contents(store) == {b"a": b"1", b"b": b"2", b"c": b"3"}
    assert not head(store).intents

    def flush_all(n: int) -> None:
        kv.flush()

    kv.put(b"d", b"4")
    result = index(context, NS, Meddling(context, flush_all))
    assert result.generation is None
    assert result.plans == 1
    assert not head(store).intents

    def never_done(n: int) -> None:
        kv.put(b"e", b"%d" % n)
        kv.flush()
        kv.put(b"e", b"%d more" % n)

    kv.put(b"e", b"0")
    with pytest.raises(UnavailableError, match="3 times"):
        index(context, NS, Meddling(context, never_done), options=IndexOptions(plans_max=3))
    assert not head(store).intents
    assert dict(kv.items()) == contents(store)
    kv.close()


def test_a_flush_between_the_list_and_the_intent_is_noticed(store: Store) -> None:
    kv = database(store, seed=2).kv(NS)
    kv.put(b"a", b"1")
    hooked = HookedStore(store)

    def meddle(operation: str, key: str) -> None:
        if operation == "put_if_absent" and len(hooked.requests) < 10:
            hooked.before = lambda operation, key: None
            kv.flush()
            kv.put(b"b", b"2")

    hooked.before = meddle
    context = database(hooked, seed=3).context()
    result = index(context, NS, InProcess(context))
    assert result.rows == 1
    assert result.slot_first == head(store).wal_floor - 1
    assert dict(kv.items()) == contents(store) == {b"a": b"1", b"b": b"2"}
    assert not head(store).intents
    kv.close()


def test_folded_and_collected_before_the_tasks_ran(store: Store) -> None:
    """What a task then misses was not lost."""
    with database(store, seed=2, gc_grace=0.001).kv(NS) as kv:
        for i in range(6):
            kv.put(b"k%d" % i, b"v")
        context = database(store, seed=3).context()
        plan = plan_index(context, NS, ONE_EACH)
        assert plan is not None
        kv.flush()
        kv.put(b"more", b"v")
        for part in plan.parts[1:4]:
            store.delete(log_key(NS, part.slot_first))  # as collection would, in time
        (outcomes,) = run_parts([plan], InProcess(context))
        result = finish_index(context, plan, outcomes, InProcess(context))
        assert result.plans == 2
        assert result.rows == 1
        assert len(contents(store)) == 7


def test_repair_that_gives_up_a_slot_meanwhile_refuses_the_plan(store: Store) -> None:
    script = LogScript(store)
    script.data({b"a": b"1"})
    script.data({b"a": b"2"})
    context = database(store, seed=3).context()
    plan = plan_index(context, NS)
    assert plan is not None
    (outcomes,) = run_parts([plan], InProcess(context))
    # It rots after it was read, and repair gives it up.
    key = log_key(NS, script.slot - 1)
    flip(store, key)
    give_up(context, SkippedSlot(script.slot - 1, damaged_checksum(store.get(key))))
    result = finish_index(context, plan, outcomes, InProcess(context))
    assert result.plans == 2
    assert result.slot_last == script.slot - 2
    assert contents(store) == {b"a": b"1"}


def test_a_job_that_was_ended_by_somebody_cannot_publish(store: Store) -> None:
    script = LogScript(store)
    script.data({b"a": b"1"})
    context = database(store, seed=3).context()
    plan = plan_index(context, NS)
    assert plan is not None
    (outcomes,) = run_parts([plan], InProcess(context))
    context.chain(NS).publish(lambda found: end_intent(found.manifest, plan.job.id))  # type: ignore[union-attr]
    with pytest.raises(FencedError, match=plan.job.id):
        finish_index(context, plan, outcomes, InProcess(context))
    assert not head(store).segments
    assert contents(store) == {b"a": b"1"}


def test_two_jobs_on_one_namespace_fold_it_once(store: Store) -> None:
    script = LogScript(store)
    strange(script)
    before = versions(store, script.lsns)
    first, second = (database(store, seed=n).context() for n in (31, 32))
    plans = [plan_index(context, NS, ONE_EACH) for context in (first, second)]
    results = []
    for context, plan in zip((first, second), plans, strict=True):
        assert plan is not None
        (outcomes,) = run_parts([plan], InProcess(context))
        results.append(finish_index(context, plan, outcomes, InProcess(context)))
    assert [result.generation is None for result in results] == [False, True]
    assert versions(store, script.lsns) == before
    assert not head(store).intents


# Deaths and faults.


def test_a_driver_that_dies_before_the_publish_leaves_orphans_and_an_intent(store: Store) -> None:
    script = LogScript(store)
    strange(script)
    before = versions(store, script.lsns)
    context = database(store, seed=3).context()
    plan = plan_index(context, NS, ONE_EACH)
    assert plan is not None
    run_parts([plan], InProcess(context))
    # It is gone. Readers, writers and the next job do not mind, and collection spares its segments.
    assert [intent.id for intent in head(store).intents] == [plan.job.id]
    assert versions(store, script.lsns) == before
    orphans = set(keys(store, "segments"))
    other = database(store, seed=8).context()
    collect(other.chain(NS), store, settings=other.settings, clock=other.clock, apply=True)
    assert set(keys(store, "segments")) == orphans
    assert run(store, ONE_EACH, seed=4).generation is not None
    assert versions(store, script.lsns) == before
    plan.job.end()
    assert not head(store).intents


@pytest.mark.parametrize("kind", ["error_before", "reply_lost", "false_conflict"])
def test_lost_replies_of_manifests_are_resolved(store: Store, kind: Any) -> None:
    script = LogScript(store)
    script.data({b"a": b"1"})
    for nth in (1, 2):
        faulty = FaultyStore(store)
        faulty.arm(Fault(kind, on="put_if_absent", key="*/manifest/*", nth=nth))
        result = run(faulty, seed=nth)
        assert result.generation is not None
        assert faulty.fired
        assert not head(store).intents
        assert contents(store)[b"a"] == b"1"
        database(store, seed=20 + nth).kv(NS).put(b"b", b"%d" % nth)


def test_an_unknown_outcome_is_left_as_it_is(store: Store) -> None:
    script = LogScript(store)
    script.data({b"a": b"1"})
    faulty = FaultyStore(store)
    context = database(faulty, seed=3).context()
    plan = plan_index(context, NS)
    assert plan is not None
    (outcomes,) = run_parts([plan], InProcess(context))
    faulty.arm(
        Fault("reply_lost", on="put_if_absent", key="*/manifest/*"),
        Fault("error_before", on="get", key="*/manifest/*", times=0),
        Fault("error_before", on="list", key="*/manifest/*", times=0),
    )
    with pytest.raises(OutcomeUnknownError):
        finish_index(context, plan, outcomes, InProcess(context))
    faulty.disarm()
    assert contents(store) == {b"a": b"1"}
    plan.job.end()
    assert not head(store).intents


def test_a_task_that_the_store_failed_is_run_again_once(store: Store) -> None:
    script = LogScript(store)
    for i in range(4):
        script.data({b"k%d" % i: b"v"})
    before = contents(store)
    faulty = FaultyStore(store)
    faulty.arm(Fault("error_before", on="get", key=log_key(NS, script.slot - 2)))
    result = run(faulty, ONE_EACH)
    assert result.reruns == 1
    assert contents(store) == before
    script.data({b"k": b"v"})
    faulty.arm(Fault("error_before", on="upload", times=0))
    with pytest.raises(UnavailableError):
        run(faulty)
    faulty.disarm()
    assert not head(store).intents
    assert b"k" in contents(store)


def test_bytes_that_were_damaged_on_the_way_are_read_again(store: Store) -> None:
    script = LogScript(store)
    script.data({b"a": b"1"})
    script.data({b"a": b"2"})
    faulty = FaultyStore(store)
    faulty.arm(Fault("flipped_bit", on="get", key=log_key(NS, script.slot - 2), at=900))
    result = run(faulty)
    assert faulty.fired
    assert not result.damaged
    assert result.rows == 2


# The dedup window.


@pytest.mark.parametrize("task_slots", [1, 2, 100])
def test_a_retry_after_it_gets_the_old_receipt(store: Store, task_slots: int) -> None:
    with database(store, seed=2).kv(NS) as kv:
        old = kv.put(b"old", b"0", idempotency_key="old")
        kv.flush()
        first = kv.put(b"a", b"1", idempotency_key="k1")
        second = kv.put(b"b", b"1", idempotency_key="k2")
        kv.put(b"a", b"2")
        third = kv.write({b"s": b"1"}, source="stream", sequence=5)
        both = kv.write({b"t": b"1"}, idempotency_key="k3", source="other", sequence=1)
    assert run(store, IndexOptions(task_slots=task_slots)).generation is not None
    assert head(store).dedup is not None
    with database(store, seed=4).kv(NS) as kv:
        for receipt, key, name in ((old, b"old", "old"), (first, b"a", "k1"), (second, b"b", "k2")):
            value = b"0" if name == "old" else b"1"
            again = kv.put(key, value, idempotency_key=name)
            assert again.replayed
            assert again.lsn == receipt.lsn
        again = kv.write({b"s": b"1"}, source="stream", sequence=5)
        assert again.replayed
        assert again.lsn == third.lsn
        again = kv.write({b"t": b"1"}, idempotency_key="k3", source="other", sequence=1)
        assert again.replayed
        assert again.lsn == both.lsn
        assert not kv.write({b"s": b"2"}, source="stream", sequence=6).replayed
        assert kv.get(b"a") == b"2"


def test_the_window_is_the_one_that_a_flush_writes(store: Store) -> None:
    script = LogScript(store)
    for i in range(9):
        script.data({b"a": b"%d" % i}, key=b"%d-" % (i % 4), sequence=i + 1)
    script.void({b"a": b"void"}, key=b"void")
    settings = {"dedup_max_keys": 3, "dedup_max_age": 3e9}
    other = copied(store)
    flush_at_once(database(other, seed=4, **settings).context())
    context = database(store, seed=9, **settings).context()
    index(context, NS, InProcess(context), options=IndexOptions(task_slots=2))
    ours, theirs = (
        load_dedup(database(s, **settings).context(), head(s)).window(1 << 62, 0)
        for s in (store, other)
    )
    assert ours == theirs
    assert len(ours.entries) == 3


# Requests, and many namespaces.


def test_it_reads_every_log_object_once(store: Store) -> None:
    script = LogScript(store)
    for i in range(50):
        script.data({b"k%d" % i: b"v"})
    hooked = HookedStore(store)
    context = database(hooked, seed=3).context()
    index(context, NS, InProcess(context), options=IndexOptions(task_slots=10))
    asked = [key for name, key in hooked.requests if name == "get" and "/wal/" in key]
    assert len(asked) == len(set(asked)) == script.slot - 1


def test_parts_of_many_namespaces_share_a_run(store: Store) -> None:
    database(store).kv("empty").close()
    for n in range(5):
        with database(store, seed=n).kv(f"n{n}") as kv:
            for i in range(n + 1):
                kv.put(b"%d" % i, b"%d" % n)
    context = database(store, seed=20).context()
    names = [*(f"n{n}" for n in range(5)), "empty"]
    plans: list[IndexPlan] = [
        plan for name in names if (plan := plan_index(context, name, ONE_EACH)) is not None
    ]
    assert [plan.namespace for plan in plans] == names[:-1]
    runner = Meddling(context, lambda n: None)
    outcomes: list[list[Outcome[FoldedPart]]] = run_parts(plans, runner)
    assert runner.runs == 1
    results = [finish_index(context, p, o, runner) for p, o in zip(plans, outcomes, strict=True)]
    assert [result.rows for result in results] == [1, 2, 3, 4, 5]
    assert runner.runs == 1
    for n in range(5):
        assert len(contents(store, f"n{n}")) == n + 1
