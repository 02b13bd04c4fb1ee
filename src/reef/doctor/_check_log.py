"""Checking the log: every object by itself, and the chain that links them.

Every slot from the boundary of collection up to the end of the log must be there. The chain is followed
from the oldest retained generation whose log is still whole. At the `wal_floor` of each retained
generation it must stand where that generation says. A damaged object is reported and then passed over,
so that the objects behind it are checked too.

The log ends at the first absent slot behind which no log object lies further than a writer may have
had in flight. An absent slot before that is a hole: it was deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, islice
from typing import NamedTuple

from reef.doctor._problems import ProblemOrNote, Progress, describe, ranges_text
from reef.errors import CorruptError, IncompleteError, UnreadableError
from reef.format import LogKind, Manifest, SegmentRef, SkippedSlot, log_key
from reef.log import (
    MISSING_MAX,
    ChainPoint,
    Damaged,
    ListedLog,
    LogEntry,
    LogPart,
    LogReader,
    LogRun,
    ReadLogPart,
    Replay,
    UnreadableSlot,
    absent,
    cut_log,
    find_end,
    list_slots,
)
from reef.store import Store
from reef.types import ORDINAL_MAX, pack_lsn

Span = tuple[int, int | None]
"""The first and the last LSN that a slot may have held; None: no upper bound is known."""


class UnreadableKind(StrEnum):
    """Where an object that cannot be read lies in the log, and what follows from it."""

    FOLLOWED = "others follow it, so it was committed: the namespace cannot be opened"
    IN_FLIGHT = "it was in flight when its writer ended; no other writer can pass it"
    AT_HEAD = "nothing follows it, so it counts as never committed"
    FOLDED = "its rows are in segments; only replays of the past need it"
    SKIPPED = "the manifest or a fence names it as skipped"
    BELOW_BOUNDARY = "nothing needs it any more"
    FOREIGN = "it is of another format version, and not damaged"


class UnreadableObject(NamedTuple):
    """A log object that cannot be read."""

    kind: UnreadableKind
    checksum: int
    """`damaged_checksum` of its bytes."""
    error: UnreadableError


class Claim(NamedTuple):
    """What an object says of the slot that it names as the one before it."""

    epoch: int
    checksum: int
    """Of the object that was in that slot, as its author saw it."""
    by: SkippedSlot
    """Slot and checksum of the object itself."""


_PROBLEMS = (
    UnreadableKind.FOLLOWED,
    UnreadableKind.IN_FLIGHT,
    UnreadableKind.AT_HEAD,
    UnreadableKind.FOLDED,
)


@dataclass
class CheckedLog:
    """The result of checking a log."""

    sizes: Mapping[int, int]
    """The bytes of every object in the bucket, by slot."""
    end: int
    """The first slot behind the log, where the next fence goes."""
    missing: list[int]
    """Absent slots of the unfolded log with log objects behind them."""
    missing_folded: list[int]
    """Absent slots below `wal_floor`, at most MISSING_MAX: their rows are in segments."""
    unreadable: dict[int, UnreadableObject] = field(default_factory=dict)
    """Every object that cannot be read, by slot."""
    attached: list[SegmentRef] = field(default_factory=list)
    """The segments that the unfolded log attaches: as live as those that the head names."""
    objects: int = 0
    claims: dict[int, list[Claim]] = field(default_factory=dict)
    """By damaged or missing slot: the objects behind it that name it as the one before them."""
    spans: dict[int, Span] = field(default_factory=dict)
    """The LSNs that a damaged or missing slot may have held, by its neighbours."""
    reported: list[ProblemOrNote] = field(default_factory=list)

    def slots(self, *kinds: UnreadableKind) -> list[int]:
        """Return the slots of unreadable objects, kind after kind."""
        return [slot for kind in kinds for slot, one in self.unreadable.items() if one.kind is kind]

    def refuted(self, slot: int) -> list[SkippedSlot]:
        """Return the objects that do not follow what was in a lost slot, though they name it.

        An object of a newer writer's was in that slot, and they were in flight behind one that lost it.
        The newest writer that names the slot is right: a writer that took the slot from it would be newer.
        """
        claims = self.claims.get(slot, [])
        newest = max(claims, key=lambda claim: claim.epoch, default=None)
        return [claim.by for claim in claims if newest and claim.checksum != newest.checksum]


class LogCheck:
    """Checks a log: `parts` is what to read, `check` takes what was read, from the first part to the last."""

    def __init__(
        self, store: Store, head: Manifest, retained: Sequence[Manifest], *, parallel: int
    ) -> None:
        """List the log. Raises UnavailableError."""
        self._head = head
        slots = list_slots(store, head.namespace)
        boundary, floor = head.gc.boundary.slot, head.wal_floor
        end, missing = find_end(_counted(store, head, slots, parallel), head, parallel)
        if missing:
            # The log may have grown while it was listed: what lay before an object is there by now.
            last = max(slots, default=0)
            again = list_slots(store, head.namespace).items()
            slots |= {slot: size for slot, size in again if slot < last}
            slots = dict(sorted(slots.items()))
            end, missing = find_end(_counted(store, head, slots, parallel), head, parallel)
        gaps = absent(slots, boundary, floor)
        lost = list(islice(chain.from_iterable(gaps), MISSING_MAX))
        self.result = CheckedLog(slots, end, missing, lost)
        self._floors = {m.wal_floor: m for m in (*retained, head)}
        after_hole = gaps[-1].stop if gaps else boundary
        self._start = min(f for f in (*self._floors, floor) if after_hole <= f <= floor)
        self._fold = Replay.of(self._floors[self._start])
        self._missing = frozenset(missing)
        self._damaged: dict[int, Damaged] = {}
        self._since: list[Damaged] = []
        """The objects passed over since the last valid one."""
        self._is_broken = False
        """Whether an object of another format version was met: what follows cannot be decided."""
        self._named_by_fence: set[int] = set()
        self._last_readable = 0
        self._last_lsn = self._floors[self._start].last_applied_lsn
        self._spans_open: list[int] = []

    def parts(self, *, part_bytes: int, part_objects: int) -> Iterator[LogPart]:
        """Yield the parts to read; `check` takes all of them, in this order."""
        return cut_log(
            self._head.namespace,
            self._head.lsn_policy,
            self.result.sizes,
            sorted({*self._floors, self._start, self.result.end}),
            part_bytes=part_bytes,
            part_objects=part_objects,
        )

    def check(self, read: Iterable[ReadLogPart], progress: Progress) -> CheckedLog:
        """Return the result, once every part was read."""
        missing = list(reversed(self.result.missing))
        for part in read:
            for slot, decoded in _in_order(part):
                while missing and missing[-1] < slot:
                    self._chain(missing[-1], self._absent(missing.pop()))
                self._take(slot, decoded)
            self.result.objects += part.objects
            progress("log", self.result.objects, len(self.result.sizes))
        while missing:
            self._chain(missing[-1], self._absent(missing.pop()))
        for slot in self._spans_open:
            self.result.spans[slot] = self._span(slot, None)
        self._classify()
        self.result.reported += self._problems()
        return self.result

    def _take(self, slot: int, decoded: LogRun | UnreadableSlot) -> None:
        one: LogRun | Damaged
        if isinstance(decoded, UnreadableSlot):
            damaged = decoded.damaged()
            if damaged is None:
                error = decoded.reason.error()
                text = f"{describe(error)}; {error.advice}"
                self.result.reported.append(ProblemOrNote("format-version", self._key(slot), text))
                self.result.unreadable[slot] = UnreadableObject(
                    UnreadableKind.FOREIGN, decoded.checksum, error
                )
                self._is_broken = True
                return
            one = self._damaged[slot] = damaged
        else:
            one = decoded
        if self._start <= slot < self.result.end:
            self._chain(slot, one)

    def _chain(self, slot: int, decoded: LogRun | Damaged) -> None:
        """Take the fold over one slot or over a run of slots."""
        floor = self._floors.get(slot)
        if floor is not None and not self._is_broken:
            self._check_anchor(floor)
        if slot == self._head.wal_floor:
            self._fold, self._is_broken = Replay.of(self._head), False
            self._since.clear()
        if self._is_broken:
            return
        if isinstance(decoded, Damaged):
            self._since.append(decoded)
            self._fold.add_damaged(decoded)
            self._spans_open.append(slot)
            return
        self._last_readable = decoded.slot_last
        if self._is_lost(decoded.prev.slot):
            by = SkippedSlot(decoded.slot_first, decoded.checksum_first)
            claim = Claim(decoded.epoch, decoded.prev.checksum, by)
            self.result.claims.setdefault(decoded.prev.slot, []).append(claim)
        unnamed = {skip.slot for skip in self._fold.damaged}
        try:
            entry = self._fold.add(decoded.first, decoded.checksum_first, 0)
        except CorruptError:
            given_up = (SkippedSlot(d.slot, d.checksum) for d in self._since)
            self._fold = Replay(self._fold.point, slot, [*self._head.skipped_slots, *given_up])
            for damaged in self._since:
                self._fold.add_damaged(damaged)
            entry = self._fold.add(decoded.first, decoded.checksum_first, 0)
        else:
            self._named_by_fence |= unnamed
        self._decided(entry, decoded)

    def _is_lost(self, slot: int) -> bool:
        return slot in self._damaged or slot in self._missing

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
            self.result.spans[slot] = self._span(slot, run.lsn_first - 1)
        self._spans_open.clear()
        self._last_lsn = run.lsn_last
        if run.slot_first >= self._head.wal_floor:
            self.result.attached += run.attached

    def _check_anchor(self, manifest: Manifest) -> None:
        """Check that the fold stands where a generation says, at its floor."""
        expected, point = Replay.of(manifest).point, self._fold.point
        if expected == point or self._since or manifest.wal_floor == self._start:
            return
        self.result.reported.append(
            ProblemOrNote(
                "log-unlinked",
                self._key(manifest.wal_floor),
                f"generation {manifest.generation} follows log object {expected.slot} of checksum "
                f"{expected.checksum}; the log has object {point.slot} of {point.checksum}",
            )
        )

    def _classify(self) -> None:
        """Say of every damaged object where it lies."""
        named = {(skip.slot, skip.checksum) for skip in self._head.skipped_slots}
        last = max((self._last_readable, *self.result.missing))
        for slot, damaged in self._damaged.items():
            is_named = (slot, damaged.checksum) in named or slot in self._named_by_fence
            kind = UnreadableKind.SKIPPED if is_named else self._kind(slot, last)
            self.result.unreadable[slot] = UnreadableObject(kind, damaged.checksum, damaged.error)

    def _kind(self, slot: int, last: int) -> UnreadableKind:
        """Return where a damaged object lies that is not skipped; others follow up to slot `last`."""
        if slot < self._head.gc.boundary.slot:
            return UnreadableKind.BELOW_BOUNDARY
        if slot >= self.result.end:
            return UnreadableKind.IN_FLIGHT
        if slot < self._head.wal_floor:
            return UnreadableKind.FOLDED
        return UnreadableKind.FOLLOWED if slot < last else UnreadableKind.AT_HEAD

    def _problems(self) -> Iterator[ProblemOrNote]:
        log = self.result
        for slot in log.slots(*_PROBLEMS):
            one = log.unreadable[slot]
            text = f"{describe(one.error)}; {one.kind}"
            yield ProblemOrNote("log-damaged", self._key(slot), text)
        harmless = sorted(log.slots(UnreadableKind.SKIPPED, UnreadableKind.BELOW_BOUNDARY))
        if harmless:
            text = (
                f"slot {ranges_text(harmless)} is damaged, and skipped by name or no longer needed"
            )
            yield ProblemOrNote("log-damaged", self._key(harmless[0]), text, is_problem=False)
        for missing, text in (
            (log.missing, "the log goes on behind it, and nobody reads or writes there"),
            (log.missing_folded, "its rows are in segments, but no collection removed it"),
        ):
            if missing:
                more = ", and perhaps more," if len(missing) >= MISSING_MAX else ""
                what = f"slot {ranges_text(missing)}{more} is not there"
                yield ProblemOrNote("log-missing", self._key(missing[0]), f"{what}; {text}")
        ahead = [slot for slot in log.sizes if slot > log.end]
        if ahead:
            text = (
                f"slot {ranges_text(ahead)} was in flight when its writer ended, behind the end of "
                f"the log at {log.end}: it was never committed"
            )
            yield ProblemOrNote("log-ahead", self._key(ahead[0]), text, is_problem=False)

    def _span(self, slot: int, last: int | None) -> Span:
        if self._head.lsn_policy == "packed":
            return pack_lsn(slot, 0), pack_lsn(slot, ORDINAL_MAX)
        return self._last_lsn + 1, last

    def _absent(self, slot: int) -> Damaged:
        return Damaged(slot, 0, IncompleteError(self._key(slot), 0, "a log object", "nothing"))

    def _key(self, slot: int) -> str:
        return log_key(self._head.namespace, slot)


def _counted(
    store: Store, head: Manifest, slots: Mapping[int, int], parallel: int
) -> Mapping[int, int]:
    """Return `slots` up to the last that proves how far the log reaches, if there is a doubt."""
    unfolded = ListedLog.of(head.wal_floor, slots.items())
    if not unfolded.ahead or unfolded.ahead[-1] - unfolded.end < parallel:
        return slots
    reader = LogReader(store, head.namespace, head.lsn_policy)
    last = next(filter(reader.has_object, reversed(unfolded.ahead)), unfolded.end)
    return {slot: size for slot, size in slots.items() if slot <= last}


def _in_order(part: ReadLogPart) -> Iterator[tuple[int, LogRun | UnreadableSlot]]:
    runs = ((run.slot_first, run) for run in part.runs)
    unreadable = ((one.slot, one) for one in part.unreadable)
    return iter(sorted([*runs, *unreadable], key=lambda one: one[0]))
