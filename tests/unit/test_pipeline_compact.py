"""Compaction step by step: what is chosen, what is written, what is published, and what is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from reef.engine import Context, verify
from reef.engine._verify_segments import read_tail
from reef.errors import FencedError, InvalidInputError, NotFoundError, UnavailableError
from reef.format import Manifest, SegmentRef, segment_key
from reef.format._segment_model import Footer
from reef.manifest import add_snapshot, renew_snapshot
from reef.pipeline import InProcess
from reef.pipeline._compact import begin_compaction, compact
from reef.pipeline._compact_options import CompactionOptions
from reef.pipeline._compact_plan import CompactionPlan, _cut, plan_compaction, tiers_of
from reef.pipeline._compact_result import CompactionResult
from reef.pipeline._compact_task import MergedRange, merge_range
from reef.segment import BlockCache
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


def test_only_what_holds_the_asked_keys_is_rewritten(shop: Shop) -> None:
    for low in (0, 1000):
        for _ in range(4):
            shop.run(low, low + 40)
    options = CompactionOptions(start=b"key-01020", end=b"key-01021")
    (group,) = shop.planned(options).groups
    assert {ref.key_min for ref in group.inputs} == {b"key-01000"}
    shop.compact(options)
    assert len(shop.segments) == 5
    shop.check()


def test_a_pass_reads_no_more_than_asked(shop: Shop) -> None:
    for low in (0, 1000):
        for _ in range(4):
            shop.run(low, low + 40)
    one = sum(ref.size for ref in shop.segments if ref.key_min == b"key-00000")
    options = CompactionOptions(max_bytes=one, target_file_size_bytes=100)
    plan = shop.planned(options)
    assert len(plan.groups) == 1
    (skipped,) = plan.skipped
    assert "max_bytes" in skipped
    shop.compact(options)
    assert len(tiers_of(shop.manifest)) < 8
    result = shop.compact(CompactionOptions(max_bytes=1))
    assert result.groups == ()
    assert result.skipped


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


def test_the_bottom_is_zstd_and_what_lies_above_lz4(shop: Shop) -> None:
    shop.base(0, 400)
    for _ in range(4):
        shop.run(0, 20)
    shop.compact()
    assert {footer.codec for footer in shop.footers("compact")} == {"lz4"}
    shop.compact(CompactionOptions(full=True))
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
