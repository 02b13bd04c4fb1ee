"""Compaction: the groups of a plan become segments, each group published by one manifest.

A group is some segments, whole or between two keys. In the second case the rest of them stays named, so
that a long compaction is published in many steps.

Steps, and what a crash leaves behind each:

1. The intent and the next compactor epoch, in one generation.   An intent.
2. The retention floor, as far as its window allows.             The same; reads below are refused.
3. Tasks write segments.                                         Orphans, spared by the intent.
4. Each group: its outputs instead of its inputs.                That group is done.
5. With the last of them, the intent ends.                       Nothing.

A group is published only onto a head that still has all of its inputs in its keys, and retains no point
that its tasks did not know; else it is planned again. A compactor that begins later fences this one: what
this one has published stays, and it can publish nothing more.

    plan = plan_compaction(context, "ns")                      to look at, to keep
    compaction = begin_compaction(context, plan)               the intent stands
    outcomes = ... compaction.tasks(group) ...                 for each group
    compaction.finish_group(group, outcomes)                   is_last=True ends the intent
    compaction.end()                                           ends it, if it stands
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from reef.compaction import (
    CompactionGroup,
    CompactionOptions,
    CompactionPlan,
    MergedRange,
    MergeTask,
    merge_tasks,
    outputs_of,
    plan_groups,
    reachable_floor,
)
from reef.engine import Context, face_of
from reef.errors import StalePlanError
from reef.format import Manifest, SegmentRef
from reef.jobs._compaction._compaction_result import CompactionResult, GroupResult, group_result
from reef.jobs._compaction._merge_round import merge_key_ranges
from reef.jobs._job import Job
from reef.jobs._pass_protocol import Figures, TaskTimes, Work
from reef.jobs._tasks import TaskOutcome
from reef.manifest import (
    end_intent,
    live_inputs,
    no_namespace,
    replace_segments,
    retained_points,
    set_retention,
)

if TYPE_CHECKING:
    from reef.jobs._driver import PassRun

PLANS_MAX = 4
"""How many plans may be overtaken by others."""
PASSES_MAX = 16
"""How many plans a full compaction takes at most."""


@dataclass(frozen=True)
class Compaction:
    """A plan that is being carried out: its job, and the retained points that its tasks keep."""

    plan: CompactionPlan
    job: Job
    floor_lsn: int
    points: tuple[int, ...]
    now_us: int
    """When it began, by the store's clock: snapshots that had expired by then are not retained."""

    def tasks(self, group: CompactionGroup) -> list[MergeTask]:
        """Return the tasks of a group: one for each range, with the segments that have keys in it."""
        return merge_tasks(
            self.plan,
            group,
            owner=self.job.id,
            floor_lsn=self.floor_lsn,
            points=self.points,
            is_packed=self.job.head.manifest.lsn_policy == "packed",
        )

    def finish_group(
        self,
        group: CompactionGroup,
        outcomes: Sequence[TaskOutcome[MergedRange]],
        *,
        is_last: bool = False,
    ) -> GroupResult:
        """Publish what the tasks of a group made, unless one failed or the group was overtaken.

        With `is_last` the intent ends in the same generation. Raises StalePlanError if the
        job was ended or another compactor has begun, OutcomeUnknownError, UnavailableError.
        """
        error = next((one.error for one in outcomes if one.error is not None), None)
        if error is not None:
            return group_result(group, outcomes, "failed", f"{type(error).__name__}: {error}")
        made = [outcome.returned() for outcome in outcomes]
        outputs = outputs_of(group, made)
        try:
            head = self.job.publish(lambda m: self._replaced(m, group, outputs, is_last))
        except StalePlanError as stale:
            self.job.check_not_ended()
            return group_result(group, outcomes, "stale", str(stale))
        return group_result(group, outcomes, "published", "", outputs, head)

    def end(self) -> None:
        """End the intent, if it stands. Raises OutcomeUnknownError, UnavailableError."""
        self.job.end()

    def _replaced(
        self, m: Manifest, group: CompactionGroup, outputs: Sequence[SegmentRef], is_last: bool
    ) -> Manifest:
        self.job.check_standing(m)  # for groups that replace nothing, too
        if group.inputs:
            m = replace_segments(
                m,
                compactor_epoch=self.job.compactor_epoch,
                intent=self.job.id,
                inputs=group.inputs,
                outputs=outputs,
                known_points=self.points,
                now_us=self.now_us,
                within=group.keys,
            )
        if group.moves:
            m = _moved(m, group.moves, group.level)
        return end_intent(m, self.job.id) if is_last else m


def plan_compaction(
    context: Context, namespace: str, options: CompactionOptions | None = None
) -> CompactionPlan | None:
    """Return what a pass would do, or None if there is nothing to do. Writes nothing.

    Reads the newest manifest, and tails of segments that are clipped, or will be cut. Raises
    NotFoundError if there is no such namespace, UnavailableError, DamagedError.
    """
    head = context.chain(namespace).load()
    if head is None or head.manifest.state != "live":
        raise no_namespace(context.store.url, namespace)
    face = face_of(head.manifest).name
    options = (options or CompactionOptions()).settled(face, context.settings)
    return plan_groups(context, head.manifest, options)


def begin_compaction(context: Context, plan: CompactionPlan, *, is_kept: bool = True) -> Compaction:
    """Register a compaction, fence earlier ones, and record the retention floor that it keeps to.

    Unless the plan is kept, what was compacted before the intent stood is planned again under it: an
    open writer leaves alone what it finds live beside an intent, so the second plan is not overtaken
    by it.

    Raises NotFoundError if the namespace is gone, StalePlanError, OutcomeUnknownError, UnavailableError.
    """
    job = Job.begin(context, plan.namespace, "compact", compactor=True)
    with job.given_up_on_error():
        if not is_kept:
            plan = _still_true(context, job.head.manifest, plan)
        if not plan.options.keep_floor:
            floor = reachable_floor(context, job.head.manifest, job.now_us)
            if floor > job.head.manifest.retention.floor_lsn:
                job.publish(lambda m: _with_floor(m, floor, job))
    m, now_us = job.head.manifest, job.now_us
    return Compaction(plan, job, m.retention.floor_lsn, tuple(retained_points(m, now_us)), now_us)


def _still_true(context: Context, m: Manifest, plan: CompactionPlan) -> CompactionPlan:
    """Return `plan`, or another one, perhaps of nothing, if its inputs are no longer live."""
    try:
        check_plan(m, plan)
        return plan
    except StalePlanError:
        return plan_groups(context, m, plan.options) or msgspec.structs.replace(plan, groups=())


class CompactionPass:
    """Merges the segments of namespaces where it is worth it, or by a plan that was kept."""

    kind = "compact"

    def __init__(
        self, options: CompactionOptions | None = None, plan: CompactionPlan | None = None
    ) -> None:
        self._options = plan.options if plan is not None else options or CompactionOptions()
        self._plan = plan
        self.recorded_options: dict[str, Any] = msgspec.to_builtins(self._options)

    def work(self, run: PassRun, namespace: str) -> Work[CompactionResult]:
        """Compact one namespace."""
        return compact_namespace(run.context, namespace, self._options, self._plan)

    def figures(self, result: CompactionResult) -> Figures:
        """Return what the record says about one namespace."""
        tasks = [task for group in result.groups for task in group.tasks]
        published = result.published
        numbers = {
            "rows_in": result.rows_in,
            "rows": result.rows_out,
            "dropped": result.rows_in - result.rows_out,
            "bytes_in": result.bytes_in,
            "bytes_out": result.bytes_out,
            "replaced": sum(len(group.inputs) for group in published),
            "segments": sum(len(group.outputs) for group in published),
            "moved": sum(len(group.moved) for group in published),
            "groups": len(published),
        }
        generation = max((group.generation or 0 for group in published), default=0) or None
        error = "; ".join(dict.fromkeys(group.error for group in result.failed))
        return Figures(numbers, generation, TaskTimes.of(tasks), error)


def compact_namespace(
    context: Context,
    namespace: str,
    options: CompactionOptions,
    plan: CompactionPlan | None = None,
) -> Work[CompactionResult]:
    """Compact a namespace, by `plan` if one is given; plan again what was overtaken.

    A group whose tasks fail is not published and stands in the result with its error; the others
    are. Raises NotFoundError if there is no such namespace, StalePlanError if the job was ended or
    another compactor began in the meantime (what was published by then stays),
    OutcomeUnknownError, UnavailableError.
    """
    done: list[CompactionResult] = []
    plans = passes = 0
    is_kept = plan is not None
    while plans < PLANS_MAX and passes < PASSES_MAX:
        plan = plan or plan_compaction(context, namespace, options)
        if plan is None or not plan.groups:
            skipped = () if plan is None else plan.skipped
            done.append(CompactionResult(namespace, (), None, (), skipped))
            break
        done.append((yield from _apply(context, plan, is_kept=is_kept)))
        is_kept = False
        states = {group.state for group in done[-1].groups}
        if "stale" in states:
            plans += 1
        elif plan.is_partial and "failed" not in states:
            passes += 1
        else:
            break
        plan = None
    return CompactionResult(
        namespace,
        tuple(job for one in done for job in one.jobs),
        next((one.floor_lsn for one in reversed(done) if one.floor_lsn is not None), None),
        tuple(group for one in done for group in one.groups),
        done[-1].skipped,
    )


def _apply(context: Context, plan: CompactionPlan, *, is_kept: bool) -> Work[CompactionResult]:
    """Carry out a plan once, some groups at a time."""
    compaction = begin_compaction(context, plan, is_kept=is_kept)
    plan = compaction.plan
    at_once = plan.options.concurrency
    results: list[GroupResult] = []
    with compaction.job.given_up_on_error():
        for first in range(0, len(plan.groups), at_once):
            groups = plan.groups[first : first + at_once]
            tasks = [compaction.tasks(group) for group in groups]
            outcomes = iter((yield merge_key_ranges(list(chain.from_iterable(tasks)))))
            for group, its_tasks in zip(groups, tasks, strict=True):
                made = [next(outcomes) for _ in its_tasks]
                is_last = group is plan.groups[-1]
                results.append(compaction.finish_group(group, made, is_last=is_last))
        if not results or results[-1].state != "published":
            compaction.end()
    return CompactionResult(
        plan.namespace, (compaction.job.id,), compaction.floor_lsn, tuple(results), plan.skipped
    )


def _with_floor(m: Manifest, floor_lsn: int, job: Job) -> Manifest:
    job.check_standing(m)
    return set_retention(m, floor_lsn=floor_lsn)


def check_plan(m: Manifest, plan: CompactionPlan) -> None:
    """Raise StalePlanError if a segment that a plan would replace or move is no longer live."""
    for group in plan.groups:
        if group.inputs:
            live_inputs(m, group.inputs, group.keys)
        _moved(m, group.moves, group.level)


def _moved(m: Manifest, refs: Sequence[SegmentRef], level: int) -> Manifest:
    """Return `m` with some segments on another level."""
    moving = set(refs)
    gone = moving.difference(m.segments)
    if gone:
        raise StalePlanError(
            f"segment {min(ref.id for ref in gone)} of {m.namespace!r}, which was to be moved, is "
            f"not live in generation {m.generation}; nothing was written; plan again"
        )
    segments = (msgspec.structs.replace(s, level=level) if s in moving else s for s in m.segments)
    return msgspec.structs.replace(m, segments=tuple(segments))
