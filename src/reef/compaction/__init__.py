"""Compaction: what is worth merging, and the merge of one key range. It publishes nothing.

CompactionOptions  how to compact
plan_groups, CompactionPlan, CompactionGroup, KeyRange
                   what one compaction would rewrite, made from a manifest
tiers_of, visible_segments, VisibleSegment
                   live segments in the order in which they are merged
merge_tasks, outputs_of
                   a group as tasks, and the segments that they made
merge_range, MergeTask, MergedRange
                   one key range of some segments becomes one segment
reachable_floor    how far the retention floor may rise
"""

from reef.compaction._compaction_options import CompactionOptions
from reef.compaction._compaction_plan import (
    CompactionGroup,
    CompactionPlan,
    plan_groups,
    tiers_of,
)
from reef.compaction._floor import reachable_floor
from reef.compaction._group_merge import merge_tasks, outputs_of
from reef.compaction._key_ranges import KeyRange, VisibleSegment, visible_segments
from reef.compaction._merge_task import MergedRange, MergeTask, merge_range

__all__ = [
    "CompactionGroup",
    "CompactionOptions",
    "CompactionPlan",
    "KeyRange",
    "MergeTask",
    "MergedRange",
    "VisibleSegment",
    "merge_range",
    "merge_tasks",
    "outputs_of",
    "plan_groups",
    "reachable_floor",
    "tiers_of",
    "visible_segments",
]
