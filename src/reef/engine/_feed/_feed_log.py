"""The log as a feed: the position of a version, the end of the log, and its valid objects.

Whether an object is valid depends on the chain before it. Reading begins at a place that something
vouches for (`_feed_place`); from there forward, headers tell what is valid, without reading rows.

An absent slot is the end of the log only at or above the `wal_floor` of a head that was looked at
within half the grace period: below it, it was collected. At the first end after each look at the head,
probes behind it tell whether it is a hole.

What it costs: entering at a version that is not folded yet, one LIST and one GET for the head, and
one ranged GET of a header for each slot between the `wal_floor` and that version; further back, one
LIST, log2 of the retained generations GETs, and a header for each slot between that version and the
nearest generation. Going on from a known position costs nothing before the first slot itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

from reef.context import Context
from reef.engine._feed._headers import HEADERS_WINDOW_MAX, HeaderReader, LogHeader, UnreadableHeader
from reef.engine._feed._position import Entrances, KnownPositions, Position
from reef.engine._holes import check_end
from reef.errors import CorruptError, RetentionError
from reef.format import LogKind, Manifest, Prev, log_key
from reef.gc import FENCE_BYTES
from reef.log import ChainPoint, Damaged, LogEntry, LogReader, Replay
from reef.manifest import ManifestChain, no_namespace
from reef.types import LSN_MAX, unpack_lsn

OBJECTS_WINDOW_MAX = 16


@dataclass(frozen=True, slots=True)
class LinkedHeader:
    """A valid object and the valid one before it, as headers tell."""

    header: LogHeader
    before: ChainPoint


class _UndecidedByHeadersError(Exception):
    """Headers alone do not decide which objects are valid here: there is damage, or was."""


class FeedLog:
    """The log of one namespace, read whole and in order. Not thread-safe."""

    def __init__(
        self,
        context: Context,
        namespace: str,
        *,
        chain: ManifestChain | None = None,
        known_positions: KnownPositions | None = None,
    ) -> None:
        """Sends no request yet. `known_positions` are positions that earlier feeds have reached."""
        self.context = context
        self.namespace = namespace
        self._chain = chain or context.chain(namespace)
        self._headers = HeaderReader(context, namespace)
        self._end_slot = 1
        """The absent slot at which the log ended last."""
        self._probed_at: float | None = None
        """The look at the head after which the log behind that was probed."""
        self._known_positions = known_positions or KnownPositions()
        self._entrances = Entrances(context, namespace, self._chain, self._headers)

    # Where to begin.

    def manifest(self) -> Manifest:
        """Return the head, looked at within half the grace period. Raises NotFoundError."""
        if self._chain.is_out_of_touch:
            return self._look()
        head = self._chain.head
        assert head is not None
        return head.manifest

    def earliest(self) -> Position:
        """Return the position before the oldest operation that the log still has."""
        manifest = self.manifest()
        if manifest.gc.boundary.slot == 1 and manifest.origin is None:
            return Position(0, 1, ChainPoint(0, 0, 0))
        oldest = self._entrances.oldest(manifest)
        if oldest.wal_floor <= manifest.gc.boundary.slot:
            return Position.of(oldest)
        return self._entrances.bottom(oldest, manifest, None)[0]

    def after(self, lsn: int) -> Position:
        """Return the position behind version `lsn`; all later operations are ahead.

        Raises RetentionError if some of them were collected.
        """
        manifest = self.manifest()
        known = self._known_positions.find(lsn)
        if known is not None and known.next_slot >= manifest.gc.boundary.slot:
            return known
        return self._enter(lsn, manifest, known)

    def _enter(self, lsn: int, manifest: Manifest, known: Position | None) -> Position:
        if lsn >= manifest.last_applied_lsn:
            return self._skip(Position.of(manifest), lsn)
        return self._skip(self._entrances.below(lsn, manifest, known), lsn)

    def resume(self, position: Position) -> Position:
        """Return `position`, or the same place as it is reached now that the log was folded.

        Raises RetentionError if operations ahead of it were collected.
        """
        manifest = self.manifest()
        if position.lsn >= manifest.last_applied_lsn and position.next_slot < manifest.wal_floor:
            return replace(Position.of(manifest), lsn=position.lsn)
        if position.next_slot >= manifest.gc.boundary.slot:
            return position
        return self._enter(position.lsn, manifest, position)

    def newest(self) -> Position:
        """Return the position behind the newest operation."""
        return self.advance(Position.of(self.manifest()))

    # How far it reaches, from headers.

    def advance(
        self,
        position: Position,
        *,
        bytes_max: int | None = None,
        slots_max: int | None = None,
        upto: int = LSN_MAX,
    ) -> Position:
        """Return the position behind the newest operation, or an earlier one within the limits.

        No object is passed that has operations above `upto`.
        At least one object is passed if there is one. An attach object counts as more than any
        limit, so it is the last one passed. If nothing was committed, this costs one GET.
        """
        position = self.resume(position)
        try:
            return self._advance(position, _Limit(bytes_max, slots_max, upto))
        except (
            _UndecidedByHeadersError
        ):  # with a fresh limit: the objects passed so far do not count
            return self._advance_reading(position, _Limit(bytes_max, slots_max, upto))

    def course(self, position: Position, last_slot: int) -> list[LinkedHeader] | None:
        """Return the valid objects from `position` through `last_slot`, fences too.

        None: headers alone do not tell. Raises RetentionError if they were collected.
        """
        links: list[LinkedHeader] = []
        try:
            for link in self._links(self.resume(position)):
                if link.header.slot > last_slot:
                    return links
                links.append(link)
                if link.header.slot == last_slot:
                    return links
        except _UndecidedByHeadersError:
            return None
        raise self._lost(last_slot)

    # The objects themselves.

    def entries(
        self, position: Position, upto: int, *, leads_to: Prev | None = None
    ) -> Iterator[LogEntry]:
        """Yield the valid objects that have operations above `position.lsn`, up to version `upto`.

        `upto` must be visible. Objects are read whole, several at once, each once. `leads_to` is what
        the chain is known to have as its last valid object then. Raises RetentionError if one was
        collected, CorruptError, UnavailableError.
        """
        if position.lsn >= upto:
            return
        manifest = self.manifest()
        position = self.resume(position)
        replay = Replay(position.point, position.next_slot, manifest.skipped_slots)
        last_slot = unpack_lsn(upto)[0] if manifest.lsn_policy == "packed" else None
        for entry in self._read(replay, manifest, last_slot):
            log = entry.log
            if entry.is_valid and log.kind is not LogKind.FENCE and log.lsn_last > position.lsn:
                if log.lsn_first > upto:
                    return
                if log.lsn_last >= upto and leads_to is not None and leads_to != replay.point.prev:
                    raise self._wrong_chain(replay.point, leads_to, "what was planned by headers")
                yield entry
                if log.lsn_last >= upto:
                    if log.lsn_last == upto:
                        self._known_positions.add(Position(upto, replay.next_slot, replay.point))
                    return

    def _read(
        self, replay: Replay, manifest: Manifest, last_slot: int | None, *, may_end: bool = False
    ) -> Iterator[LogEntry]:
        reader = LogReader(self.context.store, self.namespace, manifest.lsn_policy)
        window = 1
        damaged: Damaged | None = None
        while True:
            first = replay.reach
            count = window if last_slot is None else max(1, min(window, last_slot + 1 - first))
            slots = range(first, first + count)
            keys = [log_key(self.namespace, slot) for slot in slots]
            for slot, data in zip(slots, self.context.store.get_many(keys), strict=True):
                if data is None:
                    if may_end:
                        self._end_slot = slot
                        return
                    raise damaged.error if damaged and replay.damaged else self._lost(slot)
                decoded = reader.decode(slot, data)
                if isinstance(decoded, Damaged):
                    damaged = decoded
                    replay.skip(self._look().skipped_slots)  # repair may just have skipped it
                    replay.add_damaged(decoded)
                    continue
                yield self._decided(replay.add(*decoded), replay, manifest)
            window = min(2 * window, OBJECTS_WINDOW_MAX)

    def _decided(self, entry: LogEntry, replay: Replay, manifest: Manifest) -> LogEntry:
        """Return `entry`, checked against the chain that the manifest records."""
        anchor = Prev(manifest.wal_anchor.slot, manifest.wal_anchor.checksum)
        if replay.next_slot == manifest.wal_floor and replay.point.prev != anchor:
            raise self._wrong_chain(replay.point, anchor, f"generation {manifest.generation}")
        return entry

    def _wrong_chain(self, point: ChainPoint, known: Prev, whose: str) -> CorruptError:
        return CorruptError(
            log_key(self.namespace, known.slot),
            0,
            f"the chain to lead to it, checksum {known.checksum:08x}, as {whose} says",
            f"slot {point.slot}, checksum {point.checksum:08x}, as the last valid object",
        )

    # How it is done.

    def _look(self) -> Manifest:
        head = self._chain.load()
        if head is None or head.manifest.state != "live":
            raise no_namespace(self.context.store.url, self.namespace)
        return head.manifest

    def _links(self, position: Position) -> Iterator[LinkedHeader]:
        """Yield the valid objects ahead, up to the first absent slot."""
        skipped = {skip.slot for skip in self.manifest().skipped_slots}
        before = position.point
        is_exact = True
        slot, window = position.next_slot, 1
        while True:
            for answer in self._headers.get(range(slot, slot + window)):
                if answer is None:
                    self._end_slot = slot
                    return
                if isinstance(answer, UnreadableHeader) or slot in skipped or _names_damage(answer):
                    raise _UndecidedByHeadersError
                prev = answer.prev
                # A slot only ever holds one object; reading it compares it with this checksum.
                if (
                    prev.slot == before.slot
                    and answer.epoch >= before.epoch
                    and not (is_exact and prev.checksum != before.checksum)
                ):
                    yield LinkedHeader(answer, ChainPoint(prev.slot, prev.checksum, before.epoch))
                    before, is_exact = ChainPoint(answer.slot, 0, answer.epoch), False
                slot += 1
            window = min(2 * window, HEADERS_WINDOW_MAX)

    def _advance(self, position: Position, limit: _Limit) -> Position:
        last: LogHeader | None = None
        end: Position | None = None
        for link in self._links(position):
            header = link.header
            if last is not None and end is None:
                # The object or manifest that names `last` has its checksum.
                end = Position(last.lsn_last, last.slot + 1, link.before)
            if header.lsn_last > position.lsn:
                if not limit.takes(header):
                    return end or position
                last, end = header, None
        self._check_end(position, last)
        if last is None or end is not None:
            return end or position
        return self._whole(last)

    def _whole(self, header: LogHeader) -> Position:
        """Return the position behind the last object of the log, if it can be read."""
        reader = LogReader(self.context.store, self.namespace, self.manifest().lsn_policy)
        data = self.context.store.get(log_key(self.namespace, header.slot))
        decoded = reader.decode(header.slot, data)
        if isinstance(decoded, Damaged):
            raise _UndecidedByHeadersError
        _, checksum, _ = decoded
        return Position(
            header.lsn_last, header.slot + 1, ChainPoint(header.slot, checksum, header.epoch)
        )

    def _advance_reading(self, position: Position, limit: _Limit) -> Position:
        """Like `_advance`, but read every object whole."""
        manifest = self._look()  # repair may have skipped the damaged object
        replay = Replay(position.point, position.next_slot, manifest.skipped_slots)
        end = position
        for entry in self._read(replay, manifest, None, may_end=True):
            log = entry.log
            if entry.is_valid and log.lsn_last > position.lsn:
                if not limit.takes(_header_of(entry)):
                    return end
                end = Position(log.lsn_last, replay.next_slot, replay.point)
        self._check_end(end, None)
        return end

    def _check_end(self, position: Position, last: LogHeader | None) -> None:
        """Raise RetentionError if the log had more objects where it seems to end.

        CorruptError if there is a hole.
        """
        manifest = self.manifest()
        head = self._chain.head
        if head is not None and self._chain.last_contact != self._probed_at:
            reader = LogReader(self.context.store, self.namespace, manifest.lsn_policy)
            ahead = reader.look_ahead(self._end_slot, head.parallel_writes_max)
            check_end(self.context, self._chain, head, self._end_slot, ahead)
            self._probed_at = self._chain.last_contact
        reached = position.lsn if last is None else last.lsn_last
        if reached < manifest.last_applied_lsn:
            raise self._lost(position.next_slot if last is None else last.slot + 1)

    def _skip(self, position: Position, lsn: int) -> Position:
        """Return the position behind `lsn`, reading headers from an earlier one."""
        found = replace(position, lsn=max(lsn, position.lsn))
        if lsn <= position.lsn:
            return found
        try:
            for link in self._links(position):
                found = Position(lsn, link.header.slot, link.before)
                if link.header.lsn_last > lsn:
                    break
        except _UndecidedByHeadersError:
            pass  # objects in between are skipped when they are read
        return found

    def _lost(self, slot: int) -> RetentionError | CorruptError:
        """Return the error for a slot that must have had an object."""
        manifest = self._look()
        if slot < manifest.gc.boundary.slot:
            _, kept_from = self._entrances.bottom(self._entrances.oldest(manifest), manifest, None)
            return self._entrances.collected(None, kept_from, manifest)
        return CorruptError(
            log_key(self.namespace, slot),
            0,
            f"a log object: generation {manifest.generation} has folded the log up to slot "
            f"{manifest.wal_floor - 1}",
            "nothing; run `reef verify`, which shows what is lost",
        )


class _Limit:
    """How much one `advance` may pass."""

    def __init__(self, bytes_max: int | None, slots_max: int | None, upto: int) -> None:
        self._upto = upto
        self._is_limited = bytes_max is not None or slots_max is not None
        self._bytes_left = inf if bytes_max is None else bytes_max
        self._slots_left = inf if slots_max is None else slots_max
        self._is_first = True
        self._is_closed = False

    def takes(self, header: LogHeader) -> bool:
        """Return whether an object may be passed too."""
        if header.lsn_last > self._upto:
            return False
        if not self._is_first and (
            self._is_closed or self._bytes_left < header.size or self._slots_left < 1
        ):
            return False
        self._is_first = False
        self._is_closed = self._is_limited and header.kind is LogKind.ATTACH
        self._bytes_left -= header.size
        self._slots_left -= 1
        return True


def _names_damage(header: LogHeader) -> bool:
    """Return whether an object is a fence that names damaged ones below it."""
    return header.kind is LogKind.FENCE and header.size != FENCE_BYTES


def _header_of(entry: LogEntry) -> LogHeader:
    log = entry.log
    return LogHeader(
        log.kind,
        entry.size,
        entry.slot,
        log.lsn_first,
        log.lsn_last,
        log.epoch,
        log.created_at_us,
        log.operations,
        log.prev,
    )
