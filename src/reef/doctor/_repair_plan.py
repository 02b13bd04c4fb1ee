"""The plan of a repair: a step for each problem, and what it loses.

| damaged or missing | step |
| --- | --- |
| newest generations | publish the newest readable one again, as a new head above them |
| older generation, or an object that only those name | keep a copy in quarantine, or a note that it is gone |
| missing generation, or one that does not link | raise the boundary above it |
| log object that others follow | name it as skipped; its rows are lost, and the plan says which LSNs |
| log object in flight behind a gap | name it as skipped |
| last object of the log | put a fence, which names it as skipped |
| log object whose rows are in segments | name it as skipped; nothing is lost |
| missing log object | put a mark in its place, and name the mark as skipped |
| log object that names a lost one in its slot, by another checksum than newer writers | name it as skipped: it was never committed |
| live segment | write its rows anew from the log, or from the segments that it replaced; else, if the loss is accepted, from its sound blocks |
| live segment of another namespace | the same, from that namespace's log and segments; the new one is the branch's own |
| live dedup window | write it anew from an older one and the log |

A step that may lose committed rows needs `accept_loss`. Three steps do not, because no writer can open
the namespace without them: skipping a log object, naming the last one in a fence, and publishing an
older generation again, unless that generation ended a namespace of this name.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from reef.doctor._check_log import CheckedLog, Span, UnreadableKind
from reef.doctor._examine import Diagnosis
from reef.doctor._problems import ranges_text
from reef.doctor._restore import CannotRestoreError, RestoredWindow, Restorer
from reef.doctor._restore_rows import Lost, Restored
from reef.engine import Context
from reef.errors import FormatVersionError
from reef.format import (
    DedupRef,
    SegmentRef,
    SkippedSlot,
    log_key,
    manifest_key,
    parse_manifest_key,
)
from reef.log import MISSING_MAX, absent
from reef.manifest import Head
from reef.segment import CheckedSegment

StepState = Literal["planned", "done", "refused", "impossible"]

_UNFIXABLE = ("manifest-rule", "log-unlinked", "segments-overlap")
_NAMED_MAX = 10
_UNAVOIDABLE = ("republish-manifest", "skip-log-object", "name-in-fence")


@dataclass(frozen=True)
class RepairStep:
    """One thing that repair does about one object."""

    kind: str
    """A word for programs; `docs/cli.md` lists them."""
    key: str
    text: str
    lost: str = ""
    """Exactly what it loses; "" for nothing."""
    state: StepState = "planned"
    """refused: it loses rows, and the loss was not accepted. impossible: repair cannot do it."""


@dataclass
class RepairPlan:
    """What repair does, in the order in which it does it."""

    steps: list[RepairStep] = field(default_factory=list)
    copies: list[tuple[str, int | None]] = field(default_factory=list)
    """Objects to copy to quarantine, with the checksum that names the copy."""
    gaps: list[int] = field(default_factory=list)
    """Empty slots to put marks in."""
    skipped: list[SkippedSlot] = field(default_factory=list)
    boundary: int = 0
    """The generation to raise the boundary to; 0: leave it."""
    goes_back: bool = False
    """Whether an older generation is published again."""
    is_fencing: bool = False
    """Whether writers are fenced first."""
    segments: list[tuple[int, SegmentRef, Restored | None]] = field(default_factory=list)
    """The number of the step, the damaged segment, and its rows."""
    window: tuple[int, DedupRef, RestoredWindow] | None = None

    @property
    def needs_publish(self) -> bool:
        """Whether the manifest changes before anything is written anew."""
        return bool(self.goes_back or self.is_fencing or self.skipped or self.gaps or self.boundary)


def plan_repair(context: Context, diagnosis: Diagnosis, *, accept_loss: bool) -> RepairPlan:
    """Return the plan; to learn what can be restored, that is read. Raises UnavailableError."""
    head, log = diagnosis.head, diagnosis.log
    if head is None or log is None:
        text = "so none can be published again; restore one generation from a backup"
        if diagnosis.generations:
            key = manifest_key(diagnosis.namespace, diagnosis.newest)
            text = f"no generation can be read, {text}"
        else:
            key = f"namespaces/{diagnosis.namespace}/manifest/"
            text = f"no generation is left, {text}, or run `reef rebuild`, which goes by the rest"
        return RepairPlan([RepairStep("republish-manifest", key, text, state="impossible")])
    return RepairPlanner(context, diagnosis, head, log, accept_loss=accept_loss).run()


class RepairPlanner:
    """Decides what to do about each problem of a diagnosis with a readable head."""

    def __init__(
        self,
        context: Context,
        diagnosis: Diagnosis,
        head: Head,
        log: CheckedLog,
        *,
        accept_loss: bool,
    ) -> None:
        self._context = context
        self._diagnosis = diagnosis
        self._head = head
        self._log = log
        self._accept_loss = accept_loss
        self.plan = RepairPlan()

    def run(self) -> RepairPlan:
        """Return the plan."""
        self._gaps()
        self._manifests()
        self._log_objects()
        for segment in self._diagnosis.segments:
            if not segment.is_sound:
                self._segment(segment)
        self._windows()
        self._others()
        if self._head.damaged and not self.plan.goes_back:
            self._hold_back()
        return self.plan

    def _hold_back(self) -> None:
        """Refuse the steps that publish: nothing may be published above damaged generations but a repair."""
        plan = self.plan
        plan.steps = [
            replace(step, state="refused")
            if step.state == "planned" and step.kind != "quarantine"
            else step
            for step in plan.steps
        ]
        plan.gaps, plan.skipped, plan.boundary = [], [], 0

    # The parts.

    def _gaps(self) -> None:
        """Plan for missing log objects. Before they are marked, no fence may be put."""
        log = self._log
        for slots, is_folded in ((log.missing_folded, True), (log.missing, False)):
            if not slots:
                continue
            lost = "" if is_folded else _lsns(*(log.spans.get(slot) for slot in slots))
            state = self._judged(lost)
            text = (
                f"put placeholders into slots {ranges_text(slots)}, so that no writer can take them, "
                "and name them as skipped"
            )
            if not is_folded and slots[0] < log.end - 1:
                text += f"; the log objects behind them, up to slot {log.end - 1}, count again"
            if len(slots) >= MISSING_MAX:
                state, text = "impossible", "too many log objects are missing"
            key = log_key(self._diagnosis.namespace, slots[0])
            self._step("fill-log-gap", key, text, lost=lost, state=state)
            if state == "planned":
                self.plan.gaps += slots
                self.plan.is_fencing |= not is_folded
            for slot in slots:
                self._skip_refuted(slot, state)

    def _skip_refuted(self, lost: int, state: StepState) -> None:
        """Plan for objects that would pass for the successor of one that is skipped."""
        for skip in self._log.refuted(lost):
            self._step(
                "skip-log-object",
                log_key(self._diagnosis.namespace, skip.slot),
                f"name it as skipped: by what newer writers name in slot {lost}, it was never committed",
                state=state,
            )
            if state == "planned":
                self.plan.skipped.append(skip)

    def _manifests(self) -> None:
        diagnosis, head, plan = self._diagnosis, self._head, self.plan
        for read in diagnosis.generations:
            key = manifest_key(diagnosis.namespace, read.number)
            if read.number > head.generation:
                plan.goes_back = self._going_back(key)
                self._copy(key, read.checksum, plan.goes_back)
            elif self._is_problem("manifest-damaged", key):
                self._step(
                    "quarantine",
                    key,
                    "copy it to quarantine; it stays where it is until it is collected",
                    lost=f"reads at generation {read.number}",
                )
                self._copy(key, read.checksum)
        self._chain_gaps()

    def _going_back(self, key: str) -> bool:
        head = self._head
        text = (
            f"publish generation {head.generation} again, as generation {head.last_taken + 1}, "
            "with epochs that no damaged generation can have given to a writer"
        )
        lost = (
            "snapshots and settings that only the damaged generation held, but no rows: they are "
            "in the log"
        )
        is_over = head.manifest.state != "live"
        if is_over:
            text += f", in which the namespace was {head.manifest.state}"
            lost = "a whole namespace or branch of this name, if the damaged generation began one"
        return self._fencing("republish-manifest", key, text, lost=lost, is_grave=is_over)

    def _chain_gaps(self) -> None:
        """Plan for generations that are missing or do not link."""
        diagnosis, head = self._diagnosis, self._head
        there = [read.number for read in diagnosis.generations]
        if gaps := absent(there, head.manifest.gc.boundary.generation, head.generation):
            key = manifest_key(diagnosis.namespace, gaps[0].start)
            self._raise_boundary(gaps[-1].stop, key)
        for one in diagnosis.reported:
            named = parse_manifest_key(one.key)
            if one.kind == "manifest-unlinked" and named is not None:
                self._raise_boundary(named.generation, one.key)

    def _raise_boundary(self, generation: int, key: str) -> None:
        manifest = self._head.manifest
        needing = [s.id for s in manifest.snapshots if s.generation < generation]
        needing += [p.child for p in manifest.pins if p.generation < generation]
        self.plan.boundary = max(self.plan.boundary, generation)
        text = f"raise the boundary to generation {generation}, so that no older one is retained"
        if needing:
            more = len(needing) - _NAMED_MAX
            named = ", ".join(needing[:_NAMED_MAX]) + (f" and {more} others" if more > 0 else "")
            text += f", except those that {named} need"
        self._step("raise-boundary", key, text, lost=f"reads at generations below {generation}")

    def _log_objects(self) -> None:
        diagnosis, log, plan = self._diagnosis, self._log, self.plan
        for slot in log.slots(UnreadableKind.AT_HEAD):
            key = log_key(diagnosis.namespace, slot)
            is_done = self._fencing(
                "name-in-fence",
                key,
                "nothing follows it, so it counts as never committed; put a fence that names it as "
                "skipped, as the next writer would",
                lost="if it was acknowledged and damaged afterwards: " + _lsns(log.spans.get(slot)),
            )
            self._copy(key, log.unreadable[slot].checksum, is_done)
        text = "name it as skipped in the manifest, and copy it to quarantine"
        kinds = UnreadableKind.FOLLOWED, UnreadableKind.IN_FLIGHT, UnreadableKind.FOLDED
        for slot in log.slots(*kinds):
            key, damaged = log_key(diagnosis.namespace, slot), log.unreadable[slot]
            is_done = True
            if damaged.kind is UnreadableKind.FOLDED:
                self._step("skip-log-object", key, f"{text}; its rows are in segments")
            else:
                lost = _lsns(log.spans.get(slot))
                if damaged.kind is UnreadableKind.IN_FLIGHT:
                    lost = f"if it was acknowledged: {lost}"
                is_done = self._fencing("skip-log-object", key, text, lost=lost)
            self._copy(key, damaged.checksum, is_done)
            if is_done:
                plan.skipped.append(SkippedSlot(slot, damaged.checksum))
                if damaged.kind is UnreadableKind.FOLLOWED:
                    self._skip_refuted(slot, "planned")

    def _segment(self, segment: CheckedSegment) -> None:
        if segment.key not in self._diagnosis.live:
            self._old_object(segment.key, segment.is_missing)
            return
        if any(isinstance(error, FormatVersionError) for error in segment.errors):
            impossible = "it is of another format version: use a version of Reef that reads it"
            self._step("restore-segment", segment.key, impossible, state="impossible")
            return
        restored, why = self._restored(segment)
        lost = (Lost.whole(segment.ref),) if restored is None else restored.lost
        if restored is None:
            kind, text = "drop-segment", "drop it from the manifest"
        elif lost:
            kind, text = "salvage-segment", f"write anew what is left: {restored.text}"
        else:
            kind, text = "restore-segment", f"write its rows anew from {restored.text}"
        if why and lost:
            text += f"; its rows are nowhere else ({why})"
        text += self._shared_with(segment.ref)
        loss = "; ".join([*map(str, lost), "older versions of these keys may become visible again"])
        if self._fencing(kind, segment.key, text, lost=loss if lost else ""):
            self.plan.segments.append((len(self.plan.steps) - 1, segment.ref, restored))
            self._copy(segment.key, None)

    def _restored(self, segment: CheckedSegment) -> tuple[Restored | None, str]:
        """Return what can be written in place of a segment, and why it is not all of its rows, or ""."""
        try:
            return self._restorer.restore(segment), ""
        except CannotRestoreError as error:
            return self._restorer.sound_blocks(segment), str(error)

    @cached_property
    def _restorer(self) -> Restorer:
        return Restorer(self._context, self._diagnosis)

    def _shared_with(self, ref: SegmentRef) -> str:
        """Return which other namespaces to repair, as text: each is repaired by itself."""
        if ref.namespace:
            return f"; also repair namespace {ref.namespace!r}, which owns it"
        if children := sorted({pin.child for pin in self._head.manifest.pins}):
            return f"; repair its branches too, before it is collected: {', '.join(children)}"
        return ""

    def _windows(self) -> None:
        for checked in self._diagnosis.windows:
            if checked.window is not None:
                continue
            if checked.ref != self._head.manifest.dedup:
                self._old_object(checked.key, checked.error is None)
                continue
            restored = self._restorer.window()
            text = f"write it anew from {restored.text}"
            if self._fencing("restore-dedup", checked.key, text, lost=restored.lost):
                self.plan.window = (len(self.plan.steps) - 1, checked.ref, restored)
                self._copy(checked.key, None)

    def _old_object(self, key: str, is_missing: bool) -> None:
        """Plan for an object that only generations before the head name."""
        if not self._is_problem("", key):
            return
        text = "copy it to quarantine; the head does not need it"
        if is_missing:
            text = "put a note of it in quarantine; the head does not need it"
        self._step("quarantine", key, text, lost="reads at generations that name it")
        self._copy(key, None)

    def _others(self) -> None:
        """Report the problems that repair cannot fix."""
        known = {step.key for step in self.plan.steps}
        for one in self._diagnosis.reported:
            if one.is_problem and (one.kind in _UNFIXABLE or one.key not in known):
                text = f"{one.text}: repair cannot fix this"
                self._step("report", one.key, text, state="impossible")

    # Used by all of them.

    def _fencing(
        self, kind: str, key: str, text: str, *, lost: str = "", is_grave: bool = False
    ) -> bool:
        """Plan a step for which writers are fenced first; return whether repair will do it."""
        needs_acceptance = is_grave or kind not in _UNAVOIDABLE
        state = self._judged(lost) if needs_acceptance else "planned"
        if not self._can_fence():
            # A fence in a gap would void the objects behind it.
            state, text = (
                "refused",
                f"{text}; first repair the other damage to the log",
            )
        self._step(kind, key, text, lost=lost, state=state)
        self.plan.is_fencing |= state == "planned"
        return state == "planned"

    def _can_fence(self) -> bool:
        """Return whether the end of the log can be reached."""
        floor = self._head.manifest.wal_floor
        is_readable = all(slot < floor for slot in self._log.slots(UnreadableKind.FOREIGN))
        return is_readable and not set(self._log.missing) - set(self.plan.gaps)

    def _judged(self, lost: str) -> StepState:
        return "refused" if lost and not self._accept_loss else "planned"

    def _step(
        self, kind: str, key: str, text: str, *, lost: str = "", state: StepState = "planned"
    ) -> None:
        self.plan.steps.append(RepairStep(kind, key, text, lost, state))

    def _copy(self, key: str, checksum: int | None, is_wanted: bool = True) -> None:
        if is_wanted:
            self.plan.copies.append((key, checksum))

    def _is_problem(self, kind: str, key: str) -> bool:
        return any(
            f.is_problem and f.key == key and kind in ("", f.kind) for f in self._diagnosis.reported
        )


def _lsns(*spans: Span | None) -> str:
    """Return ranges of LSNs as text, neighbouring ones as one."""
    if None in spans:
        return "what was committed there"
    runs: list[Span] = []
    for span in spans:
        assert span is not None
        if runs and runs[-1][1] == span[0] - 1:
            runs[-1] = runs[-1][0], span[1]
        else:
            runs.append(span)
    texts = (f"{low} and above" if high is None else f"{low} to {high}" for low, high in runs)
    return "LSNs " + ", ".join(texts)
