"""How one part of the log enters and leaves the chain.

Parts are folded side by side, so the state of the chain before a part is not known yet. A part assumes
that its first readable object is valid: that the chain is at the object which that one names. The
driver goes through the parts in order and knows the true state; a part whose assumption does not hold
is folded again from it. Nothing of a part counts before that.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from reef.errors import CorruptError, InvariantError
from reef.format import LogObject, Manifest, SkippedSlot
from reef.log import ChainPoint, Damaged, LogEntry, Replay


class DamagedSlot(msgspec.Struct, frozen=True, array_like=True):
    """A damaged log object, as it crosses between processes."""

    slot: int
    checksum: int
    key: str
    offset: int
    expected: str
    got: str

    @classmethod
    def of(cls, damaged: Damaged) -> DamagedSlot:
        """Return a damaged object as it crosses."""
        error = damaged.error
        return cls(
            damaged.slot, damaged.checksum, error.key, error.offset, error.expected, error.got
        )

    def damaged(self) -> Damaged:
        """Return what `of` was given."""
        error = CorruptError(self.key, self.offset, self.expected, self.got)
        return Damaged(self.slot, self.checksum, error)


class ChainState(msgspec.Struct, frozen=True):
    """The state of the chain after some slot: all that a fold needs to go on from there."""

    slot: int
    """The last valid object; 0 before the first."""
    checksum: int
    epoch: int
    skipped: tuple[SkippedSlot, ...] = ()
    """Damaged objects since the last valid one that the manifest names."""
    damaged: tuple[DamagedSlot, ...] = ()
    """Damaged objects right before that slot, which only a fence there can still name."""

    @classmethod
    def of(cls, manifest: Manifest) -> ChainState:
        """Return the state at a manifest's `wal_floor`."""
        return cls(*Replay.of(manifest).point)

    @classmethod
    def before(cls, log: LogObject) -> ChainState:
        """Return the state that makes `log` valid: with the greatest epoch that does."""
        return cls(log.prev.slot, log.prev.checksum, log.epoch)

    @property
    def point(self) -> ChainPoint:
        return ChainPoint(self.slot, self.checksum, self.epoch)

    def confirms(self, assumed: ChainState) -> bool:
        """Return whether a fold that began with `assumed` decides the same as one that begins here.

        `assumed` is the state `before` the first object that the fold could read. If that object is
        valid from here too, all decisions after it follow from what it names.
        """
        is_there = self.point.prev == assumed.point.prev
        is_lost = any(skip.slot == assumed.slot for skip in self.skipped)
        return (is_there or is_lost) and self.epoch <= assumed.epoch and not self.damaged

    def last_decided(self, slot_last: int) -> int:
        """Return up to which slot the log is decided for good, once it was read to `slot_last`.

        Not past a damaged object: what comes next either names it as skipped or makes it an error. And
        not past a skipped one while no valid object follows: the first that follows cannot name its
        predecessor, and only a reader that has passed the gap knows it as valid.
        """
        open_slots = [*(skip.slot for skip in self.skipped), *(d.slot for d in self.damaged)]
        return min([slot_last, *(slot - 1 for slot in open_slots)])


class PartFold:
    """The fold of one part: a `Replay` that begins in the middle of the log."""

    def __init__(
        self, slot_first: int, skipped: Iterable[SkippedSlot], entered: ChainState | None
    ) -> None:
        """With `entered` None, the state is assumed from the first object that can be read."""
        self.entered = entered
        self._slot_first = slot_first
        self._skipped = tuple(skipped)
        self._early: list[Damaged] = []
        self._fold = None if entered is None else self._begin(entered)

    @property
    def left(self) -> ChainState | None:
        """The state after the part; None if nothing could be read, and nothing was known before."""
        fold = self._fold
        if fold is None:
            return None
        damaged = tuple(map(DamagedSlot.of, fold.at_head))
        return ChainState(*fold.point, tuple(fold.skipped), damaged)

    def add(self, log: LogObject, checksum: int, size: int) -> LogEntry:
        """Decide the next object.

        Raises CorruptError if there is a damaged object below it that is not skipped.
        """
        if self._fold is None:
            self.entered = ChainState.before(log)
            if SkippedSlot(log.slot, checksum) in self._skipped:
                # Void, so what it names tells nothing: no state confirms this, and the part is folded again.
                self.entered = msgspec.structs.replace(self.entered, epoch=-1)
            self._fold = self._begin(self.entered)
            for damaged in self._early:
                self._fold.add_damaged(damaged)
        if log.slot != self._fold.reach:
            raise InvariantError(f"log object {log.slot} follows where {self._fold.reach} should")
        return self._fold.add(log, checksum, size)

    def add_damaged(self, damaged: Damaged) -> None:
        """Take note that the next object is damaged."""
        if self._fold is None:
            self._early.append(damaged)
        else:
            self._fold.add_damaged(damaged)

    def _begin(self, entered: ChainState) -> Replay:
        fold = Replay(entered.point, self._slot_first - len(entered.damaged), self._skipped)
        fold.skipped += entered.skipped
        for damaged in entered.damaged:
            fold.add_damaged(damaged.damaged())
        return fold
