"""A group of a plan as tasks, and the segments that they make of it.

A pass on Spark and an open writer carry out a group alike; they differ in who publishes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from reef.compaction._compaction_plan import CompactionGroup, CompactionPlan
from reef.compaction._key_ranges import VisibleSegment, inside_each
from reef.compaction._merge_task import MergedRange, MergeTask
from reef.errors import InvariantError
from reef.format import SegmentRef


def merge_tasks(
    plan: CompactionPlan,
    group: CompactionGroup,
    *,
    owner: str,
    floor_lsn: int,
    points: tuple[int, ...],
    is_packed: bool,
) -> list[MergeTask]:
    """Return the tasks of a group: one for each range, with the segments that have keys in it.

    `owner` ends the ids of the outputs: an intent, or `e` and the epoch of a writer.
    """
    keys = [(some.start, some.end) for some in group.ranges]
    inside = inside_each([VisibleSegment(ref) for ref in group.inputs], keys)
    count = len(group.ranges)
    return [
        MergeTask(
            namespace=plan.namespace,
            job=owner,
            group=group.number,
            part=(part, count),
            inputs=tuple(one.ref for one in few),
            replaced=tuple(dict.fromkeys(one.ref.id for one in few)),
            start=some.start,
            end=some.end,
            floor_lsn=floor_lsn,
            points=points,
            is_bottom=some.is_bottom,
            codec=plan.options.bottom_codec if some.is_bottom else "lz4",
            level=group.level,
            bytes_in=some.bytes_in,
            is_packed=is_packed,
        )
        for part, (some, few) in enumerate(zip(group.ranges, inside, strict=True), 1)
    ]


def outputs_of(group: CompactionGroup, made: Sequence[MergedRange]) -> list[SegmentRef]:
    """Return the segments of a group whose parts are all there."""
    parts = [(group.number, (n, len(group.ranges))) for n in range(1, len(group.ranges) + 1)]
    if [(one.group, one.part) for one in made] != parts:
        raise InvariantError(f"group {group.number} of a compaction got the results of another")
    outputs = [one.segment for one in made if one.segment is not None]
    if len(outputs) not in (0, len(made)):
        raise InvariantError(
            f"only {len(outputs)} of {len(made)} parts of group {group.number} have rows: their footers "
            "would count parts that do not exist; nothing was published"
        )
    return outputs
