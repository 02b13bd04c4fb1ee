"""Branches, and the lives of a namespace, as changes of a manifest: how one begins and how it ends.

A *life* is all generations from `born` on. What was dropped, or was never made, may begin another one
under the same name: its content starts anew, but everything that others act on goes on: generations,
epochs, slots and the boundary. So a process that slept through the end of a life finds every name that it
could use taken, or its object void.

A *pin* keeps a generation for a branch. It stands in every namespace whose objects the branch names,
all under one nonce, which the branch's origin carries: a pin of another nonce is another life's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest

import msgspec

from reef.errors import (
    FencedError,
    InvalidInputError,
    InvariantError,
    NotFoundError,
)
from reef.format import (
    Boundary,
    Manifest,
    Origin,
    PendingDelete,
    Pin,
    Retention,
    SegmentRef,
    WalAnchor,
    dedup_key,
    schema_fingerprint,
    segment_key,
)
from reef.manifest._retention import check_above_floor, last_seen, set_grace

_NAMED_MAX = 20
_replace = msgspec.structs.replace


def add_pin(m: Manifest, *, lsn: int, child: str, nonce: str) -> Manifest:
    """Keep the generation that is published with it, and what is visible at `lsn`, for a branch.

    Raises RetentionError below the floor, NotFoundError if the namespace was dropped.
    """
    if m.state != "live":
        raise NotFoundError(f"namespace {m.namespace!r} was {m.state}: there is nothing to branch")
    check_above_floor(m, lsn, "branch from a later one")
    pin = Pin(m.generation + 1, lsn, child, nonce)
    return _replace(m, pins=(*m.pins, pin), wal_last_seen=last_seen(m, lsn))


def share_pin(m: Manifest, parent: Manifest, *, child: str, nonce: str) -> Manifest:
    """Keep for a branch of `parent` what `m` keeps for `parent` itself.

    That stands: the generation of `parent` that the branch is made from names objects of `m`.
    """
    origin = parent.origin
    owner = None if origin is None else (parent.namespace, origin.nonce)
    held = next((pin for pin in m.pins if (pin.child, pin.nonce) == owner), None)
    if held is None:
        raise InvariantError(
            f"generation {parent.generation} of namespace {parent.namespace!r} names objects of "
            f"{m.namespace!r}, in which it has no pin; nothing was branched"
        )
    return _replace(m, pins=(*m.pins, Pin(held.generation, held.lsn, child, nonce)))


def release_pins(m: Manifest, gone: Collection[tuple[str, str]]) -> Manifest:
    """Take out pins, each named by its child and nonce; `m` itself if none of them stands."""
    standing = tuple(pin for pin in m.pins if (pin.child, pin.nonce) not in gone)
    return m if len(standing) == len(m.pins) else _replace(m, pins=standing)


@dataclass(frozen=True, kw_only=True)
class BranchPoint:
    """The point at which a branch leaves its parent; generation `parent` has its pin."""

    parent: Manifest
    lsn: int
    slot_last: int
    """Slots of the parent up to here lie before the branch's own."""
    head: WalAnchor
    """The parent's last valid log object up to there."""
    schema: bytes
    nonce: str

    def segments(self) -> Iterator[SegmentRef]:
        """Yield references to what the parent's segments show at `lsn`."""
        return self.share(self.parent.segments)

    def share(self, refs: Iterable[SegmentRef]) -> Iterator[SegmentRef]:
        """Yield references by which another namespace sees what `refs` show at `lsn`."""
        for ref in refs:
            if ref.lsn_min > self.lsn:
                continue
            clip = ref.clip_lsn
            if ref.lsn_max > self.lsn:
                clip = self.lsn if clip is None else min(clip, self.lsn)
            yield _replace(ref, namespace=ref.namespace or self.parent.namespace, clip_lsn=clip)


def begin_branch(
    point: BranchPoint,
    fresh: Manifest,
    old: Manifest | None,
    segments: Sequence[SegmentRef],
    *,
    expires_at_us: int = 0,
) -> Manifest:
    """Return the first generation of a branch: `fresh`, with all that its parent shows at a point.

    `old` is the branch's head: None, or of a life that has ended. `segments` are those that the
    parent's log had, newest first. Idempotency keys stay with the namespace that took them.
    `expires_at_us` is by the store's clock; 0 is never.
    """
    parent = point.parent
    begun = _replace(
        go_on(old, fresh, slot_last=point.slot_last),
        origin=Origin(
            parent.namespace,
            parent.generation,
            point.lsn,
            point.head,
            point.nonce,
            expires_at_us,
        ),
        lsn_policy=parent.lsn_policy,
        max_parallel_writes=parent.max_parallel_writes,
        last_applied_lsn=point.lsn,
        retention=parent.retention,
        schema=point.schema,
        schema_fingerprint=schema_fingerprint(point.schema),
        segments=(*segments, *point.segments()),
    )
    # Its epochs are its own: one generation opens one writer at most, also here.
    anchor = _replace(point.head, epoch=begun.writer_epoch if point.head.slot else 0)
    return _replace(begun, wal_anchor=anchor)


def go_on(old: Manifest | None, fresh: Manifest, *, slot_last: int = 0) -> Manifest:
    """Return `fresh`, a first generation, as the beginning of another life behind `old`.

    Its log begins above `slot_last`, and above all slots that the old life has seen, with an empty one
    between, and its chain begins anew: nobody who reads the log of one life comes into another's.
    """
    if old is None:
        floor = slot_last + 1
        boundary = Boundary(slot=floor, generation=1)
        return _replace(
            fresh,
            wal_floor=floor,
            wal_last_seen=slot_last,
            gc=_replace(fresh.gc, boundary=boundary),
        )
    if old.state == "live":
        raise InvariantError(f"namespace {old.namespace!r} is live; nothing was written")
    seen = max(old.wal_last_seen + 1, old.wal_floor, slot_last)
    return _replace(
        fresh,
        generation=old.generation,
        born=old.generation + 1,
        writer_epoch=old.writer_epoch,
        compactor_epoch=old.compactor_epoch,
        wal_floor=seen + 1,
        wal_last_seen=seen,
        gc=_replace(
            set_grace(old.gc, fresh.gc.grace_ms, since_generation=old.generation + 1),
            boundary=Boundary(slot=seen + 1, generation=old.gc.boundary.generation),
        ),
    )


def drop(
    m: Manifest, *, epoch: int, slot_last: int, anchor: WalAnchor, lsn: int, attached: Iterable[str]
) -> Manifest:
    """End a life, by the writer of `epoch`, whose fences reach up to `slot_last`.

    Its segments and windows wait for collection, those too that only its log attached. Raises
    InvalidInputError if it has branches, FencedError if a newer writer has opened it.
    """
    if m.state != "live":
        raise NotFoundError(f"namespace {m.namespace!r} was {m.state} already")
    if m.pins:
        raise has_branches(m.namespace, (pin.child for pin in m.pins))
    if m.writer_epoch != epoch:
        raise FencedError(
            f"namespace {m.namespace!r} was opened with writer epoch {m.writer_epoch} while it was "
            f"being dropped (epoch {epoch}); it was not dropped: drop it again"
        )
    ids = dict.fromkeys((*(s.id for s in m.segments if not s.namespace), *attached))
    keys = [segment_key(m.namespace, id) for id in ids]
    if m.dedup is not None:
        keys.append(dedup_key(m.namespace, m.dedup.id))
    known = {waiting.key for waiting in m.gc.pending}
    waiting = (PendingDelete(key, m.generation + 1) for key in keys if key not in known)
    return _replace(
        m,
        state="dropped",
        lease=None,
        ended=None,
        wal_floor=slot_last + 1,
        wal_anchor=anchor,
        wal_last_seen=max(m.wal_last_seen, slot_last),
        last_applied_lsn=max(lsn, m.last_applied_lsn),
        dedup=None,
        retention=Retention(floor_lsn=m.retention.floor_lsn, pitr_window_ms=None),
        skipped_slots=(),
        intents=(),
        snapshots=(),
        followed=(),
        gc=_replace(m.gc, pending=(*m.gc.pending, *waiting)),
        segments=(),
    )


def abort(old: Manifest | None, fresh: Manifest) -> Manifest:
    """Take the generation at which an unfinished branch would begin: it can never be made then.

    The epoch rises, so that the segments of its maker have no owner.
    """
    if old is None:
        return _replace(fresh, state="aborted", writer_epoch=1)
    if old.state == "live":
        raise InvariantError(f"namespace {old.namespace!r} is live; nothing was aborted")
    return _replace(old, state="aborted", writer_epoch=old.writer_epoch + 1)


def detach(m: Manifest) -> Manifest:
    """Forget where a branch came from, now that it names nothing of others.

    Raises InvalidInputError if it has branches, InvariantError if it names objects of others.
    """
    if m.state != "live":
        raise NotFoundError(f"namespace {m.namespace!r} was {m.state}")
    if m.pins:
        raise has_branches(m.namespace, (pin.child for pin in m.pins))
    if any(s.namespace for s in m.segments):
        raise InvariantError(f"namespace {m.namespace!r} still names segments of others")
    return _replace(m, origin=None)


def has_branches(
    namespace: str, children: Iterable[str], detached: Collection[str] = ()
) -> InvalidInputError:
    """Return the error for ending a namespace that has branches; it names them.

    `detached` are branches whose older generations still need it.
    """
    named = set(children)
    said = ""
    if attached := named.difference(detached):
        said += f"; drop or detach first: {_names_text(attached)}"
    if waiting := named.intersection(detached):
        said += (
            f"; detached, but their older generations still need it until `reef gc` of each "
            f"collects them: {_names_text(waiting)}"
        )
    return InvalidInputError(
        f"namespace {namespace!r} cannot be dropped or detached while it has branches{said}"
    )


def _names_text(names: Collection[str]) -> str:
    more = len(names) - _NAMED_MAX
    listed = ", ".join(nsmallest(_NAMED_MAX, names))
    return f"{listed} and {more} more" if more > 0 else listed
