"""What a compaction chooses: which runs, in which groups and ranges, and what it moves or leaves."""

from __future__ import annotations

import msgspec
import pytest

from reef.compaction import CompactionPlan, VisibleSegment, tiers_of
from reef.errors import InvalidInputError, NotFoundError
from reef.format import segment_key
from reef.jobs import CompactionOptions
from reef.jobs._compaction._compact_pass import plan_compaction
from tests.support.engine.collecting import NAMESPACE
from tests.support.jobs.shop import Shop


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
        ("target_size_bytes", 0),
        ("min_input_files", 1),
        ("concurrency", 0),
        ("memory_bytes", 1 << 20),
        ("group_size_bytes", 0),
        ("max_bytes", 0),
        ("end", b""),
    ],
)
def test_options_that_make_no_sense_are_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidInputError, match=name):
        CompactionOptions(**{name: value})


def test_runs_of_one_size_are_merged_and_those_much_larger_left(shop: Shop) -> None:
    shop.base(0, 400)
    shop.run(0, 20, times=4)
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
    shop.run(0, 100, times=4)
    plan = shop.planned()
    kept = msgspec.json.decode(msgspec.json.encode(plan), type=CompactionPlan)
    assert kept == plan
    shop.run(0, 5, mark=b"newer")  # does not concern it
    before = shop.contents()
    result = shop.compact(plan=kept)
    assert [group.state for group in result.groups] == ["published"]
    assert len(tiers_of(list(map(VisibleSegment, shop.segments)))) == 2
    assert shop.contents() == before
    shop.check()


def test_a_large_group_is_cut_into_ranges_of_about_the_target_size(shop: Shop) -> None:
    shop.run(0, 300, times=4)
    options = CompactionOptions(target_size_bytes=sum(ref.size for ref in shop.segments) // 6)
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


def test_small_neighbours_become_one_file_and_large_ones_are_moved(shop: Shop) -> None:
    for low in range(0, 50, 10):
        shop.run(low, low + 10)  # one after the other: no key in common
    shop.run(50, 550)
    small = [ref for ref in shop.segments if ref.rows == 10]
    (large,) = (ref for ref in shop.segments if ref.rows == 500)
    assert sum(ref.size for ref in small) < large.size
    options = CompactionOptions(target_size_bytes=large.size)
    before = shop.contents()
    result = shop.compact(options)
    (group,) = result.published
    assert set(group.inputs) == {ref.id for ref in small}
    assert group.moved == (large.id,)
    assert "too small" in group.reason
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
    options = CompactionOptions(target_size_bytes=min(ref.size for ref in shop.segments))
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
    shop.compact(CompactionOptions(target_size_bytes=target))
    assert sorted((ref.key_min, ref.rows) for ref in shop.segments) == [
        (b"key-00000", 40),
        (b"key-00100", 400),
        (b"key-00600", 40),
    ]
    shop.check()


def test_small_components_are_rewritten_whole_if_they_hold_asked_keys(shop: Shop) -> None:
    for low in (0, 1000):
        shop.run(low, low + 40, times=4)
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
        target_size_bytes=3000, start=b"key-00100", end=b"key-00200", keep_floor=True
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
    assert not shop.manifest.gc.pending
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
    rest = CompactionOptions(target_size_bytes=3000, min_input_files=5, keep_floor=True)
    assert all("compacted in part" in group.reason for group in shop.planned(rest).groups)
    shop.compact(rest)
    assert {ref.level for ref in shop.segments} == {1}
    assert sum(ref.rows for ref in shop.segments) == 1200
    assert {p.key for p in shop.manifest.gc.pending} == {segment_key(NAMESPACE, id) for id in ids}
    assert shop.contents() == before
    shop.check()


def test_a_codec_that_is_none() -> None:
    with pytest.raises(InvalidInputError, match="'lz4' or 'zstd'"):
        CompactionOptions(bottom_codec="gzip")  # type: ignore[arg-type]
