"""The round of a pass that merges key ranges."""

from __future__ import annotations

from collections.abc import Sequence

from reef.compaction import MergedRange, MergeTask, merge_range
from reef.jobs._pass_protocol import Round


def merge_key_ranges(tasks: Sequence[MergeTask]) -> Round:
    """Return the round of tasks that merges key ranges."""
    return Round(merge_range, tasks, MergedRange, [task.bytes_in for task in tasks])
