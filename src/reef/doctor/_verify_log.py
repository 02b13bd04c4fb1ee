"""Checking the log: the framing of every object that is there, and the chain where it counts.

Every slot from the boundary of collection on must be there, up to the end of the log. The chain is
folded from the oldest retained generation on whose log is still whole; wherever it comes by the
`wal_floor` of a retained generation, it must stand where that one says. A damaged object is told and
then passed over, so that what lies behind it is checked too.

The end of the log is the first absent slot behind which no more objects lie than a writer may have had
in flight. An absent slot before that was deleted by somebody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from reef.doctor._findings import Finding, Progress, ranges_text, said
from reef.doctor._verify_slots import BadSlot, LogPart, LogRun, ReadPart, cut_log
from reef.errors import CorruptError, IncompleteError
from reef.format import LogKind, Manifest, SegmentRef, SkippedSlot, log_key
from reef.log import ChainPoint, Damaged, LogEntry, LogFold
from reef.store import Store
from reef.types import ORDINAL_MAX, pack_lsn

MISSING_MAX = 10_000

_NAME = re.compile(r"([0-9]{20})\.wal")

Span = tuple[int, int | None]
"""The first and the last LSN that something may have held; None: nothing above bounds it."""


@dataclass
class LogFacts:
    """What is known of a log."""

    sizes: Mapping[int, int]
    """Of every object that is there, by slot."""
    end: int
    """The first slot behind the log: where the next fence goes."""
    missing: list[int]
    """Slots of the unfolded log that are not there, though the log goes on behind them."""
    missing_folded: list[int]
    """The same below `wal_floor`: their rows are in segments."""
    damaged: dict[int, Damaged] = field(default_factory=dict)
    """Every damaged object, by slot. Each is in one of the next five lists."""
    followed: list[int] = field(default_factory=list)
    """In the unfolded log, others behind them, and nobody gave them up: nothing can be opened."""
    ahead: list[int] = field(default_factory=list)
    """Behind the end, where a writer had them in flight: the next writer cannot pass them."""
    at_head: list[int] = field(default_factory=list)
    """With nothing behind them: the next fence names them."""
    folded: list[int] = field(default_factory=list)
    """Below `wal_floor`: their rows are in segments."""
    passed: list[int] = field(default_factory=list)
    """Passed over by name, or where nothing counts any more."""
    named: set[int] = field(default_factory=set)
    """Those of them that are passed over by name."""
    foreign: set[int] = field(default_factory=set)
    """Those of another format version, which are not damaged."""
    attached: list[SegmentRef] = field(default_factory=list)
    """The segments that the unfolded log attaches: as good as named by a manifest."""
    objects: int = 0
    spans: dict[int, Span] = field(default_factory=dict)
    """The LSNs that were in a damaged or missing slot, as far as its neighbours tell."""
    findings: list[Finding] = field(default_factory=list)

    def is_whole(self, first: int, last: int) -> bool:
        """Return whether slots `first` to `last` can all be read, or were passed over by name."""
        bad = (self.damaged.keys() - self.named) | self.foreign
        return all(slot in self.sizes and slot not in bad for slot in range(first, last + 1))


def list_slots(store: Store, namespace: str) -> dict[int, int]:
    """Return the size of every log object that is there, by slot, in order."""
    found = {}
    for meta in store.list(f"namespaces/{namespace}/wal/"):
        match = _NAME.fullmatch(meta.key.rsplit("/", 1)[-1])
        if match and int(match[1]) and log_key(namespace, int(match[1])) == meta.key:
            found[int(match[1])] = meta.size
    return found


def find_end(slots: Mapping[int, int], manifest: Manifest, parallel: int) -> tuple[int, list[int]]:
    """Return the first slot behind the unfolded log, and those before it that are missing.

    `parallel` is how many objects a writer may have had in flight.
    """
    last = max((*slots, manifest.wal_last_seen), default=0)
    missing: list[int] = []
    at = manifest.wal_floor
    while True:
        while at in slots:
            at += 1
        if last < at or (last < at + parallel and manifest.wal_last_seen < at):
            return at, missing
        if len(missing) >= MISSING_MAX:
            return last + 1, missing
        missing.append(at)
        at += 1


class LogCheck:
    """Judges a log by what was read of its objects, from the first to the last."""

    def __init__(
        self, store: Store, head: Manifest, retained: Sequence[Manifest], *, parallel: int
    ) -> None:
        """List the log. Raises UnavailableError."""
        self._head = head
        slots = list_slots(store, head.namespace)
        boundary, floor = head.gc.boundary.slot, head.wal_floor
        end, missing = find_end(slots, head, parallel)
        lost = [slot for slot in range(boundary, floor) if slot not in slots]
        self.facts = LogFacts(slots, end, missing, lost)
        self._floors = {m.wal_floor: m for m in (*retained, head)}
        after_hole = max((*lost, boundary - 1)) + 1
        self._start = min(f for f in (*self._floors, floor) if after_hole <= f <= floor)
        self._fold = LogFold.of(self._floors[self._start])
        self._since: list[Damaged] = []
        """What was passed over since the last valid object."""
        self._is_broken = False
        """Whether something was met that this version cannot read: what follows cannot be decided."""
        self._named_by_fence: set[int] = set()
        self._last_readable = 0
        self._last_lsn = self._floors[self._start].last_applied_lsn
        self._spans_open: list[int] = []

    def parts(self, *, part_bytes: int, part_objects: int) -> Iterator[LogPart]:
        """Yield what to read, in order; `judge` wants all of it, and in that order."""
        return cut_log(
            self._head.namespace,
            self._head.lsn_policy,
            self.facts.sizes,
            sorted({*self._floors, self._start, self.facts.end}),
            part_bytes=part_bytes,
            part_objects=part_objects,
        )

    def judge(self, read: Iterable[ReadPart], progress: Progress) -> LogFacts:
        """Return what is known of the log."""
        missing = list(reversed(self.facts.missing))
        for part in read:
            for slot, found in _in_order(part):
                while missing and missing[-1] < slot:
                    self._chain(missing[-1], self._absent(missing.pop()))
                self._take(slot, found)
            self.facts.objects += part.objects
            progress("log", self.facts.objects, len(self.facts.sizes))
        while missing:
            self._chain(missing[-1], self._absent(missing.pop()))
        for slot in self._spans_open:
            self.facts.spans[slot] = self._span(slot, None)
        self._sort_out()
        self.facts.findings += self._tell()
        return self.facts

    def _take(self, slot: int, found: LogRun | BadSlot) -> None:
        one: LogRun | Damaged
        if isinstance(found, BadSlot):
            damaged = found.damaged()
            if damaged is None:
                text = f"{said(found.fault.error())}; use a version of Reef that reads it"
                self.facts.findings.append(Finding("format-version", self._key(slot), text))
                self.facts.foreign.add(slot)
                self._is_broken = True
                return
            one = self.facts.damaged[slot] = damaged
        else:
            one = found
        if self._start <= slot < self.facts.end:
            self._chain(slot, one)

    def _chain(self, slot: int, found: LogRun | Damaged) -> None:
        """Take the fold over one slot, or over a run of them."""
        floor = self._floors.get(slot)
        if floor is not None and not self._is_broken:
            self._check_anchor(floor)
        if slot == self._head.wal_floor:
            self._fold, self._is_broken = LogFold.of(self._head), False
            self._since.clear()
        if self._is_broken:
            return
        if isinstance(found, Damaged):
            self._since.append(found)
            self._fold.add_damaged(found)
            self._spans_open.append(slot)
            return
        self._last_readable = found.slot_last
        unnamed = {skip.slot for skip in self._fold.damaged}
        try:
            entry = self._fold.add(found.first, found.checksum_first, 0)
        except CorruptError:
            given_up = (SkippedSlot(d.slot, d.checksum) for d in self._since)
            self._fold = LogFold(self._fold.point, slot, [*self._head.skipped_slots, *given_up])
            for damaged in self._since:
                self._fold.add_damaged(damaged)
            entry = self._fold.add(found.first, found.checksum_first, 0)
        else:
            self._named_by_fence |= unnamed
        self._decided(entry, found)

    def _decided(self, entry: LogEntry, run: LogRun) -> None:
        """Take note of what a run is; the fold has seen its first object."""
        self._fold.next_slot = run.slot_last + 1
        if not entry.is_valid:
            return
        self._fold.point = ChainPoint(run.slot_last, run.checksum_last, run.epoch)
        self._since.clear()
        if run.kind is LogKind.FENCE:
            return
        for slot in self._spans_open:
            self.facts.spans[slot] = self._span(slot, run.lsn_first - 1)
        self._spans_open.clear()
        self._last_lsn = run.lsn_last
        if run.slot_first >= self._head.wal_floor:
            self.facts.attached += run.attached

    def _check_anchor(self, manifest: Manifest) -> None:
        """Check that the fold stands where a generation says that the log was, at its floor."""
        expected, point = LogFold.of(manifest).point, self._fold.point
        if expected == point or self._since or manifest.wal_floor == self._start:
            return
        self.facts.findings.append(
            Finding(
                "log-unlinked",
                self._key(manifest.wal_floor),
                f"generation {manifest.generation} goes on from log object {expected.slot} of "
                f"checksum {expected.checksum}; the log has {point.slot} of {point.checksum}",
            )
        )

    def _sort_out(self) -> None:
        """Put every damaged object into the list that it belongs to."""
        facts, head = self.facts, self._head
        named = {(skip.slot, skip.checksum) for skip in head.skipped_slots}
        last = max((self._last_readable, *facts.missing))
        for slot, damaged in facts.damaged.items():
            if (slot, damaged.checksum) in named or slot in self._named_by_fence:
                facts.named.add(slot)
            if slot in facts.named or slot < head.gc.boundary.slot:
                facts.passed.append(slot)
            elif slot >= facts.end:
                facts.ahead.append(slot)
            elif slot < head.wal_floor:
                facts.folded.append(slot)
            elif slot < last:
                facts.followed.append(slot)
            else:
                facts.at_head.append(slot)

    def _tell(self) -> Iterator[Finding]:
        facts = self.facts
        for slots, text in (
            (facts.followed, "others follow it, so it was committed: nothing can be opened"),
            (facts.ahead, "it was in flight when its writer ended; it keeps others from writing"),
            (facts.at_head, "nothing follows it, so it counts as never committed"),
            (facts.folded, "its rows are in segments; it is lost to replays of the past"),
        ):
            for slot in slots:
                what = said(facts.damaged[slot].error)
                yield Finding("log-damaged", self._key(slot), f"{what}; {text}")
        if facts.passed:
            text = (
                f"slot {ranges_text(facts.passed)} is damaged, and passed over by name or not needed "
                "any more; its name stays taken"
            )
            yield Finding("log-damaged", self._key(facts.passed[0]), text, is_problem=False)
        for missing, text in (
            (facts.missing, "the log goes on behind it: opening for writing would lose that"),
            (facts.missing_folded, "its rows are in segments, but it was not collected"),
        ):
            if missing:
                what = f"slot {ranges_text(missing)} is not there"
                yield Finding("log-missing", self._key(missing[0]), f"{what}; {text}")
        ahead = [slot for slot in facts.sizes if slot > facts.end]
        if ahead:
            text = (
                f"slot {ranges_text(ahead)} was in flight when its writer ended, behind the end of "
                f"the log at {facts.end}: it does not count"
            )
            yield Finding("log-ahead", self._key(ahead[0]), text, is_problem=False)

    def _span(self, slot: int, last: int | None) -> Span:
        if self._head.lsn_policy == "packed":
            return pack_lsn(slot, 0), pack_lsn(slot, ORDINAL_MAX)
        return self._last_lsn + 1, last

    def _absent(self, slot: int) -> Damaged:
        return Damaged(slot, 0, IncompleteError(self._key(slot), 0, "a log object", "nothing"))

    def _key(self, slot: int) -> str:
        return log_key(self._head.namespace, slot)


def _in_order(part: ReadPart) -> Iterator[tuple[int, LogRun | BadSlot]]:
    runs = ((run.slot_first, run) for run in part.runs)
    bad = ((one.slot, one) for one in part.bad)
    return iter(sorted([*runs, *bad], key=lambda one: one[0]))
