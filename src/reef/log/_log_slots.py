"""Which log objects are there, and where the log ends: by a LIST, without reading any."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from reef.format import Manifest, log_key
from reef.store import Store
from reef.types import SLOT_MAX

MISSING_MAX = 10_000
"""`find_end` counts no more missing slots than this."""

_NAME = re.compile(r"([0-9]{20})\.wal")


def parse_slot(name: str) -> int | None:
    """Return the slot that a file of wal/ holds, or None if it is no log object's name."""
    match = _NAME.fullmatch(name)
    slot = 0 if match is None else int(match[1])
    return slot if 1 <= slot <= SLOT_MAX else None


def list_slots(store: Store, namespace: str) -> dict[int, int]:
    """Return the size of every log object that is there, by slot, in order."""
    prefix = f"namespaces/{namespace}/wal/"
    return {
        slot: meta.size
        for meta in store.list(prefix)
        if (slot := parse_slot(meta.key[len(prefix) :])) is not None
    }


@dataclass(frozen=True)
class ListedLog:
    """The log from a slot on, as a LIST shows it."""

    first: int
    sizes: array[int]
    """The bytes of the objects from `first` on, up to the first absent slot."""
    ahead: array[int]
    """The slots of the objects behind that one, in order."""

    @classmethod
    def of(cls, first: int, listed: Iterable[tuple[int, int]]) -> ListedLog:
        """Return the log from slot `first` on; `listed` are slots, in order, and their sizes."""
        log = cls(first, array("q"), array("q"))
        for slot, size in listed:
            if slot == log.end and not log.ahead:
                log.sizes.append(size)
            elif slot > log.end:
                log.ahead.append(slot)
        return log

    @property
    def end(self) -> int:
        """The first absent slot."""
        return self.first + len(self.sizes)


def list_log(store: Store, namespace: str, first: int) -> ListedLog:
    """Return the log from slot `first` on: one LIST."""
    prefix = f"namespaces/{namespace}/wal/"
    listed = store.list(prefix, log_key(namespace, first - 1) if first > 1 else "")
    slots = ((parse_slot(meta.key[len(prefix) :]), meta.size) for meta in listed)
    return ListedLog.of(first, ((slot, size) for slot, size in slots if slot is not None))


def absent(numbers: Iterable[int], first: int, end: int) -> list[range]:
    """Return what is missing of the numbers from `first` up to `end` among `numbers`, in order.

    As ranges: `first` and `end` come from the bucket, and there may be any number between them.
    """
    gaps: list[range] = []
    at = first
    for number in numbers:
        if number >= end:
            break
        if number > at:
            gaps.append(range(at, number))
        at = max(at, number + 1)
    return [*gaps, range(at, end)] if at < end else gaps


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
