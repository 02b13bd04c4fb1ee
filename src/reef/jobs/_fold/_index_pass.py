"""index: folding the unfolded log into level-0 segments, as a job beside the writer.

    plan     the head's manifest, and a LIST of the log behind it: contiguous parts, one task each
    fold     the tasks, side by side; each says how it enters and leaves the chain
    stitch   in the order of slots: a part that assumed wrongly is folded again from the truth
    publish  one manifest: the segments instead of the slots, and the end of the intent

What is folded is final. Invariants:

- A fold begins at the head's `wal_floor` and takes the log as far as it was listed without a gap. An
  object that is there never changes, and whether it is valid depends on what lies at or below it
  only: no write, fence or repair that comes later can decide it otherwise. What lies behind a gap
  was in flight, and is left for the next pass.
- A listed object is durable, whether its writer has had an answer or not. A writer that gets its answer
  later finds the object folded, which its handle expects.
- Where the log ends in damage, the fold ends before it: only the next fence, or repair, decides whether
  it counts. It also ends before a slot that repair skipped if no valid object follows. Damage that
  is followed by anything else is an error, as it is for recovery: nothing is published then.
- A log that ends before what a manifest has seen of it, or an object that was listed and is gone, is
  never the end of the log: either it was folded, which the head shows, or it is lost.
- It is published only onto a head with the same `wal_floor`, on which the intent stands and repair
  has skipped nothing in those slots that the fold took for good. Slots at or above `wal_floor` are
  never collected, so nothing that was read can have been deleted and created again.
- Parts enter the result by the driver's own walk along the chain. An error of a task counts only if
  the task began from the true state.

Crash points: before `plan` has returned, at most an intent. Before the publish, an intent and objects
that nothing names. After it, done: the intent went in the same generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from reef.engine import Context, write_window
from reef.errors import CorruptError, StalePlanError, UnavailableError
from reef.format import DedupRef, Manifest, SegmentRef, SkippedSlot, decode_schema
from reef.jobs._fold._fold_part import FoldedPart, FoldPart
from reef.jobs._fold._part_chain import DamagedSlot
from reef.jobs._fold._stitch import FoldResult, Stitched, fold_parts, stitch
from reef.jobs._fold._unfolded_log import IndexOptions, UnfoldedLog
from reef.jobs._job import Job
from reef.jobs._pass_protocol import Figures, TaskTimes, Work
from reef.jobs._tasks import TaskOutcome
from reef.manifest import advance_floor, end_intent

if TYPE_CHECKING:
    from reef.jobs._driver import PassRun


@dataclass(frozen=True)
class IndexPlan:
    """A registered job, and the parts of the log that its tasks fold."""

    job: Job
    manifest: Manifest
    """The head that it was planned on."""
    parts: tuple[FoldPart, ...]
    """In the order of slots, without a gap. Run `fold_part` for each, anywhere, in any order."""

    @property
    def namespace(self) -> str:
        return self.job.namespace


@dataclass(frozen=True)
class IndexResult(FoldResult):
    """What an index pass did in one namespace."""

    voids: int = 0
    attached: tuple[SegmentRef, ...] = ()
    """Segments of bulk loads that the manifest names from now on."""
    skipped: tuple[SkippedSlot, ...] = ()
    """Damaged log objects that fences name as skipped."""
    damaged: tuple[DamagedSlot, ...] = ()
    """All damaged log objects."""
    reruns: int = 0
    """Tasks that were run again from the true state of the chain."""


class IndexPass:
    """Folds the log of namespaces into level-0 segments."""

    kind = "index"

    def __init__(self, options: IndexOptions | None = None) -> None:
        """Raises InvalidInputError for options that make no sense."""
        self._options = options or IndexOptions()
        self._options.check()
        self.recorded_options: dict[str, Any] = msgspec.to_builtins(self._options)

    def work(self, run: PassRun, namespace: str) -> Work[IndexResult]:
        """Fold the log of one namespace."""
        return fold_namespace(run.context, namespace, self._options)

    def figures(self, result: IndexResult) -> Figures:
        """Return what the record says about one namespace."""
        numbers = {
            "rows": result.rows,
            "log_objects": result.slot_last - result.slot_first + 1 if result.slot_last else 0,
            "bytes_in": result.log_bytes,
            "bytes_out": result.segment_bytes,
            "segments": len(result.segments),
            "attached": len(result.attached),
        }
        return Figures(numbers, result.generation, TaskTimes.of(result.tasks))


def fold_namespace(context: Context, namespace: str, options: IndexOptions) -> Work[IndexResult]:
    """Fold the log of one namespace into level-0 segments; plan again if others have folded.

    Where there is nothing to fold, nothing is written at all. Raises NotFoundError if there is no such
    namespace; CorruptError if the log or the manifest needs `reef repair`; StalePlanError if someone
    has ended the job; OutcomeUnknownError (the job may stand then, published or not); UnavailableError.
    """
    for plans in range(1, options.plans_max + 1):
        plan = plan_index(context, namespace, options)
        if plan is None:
            return IndexResult(namespace, plans=plans - 1)
        with plan.job.given_up_on_error():
            outcomes = yield fold_parts(plan.parts)
            try:
                return (yield from _finish(context, plan, outcomes, plans))
            except StalePlanError:
                plan.job.check_not_ended()
                plan.job.give_up()
    raise _folded_by_others(namespace, options.plans_max)


def plan_index(context: Context, namespace: str, options: IndexOptions) -> IndexPlan | None:
    """Register a job that folds the log of `namespace`; None, and nothing written, if there is none.

    Reads no log object. Raises what `fold_namespace` does.
    """
    chain = context.chain(namespace)
    for _ in range(options.plans_max):
        unfolded = UnfoldedLog.find(context, chain)
        if not unfolded.is_worth(options):
            return None
        job = Job.begin(context, namespace, "index", chain=chain)
        manifest = job.head.manifest
        if manifest.wal_floor == unfolded.manifest.wal_floor:
            parts = UnfoldedLog(manifest, unfolded.sizes).parts(job.id, options)
            return IndexPlan(job, manifest, tuple(parts))
        job.end()  # others folded before the intent stood
    raise _folded_by_others(namespace, options.plans_max)


def _finish(
    context: Context, plan: IndexPlan, outcomes: Sequence[TaskOutcome[FoldedPart]], plans: int
) -> Work[IndexResult]:
    """Stitch what the tasks of `plan` made, and publish it."""
    try:
        stitched = yield from stitch(plan.manifest, plan.parts, outcomes)
    except CorruptError:
        # It may have been folded and collected since it was planned: then nothing is lost.
        _check_current(context, plan)
        raise
    if stitched.slot_last < plan.manifest.wal_floor:
        plan.job.end()  # only damage, which the next writer or repair decides about
        return IndexResult(plan.namespace, damaged=_all_damaged(stitched), plans=plans)
    generation = _publish_fold(context, plan, stitched)
    return IndexResult(
        namespace=plan.namespace,
        generation=generation,
        job_id=plan.job.id,
        slot_first=plan.manifest.wal_floor,
        slot_last=stitched.slot_last,
        rows=sum(part.rows for part in stitched.parts),
        voids=sum(part.voids for part in stitched.parts),
        log_bytes=sum(part.log_bytes for part in stitched.parts),
        segments=stitched.segments,
        attached=stitched.attached,
        skipped=tuple(skip for part in stitched.parts for skip in part.skipped),
        damaged=_all_damaged(stitched),
        plans=plans,
        reruns=sum(not task.counted for task in stitched.tasks),
        tasks=stitched.tasks,
    )


def _publish_fold(context: Context, plan: IndexPlan, stitched: Stitched) -> int:
    """Publish the fold and the end of its intent; return the generation."""
    job, manifest = plan.job, plan.manifest
    window = stitched.window(context, job.now_us)
    dedup: DedupRef | None = None
    if window is not None:
        dedup = write_window(context, plan.namespace, window)
    skipped = [skip for part in stitched.parts for skip in part.skipped]
    known = {*manifest.skipped_slots, *skipped}
    schema = decode_schema(pa.py_buffer(stitched.schema), "", 0) if stitched.schema else None

    def folded(m: Manifest) -> Manifest:
        done = advance_floor(
            m,
            intent=job.id,
            slot_first=manifest.wal_floor,
            slot_last=stitched.slot_last,
            anchor=stitched.anchor,
            segments=(*stitched.attached, *stitched.segments),
            last_applied_lsn=stitched.lsn,
            dedup=dedup or m.dedup,
            skipped=skipped,
            schema=schema,
        )
        for skip in m.skipped_slots:
            if skip not in known and manifest.wal_floor <= skip.slot <= stitched.slot_last:
                raise StalePlanError(
                    f"log object {skip.slot} of {m.namespace!r} was skipped by generation "
                    f"{m.generation} or an earlier one while it was being folded; nothing was "
                    "written; plan again"
                )
        return end_intent(done, job.id)

    return job.publish(folded).generation


def _check_current(context: Context, plan: IndexPlan) -> None:
    """Raise StalePlanError if the log was folded since `plan` was made."""
    head = context.chain(plan.namespace).load()
    if head is not None and head.manifest.wal_floor != plan.manifest.wal_floor:
        raise StalePlanError(
            f"the log of {plan.namespace!r} was folded up to slot {head.manifest.wal_floor - 1} "
            "in the meantime; nothing was written; plan again"
        )


def _all_damaged(stitched: Stitched) -> tuple[DamagedSlot, ...]:
    return tuple(damaged for part in stitched.parts for damaged in part.damaged)


def _folded_by_others(namespace: str, times: int) -> UnavailableError:
    return UnavailableError(
        f"others folded the log of namespace {namespace!r} before this job could, {times} times; this "
        "job published nothing; retry if there is anything left to fold"
    )
