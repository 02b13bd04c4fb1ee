"""Which log objects are there, and where the log ends: by a LIST, without reading any."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from reef.format import Manifest
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
