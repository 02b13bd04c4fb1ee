"""Repair: fix the damage that can be fixed, and say exactly what is lost.

Invariants:

- Nothing is written in a dry run.
- Nothing is deleted and nothing overwritten. A damaged object is copied to quarantine and skipped by
  name; its own name stays taken until collection passes it.
- A live writer's memory and the log that readers fold must agree: before a log object is skipped, or rows
  are written anew, every writer is fenced, by a new epoch and by fences in the log.
- The plan says which rows are lost that may have been acknowledged, as keys and LSNs.

1. Copy damaged objects to quarantine.           crash: copies that nothing needs
2. Put marks in empty slots of the log.          crash: damaged objects, which the next repair skips
3. Publish: a new head above damaged ones, the   crash: the log can be read again; segments and the
   slots to skip, the boundary, the epochs.      window are as before
4. Put fences, which name damaged last objects.  crash: the same
5. Upload segments and the window anew.          crash: orphans of this epoch
6. Publish the manifest that names them.         crash: done

Every step can be repeated: the next repair finishes one that crashed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from reef.doctor._examine import Diagnosis, diagnose
from reef.doctor._fence_writers import check_own_epoch, fence_writers
from reef.doctor._problems import ProblemOrNote, Progress, no_progress
from reef.doctor._repair_plan import RepairPlan, RepairStep, StepState, plan_repair
from reef.doctor._restore_rows import Restored
from reef.engine import Context, lost_pins, write_window
from reef.errors import StalePlanError
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
from reef.manifest import (
    Head,
    ManifestChain,
    advance_boundary,
    open_compactor,
    open_writer,
    overlaps,
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
    """The last to open the namespace for writing, "" if there was none: a fence ends its turn."""
    fences: bool
    """Whether a step fences writers."""
    generation: int | None
    """The newest generation that can be read, after the repair."""
    problems: tuple[ProblemOrNote, ...]
    """The problems; after the repair, those that are left."""
    notes: tuple[ProblemOrNote, ...]

    @property
    def is_mended(self) -> bool:
        """Whether nothing is wrong, or all of it was repaired."""
        is_done = all(step.state not in ("refused", "impossible") for step in self.steps)
        return is_done and not self.problems


def repair(
    context: Context,
    namespace: str,
    *,
    apply: bool = False,
    accept_loss: bool = False,
    progress: Progress = no_progress,
) -> RepairReport:
    """Check everything, every block too, and repair what can be; without `apply`, only plan it.

    `accept_loss` allows steps that lose rows which nothing can restore. Raises NotFoundError if there is
    no such namespace, FencedError if a writer opened it meanwhile, OutcomeUnknownError, UnavailableError;
    steps done by then stay done, and the next call continues from there.
    """
    done: list[RepairStep] = []
    for attempt in range(1, _ATTEMPTS + 1):
        diagnosis = diagnose(context, namespace, deep=True, progress=progress)
        plan = plan_repair(context, diagnosis, accept_loss=accept_loss)
        if not apply or not any(step.state == "planned" for step in plan.steps):
            return _report(diagnosis, plan, done, diagnosis)
        try:
            _Application(context, diagnosis, plan, progress).run()
        except StalePlanError:
            if attempt == _ATTEMPTS:
                raise
            continue
        after = diagnose(context, namespace, deep=False, progress=progress)
        if not after.problems:
            break
        # A step may uncover another problem: behind a damaged head, for one.
        done += [step for step in plan.steps if step.state == "done"]
        plan.steps = [step for step in plan.steps if step.state != "done"]
    return _report(diagnosis, plan, done, after)


def _report(
    before: Diagnosis, plan: RepairPlan, done: Sequence[RepairStep], after: Diagnosis
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
        problems=after.problems,
        notes=after.notes,
    )


class _Application:
    """A plan being applied."""

    def __init__(
        self, context: Context, diagnosis: Diagnosis, plan: RepairPlan, progress: Progress
    ) -> None:
        self._context = context
        self._diagnosis = diagnosis
        self._plan = plan
        self._progress = progress
        self._namespace = diagnosis.namespace
        self._chain: ManifestChain = context.chain(diagnosis.namespace)
        self._damaged = () if diagnosis.head is None else diagnosis.head.damaged

    def run(self) -> None:
        """Apply the plan. Raises StalePlanError if the namespace is not as it was when planned."""
        plan = self._plan
        for done, (key, checksum) in enumerate(plan.copies, start=1):
            self._diagnosis.quarantine.copy(key, checksum)
            self._progress("quarantine", done, len(plan.copies))
        if plan.needs_publish:
            marks = [self._mark(slot) for slot in plan.gaps]
            head = self._chain.publish(
                lambda head: self._pinned(self._new_head(head, marks)),
                repairing=bool(self._damaged),
            )
            if plan.is_fencing:
                self._fence(head)
                self._write_anew(head.manifest.writer_epoch)
        plan.steps = [
            replace(step, state="done") if step.state == "planned" else step for step in plan.steps
        ]

    def _pinned(self, m: Manifest) -> Manifest:
        """Put back the pins of existing branches: only a damaged generation may have held them."""
        if not self._damaged:
            return m
        lost = lost_pins(self._context, self._namespace, m.pins)
        return _replace(m, pins=(*m.pins, *lost)) if lost else m

    def _mark(self, slot: int) -> SkippedSlot:
        """Take an empty slot with bytes that are no log object."""
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

    def _new_head(self, head: Head | None, marks: Sequence[SkippedSlot]) -> Manifest:
        """Return the manifest with which the log can be read again, and which fences older writers."""
        if head is None or head.damaged != self._damaged:
            raise StalePlanError(
                f"the manifests of namespace {self._namespace!r} changed during the repair; nothing was "
                "published: run repair again"
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
        """Put fences, so that no older writer can commit."""
        manifest, context = head.manifest, self._context
        if manifest.state != "live":
            return
        # A damaged generation may have allowed a writer more objects in flight than the head says.
        most = PARALLEL_WRITES_MAX if self._damaged else 1
        fence_writers(context, self._chain, manifest, max(manifest.max_parallel_writes, most))

    def _write_anew(self, epoch: int) -> None:
        """Upload and publish what replaces damaged segments and the window."""
        plan = self._plan
        anew: dict[SegmentRef, SegmentRef | None] = {}
        for done, (number, ref, restored) in enumerate(plan.segments, start=1):
            written = None if restored is None else self._write_segment(ref, restored, epoch)
            anew[ref] = written
            if restored is not None and written is None:
                self._fail(
                    number, "the segment written in its place does not fit; nothing was changed"
                )
                del anew[ref]
            self._progress("segments anew", done, len(plan.segments))
        window: tuple[DedupRef, DedupRef] | None = None
        if plan.window is not None:
            _, old, restored_window = plan.window
            window = old, write_window(self._context, self._namespace, restored_window.window)
        if anew or window:
            self._chain.publish(lambda head: self._renewed(head, epoch, anew, window))

    def _write_segment(self, ref: SegmentRef, restored: Restored, epoch: int) -> SegmentRef | None:
        """Upload rows in place of a segment; None if they cannot be right."""
        context = self._context
        damaged = next(s for s in self._diagnosis.segments if s.ref == ref)
        footer = None if damaged.tail is None else damaged.tail.footer
        origin = SegmentOrigin(
            id=f"{new_ulid(context.clock, context.rng)}-e{epoch}",
            namespace=self._namespace,
            level=ref.level,
            author=context.author,
            created_at_us=context.clock.now_us(),
            replaced_segments=(ref.id, *(() if footer is None else footer.replaced_segments)),
            replaced_slots=restored.slots,
            part=(1, 1) if footer is None else footer.part,
            merged=None if footer is None else footer.merged,
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
        assert self._diagnosis.head is not None
        others = [other for other in self._diagnosis.head.manifest.segments if other != ref]
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
        m = check_own_epoch(self._namespace, head, epoch)
        assert head is not None
        live = set(m.segments)
        if not anew.keys() <= live or (window is not None and m.dedup != window[0]):
            raise StalePlanError(
                f"generation {m.generation} of namespace {self._namespace!r} no longer names what was "
                "repaired; nothing was published: run repair again"
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
        """Return what to name in place of a reference; a segment may have several."""
        if ref in anew:
            return anew[ref]
        for old, new in anew.items():
            if (old.namespace, old.id, old.clip_lsn) == (ref.namespace, ref.id, ref.clip_lsn):
                low, high = ref.clip_key_min, ref.clip_key_max
                return new and _replace(new, clip_key_min=low, clip_key_max=high)
        return ref

    def _fail(self, number: int, why: str) -> None:
        step = self._plan.steps[number]
        state: StepState = "impossible"
        self._plan.steps[number] = replace(step, text=f"{step.text}: {why}", state=state)
