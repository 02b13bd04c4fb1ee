"""rebuild: all derived state of a namespace, derived again and published in one new generation.

    plan     by `reef.doctor`: where the log can be entered, as far below as it is whole; segments that
             hold what is below that point stay, what is above it is folded again
    fold     the tasks of `index`, from that point up to the head's `wal_floor`
    check    every block of the segments that stay, by the tasks of deep verify; what the log attaches
    publish  one manifest: the new segments and window instead of the old, and the end of the intent

It goes by rounds of tasks, so that those of many namespaces are run together. Epochs, the boundary, retention,
snapshots, pins and intents are the head's: they cannot be derived, and are not touched. Invariants:

- Nothing deleted comes back. A segment is named only if the head names it, or if this job wrote it from
  valid log objects. A segment that waits for collection is not named again: if the log attaches it, its
  rows are copied. What unpublished jobs have left is never used.
- Nothing is lost. The fold begins at slot 1, or where a retained generation says what the state of the
  chain was and which versions were in segments. No segment that stays has later versions, and none that
  is replaced has earlier ones. The fold must arrive at the very log object and version that the head
  names, and have at least the rows of the whole segments that it replaces. It skips a damaged log object
  only if a fence in the log names it: what repair skipped may have rows in segments only.
- The content is the same at every version that can be read: a fold drops nothing, so there may be more
  than retention would keep, never less.
- It is published only onto a head with the same segments, window and `wal_floor`. Otherwise others have
  folded or compacted, and it is planned again.

If anything is missing, nothing is published, and the error says what. Crash points are those of a job:
before the publish there is at most an intent, and objects that nothing names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from reef.compaction import MergeTask
from reef.doctor import FoldStart, RebuildPlan, has_no_manifest, plan_rebuild, stored_size
from reef.engine import Context
from reef.errors import (
    CorruptError,
    IncompleteError,
    InvariantError,
    NotFoundError,
    StalePlanError,
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
from reef.jobs._compaction._merge_round import merge_key_ranges
from reef.jobs._fold._stitch import Stitched, fold_parts, stitch
from reef.jobs._fold._unfolded_log import UnfoldedLog
from reef.jobs._job import Job
from reef.jobs._pass_protocol import Figures, TaskTimes, Work
from reef.jobs._rebuild._rebuild_result import RebuildOptions, RebuildResult
from reef.jobs._rebuild._window import live_window, renew_window
from reef.jobs._rebuild._without_manifests import rebuild_without_manifests
from reef.jobs._verify_pass import check_segments
from reef.log import parse_slot
from reef.manifest import end_intent, overlaps
from reef.types import unpack_lsn

if TYPE_CHECKING:
    from reef.jobs._driver import PassRun

_replace = msgspec.structs.replace


class RebuildPass:
    """Derives all segments and windows of namespaces again, with the same content."""

    kind = "rebuild"

    def __init__(self, options: RebuildOptions | None = None) -> None:
        """Raises InvalidInputError for options that make no sense."""
        self._options = options or RebuildOptions()
        self._options.check()
        self.recorded_options: dict[str, Any] = msgspec.to_builtins(self._options)

    def work(self, run: PassRun, namespace: str) -> Work[RebuildResult]:
        """Rebuild one namespace."""
        return rebuild_namespace(run.context, namespace, self._options)

    def figures(self, result: RebuildResult) -> Figures:
        """Return what the record says about one namespace."""
        numbers = {
            "rows": result.rows,
            "bytes_in": result.log_bytes,
            "bytes_out": sum(ref.size for ref in result.segments),
            "segments": len(result.segments),
            "kept": len(result.kept),
            "replaced": len(result.replaced),
        }
        return Figures(numbers, result.generation, TaskTimes.of(result.tasks))


def rebuild_namespace(
    context: Context, namespace: str, options: RebuildOptions
) -> Work[RebuildResult]:
    """Derive all segments and the window of a namespace again, the same at every readable version.

    Where all manifests are gone, one is made of what the rest proves: see `rebuild_without_manifests`.
    Raises NotFoundError if there is no such namespace; CorruptError or IncompleteError if something is
    missing; StalePlanError if someone has ended the job; OutcomeUnknownError; UnavailableError, also if
    others keep changing the namespace.
    """
    for plans in range(1, options.fold.plans_max + 1):
        try:
            plan = plan_rebuild(context, namespace)
        except CorruptError:
            if not has_no_manifest(context, namespace):
                raise
            return (yield from rebuild_without_manifests(context, namespace, options))
        try:
            result = yield from _Rebuild(context, plan, options, plans).run()
            if result is not None:
                return result
        except (CorruptError, IncompleteError, NotFoundError):
            head = context.chain(namespace).load()
            if head is None or plan.is_like(head.manifest):
                raise
            # What is missing may have been compacted or collected in the meantime.
    raise UnavailableError(
        f"others changed namespace {namespace!r} {options.fold.plans_max} times while it was rebuilt; "
        "nothing was published; retry when fewer jobs run"
    )


@dataclass
class _Refolded:
    """The log, folded again from one start on."""

    start: FoldStart
    stitched: Stitched
    attached: tuple[SegmentRef, ...]
    """Attached segments that stay: the head names them."""
    copies: tuple[SegmentRef, ...]
    copied: tuple[str, ...]

    @property
    def written(self) -> tuple[SegmentRef, ...]:
        """All new segments, newest first."""
        written = (*self.copies, *self.stitched.segments)
        return tuple(sorted(written, key=lambda ref: ref.lsn_max, reverse=True))


class _Rebuild:
    """One plan, carried out."""

    def __init__(
        self, context: Context, plan: RebuildPlan, options: RebuildOptions, plans: int
    ) -> None:
        self._context = context
        self._plan = plan
        self._m = plan.head
        self._namespace = plan.head.namespace
        self._options = options
        self._plans = plans
        self._passed_by: list[str] = list(plan.passed_by)

    def run(self) -> Work[RebuildResult | None]:
        """Return the result; None if others have changed the namespace: it is to be planned again."""
        if not self._plan.starts:
            return (yield from self._check_all())
        job = Job.begin(self._context, self._namespace, "rebuild")
        with job.given_up_on_error():
            if not self._plan.is_like(job.head.manifest):
                job.give_up()
                return None
            refolded = yield from self._refold_lowest(job)
            if refolded is None:
                job.end()
                return (yield from self._check_all())
            try:
                return (yield from self._publish(job, refolded))
            except StalePlanError:
                job.check_not_ended()
                job.give_up()
                return None

    # From the log.

    def _refold_lowest(self, job: Job) -> Work[_Refolded | None]:
        """Return the log, folded from as far below as possible; None: from no start."""
        above = 0
        for start in self._plan.starts:
            if start.slot < above:
                continue
            try:
                return (yield from self._refold(job, start))
            except _CannotFold as refused:
                self._passed_by.append(f"from slot {start.slot}: {refused}")
                above = refused.slot + 1
        return None

    def _refold(self, job: Job, start: FoldStart) -> Work[_Refolded]:
        unfolded = UnfoldedLog(start.base, self._plan.sizes(start))
        parts = tuple(unfolded.parts(job.id, self._options.fold))
        outcomes = yield fold_parts(parts)
        try:
            stitched = yield from stitch(start.base, parts, outcomes)
        except UnreadableError as error:
            # Damage that is not in the log leaves no other start.
            slot = parse_slot(error.key.rsplit("/", 1)[-1]) or self._m.wal_floor
            raise _CannotFold(str(error), slot) from error
        self._check_arrival(stitched)
        live = {*self._m.segments}  # whole, as it was attached
        stay = tuple(ref for ref in stitched.attached if ref in live)
        others = [ref for ref in stitched.attached if ref not in live]
        copies = yield from self._copied(job, others)
        refolded = _Refolded(start, stitched, stay, copies, tuple(ref.id for ref in others))
        rows = sum(ref.rows for ref in (*refolded.written, *stay))
        # Of a clipped segment the number of visible rows is not known.
        replaced = sum(
            ref.rows
            for ref in start.replaced
            if ref.clip_key_min is None and ref.clip_key_max is None
        )
        if rows < replaced:
            raise _CannotFold(f"it has {rows} rows, and segments have {replaced}", 0)
        return refolded

    def _check_arrival(self, stitched: Stitched) -> None:
        """Raise unless the fold arrived at the log object and version that the head names."""
        m = self._m
        if stitched.state.damaged:
            damaged = stitched.state.damaged[0]
            raise _CannotFold(f"log object {damaged.slot} is damaged", damaged.slot)
        if (stitched.anchor, stitched.lsn) != (m.wal_anchor, m.last_applied_lsn):
            raise _CannotFold(
                f"it ends at {stitched.anchor} and version {stitched.lsn}, and the manifest says "
                f"{m.wal_anchor} and version {m.last_applied_lsn}",
                0,
            )
        if stitched.schema:
            schema = decode_schema(pa.py_buffer(stitched.schema), "", 0)
            if not m.schema or not schema.equals(decode_schema(pa.py_buffer(m.schema), "", 0)):
                raise _CannotFold("it sets another schema than the manifest has", 0)

    def _copied(self, job: Job, refs: Sequence[SegmentRef]) -> Work[tuple[SegmentRef, ...]]:
        """Copy attached segments that are no longer live: their rows at their versions."""
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
                is_packed=self._m.lsn_policy == "packed",
            )
            for number, ref in enumerate(refs)
        ]
        outcomes = yield merge_key_ranges(tasks)
        copies = []
        for ref, outcome in zip(refs, outcomes, strict=True):
            try:
                copied = outcome.returned().segment
            except (NotFoundError, UnreadableError) as error:
                slot = unpack_lsn(ref.lsn_max)[0] if self._m.lsn_policy == "packed" else 0
                raise _CannotFold(f"it attaches segment {ref.id}: {error}", slot) from error
            if copied is None or copied.rows != ref.rows:
                raise InvariantError(
                    f"segment {ref.id} was not copied whole; nothing was published"
                )
            copies.append(copied)
        return tuple(copies)

    # What stays.

    def _check_kept(self, refs: Sequence[SegmentRef]) -> Work[None]:
        """Raise CorruptError, which names all damaged or missing segments, unless every block is sound."""
        problems: list[str] = []
        keys: list[str] = []
        store = self._context.store
        named = {segment_key(ref.namespace or self._namespace, ref.id): ref for ref in refs}
        sized = [(ref, stored_size(store, key)) for key, ref in named.items()]
        for facts in (yield from check_segments(self._namespace, sized, self._options.verify)):
            if not facts.is_sound:
                keys.append(facts.key)
                what = "missing" if facts.is_missing else "; ".join(map(str, facts.errors))
                problems.append(f"{facts.key} ({facts.ref.rows} rows): {what}")
        if problems:
            reasons = "; ".join(self._passed_by)
            raise CorruptError(
                keys[0],
                0,
                "sound segments for what is no longer in the log",
                "; ".join(problems)
                + (f"; the log does not have their rows: {reasons}" if reasons else "")
                + "; nothing was published: `reef repair` may restore them from what they replaced",
            )

    def _check_all(self) -> Work[RebuildResult]:
        """Check everything that is there: nothing of it can be derived again."""
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

    def _publish(self, job: Job, refolded: _Refolded) -> Work[RebuildResult]:
        start, m = refolded.start, self._m
        yield from self._check_kept((*start.kept, *refolded.attached))
        dedup, window = renew_window(self._context, m, refolded.stitched, job.now_us)
        segments = (*refolded.attached, *refolded.written, *start.kept)
        for a, b in overlaps(segments):
            raise InvariantError(
                f"segments {a.id} and {b.id} of {self._namespace!r} would share keys and versions; "
                "nothing was published"
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
        attached = {ref.id for ref in refolded.attached}
        stitched = refolded.stitched
        return RebuildResult(
            namespace=self._namespace,
            generation=generation,
            job_id=job.id,
            slot_first=start.slot,
            slot_last=m.wal_floor - 1,
            rows=sum(ref.rows for ref in refolded.written),
            log_bytes=sum(part.log_bytes for part in stitched.parts),
            segments=refolded.written,
            copied=refolded.copied,
            kept=(*refolded.attached, *start.kept),
            replaced=tuple(ref for ref in start.replaced if ref.id not in attached),
            window=window,
            passed_by=tuple(self._passed_by),
            plans=self._plans,
            tasks=stitched.tasks,
        )

    def _check_head(self, head: Manifest, job: Job) -> None:
        """Raise unless the plan still holds on this head, and the intent stands."""
        if not self._plan.is_like(head):
            raise StalePlanError(
                f"namespace {self._namespace!r} was folded, compacted or repaired in generation "
                f"{head.generation} or before, while it was rebuilt; nothing was published; plan again"
            )
        job.check_standing(head)


class _CannotFold(Exception):
    """The log cannot be folded from this start on; perhaps it can from behind `slot`."""

    def __init__(self, why: str, slot: int) -> None:
        super().__init__(why)
        self.slot = slot
