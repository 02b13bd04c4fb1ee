"""The version at a time: the end of the longest prefix of the log that was written by then.

Log objects are in the order of their slots, but their times are not quite: writes side by side may
finish in any order, and S3 rounds to seconds. So the answer ends before the first object that is
younger than the time asked for, whatever comes behind it. A writer has at most 64 objects in flight:
what lies further below an object of some time is not younger than it. So the first younger object is
found by bisection with HEADs, and then by one LIST that begins 64 slots earlier.

An object's time is its Last-Modified. The objects of a copied namespace are all new; for those that
came with the copy, it is the time in the header, from the clock of the writer of that time. Clocks of
several writers need not agree, so these headers are read one after the other.

The version is that of the newest object below that end which has one. A void object shows the same
rows at its LSN as the valid one before it, as long as LSNs follow slots. Where the caller gives them, an
object is left out if one of a higher epoch lies below it.

Where the log was collected, it is the newest version by then that is kept: of a snapshot, or what the
segments of a retained generation hold. It is older than asked for, perhaps by much. The answer names its
version. A snapshot keeps its own log object, which tells the time; where LSNs do not follow slots, its
generation had seen the object when it was published.

Collection may run meanwhile. It publishes its boundary before it deletes; so the answer counts if a
head that is read last has its boundary at or below all that was looked at.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import islice, takewhile
from typing import NamedTuple

from reef.context import Context
from reef.engine._feed._headers import HEADERS_WINDOW_MAX, HeaderReader, LogHeader
from reef.errors import DamagedError, NotFoundError, RetentionError
from reef.format import PARALLEL_WRITES_MAX, LogKind, Manifest, log_key
from reef.gc import FENCE_BYTES
from reef.log import parse_slot
from reef.manifest import ManifestReader, is_retained, no_namespace
from reef.settings import iso_time
from reef.store import ObjectMeta
from reef.types import unpack_lsn

_LISTED = 1000 - PARALLEL_WRITES_MAX
"""So many slots are listed rather than halved: a LIST returns 1,000 objects at a time."""
_ROUNDING_US = 999_999
"""A HEAD may round to seconds where a LIST does not; what a LIST says counts."""


class TimedVersion(NamedTuple):
    """The version at a time."""

    lsn: int
    generation: int | None = None
    """The generation whose segments hold it, where the log of that time was collected."""


def version_by_time(
    context: Context, manifest: Manifest, last_slot: int, at_us: int
) -> TimedVersion | None:
    """Return the newest version that was written by a time; None: the newest there is.

    The log is read up to `last_slot`, which exists. `manifest` is of the life that is meant. Raises
    RetentionError if nothing that is retained is as old.
    """
    namespace, born = manifest.namespace, manifest.born
    chain = context.chain(namespace)
    while True:
        search = _Search(context, manifest, last_slot, at_us)
        after = search.first_after()
        if after is None:
            return None
        newest = search.newest_below(after)
        looked_from = search.first_slot if newest is None else newest.slot + 1
        head = chain.load()
        if head is None or head.manifest.state != "live" or head.manifest.born != born:
            raise no_namespace(context.store.url, namespace)
        is_whole = head.manifest.gc.boundary.slot <= looked_from
        manifest = head.manifest
        if is_whole and newest is not None:
            return TimedVersion(newest.lsn_last)
        if is_whole:
            break
    if after > search.first_slot == 1 and manifest.origin is None:
        return TimedVersion(0)  # nothing but fences yet
    listed = {found.number: found.published_at_us for found in chain.generations()}
    held_lsn = search.newest_held(listed)
    try:
        kept = _retained_by(context, manifest, listed, at_us)
    except RetentionError:
        if held_lsn is None:
            raise
        return TimedVersion(held_lsn)
    return kept if held_lsn is None or held_lsn <= kept.lsn else TimedVersion(held_lsn)


class _Search:
    """The log of one namespace, from the boundary to its end."""

    def __init__(self, context: Context, manifest: Manifest, last_slot: int, at_us: int) -> None:
        self._store = context.store
        self._manifest = manifest
        self._headers = HeaderReader(context, manifest.namespace)
        self._prefix = log_key(manifest.namespace, 1).rpartition("/")[0] + "/"
        self._at_us = at_us
        self.first_slot = manifest.gc.boundary.slot
        self._last_slot = last_slot

    def first_after(self) -> int | None:
        """Return the first slot whose object is younger than the time; None: there is none.

        Of a log that was collected to its end, the slot behind it: how old that was, it does not tell.
        """
        first = self.first_slot
        if first > self._last_slot:
            return first
        copied = self._manifest.copied
        if copied is not None and first <= copied.last_slot:
            if self._at_us < copied.newest_us:
                slot = self._first_copied_after(copied.last_slot)
                if slot is not None:
                    return slot
            first = copied.last_slot + 1
        below, above = first - 1, self._last_slot + 1
        while above - below > _LISTED:
            middle = (below + above) // 2
            found = self._at_or_behind(middle)
            if found is not None and found[0] < above and found[1] + _ROUNDING_US <= self._at_us:
                below = found[0]
            else:
                above = middle
        for slot, meta in self._listed(max(first, below + 1 - PARALLEL_WRITES_MAX)):
            if slot > self._last_slot:
                break
            if meta.last_modified_us > self._at_us:
                return slot
        return None

    def newest_below(self, end: int) -> LogHeader | None:
        """Return the newest object below slot `end` that has a version; None: nothing but fences."""
        width = _LISTED
        while end > self.first_slot:
            start = max(self.first_slot, end - width)
            slots = []
            for slot, meta in self._listed(start):
                if slot >= end:
                    break
                if meta.size != FENCE_BYTES:
                    slots.append(slot)
            for slot in reversed(slots):
                header = self._headers.get([slot])[0]
                if isinstance(header, LogHeader) and self._counts(header):
                    return header
            end, width = start, 8 * width
        return None

    def newest_held(self, published: Mapping[int, int]) -> int | None:
        """Return the newest version that a snapshot holds and that is not younger than the time."""
        held = sorted({(one.lsn, one.generation) for one in self._manifest.snapshots if one.lsn})
        before = bisect_left(
            held, True, key=lambda one: not self._was_there(one[0], one[1], published)
        )
        return held[before - 1][0] if before else None

    def _was_there(self, lsn: int, generation: int, published: Mapping[int, int]) -> bool:
        if self._manifest.lsn_policy != "packed":
            return published.get(generation, self._at_us + 1) <= self._at_us
        slot, _ = unpack_lsn(lsn)
        found = next(self._listed(slot), None)
        if found is None or found[0] != slot:
            return False
        copied = self._manifest.copied
        if copied is None or slot > copied.last_slot:
            return found[1].last_modified_us <= self._at_us
        header = self._headers.get([slot])[0]
        return isinstance(header, LogHeader) and header.created_at_us <= self._at_us

    def _counts(self, header: LogHeader) -> bool:
        if header.kind is LogKind.FENCE:
            return False
        if self._manifest.lsn_policy == "packed":
            return True
        before = range(max(self.first_slot, header.slot + 1 - PARALLEL_WRITES_MAX), header.slot)
        others = self._headers.get(before)
        return all(one.epoch <= header.epoch for one in others if isinstance(one, LogHeader))

    def _first_copied_after(self, last_slot: int) -> int | None:
        listed = (slot for slot, _ in self._listed(self.first_slot))
        copied = takewhile(lambda slot: slot <= last_slot, listed)
        while slots := [*islice(copied, HEADERS_WINDOW_MAX)]:
            for header in self._headers.get(slots):
                if isinstance(header, LogHeader) and header.created_at_us > self._at_us:
                    return header.slot
        return None

    def _at_or_behind(self, slot: int) -> tuple[int, int] | None:
        """Return the slot and the time of an object, or of the next: one may be moved aside."""
        try:
            meta = self._store.head(log_key(self._manifest.namespace, slot))
            return slot, meta.last_modified_us
        except NotFoundError:
            return next(((s, meta.last_modified_us) for s, meta in self._listed(slot + 1)), None)

    def _listed(self, first: int) -> Iterator[tuple[int, ObjectMeta]]:
        after = log_key(self._manifest.namespace, first - 1) if first > 1 else ""
        for meta in self._store.list(self._prefix, after):
            slot = parse_slot(meta.key[len(self._prefix) :])
            if slot is not None:
                yield slot, meta


def _retained_by(
    context: Context, head: Manifest, published: Mapping[int, int], at_us: int
) -> TimedVersion:
    """Return what the newest generation holds that is retained and as old as asked for."""
    reader = ManifestReader(context.store, head.namespace)
    retained = [
        number
        for number in sorted(published)
        if head.born <= number <= head.generation and is_retained(head, number)
    ]
    for number in reversed(retained):
        if head.copied is None and published[number] > at_us:
            continue
        try:
            manifest, _ = reader.read(number)
        except (NotFoundError, DamagedError):
            continue
        copied = manifest.copied
        is_a_copy = copied is not None and manifest.wal_floor <= copied.last_slot + 1
        time_us = copied.newest_us if copied and is_a_copy else published[number]
        if time_us <= at_us:
            return TimedVersion(manifest.last_applied_lsn, manifest.generation)
    began = head.origin
    kept_from = iso_time(published[retained[0]]) if retained else "now"
    where = "" if began is None else f"; its parent {began.namespace!r} may still have it"
    raise RetentionError(
        f"nothing of namespace {head.namespace!r} is kept from {iso_time(at_us)} or before: its "
        f"oldest generation is of {kept_from}{where}. Ask for a later time; a longer `pitr_window` "
        "or a snapshot keeps more"
    )
