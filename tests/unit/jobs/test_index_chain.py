"""index: parts of the log are stitched along the chain, to where the log ends and over what is damaged."""

from __future__ import annotations

import pytest

from reef.errors import CorruptError
from reef.format import decode_segment, log_key, segment_key
from reef.jobs import IndexOptions, InProcess
from reef.jobs._fold._index_pass import fold_namespace
from reef.store import Store
from tests.support.engine.log_script import NS, LogScript, give_up
from tests.support.engine.open_database import contents, database
from tests.support.jobs.indexing import ONE_EACH, check_same_as_before, head, keys, run, strange
from tests.support.jobs.passes import Stepped

# The chain across parts.


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
    job = Stepped(fold_namespace(context, NS, IndexOptions(task_slots=2)))
    outcomes = job.run(InProcess(context))
    wrong = outcomes[-1].result
    assert job.tasks[-1].slot_first == first
    assert wrong is not None
    assert wrong.rows == 1
    assert wrong.voids == 1
    result = job.finish(outcomes, InProcess(context))
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
    script = LogScript(store, parallel=2)
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
    job = Stepped(fold_namespace(context, NS, ONE_EACH))
    store.delete(log_key(NS, script.slot - 2))
    outcomes = job.run(InProcess(context))
    with pytest.raises(CorruptError, match=log_key(NS, script.slot - 2)):
        job.finish(outcomes, InProcess(context))
    assert not head(store).intents
    assert not head(store).segments
