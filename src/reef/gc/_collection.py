"""What a collection would do, or has done, and why."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

from reef.format import Boundary, ShortenedGrace, log_key
from reef.gc._pins import JudgedPin

Kind = Literal["manifest", "log", "segment", "dedup", "other", "quarantine"]
"""What an object is; "other" has a name that nothing of Reef's has."""

Progress = Callable[[Kind, int, int], None]
"""Called after each delete with the kind, the number deleted so far, and the number to delete."""


class Reason(StrEnum):
    """Why an object stays, or why it may go."""

    # It stays.
    RETAINED = "a retained generation"
    TOO_FEW = "too few to be worth the new generation that would release them"
    NAMED = "named by a retained generation"
    UNREADABLE = "a retained generation that may need it cannot be read"
    GRACE = "nothing names it, and the grace period is not over"
    INTENT = "its job may still publish it: the intent stands"
    EPOCH = "its writer may still publish it"
    OWNERLESS = "nothing names it, and its id does not say who might publish it"
    WINDOW = "a flush may still publish it: the log is not folded that far"
    ATTACHED = "the log attaches it"
    MAY_BE_ATTACHED = "a log object that may attach it cannot be read"
    FENCE = "a fence, which keeps its slot from older writers forever"
    SNAPSHOT = "a snapshot continues from this slot of the log, or from one below"
    LOG = "a retained generation continues from this slot of the log, or from one below"
    PITR = "within the window of time travel"
    PINNED = "it attaches a segment that a branch or a snapshot reads"
    REBUILD = "a rebuild without manifests goes by it"
    DAMAGED = "it cannot be read: see `reef verify`"
    YOUNG = "its name is not one of Reef's, and it is younger than a day"
    QUARANTINED = "moved aside by repair"
    # It may go.
    SUPERSEDED = "no snapshot or branch stands on it, and newer generations are retained"
    REPLACED = "no retained generation names it any more"
    ORPHAN = "nothing names it, and its author can no longer publish it"
    FOLDED = "its rows are in segments"
    UNKNOWN = "its name is not one of Reef's, and it is older than a day"


class ObjectCount(NamedTuple):
    """How many objects of a kind stay, or go, for one reason."""

    kind: Kind
    goes: bool
    reason: Reason
    objects: int
    bytes: int


class Doomed(NamedTuple):
    """An object that may go."""

    kind: Kind
    key: str
    size: int
    reason: Reason


class Retained(NamedTuple):
    """A generation that stays, and what for."""

    generation: int
    why: str


class ObjectCounter:
    """Counts objects by kind and reason."""

    def __init__(self) -> None:
        self._counts: dict[tuple[Kind, bool, Reason], list[int]] = {}

    def add(self, kind: Kind, goes: bool, reason: Reason, size: int, objects: int = 1) -> None:
        """Count `objects` of `size` bytes together."""
        count = self._counts.setdefault((kind, goes, reason), [0, 0])
        count[0] += objects
        count[1] += size

    def counts(self) -> tuple[ObjectCount, ...]:
        """Return the counts, in the order in which they were added."""
        return tuple(
            ObjectCount(*which, *count) for which, count in self._counts.items() if count[0]
        )


class DoomedSlots:
    """Log slots that may go: there may be a million of them."""

    def __init__(self) -> None:
        self.slots = array("q")
        self.sizes = array("q")

    def add(self, slot: int, size: int) -> None:
        self.slots.append(slot)
        self.sizes.append(size)

    def __len__(self) -> int:
        return len(self.slots)


@dataclass(frozen=True, kw_only=True)
class CollectionPlan:
    """What would go at `now_us`, on one head, and why everything else stays."""

    namespace: str
    generation: int
    """The head that it was made on."""
    now_us: int
    grace_us: int
    pitr_us: int | None
    boundary: Boundary
    """The manifest change that is published before anything is deleted."""
    shortened: ShortenedGrace | None = None
    """The longer grace that some may still rely on."""
    is_raised: bool
    """Whether that is another boundary than the head's."""
    expired: tuple[str, ...] = ()
    """Snapshots that are taken out first."""
    pins: tuple[JudgedPin, ...] = ()
    """The decision on each pin; those that go are removed in the same change."""
    settled: tuple[str, ...] = ()
    """Keys in `gc.pending` whose objects are gone: removed in the same change."""
    retained: tuple[Retained, ...] = ()
    object_counts: tuple[ObjectCount, ...] = ()
    problems: tuple[str, ...] = ()
    """Damage that keeps objects from being deleted. Collection reports it and does not repair it."""
    doomed: tuple[Doomed, ...] = ()
    """What may go, without the log objects."""
    slots: DoomedSlots | None = None
    """Which log objects may go. None in a report of counts, as tasks of a pass return it."""

    @property
    def released(self) -> frozenset[tuple[str, str]]:
        """The pins that go, each by its child and nonce."""
        return frozenset(judged.name for judged in self.pins if judged.goes)

    @property
    def aborted(self) -> frozenset[str]:
        """The branches whose first generation is taken by "aborted" before their pins go."""
        return frozenset(judged.pin.child for judged in self.pins if judged.aborts)

    @property
    def needs_publish(self) -> bool:
        """Whether the manifest has to change."""
        return self.is_raised or bool(self.expired or self.settled or self.released)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.needs_publish or self.doomed or self.slots)

    @property
    def outcome(self) -> object:
        """What it comes to: two plans that are equal in this do the same."""
        going = frozenset(count for count in self.object_counts if count.goes)
        return self.boundary, self.expired, self.released, self.settled, going

    def objects(self, kind: Kind | None = None) -> Iterator[Doomed]:
        """Yield everything that may go, log objects too."""
        for doomed in self.doomed:
            if kind in (None, doomed.kind):
                yield doomed
        if kind in (None, "log") and self.slots is not None:
            for slot, size in zip(self.slots.slots, self.slots.sizes, strict=True):
                yield Doomed("log", log_key(self.namespace, slot), size, Reason.FOLDED)

    def count(self, kind: Kind) -> int:
        """Return how many objects of a kind may go."""
        return sum(
            count.objects for count in self.object_counts if count.goes and count.kind == kind
        )


@dataclass(frozen=True, kw_only=True)
class CollectionReport:
    """What a collection has done; after a dry run, nothing."""

    plan: CollectionPlan
    """The plan, as made on the head that it was published on."""
    applied: bool
    deleted: tuple[ObjectCount, ...] = ()
    published: tuple[int, ...] = ()
    """The generations that it wrote."""
    swept: tuple[str, ...] = ()
    """What unfinished writes had left, in the whole bucket."""
    has_expired: bool = False
    """It was a branch whose time was over, and was dropped first; after a dry run, would be."""
    problems: tuple[str, ...] = ()
