"""Which objects may go: the rules, one function for each kind of object.

What no retained generation names may go only if nobody can name it again; age alone never shows that:

- A segment that was *replaced* can never be named again: `gc.pending` says since when.
- A segment that was never named is an *orphan* only if its author can no longer publish. Its
  id says who that is: an intent that does not stand any more, or a writer's epoch that is over. The open
  writer's own leftovers wait until the log is folded behind the fences of the next one.
- A dedup window that was never named can be published only with a fold that goes beyond its last
  commit. Once the head's segments reflect that commit, it cannot.
- What an open writer *disowns*, of its own flushes and compactions, it never names again, and the log
  attaches none of it.
- What the log attaches is as good as named, although no manifest names it until it is folded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field

from reef.errors import DamagedError, NotFoundError, UnreadableError
from reef.format import Boundary, Manifest, decode_dedup, dedup_key, manifest_key, segment_key
from reef.gc._collection import Doomed, DoomedSlots, Kind, ObjectCounter, Reason
from reef.gc._names import epoch_of, owner_of
from reef.gc._retained import Holding, SnapshotLog
from reef.gc._survey import ObjectListing
from reef.manifest import Generation
from reef.store import ObjectMeta, Store

DAY_US = 86_400_000_000

_GOES = frozenset(
    {Reason.SUPERSEDED, Reason.REPLACED, Reason.ORPHAN, Reason.FOLDED, Reason.UNKNOWN}
)


@dataclass(frozen=True, kw_only=True)
class CollectionInputs:
    """The input of the rules."""

    manifest: Manifest
    """The head, without the snapshots that have expired."""
    boundary: Boundary
    slot_limit: int
    """Log objects go below this slot only: the boundary's, or an earlier one."""
    needed_from: int
    """The first slot that a retained generation reads."""
    pitr_since_us: int | None
    """Log objects written since then stay."""
    listed: Mapping[int, Generation]
    stood_upon: Mapping[int, str]
    """Generations below the boundary that stay, and the snapshots and branches that need them."""
    recent_from: int
    """From this generation on they have to stay. Below, and above the boundary, they just do."""
    holdings: list[Holding]
    unreadable: list[int]
    """Retained generations that cannot be read."""
    now_us: int
    grace_us: int
    disowned: Set[str]
    """Segments and windows that the open writer has made and will never name again."""
    attached: Callable[[], tuple[Set[str], bool]]
    """The segments that the log attaches, and whether all of it could be read."""
    pinned: Callable[[], Set[int]]
    """The slots below the limit that attach what branches or snapshots need."""
    kept: list[SnapshotLog]
    """What snapshots need of the log, in order of the first slot."""
    for_rebuild: Callable[[], Set[int]]
    """The slots below the limit by which everything can be rebuilt if all manifests are lost."""

    @property
    def stays_from(self) -> int:
        """The first generation of those that stay as they follow each other, up to the head."""
        return min(self.recent_from, self.boundary.generation)

    @property
    def since_us(self) -> int:
        return self.now_us - self.grace_us


@dataclass
class Judgement:
    """The decisions so far."""

    counter: ObjectCounter
    doomed: list[Doomed] = field(default_factory=list)
    slots: DoomedSlots = field(default_factory=DoomedSlots)

    def add(self, kind: Kind, reason: Reason, key: str, size: int) -> None:
        goes = reason in _GOES
        self.counter.add(kind, goes, reason, size)
        if goes:
            self.doomed.append(Doomed(kind, key, size, reason))


def judge_manifests(inputs: CollectionInputs, judgement: Judgement) -> None:
    """A generation below the boundary goes, unless a snapshot or a branch needs it."""
    for number, found in inputs.listed.items():
        if number >= inputs.recent_from or number in inputs.stood_upon:
            reason = Reason.RETAINED
        elif number >= inputs.boundary.generation:
            reason = Reason.TOO_FEW
        else:
            reason = Reason.SUPERSEDED
        key = manifest_key(inputs.manifest.namespace, number)
        judgement.add("manifest", reason, key, found.size)


def judge_slots(inputs: CollectionInputs, survey: ObjectListing, judgement: Judgement) -> None:
    """A log object goes that no retained generation reads, unless it is a fence, or time travel's.

    A snapshot needs the log from the floor of its generation up to its own version.
    """
    slots = survey.slots
    since_us = inputs.pitr_since_us
    pinned, for_rebuild = inputs.pinned(), inputs.for_rebuild()
    kept = deque(inputs.kept)
    kept_to = 0
    for index, (slot, size) in enumerate(zip(slots.slots, slots.sizes, strict=True)):
        while kept and kept[0].slot_first <= slot:
            kept_to = max(kept_to, kept.popleft().slot_last)
        if slot >= inputs.slot_limit:
            reason = _kept_log(inputs, slot)
        elif since_us is not None and slots.modified_us[index] >= since_us:
            reason = Reason.PITR
        elif slots.is_fence(index):
            reason = Reason.FENCE
        elif slots.is_damaged(index):
            reason = Reason.DAMAGED
        elif slot <= kept_to:
            reason = Reason.SNAPSHOT
        elif slot in pinned:
            reason = Reason.PINNED
        elif slot in for_rebuild:
            reason = Reason.REBUILD
        elif slots.is_data(index):
            reason = Reason.FOLDED
            judgement.slots.add(slot, size)
        else:
            continue  # it has gone meanwhile
        judgement.counter.add("log", reason is Reason.FOLDED, reason, size)


def judge_segments(inputs: CollectionInputs, survey: ObjectListing, judgement: Judgement) -> None:
    """A segment goes if no retained generation names it, and none can come to name it.

    Where branches stand, what the log attached when they were made has to stay. Where the log is kept
    for those who read it from a point in the past, what it attaches has to stay, even if compaction
    has replaced it since.
    """
    keeps_log = (
        inputs.pitr_since_us is not None
        or inputs.slot_limit < survey.wal_floor
        or bool(inputs.manifest.pins or inputs.kept)
    )
    named = _union(holding.segments for holding in inputs.holdings)
    pending = {p.key: p.since_generation for p in inputs.manifest.gc.pending}
    standing = frozenset(intent.id for intent in inputs.manifest.intents)
    for id, meta in survey.segments.items():
        key = segment_key(survey.namespace, id)
        reason = _unnamed(inputs, key, id in named, pending)
        if reason is None:
            reason = _orphan(inputs, id, meta, standing)
        may_be_attached = reason is Reason.ORPHAN or (reason is Reason.REPLACED and keeps_log)
        if may_be_attached and id not in inputs.disowned:
            attached, is_whole = inputs.attached()
            if id in attached:
                reason = Reason.ATTACHED
            elif not is_whole:
                reason = Reason.MAY_BE_ATTACHED
        judgement.add("segment", reason, key, meta.size)


def judge_windows(
    inputs: CollectionInputs, survey: ObjectListing, judgement: Judgement, store: Store
) -> None:
    """A dedup window goes if no retained generation names it, and no fold can come to name it."""
    named = _union(holding.windows for holding in inputs.holdings)
    pending = {p.key: p.since_generation for p in inputs.manifest.gc.pending}
    for id, meta in survey.windows.items():
        key = dedup_key(survey.namespace, id)
        reason = _unnamed(inputs, key, id in named, pending)
        if reason is None:
            reason = _window(inputs, id, meta, store)
        if reason is not None:
            judgement.add("dedup", reason, key, meta.size)


def judge_strangers(inputs: CollectionInputs, survey: ObjectListing, judgement: Judgement) -> None:
    """A file of no known name goes when it is older than a day."""
    since_us = inputs.now_us - max(DAY_US, inputs.grace_us)
    for meta in survey.strangers:
        reason = Reason.UNKNOWN if meta.last_modified_us < since_us else Reason.YOUNG
        judgement.add("other", reason, meta.key, meta.size)


def _kept_log(inputs: CollectionInputs, slot: int) -> Reason:
    if inputs.unreadable:
        return Reason.UNREADABLE
    return Reason.LOG if slot >= inputs.needed_from else Reason.PITR


def _unnamed(
    inputs: CollectionInputs, key: str, is_named: bool, pending: Mapping[str, int]
) -> Reason | None:
    """Return what becomes of an object that the head does not name; None if it never was named."""
    if is_named:
        return Reason.NAMED
    if inputs.unreadable:
        return Reason.UNREADABLE
    since = pending.get(key)
    if since is None:
        return None
    return Reason.REPLACED if _is_old(inputs, since) else Reason.GRACE


def _is_old(inputs: CollectionInputs, generation: int) -> bool:
    """Return whether a generation was published before the grace period."""
    found = inputs.listed.get(generation)
    if found is not None:
        return found.published_at_us < inputs.since_us
    # It has been collected. Not there and yet not below the boundary is something else.
    return generation < inputs.manifest.gc.boundary.generation


def _orphan(inputs: CollectionInputs, id: str, meta: ObjectMeta, standing: Set[str]) -> Reason:
    owner = owner_of(id)
    epoch = epoch_of(owner)
    if id in inputs.disowned:
        return Reason.ORPHAN if meta.last_modified_us < inputs.since_us else Reason.GRACE
    if not owner:
        return Reason.OWNERLESS
    if owner in standing:
        return Reason.INTENT
    if epoch is not None and epoch >= _epoch_over(inputs.manifest):
        return Reason.EPOCH
    return Reason.ORPHAN if meta.last_modified_us < inputs.since_us else Reason.GRACE


def _window(inputs: CollectionInputs, id: str, meta: ObjectMeta, store: Store) -> Reason | None:
    """Return what becomes of a window that was never named; None if it has gone meanwhile."""
    if meta.last_modified_us >= inputs.since_us:
        return Reason.GRACE
    if id in inputs.disowned:
        return Reason.ORPHAN
    try:
        last_lsn = _last_lsn(store, meta.key)
    except NotFoundError:
        return None
    except UnreadableError:
        return Reason.DAMAGED
    return Reason.ORPHAN if last_lsn <= inputs.manifest.last_applied_lsn else Reason.WINDOW


def _last_lsn(store: Store, key: str) -> int:
    try:
        return decode_dedup(store.get(key), key=key).last_lsn
    except DamagedError:
        return decode_dedup(store.get(key), key=key).last_lsn


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*sets)


def _epoch_over(manifest: Manifest) -> int:
    """Return the epoch below which no writer can attach anything.

    A newer epoch in the manifest alone proves nothing: until its fences are in the log, the record
    of the writer before may still get its slot. Where the log was folded behind them, it cannot.
    """
    return manifest.wal_anchor.epoch if manifest.state == "live" else manifest.writer_epoch
