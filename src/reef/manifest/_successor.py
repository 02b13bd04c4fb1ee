"""What must hold between a generation and the one that goes on from it, checked before it is written.

Only what every correct history keeps is here, so that a bug stops before the PUT and not in a
reader. Repair may move what is derived (segments, the floor of the log) back; what others act on
(numbers, epochs, the boundary, the retention floor) never goes back, not even then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

from reef.errors import InvariantError
from reef.format import Manifest, Pin, Snapshot, new_records, segment_key

Violation = tuple[str, object]
"""What was expected, and what was found instead."""

_Point = Snapshot | Pin


def check_successor(previous: Manifest | None, next: Manifest, *, repairing: bool = False) -> None:
    """Raise InvariantError, naming the first rule that `next` breaks as the successor of `previous`."""
    for expected, got in _violations(previous, next, repairing):
        before = "no generation" if previous is None else f"generation {previous.generation}"
        raise InvariantError(
            f"generation {next.generation} of namespace {next.namespace!r} cannot follow {before}: "
            f"expected {expected}, got {got}; nothing was written"
        )


def is_reborn(old: Manifest, new: Manifest) -> bool:
    """Return whether a namespace that was dropped, or never made, begins another life."""
    return old.state != "live" and new.state == "live"


def _violations(old: Manifest | None, new: Manifest, repairing: bool) -> Iterator[Violation]:
    if old is None:
        if new.generation != 1:
            yield "generation 1", new.generation
        return
    # A copy stands for any number of the source's generations, each of which kept these rules.
    is_copied = new.copied is not None and new.copied != old.copied
    yield from _identity(old, new)
    yield from _numbers(old, new)
    yield from _grace(old, new)
    if not is_copied:
        yield from _epochs(old, new)
        yield from _points(old, new, repairing)
    if not repairing:
        yield from _log(old, new)
        yield from _named(old, new)
        if not is_copied:
            yield from _unfolded(old, new)
            yield from _recorded(old, new)
    yield from _pending(old, new, repairing)


def _identity(old: Manifest, new: Manifest) -> Iterator[Violation]:
    if new.namespace != old.namespace:
        yield f"namespace {old.namespace!r}", repr(new.namespace)
    if new.repaired_from is None and new.generation != old.generation + 1:
        yield f"generation {old.generation + 1}", new.generation
    if new.repaired_from is not None and (
        new.repaired_from != old.generation or new.generation < old.generation + 2
    ):
        yield (
            f"a repair that continues from generation {old.generation} behind damaged ones",
            f"generation {new.generation}, repaired from {new.repaired_from}",
        )
    if new.state == "aborted" and old.state == "live":
        yield "an aborted generation after one that is not live", "a live one before"
    if new.state == "dropped" and old.state == "aborted":
        yield "a dropped generation after one that is not aborted", "an aborted one before"
    born = new.generation if is_reborn(old, new) else old.born
    if new.born != born:
        yield f"born at generation {born}", new.born
    # What was dropped may be made anew under the same name: that begins another content.
    if old.state == "live":
        if new.lsn_policy != old.lsn_policy:
            yield f"lsn_policy {old.lsn_policy}", new.lsn_policy
        if new.origin is not None and new.origin != old.origin:
            yield f"origin {old.origin}", new.origin


def _numbers(old: Manifest, new: Manifest) -> Iterator[Violation]:
    """What others act on only rises: for ever, but for the floor, which is that of a life."""
    floor = () if is_reborn(old, new) else ("retention.floor_lsn",)
    boundary = ("gc.boundary.slot", "gc.boundary.generation")
    names = ("writer_epoch", "compactor_epoch", *floor, *boundary, "wal_last_seen")
    yield from _rising(old, new, *names)
    boundaries = old.gc.boundary, new.gc.boundary
    if boundaries[1].generation > max(old.generation, boundaries[0].generation):
        yield f"gc.boundary.generation at most {old.generation}", boundaries[1].generation


def _rising(old: Manifest, new: Manifest, *names: str) -> Iterator[Violation]:
    for name in names:
        before, after = attrgetter(name)(old), attrgetter(name)(new)
        if after < before:
            yield f"{name} at least {before}", after


def _grace(old: Manifest, new: Manifest) -> Iterator[Violation]:
    """A shorter grace leaves a note of the longer one, which only collection may take out."""
    # A new life leaves one too, but the first Reef that wrote version 1 did not.
    if new.gc.grace_ms >= old.gc.grace_ms or is_reborn(old, new):
        return
    shortened = new.gc.shortened
    if shortened is None or shortened.from_ms < old.gc.grace_ms:
        yield f"gc.shortened from {old.gc.grace_ms} ms or more", shortened
    elif shortened.since_generation != new.generation:
        yield f"gc.shortened since generation {new.generation}", shortened.since_generation


def _epochs(old: Manifest, new: Manifest) -> Iterator[Violation]:
    """One generation opens one writer at most: repair counts on it behind damaged generations."""
    steps = new.generation - old.generation
    for name in ("writer_epoch", "compactor_epoch"):
        before, after = getattr(old, name), getattr(new, name)
        if after > before + steps:
            yield f"{name} at most {before + steps}", after
    if new.ended not in (None, old.ended) and not (
        new.ended.epoch == new.writer_epoch == old.writer_epoch
    ):
        yield f"ended to be of writer epoch {old.writer_epoch}", new.ended
    # It may fall when its writer's fences stand, but an open writer's fences are counted already.
    # A new life has no writer yet, and those of the old one are fenced off.
    if is_reborn(old, new):
        return
    if new.max_parallel_writes > old.max_parallel_writes and new.writer_epoch == old.writer_epoch:
        yield (
            f"max_parallel_writes at most {old.max_parallel_writes} until a writer opens",
            new.max_parallel_writes,
        )


def _log(old: Manifest, new: Manifest) -> Iterator[Violation]:
    """The floor of the log, and what the segments reflect, move forward together."""
    yield from _rising(old, new, "wal_floor")
    if is_reborn(old, new):
        if new.wal_floor <= old.wal_last_seen + 1:
            yield (
                f"wal_floor above slot {old.wal_last_seen + 1}, which stays empty behind the old life",
                new.wal_floor,
            )
        return
    yield from _rising(old, new, "last_applied_lsn", "wal_anchor.slot", "wal_anchor.epoch")


def _unfolded(old: Manifest, new: Manifest) -> Iterator[Violation]:
    """Only a fold changes what the segments reflect."""
    if new.wal_floor == old.wal_floor:
        for name in ("wal_anchor", "last_applied_lsn"):
            before, after = getattr(old, name), getattr(new, name)
            if after != before:
                yield f"{name} {before} while wal_floor stays {old.wal_floor}", after
        if old.schema and new.schema != old.schema:
            yield "the same schema until a log object changes it", "another one"


def _points(old: Manifest, new: Manifest, repairing: bool) -> Iterator[Violation]:
    """Points that something stands on are added above the floor and never moved.

    Repair may put back pins that only damaged generations held.
    """
    yield from _snapshots(old, new)
    pins = {_pin(p): p for p in old.pins}
    allowed = {_pin(p): p for p in new.pins if not repairing or _pin(p) in pins}
    yield from _standing("pin", pins, allowed, old)
    added = set(new.followed) - {*old.followed, new.generation}
    if added:
        yield f"followed to add generation {new.generation} at most", min(added)
    started = {i.id: i.generation for i in old.intents}
    for intent in new.intents:
        if started.get(intent.id, new.generation) != intent.generation:
            yield "an intent of the generation that registered it", intent
    skipped = {s.slot: s for s in old.skipped_slots}
    for slot in new.skipped_slots:
        if skipped.get(slot.slot, slot) != slot:
            yield f"{skipped[slot.slot]} to stay as it is", slot


def _snapshots(old: Manifest, new: Manifest) -> Iterator[Violation]:
    """A new snapshot is of the new generation, or shares one that another stands on."""
    changed = {s.id: s for s in new_records(old.snapshots, new.snapshots)}
    if not changed:
        return
    before = {}
    if len(new.snapshots) < len(old.snapshots) + len(changed):
        before = {s.id: s for s in old.snapshots if s.id in changed}
    yield from _standing("snapshot", before, changed, old)
    for id, snapshot in changed.items():
        if id not in before and not _may_stand_on(snapshot.generation, old, new):
            yield f"a new snapshot to be of generation {new.generation} or a shared one", snapshot


def _may_stand_on(generation: int, old: Manifest, new: Manifest) -> bool:
    return generation == new.generation or any(
        s.generation == generation for s in reversed(old.snapshots)
    )


def _standing(
    what: str, before: Mapping[Any, _Point], after: Mapping[Any, _Point], old: Manifest
) -> Iterator[Violation]:
    floor = old.retention.floor_lsn
    # A branch of a branch stands where that branch does, which may lie below the floor by now.
    stood = {(point.generation, point.lsn) for point in before.values()}
    for name, point in after.items():
        known = before.get(name)
        is_stood = what == "pin" and (point.generation, point.lsn) in stood
        if known is None and point.lsn < floor and not is_stood:
            yield f"a new {what} at or above floor_lsn {floor}", point
        if known is not None and (known.generation, known.lsn) != (point.generation, point.lsn):
            yield f"{known} to stay where it is", point


def _pin(pin: Pin) -> tuple[str, str]:
    return pin.child, pin.nonce


def _named(old: Manifest, new: Manifest) -> Iterator[Violation]:
    """What is not named any more waits in gc.pending; what waits there is not named again.

    But for the open writer's own, which collection knows by its epoch, and for dedup windows, which say
    themselves until when they can be named.
    """
    own = f"e{old.writer_epoch}"
    listed = {id for id in _gone(old, new) if id.partition("-")[2] != own}
    keys = {segment_key(old.namespace, id) for id in listed}
    for key in keys.difference(p.key for p in new.gc.pending):
        yield f"{key} in gc.pending, now that it is not named", "nothing of it"


def _gone(old: Manifest, new: Manifest) -> set[str]:
    """Return the own segments that are not named any more."""
    if new.segments is old.segments:
        return set()
    gone = {s.id for s in old.segments if not s.namespace}
    return gone - {s.id for s in new.segments if not s.namespace}


def _recorded(old: Manifest, new: Manifest) -> Iterator[Violation]:
    """What may be dropped is written down before it is."""
    if _gone(old, new) and new.retention.floor_lsn != old.retention.floor_lsn:
        yield (
            "floor_lsn to be recorded before segments are replaced",
            f"{new.retention.floor_lsn} after {old.retention.floor_lsn} in the same generation",
        )


def _pending(old: Manifest, new: Manifest, repairing: bool) -> Iterator[Violation]:
    """An object waits for collection since the generation that stopped naming it."""
    if new.gc.pending is old.gc.pending and new.segments is old.segments:
        return
    since = {p.key: p.since_generation for p in old.gc.pending}
    for waiting in new.gc.pending:
        if waiting.since_generation != since.get(waiting.key, new.generation):
            yield (
                f"{waiting.key} pending since generation {since.get(waiting.key, new.generation)}",
                waiting.since_generation,
            )
    if since and not repairing:
        for segment in new.segments:
            if not segment.namespace and segment_key(new.namespace, segment.id) in since:
                yield "no object to be named again that waited for collection", segment.id
