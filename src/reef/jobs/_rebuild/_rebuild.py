"""rebuild: everything that a namespace derives, made anew from the bucket, in one new generation.

    plan     where the log can be entered, as far below as it is whole; what lies below that point is
             in segments that stay, what lies above it is folded again
    fold     the tasks of `index`, from that point up to the head's `wal_floor`
    check    every block of the segments that stay, by the tasks of deep verify; what the log attaches
    publish  one manifest: the new segments and window instead of the old, and the end of the intent

It goes by stages, so that the tasks of many namespaces are run together. Epochs, the boundary, retention,
snapshots, pins and intents are the head's: they cannot be derived, and are not touched. Invariants:

- Nothing comes back. A segment is named only if the head names it, or if it was written by this job
  from valid log objects. What waits for collection is not named again: if the log attaches it, its rows
  are copied. What unpublished jobs have left is never looked at.
- Nothing is lost. The fold begins where a retained generation, or the beginning, says how the chain
  stands and which versions are reflected; no segment that stays reaches beyond that, and none that goes
  below it. It must arrive at the very log object and version that the head names, and have at least the
  rows of the whole segments that it replaces. A damaged log object is passed over only if a fence in
  the log names it: what repair has given up may have rows in segments that the log has not any more.
- At every version that can be read the content is the same: a fold drops nothing, so there is more than
  retention would keep, never less.
- It is published only onto a head that has the same segments, window and `wal_floor`. Otherwise
  somebody has folded or compacted, and it is planned anew.

Where anything is missing, nothing is published, and the error says what. Crash points: those of a job;
before the publish there is at most an intent, and objects that nothing names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from reef.doctor import FoldStart
from reef.engine import Context
from reef.errors import (
    CorruptError,
    IncompleteError,
    InvariantError,
    NotFoundError,
    OutcomeUnknownError,
    ReefError,
    UnavailableError,
    UnreadableError,
)
from reef.format import (
    Manifest,
    PendingDelete,
    SegmentRef,
    decode_schema,
    dedup_key,
    segment_key,
)
from reef.jobs._compaction._task import MergedRange, MergeTask, merge_range
from reef.jobs._fold._fold import FoldedPart, fold_part
from reef.jobs._fold._stitch import Stitched, stitch
from reef.jobs._job import Job
from reef.jobs._rebuild._check import checked
from reef.jobs._rebuild._plan import Ground, find_ground
from reef.jobs._rebuild._result import RebuildOptions, RebuildResult, RebuildTask
from reef.jobs._rebuild._window import live_window, renew_window
from reef.jobs._stages import Stage, Steps, run_alone
from reef.jobs._tasks import Progress, Runner
from reef.manifest import StalePlanError, check_intent, end_intent, overlaps
from reef.types import check_namespace

_log = logging.getLogger("reef")
_replace = msgspec.structs.replace


def rebuild(
    context: Context,
    namespace: str,
    runner: Runner,
    *,
    options: RebuildOptions | None = None,
    progress: Progress | None = None,
) -> RebuildResult:
    """Make all derived state of a namespace anew, equal in content at every version that can be read.

    Raises NotFoundError if there is no such namespace; CorruptError or IncompleteError, which say what
    is missing, if it could not be equal; FencedError if somebody has ended the job; OutcomeUnknownError;
    UnavailableError, also if others keep changing the namespace.
    """
    steps = rebuilding(context, namespace, lambda: runner, options or RebuildOptions())
    return run_alone(steps, runner, name=f"rebuild {namespace}", progress=progress)


def rebuilding(
    context: Context, namespace: str, runner: Callable[[], Runner], options: RebuildOptions
) -> Steps[RebuildResult]:
    """Do what `rebuild` does, by stages; `runner` gives who runs again what assumed wrongly."""
    options.check()
    for plans in range(1, options.fold.plans_max + 1):
        ground = find_ground(context, check_namespace(namespace))
        try:
            return (yield from _Run(context, ground, runner, options, plans).run())
        except StalePlanError:
            continue
        except (CorruptError, IncompleteError, NotFoundError):
            head = context.chain(namespace).load()
            if head is None or ground.is_like(head.manifest):
                raise
            # What is missing may have been compacted or collected since.
    raise UnavailableError(
        f"namespace {namespace!r} was changed by others {options.fold.plans_max} times while it was "
        "rebuilt; nothing was published: retry when less is going on"
    )


@dataclass
class _Found:
    """What the log has given from one entry on."""

    start: FoldStart
    stitched: Stitched
    attached: tuple[SegmentRef, ...]
    """Those that stay: the head names them."""
    copies: tuple[SegmentRef, ...]
    copied: tuple[str, ...]

    @property
    def written(self) -> tuple[SegmentRef, ...]:
        """Newest first."""
        found = (*self.copies, *self.stitched.segments)
        return tuple(sorted(found, key=lambda ref: ref.lsn_max, reverse=True))


class _Run:
    """One plan, carried out."""

    def __init__(
        self,
        context: Context,
        ground: Ground,
        runner: Callable[[], Runner],
        options: RebuildOptions,
        plans: int,
    ) -> None:
        self._context = context
        self._ground = ground
        self._m = ground.manifest
        self._namespace = ground.manifest.namespace
        self._runner = runner
        self._options = options
        self._plans = plans
        self._passed_by: list[str] = list(ground.passed_by)

    def run(self) -> Steps[RebuildResult]:
        """Return what was done. Raises StalePlanError if it has to be planned anew."""
        if not self._ground.starts:
            return (yield from self._nothing_anew())
        job = Job.begin(self._context, self._namespace, "rebuild")
        try:
            if not self._ground.is_like(job.head.manifest):
                raise StalePlanError(f"{self._namespace!r} was changed while it was looked at")
            found = yield from self._lowest(job)
            if found is None:
                job.end()
                return (yield from self._nothing_anew())
            return (yield from self._publish(job, found))
        except OutcomeUnknownError:
            raise  # nothing is cleaned up: it may have been published
        except BaseException:
            _give_up(job)
            raise

    # From the log.

    def _lowest(self, job: Job) -> Steps[_Found | None]:
        """Return what the log gives from as far below as it can be folded; None: from nowhere."""
        above = 0
        for start in self._ground.starts:
            if start.slot < above:
                continue
            try:
                return (yield from self._folded(job, start))
            except _CannotFold as refused:
                self._passed_by.append(f"from slot {start.slot}: {refused}")
                above = refused.slot + 1
        return None

    def _folded(self, job: Job, start: FoldStart) -> Steps[_Found]:
        parts = self._ground.parts(start, job.id, self._options)
        sizes = [part.log_bytes for part in parts]
        outcomes = yield Stage(fold_part, parts, FoldedPart, sizes)
        try:
            stitched = stitch(start.base, parts, outcomes, self._runner())
        except UnreadableError as error:
            raise _CannotFold(str(error), self._ground.slot_of(error.key)) from error
        self._check_arrival(stitched)
        live = {*self._m.segments}  # as it was attached, all of it
        stay = tuple(ref for ref in stitched.attached if ref in live)
        others = [ref for ref in stitched.attached if ref not in live]
        copies = yield from self._copied(job, others)
        found = _Found(start, stitched, stay, copies, tuple(ref.id for ref in others))
        rows = sum(ref.rows for ref in (*found.written, *stay))
        # A part of a segment does not say how many of its rows it has.
        replaced = sum(
            ref.rows
            for ref in start.replaced
            if ref.clip_key_min is None and ref.clip_key_max is None
        )
        if rows < replaced:
            raise _CannotFold(f"it has {rows} rows, and segments have {replaced}", 0)
        return found

    def _check_arrival(self, stitched: Stitched) -> None:
        """Raise unless the fold has come to where the head says that the log was."""
        m = self._m
        if stitched.state.damaged:
            damaged = stitched.state.damaged[0]
            raise _CannotFold(f"log object {damaged.slot} is damaged", damaged.slot)
        found = (stitched.anchor, stitched.lsn)
        if found != (m.wal_anchor, m.last_applied_lsn):
            told = f"{m.wal_anchor} and version {m.last_applied_lsn}"
            raise _CannotFold(f"it comes to {found[0]} and version {found[1]}, not to {told}", 0)
        if stitched.schema:
            schema = decode_schema(pa.py_buffer(stitched.schema), "", 0)
            if not m.schema or not schema.equals(decode_schema(pa.py_buffer(m.schema), "", 0)):
                raise _CannotFold("it sets another schema than the manifest has", 0)

    def _copied(self, job: Job, refs: Sequence[SegmentRef]) -> Steps[tuple[SegmentRef, ...]]:
        """Write the rows of attached segments that are not live any more, at their versions."""
        if not refs:
            return ()
        tasks = [
            MergeTask(
                namespace=self._namespace,
                job=job.id,
                group=number,
                part=(1, 1),
                inputs=(ref,),
                replaced=(ref.id,),
                start=b"",
                end=ref.key_max + b"\0",
                floor_lsn=0,
                points=(),
                is_bottom=False,
                codec="lz4",
                level=0,
                bytes_in=ref.size,
            )
            for number, ref in enumerate(refs)
        ]
        outcomes = yield Stage(merge_range, tasks, MergedRange, [ref.size for ref in refs])
        copies = []
        for ref, outcome in zip(refs, outcomes, strict=True):
            try:
                copied = outcome.returned().segment
            except (NotFoundError, UnreadableError) as error:
                slot = self._ground.slot_of_lsn(ref.lsn_max)
                raise _CannotFold(f"segment {ref.id}, which it attaches: {error}", slot) from error
            if copied is None or copied.rows != ref.rows:
                raise InvariantError(
                    f"segment {ref.id} was not copied whole; nothing was published"
                )
            copies.append(copied)
        return tuple(copies)

    # What stays.

    def _check_kept(self, refs: Sequence[SegmentRef]) -> Steps[None]:
        """Raise CorruptError, naming all that is damaged or missing, unless every block is sound."""
        problems: list[str] = []
        keys: list[str] = []
        found = yield from checked(self._context, self._namespace, refs, self._options.verify)
        for facts in found:
            if not facts.is_sound:
                keys.append(facts.key)
                what = "missing" if facts.is_missing else "; ".join(map(str, facts.errors))
                problems.append(f"{facts.key} ({facts.ref.rows} rows): {what}")
        if problems:
            reasons = "; ".join(self._passed_by)
            raise CorruptError(
                keys[0],
                0,
                "sound segments for what the log has not any more",
                "; ".join(problems)
                + (f"; the log does not have their rows: {reasons}" if reasons else "")
                + "; nothing was published: `reef repair` may restore them from what they replaced",
            )

    def _nothing_anew(self) -> Steps[RebuildResult]:
        """Check what is there, of which nothing can be made anew."""
        yield from self._check_kept(self._m.segments)
        live_window(self._context, self._m)
        return RebuildResult(
            self._namespace,
            kept=self._m.segments,
            window="none" if self._m.dedup is None else "kept",
            passed_by=tuple(self._passed_by),
            plans=self._plans,
        )

    # Publishing.

    def _publish(self, job: Job, found: _Found) -> Steps[RebuildResult]:
        start, m = found.start, self._m
        yield from self._check_kept((*start.kept, *found.attached))
        dedup, window = renew_window(self._context, m, found.stitched, job.now_us)
        segments = (*found.attached, *found.written, *start.kept)
        for a, b in overlaps(segments):
            raise InvariantError(
                f"segments {a.id} and {b.id} of {self._namespace!r} would have keys and versions in "
                "common; nothing was published"
            )
        staying = {ref.id for ref in segments if not ref.namespace}
        left = dict.fromkeys(ref.id for ref in m.segments if not ref.namespace)
        gone = [segment_key(self._namespace, id) for id in left if id not in staying]
        if m.dedup is not None and m.dedup != dedup:
            gone.append(dedup_key(self._namespace, m.dedup.id))

        def renewed(head: Manifest) -> Manifest:
            self._check_head(head, job)
            waiting = [PendingDelete(key, head.generation + 1) for key in gone]
            pending = (*head.gc.pending, *waiting)
            new = _replace(
                head, segments=segments, dedup=dedup, gc=_replace(head.gc, pending=pending)
            )
            return end_intent(new, job.id)

        generation = job.publish(renewed).generation
        attached = {ref.id for ref in found.attached}
        stitched = found.stitched
        return RebuildResult(
            namespace=self._namespace,
            generation=generation,
            job_id=job.id,
            slot_first=start.slot,
            slot_last=m.wal_floor - 1,
            rows=sum(ref.rows for ref in found.written),
            log_bytes=sum(part.log_bytes for part in stitched.parts),
            segments=found.written,
            copied=found.copied,
            kept=(*found.attached, *start.kept),
            replaced=tuple(ref for ref in start.replaced if ref.id not in attached),
            window=window,
            passed_by=tuple(self._passed_by),
            plans=self._plans,
            tasks=tuple(map(RebuildTask.of, found.stitched.attempts)),
        )

    def _check_head(self, head: Manifest, job: Job) -> None:
        """Raise unless what was planned, and the job, still hold on this head."""
        if not self._ground.is_like(head):
            raise StalePlanError(
                f"namespace {self._namespace!r} was folded, compacted or repaired in generation "
                f"{head.generation} or before, while it was rebuilt; nothing was published: "
                "plan it anew"
            )
        check_intent(head, job.id)


class _CannotFold(Exception):
    """The log does not give everything from here on; perhaps it does from behind `slot`."""

    def __init__(self, why: str, slot: int) -> None:
        super().__init__(why)
        self.slot = slot


def _give_up(job: Job) -> None:
    try:
        job.end()
    except ReefError as error:
        _log.warning("job %s was given up, but its intent may stand: %s", job.id, error)
