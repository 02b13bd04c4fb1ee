"""Groups of one component: each is published for itself, and a pass does no more than was asked."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from reef.compaction import CompactionGroup, MergedRange, merge_range
from reef.doctor import verify
from reef.errors import InvariantError, StalePlanError
from reef.jobs import CompactionOptions, InProcess, TaskOutcome
from reef.jobs._compaction._compact_pass import Compaction, begin_compaction
from reef.manifest import replace_segments
from tests.support.engine.collecting import NAMESPACE
from tests.support.jobs.passes import Meddling, compact
from tests.support.jobs.shop import MIB, Shop


def sliced(shop: Shop, **more: Any) -> CompactionOptions:
    """Return options by which runs of 300 rows are merged in four groups or more."""
    for mark in (b"1", b"2", b"3", b"4"):
        shop.run(0, 300, mark=mark)
    return CompactionOptions(
        target_size_bytes=3000,
        group_size_bytes=6000,
        concurrency=1,
        **more,
    )


def merged(shop: Shop, compaction: Compaction, group: CompactionGroup) -> list[TaskOutcome]:
    """Run the tasks of a group, and publish nothing."""
    tasks = compaction.tasks(group)
    return InProcess(shop.context).run(merge_range, tasks, MergedRange, name="t")


def test_a_large_component_is_published_group_by_group(shop: Shop) -> None:
    options = sliced(shop)
    inputs = shop.segments
    before = shop.contents()
    plan = shop.planned(options)
    assert len(plan.groups) >= 4
    assert all(a.keys[1] == b.keys[0] for a, b in pairwise(plan.groups))
    assert all(len(group.inputs) == 4 for group in plan.groups)
    seen = []

    def look(run: int) -> None:
        assert shop.contents() == before
        assert verify(shop.context, NAMESPACE).problems == ()
        seen.append({(ref.id, ref.clip_key_min) for ref in shop.segments if ref.level == 0})

    context = shop.context
    result = compact(context, NAMESPACE, Meddling(context, before=look), options=options)
    assert seen == [
        {(ref.id, None if not at else group.keys[0]) for ref in inputs}
        for at, group in enumerate(plan.groups)
    ]
    *some, last = result.published
    assert {group.inputs for group in some} == {()}
    assert all({*group.clipped} == {ref.id for ref in inputs} for group in some)
    assert (set(last.inputs), last.clipped) == ({ref.id for ref in inputs}, ())
    assert (result.rows_in, result.rows_out) == (1200, 300)
    assert {ref.level for ref in shop.segments} == {1}
    assert shop.contents() == before
    shop.check()


def test_groups_of_one_component_are_published_in_any_order(shop: Shop) -> None:
    options = sliced(shop)
    before = shop.contents()
    plan = shop.planned(options)
    compaction = begin_compaction(shop.context, plan)
    groups = [*plan.groups[1::2], *plan.groups[::2]]
    for group in groups:
        made = merged(shop, compaction, group)
        is_last = group is groups[-1]
        assert compaction.finish_group(group, made, is_last=is_last).state == "published"
        assert shop.contents() == before
        assert verify(shop.context, NAMESPACE, deep=True).problems == ()
        if not is_last:  # nothing is published twice
            again = compaction.finish_group(group, merged(shop, compaction, group))
            assert again.state == "stale"
    assert {ref.level for ref in shop.segments} == {1}
    shop.check()


def test_what_was_published_stays_and_the_next_pass_goes_on_from_there(shop: Shop) -> None:
    options = sliced(shop)
    before = shop.contents()
    plan = shop.planned(options)

    class Killed(Exception):
        pass

    def die(run: int) -> None:
        if run == 3:
            raise Killed

    context = shop.context
    with pytest.raises(Killed):
        compact(context, NAMESPACE, Meddling(context, before=die), options=options)
    done = {ref.id for ref in shop.segments if ref.level == 1}
    at = plan.groups[2].keys[0]
    assert {ref.clip_key_min for ref in shop.segments if ref.level == 0} == {at}
    assert shop.contents() == before
    shop.run(1000, 1010)  # a fresh run is no reason to begin anew
    before = shop.contents()
    rest = shop.planned(options)
    assert rest.groups[0].keys[0] == at
    assert not done & {ref.id for group in rest.groups for ref in group.inputs}
    assert rest.bytes_in < plan.bytes_in * 0.8
    shop.compact(options)
    assert done < {ref.id for ref in shop.segments}
    assert shop.contents() == before


def test_outputs_beyond_what_was_compacted_are_refused(shop: Shop) -> None:
    """They would hide what is left of the inputs."""
    options = sliced(shop)
    plan = shop.planned(options)
    one, two = plan.groups[:2]
    compaction = begin_compaction(shop.context, plan)
    output = merged(shop, compaction, two)[0].returned().segment
    assert output is not None
    how: dict[str, Any] = {
        "compactor_epoch": compaction.job.compactor_epoch,
        "intent": compaction.job.id,
        "outputs": [output],
        "known_points": compaction.points,
    }
    with pytest.raises(InvariantError, match="beyond those that were compacted"):
        replace_segments(shop.manifest, inputs=one.inputs, within=one.keys, **how)
    with pytest.raises(StalePlanError, match="not live"):
        hidden = [msgspec.structs.replace(ref, clip_key_min=b"x") for ref in shop.segments]
        m = msgspec.structs.replace(shop.manifest, segments=tuple(hidden))
        replace_segments(m, inputs=two.inputs, within=two.keys, **how)


def test_a_tombstone_goes_with_its_group_and_nothing_comes_back(shop: Shop) -> None:
    shop.run(0, 300, times=3)
    odd = {b"key-%05d" % i: b"odd-%05d" % i * 9 for i in range(1, 300, 2)}
    shop.flush(odd, [b"key-%05d" % i for i in range(0, 300, 2)])
    options = CompactionOptions(
        target_size_bytes=3000,
        group_size_bytes=1,
        concurrency=1,
        max_bytes=9000,
    )
    before = shop.contents()
    assert len(before) == 150
    passes = 0
    while shop.plan(options) is not None:
        shop.compact(options)
        passes += 1
        shop.age()
        shop.collect()
        assert shop.contents() == before
    shop.check()
    assert passes > 2
    assert (shop.tombstones(), sum(ref.rows for ref in shop.segments)) == (0, 150)


def test_a_task_names_only_what_has_keys_in_its_range(shop: Shop) -> None:
    for low in range(0, 400, 40):
        shop.run(low, low + 80)  # each overlaps its neighbours only
    options = CompactionOptions(target_size_bytes=2000, group_size_bytes=6000, min_input_files=2)
    plan = shop.planned(options)
    assert len(plan.groups) > 2
    assert all(len(group.inputs) < 8 for group in plan.groups)
    compaction = begin_compaction(shop.context, plan)
    tasks = [task for group in plan.groups for task in compaction.tasks(group)]
    assert len(tasks) > 6
    for task in tasks:
        assert task.replaced == tuple(ref.id for ref in task.inputs)
        assert {ref.id for ref in task.inputs} == {
            ref.id for ref in shop.segments if ref.key_min < task.end and ref.key_max >= task.start
        }
    compaction.end()
    before = shop.contents()
    shop.compact(options)
    assert shop.contents() == before
    shop.check()


def test_a_pass_reads_no_more_than_asked(shop: Shop) -> None:
    for low in (0, 1000):
        shop.run(low, low + 200, times=4)
    options = CompactionOptions(target_size_bytes=2000)
    whole = shop.planned(options).bytes_in
    options = msgspec.structs.replace(options, max_bytes=whole // 3)
    before = shop.contents()
    plans = []
    while (plan := shop.plan(options)) is not None:
        assert plan.groups
        assert plan.bytes_in <= whole // 3
        result = shop.compact(options)
        assert result.skipped == plan.skipped
        assert result.bytes_in <= whole // 2  # a block at each end of each range is read twice
        assert shop.contents() == before
        shop.check()
        plans.append(plan)
    assert 3 <= len(plans) <= 5
    assert all("max_bytes" in skipped for plan in plans[:-1] for skipped in plan.skipped)
    assert all(plan.skipped for plan in plans[:-1])
    assert plans[-1].skipped == ()
    assert sum(ref.rows for ref in shop.segments) == 400
    assert shop.compact(CompactionOptions(max_bytes=1, full=True)).groups == ()


def test_a_full_compaction_in_portions_comes_to_its_end(shop: Shop) -> None:
    options = sliced(shop, full=True, max_bytes=12_000)
    before = shop.contents()
    for _ in range(6):
        shop.compact(options)
        assert shop.contents() == before
        shop.check()
        if sum(ref.rows for ref in shop.segments) == 300:
            break
    else:
        raise AssertionError("it goes round in circles")


def test_what_is_smaller_than_a_target_file_is_cut_to_fit_a_pass(shop: Shop) -> None:
    shop.run(0, 300, times=4)
    size = shop.planned().bytes_in
    before = shop.contents()
    result = shop.compact(CompactionOptions(max_bytes=size // 4))
    assert result.published
    assert result.skipped
    assert any(ref.clip_key_min for ref in shop.segments)
    assert shop.contents() == before
    shop.check()


def test_more_runs_than_a_task_may_merge_take_several_passes(shop: Shop) -> None:
    shop.run(0, 30, times=9)
    options = CompactionOptions(full=True, memory_bytes=(64 + 3 * 18) * MIB)
    plan = shop.planned(options)
    assert plan.is_partial
    assert [len(group.inputs) for group in plan.groups] == [3, 3, 3]
    shop.compact(options)
    assert [ref.rows for ref in shop.segments] == [30]
    shop.check()
