"""index beside writers, flushes, repair and other jobs, with deaths and faults: once, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from reef.errors import OutcomeUnknownError, StalePlanError, UnavailableError
from reef.format import SkippedSlot, damaged_checksum, log_key
from reef.gc import collect
from reef.jobs import IndexOptions, InProcess
from reef.jobs._fold._index_pass import fold_namespace
from reef.manifest import end_intent
from reef.store import Store
from reef.testing import Fault, FaultyStore
from tests.support.engine.collecting import HookedStore
from tests.support.engine.damage import flip
from tests.support.engine.log_script import NS, LogScript, give_up, versions
from tests.support.engine.open_database import contents, database
from tests.support.jobs.indexing import ONE_EACH, head, keys, run, strange
from tests.support.jobs.passes import Meddling, Stepped, index

# Beside others.


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
        job = Stepped(fold_namespace(context, NS, ONE_EACH))
        kv.flush()
        kv.put(b"more", b"v")
        for part in job.tasks[1:4]:
            store.delete(log_key(NS, part.slot_first))  # as collection would, in time
        outcomes = job.run(InProcess(context))
        result = job.finish(outcomes, InProcess(context))
        assert result.plans == 2
        assert result.rows == 1
        assert len(contents(store)) == 7


def test_repair_that_gives_up_a_slot_meanwhile_refuses_the_plan(store: Store) -> None:
    script = LogScript(store)
    script.data({b"a": b"1"})
    script.data({b"a": b"2"})
    context = database(store, seed=3).context()
    job = Stepped(fold_namespace(context, NS, IndexOptions()))
    outcomes = job.run(InProcess(context))
    # It rots after it was read, and repair gives it up.
    key = log_key(NS, script.slot - 1)
    flip(store, key)
    give_up(context, SkippedSlot(script.slot - 1, damaged_checksum(store.get(key))))
    result = job.finish(outcomes, InProcess(context))
    assert result.plans == 2
    assert result.slot_last == script.slot - 2
    assert contents(store) == {b"a": b"1"}


def test_a_job_that_was_ended_by_somebody_cannot_publish(store: Store) -> None:
    script = LogScript(store)
    script.data({b"a": b"1"})
    context = database(store, seed=3).context()
    job = Stepped(fold_namespace(context, NS, IndexOptions()))
    outcomes = job.run(InProcess(context))
    context.chain(NS).publish(lambda found: end_intent(found.manifest, job.job_id))  # type: ignore[union-attr]
    with pytest.raises(StalePlanError, match=job.job_id):
        job.finish(outcomes, InProcess(context))
    assert not head(store).segments
    assert contents(store) == {b"a": b"1"}


def test_two_jobs_on_one_namespace_fold_it_once(store: Store) -> None:
    script = LogScript(store)
    strange(script)
    before = versions(store, script.lsns)
    first, second = (database(store, seed=n).context() for n in (31, 32))
    both = [Stepped(fold_namespace(context, NS, ONE_EACH)) for context in (first, second)]
    results = []
    for context, job in zip((first, second), both, strict=True):
        outcomes = job.run(InProcess(context))
        results.append(job.finish(outcomes, InProcess(context)))
    assert [result.generation is None for result in results] == [False, True]
    assert versions(store, script.lsns) == before
    assert not head(store).intents


# Deaths and faults.


def test_a_driver_that_dies_before_the_publish_leaves_orphans_and_an_intent(store: Store) -> None:
    script = LogScript(store)
    strange(script)
    before = versions(store, script.lsns)
    context = database(store, seed=3).context()
    job = Stepped(fold_namespace(context, NS, ONE_EACH))
    job.run(InProcess(context))
    # It is gone. Readers, writers and the next job do not mind, and collection spares its segments.
    assert [intent.id for intent in head(store).intents] == [job.job_id]
    assert versions(store, script.lsns) == before
    orphans = set(keys(store, "segments"))
    other = database(store, seed=8).context()
    collect(other.chain(NS), store, settings=other.settings, clock=other.clock, apply=True)
    assert set(keys(store, "segments")) == orphans
    assert run(store, ONE_EACH, seed=4).generation is not None
    assert versions(store, script.lsns) == before
    context.chain(NS).publish(lambda found: end_intent(found.manifest, job.job_id))  # type: ignore[union-attr]
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
    job = Stepped(fold_namespace(context, NS, IndexOptions()))
    outcomes = job.run(InProcess(context))
    faulty.arm(
        Fault("reply_lost", on="put_if_absent", key="*/manifest/*"),
        Fault("error_before", on="get", key="*/manifest/*", times=0),
        Fault("error_before", on="list", key="*/manifest/*", times=0),
    )
    with pytest.raises(OutcomeUnknownError):
        job.finish(outcomes, InProcess(context))
    faulty.disarm()
    assert contents(store) == {b"a": b"1"}
    assert not head(store).intents  # it had been published


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
