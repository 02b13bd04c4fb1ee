"""Repair: mend what damage can be mended, and say exactly what is lost.

Invariants:

- Nothing is written in a dry run.
- Nothing is deleted and nothing overwritten. A damaged object is copied to quarantine and passed over
  by name; its own name stays taken until collection passes it.
- What live writers hold in memory and what readers decide must not part: before a log object is given
  up, or rows are written anew, every writer is fenced, by a new epoch and by fences in the log.
- The loss of rows that may have been acknowledged is told first, as keys and LSNs.

1. Copy damaged objects to quarantine.           crash: copies that nobody needs
2. Mark empty slots of the log.                  crash: damaged objects, as repair finds them again
3. Publish: a new head behind damaged ones, the  crash: the log can be read again; segments and the
   slots to skip, the boundary, the epochs.      window are as before
4. Put fences, which name damage at the head.    crash: the same
5. Upload segments and the window anew.          crash: orphans of this epoch
6. Publish the manifest that names them.         crash: done

Every step can be repeated: a repair that crashed is finished by the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from reef.doctor._findings import Finding, Progress, silent
from reef.doctor._repair_plan import Planner, RepairPlan, RepairStep, StepState
from reef.doctor._restore_rows import Restored
from reef.doctor._verify import Survey, survey_namespace
from reef.doctor._verify_segments import overlaps
from reef.engine import Context, lost_pins, write_window
from reef.errors import FencedError, InvariantError, NotFoundError
from reef.format import (
    PARALLEL_WRITES_MAX,
    DedupRef,
    Lease,
    Manifest,
    PendingDelete,
    SegmentOptions,
    SegmentOrigin,
    SegmentRef,
    SkippedSlot,
    damaged_checksum,
    dedup_key,
    log_key,
    segment_key,
)
from reef.log import Fencing, LogFold, LogReader, check_epoch, put_fences
from reef.manifest import (
    Head,
    ManifestChain,
    StalePlanError,
    advance_boundary,
    open_compactor,
    open_writer,
)
from reef.segment import write_segment
from reef.store import create
from reef.types import new_nonce, new_ulid

_ATTEMPTS = 3
_MARK = b"reef repair: the log object that was here is gone "

_replace = msgspec.structs.replace


@dataclass(frozen=True)
class RepairReport:
    """What repair would do, or has done."""

    namespace: str
    applied: bool
    """Whether anything was done."""
    steps: tuple[RepairStep, ...]
    writer: str
    """Who opened the namespace for writing last, "" if nobody has: steps that fence end its turn."""
    fences: bool
    """Whether writers are fenced by it."""
    generation: int | None
    """The newest generation that can be read, after what was done."""
    problems: tuple[Finding, ...]
    """What is wrong; after what was done, where something was."""
    notes: tuple[Finding, ...]

    @property
    def is_mended(self) -> bool:
        """Whether nothing is wrong, any more."""
        is_done = all(step.state not in ("refused", "impossible") for step in self.steps)
        return is_done and not self.problems


def repair(
    context: Context,
    namespace: str,
    *,
    apply: bool = False,
    accept_loss: bool = False,
    progress: Progress = silent,
) -> RepairReport:
    """Look at everything, every block too, and mend what can be; without `apply`, tell what it would do.

    `accept_loss` allows steps that give up rows which nothing can restore. Raises NotFoundError if
    there is no such namespace, FencedError if a writer opened it meanwhile, OutcomeUnknownError,
    UnavailableError; what was done by then is done, and calling it again goes on from there.
    """
    done: list[RepairStep] = []
    for attempt in range(1, _ATTEMPTS + 1):
        survey = survey_namespace(context, namespace, deep=True, progress=progress)
        plan = Planner(context, survey, accept_loss=accept_loss).run()
        if not apply or not any(step.state == "planned" for step in plan.steps):
            return _report(survey, plan, done, survey)
        try:
            _Run(context, survey, plan, progress).run()
        except StalePlanError:
            if attempt == _ATTEMPTS:
                raise
            continue
        after = survey_namespace(context, namespace, deep=False, progress=progress)
        if not any(finding.is_problem for finding in after.findings):
            break
        # What was done may have brought something else to light: behind a damaged head, for one.
        done += [step for step in plan.steps if step.state == "done"]
        plan.steps = [step for step in plan.steps if step.state != "done"]
    return _report(survey, plan, done, after)


def _report(
    before: Survey, plan: RepairPlan, done: Sequence[RepairStep], after: Survey
) -> RepairReport:
    steps = (*done, *plan.steps)
    lease = None if before.head is None else before.head.manifest.lease
    return RepairReport(
        namespace=before.namespace,
        applied=any(step.state == "done" for step in steps),
        steps=steps,
        writer="" if lease is None else f"{lease.holder} on {lease.host}",
        fences=plan.is_fencing,
        generation=None if after.head is None else after.head.generation,
        problems=tuple(f for f in after.findings if f.is_problem),
        notes=tuple(f for f in after.findings if not f.is_problem),
    )


class _Run:
    """One repair being carried out."""

    def __init__(
        self, context: Context, survey: Survey, plan: RepairPlan, progress: Progress
    ) -> None:
        self._context = context
        self._survey = survey
        self._plan = plan
        self._progress = progress
        self._namespace = survey.namespace
        self._chain: ManifestChain = context.chain(survey.namespace)
        self._damaged = () if survey.head is None else survey.head.damaged

    def run(self) -> None:
        """Carry the plan out. Raises StalePlanError if the namespace is not as it was planned on."""
        plan = self._plan
        for done, (key, checksum) in enumerate(plan.copies, start=1):
            self._survey.quarantine.copy(key, checksum)
            self._progress("quarantine", done, len(plan.copies))
        if plan.needs_publish:
            marks = [self._mark(slot) for slot in plan.gaps]
            head = self._chain.publish(
                lambda head: self._pinned(self._mended(head, marks)), repairing=bool(self._damaged)
            )
            if plan.is_fencing:
                self._fence(head)
                self._write_anew(head.manifest.writer_epoch)
        plan.steps = [
            replace(step, state="done") if step.state == "planned" else step for step in plan.steps
        ]

    def _pinned(self, mended: Manifest) -> Manifest:
        """Put back the pins of branches that are there: a damaged generation may have put them."""
        if not self._damaged:
            return mended
        lost = lost_pins(self._context, self._namespace, mended.pins)
        return msgspec.structs.replace(mended, pins=(*mended.pins, *lost)) if lost else mended

    def _mark(self, slot: int) -> SkippedSlot:
        """Take an empty slot, with bytes that are no log object."""
        nonce = new_nonce(self._context.rng).hex().encode()
        data = _MARK + nonce
        create(
            self._context.store,
            log_key(self._namespace, slot),
            data,
            nonce=nonce,
            is_collected=lambda: False,
            settings=self._context.settings,
            clock=self._context.clock,
            rng=self._context.rng,
        )
        return SkippedSlot(slot, damaged_checksum(data))

    def _mended(self, head: Head | None, marks: Sequence[SkippedSlot]) -> Manifest:
        """Return the manifest with which the log can be read again and older writers are fenced."""
        if head is None or head.damaged != self._damaged:
            raise StalePlanError(
                f"the manifests of namespace {self._namespace!r} changed while it was repaired; "
                "nothing was published"
            )
        plan, m = self._plan, head.manifest
        if plan.is_fencing and m.state == "live":
            lease = Lease(
                holder=f"repair by {self._context.author}"[:256],
                host=self._context.host,
                opened_at_us=self._context.clock.now_us(),
            )
            m = open_writer(m, lease=lease)
            if plan.segments:
                m = open_compactor(m)
        skipped = {*m.skipped_slots, *plan.skipped, *marks}
        if len(skipped) > len(m.skipped_slots):
            ordered = tuple(sorted(skipped, key=lambda skip: skip.slot))
            last = max(m.wal_last_seen, ordered[-1].slot)
            m = _replace(m, skipped_slots=ordered, wal_last_seen=last)
        if plan.boundary:
            m = advance_boundary(m, _replace(m.gc.boundary, generation=plan.boundary))
        return m

    def _fence(self, head: Head) -> None:
        """Put fences, so that no older writer commits any more."""
        manifest, context = head.manifest, self._context
        if manifest.state != "live":
            return
        epoch, fold = manifest.writer_epoch, LogFold.of(manifest)
        reader = LogReader(context.store, self._namespace, manifest.lsn_policy)
        for entry in reader.read(fold, last_known=manifest.wal_last_seen):
            check_epoch(entry, epoch, self._namespace)
        first = fold.reach
        # A writer that opened with a generation that is lost may have had more in flight than known.
        most = PARALLEL_WRITES_MAX if self._damaged else 1
        fencing = Fencing(
            namespace=self._namespace,
            epoch=epoch,
            writer_id=new_nonce(context.rng),
            count=max(manifest.max_parallel_writes, most),
            is_collected=self._is_collected,
            settings=context.settings,
            clock=context.clock,
            rng=context.rng,
        )
        for _ in put_fences(context.store, reader, fold, fencing):
            pass
        newest = self._chain.load()
        self._check_epoch(newest, epoch)
        if newest is not None and newest.manifest.gc.boundary.slot > first:
            raise StalePlanError(
                f"namespace {self._namespace!r} was collected while it was repaired: run repair again"
            )

    def _is_collected(self, slot: int) -> bool:
        head = self._chain.load()
        return head is not None and slot < head.manifest.gc.boundary.slot

    def _write_anew(self, epoch: int) -> None:
        """Upload what replaces damaged segments and the window, and publish it."""
        plan = self._plan
        anew: dict[SegmentRef, SegmentRef | None] = {}
        for done, (number, ref, restored) in enumerate(plan.segments, start=1):
            written = None if restored is None else self._write_segment(ref, restored, epoch)
            anew[ref] = written
            if restored is not None and written is None:
                self._fail(number, "what was written in its place does not fit; it was left alone")
                del anew[ref]
            self._progress("segments anew", done, len(plan.segments))
        window: tuple[DedupRef, DedupRef] | None = None
        if plan.window is not None:
            _, old, restored_window = plan.window
            window = old, write_window(self._context, self._namespace, restored_window.window)
        if anew or window:
            self._chain.publish(lambda head: self._renewed(head, epoch, anew, window))

    def _write_segment(self, ref: SegmentRef, restored: Restored, epoch: int) -> SegmentRef | None:
        """Upload rows in place of a segment; None if they cannot be what is wanted."""
        context = self._context
        facts = next(f for f in self._survey.segments if f.ref == ref)
        footer = None if facts.tail is None else facts.tail.footer
        origin = SegmentOrigin(
            id=f"{new_ulid(context.clock, context.rng)}-e{epoch}",
            namespace=self._namespace,
            level=ref.level,
            author=context.author,
            created_at_us=context.clock.now_us(),
            replaced_segments=(ref.id, *(() if footer is None else footer.replaced_segments)),
            replaced_slots=restored.slots,
            part=(1, 1) if footer is None else footer.part,
        )
        options = SegmentOptions(
            codec="lz4" if footer is None else footer.codec,
            wide=None if footer is None else footer.wide,
            row_block_bytes=context.settings.row_block_bytes,
        )
        written = write_segment(
            context.store, self._namespace, restored.schema, origin, options, restored.batches()
        )
        written = _replace(
            written,
            clip_lsn=ref.clip_lsn,
            clip_key_min=ref.clip_key_min,
            clip_key_max=ref.clip_key_max,
        )
        if ref.version is not None:
            written = _replace(
                written, version=ref.version, lsn_min=ref.version, lsn_max=ref.version
            )
        assert self._survey.head is not None
        others = [other for other in self._survey.head.manifest.segments if other != ref]
        is_across = any(written in pair for pair in overlaps([*others, written]))
        return None if written.rows < restored.rows_min or is_across else written

    def _renewed(
        self,
        head: Head | None,
        epoch: int,
        anew: dict[SegmentRef, SegmentRef | None],
        window: tuple[DedupRef, DedupRef] | None,
    ) -> Manifest:
        """Return the manifest that names what was written anew."""
        self._check_epoch(head, epoch)
        assert head is not None
        m = head.manifest
        live = set(m.segments)
        if not anew.keys() <= live or (window is not None and m.dedup != window[0]):
            raise StalePlanError(
                f"what was written anew for namespace {self._namespace!r} is not named any more in "
                f"generation {m.generation}; nothing was published"
            )
        segments = [self._named_anew(ref, anew) for ref in m.segments]
        kept = tuple(ref for ref in segments if ref is not None)
        named = {ref.id for ref in kept if not ref.namespace}
        own = (ref.id for ref in anew if not ref.namespace)
        gone = [segment_key(self._namespace, id) for id in own if id not in named]
        if window is not None:
            gone.append(dedup_key(self._namespace, window[0].id))
            m = _replace(m, dedup=window[1])
        pending = [PendingDelete(key, head.generation + 1) for key in dict.fromkeys(gone)]
        return _replace(m, segments=kept, gc=_replace(m.gc, pending=(*m.gc.pending, *pending)))

    def _named_anew(
        self, ref: SegmentRef, anew: dict[SegmentRef, SegmentRef | None]
    ) -> SegmentRef | None:
        """Return what is named instead of a reference: of a segment there may be several."""
        if ref in anew:
            return anew[ref]
        for old, new in anew.items():
            if (old.namespace, old.id, old.clip_lsn) == (ref.namespace, ref.id, ref.clip_lsn):
                low, high = ref.clip_key_min, ref.clip_key_max
                return new and _replace(new, clip_key_min=low, clip_key_max=high)
        return ref

    def _check_epoch(self, head: Head | None, epoch: int) -> None:
        if head is None:
            raise NotFoundError(f"namespace {self._namespace!r} lost its manifests")
        if head.manifest.writer_epoch > epoch:
            raise FencedError(
                f"namespace {self._namespace!r} was opened by a writer of epoch "
                f"{head.manifest.writer_epoch} while it was repaired: stop that writer, and run "
                "repair again"
            )
        if head.manifest.writer_epoch < epoch:
            raise InvariantError(
                f"epoch {epoch} of {self._namespace!r} was given out and forgotten"
            )

    def _fail(self, number: int, why: str) -> None:
        step = self._plan.steps[number]
        state: StepState = "impossible"
        self._plan.steps[number] = replace(step, text=f"{step.text}: {why}", state=state)
