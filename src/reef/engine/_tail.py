"""The unfolded log in memory: recovery replays it, and every commit adds to it.

Writers and readers hold one each. It knows how far the log is decided (`replay`), which versions lie
in it (`memtable`, and segments attached by it), how long it is, and the newest version that may be
shown (`lsn`).
"""

from __future__ import annotations

from collections import deque

import msgspec
import pyarrow as pa

from reef.engine._memtable._memtable import Memtable
from reef.errors import InvariantError
from reef.format import LogKind, Manifest, SegmentRef, SkippedSlot, decode_schema
from reef.log import ChainPoint, LogEntry, Replay


class _Slot(msgspec.Struct, frozen=True):
    number: int
    size: int


class Tail:
    """The log from a manifest's `wal_floor` on. Not safe among threads: its handle's lock guards it."""

    def __init__(self, manifest: Manifest) -> None:
        self.replay = Replay.of(manifest)
        self.memtable = Memtable()
        self.attached: tuple[SegmentRef, ...] = ()
        self.attaching: tuple[SegmentRef, ...] = ()
        """Segments of records that are not durable yet. Later conditions and patches see them,
        readers do not."""
        self.schema: pa.Schema | None = None
        """The columns of the newest rows, if the log sets them."""
        if manifest.schema:
            self.schema = decode_schema(pa.py_buffer(manifest.schema), "", 0)
        self.lsn = manifest.last_applied_lsn
        self.skipped: tuple[SkippedSlot, ...] = manifest.skipped_slots
        self._slots: deque[_Slot] = deque()
        self.log_bytes = 0

    @property
    def log_slots(self) -> int:
        """How many decided slots are not folded yet."""
        return len(self._slots)

    def apply(self, entry: LogEntry) -> None:
        """Add a decided log object: its rows, if it is valid."""
        self._note(entry.slot, entry.size)
        if not entry.is_valid:
            return
        for record in entry.log.records:
            if record.batch is not None:
                self.memtable.apply(record.lsn, record.batch)
            self.attached += record.segments
            self.skipped += record.skipped
            if record.schema is not None:
                self.schema = record.schema
        if entry.log.kind is not LogKind.FENCE:
            self._rise(entry.log.lsn_last)

    def attach(self, segments: tuple[SegmentRef, ...]) -> None:
        """Add segments of a record in flight."""
        self.attaching += segments

    def truncate(self, lsn: int) -> bool:
        """Drop the versions above `lsn`, which failed; return whether segments were among them."""
        self.memtable.truncate(lsn)
        before, self.attaching = self.attaching, _through(self.attaching, lsn)
        return len(self.attaching) < len(before)

    def committed(self, point: ChainPoint, size: int, lsn: int) -> None:
        """Record that a log object, whose rows are in the memtable already, is durable."""
        if point.slot != self.replay.next_slot:
            raise InvariantError(f"slot {point.slot} became durable before {self.replay.next_slot}")
        if self.attaching:
            done = _through(self.attaching, lsn)
            # They come in the order of versions. In one step: no interrupt leaves them in both.
            self.attached, self.attaching = self.attached + done, self.attaching[len(done) :]
        if lsn > self.lsn:
            self.lsn = lsn
        if not self._slots or self._slots[-1].number < point.slot:
            self._note(point.slot, size)
        self.replay.append(point)  # last: an interrupted caller repeats all of this

    def drop_folded(self, manifest: Manifest) -> None:
        """Drop the rows that `manifest` has in its segments.

        This replaces the memtable: reads of the old one go on undisturbed.
        """
        while self._slots and self._slots[0].number < manifest.wal_floor:
            self.log_bytes -= self._slots.popleft().size
        self.memtable = self.memtable.without_through(manifest.last_applied_lsn)
        self.attached = _above(self.attached, manifest.last_applied_lsn)
        self.attaching = _above(self.attaching, manifest.last_applied_lsn)
        skipped = {*self.skipped, *manifest.skipped_slots}
        self.skipped = tuple(skip for skip in skipped if skip.slot >= manifest.wal_floor)
        self.replay.skip(self.skipped)

    def _note(self, slot: int, size: int) -> None:
        self._slots.append(_Slot(slot, size))
        self.log_bytes += size

    def _rise(self, lsn: int) -> None:
        if lsn <= self.lsn:
            raise InvariantError(f"version {lsn} after version {self.lsn}")
        self.lsn = lsn


def _through(refs: tuple[SegmentRef, ...], lsn: int) -> tuple[SegmentRef, ...]:
    return tuple(ref for ref in refs if ref.lsn_max <= lsn)


def _above(refs: tuple[SegmentRef, ...], lsn: int) -> tuple[SegmentRef, ...]:
    return tuple(ref for ref in refs if ref.lsn_max > lsn)
