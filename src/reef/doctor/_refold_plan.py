"""The planner of repair and rebuild: from where the folded log can be folded again.

Segments and dedup windows are derived from the log. Repair derives damaged ones again: it has read the
log, and knows which objects are unreadable. Rebuild derives all of them again: it has listed the log, and
its tasks find out.

A *base* is a manifest that says how the log stood at its `wal_floor`: the chain, the last version and
the dedup window. The log can be folded from there, if all of it is there up to where it is needed.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from reef.doctor._check_manifests import newest_readable, read_generations, retained_manifests
from reef.doctor._problems import no_progress
from reef.engine import Context, check_end
from reef.errors import CorruptError
from reef.format import DedupWindow, Manifest, SegmentRef, WalAnchor, manifest_key
from reef.log import ListedLog, list_slots
from reef.manifest import ManifestReader, lsn_max_seen, manifests_gone, no_namespace


@dataclass(frozen=True)
class FoldStart:
    """A base to fold the log from, up to the head's `wal_floor`."""

    base: Manifest
    kept: tuple[SegmentRef, ...]
    """The head's segments with the versions below the base."""
    replaced: tuple[SegmentRef, ...]
    """The others: the log has all of their versions from here on."""

    @property
    def slot(self) -> int:
        """The first slot to fold."""
        return self.base.wal_floor


@dataclass(frozen=True)
class RebuildPlan:
    """From where all segments and the dedup window of a namespace can be derived again."""

    head: Manifest
    starts: tuple[FoldStart, ...]
    """The lowest first. There are none if nothing can be derived again: then all segments stay."""
    passed_by: tuple[str, ...]
    """Why the log cannot be folded from further below."""
    log_first: int
    log_sizes: array[int]
    """The bytes of the folded log objects from slot `log_first` on, without a gap."""

    @property
    def lowest(self) -> FoldStart:
        """The lowest start; where there is none, one at the head, which folds nothing."""
        return self.starts[0] if self.starts else FoldStart(self.head, self.head.segments, ())

    def sizes(self, start: FoldStart) -> array[int]:
        """Return the bytes of the log objects to fold from `start` on."""
        return self.log_sizes[start.slot - self.log_first :]

    def is_like(self, m: Manifest) -> bool:
        """Return whether all that is derived is the same in `m`."""
        return _derived_state(m) == _derived_state(self.head)


class RefoldPlanner:
    """Plans by the present life of a namespace, as far as its generations and its folded log tell."""

    def __init__(
        self,
        head: Manifest,
        retained: Sequence[Manifest],
        log_sizes: Mapping[int, int],
        unreadable: Collection[int] = (),
    ) -> None:
        """`log_sizes` has every log object in the bucket by slot, `unreadable` slots of them."""
        self.head = head
        self.retained = [m for m in retained if m.born == head.born]
        """In order. Those of an earlier life of this name had another content and another log."""
        self._sizes = log_sizes
        self._unreadable = frozenset(unreadable)

    @property
    def lowest_slot(self) -> int:
        """The lowest slot to take for one of this life."""
        if self.head.born == 1:
            return 1
        for m in self.retained:
            if m.generation == m.born:
                return m.wal_floor  # where this life began
        floors = (m.wal_floor for m in self.retained)
        return min(self.head.gc.boundary.slot, self.head.wal_floor, *floors)

    @cached_property
    def log_first(self) -> int:
        """The first slot from which on the folded log is whole; `wal_floor` if none of it is."""
        first, lowest = self.head.wal_floor, self.lowest_slot
        while first > lowest and self._is_whole(first - 1, first - 1):
            first -= 1
        return first

    def _is_whole(self, first: int, last: int) -> bool:
        """Return whether the log objects in slots `first` to `last` are all there, and readable."""
        return all(
            slot in self._sizes and slot not in self._unreadable for slot in range(first, last + 1)
        )

    # Repair: one segment, or the window.

    def why_not(self, first: int, last: int) -> str:
        """Return why the slots of a segment cannot be folded again; "": they can."""
        if first < self.lowest_slot:
            return f"log objects {first} to {last} may be of a namespace that was dropped"
        if not self._is_whole(first, last):
            return f"log objects {first} to {last} are not all there"
        return ""

    def base_below(self, slot: int) -> Manifest | None:
        """Return the newest generation that is a base from which the log reaches up to `slot`."""
        reaching = [
            m
            for m in self.retained
            if m.wal_floor <= slot and self._is_whole(m.wal_floor, slot - 1)
        ]
        return max(reaching, key=lambda m: m.wal_floor, default=None)

    def window_base(
        self, windows: Mapping[str, DedupWindow | None]
    ) -> tuple[Manifest | None, DedupWindow | None]:
        """Return the newest base whose window can be read, by id, and that window."""
        for m in reversed(self.retained):
            window = None if m.dedup is None else windows.get(m.dedup.id)
            is_readable = m.dedup is None or window is not None
            if is_readable and m.wal_floor >= self.log_first:
                return m, window
        return None, None

    # Rebuild: everything.

    def rebuild(self) -> RebuildPlan:
        """Return from where all of the log can be folded, and why not from other places.

        The bases name no skipped slots: what was skipped after it was folded has rows in segments only.
        """
        starts: list[FoldStart] = []
        reasons = [reason] if (reason := self._why_not_below()) else []
        for base in self._bases():
            split = _split(self.head.segments, base.last_applied_lsn)
            if isinstance(split, str):
                reasons.append(f"from slot {base.wal_floor}: {split}")
            else:
                starts.append(FoldStart(msgspec.structs.replace(base, skipped_slots=()), *split))
        first = self.log_first
        sizes = array("q", (self._sizes[slot] for slot in range(first, self.head.wal_floor)))
        return RebuildPlan(self.head, tuple(starts), tuple(reasons), first, sizes)

    def _bases(self) -> Iterator[Manifest]:
        """Yield the bases from which the log is whole up to the head's `wal_floor`, the lowest first."""
        is_first_life = self.head.born == 1 and self.head.origin is None
        if is_first_life and self.log_first == 1 < self.head.wal_floor:
            yield self._beginning()
        newest = {m.wal_floor: m for m in self.retained}
        for floor in sorted(newest):
            if max(self.log_first, 2) <= floor < self.head.wal_floor:
                yield newest[floor]

    def _why_not_below(self) -> str:
        """Return why the log cannot be folded from below `log_first`; "": it begins there."""
        first = self.log_first
        if first > max(self.lowest_slot, self.head.gc.boundary.slot):
            return f"slot {first - 1} is not there, or cannot be read, and was not collected"
        if self.head.born > 1:
            return f"the log below slot {first} was collected, or is of a dropped namespace"
        return f"the log below slot {first} was collected" if first > 1 else ""

    def _beginning(self) -> Manifest:
        """Return the base at slot 1: nothing was written yet."""
        return msgspec.structs.replace(
            self.head,
            wal_floor=1,
            wal_anchor=WalAnchor(0, 0, 0),
            last_applied_lsn=0,
            dedup=None,
            segments=(),
            skipped_slots=(),
        )


def plan_rebuild(context: Context, namespace: str) -> RebuildPlan:
    """Plan a rebuild by the manifests of a namespace and a LIST of its log. Writes nothing.

    Raises NotFoundError if there is no such namespace, CorruptError if its head cannot be read or is gone,
    FormatVersionError, UnavailableError.
    """
    store = context.store
    generations = read_generations(store, namespace, no_progress)
    head = newest_readable(generations)
    if not generations and (left := ManifestReader(store, namespace).left_behind()) is not None:
        raise manifests_gone(namespace, left)
    if not generations or (head is not None and head.manifest.state != "live"):
        raise no_namespace(store.url, namespace)
    if head is None or head.damaged:
        raise CorruptError(
            manifest_key(namespace, generations[-1].number),
            0,
            "a head that can be read: epochs, snapshots, pins and the boundary of collection are "
            "stored nowhere else",
            "no generation that can be read"
            if head is None
            else f"damage; generation {head.generation} is the newest that can be read: run "
            "`reef repair`, which continues from there, then rebuild again",
        )
    retained = retained_manifests(head, generations)
    slots = list_slots(store, namespace)
    unfolded = ListedLog.of(head.manifest.wal_floor, slots.items())
    check_end(context, context.chain(namespace), head, unfolded.end, unfolded.ahead)
    return RefoldPlanner(head.manifest, retained, slots).rebuild()


def _split(
    segments: Sequence[SegmentRef], lsn: int
) -> tuple[tuple[SegmentRef, ...], tuple[SegmentRef, ...]] | str:
    """Return the segments of versions up to `lsn` and those of later ones, or which one has both."""
    kept, replaced = [], []
    for ref in segments:
        if lsn_max_seen(ref) <= lsn:
            kept.append(ref)
        elif ref.lsn_min > lsn:
            replaced.append(ref)
        else:
            return f"segment {ref.id} has versions from before and from after it"
    return tuple(kept), tuple(replaced)


def _derived_state(m: Manifest) -> tuple[object, ...]:
    return m.segments, m.dedup, m.wal_floor, m.wal_anchor, m.skipped_slots, m.state
