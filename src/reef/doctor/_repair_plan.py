"""What repair would do about each problem, and what each step would cost.

| damaged or missing | step |
| --- | --- |
| newest generations | go on from the newest that can be read, as a new head |
| older generation, or an object that only those name | keep a copy in quarantine, or a note that it is gone |
| generation that is gone, or does not link | raise the boundary above it |
| log object that others follow | name it as skipped; its rows are lost, and which LSNs is told |
| log object in flight behind a gap | name it as skipped |
| log object with nothing behind it | the next fence names it: repair puts one |
| log object whose rows are in segments | name it as skipped; nothing is lost |
| log object that is gone | put a mark in its place, and name that as skipped |
| live segment | write its rows anew from the log, or from what it replaced; else, if the loss is accepted, from its sound blocks |
| live segment of another namespace | the same, from that one's log and segments; what is written is the branch's own |
| live dedup window | write it anew from an older one and the log |

A step that loses what cannot be told to be uncommitted needs the loss to be accepted, save for a log
object that others follow: there nothing can be done but that, and nothing opens before it is done.
So it is with going on from an older generation, unless that one ended a namespace of this name.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from reef.doctor._findings import ranges_text
from reef.doctor._restore import RestoredWindow, Restorer
from reef.doctor._restore_rows import Lost, Restored
from reef.doctor._verify import Survey
from reef.doctor._verify_log import MISSING_MAX, Span
from reef.doctor._verify_segments import SegmentFacts
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
from reef.manifest import Head

StepState = Literal["planned", "done", "refused", "impossible"]

_UNMENDABLE = ("manifest-rule", "log-unlinked", "segments-overlap")
_UNAVOIDABLE = ("republish-manifest", "skip-log-object", "name-in-fence")


@dataclass(frozen=True)
class RepairStep:
    """One thing that repair does about one object."""

    kind: str
    """A word for programs; `docs/cli.md` lists them."""
    key: str
    text: str
    lost: str = ""
    """What is lost by it, exactly; "" for nothing."""
    state: StepState = "planned"
    """refused: it loses something, and that was not accepted. impossible: repair cannot do it."""


@dataclass
class RepairPlan:
    """What repair does, in the order of its parts."""

    steps: list[RepairStep] = field(default_factory=list)
    copies: list[tuple[str, int | None]] = field(default_factory=list)
    """Objects to keep in quarantine, with the checksum that names the copy."""
    gaps: list[int] = field(default_factory=list)
    """Slots to put a mark in."""
    skipped: list[SkippedSlot] = field(default_factory=list)
    boundary: int = 0
    """The generation below which none counts any more; 0: as it is."""
    goes_back: bool = False
    is_fencing: bool = False
    """Whether writers are to be fenced first."""
    segments: list[tuple[int, SegmentRef, Restored | None]] = field(default_factory=list)
    """The number of the step, the damaged segment, and its rows."""
    window: tuple[int, DedupRef, RestoredWindow] | None = None

    @property
    def needs_publish(self) -> bool:
        """Whether the manifest changes before anything is written anew."""
        return bool(self.goes_back or self.is_fencing or self.skipped or self.gaps or self.boundary)


class Planner:
    """Decides what to do about what a survey has found."""

    def __init__(self, context: Context, survey: Survey, *, accept_loss: bool) -> None:
        self._context = context
        self._survey = survey
        self._accept_loss = accept_loss
        self.plan = RepairPlan()

    def run(self) -> RepairPlan:
        """Return the plan. Raises UnavailableError: what could be restored is tried."""
        survey = self._survey
        if survey.head is None:
            self._step(
                "republish-manifest",
                manifest_key(survey.namespace, survey.newest),
                "no generation can be read, so there is none to go on from; this takes a rebuild "
                "from the bucket, or a copy of a generation from elsewhere",
                state="impossible",
            )
            return self.plan
        self._gaps()
        self._manifests(survey.head)
        self._log_objects()
        for facts in survey.segments:
            if not facts.is_sound:
                self._segment(facts)
        self._windows(survey.head)
        self._others()
        if survey.head.damaged and not self.plan.goes_back:
            self._hold_back()
        return self.plan

    def _hold_back(self) -> None:
        """Refuse what would be published: nothing may be behind damaged generations, before repair."""
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
        """Plan for log objects that are gone. Until that is done, no fence may be put."""
        log = self._survey.log
        assert log is not None
        for slots, is_folded in ((log.missing_folded, True), (log.missing, False)):
            if not slots:
                continue
            lost = "" if is_folded else _lsns(*(log.spans.get(slot) for slot in slots))
            state = self._judged(lost)
            text = (
                f"put marks into slots {ranges_text(slots)}, so that nobody can take them, and name "
                "them as skipped"
            )
            if len(slots) >= MISSING_MAX:
                state, text = "impossible", "too many log objects are gone"
            key = log_key(self._survey.namespace, slots[0])
            self._step("fill-log-gap", key, text, lost=lost, state=state)
            if state == "planned":
                self.plan.gaps += slots
                self.plan.is_fencing |= not is_folded

    def _manifests(self, head: Head) -> None:
        survey, plan = self._survey, self.plan
        for read in survey.generations:
            key = manifest_key(survey.namespace, read.number)
            if read.number > head.generation:
                plan.goes_back = self._going_back(head, key)
                self._copy(key, read.checksum, plan.goes_back)
            elif self._is_problem("manifest-damaged", key):
                self._step(
                    "quarantine",
                    key,
                    "keep a copy in quarantine; it stays where it is until it is collected",
                    lost=f"reads at generation {read.number}",
                )
                self._copy(key, read.checksum)
        self._chain_gaps(head)

    def _going_back(self, head: Head, key: str) -> bool:
        text = (
            f"go on from generation {head.generation}, as generation {head.last_taken + 1}, "
            "with epochs that the damaged one cannot have given out"
        )
        lost = (
            "snapshots and settings that only the damaged generation held; rows are not: they are "
            "in the log"
        )
        is_over = head.manifest.state != "live"
        if is_over:
            text += f"; that is one which was {head.manifest.state}"
            lost = "all of a namespace or branch of this name, if the damaged generation began one"
        return self._fencing("republish-manifest", key, text, lost=lost, is_grave=is_over)

    def _chain_gaps(self, head: Head) -> None:
        """Plan for generations that are gone, or that do not link."""
        survey = self._survey
        there = {read.number for read in survey.generations}
        first = head.manifest.gc.boundary.generation
        for number in range(first, head.generation):
            if number not in there:
                self._raise_boundary(number + 1, manifest_key(survey.namespace, number), head)
        for finding in survey.findings:
            named = parse_manifest_key(finding.key)
            if finding.kind == "manifest-unlinked" and named is not None:
                self._raise_boundary(named.generation, finding.key, head)

    def _raise_boundary(self, generation: int, key: str, head: Head) -> None:
        manifest = head.manifest
        held = [s.id for s in manifest.snapshots if s.generation < generation]
        held += [p.child for p in manifest.pins if p.generation < generation]
        self.plan.boundary = max(self.plan.boundary, generation)
        text = f"raise the boundary to generation {generation}, so that none below it counts"
        if held:
            text += f"; those that {', '.join(held)} stand on still do"
        self._step("raise-boundary", key, text, lost=f"reads at generations below {generation}")

    def _log_objects(self) -> None:
        survey, plan = self._survey, self.plan
        log = survey.log
        assert log is not None
        for slot in log.at_head:
            key = log_key(survey.namespace, slot)
            self._copy(key, log.damaged[slot].checksum, self._at_head(key, slot))
        text = "name it as skipped in the manifest, and keep a copy in quarantine"
        for slot in (*log.followed, *log.ahead, *log.folded):
            key, damaged = log_key(survey.namespace, slot), log.damaged[slot]
            is_done = True
            if slot in log.folded:
                self._step("skip-log-object", key, f"{text}; its rows are in segments")
            else:
                lost = _lsns(log.spans.get(slot))
                if slot in log.ahead:
                    lost = f"if it was acknowledged: {lost}"
                is_done = self._fencing("skip-log-object", key, text, lost=lost)
            self._copy(key, damaged.checksum, is_done)
            if is_done:
                plan.skipped.append(SkippedSlot(slot, damaged.checksum))

    def _at_head(self, key: str, slot: int) -> bool:
        log = self._survey.log
        assert log is not None
        return self._fencing(
            "name-in-fence",
            key,
            "nothing follows it, so it counts as never committed, and the next writer's fence names "
            "it as skipped; repair puts a fence, which does that now",
            lost=f"if it was acknowledged and damaged afterwards: {_lsns(log.spans.get(slot))}",
        )

    def _segment(self, facts: SegmentFacts) -> None:
        if facts.key not in self._survey.live:
            self._old_object(facts.key, facts.is_missing)
            return
        if any(isinstance(error, FormatVersionError) for error in facts.errors):
            impossible = "it is of another format version: use a version of Reef that reads it"
            self._step("restore-segment", facts.key, impossible, state="impossible")
            return
        found = self._restorer.restore(facts)
        restored = found if isinstance(found, Restored) else self._restorer.salvage(facts)
        lost = (Lost.whole(facts.ref),) if restored is None else restored.lost
        if restored is None:
            kind, text = "drop-segment", "drop it from the manifest"
        elif lost:
            kind, text = "salvage-segment", f"write anew what is left: {restored.text}"
        else:
            kind, text = "restore-segment", f"write its rows anew from {restored.text}"
        if isinstance(found, str) and lost:
            text += f"; its rows are nowhere else ({found})"
        text += self._shared_with(facts.ref)
        told = "; ".join([*map(str, lost), "older versions of these keys may be seen again"])
        if self._fencing(kind, facts.key, text, lost=told if lost else ""):
            self.plan.segments.append((len(self.plan.steps) - 1, facts.ref, restored))
            self._copy(facts.key, None)

    @cached_property
    def _restorer(self) -> Restorer:
        return Restorer(self._context, self._survey)

    def _shared_with(self, ref: SegmentRef) -> str:
        """Return who else has to be repaired, as text: each namespace is, by itself."""
        assert self._survey.head is not None
        if ref.namespace:
            return f"; repair namespace {ref.namespace!r}, to which it belongs, as well"
        if children := sorted({pin.child for pin in self._survey.head.manifest.pins}):
            return f"; repair its branches too, before it is collected: {', '.join(children)}"
        return ""

    def _windows(self, head: Head) -> None:
        for facts in self._survey.dedups:
            if facts.window is not None:
                continue
            if facts.ref != head.manifest.dedup:
                self._old_object(facts.key, facts.error is None)
                continue
            restored = self._restorer.window()
            text = f"write it anew from {restored.text}"
            if self._fencing("restore-dedup", facts.key, text, lost=restored.lost):
                self.plan.window = (len(self.plan.steps) - 1, facts.ref, restored)
                self._copy(facts.key, None)

    def _old_object(self, key: str, is_missing: bool) -> None:
        """Plan for an object that only generations before the head name."""
        if not self._is_problem("", key):
            return
        text = "keep a copy in quarantine; the head does not need it"
        if is_missing:
            text = "leave a note of it in quarantine; the head does not need it"
        self._step("quarantine", key, text, lost="reads at generations that name it")
        self._copy(key, None)

    def _others(self) -> None:
        """Tell what repair can do nothing about."""
        known = {step.key for step in self.plan.steps}
        for finding in self._survey.findings:
            if finding.is_problem and (finding.kind in _UNMENDABLE or finding.key not in known):
                text = f"{finding.text}: nothing that repair can mend"
                self._step("report", finding.key, text, state="impossible")

    # What steps have in common.

    def _fencing(
        self, kind: str, key: str, text: str, *, lost: str = "", is_grave: bool = False
    ) -> bool:
        """Plan a step for which writers are fenced first; return whether it will be done."""
        needs_acceptance = is_grave or kind not in _UNAVOIDABLE
        state = self._judged(lost) if needs_acceptance else "planned"
        if not self._can_fence():
            # A fence in a gap would make void what lies behind it.
            state, text = (
                "refused",
                f"{text}; but first the log has to be whole, and readable, again",
            )
        self._step(kind, key, text, lost=lost, state=state)
        self.plan.is_fencing |= state == "planned"
        return state == "planned"

    def _can_fence(self) -> bool:
        """Return whether the end of the log can be reached."""
        log, head = self._survey.log, self._survey.head
        assert log is not None
        assert head is not None
        is_readable = all(slot < head.manifest.wal_floor for slot in log.foreign)
        return is_readable and not set(log.missing) - set(self.plan.gaps)

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
            f.is_problem and f.key == key and kind in ("", f.kind) for f in self._survey.findings
        )


def _lsns(*spans: Span | None) -> str:
    """Return ranges of LSNs as text, those that follow upon each other as one."""
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
