"""Compaction step by step: what is chosen, what is written, what is published, and what is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from reef.database import Database
from reef.engine import Context, verify
from reef.engine._verify_segments import read_tail
from reef.errors import (
    FencedError,
    InvalidInputError,
    InvariantError,
    NotFoundError,
    UnavailableError,
)
from reef.format import Manifest, SegmentRef, segment_key
from reef.format._segment_model import Footer
from reef.manifest import StalePlanError, add_snapshot, renew_snapshot, replace_segments
from reef.pages import WalRecord
from reef.pipeline import InProcess
from reef.pipeline._compact import begin_compaction, compact
from reef.pipeline._compact_options import CompactionOptions
from reef.pipeline._compact_plan import CompactionPlan, plan_compaction, tiers_of
from reef.pipeline._compact_ranges import _cut
from reef.pipeline._compact_result import CompactionResult
from reef.pipeline._compact_task import MergedRange, merge_range
from reef.segment import BlockCache
from reef.store import MemoryStore
from reef.testing import ManualClock
from tests.collecting import NAMESPACE, World

MIB = 1 << 20
SMALL = CompactionOptions(target_file_size_bytes=MIB)


class Shop(World):
    """A namespace with runs of a test's choosing."""

    def __init__(self, **settings: object) -> None:
        super().__init__(row_block_bytes=1000, flush_interval=0, **settings)
        self.writer = self.kv()

    def flush(
        self, rows: Mapping[bytes, bytes] | None = None, deletes: Sequence[bytes] = ()
    ) -> int:
        """Make one level-0 run of some rows; return its LSN."""
        receipt = self.writer.write(dict(rows or {}), list(deletes))
        self.writer.flush()
        return receipt.lsn

    def run(self, low: int, high: int, step: int = 1, mark: bytes = b"") -> int:
        return self.flush(
            {b"key-%05d" % i: mark + b"value-%05d" % i * 3 for i in range(low, high, step)}
        )

    def base(self, low: int, high: int) -> int:
        """Make a run that is much larger than those of `run`: no codec shrinks it."""
        return self.flush({b"key-%05d" % i: self.rng.randbytes(200) for i in range(low, high)})

    @property
    def context(self) -> Context:
        return self.database().context()

    def compact(self, options: CompactionOptions = SMALL, **how: Any) -> CompactionResult:
        context = self.context
        return compact(context, NAMESPACE, InProcess(context), options=options, **how)

    def plan(self, options: CompactionOptions = SMALL) -> CompactionPlan | None:  # type: ignore[override]
        return plan_compaction(self.context, NAMESPACE, options)

    def planned(self, options: CompactionOptions = SMALL) -> CompactionPlan:
        plan = self.plan(options)
        assert plan is not None
        return plan

    @property
    def segments(self) -> tuple[SegmentRef, ...]:
        return self.manifest.segments

    def tombstones(self) -> int:
        return sum(ref.tombstones for ref in self.segments)

    def footers(self, owner: str = "") -> list[Footer]:
        """Return the footers of the live segments."""
        return [
            read_tail(self.inner, segment_key(NAMESPACE, ref.id), ref).footer
            for ref in self.segments
            if owner in ref.id
        ]

    def check(self) -> None:
        """Everything is whole, and nobody's intent stands."""
        assert verify(self.context, NAMESPACE, deep=True).problems == ()
        assert self.manifest.intents == ()


@pytest.fixture
def shop() -> Shop:
    return Shop()


# What is chosen.


def test_nothing_is_planned_where_everything_is_fine(shop: Shop) -> None:
    assert shop.plan() is None
    for _ in range(3):  # fewer than min_input_files
        shop.run(0, 20)
    generation = shop.manifest.generation
    assert shop.plan() is None
    result = shop.compact()
    assert (result.groups, result.jobs, result.floor_lsn) == ((), (), None)
    assert shop.manifest.generation == generation


def test_a_namespace_that_is_not_there_is_said(shop: Shop) -> None:
    with pytest.raises(NotFoundError, match="nobody"):
        plan_compaction(shop.context, "nobody")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target_file_size_bytes", 0),
        ("min_input_files", 1),
        ("max_concurrent_file_group_rewrites", 0),
        ("memory_bytes", 1 << 20),
        ("max_file_group_size_bytes", 0),
        ("max_bytes", 0),
        ("end", b""),
    ],
)
def test_options_that_make_no_sense_are_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidInputError, match=name):
        CompactionOptions(**{name: value})


def test_runs_of_one_size_are_merged_and_those_much_larger_left(shop: Shop) -> None:
    shop.base(0, 400)
    for _ in range(4):
        shop.run(0, 20)
    plan = shop.planned()
    (group,) = plan.groups
    assert sorted(ref.rows for ref in group.inputs) == [20] * 4
    assert group.reason == "4 runs have keys in common"
    assert (group.level, [some.is_bottom for some in group.ranges]) == (1, [False])
    before = shop.contents()
    shop.compact()
    assert sorted(ref.rows for ref in shop.segments) == [20, 400]
    assert shop.contents() == before
    shop.check()


def test_a_plan_can_be_kept_and_applied_later(shop: Shop) -> None:
    for _ in range(4):
        shop.run(0, 100)
    plan = shop.planned()
    kept = msgspec.json.decode(msgspec.json.encode(plan), type=CompactionPlan)
    assert kept == plan
    shop.run(0, 5, mark=b"newer")  # does not concern it
    before = shop.contents()
    result = shop.compact(plan=kept)
    assert [group.state for group in result.groups] == ["published"]
    assert len(tiers_of(shop.manifest)) == 2
    assert shop.contents() == before
    shop.check()


def test_a_large_group_is_cut_into_ranges_of_about_the_target_size(shop: Shop) -> None:
    for _ in range(4):
        shop.run(0, 300)
    options = CompactionOptions(target_file_size_bytes=sum(ref.size for ref in shop.segments) // 6)
    (group,) = shop.planned(options).groups
    assert 5 <= len(group.ranges) <= 7
    sizes = [some.bytes_in for some in group.ranges]
    assert max(sizes) < 2 * min(sizes)
    assert all(a.end == b.start for a, b in zip(group.ranges, group.ranges[1:], strict=False))
    before = shop.contents()
    result = shop.compact(options)
    outputs = [ref for ref in shop.segments if ref.level == 1]
    assert len(outputs) == len(group.ranges)
    assert {ref.lsn_min for ref in outputs} == {max(ref.lsn_max for ref in outputs)}
    assert (result.rows_in, result.rows_out) == (1200, 300)
    assert shop.contents() == before
    shop.check()


def test_every_range_of_a_group_has_a_row() -> None:
    """A clipped reference may show nothing where its segment begins: nothing is cut off there."""
    weights = [(b"a", 10, False), (b"b", 10, True), (b"c", 10, True), (b"d", 10, False)]
    assert _cut(weights, b"a", b"z", 4) == ([b"a", b"c", b"z"], [20, 20])
    weights = [(b"a", 10, False), (b"b", 10, True), (b"b", 10, True), (b"c", 10, True)]
    assert _cut(weights, b"a", b"z", 4) == ([b"a", b"c", b"z"], [30, 10])
    assert _cut([(key, 10, True) for key in (b"a", b"b", b"b", b"c")], b"a", b"z", 4) == (
        [b"a", b"b", b"c", b"z"],
        [10, 20, 10],
    )


def test_small_neighbours_become_one_file_and_large_ones_are_moved(shop: Shop) -> None:
    for low in range(0, 50, 10):
        shop.run(low, low + 10)  # one after the other: no key in common
    shop.run(50, 550)
    small = [ref for ref in shop.segments if ref.rows == 10]
    (large,) = (ref for ref in shop.segments if ref.rows == 500)
    assert sum(ref.size for ref in small) < large.size
    options = CompactionOptions(target_file_size_bytes=large.size)
    before = shop.contents()
    result = shop.compact(options)
    (group,) = result.published
    assert set(group.inputs) == {ref.id for ref in small}
    assert group.moved == (large.id,)
    assert "smaller" in group.reason
    # The same object under the same name, on another level.
    assert msgspec.structs.replace(large, level=1) in shop.segments
    assert len(shop.segments) == 2
    assert segment_key(NAMESPACE, large.id) not in {p.key for p in shop.manifest.gc.pending}
    assert shop.contents() == before
    shop.check()
    assert shop.plan(options) is None
    shop.age()
    shop.collect()
    assert shop.contents() == before


def test_large_files_that_share_no_key_are_moved_and_nothing_is_written(shop: Shop) -> None:
    for low in range(0, 400, 100):
        shop.run(low, low + 40)
    options = CompactionOptions(target_file_size_bytes=min(ref.size for ref in shop.segments))
    objects = shop.segments
    result = shop.compact(options)
    assert [group.outputs for group in result.published] == [()]
    assert {ref.id for ref in shop.segments} == {ref.id for ref in objects}
    assert {ref.level for ref in shop.segments} == {1}
    shop.check()
    assert shop.plan(options) is None


def test_no_output_lies_across_what_was_moved(shop: Shop) -> None:
    """Small files on both sides of a large one are not joined over it."""
    for low in (0, 10, 20, 30, 600, 610, 620, 630):
        shop.run(low, low + 10)
    shop.run(100, 500)
    target = max(ref.size for ref in shop.segments)
    shop.compact(CompactionOptions(target_file_size_bytes=target))
    assert sorted((ref.key_min, ref.rows) for ref in shop.segments) == [
        (b"key-00000", 40),
        (b"key-00100", 400),
        (b"key-00600", 40),
    ]
    shop.check()


def test_small_components_are_rewritten_whole_if_they_hold_asked_keys(shop: Shop) -> None:
    for low in (0, 1000):
        for _ in range(4):
            shop.run(low, low + 40)
    options = CompactionOptions(start=b"key-01020", end=b"key-01021")
    (group,) = shop.planned(options).groups
    assert {ref.key_min for ref in group.inputs} == {b"key-01000"}
    shop.compact(options)
    assert len(shop.segments) == 5
    shop.check()


def test_only_the_asked_keys_of_large_runs_are_rewritten(shop: Shop) -> None:
    lsns = [shop.run(0, 300, mark=mark) for mark in (b"1", b"2", b"3", b"4")]
    inputs = shop.segments
    before = shop.contents()
    options = CompactionOptions(
        target_file_size_bytes=3000, start=b"key-00100", end=b"key-00200", raise_floor=False
    )
    plan = shop.planned(options)
    assert (plan.groups[0].keys[0], plan.groups[-1].keys[1]) == (b"key-00100", b"key-00200")
    result = shop.compact(options)
    assert (result.rows_in, result.rows_out) == (400, 400)
    # Every input is seen on both sides of what was compacted, and waits for nothing.
    left = [(ref.id, ref.clip_key_min, ref.clip_key_max) for ref in shop.segments if not ref.level]
    ids = {ref.id for ref in inputs}
    sides = ((None, b"key-00100"), (b"key-00200", None))
    assert len(left) == 8
    assert {*left} == {(id, *clip) for id in ids for clip in sides}
    assert shop.manifest.gc.pending == ()
    assert [group.inputs for group in result.published] == [()] * len(result.published)
    outputs = [ref for ref in shop.segments if ref.level == 1]
    assert all(b"key-00100" <= ref.key_min <= ref.key_max < b"key-00200" for ref in outputs)
    assert sum(ref.rows for ref in outputs) == 400
    assert shop.contents() == before
    for lsn, mark in zip(lsns, (b"1", b"2", b"3", b"4"), strict=True):
        for key in (b"00099", b"00100", b"00199", b"00200"):
            value = mark + b"value-" + key
            assert shop.kv("r").at(lsn=lsn).get(b"key-" + key)[: len(value)] == value
    shop.check()
    assert shop.plan(options) is None
    shop.age()
    shop.collect()
    assert shop.contents() == before
    # What is left on both sides is not worth it by its depth, but it keeps whole objects.
    rest = CompactionOptions(target_file_size_bytes=3000, min_input_files=5, raise_floor=False)
    assert all("what is left" in group.reason for group in shop.planned(rest).groups)
    shop.compact(rest)
    assert {ref.level for ref in shop.segments} == {1}
    assert sum(ref.rows for ref in shop.segments) == 1200
    assert {p.key for p in shop.manifest.gc.pending} == {segment_key(NAMESPACE, id) for id in ids}
    assert shop.contents() == before
    shop.check()


# Groups of one component: partial progress.


def sliced(shop: Shop, **more: Any) -> CompactionOptions:
    """Return options by which runs of 300 rows are merged in four groups or more."""
    for mark in (b"1", b"2", b"3", b"4"):
        shop.run(0, 300, mark=mark)
    return CompactionOptions(
        target_file_size_bytes=3000,
        max_file_group_size_bytes=6000,
        max_concurrent_file_group_rewrites=1,
        **more,
    )


def test_a_large_component_is_published_group_by_group(shop: Shop) -> None:
    options = sliced(shop)
    inputs = shop.segments
    before = shop.contents()
    plan = shop.planned(options)
    assert len(plan.groups) >= 4
    assert all(a.keys[1] == b.keys[0] for a, b in pairwise(plan.groups))
    assert all(len(group.inputs) == 4 for group in plan.groups)
    seen = []

    class Watched(InProcess):
        def run(self, *arguments: Any, **how: Any) -> Any:
            assert shop.contents() == before
            assert verify(shop.context, NAMESPACE).problems == ()
            seen.append({(ref.id, ref.clip_key_min) for ref in shop.segments if ref.level == 0})
            return super().run(*arguments, **how)

    context = shop.context
    result = compact(context, NAMESPACE, Watched(context), options=options)
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
    runner = InProcess(shop.context)
    groups = [*plan.groups[1::2], *plan.groups[::2]]
    for group in groups:
        made = runner.run(merge_range, compaction.tasks(group), MergedRange, name="t")
        is_last = group is groups[-1]
        assert compaction.finish_group(group, made, is_last=is_last).state == "published"
        assert shop.contents() == before
        assert verify(shop.context, NAMESPACE, deep=True).problems == ()
        if not is_last:  # nothing is published twice
            again = runner.run(merge_range, compaction.tasks(group), MergedRange, name="t")
            assert compaction.finish_group(group, again).state == "stale"
    assert {ref.level for ref in shop.segments} == {1}
    shop.check()


def test_what_was_published_stays_and_the_next_pass_goes_on_from_there(shop: Shop) -> None:
    options = sliced(shop)
    before = shop.contents()
    plan = shop.planned(options)

    class Killed(Exception):
        pass

    class Dying(InProcess):
        runs = 0

        def run(self, *arguments: Any, **how: Any) -> Any:
            self.runs += 1
            if self.runs == 3:
                raise Killed
            return super().run(*arguments, **how)

    context = shop.context
    with pytest.raises(Killed):
        compact(context, NAMESPACE, Dying(context), options=options)
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
    (made,) = InProcess(shop.context).run(
        merge_range, compaction.tasks(two)[:1], MergedRange, name="t"
    )
    output = made.returned().segment
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
    for _ in range(3):
        shop.run(0, 300)
    odd = {b"key-%05d" % i: b"odd-%05d" % i * 9 for i in range(1, 300, 2)}
    shop.flush(odd, [b"key-%05d" % i for i in range(0, 300, 2)])
    options = CompactionOptions(
        target_file_size_bytes=3000,
        max_file_group_size_bytes=1,
        max_concurrent_file_group_rewrites=1,
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
    options = CompactionOptions(
        target_file_size_bytes=2000, max_file_group_size_bytes=6000, min_input_files=2
    )
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
        for _ in range(4):
            shop.run(low, low + 200)
    options = CompactionOptions(target_file_size_bytes=2000)
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
    for _ in range(4):
        shop.run(0, 300)
    size = shop.planned().bytes_in
    before = shop.contents()
    result = shop.compact(CompactionOptions(max_bytes=size // 4))
    assert result.published
    assert result.skipped
    assert any(ref.clip_key_min for ref in shop.segments)
    assert shop.contents() == before
    shop.check()


def test_more_runs_than_a_task_may_merge_take_several_passes(shop: Shop) -> None:
    for _ in range(9):
        shop.run(0, 30)
    options = CompactionOptions(full=True, memory_bytes=(64 + 3 * 18) * MIB)
    plan = shop.planned(options)
    assert plan.is_partial
    assert [len(group.inputs) for group in plan.groups] == [3, 3, 3]
    shop.compact(options)
    assert [ref.rows for ref in shop.segments] == [30]
    shop.check()


# Retention.


def test_a_tombstone_goes_only_where_no_older_run_has_keys(shop: Shop) -> None:
    shop.base(100, 500)  # much larger: it is not among the inputs
    for i in range(4):
        shop.flush({b"key-%05d" % (100 + i): b"1"}, [b"key-%05d" % (300 + i), b"key-00299"])
    for i in range(4):
        shop.flush({b"zzz-%d" % i: b"1", b"zzz-a": b"1"}, [b"zzz-01", b"zzz-%d" % (i + 1)])
    fresh = [ref.size for ref in shop.segments if ref.rows < 400]
    options = CompactionOptions(target_file_size_bytes=min(sum(fresh[:4]), sum(fresh[4:])))
    over, beside = shop.planned(options).groups
    assert {some.is_bottom for some in over.ranges} == {False}
    assert {some.is_bottom for some in beside.ranges} == {True}
    before = shop.contents()
    shop.compact(options)
    assert shop.contents() == before
    above = [ref for ref in shop.segments if ref.key_min.startswith(b"key") and ref.rows < 400]
    assert (sum(ref.rows for ref in above), sum(ref.tombstones for ref in above)) == (9, 5)
    aside = [ref for ref in shop.segments if ref.key_min.startswith(b"zzz")]
    assert (sum(ref.rows for ref in aside), sum(ref.tombstones for ref in aside)) == (5, 0)
    shop.check()
    shop.compact(CompactionOptions(full=True))
    assert shop.tombstones() == 0
    assert shop.contents() == before


def test_the_floor_is_recorded_before_anything_is_dropped(shop: Shop) -> None:
    for mark in (b"1", b"2", b"3", b"4"):
        shop.run(0, 10, mark=mark)
    assert shop.manifest.retention.floor_lsn == 0
    generations = []
    shop.store.before = lambda operation, key: generations.append((operation, key))
    result = shop.compact()
    shop.store.before = lambda operation, key: None
    m = shop.manifest
    assert result.floor_lsn == m.retention.floor_lsn == m.last_applied_lsn
    chain = shop.chain(shop.inner)
    first_without = next(
        g for g in (chain.at(n.number) for n in chain.generations()) if _names_output(g.manifest)
    )
    before = chain.at(first_without.generation - 1).manifest
    assert before.retention.floor_lsn == m.last_applied_lsn
    assert len(before.segments) == 4


def _names_output(m: Manifest) -> bool:
    return any("compact" in ref.id for ref in m.segments)


def test_within_the_window_for_time_travel_every_version_stays() -> None:
    shop = Shop(pitr_window=3600.0)
    lsns = []
    for mark in (b"1", b"2", b"3", b"4"):
        lsns.append(shop.run(0, 10, mark=mark))
        shop.clock.advance(1000)
    result = shop.compact()
    # "4" was written 1,000 s ago, "1" 4,000 s ago.
    assert result.rows_out == 40
    assert lsns[0] >= shop.manifest.retention.floor_lsn > 0
    for lsn, mark in zip(lsns, (b"1", b"2", b"3", b"4"), strict=True):
        assert shop.kv("r").at(lsn=lsn).get(b"key-00001") == mark + b"value-00001" * 3
    shop.clock.advance(3000)
    for _ in range(3):
        shop.run(0, 10)
    shop.compact(CompactionOptions(full=True))
    assert shop.manifest.retention.floor_lsn == lsns[3]
    assert shop.kv("r").at(lsn=lsns[3]).get(b"key-00001") == b"4" + b"value-00001" * 3


def test_the_floor_stops_at_a_version_and_not_at_a_fence() -> None:
    """Else the newest version of before the window could not be read by its own LSN."""
    shop = Shop(pitr_window=3600.0)
    lsn = shop.run(0, 10, mark=b"1")
    for _ in range(2):
        shop.writer = shop.kv()  # fences
    shop.clock.advance(4000)
    for mark in (b"2", b"3", b"4"):
        shop.run(0, 10, mark=mark)
    shop.compact()
    assert shop.manifest.retention.floor_lsn == lsn
    assert shop.kv("r").at(lsn=lsn).get(b"key-00001") == b"1" + b"value-00001" * 3


def test_versions_of_a_dropped_namespace_are_no_measure_for_the_floor() -> None:
    clock = ManualClock()
    db = Database(MemoryStore(clock=clock), clock=clock, pitr_window=3600.0, flush_interval=0)

    def write(*lsns: int) -> None:
        with db.pages("p", lsn_policy="caller") as pages:
            for lsn in lsns:
                pages.append_wal([WalRecord(0, lsn, b"%04d" % lsn * 1024)])
                pages.flush()

    write(1000)
    db.drop("p")
    clock.advance(4000)
    write(10, 20, 30, 40)
    context = db.context()
    compact(context, "p", InProcess(context), options=CompactionOptions(min_input_files=2))
    with db.pages("p", mode="r") as pages:
        found = [pages.get_page(0, lsn=lsn) for lsn in (10, 20, 30, 40)]
    assert found == [b"%04d" % lsn * 1024 for lsn in (10, 20, 30, 40)]


def test_what_a_snapshot_shows_stays_until_it_has_expired(shop: Shop) -> None:
    shop.run(0, 10, mark=b"1")
    snapshot = shop.writer.snapshot(ttl=60)
    for mark in (b"2", b"3", b"4"):
        shop.run(0, 10, mark=mark)
    assert shop.compact().rows_out == 20
    assert shop.kv("r").at(snapshot=snapshot.id).get(b"key-00001") == b"1" + b"value-00001" * 3
    shop.clock.advance(120)
    for _ in range(3):
        shop.run(0, 10)
    assert shop.compact(CompactionOptions(full=True)).rows_out == 10
    assert shop.manifest.snapshots == ()
    shop.check()


def test_without_raising_the_floor_nothing_is_dropped(shop: Shop) -> None:
    for _ in range(4):
        shop.run(0, 10)
    result = shop.compact(CompactionOptions(raise_floor=False))
    assert (result.rows_in, result.rows_out, result.floor_lsn) == (40, 40, 0)


def test_keys_that_are_all_deleted_leave_one_tombstone_that_names_what_was_replaced(
    shop: Shop,
) -> None:
    """Else a rebuild could bring back an input that is collected later than the others."""
    for _ in range(3):
        shop.run(0, 200)
    shop.flush(None, [b"key-%05d" % i for i in range(200)])
    inputs = {ref.id for ref in shop.segments}
    target = sum(ref.size for ref in shop.segments) // 3
    result = shop.compact(CompactionOptions(target_file_size_bytes=target, full=True))
    assert len(result.published[0].outputs) > 1
    assert [(ref.rows, ref.tombstones) for ref in shop.segments] == [(1, 1)] * len(shop.segments)
    assert shop.contents() == {}
    footers = shop.footers()
    assert {footer.part for footer in footers} == {
        (n, len(footers)) for n in range(1, len(footers) + 1)
    }
    assert {footer.replaced_segments for footer in footers} == {footers[0].replaced_segments}
    assert set(footers[0].replaced_segments) == inputs
    shop.check()


# What is written.


def test_the_bottom_alone_is_zstd_where_that_is_asked_for(shop: Shop) -> None:
    shop.base(0, 400)
    for _ in range(4):
        shop.run(0, 20)
    shop.compact(CompactionOptions(target_file_size_bytes=MIB, bottom_codec="zstd"))
    assert {footer.codec for footer in shop.footers("compact")} == {"lz4"}
    shop.compact(CompactionOptions(full=True, bottom_codec="zstd"))
    assert {footer.codec for footer in shop.footers("compact")} == {"zstd"}


def test_a_task_leaves_the_caches_of_its_process_alone(shop: Shop) -> None:
    for _ in range(4):
        shop.run(0, 200)
    context = shop.context
    compact(context, NAMESPACE, InProcess(context), options=SMALL)
    assert isinstance(context.cache, BlockCache)
    assert len(context.cache) == 0


# What is published, and what is not.


def test_groups_are_published_as_they_complete(shop: Shop) -> None:
    for low in (0, 1000, 2000):
        for _ in range(4):
            shop.run(low, low + 40)
    options = CompactionOptions(target_file_size_bytes=100, max_concurrent_file_group_rewrites=1)
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
    taken = []

    class Interrupted(InProcess):
        def run(self, *arguments: Any, **how: Any) -> Any:
            outcomes = super().run(*arguments, **how)
            if not taken:  # between the tasks and the publish
                taken.append(True)
                shop.publish(lambda m: renew_snapshot(m, "new", expires_at_us=0))
            return outcomes

    shop.publish(lambda m: add_snapshot(m, id="old", lsn=lsns[0], expires_at_us=0))
    plan = shop.planned()
    shop.publish(lambda m: add_snapshot(m, id="new", lsn=lsns[1], expires_at_us=1))
    result = compact(context, NAMESPACE, Interrupted(context), plan=plan)
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


def test_a_second_compactor_fences_the_first_which_says_so(shop: Shop) -> None:
    for _ in range(4):
        shop.run(0, 50)
    context = shop.context
    plan = shop.planned()

    class Rival(InProcess):
        def run(self, *arguments: Any, **how: Any) -> Any:
            outcomes = super().run(*arguments, **how)
            shop.compact()
            return outcomes

    with pytest.raises(FencedError, match="compactor of epoch 2"):
        compact(context, NAMESPACE, Rival(context), plan=plan)
    assert len(shop.segments) == 1
    shop.check()  # the first has ended its own intent


def test_two_that_begin_at_once_one_wins(shop: Shop) -> None:
    for _ in range(4):
        shop.run(0, 50)
    plan = shop.planned()
    (group,) = plan.groups
    one, two = begin_compaction(shop.context, plan), begin_compaction(shop.context, plan)
    runner = InProcess(shop.context)
    made = [runner.run(merge_range, c.tasks(group), MergedRange, name="t") for c in (one, two)]
    with pytest.raises(FencedError):
        one.finish_group(group, made[0])
    assert two.finish_group(group, made[1], is_last=True).state == "published"
    with pytest.raises(FencedError, match="was ended"):
        two.finish_group(group, made[1])
    one.end()
    shop.check()


def test_a_move_alone_is_fenced_too(shop: Shop) -> None:
    for low in range(0, 400, 100):
        shop.run(low, low + 40)
    options = CompactionOptions(target_file_size_bytes=min(ref.size for ref in shop.segments))
    plan = shop.planned(options)
    (group,) = plan.groups
    assert not group.inputs
    one = begin_compaction(shop.context, plan)
    begin_compaction(shop.context, plan)
    with pytest.raises(FencedError):
        one.finish_group(group, [])


@pytest.mark.parametrize("stop", ["begun", "written"])
def test_a_crash_leaves_orphans_and_an_intent(shop: Shop, stop: str) -> None:
    for _ in range(4):
        shop.run(0, 50)
    before, live = shop.contents(), shop.segments
    plan = shop.planned()
    compaction = begin_compaction(shop.context, plan)
    if stop == "written":
        tasks = compaction.tasks(plan.groups[0])
        InProcess(shop.context).run(merge_range, tasks, MergedRange, name="t")
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


def test_a_task_that_runs_twice_uses_another_name(shop: Shop) -> None:
    for _ in range(4):
        shop.run(0, 50)
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


def test_the_bottom_is_lz4_by_default(shop: Shop) -> None:
    for _ in range(2):
        shop.run(0, 200)
    shop.compact(CompactionOptions(full=True))
    assert [footer.codec for footer in shop.footers()] == ["lz4"]


def test_a_codec_that_is_none() -> None:
    with pytest.raises(InvalidInputError, match="lz4 or zstd"):
        CompactionOptions(bottom_codec="gzip")  # type: ignore[arg-type]
