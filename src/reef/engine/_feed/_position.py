"""Where to start reading a long log: the chain points that are known to be valid.

- A manifest names the last valid object below its `wal_floor`, and the newest version below it. The
  newest retained generation that ends at or below the wanted version is found by bisection.
- Below every retained generation, the chain is followed backward: each object names the valid one
  before it, so objects that are not named are void.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from reef.context import Context
from reef.engine._feed._headers import HEADERS_WINDOW_MAX, HeaderReader, LogHeader
from reef.errors import DamagedError, NotFoundError, RetentionError, UnreadableError
from reef.format import LogKind, LogObject, Manifest, decode_log, log_checksum, log_key
from reef.log import ChainPoint, Replay
from reef.manifest import ManifestChain, ManifestReader
from reef.types import unpack_lsn

_POSITIONS_KEPT = 64


@dataclass(frozen=True, slots=True)
class Position:
    """A position between two operations: those up to `lsn` are behind it, all others ahead."""

    lsn: int
    next_slot: int
    """The first slot that may be ahead."""
    point: ChainPoint
    """The last valid object below `next_slot`."""

    @staticmethod
    def of(manifest: Manifest) -> Position:
        """Return the position at which a manifest's segments end."""
        replay = Replay.of(manifest)
        return Position(manifest.last_applied_lsn, replay.next_slot, replay.point)


class KnownPositions:
    """Positions reached recently, by their versions. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Position] = OrderedDict()

    def find(self, lsn: int) -> Position | None:
        """Return the position of that version, if it is known."""
        with self._lock:
            return self._kept.get(lsn)

    def add(self, position: Position) -> None:
        """Remember a position."""
        with self._lock:
            self._kept[position.lsn] = position
            self._kept.move_to_end(position.lsn)
            while len(self._kept) > _POSITIONS_KEPT:
                self._kept.popitem(last=False)


class Entrances:
    """Finds positions at which to start reading the log of one namespace. Not thread-safe."""

    def __init__(
        self, context: Context, namespace: str, chain: ManifestChain, headers: HeaderReader
    ) -> None:
        self._context = context
        self._namespace = namespace
        self._chain = chain
        self._headers = headers

    def below(self, lsn: int, manifest: Manifest, known: Position | None = None) -> Position:
        """Return a position at or before version `lsn`, which is folded.

        `known` is a position behind that version, from before the log was collected there.
        """
        numbers = self._retained(manifest)
        low, high = 0, len(numbers)
        found: Manifest | None = None
        while low < high:
            middle = (low + high) // 2
            older = self._generation(numbers[middle])
            if older is None:
                del numbers[middle]
                high -= 1
            elif older.last_applied_lsn <= lsn:
                found, low = older, middle + 1
            else:
                high = middle
        if found is not None and found.wal_floor >= manifest.gc.boundary.slot:
            return Position.of(found)
        position, kept_from = self.bottom(self.oldest(manifest), manifest, lsn, known)
        if kept_from > lsn + 1:
            raise self.collected(lsn, kept_from, manifest)
        return position

    def bottom(
        self, oldest: Manifest, manifest: Manifest, lsn: int | None, known: Position | None = None
    ) -> tuple[Position, int]:
        """Follow the chain backward to version `lsn`, or as far as its objects exist.

        Returns the place, and the version from which on everything is ahead of it or below `lsn`.
        """
        boundary = manifest.gc.boundary.slot
        point = Position.of(oldest).point
        next_slot, kept_from = oldest.wal_floor, oldest.last_applied_lsn + 1
        skipped = {skip.slot for skip in manifest.skipped_slots}
        window = 1
        # Behind an object that repair skipped, nothing names the valid one before it.
        while point.slot >= boundary and point.slot not in skipped:
            self._headers.get(range(max(boundary, point.slot + 1 - window), point.slot + 1))
            header = self._headers.get([point.slot])[0]
            if not isinstance(header, LogHeader):
                break
            if lsn is not None and 0 < header.lsn_last <= lsn:
                entered = ChainPoint(point.slot, point.checksum, header.epoch)
                return Position(header.lsn_last, next_slot, entered), header.lsn_last + 1
            point, next_slot = ChainPoint(header.prev.slot, header.prev.checksum, 0), header.slot
            kept_from = header.lsn_first or kept_from
            window = min(2 * window, HEADERS_WINDOW_MAX)
        gone_below = 0 if known is None else known.next_slot
        if lsn is not None and manifest.lsn_policy == "packed":
            gone_below = max(gone_below, unpack_lsn(lsn)[0])
        kept_from = self._complete_from(point, lsn, kept_from, gone_below)
        return Position(kept_from - 1, next_slot, point), kept_from

    def _complete_from(
        self, point: ChainPoint, lsn: int | None, kept_from: int, gone_below: int
    ) -> int:
        """Return the version from which on nothing is missing, if the log is kept behind `point`.

        Fences are never collected: where there are only those, down to the log's beginning or to an
        object that is still there, nothing was. What lies below slot `gone_below` has no version above
        `lsn`, so it does not matter.
        """
        while point.slot:
            if lsn is not None and point.slot < gone_below:
                return lsn + 1
            log = self._named(point)
            if log is None:
                return kept_from
            if log.kind is not LogKind.FENCE:
                return log.lsn_last + 1 if lsn is not None and log.lsn_last <= lsn else kept_from
            point = ChainPoint(log.prev.slot, log.prev.checksum, 0)
        return 1

    def _named(self, point: ChainPoint) -> LogObject | None:
        """Return the object that the chain names; a paused writer may have put another one
        there."""
        key = log_key(self._namespace, point.slot)
        try:
            data = self._context.store.get(key)
            log = decode_log(data, key=key, slot=point.slot)
            return log if log_checksum(data, key=key) == point.checksum else None
        except (NotFoundError, UnreadableError):
            return None

    def _retained(self, manifest: Manifest) -> list[int]:
        """Return the generations below the head behind which all of the log is kept, in order."""
        boundary = manifest.gc.boundary.generation
        # One that only a branch or a snapshot needs does not keep what was committed after it.
        return [
            found.number
            for found in self._chain.generations()
            if manifest.born <= found.number < manifest.generation
            and (found.number >= boundary or found.number in manifest.followed)
        ]

    def oldest(self, manifest: Manifest) -> Manifest:
        """Return the first retained generation that can be read."""
        for number in self._retained(manifest):
            older = self._generation(number)
            if older is not None:
                return older
        return manifest

    def _generation(self, number: int) -> Manifest | None:
        try:
            return ManifestReader(self._context.store, self._namespace).read(number)[0]
        except (NotFoundError, DamagedError):
            return None

    def collected(self, lsn: int | None, kept_from: int, manifest: Manifest) -> RetentionError:
        asked = "the changes asked for" if lsn is None else f"changes after LSN {lsn}"
        origin = manifest.origin
        if origin is not None and kept_from == origin.lsn + 1:
            return RetentionError(
                f"{asked} of {self._namespace!r} are not all its own: the branch begins after LSN "
                f"{origin.lsn}, and what came before is in the feed of {origin.namespace!r}. Start "
                f"from a snapshot, or after LSN {origin.lsn}"
            )
        return RetentionError(
            f"{asked} of namespace {self._namespace!r} were collected: the log begins at LSN "
            f"{kept_from}. Start from a snapshot, or after LSN "
            f"{kept_from - 1}; a longer `pitr_window` keeps more"
        )
