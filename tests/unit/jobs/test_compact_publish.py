"""What a compaction's tasks write, what of it is published, and what is not."""

from __future__ import annotations

from typing import Any

import pytest

from reef.compaction import MergedRange, merge_range
from reef.doctor import verify
from reef.errors import StalePlanError, UnavailableError
from reef.format import segment_key
from reef.jobs import CompactionOptions, InProcess, end_job, standing_intents
from reef.jobs._compaction._compact_pass import begin_compaction
from reef.manifest import add_snapshot, renew_snapshot
from reef.segment import BlockCache
from tests.support.engine.collecting import NAMESPACE
from tests.support.jobs.passes import Meddling, compact
from tests.support.jobs.shop import MIB, SMALL, Shop

# What is written.


def test_the_bottom_alone_is_zstd_where_that_is_asked_for(shop: Shop) -> None:
    shop.base(0, 400)
    shop.run(0, 20, times=4)
    shop.compact(CompactionOptions(target_size_bytes=MIB, bottom_codec="zstd"))
    assert {footer.codec for footer in shop.footers("compact")} == {"lz4"}
    shop.compact(CompactionOptions(full=True, bottom_codec="zstd"))
    assert {footer.codec for footer in shop.footers("compact")} == {"zstd"}


def test_the_bottom_is_lz4_by_default(shop: Shop) -> None:
    shop.run(0, 200, times=2)
    shop.compact(CompactionOptions(full=True))
    assert [footer.codec for footer in shop.footers()] == ["lz4"]


def test_a_task_leaves_the_caches_of_its_process_alone(shop: Shop) -> None:
    shop.run(0, 200, times=4)
    context = shop.context
    compact(context, NAMESPACE, InProcess(context), options=SMALL)
    assert isinstance(context.cache, BlockCache)
    assert len(context.cache) == 0


def test_a_task_that_runs_twice_uses_another_name(shop: Shop) -> None:
    shop.run(0, 50, times=4)
    plan = shop.planned()
    (task,) = begin_compaction(shop.context, plan).tasks(plan.groups[0])
    context = shop.context
    one, two = merge_range(context, task), merge_range(context, task)
    assert one.segment is not None
    assert two.segment is not None
    assert one.segment.id != two.segment.id
    assert one.segment.id.endswith(task.job)
    assert (one.rows_in, one.rows_out) == (200, 50)
    assert 0 < one.bytes_in <= sum(ref.size for ref in task.inputs)
    assert one.bytes_out == one.segment.size


# What is published, and what is not.


def test_groups_are_published_as_they_complete(shop: Shop) -> None:
    for low in (0, 1000, 2000):
        shop.run(low, low + 40, times=4)
    options = CompactionOptions(target_size_bytes=100, concurrency=1)
    plan = shop.planned(options)
    assert len(plan.groups) == 3
    before = shop.contents()
    # The store gives up on the last group: the others are done.
    damaged = segment_key(NAMESPACE, plan.groups[2].inputs[0].id)

    def refuse(operation: str, key: str) -> None:
        if key == damaged:
            raise UnavailableError("the store is tired")

    shop.store.before = refuse  # type: ignore[assignment]
    result = shop.compact(plan=plan)
    shop.store.before = lambda operation, key: None
    assert [group.state for group in result.groups] == ["published", "published", "failed"]
    assert "tired" in result.failed[0].error
    assert shop.contents() == before
    shop.check()
    # What it had written of the third is an orphan; the next pass does the rest.
    again = shop.compact(options)
    assert [group.inputs for group in again.published] == [
        tuple(ref.id for ref in plan.groups[2].inputs)
    ]
    assert shop.contents() == before
    shop.check()


def test_a_point_that_the_tasks_did_not_know_makes_it_plan_anew(shop: Shop) -> None:
    """One that had expired when the job began is renewed before it publishes."""
    lsns = [shop.run(0, 10, mark=mark) for mark in (b"1", b"2", b"3", b"4")]
    context = shop.context

    def renew(run: int) -> None:  # between the tasks and the publish
        if run == 1:
            shop.publish(lambda m: renew_snapshot(m, "new", expires_at_us=0))

    shop.publish(lambda m: add_snapshot(m, id="old", lsn=lsns[0], expires_at_us=0))
    plan = shop.planned()
    shop.publish(lambda m: add_snapshot(m, id="new", lsn=lsns[1], expires_at_us=1))
    result = compact(context, NAMESPACE, Meddling(context, renew), plan=plan)
    assert [group.state for group in result.groups] == ["stale", "published"]
    assert "is retained" in result.groups[0].error
    assert len(result.jobs) == 2
    for name, mark in (("old", b"1"), ("new", b"2")):
        assert shop.kv("r").at(snapshot=name).get(b"key-00001") == mark + b"value-00001" * 3
    shop.check()


def test_inputs_that_are_gone_make_it_plan_anew(shop: Shop) -> None:
    for _ in range(4):
        shop.run(0, 50)
    plan = shop.planned()
    shop.compact()
    for _ in range(4):
        shop.run(0, 50)
    before = shop.contents()
    result = shop.compact(plan=plan)
    assert [group.state for group in result.groups] == ["stale", "published"]
    assert "not live" in result.groups[0].error
    assert shop.contents() == before
    shop.check()


def test_a_second_compactor_stops_the_first_which_says_so(shop: Shop) -> None:
    for _ in range(4):
        shop.run(0, 50)
    context = shop.context
    plan = shop.planned()

    class Rival(InProcess):
        def run(self, *arguments: Any, **how: Any) -> Any:
            outcomes = super().run(*arguments, **how)
            shop.compact()
            return outcomes

    with pytest.raises(StalePlanError, match="compactor of epoch 2"):
        compact(context, NAMESPACE, Rival(context), plan=plan)
    assert len(shop.segments) == 1
    shop.check()  # the first has ended its own intent


def test_a_compaction_that_was_ended_is_not_begun_again(shop: Shop) -> None:
    for _ in range(4):
        shop.run(0, 50)
    context = shop.context

    class Ending(InProcess):
        def run(self, *arguments: Any, **how: Any) -> Any:
            for intent in standing_intents(context, NAMESPACE):
                end_job(context, NAMESPACE, intent.id)
            return super().run(*arguments, **how)

    before = shop.segments
    with pytest.raises(StalePlanError, match="was ended"):
        compact(context, NAMESPACE, Ending(context))
    assert shop.segments == before
    shop.check()


def test_two_that_begin_at_once_one_wins(shop: Shop) -> None:
    for _ in range(4):
        shop.run(0, 50)
    plan = shop.planned()
    (group,) = plan.groups
    one, two = begin_compaction(shop.context, plan), begin_compaction(shop.context, plan)
    runner = InProcess(shop.context)
    made = [runner.run(merge_range, c.tasks(group), MergedRange, name="t") for c in (one, two)]
    with pytest.raises(StalePlanError):
        one.finish_group(group, made[0])
    assert two.finish_group(group, made[1], is_last=True).state == "published"
    with pytest.raises(StalePlanError, match="was ended"):
        two.finish_group(group, made[1])
    one.end()
    shop.check()


def test_a_move_alone_is_stopped_too(shop: Shop) -> None:
    for low in range(0, 400, 100):
        shop.run(low, low + 40)
    options = CompactionOptions(target_size_bytes=min(ref.size for ref in shop.segments))
    plan = shop.planned(options)
    (group,) = plan.groups
    assert not group.inputs
    one = begin_compaction(shop.context, plan)
    begin_compaction(shop.context, plan)
    with pytest.raises(StalePlanError):
        one.finish_group(group, [])


@pytest.mark.parametrize("stop", ["begun", "written"])
def test_a_crash_leaves_orphans_and_an_intent(shop: Shop, stop: str) -> None:
    for _ in range(4):
        shop.run(0, 50)
    before, live = shop.contents(), shop.segments
    plan = shop.planned()
    compaction = begin_compaction(shop.context, plan)
    if stop == "written":
        shop.merged(compaction, plan.groups[0])
    assert shop.segments == live
    assert shop.contents() == before
    report = verify(shop.context, NAMESPACE, deep=True)
    assert report.problems == ()
    assert len(report.orphans) == (1 if stop == "written" else 0)
    assert [intent.id for intent in shop.manifest.intents] == [compaction.job.id]
    # Spared as long as the intent stands, whatever its age; another compactor takes no notice.
    shop.age()
    shop.collect()
    assert len(verify(shop.context, NAMESPACE).orphans) == len(report.orphans)
    assert shop.compact().published
    assert shop.contents() == before
