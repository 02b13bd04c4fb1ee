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
- A listed object is durable, whether its writer has been answered or not. A writer that is told so
  later finds it folded, which its handle expects.
- Where the log ends in damage, the fold ends before it: only the next fence, or repair, says whether
  it counts. It ends also before a slot that repair gave up and no valid object follows. Damage that
  is followed by anything else is an error, as it is for recovery: nothing is published then.
- A log that ends before what a manifest has seen of it, or an object that was listed and is gone, is
  never an end of the log: either somebody has folded it, which the head tells, or it is lost.
- It is published only onto a head with the same `wal_floor`, on which the intent stands and repair
  has given up nothing in those slots that the fold took for good. Slots at or above `wal_floor` are
  never collected, so nothing that was read had been deleted and created again meanwhile.
- Parts enter the result by the driver's own walk along the chain. An error of a task counts only if
  the task had entered by the true state.

Crash points: before `plan` has returned, at most an intent. Before the publish, an intent and objects
that nothing names. After it, done: the intent went in the same generation.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from reef.engine import Context, write_window
from reef.errors import CorruptError, OutcomeUnknownError, ReefError, UnavailableError
from reef.format import DedupRef, Manifest, SegmentRef, SkippedSlot, decode_schema
from reef.jobs._fold._chain import DamagedSlot
from reef.jobs._fold._fold import FoldedPart, FoldPart, fold_part
from reef.jobs._fold._plan import Backlog, IndexOptions
from reef.jobs._fold._stitch import Attempt, Stitched, stitch
from reef.jobs._job import Job
from reef.jobs._tasks import Outcome, Progress, Runner
from reef.manifest import StalePlanError, end_intent, fold
from reef.types import check_namespace

_log = logging.getLogger("reef")


@dataclass(frozen=True)
class IndexPlan:
    """A job that is registered, and the tasks that it wants to be run."""

    job: Job
    manifest: Manifest
    """What it was planned on."""
    parts: tuple[FoldPart, ...]
    """In the order of slots, without a gap. Run `fold_part` for each, anywhere, in any order."""
    options: IndexOptions

    @property
    def namespace(self) -> str:
        return self.job.namespace

    @property
    def log_bytes(self) -> int:
        """Of the log objects to read."""
        return sum(part.log_bytes for part in self.parts)

    def give_up(self) -> None:
        """End the job, if that can be done: nothing of it will be published. Raises nothing."""
        try:
            self.job.end()
        except ReefError as error:
            _log.warning("job %s was given up, but its intent may stand: %s", self.job.id, error)


@dataclass(frozen=True)
class IndexTask:
    """What one task took."""

    slot_first: int
    slot_last: int
    rows: int
    log_bytes: int
    segment_bytes: int
    seconds: float
    peak_rss_bytes: int
    counted: bool
    """Whether what it wrote was published; False for one that was run again."""


@dataclass(frozen=True)
class IndexResult:
    """What an index pass did in one namespace."""

    namespace: str
    generation: int | None = None
    """The one that it published; None: there was nothing to fold, and nothing was published."""
    job_id: str | None = None
    slot_first: int = 0
    slot_last: int = 0
    rows: int = 0
    voids: int = 0
    log_bytes: int = 0
    segments: tuple[SegmentRef, ...] = ()
    """Written and published, newest first."""
    attached: tuple[SegmentRef, ...] = ()
    """Bulk loads whose segments the manifest names from now on."""
    skipped: tuple[SkippedSlot, ...] = ()
    """Damaged objects that fences have given up."""
    damaged: tuple[DamagedSlot, ...] = ()
    """Every damaged object that was met."""
    plans: int = 0
    """How often it was planned; more than once if others folded at the same time."""
    reruns: int = 0
    """Tasks that were run again from the true state of the chain."""
    tasks: tuple[IndexTask, ...] = field(default=(), repr=False)

    @property
    def segment_bytes(self) -> int:
        """Of the segments that were written and published."""
        return sum(ref.size for ref in self.segments)


def index(
    context: Context,
    namespace: str,
    runner: Runner,
    *,
    options: IndexOptions | None = None,
    progress: Progress | None = None,
) -> IndexResult:
    """Fold the log of one namespace into level-0 segments.

    Where there is nothing to fold, nothing is written at all. Raises NotFoundError if there is no such
    namespace; CorruptError if the log or the manifest needs `reef repair`; FencedError if somebody
    has ended the job; OutcomeUnknownError; UnavailableError.
    """
    plan = plan_index(context, namespace, options)
    if plan is None:
        return IndexResult(namespace)
    with _given_up_on_failure(plan):
        (outcomes,) = run_parts([plan], runner, progress)
    return finish_index(context, plan, outcomes, runner)


def plan_index(
    context: Context, namespace: str, options: IndexOptions | None = None
) -> IndexPlan | None:
    """Register a job that folds the log of `namespace`; None, and nothing written, if there is none.

    Reads no log object. Raises what `index` does.
    """
    options = options or IndexOptions()
    options.check()
    chain = context.chain(check_namespace(namespace))
    for _ in range(options.plans_max):
        backlog = Backlog.find(context, chain)
        if not backlog.is_worth(options):
            return None
        job = Job.begin(context, namespace, "index", chain=chain)
        manifest = job.head.manifest
        if manifest.wal_floor == backlog.manifest.wal_floor:
            found = Backlog(manifest, backlog.sizes)
            return IndexPlan(job, manifest, tuple(found.parts(job.id, options)), options)
        job.end()  # somebody else folded before the intent stood
    raise _overtaken(namespace, options.plans_max)


def run_parts(
    plans: Sequence[IndexPlan], runner: Runner, progress: Progress | None = None
) -> list[list[Outcome[FoldedPart]]]:
    """Run the tasks of many plans as one job of `runner`; return the outcomes of each plan."""
    parts = [part for plan in plans for part in plan.parts]
    names = plans[0].namespace if len(plans) == 1 else f"{len(plans)} namespaces"
    outcomes = iter(
        runner.run(
            fold_part,
            parts,
            FoldedPart,
            name=f"index {names}",
            weights=[part.log_bytes + 1 for part in parts],
            progress=progress,
        )
    )
    return [[next(outcomes) for _ in plan.parts] for plan in plans]


def finish_index(
    context: Context,
    plan: IndexPlan,
    outcomes: Sequence[Outcome[FoldedPart]],
    runner: Runner,
) -> IndexResult:
    """Stitch what the tasks of `plan` came back with, and publish it.

    `runner` runs again what has to be, and everything if somebody else has folded meanwhile. The job
    has ended when this returns or raises, but for OutcomeUnknownError: then it may stand, published
    or not. Raises what `index` does.
    """
    for plans in range(1, plan.options.plans_max + 1):
        with _given_up_on_failure(plan):
            try:
                return _finish(context, plan, outcomes, runner, plans)
            except StalePlanError:
                plan.give_up()
        again = plan_index(context, plan.namespace, plan.options)
        if again is None:
            return IndexResult(plan.namespace, plans=plans)
        plan = again
        with _given_up_on_failure(plan):
            (outcomes,) = run_parts([plan], runner)
    plan.give_up()
    raise _overtaken(plan.namespace, plan.options.plans_max)


def _finish(
    context: Context,
    plan: IndexPlan,
    outcomes: Sequence[Outcome[FoldedPart]],
    runner: Runner,
    plans: int,
) -> IndexResult:
    try:
        found = stitch(plan.manifest, plan.parts, outcomes, runner)
    except CorruptError:
        # Folded and collected since it was planned, perhaps: then what is missing is not lost.
        _check_current(context, plan)
        raise
    if found.slot_last < plan.manifest.wal_floor:
        plan.job.end()  # nothing but damage, which the next writer or repair decides about
        return IndexResult(plan.namespace, damaged=_damaged(found), plans=plans)
    generation = _publish(context, plan, found)
    return IndexResult(
        namespace=plan.namespace,
        generation=generation,
        job_id=plan.job.id,
        slot_first=plan.manifest.wal_floor,
        slot_last=found.slot_last,
        rows=sum(part.rows for part in found.parts),
        voids=sum(part.voids for part in found.parts),
        log_bytes=sum(part.log_bytes for part in found.parts),
        segments=found.segments,
        attached=found.attached,
        skipped=tuple(skip for part in found.parts for skip in part.skipped),
        damaged=_damaged(found),
        plans=plans,
        reruns=sum(not attempt.counted for attempt in found.attempts),
        tasks=tuple(map(_task, found.attempts)),
    )


def _publish(context: Context, plan: IndexPlan, found: Stitched) -> int:
    """Publish the fold and the end of its intent; return the generation."""
    job, manifest = plan.job, plan.manifest
    window = found.window(context, job.now_us)
    dedup: DedupRef | None = None
    if window is not None:
        dedup = write_window(context, plan.namespace, window)
    skipped = [skip for part in found.parts for skip in part.skipped]
    known = {*manifest.skipped_slots, *skipped}
    schema = decode_schema(pa.py_buffer(found.schema), "", 0) if found.schema else None

    def folded(m: Manifest) -> Manifest:
        done = fold(
            m,
            intent=job.id,
            slot_first=manifest.wal_floor,
            slot_last=found.slot_last,
            anchor=found.anchor,
            segments=(*found.attached, *found.segments),
            last_applied_lsn=found.lsn,
            dedup=dedup or m.dedup,
            skipped=skipped,
            schema=schema,
        )
        for skip in m.skipped_slots:
            if skip not in known and manifest.wal_floor <= skip.slot <= found.slot_last:
                raise StalePlanError(
                    f"log object {skip.slot} of {m.namespace!r} was given up in generation "
                    f"{m.generation} or before, while it was being folded; nothing was written: "
                    "plan it anew"
                )
        return end_intent(done, job.id)

    return job.publish(folded).generation


def _check_current(context: Context, plan: IndexPlan) -> None:
    """Raise StalePlanError if somebody has folded since `plan` was made."""
    head = context.chain(plan.namespace).load()
    if head is not None and head.manifest.wal_floor != plan.manifest.wal_floor:
        raise StalePlanError(
            f"the log of {plan.namespace!r} was folded up to slot {head.manifest.wal_floor - 1} "
            "meanwhile; nothing was written: plan it anew"
        )


@contextmanager
def _given_up_on_failure(plan: IndexPlan) -> Iterator[None]:
    try:
        yield
    except OutcomeUnknownError:
        raise  # nothing is cleaned up: it may have been published
    except BaseException:
        plan.give_up()
        raise


def _damaged(found: Stitched) -> tuple[DamagedSlot, ...]:
    return tuple(damaged for part in found.parts for damaged in part.damaged)


def _task(attempt: Attempt) -> IndexTask:
    part, outcome, folded = attempt.part, attempt.outcome, attempt.outcome.result
    return IndexTask(
        slot_first=part.slot_first,
        slot_last=part.slot_last,
        rows=0 if folded is None else folded.rows,
        log_bytes=part.log_bytes,
        segment_bytes=0 if folded is None else sum(ref.size for ref in folded.segments),
        seconds=outcome.seconds,
        peak_rss_bytes=outcome.peak_rss_bytes,
        counted=attempt.counted,
    )


def _overtaken(namespace: str, times: int) -> UnavailableError:
    return UnavailableError(
        f"the log of namespace {namespace!r} was folded by others {times} times while this job "
        "folded it; nothing of it was published: retry, if there is anything left to fold"
    )
