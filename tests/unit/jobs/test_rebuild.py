"""rebuild: derived state made anew, equal at every version that can be read, or refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reef.doctor import repair, verify
from reef.errors import (
    CorruptError,
    IncompleteError,
    NotFoundError,
    StalePlanError,
    UnavailableError,
)
from reef.format import log_key, segment_key
from reef.jobs import CompactionOptions, IndexOptions, InProcess, RebuildOptions
from reef.manifest import end_intent
from reef.store import open_store
from tests.support.doctor.damaged_buckets import NAMESPACE, Bucket, flip
from tests.support.engine.log_script import NS, LogScript, copied, folded_rows, versions
from tests.support.jobs.compactor import Compactor
from tests.support.jobs.passes import compact, index, rebuild
from tests.support.jobs.rebuilding import CUT, RebuildWorld, fresh_context


@pytest.fixture
def world() -> Iterator[RebuildWorld]:
    world = RebuildWorld()
    yield world
    world.kv.close()


# From the whole log.


@pytest.mark.parametrize("options", [None, CUT])
def test_all_of_it_from_the_log(world: RebuildWorld, options: RebuildOptions | None) -> None:
    world.flush(3)
    world.write(2)
    before = world.manifest
    result = world.check_rebuild(options)
    assert (result.slot_first, result.slot_last) == (1, before.wal_floor - 1)
    assert result.kept == ()
    assert result.replaced == before.segments
    assert result.window == "anew"
    assert all(ref.id.endswith(result.job_id or "?") for ref in result.segments)
    assert result.rows == sum(ref.rows for ref in before.segments)
    assert result.tasks
    assert world.manifest.gc.boundary == before.gc.boundary
    world.flush()
    world.check_reads()
    world.check_rebuild(options)


def test_the_rows_are_those_of_the_segments_before() -> None:
    with open_store("memory://") as store:
        script = LogScript(store)
        for i in range(6):
            script.data({b"a": b"%d" % i, b"b%d" % i: b"x"}, key=b"r%d" % i, sequence=10 * i + 1)
        script.void({b"a": b"never"})
        script.schema()
        script.data({b"c": b"1"}, extra=7)
        script.damaged()
        script.fence()
        script.late({b"a": b"never"})
        script.data({b"a": None})
        context = fresh_context(store)
        index(context, NS, InProcess(context))
        before, rows = versions(store, script.lsns), folded_rows(store)
        for options in (None, CUT):
            result = rebuild(fresh_context(store), NS, InProcess(context), options=options)
            assert result.generation is not None
            assert versions(store, script.lsns) == before
            assert folded_rows(store) == rows
            assert verify(context, NS, deep=True).problems == ()


def test_segments_and_the_window_that_are_lost_come_back(world: RebuildWorld) -> None:
    world.flush(3)
    world.compact(floor=sorted(world.model)[4])
    world.flush()
    reads = world.reads()
    segments = [segment_key(NS, ref.id) for ref in world.manifest.segments]
    world.lose(*world.keys("segments"), *world.keys("dedup"))
    result = world.rebuild(CUT)
    assert result.window == "anew"
    assert world.reads() == reads
    world.check_reads()
    assert not {*segments} & {*world.keys("segments")}
    old = {f.key for f in verify(world.db().context(), NS, deep=True).problems}
    live = {segment_key(NS, ref.id) for ref in world.manifest.segments}
    assert not old & live
    world.check_requests()


def test_what_compaction_dropped_is_not_seen_again(world: RebuildWorld) -> None:
    world.flush(2)
    with world.db().kv(NS, mode="r") as kv:
        kv.snapshot(id="kept")
    world.flush(2)
    gone = list(world.model[max(world.model)])[:5]
    lsn = world.kv.write({}, gone).lsn
    newest = world.model[max(world.model)]
    world.model[lsn] = {k: v for k, v in newest.items() if k not in gone}
    world.flush()
    world.compact(floor=max(lsn for lsn in world.model if lsn <= world.manifest.last_applied_lsn))
    world.check_reads()
    result = world.check_rebuild()
    assert result.slot_first == 1
    assert result.rows > sum(ref.rows for ref in result.replaced)


@pytest.mark.parametrize("seed", range(4))
def test_segments_of_which_only_a_part_is_left(seed: int) -> None:
    world = RebuildWorld(seed)
    world.flush(4)
    options = CompactionOptions(min_input_files=2, target_size_bytes=2000, max_bytes=3000)
    context = world.db().context()
    compact(context, NS, InProcess(context), options=options)
    before = world.manifest
    assert any(ref.clip_key_min is not None for ref in before.segments)
    result = world.check_rebuild()
    assert result.generation is not None
    assert result.slot_first == 1
    waiting = [pending.key for pending in world.manifest.gc.pending]
    assert len({*waiting}) == len(waiting)
    assert {segment_key(NS, ref.id) for ref in before.segments} <= {*waiting}
    # Where the log below is gone, they stay, and are looked at once each.
    compact(context, NS, InProcess(context), options=options)
    world.collect()
    world.lose(*world.keys("wal")[: world.manifest.gc.boundary.slot - 1])
    world.check_rebuild()
    world.kv.close()


def test_what_a_dropped_namespace_of_the_same_name_had_is_not_looked_at(
    world: RebuildWorld,
) -> None:
    world.flush(2)
    world.write()
    world.kv.close()
    world.db().drop(NS)
    world.model = {0: {}}
    world.requests = {}
    world.kv = world.db().kv(NS)
    first = world.manifest.wal_floor
    world.flush(2)
    result = world.check_rebuild()
    assert result.slot_first == first
    assert len(result.passed_by) == 1  # no place of the old log was tried
    world.kv.close()


# Where the log was collected.


def test_segments_stay_for_what_the_log_has_not(world: RebuildWorld) -> None:
    world.flush(3)
    world.compact()
    world.collect()
    bottom = world.manifest.segments
    assert world.manifest.gc.boundary.slot > 1
    world.settings["retained_generations"] = 50
    world.flush(3)
    assert len(world.manifest.segments) == len(bottom) + 3
    result = world.check_rebuild()
    assert {*result.kept} == {*bottom}
    assert len(result.replaced) == 3
    assert result.slot_first == world.manifest.gc.boundary.slot
    assert "collected" in result.passed_by[0]
    # Once all is merged, there is nothing that the log alone has.
    world.compact()
    generation = world.manifest.generation
    result = world.check_rebuild()
    assert result.generation is None
    assert result.kept == world.manifest.segments
    assert any("from before and from after" in why for why in result.passed_by)
    assert world.manifest.generation == generation + 2  # check_rebuild opens a writer and closes it


def test_it_refuses_where_something_is_missing(world: RebuildWorld) -> None:
    world.flush(3)
    world.compact()
    world.collect()
    world.settings["retained_generations"] = 50
    world.flush(2)
    first, second = world.manifest.segments[-2:]
    world.lose(segment_key(NS, first.id))
    data = bytearray(world.store.get(segment_key(NS, second.id)))
    data[40] ^= 255
    world.lose(segment_key(NS, second.id))
    world.store.inner.put_if_absent(segment_key(NS, second.id), bytes(data))
    before = world.manifest
    with pytest.raises(CorruptError, match="nothing was published") as raised:
        world.rebuild(CUT)
    assert first.id in str(raised.value)
    assert second.id in str(raised.value)
    after = world.manifest
    assert (after.segments, after.dedup, after.intents) == (before.segments, before.dedup, ())


def test_it_refuses_where_the_window_is_nowhere(world: RebuildWorld) -> None:
    world.flush(2)
    world.compact()
    world.collect()
    world.lose(*world.keys("dedup"))
    with pytest.raises(IncompleteError, match="dedup window"):
        world.rebuild()


# Damage of the log.


def test_what_repair_gave_up_after_it_was_folded_is_not_lost(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path / "b", row_block_bytes=500)
    bucket.write("flush", "flush", "flush", "leave")
    flip(bucket.slot(bucket.commits[1].slot))
    assert repair(bucket.context(), NAMESPACE, apply=True).is_mended
    assert [skip.slot for skip in bucket.manifest.skipped_slots] == [bucket.commits[1].slot]
    before = bucket.manifest
    context = bucket.context()
    result = rebuild(context, NAMESPACE, InProcess(context), options=CUT)
    assert result.generation is not None
    assert result.slot_first > bucket.commits[1].slot
    assert len(result.kept) == 1
    assert len(result.replaced) == len(before.segments) - 1
    assert any("damaged" in why or "corrupt" in why for why in result.passed_by)
    assert bucket.read() == bucket.rows()
    assert bucket.read_as_writer() == bucket.rows()
    assert verify(bucket.context(), NAMESPACE, deep=True).problems == ()


def test_a_damaged_log_that_was_folded_is_no_reason_to_lose_rows(world: RebuildWorld) -> None:
    world.flush(3)
    key = log_key(NS, world.manifest.wal_floor - 1)
    data = bytearray(world.store.get(key))
    data[len(data) // 2] ^= 1
    world.lose(key)
    world.store.inner.put_if_absent(key, bytes(data))
    reads = world.reads()
    result = world.rebuild(CUT)
    assert result.generation is None
    assert result.passed_by
    assert world.reads() == reads


def test_the_head_is_needed_and_repair_brings_it_back(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path / "b", row_block_bytes=500)
    bucket.write("flush", "flush", "leave")
    flip(bucket.files("manifest")[-1])
    context = bucket.context()
    with pytest.raises(CorruptError, match="reef repair"):
        rebuild(context, NAMESPACE, InProcess(context))
    assert repair(bucket.context(), NAMESPACE, apply=True).is_mended
    result = rebuild(context, NAMESPACE, InProcess(context), options=CUT)
    assert result.generation is not None
    assert result.slot_first == 1
    assert bucket.read() == bucket.rows()
    assert bucket.read_as_writer() == bucket.rows()
    for path in bucket.files("manifest"):
        flip(path)
    with pytest.raises(CorruptError, match="nowhere else"):
        rebuild(context, NAMESPACE, InProcess(context))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("lost", [1, 3])
def test_behind_lost_generations_it_goes_on_from_the_last_that_can_be_read(
    seed: int, lost: int
) -> None:
    """With folds, compactions and collections among what the lost ones said: nothing comes back."""
    world, rng = RebuildWorld(seed), random.Random(seed)
    world.flush(2)
    for action in rng.choices(["flush", "write", "fold", "compact", "gc"], k=10):
        if action == "flush":
            world.flush(writes=rng.randrange(1, 4))
        elif action == "write":
            world.write(rng.randrange(1, 4))
        elif action == "fold":
            world.fold()
        elif action == "compact":
            world.compact(floor=rng.choice([None, world.manifest.last_applied_lsn]))
        else:
            world.settings["retained_generations"] = rng.choice([3, 50])
            world.collect()
    world.flush(lost)
    for key in world.keys("manifest")[-lost:]:
        data = bytearray(world.store.get(key))
        data[len(data) // 2] ^= 255
        world.lose(key)
        world.store.inner.put_if_absent(key, bytes(data))
    with pytest.raises(CorruptError, match="reef repair"):
        world.rebuild(CUT)
    assert repair(world.db().context(), NS, apply=True).is_mended
    reads = world.reads()
    newest = max(world.model)
    assert reads[newest] == world.model[newest]
    for lsn, rows in reads.items():
        assert rows in (None, world.model[int(lsn)])
    world.kv = world.db().kv(NS)
    world.rebuild(CUT)
    assert world.reads() == reads
    assert verify(world.db().context(), NS, deep=True).problems == ()
    world.check_requests()
    world.kv.close()


# What others left, and what the log attaches.


def test_what_unpublished_jobs_left_does_not_come_in(world: RebuildWorld) -> None:
    world.flush(2)
    compactor = Compactor(world.db().context(), NS)
    plan = compactor.plan(floor_lsn=0)
    outputs = compactor.write(plan, cuts=2)
    compactor.give_up(plan)
    world.flush()
    result = world.check_rebuild()
    assert result.generation is not None
    named = {ref.id for ref in world.manifest.segments}
    assert not named & {ref.id for ref in outputs}
    assert {segment_key(NS, ref.id) for ref in outputs} <= {*world.keys("segments")}


def test_attached_segments_stay_or_are_copied() -> None:
    with open_store("memory://") as store:
        script = LogScript(store)
        script.data({b"a": b"1", b"b": b"1"})
        first = script.attach({b"b": b"2", b"c": b"2"})
        script.data({b"a": b"3"})
        context = fresh_context(store)
        index(context, NS, InProcess(context))
        before = versions(store, script.lsns)
        result = rebuild(context, NS, InProcess(context), options=CUT)
        assert result.kept == (first,)
        assert versions(store, script.lsns) == before
        Compactor(fresh_context(store), NS).run(floor_lsn=0)
        script.data({b"d": b"4"})
        index(context, NS, InProcess(context))
        before = versions(store, script.lsns)
        other = copied(store)
        result = rebuild(fresh_context(store), NS, InProcess(context), options=CUT)
        assert result.copied == (first.id,)
        assert first.id not in {ref.id for ref in result.segments}
        assert versions(store, script.lsns) == before
        assert verify(context, NS, deep=True).problems == ()
        # If it is gone for good, the log alone does not do: what was merged stays.
        other.delete(segment_key(NS, first.id))
        context = fresh_context(other)
        result = rebuild(context, NS, InProcess(context), options=CUT)
        assert result.slot_first > 1
        assert first.id in result.passed_by[0]
        assert versions(other, script.lsns) == before


# Others at the same time, and crashes.


def test_a_flush_meanwhile_means_another_plan(world: RebuildWorld) -> None:
    world.flush(2)
    world.write(2)
    flushed: list[int] = []

    class Meanwhile(InProcess):
        def run(self, task: Any, descriptors: Any, result: Any, **named: Any) -> Any:
            found = super().run(task, descriptors, result, **named)
            if not flushed:
                flushed.append(1)
                world.kv.flush()
            return found

    context = world.db().context()
    result = rebuild(context, NS, Meanwhile(context), options=CUT)
    assert result.plans == 2
    assert result.slot_last == world.manifest.wal_floor - 1
    assert not world.manifest.intents
    world.check_reads()


def test_a_compaction_meanwhile_means_another_plan(world: RebuildWorld) -> None:
    world.flush(3)
    compacted: list[int] = []

    class Meanwhile(InProcess):
        def run(self, task: Any, descriptors: Any, result: Any, **named: Any) -> Any:
            if not compacted:
                compacted.append(1)
                world.compact()
                world.collect()
            return super().run(task, descriptors, result, **named)

    context = world.db().context()
    result = rebuild(context, NS, Meanwhile(context), options=CUT)
    assert result.plans == 2
    world.check_reads()
    assert verify(world.db().context(), NS, deep=True).problems == ()


def test_rebuild_gives_up_if_the_namespace_keeps_changing(world: RebuildWorld) -> None:
    class Always(InProcess):
        def run(self, task: Any, descriptors: Any, result: Any, **named: Any) -> Any:
            world.flush()
            return super().run(task, descriptors, result, **named)

    context = world.db().context()
    world.flush()
    options = RebuildOptions(fold=IndexOptions(plans_max=2))
    with pytest.raises(UnavailableError, match="2 times"):
        rebuild(context, NS, Always(context), options=options)
    assert not world.manifest.intents
    world.check_reads()


def test_a_job_that_was_ended_publishes_nothing(world: RebuildWorld) -> None:
    world.flush(2)
    before = world.manifest.segments

    class Ending(InProcess):
        def run(self, task: Any, descriptors: Any, result: Any, **named: Any) -> Any:
            chain = world.db().context().chain(NS)
            head = chain.load()
            assert head is not None
            for intent in head.manifest.intents:
                chain.publish(lambda head: end_intent(head.manifest, intent.id))  # type: ignore[union-attr]  # noqa: B023
            return super().run(task, descriptors, result, **named)

    context = world.db().context()
    with pytest.raises(StalePlanError):
        rebuild(context, NS, Ending(context))
    assert world.manifest.segments == before


def test_a_killed_driver_leaves_an_intent_and_orphans_only(world: RebuildWorld) -> None:
    class Killed(BaseException):
        pass

    world.flush(3)
    reads = world.reads()
    segments = world.manifest.segments

    def kill() -> None:
        def dead(operation: str, key: str) -> None:
            raise Killed

        world.store.before = dead
        raise Killed

    for part in ("segments/", "dedup/", "manifest/"):
        world.store.once("upload" if part != "manifest/" else "put_if_absent", part, kill)
        context = world.db().context()
        with pytest.raises(Killed):
            rebuild(context, NS, InProcess(context), options=CUT)
        world.store.before = lambda operation, key: None
        assert world.reads() == reads
        assert world.manifest.segments == segments
    assert world.manifest.intents
    result = world.rebuild(CUT)
    assert result.generation is not None
    world.check_reads()


def test_there_is_no_such_namespace(world: RebuildWorld) -> None:
    context = world.db().context()
    with pytest.raises(NotFoundError, match="'other'"):
        rebuild(context, "other", InProcess(context))


# Any history.


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_any_history_reads_the_same(seed: int) -> None:
    world = RebuildWorld(seed)
    rng = random.Random(seed)
    published = 0
    for step in range(14):
        action = rng.choice(["flush", "flush", "write", "fold", "compact", "gc", "snap", "rebuild"])
        if action == "flush":
            world.flush(writes=rng.randrange(1, 4))
        elif action == "write":
            world.write(rng.randrange(1, 4))
        elif action == "fold":
            world.fold()
        elif action == "compact":
            floor = rng.choice([None, world.manifest.last_applied_lsn])
            world.compact(floor=floor, newest=rng.choice([None, 2]))
        elif action == "gc":
            world.settings["retained_generations"] = rng.choice([1, 1, 50])
            world.collect()
        elif action == "snap":
            with world.db().kv(NS, mode="r") as kv:
                kv.snapshot(id=f"s{step}")
        else:
            published += world.check_rebuild(rng.choice([None, CUT])).generation is not None
        world.check_reads()
    published += world.check_rebuild().generation is not None
    if published and not world.manifest.gc.boundary.slot > 1:
        world.lose(*(segment_key(NS, ref.id) for ref in world.manifest.segments))
        assert world.rebuild().generation is not None
        world.check_reads()
    world.kv.close()
