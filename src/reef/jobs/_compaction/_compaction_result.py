"""The result of a compaction: what was read, written, dropped and published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from reef.compaction import CompactionGroup, MergedRange
from reef.format import SegmentRef
from reef.jobs._tasks import TaskOutcome
from reef.manifest import Head

GroupState = Literal["published", "stale", "failed"]


class TaskFigures(msgspec.Struct, frozen=True):
    """What one task of a compaction did, and took."""

    part: tuple[int, int]
    rows_in: int
    rows_out: int
    bytes_in: int
    bytes_out: int
    seconds: float
    peak_rss_bytes: int
    attempt: int


class GroupResult(msgspec.Struct, frozen=True):
    """The result of one group."""

    number: int
    state: GroupState
    """stale: the namespace has changed since the plan was made. failed: a task failed."""
    reason: str
    """Why it was chosen."""
    error: str
    """Why it was not published, else ""."""
    inputs: tuple[str, ...]
    """The segments that it replaced; if it was not published, those that it would have read."""
    clipped: tuple[str, ...]
    """Segments that it has replaced in its keys only: their other keys stay visible."""
    outputs: tuple[str, ...]
    moved: tuple[str, ...]
    generation: int | None
    """The generation that names the outputs."""
    tasks: tuple[TaskFigures, ...]


class CompactionResult(msgspec.Struct, frozen=True):
    """What was read, written, dropped and published."""

    namespace: str
    jobs: tuple[str, ...]
    """The ids of its intents, one for each plan."""
    floor_lsn: int | None
    """The retention floor that it kept to; None: there was nothing to do."""
    groups: tuple[GroupResult, ...]
    skipped: tuple[str, ...]

    @property
    def published(self) -> tuple[GroupResult, ...]:
        """The groups that were published."""
        return tuple(group for group in self.groups if group.state == "published")

    @property
    def failed(self) -> tuple[GroupResult, ...]:
        """The groups of which a task failed: see their errors, and compact again."""
        return tuple(group for group in self.groups if group.state == "failed")

    @property
    def rows_in(self) -> int:
        """Versions that published groups read."""
        return sum(task.rows_in for group in self.published for task in group.tasks)

    @property
    def rows_out(self) -> int:
        """Versions that they wrote; retention dropped the others."""
        return sum(task.rows_out for group in self.published for task in group.tasks)

    @property
    def bytes_in(self) -> int:
        """Bytes of blocks that they read."""
        return sum(task.bytes_in for group in self.published for task in group.tasks)

    @property
    def bytes_out(self) -> int:
        """Bytes of segments that they wrote."""
        return sum(task.bytes_out for group in self.published for task in group.tasks)


def group_result(
    group: CompactionGroup,
    outcomes: Sequence[TaskOutcome[MergedRange]],
    state: GroupState,
    error: str,
    outputs: Sequence[SegmentRef] = (),
    head: Head | None = None,
) -> GroupResult:
    """Return the result of a group, with the figures of its finished tasks."""
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
