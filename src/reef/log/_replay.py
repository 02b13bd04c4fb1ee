"""Replay: decides, slot by slot, which log objects are valid. Writers, readers and jobs use it.

Invariants:

- Slots are decided in order, each once, by what lies at or below them only: everybody who replays
  the same objects decides alike.
- An object is *valid* if its `prev` names the last valid object before it and its epoch is not
  lower. Otherwise it is *void*: it was in flight behind a write that lost its slot. Comparing with
  the last valid object, and not with the neighbour, is what keeps a void one from vouching.
- A damaged object is skipped only if it is named: by a valid fence right behind it, or by the
  manifest, where repair has written it. At the head of the log it ends the replay: it was never
  acknowledged, because otherwise a later object would exist. Followed by any other object, it is
  an error.
- The successor of an object that repair skipped cannot name a valid one. It is accepted as it is,
  because the chain below it is known to be lost. Where several objects claim to be that successor,
  repair names those that are not, and they are void.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from reef.errors import CorruptError, DamagedError
from reef.format import LogKind, LogObject, Manifest, Prev, SkippedSlot


class ChainPoint(NamedTuple):
    """The last valid log object so far; slot 0 before the first."""

    slot: int
    checksum: int
    epoch: int

    @property
    def prev(self) -> Prev:
        """What the next object has to name."""
        return Prev(self.slot, self.checksum)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A decided log object."""

    slot: int
    log: LogObject
    checksum: int
    size: int
    is_valid: bool


@dataclass(frozen=True, slots=True)
class Damaged:
    """A log object that was read twice and is damaged."""

    slot: int
    checksum: int
    """`damaged_checksum` of its bytes."""
    error: DamagedError

    @property
    def name(self) -> SkippedSlot:
        """How a fence or the manifest names it."""
        return SkippedSlot(self.slot, self.checksum)


class Replay:
    """The replay of a log up to `next_slot`, which is the first slot that is not decided."""

    def __init__(
        self, point: ChainPoint, next_slot: int, skipped: Iterable[SkippedSlot] = ()
    ) -> None:
        self.point = point
        self.next_slot = next_slot
        self._named = set(skipped)
        self.skipped: list[SkippedSlot] = []
        """Damaged objects since the last valid one that were named beforehand."""
        self.at_head: list[Damaged] = []
        """Damaged objects at the head, which only the next fence can still name."""
        self.ahead: tuple[int, ...] = ()
        """Slots behind `reach`, which is absent, in which something was found."""

    @classmethod
    def of(cls, manifest: Manifest) -> Replay:
        """Return the replay that goes on from what `manifest` says of the log."""
        anchor = manifest.wal_anchor
        if manifest.origin is not None and anchor.slot == 0:
            anchor = manifest.origin.head
        point = ChainPoint(anchor.slot, anchor.checksum, anchor.epoch)
        return cls(point, manifest.wal_floor, manifest.skipped_slots)

    @property
    def reach(self) -> int:
        """The slot to look at next: behind the damaged ones at the head, if there are any."""
        return self.next_slot + len(self.at_head)

    @property
    def damaged(self) -> tuple[SkippedSlot, ...]:
        """The damaged objects at the head, which the next fence has to name."""
        return tuple(found.name for found in self.at_head)

    def skip(self, skipped: Iterable[SkippedSlot]) -> None:
        """Take note of damaged objects that a later manifest names."""
        self._named.update(skipped)

    def look_again(self) -> None:
        """Forget the damage at the head: it may have been on the way, or repaired since."""
        self.at_head.clear()

    def add_damaged(self, found: Damaged) -> None:
        """Take note that the object at `reach` is damaged."""
        self.at_head.append(found)
        while self.at_head and self.at_head[0].name in self._named:
            self.skipped.append(self.at_head.pop(0).name)
            self.next_slot += 1

    def add(self, log: LogObject, checksum: int, size: int) -> LogEntry:
        """Decide the object at `reach`.

        Raises CorruptError if a damaged object lies below it that nothing names.
        """
        is_valid = self._is_valid(log)
        if self._named and SkippedSlot(log.slot, checksum) in self._named:
            is_valid = False
        if self.at_head and not (is_valid and self._is_named_by(log)):
            raise _followed(self.at_head[0], log.slot)
        if is_valid:
            self.point = ChainPoint(log.slot, checksum, log.epoch)
            self.skipped.clear()
        self.at_head.clear()
        self.next_slot = log.slot + 1
        return LogEntry(log.slot, log, checksum, size, is_valid)

    def append(self, point: ChainPoint) -> None:
        """Take note of a durable object of one's own, which names the last valid one."""
        self.skipped.clear()
        self.at_head.clear()
        self.point, self.next_slot = point, point.slot + 1

    def _is_valid(self, log: LogObject) -> bool:
        is_lost = any(skip.slot == log.prev.slot for skip in self.skipped)
        return (log.prev == self.point.prev or is_lost) and log.epoch >= self.point.epoch

    def _is_named_by(self, log: LogObject) -> bool:
        return log.kind is LogKind.FENCE and {*self.damaged} <= {*log.records[0].skipped}


def _followed(found: Damaged, by_slot: int) -> CorruptError:
    error = found.error
    return CorruptError(
        error.key,
        error.offset,
        error.expected,
        f"{error.got}; it is followed by log object {by_slot}, so it was committed: "
        "run `reef repair`, which shows what is lost before it changes anything",
    )
