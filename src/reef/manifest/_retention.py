"""Snapshots, the retention floor and the boundary of collection, as changes of a manifest.

A snapshot stands as long as the head's manifest holds it. Its time says when it *may* be taken out;
what it retains may be dropped only by, or after, the publish that takes it out. So a snapshot that
is renewed late, but before anybody took it out, has lost nothing.
"""

from __future__ import annotations

from collections.abc import Collection as Keys
from collections.abc import Iterable, Iterator, Mapping

import msgspec
from msgspec import UNSET, UnsetType

from reef.errors import (
    AlreadyExistsError,
    DroppedError,
    InvalidInputError,
    InvariantError,
    NotFoundError,
    RetentionError,
)
from reef.format import Boundary, Collection, Manifest, ShortenedGrace, Snapshot
from reef.manifest._manifest_reader import Generation
from reef.types import unpack_lsn

_replace = msgspec.structs.replace


def find_snapshot(m: Manifest, id: str) -> Snapshot | None:
    """Return the snapshot of that id, or None."""
    return next((s for s in reversed(m.snapshots) if s.id == id), None)


def add_snapshot(
    m: Manifest,
    *,
    id: str,
    lsn: int,
    expires_at_us: int,
    wal_last_seen: int = 0,
    born: int | None = None,
    shared: Manifest | None = None,
    keeps_log: bool = False,
) -> Manifest:
    """Keep what is visible at `lsn` until `expires_at_us` by the store's clock (0: never).

    The snapshot is of the generation that is published with it, or of `shared` if a snapshot stands
    on that and it shows the same: then no other generation is kept for it. `wal_last_seen` is the
    last log slot that its author saw; under the packed policy the LSN says it. `born` is the life
    that is meant, if not any. With `keeps_log`, the log behind its generation is kept too, as long as
    the snapshot stands. Raises RetentionError below the floor, AlreadyExistsError if the id is taken,
    NotFoundError if the namespace was dropped, DroppedError if `born` was.
    """
    if m.state != "live" or born not in (None, m.born):
        was = "dropped" if m.state == "live" else m.state
        kind = NotFoundError if born is None else DroppedError
        raise kind(f"namespace {m.namespace!r} was {was}: open it anew, then take the snapshot")
    check_above_floor(m, lsn, "take a later one")
    if id in [s.id for s in m.snapshots]:
        raise AlreadyExistsError(
            f"snapshot {id!r} of namespace {m.namespace!r} exists; release it, or use another id"
        )
    seen = max(wal_last_seen, last_seen(m, lsn))
    number = m.generation + 1
    if shared is not None and not keeps_log and _shows(shared, m, seen):
        number = shared.generation
    followed = (*m.followed, number) if keeps_log else m.followed
    snapshots = (*m.snapshots, Snapshot(id, number, lsn, expires_at_us))
    return _replace(m, snapshots=snapshots, wal_last_seen=seen, followed=followed)


def _shows(older: Manifest, m: Manifest, last_slot: int) -> bool:
    """Return whether a retained generation shows what `m` does, with the log up to `last_slot`.

    The log is folded just as far, so no slot that it needs can have been collected. A slot that the
    LSN does not tell has to be known to that generation: else nothing says that it is needed.
    """
    is_same = (older.born, older.wal_floor, older.skipped_slots, older.schema_fingerprint) == (
        *(m.born, m.wal_floor, m.skipped_slots, m.schema_fingerprint),
    )
    is_standing = older.generation not in m.followed and any(
        s.generation == older.generation for s in reversed(m.snapshots)
    )
    is_reached = m.lsn_policy == "packed" or last_slot <= older.wal_last_seen
    return is_same and is_standing and is_reached


def check_above_floor(m: Manifest, lsn: int, instead: str) -> None:
    """Raise RetentionError for a version that may not be readable; `instead` is what to do."""
    if lsn < m.retention.floor_lsn:
        raise RetentionError(
            f"LSN {lsn} of namespace {m.namespace!r} lies below its retention floor "
            f"{m.retention.floor_lsn}: what was visible there may be gone; {instead}"
        )


def last_seen(m: Manifest, lsn: int) -> int:
    """Return `wal_last_seen` of a manifest whose author has seen `lsn`, whose slot it may tell."""
    return max(m.wal_last_seen, unpack_lsn(lsn)[0] if m.lsn_policy == "packed" else 0)


def renew_snapshot(m: Manifest, id: str, *, expires_at_us: int) -> Manifest:
    """Let a snapshot stand until `expires_at_us` (0: never). Raises NotFoundError."""
    _find(m, id)
    return _replace(
        m,
        snapshots=tuple(
            _replace(s, expires_at_us=expires_at_us) if s.id == id else s for s in m.snapshots
        ),
    )


def release_snapshot(m: Manifest, id: str) -> Manifest:
    """Take a snapshot out. Raises NotFoundError."""
    _find(m, id)
    return _with_snapshots(m, tuple(s for s in m.snapshots if s.id != id))


def expire_snapshots(m: Manifest, now_us: int) -> Manifest:
    """Take out the snapshots whose time is over at `now_us` by the store's clock; else `m` itself."""
    standing = tuple(s for s in m.snapshots if not is_expired(s, now_us))
    return m if len(standing) == len(m.snapshots) else _with_snapshots(m, standing)


def _with_snapshots(m: Manifest, standing: tuple[Snapshot, ...]) -> Manifest:
    """Return `m` with these of its snapshots; what only others followed is followed no more."""
    numbers = {s.generation for s in standing} if m.followed else set()
    followed = tuple(number for number in m.followed if number in numbers)
    return _replace(m, snapshots=standing, followed=followed)


def is_expired(snapshot: Snapshot, now_us: int) -> bool:
    """Return whether the snapshot may be taken out at `now_us`."""
    return 0 < snapshot.expires_at_us < now_us


def retained_points(m: Manifest, now_us: int | None = None) -> list[int]:
    """Return the LSNs that stay readable, in order: snapshots, pins and the floor itself.

    With `now_us`, without the snapshots that have expired by then: only for a plan whose publish
    takes them out too.
    """
    points = {m.retention.floor_lsn, *(pin.lsn for pin in m.pins)}
    points.update(s.lsn for s in m.snapshots if now_us is None or not is_expired(s, now_us))
    return sorted(points)


def is_retained(m: Manifest, generation: int) -> bool:
    """Return whether collection is bound to have spared a generation, as the head `m` sees it."""
    return next(retained_of(m, [generation]), None) is not None


def retained_of(m: Manifest, generations: Iterable[int]) -> Iterator[int]:
    """Yield those of `generations` that collection is bound to have spared, as the head `m` sees it."""
    stood = {s.generation for s in m.snapshots} | {p.generation for p in m.pins}
    return (n for n in generations if n >= m.gc.boundary.generation or n in stood)


def set_retention(
    m: Manifest,
    *,
    floor_lsn: int | None = None,
    pitr_window_ms: int | UnsetType | None = UNSET,
    grace_ms: int | None = None,
) -> Manifest:
    """Raise the floor to `floor_lsn`, if it is higher; set the window (None: none) and the grace.

    Raises InvalidInputError for a floor above what the segments reflect: nothing there can be
    dropped, and what is newest must stay readable.
    """
    retention = m.retention
    if floor_lsn is not None:
        if floor_lsn > m.last_applied_lsn:
            raise InvalidInputError.of(
                "floor_lsn", floor_lsn, f"at most last_applied_lsn, {m.last_applied_lsn}"
            )
        retention = _replace(retention, floor_lsn=max(retention.floor_lsn, floor_lsn))
    if pitr_window_ms is not UNSET:
        retention = _replace(retention, pitr_window_ms=pitr_window_ms)
    gc = m.gc if grace_ms is None else set_grace(m.gc, grace_ms, since_generation=m.generation + 1)
    return _replace(m, retention=retention, gc=gc)


def set_grace(gc: Collection, grace_ms: int, *, since_generation: int) -> Collection:
    """Set the grace, and keep what readers of the generations before it were promised."""
    from_ms = longest_grace_ms(gc)
    shortened = gc.shortened
    if grace_ms >= from_ms:
        shortened = None
    elif grace_ms < gc.grace_ms:
        shortened = ShortenedGrace(from_ms, since_generation)
    return _replace(gc, grace_ms=grace_ms, shortened=shortened)


def longest_grace_ms(gc: Collection) -> int:
    """Return the longest grace that a generation promised which somebody may still know."""
    return gc.grace_ms if gc.shortened is None else gc.shortened.from_ms


def settle_grace(m: Manifest, listed: Mapping[int, Generation], now_us: int) -> Manifest:
    """Forget the longer grace of earlier generations, if it is over for all who knew them.

    They were the head until the first with the shorter one was published. `listed` are the
    generations that are there.
    """
    shortened = m.gc.shortened
    if shortened is None:
        return m
    found = listed.get(shortened.since_generation)
    if found is None:
        # It was collected, after a grace that counted this one, or it went missing.
        is_over = shortened.since_generation < m.gc.boundary.generation
    else:
        is_over = found.published_at_us < now_us - shortened.from_ms * 1000
    return _replace(m, gc=_replace(m.gc, shortened=None)) if is_over else m


def advance_boundary(m: Manifest, boundary: Boundary, *, deleted: Keys[str] = ()) -> Manifest:
    """Allow collection to delete below `boundary`, which is to be published before it does.

    Each of the two numbers only rises. `deleted` are keys of `gc.pending` whose objects are gone.
    Raises InvariantError for a boundary above the floor of the log or above the head.
    """
    if boundary.slot > m.wal_floor or boundary.generation > m.generation:
        raise InvariantError(
            f"a boundary at slot {boundary.slot} and generation {boundary.generation} would pass "
            f"wal_floor {m.wal_floor} or generation {m.generation} of {m.namespace!r}; "
            "nothing was written"
        )
    raised = Boundary(
        slot=max(m.gc.boundary.slot, boundary.slot),
        generation=max(m.gc.boundary.generation, boundary.generation),
    )
    pending = m.gc.pending
    if deleted:
        gone = frozenset(deleted)
        pending = tuple(p for p in pending if p.key not in gone)
    return _replace(m, gc=_replace(m.gc, boundary=raised, pending=pending))


def _find(m: Manifest, id: str) -> Snapshot:
    snapshot = find_snapshot(m, id)
    if snapshot is None:
        raise NotFoundError(
            f"namespace {m.namespace!r} has no snapshot {id!r}: it was released, or it has expired "
            "and been removed; take a new one"
        )
    return snapshot
