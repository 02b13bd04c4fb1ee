"""Where a rebuild can enter the log: the points from which on it is whole and its chain is known."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from reef.doctor import (
    ReadGeneration,
    list_slots,
    newest_readable,
    read_generations,
    retained_manifests,
    silent,
)
from reef.engine import Context
from reef.errors import CorruptError
from reef.format import Manifest, SegmentRef, WalAnchor, manifest_key
from reef.gc import parse_slot
from reef.jobs._fold._fold import FoldPart
from reef.jobs._fold._plan import Backlog
from reef.jobs._rebuild._result import RebuildOptions, RebuildPlan
from reef.manifest import lsn_max_seen, no_namespace
from reef.types import check_namespace, unpack_lsn

_replace = msgspec.structs.replace


@dataclass(frozen=True)
class Entry:
    """A point to fold the log from."""

    base: Manifest
    """How the log stands there: its floor, anchor, last version, and the window."""
    kept: tuple[SegmentRef, ...]
    """The head's segments that hold what lies below."""
    replaced: tuple[SegmentRef, ...]
    """The others: all of their versions are in the log from here on."""

    @property
    def slot(self) -> int:
        """The first one to fold."""
        return self.base.wal_floor


@dataclass(frozen=True)
class Ground:
    """What a rebuild is planned on."""

    manifest: Manifest
    """The head."""
    entries: tuple[Entry, ...]
    """Where the log can be entered, the lowest first."""
    slot_first: int
    sizes: array[int]
    """Of the folded log objects from there on, without a gap."""
    passed_by: tuple[str, ...]
    """Why there is no entry further below."""

    def is_like(self, m: Manifest) -> bool:
        """Return whether all that is derived is the same in `m`."""
        known = self.manifest
        return (m.segments, m.dedup, m.wal_floor, m.wal_anchor, m.skipped_slots, m.state) == (
            known.segments,
            known.dedup,
            known.wal_floor,
            known.wal_anchor,
            known.skipped_slots,
            known.state,
        )

    def parts(self, entry: Entry, job_id: str, options: RebuildOptions) -> tuple[FoldPart, ...]:
        """Return the log from an entry on, cut for tasks."""
        sizes = self.sizes[entry.slot - self.slot_first :]
        return tuple(Backlog(entry.base, sizes).parts(job_id, options.fold))

    def slot_of(self, key: str) -> int:
        """Return the slot that `key` names; `wal_floor` for an object that is not a log object."""
        return parse_slot(key.rsplit("/", 1)[-1]) or self.manifest.wal_floor

    def slot_of_lsn(self, lsn: int) -> int:
        """Return the slot that wrote a version, 0 if it does not tell."""
        return unpack_lsn(lsn)[0] if self.manifest.lsn_policy == "packed" else 0


def find_ground(context: Context, namespace: str) -> Ground:
    """Return where the log of a namespace can be entered.

    Raises NotFoundError if there is no such namespace, CorruptError if its head cannot be read,
    FormatVersionError, UnavailableError.
    """
    store = context.store
    read = read_generations(store, namespace, silent)
    head = newest_readable(read)
    if not read or (head is not None and head.manifest.state != "live"):
        raise no_namespace(store.url, namespace)
    if head is None or head.damaged:
        raise CorruptError(
            manifest_key(namespace, read[-1].number),
            0,
            "a head that can be read: epochs, snapshots, pins and the boundary of collection are "
            "nowhere else",
            "nothing of it"
            if head is None
            else f"damage; generation {head.generation} is the newest that can be read: run "
            "`reef repair`, which goes on from there, and rebuild then",
        )
    m = head.manifest
    sizes = list_slots(store, namespace)
    first = m.wal_floor
    while first > 1 and first - 1 in sizes:
        first -= 1
    passed_by = []
    if first > m.gc.boundary.slot:
        passed_by.append(f"slot {first - 1} is not there, and was not collected")
    elif first > 1:
        passed_by.append(f"the log below slot {first} was collected")
    elif not _is_one_life(m, read):
        passed_by.append("from slot 1: it is not known that this is the first of its name")
    entries = []
    for base in _bases(m, retained_manifests(head, read), read, first):
        split = _split(m.segments, base.last_applied_lsn)
        if isinstance(split, str):
            passed_by.append(f"from slot {base.wal_floor}: {split}")
        elif base.wal_floor < m.wal_floor:
            entries.append(Entry(base, *split))
    own = array("q", (sizes[slot] for slot in range(first, m.wal_floor)))
    return Ground(m, tuple(entries), first, own, tuple(passed_by))


def plan_rebuild(
    context: Context, namespace: str, options: RebuildOptions | None = None
) -> RebuildPlan:
    """Return what `rebuild` would begin with. Reads manifests and lists the log; writes nothing.

    Raises what `find_ground` does.
    """
    options = options or RebuildOptions()
    options.check()
    ground = find_ground(context, check_namespace(namespace))
    m = ground.manifest
    if not ground.entries:
        return RebuildPlan(namespace, m.generation, kept=m.segments, passed_by=ground.passed_by)
    entry = ground.entries[0]
    parts = ground.parts(entry, "plan", options)
    return RebuildPlan(
        namespace,
        m.generation,
        slot_first=entry.slot,
        slot_last=m.wal_floor - 1,
        log_bytes=sum(part.log_bytes for part in parts),
        tasks=len(parts),
        replaced=entry.replaced,
        kept=entry.kept,
        passed_by=ground.passed_by,
    )


def _bases(
    m: Manifest, retained: Sequence[Manifest], read: Sequence[ReadGeneration], first: int
) -> Iterator[Manifest]:
    """Yield manifests at whose floor the log can be entered, the lowest first.

    All are of the head's own life: what a dropped namespace of the same name had must not come back.
    None names skipped slots: what was given up after it was folded has rows in segments only.
    Below the boundary of collection too: who slept may have taken a slot again there, but then the
    chain does not come to the object that the head names.
    """
    if first == 1 and m.origin is None and _is_one_life(m, read):
        yield _replace(
            m,
            wal_floor=1,
            wal_anchor=WalAnchor(0, 0, 0),
            last_applied_lsn=0,
            dedup=None,
            segments=(),
            skipped_slots=(),
        )
    newest = {
        other.wal_floor: other
        for other in retained
        if other.born == m.born and other.wal_floor >= max(first, 2)
    }
    for floor in sorted(newest):
        if floor < m.wal_floor:
            yield _replace(newest[floor], skipped_slots=())


def _is_one_life(m: Manifest, read: Sequence[ReadGeneration]) -> bool:
    """Return whether the log has nothing of a dropped namespace of the same name.

    By every generation there was, but for those that repair has gone on behind; or because none of the
    log may have been collected yet.
    """
    readable = {r.number: r.manifest for r in read if r.manifest is not None}
    if any(manifest.state != "live" for manifest in readable.values()):
        return False
    passed = set(readable)
    for number, manifest in readable.items():
        if manifest.repaired_from is not None:
            passed.update(range(manifest.repaired_from + 1, number))
    return m.gc.boundary.slot == 1 or passed >= {*range(1, m.generation + 1)}


def _split(
    segments: Sequence[SegmentRef], lsn: int
) -> tuple[tuple[SegmentRef, ...], tuple[SegmentRef, ...]] | str:
    """Return segments of versions up to `lsn` and of later ones, or which one has both."""
    kept, replaced = [], []
    for ref in segments:
        if lsn_max_seen(ref) <= lsn:
            kept.append(ref)
        elif ref.lsn_min > lsn:
            replaced.append(ref)
        else:
            return f"segment {ref.id} has versions of before and of after"
    return tuple(kept), tuple(replaced)
