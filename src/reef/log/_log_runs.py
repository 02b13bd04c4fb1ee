"""Reading log objects to check them: every byte is checked, and what the chain needs is kept.

In a healthy log each object names the one before it. Such neighbours are all valid or all void, as
the first of them is, because the others can name nothing else. So a *run* of any length takes the bytes
of one object, and a log of millions of objects is decided from a few runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from reef.errors import DamagedError, FormatVersionError, NotFoundError
from reef.format import (
    LogKind,
    LogObject,
    LogRecord,
    LsnPolicy,
    Prev,
    SegmentRef,
    SkippedSlot,
    Unreadable,
    log_key,
)
from reef.log._log_reader import LogReader
from reef.log._replay import Damaged
from reef.store import Store

_AT_ONCE_OBJECTS = 64
_AT_ONCE_BYTES = 32 << 20


class LogPart(msgspec.Struct, frozen=True):
    """Some log objects of a namespace to read, all of which were listed."""

    namespace: str
    lsn_policy: LsnPolicy
    spans: tuple[tuple[int, int], ...]
    """First and last slots, in order."""
    stops: tuple[int, ...]
    """A run ends before each of these slots: a manifest says how the chain stands there."""
    objects: int
    nbytes: int
    object_bytes_max: int


class LogRun(msgspec.Struct, frozen=True, array_like=True):
    """Objects of slots without a gap, each naming the one before; a fence is alone."""

    slot_first: int
    slot_last: int
    kind: LogKind
    epoch: int
    prev: Prev
    """What the first one names."""
    checksum_first: int
    checksum_last: int
    lsn_first: int
    lsn_last: int
    skipped: tuple[SkippedSlot, ...] = ()
    attached: tuple[SegmentRef, ...] = ()

    @property
    def first(self) -> LogObject:
        """The first object, as far as the chain is concerned."""
        return LogObject(
            kind=self.kind,
            slot=self.slot_first,
            epoch=self.epoch,
            writer_id=b"",
            nonce=b"",
            created_at_us=0,
            prev=self.prev,
            records=(LogRecord(lsn=self.lsn_first, skipped=self.skipped),),
        )


class UnreadableSlot(msgspec.Struct, frozen=True, array_like=True):
    """A log object that is damaged, also when read again, or of another format version."""

    slot: int
    checksum: int
    reason: Unreadable

    def damaged(self) -> Damaged | None:
        """Return the damage; None: it is of another version."""
        error = self.reason.error()
        return Damaged(self.slot, self.checksum, error) if isinstance(error, DamagedError) else None


class ReadLogPart(msgspec.Struct, frozen=True):
    """The objects of a part, as they were read."""

    runs: tuple[LogRun, ...]
    unreadable: tuple[UnreadableSlot, ...]
    objects: int
    """How many the part has; some may have been collected since they were listed."""


def cut_log(
    namespace: str,
    lsn_policy: LsnPolicy,
    sizes: Mapping[int, int],
    stops: Sequence[int],
    *,
    part_bytes: int,
    part_objects: int,
) -> Iterator[LogPart]:
    """Cut the log objects of `sizes` (by slot, in order) into parts of about so much."""

    def part(slots: Sequence[int]) -> LogPart:
        spans: list[tuple[int, int]] = []
        for slot in slots:
            if spans and spans[-1][1] == slot - 1:
                spans[-1] = spans[-1][0], slot
            else:
                spans.append((slot, slot))
        of_part = [sizes[slot] for slot in slots]
        inside = tuple(stop for stop in stops if slots[0] < stop <= slots[-1])
        return LogPart(
            namespace, lsn_policy, tuple(spans), inside, len(slots), sum(of_part), max(of_part)
        )

    some: list[int] = []
    nbytes = 0
    for slot, size in sizes.items():
        if some and (nbytes + size > part_bytes or len(some) >= part_objects):
            yield part(some)
            some, nbytes = [], 0
        some.append(slot)
        nbytes += size
    if some:
        yield part(some)


def read_log_part(store: Store, part: LogPart) -> ReadLogPart:
    """Read and check every object of a part. Raises UnavailableError."""
    reading = _Reading(store, part)
    slots = [slot for first, last in part.spans for slot in range(first, last + 1)]
    count = max(1, min(_AT_ONCE_OBJECTS, _AT_ONCE_BYTES // max(1, part.object_bytes_max)))
    if store.concurrency == 1:
        count = 1  # the store fetches one after the other: more would only take up memory
    for at in range(0, len(slots), count):
        reading.read(slots[at : at + count])
    return ReadLogPart(tuple(reading.runs), tuple(reading.unreadable), part.objects)


class _Reading:
    """Reads the objects of a part in order, and joins neighbours into runs."""

    def __init__(self, store: Store, part: LogPart) -> None:
        self._store = store
        self._namespace = part.namespace
        self._reader = LogReader(store, part.namespace, part.lsn_policy)
        self._stops = frozenset(part.stops)
        self.runs: list[LogRun] = []
        self.unreadable: list[UnreadableSlot] = []

    def read(self, slots: Sequence[int]) -> None:
        """Fetch some at once. Returning releases them before the next are fetched."""
        keys = [log_key(self._namespace, slot) for slot in slots]
        for slot, data in zip(slots, self._store.get_many(keys), strict=True):
            if data is not None:  # else it was collected since
                self._take(slot, data)

    def _take(self, slot: int, data: bytes) -> None:
        try:
            decoded = self._reader.decode(slot, data)
        except FormatVersionError as error:
            self.unreadable.append(UnreadableSlot(slot, 0, Unreadable.of(error)))
            return
        except NotFoundError:
            return  # collected since
        runs = self.runs
        if isinstance(decoded, Damaged):
            reason = Unreadable.of(decoded.error)
            self.unreadable.append(UnreadableSlot(slot, decoded.checksum, reason))
        elif runs and slot not in self._stops and _continues(runs[-1], decoded[0]):
            runs[-1] = msgspec.structs.replace(
                runs[-1],
                slot_last=slot,
                checksum_last=decoded[1],
                lsn_last=decoded[0].lsn_last,
                attached=(*runs[-1].attached, *_attached(decoded[0])),
            )
        else:
            runs.append(_run(*decoded[:2]))


def _continues(run: LogRun, log: LogObject) -> bool:
    return (
        log.prev == Prev(run.slot_last, run.checksum_last)
        and log.slot == run.slot_last + 1
        and log.epoch == run.epoch
        and LogKind.FENCE not in (log.kind, run.kind)
    )


def _run(log: LogObject, checksum: int) -> LogRun:
    return LogRun(
        log.slot,
        log.slot,
        log.kind,
        log.epoch,
        log.prev,
        checksum,
        checksum,
        log.lsn_first,
        log.lsn_last,
        log.records[0].skipped,
        _attached(log),
    )


def _attached(log: LogObject) -> tuple[SegmentRef, ...]:
    if log.kind is not LogKind.ATTACH:
        return ()
    return tuple(ref for record in log.records for ref in record.segments)
