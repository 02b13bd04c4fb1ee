"""Which generations stay, and what they hold.

Retained are: the head and as many before it as asked for, every generation that was the head within
the grace period, and those that a snapshot or a branch stands on. Readers that loaded one of them, or
will, find everything that it names, and the log from its `wal_floor` on: behind a generation that
only snapshots stand on, up to the newest of these, or all of it where somebody follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from reef.errors import DamagedError, NotFoundError, UnreadableError
from reef.format import Manifest, decode_manifest, manifest_key
from reef.gc._known_garbage import NamedObjects, named_objects
from reef.gc._survey import ObjectListing
from reef.manifest import Generation
from reef.store import Store
from reef.types import SLOT_MAX, unpack_lsn

_BATCH = 16
_NAMED_MAX = 20


@dataclass(frozen=True)
class Holding:
    """What a retained generation keeps from being collected."""

    generation: int
    wal_floor: int
    wal_last_seen: int
    segments: frozenset[str]
    """Of the survey's candidates, those that it names."""
    windows: frozenset[str]


class Holdings:
    """What generations hold, each read once."""

    def __init__(
        self,
        store: Store,
        survey: ObjectListing,
        named: MutableMapping[int, NamedObjects] | None = None,
    ) -> None:
        """`named` is what generations name, as far as it is known; what is read is added."""
        self._store = store
        self._survey = survey
        self._named = {} if named is None else named
        self._known: dict[int, Holding] = {}
        self.gone: set[int] = set()
        """Those that were not there."""

    def of(self, numbers: Iterable[int]) -> tuple[list[Holding], list[int]]:
        """Return what each of the generations holds, and those that cannot be read, or not found.

        Raises UnavailableError.
        """
        wanted = sorted(numbers)
        for number in wanted:
            if number not in self._known and number in self._named:
                self._known[number] = self._holding(number, self._named[number])
        missing = [number for number in wanted if number not in self._known]
        for at in range(0, len(missing), _BATCH):
            self._read(missing[at : at + _BATCH])
        return (
            [self._known[number] for number in wanted if number in self._known],
            [number for number in wanted if number not in self._known],
        )

    def _read(self, numbers: Sequence[int]) -> None:
        keys = [manifest_key(self._survey.namespace, number) for number in numbers]
        for number, key, data in zip(numbers, keys, self._store.get_many(keys), strict=True):
            manifest = self._decode(number, key, data)
            if manifest is not None:
                named = self._named[manifest.generation] = named_objects(manifest)
                self._known[manifest.generation] = self._holding(manifest.generation, named)

    def _decode(self, number: int, key: str, data: bytes | None) -> Manifest | None:
        """Return the manifest; None if it is gone, or cannot be read, twice."""
        try:
            if data is not None:
                return decode_manifest(data, key=key)
            self.gone.add(number)
            return None
        except DamagedError:
            pass
        except UnreadableError:
            return None
        try:
            return decode_manifest(self._store.get(key), key=key)
        except NotFoundError:
            self.gone.add(number)
            return None
        except UnreadableError:
            return None

    def _holding(self, generation: int, named: NamedObjects) -> Holding:
        window = frozenset() if named.window is None else frozenset((named.window,))
        return Holding(
            generation,
            named.wal_floor,
            named.wal_last_seen,
            named.segments & self._survey.segments.keys(),
            window & self._survey.windows.keys(),
        )


@dataclass(frozen=True)
class SnapshotLog:
    """The log that snapshots of one generation need."""

    slot_first: int
    slot_last: int
    lsn: int
    """The newest version of them."""


def snapshot_logs(manifest: Manifest, holdings: Iterable[Holding]) -> list[SnapshotLog]:
    """Return what the snapshots need of the log, besides those that somebody follows.

    A generation that cannot be read may need everything up to its snapshots' versions.
    """
    newest: dict[int, int] = {}
    for snapshot in manifest.snapshots:
        newest[snapshot.generation] = max(newest.get(snapshot.generation, 0), snapshot.lsn)
    held = {holding.generation: holding for holding in holdings}
    logs = []
    for number, lsn in newest.items():
        if number in manifest.followed:
            continue
        holding = held.get(number)
        slot_first = 1 if holding is None else holding.wal_floor
        if manifest.lsn_policy == "packed":
            slot_last = unpack_lsn(lsn)[0]
        else:
            slot_last = SLOT_MAX if holding is None else holding.wal_last_seen
        if slot_first <= slot_last:
            logs.append(SnapshotLog(slot_first, slot_last, lsn))
    return sorted(logs, key=lambda log: log.slot_first)


def first_recent(
    manifest: Manifest, listed: Mapping[int, Generation], *, since_us: int, newest: int
) -> int:
    """Return the generation from which on all stay: the newest ones, and what was head since then.

    `listed` is in order. `newest` counts the head's successor, which is about to be published. A
    generation was the head until its successor was written. One that a sleeper created below the
    boundary was never a head, and its time says nothing; but repair may move the boundary past
    generations that were.
    """
    head = manifest.generation
    boundary = manifest.gc.boundary.generation
    first = max(boundary, min(head, head + 2 - newest))
    standing = [number for number in listed if boundary <= number <= head]
    if standing and standing[-1] < head:
        first = min(first, standing[-1])  # its successor is younger than the listing
    for number, successor in pairwise(standing):
        if listed[successor].published_at_us >= since_us:
            first = min(first, number)
            break
    if first == boundary:
        while first - 1 in listed and first in listed and listed[first].published_at_us >= since_us:
            first -= 1
    return first


def stood_upon(manifest: Manifest) -> dict[int, str]:
    """Return the generations that snapshots and branches need, and the names of these."""
    found: dict[int, list[str]] = {}
    for snapshot in manifest.snapshots:
        found.setdefault(snapshot.generation, []).append(f"snapshot {snapshot.id}")
    for pin in manifest.pins:
        found.setdefault(pin.generation, []).append(f"branch {pin.child}")
    return {number: _names_text(names) for number, names in found.items()}


def _names_text(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
