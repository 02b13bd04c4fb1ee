"""Log objects as collection sees them: which are fences, and what the log attaches.

A fence without skipped slots has one exact size, and nothing else is as small. Of any other object
the first bytes are read, because a fence is never deleted: the slot that an old writer would take
next always holds one. The header is not under a checksum of its own, so an object counts as data only
if everything in the header agrees with its key, its size and its kind. Otherwise it stays.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from enum import IntEnum
from itertools import accumulate

from reef.errors import DamagedError, FormatVersionError, NotFoundError, UnreadableError
from reef.format import (
    LogKind,
    LogObject,
    LogRecord,
    LsnPolicy,
    Prev,
    SegmentRef,
    decode_log,
    encode_log,
    log_key,
)
from reef.gc._names import folder_prefix
from reef.log import parse_slot
from reef.store import ObjectMeta, Store

# Magic and version, kind, zeros, bytes of the object, slot, first LSN: see docs/formats.
_HEADER = struct.Struct("<12sB3sQQQ")
_FENCE = encode_log(
    LogObject(
        kind=LogKind.FENCE,
        slot=1,
        epoch=1,
        writer_id=bytes(16),
        nonce=b"\1" * 16,
        created_at_us=0,
        prev=Prev(),
        records=(LogRecord(),),
    )
)
_HEAD = _FENCE[:12]
FENCE_BYTES = len(_FENCE)


def read_log_kind(store: Store, key: str, *, slot: int, size: int) -> LogKind | None:
    """Return what the log object of `size` bytes in `slot` is; None if it cannot be trusted, twice.

    Raises NotFoundError, UnavailableError.
    """
    if size == FENCE_BYTES:
        return LogKind.FENCE
    if size < FENCE_BYTES:
        return None
    return _read_kind(store, key, slot, size) or _read_kind(store, key, slot, size)


def _read_kind(store: Store, key: str, slot: int, size: int) -> LogKind | None:
    try:
        data = store.get_range(key, 0, _HEADER.size)
        head, number, zeros, length, said, lsn_first = _HEADER.unpack(data)
        kind = LogKind(number)
    except (DamagedError, ValueError):
        return None
    is_whole = head == _HEAD and not any(zeros) and (length, said) == (size, slot)
    return kind if is_whole and (kind is LogKind.FENCE) == (lsn_first == 0) else None


class _SlotState(IntEnum):
    UNREAD = 0
    DATA = 1
    FENCE = 2
    DAMAGED = 3
    GONE = 4
    ATTACH = 5
    SCHEMA = 6


class FoldedSlots:
    """The log objects below the floor of the head's log, fences of the usual size left out.

    Numbers in arrays, because there may be a million of them.
    """

    def __init__(self, store: Store, namespace: str) -> None:
        self._store = store
        self._namespace = namespace
        self.slots = array("q")
        self.sizes = array("q")
        self.modified_us = array("q")
        self._states = bytearray()

    def add(self, slot: int, meta: ObjectMeta) -> None:
        """Take note of the next one: they come in order."""
        self.slots.append(slot)
        self.sizes.append(meta.size)
        self.modified_us.append(meta.last_modified_us)
        self._states.append(_SlotState.UNREAD)

    def __len__(self) -> int:
        return len(self.slots)

    def trust(self, own_slots: range) -> None:
        """Take the objects in these slots for data, as their author says: their headers need no GET."""
        for index, slot in enumerate(self.slots):
            if slot in own_slots and self._states[index] == _SlotState.UNREAD:
                self._states[index] = _SlotState.DATA

    def unread(self, limit: int) -> Iterator[int]:
        """Yield the indexes of those below slot `limit` whose kind is not known yet."""
        for index, slot in enumerate(self.slots):
            if slot >= limit:
                return
            if self._states[index] == _SlotState.UNREAD:
                yield index

    def read(self, index: int) -> None:
        """Find out what one is. Raises UnavailableError."""
        slot, size = self.slots[index], self.sizes[index]
        try:
            kind = read_log_kind(self._store, log_key(self._namespace, slot), slot=slot, size=size)
        except NotFoundError:
            self._states[index] = _SlotState.GONE
            return
        self._states[index] = (
            _SlotState.DAMAGED
            if kind is None
            else _SlotState.FENCE
            if kind is LogKind.FENCE
            else _SlotState.ATTACH
            if kind is LogKind.ATTACH
            else _SlotState.SCHEMA
            if kind is LogKind.SCHEMA
            else _SlotState.DATA
        )

    def is_data(self, index: int) -> bool:
        """Return whether one that was read may be deleted as such."""
        return self._states[index] in (_SlotState.DATA, _SlotState.ATTACH, _SlotState.SCHEMA)

    def attaching(self, first: int, limit: int) -> Iterator[int]:
        """Yield the slots from `first` up to `limit` of those read that attach segments."""
        for slot, state in zip(self.slots, self._states, strict=True):
            if first <= slot < limit and state == _SlotState.ATTACH:
                yield slot

    def newest_schema(self, limit: int) -> int | None:
        """Return the last slot below `limit` that sets a schema, of those read; None: there is none."""
        for index in range(len(self) - 1, -1, -1):
            if self.slots[index] < limit and self._states[index] == _SlotState.SCHEMA:
                return self.slots[index]
        return None

    def is_fence(self, index: int) -> bool:
        return self._states[index] == _SlotState.FENCE

    def is_damaged(self, index: int) -> bool:
        return self._states[index] == _SlotState.DAMAGED

    def first_since(self, modified_us: int, slot: int) -> int | None:
        """Return the first slot from `slot` on that was written at that time or later."""
        for number, modified in zip(self.slots, self.modified_us, strict=True):
            if number >= slot and modified >= modified_us:
                return number
        return None


class AttachScan:
    """Which segments the log from some slot on attaches."""

    def __init__(self, store: Store, namespace: str, lsn_policy: LsnPolicy) -> None:
        self._store = store
        self._namespace = namespace
        self._lsn_policy: LsnPolicy = lsn_policy
        self.segments: set[str] = set()
        self.unreadable: list[str] = []

    def listed(
        self, slot_first: int, passed_over: Collection[int]
    ) -> Iterator[tuple[int, ObjectMeta]]:
        """Yield the objects to look at; those in slots `passed_over` attach nothing."""
        prefix = folder_prefix(self._namespace, "wal")
        after = log_key(self._namespace, slot_first - 1) if slot_first > 1 else ""
        for meta in self._store.list(prefix, after):
            slot = parse_slot(meta.key[len(prefix) :])
            if slot is not None and slot not in passed_over and meta.size != FENCE_BYTES:
                yield slot, meta

    def look(self, found: tuple[int, ObjectMeta]) -> None:
        """Take note of what one log object attaches. Raises UnavailableError."""
        slot, meta = found
        try:
            kind = read_log_kind(self._store, meta.key, slot=slot, size=meta.size)
            if kind is LogKind.ATTACH:
                self.segments.update(ref.id for ref in self.attached(slot))
            elif kind is None:
                self.unreadable.append(meta.key)
        except NotFoundError:
            return
        except UnreadableError:
            self.unreadable.append(meta.key)

    def attached(self, slot: int) -> tuple[SegmentRef, ...]:
        """Return what a log object attaches. Raises UnreadableError the second time, NotFoundError."""
        log = _twice(lambda: self._decode(slot, self.key(slot)))
        return tuple(ref for record in log.records for ref in record.segments)

    def key(self, slot: int) -> str:
        """Return where a log object is stored."""
        return log_key(self._namespace, slot)

    def _decode(self, slot: int, key: str) -> LogObject:
        data = self._store.get(key)
        return decode_log(data, key=key, slot=slot, lsn_policy=self._lsn_policy)


class PinnedLog:
    """What the log attaches that only branches need: it was not folded when they were made.

    A branch names such segments, but the generation that it stands on does not. So the log objects
    that attach them stay, to say so, while the rest of the log goes.
    """

    def __init__(self, store: Store, namespace: str, lsn_policy: LsnPolicy) -> None:
        self._scan = AttachScan(store, namespace, lsn_policy)
        self._known: dict[int, tuple[SegmentRef, ...] | None] = {}

    def of(
        self, slots: Iterable[int], points: Sequence[tuple[int, int]]
    ) -> tuple[set[int], set[str], list[str]]:
        """Return which of `slots` stay, what they attach, and the keys of those that cannot be read.

        `points` are the first slot and the last version that branches read of the log.
        """
        kept: set[int] = set()
        segments: set[str] = set()
        unreadable: list[str] = []
        ordered = sorted(points)
        firsts = [first for first, _ in ordered]
        newest = list(accumulate((lsn for _, lsn in ordered), max))
        for slot in slots:
            refs = self._read(slot)
            if refs is None:
                kept.add(slot)
                unreadable.append(self._scan.key(slot))
                continue
            before = bisect_right(firsts, slot)
            last_lsn = newest[before - 1] if before else 0
            needed = [ref.id for ref in refs if ref.lsn_max <= last_lsn]
            if needed:
                kept.add(slot)
                segments.update(needed)
        return kept, segments, unreadable

    def naming(self, slots: Iterable[int], ids: Set[str]) -> set[int]:
        """Return which of `slots` attach any of some segments, or cannot be read."""
        read = ((slot, self._read(slot)) for slot in slots)
        return {slot for slot, refs in read if refs is None or any(ref.id in ids for ref in refs)}

    def _read(self, slot: int) -> tuple[SegmentRef, ...] | None:
        """Return what a log object attaches; None if it cannot be read, twice."""
        if slot not in self._known:
            try:
                self._known[slot] = self._scan.attached(slot)
            except NotFoundError:
                self._known[slot] = ()
            except UnreadableError:
                self._known[slot] = None
        return self._known[slot]


def _twice(read: Callable[[], LogObject]) -> LogObject:
    try:
        return read()
    except FormatVersionError:
        raise
    except DamagedError:
        return read()
