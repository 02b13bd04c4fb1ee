"""What came of a compaction: what was read, written, dropped and published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from reef.format import SegmentRef
from reef.jobs._compaction._plan import Group
from reef.jobs._compaction._task import MergedRange
from reef.jobs._tasks import TaskOutcome
from reef.manifest import Head

GroupState = Literal["published", "stale", "failed"]


class TaskFigures(msgspec.Struct, frozen=True):
    """What one task did, and took."""

    part: tuple[int, int]
    rows_in: int
    rows_out: int
    bytes_in: int
    bytes_out: int
    seconds: float
    peak_rss_bytes: int
    attempt: int


class GroupResult(msgspec.Struct, frozen=True):
    """What became of a group."""

    number: int
    state: GroupState
    """stale: the namespace has changed since it was planned. failed: a task could not be done."""
    reason: str
    """Why it was chosen."""
    error: str
    """Why it was not published, else ""."""
    inputs: tuple[str, ...]
    """What it stands for, and nothing names any more; if it was not published, what it was to read."""
    clipped: tuple[str, ...]
    """What it has read, and of which other keys are still seen."""
    outputs: tuple[str, ...]
    moved: tuple[str, ...]
    generation: int | None
    """The one that names the outputs."""
    tasks: tuple[TaskFigures, ...]


class CompactionResult(msgspec.Struct, frozen=True):
    """What was read, written, dropped and published."""

    namespace: str
    jobs: tuple[str, ...]
    """The intents it ran under, one for each plan."""
    floor_lsn: int | None
    """The retention floor that it went by; None: nothing was begun."""
    groups: tuple[GroupResult, ...]
    skipped: tuple[str, ...]

    @property
    def published(self) -> tuple[GroupResult, ...]:
        """The groups that are done."""
        return tuple(group for group in self.groups if group.state == "published")

    @property
    def failed(self) -> tuple[GroupResult, ...]:
        """The groups whose tasks could not be done: see their errors, and compact again."""
        return tuple(group for group in self.groups if group.state == "failed")

    @property
    def rows_in(self) -> int:
        """The versions that published groups read."""
        return sum(task.rows_in for group in self.published for task in group.tasks)

    @property
    def rows_out(self) -> int:
        """The versions that they wrote; retention dropped the others."""
        return sum(task.rows_out for group in self.published for task in group.tasks)

    @property
    def bytes_in(self) -> int:
        """The bytes of blocks that they read."""
        return sum(task.bytes_in for group in self.published for task in group.tasks)

    @property
    def bytes_out(self) -> int:
        """The bytes of segments that they wrote."""
        return sum(task.bytes_out for group in self.published for task in group.tasks)


def group_result(
    group: Group,
    outcomes: Sequence[TaskOutcome[MergedRange]],
    state: GroupState,
    error: str,
    outputs: Sequence[SegmentRef] = (),
    head: Head | None = None,
) -> GroupResult:
    """Return what became of a group, with the figures of the tasks that came back."""
    figures = [
        TaskFigures(
            made.part,
            made.rows_in,
            made.rows_out,
            made.bytes_in,
            made.bytes_out,
            outcome.seconds,
            outcome.peak_rss_bytes,
            outcome.attempt,
        )
        for outcome in outcomes
        if (made := outcome.result) is not None
    ]
    read = dict.fromkeys(ref.id for ref in group.inputs)
    live = set() if head is None else {ref.id for ref in head.manifest.segments}
    return GroupResult(
        group.number,
        state,
        group.reason,
        error,
        tuple(id for id in read if id not in live),
        tuple(id for id in read if id in live),
        tuple(ref.id for ref in outputs),
        tuple(ref.id for ref in group.moves),
        None if head is None else head.generation,
        tuple(figures),
    )
