"""What writers, compactors and jobs change in a manifest, as functions from the head's to the next.

Each takes the head's manifest and returns the content wanted after it; the chain gives it its
number, author and nonce. Each raises where it may not be made on that head:

- FencedError: a newer writer has opened the namespace.
- StalePlanError: what it was planned on has changed, or its job was ended. Plan it anew; the same
  plan is never "applied again".
- NotFoundError: the namespace was dropped; DroppedError for a writer that had it open.

An object that a change stops naming goes to `gc.pending`, dated to the generation that will be
published, so that it stays for the grace period from then on. Nothing here reads a clock or a store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec
import pyarrow as pa

from reef.errors import (
    AlreadyExistsError,
    DroppedError,
    FencedError,
    InvalidInputError,
    InvariantError,
    NotFoundError,
    StalePlanError,
)
from reef.format import (
    PARALLEL_WRITES_MAX,
    DedupRef,
    EndedWriter,
    Intent,
    Lease,
    Manifest,
    PendingDelete,
    SegmentRef,
    SkippedSlot,
    WalAnchor,
    decode_schema,
    dedup_key,
    schema_fingerprint,
    segment_key,
)
from reef.manifest._overlap import check_adjacent, keys_seen
from reef.manifest._retention import expire_snapshots, retained_points
from reef.types import SLOT_MAX

_replace = msgspec.structs.replace


def open_writer(
    m: Manifest, *, lease: Lease | None = None, max_parallel_writes: int | None = None
) -> Manifest:
    """Take the next writer epoch: every writer before it is fenced as soon as the fences are put.

    `max_parallel_writes` None keeps what the manifest says. The fences in a row must be as many as
    the greater of the old and the new number: the old writer may have that many under way.
    """
    _check_live(m)
    parallel = m.max_parallel_writes if max_parallel_writes is None else max_parallel_writes
    if not 1 <= parallel <= PARALLEL_WRITES_MAX:
        raise InvalidInputError.of(
            "max_parallel_writes", parallel, f"a number from 1 to {PARALLEL_WRITES_MAX}"
        )
    ended = m.ended if m.ended is not None and m.ended.epoch == m.writer_epoch else None
    return _replace(
        m,
        writer_epoch=m.writer_epoch + 1,
        lease=lease,
        ended=ended,
        max_parallel_writes=parallel,
    )


def end_writer(m: Manifest, *, epoch: int, slot: int) -> Manifest:
    """Record that the writer of `epoch` has ended: it wrote all slots below `slot`, and no other.

    It must send nothing more, and none of its requests may be unresolved: the next writer begins at
    `slot` without a fence.
    """
    _check_live(m)
    _check_author(m, epoch, None)
    return _replace(
        m,
        ended=EndedWriter(epoch=epoch, slot=slot),
        wal_last_seen=max(m.wal_last_seen, slot - 1),
    )


def open_compactor(m: Manifest) -> Manifest:
    """Take the next compactor epoch: what earlier compactors planned cannot be published any more."""
    _check_live(m)
    return _replace(m, compactor_epoch=m.compactor_epoch + 1)


def register_intent(m: Manifest, *, id: str, kind: str, author: str, opened_at_us: int) -> Manifest:
    """Announce a job: its segments are spared, and it may publish, until the intent ends.

    Raises AlreadyExistsError if the id is taken.
    """
    _check_live(m)
    if any(intent.id == id for intent in m.intents):
        raise AlreadyExistsError(
            f"intent {id!r} stands in namespace {m.namespace!r} already; give the job another id"
        )
    return _replace(
        m, intents=(*m.intents, Intent(id, kind, author, opened_at_us, m.generation + 1))
    )


def end_intent(m: Manifest, id: str) -> Manifest:
    """End a job: from this generation on it cannot publish. Raises NotFoundError."""
    standing = tuple(intent for intent in m.intents if intent.id != id)
    if len(standing) == len(m.intents):
        raise NotFoundError(
            f"intent {id!r} does not stand in namespace {m.namespace!r}: it has been ended already, "
            "or was never registered"
        )
    return _replace(m, intents=standing)


def advance_floor(
    m: Manifest,
    *,
    epoch: int | None = None,
    intent: str | None = None,
    slot_first: int,
    slot_last: int,
    anchor: WalAnchor,
    segments: Sequence[SegmentRef],
    last_applied_lsn: int,
    dedup: DedupRef | None,
    skipped: Iterable[SkippedSlot] = (),
    schema: pa.Schema | None = None,
    unlisted: Collection[str] = (),
) -> Manifest:
    """Name `segments` instead of the log slots `slot_first` to `slot_last`, which are durable.

    By the writer of `epoch`, or by the job of `intent`. `anchor` is the last valid log object up to
    `slot_last`; `dedup` is the window that holds from here on (None: there is none); `skipped` are
    damaged slots that were skipped; `schema` None leaves it; `unlisted` are ids of windows that need not
    wait in `gc.pending`, because the writer itself knows that they are garbage. Slots below are folded
    already: StalePlanError if `slot_first` is not the head's `wal_floor`.
    """
    if m.state == "dropped" and epoch is not None:
        raise DroppedError(f"namespace {m.namespace!r} was dropped: open it anew to write to it")
    _check_live(m)
    owner = _check_author(m, epoch, intent)
    if slot_first != m.wal_floor:
        raise StalePlanError(
            f"slots {slot_first} to {slot_last} cannot be folded: the log of {m.namespace!r} is "
            f"folded up to slot {m.wal_floor - 1} in generation {m.generation}; nothing was "
            f"written: drop what is folded and plan anew from slot {m.wal_floor}"
        )
    if not slot_first <= slot_last <= SLOT_MAX or not m.wal_anchor.slot <= anchor.slot <= slot_last:
        raise InvariantError(
            f"a fold of slots {slot_first} to {slot_last} of {m.namespace!r} with its anchor at "
            f"slot {anchor.slot} (before: {m.wal_anchor.slot}); nothing was written"
        )
    _check_owned((s for s in segments if s.version is None), owner)
    schema_bytes = _schema_bytes(m, schema)
    pending = m.gc.pending
    if m.dedup is not None and m.dedup != dedup and m.dedup.id not in unlisted:
        pending = (*pending, _pending(m, dedup_key(m.namespace, m.dedup.id)))
    return _replace(
        m,
        wal_floor=slot_last + 1,
        wal_anchor=anchor,
        wal_last_seen=max(m.wal_last_seen, slot_last),
        last_applied_lsn=last_applied_lsn,
        dedup=dedup,
        schema=schema_bytes,
        schema_fingerprint=schema_fingerprint(schema_bytes),
        skipped_slots=tuple(sorted({*m.skipped_slots, *skipped}, key=lambda s: s.slot)),
        gc=_replace(m.gc, pending=pending),
        segments=(*segments, *m.segments),
    )


def replace_segments(
    m: Manifest,
    *,
    compactor_epoch: int | None = None,
    intent: str | None = None,
    epoch: int | None = None,
    inputs: Sequence[SegmentRef],
    outputs: Sequence[SegmentRef],
    known_points: Iterable[int],
    now_us: int | None = None,
    within: tuple[bytes, bytes] | None = None,
    unlisted: Collection[str] = (),
) -> Manifest:
    """Name `outputs` instead of `inputs`, as a compaction does that knew `known_points`.

    Those are `retained_points` of the head that it was planned on, the floor among them. A point
    that the plan did not know refuses it, unless it lies at or above all that it knew: above the
    floor a compaction drops nothing. With `now_us`, snapshots that have expired by then go in the
    same step. Raises StalePlanError if an input is not live any more, for such a point, and as
    `check_standing` does.

    With `within`, only from one key up to another: what inputs have outside of that stays named, by
    references that are clipped to it, and an input may have been clipped so since it was planned.

    The open writer of `epoch` needs no intent; FencedError if another one has opened since.
    `unlisted` are ids of its own flushes and compactions: it knows itself that they are garbage, so
    they need not wait in `gc.pending`.
    """
    _check_live(m)
    owner = intent
    if epoch is None:
        check_standing(m, compactor_epoch, intent)
    else:
        owner = _check_author(m, epoch, intent)
    inputs, left = live_inputs(m, inputs, within)
    if now_us is not None:
        m = expire_snapshots(m, now_us)
    _check_points(m, known_points)
    if owner is not None:
        _check_owned(outputs, owner)
    replaced = set(inputs)
    kept = (*left, *(s for s in m.segments if s not in replaced))
    check_adjacent(inputs, outputs, kept if within is None else _near(kept, outputs, *within))
    named = {s.id for s in (*kept, *outputs) if not s.namespace}
    gone = sorted({s.id for s in inputs if not s.namespace} - named - set(unlisted))
    waiting = (_pending(m, segment_key(m.namespace, id)) for id in gone)
    return _replace(
        m, segments=(*outputs, *kept), gc=_replace(m.gc, pending=(*m.gc.pending, *waiting))
    )


def live_inputs(
    m: Manifest, inputs: Sequence[SegmentRef], within: tuple[bytes, bytes] | None
) -> tuple[list[SegmentRef], list[SegmentRef]]:
    """Return the live references that show inputs `within` some keys, and what is left outside.

    Raises StalePlanError if an input is no longer live.
    """
    ids = {segment.id for segment in inputs}
    live: dict[SegmentRef, list[SegmentRef]] = {}
    for segment in m.segments:
        if segment.id in ids:
            live.setdefault(_whole(segment), []).append(segment)
    found: list[SegmentRef] = []
    left: list[SegmentRef] = []
    for segment in inputs:
        shown = live.get(_whole(segment), ())
        low, high = keys_seen(segment)
        if within is None:
            one = segment if segment in shown else None
        else:
            low, high = max(low, within[0]), min(high, within[1])
            one = next((s for s in shown if _shows(s, low, high)), None)
        if one is None:
            raise StalePlanError(
                f"segment {segment.id} of {m.namespace!r}, an input of this compaction, is not "
                f"live in generation {m.generation}; nothing was written: plan it anew"
            )
        found.append(one)
        if within is not None:
            left += _outside(one, *within)
    return found, left


def _near(
    kept: Iterable[SegmentRef], outputs: Iterable[SegmentRef], start: bytes, end: bytes
) -> list[SegmentRef]:
    """Return which of those that stay show any of some keys; outputs must have no others."""
    for output in outputs:
        if output.key_min < start or output.key_max >= end:
            raise InvariantError(
                f"segment {output.id} has keys beyond those that were compacted, from {start!r} up "
                f"to {end!r}; nothing was written"
            )
    seen = ((s, *keys_seen(s)) for s in kept)
    return [s for s, low, high in seen if low < end and high > start]


def _outside(s: SegmentRef, start: bytes, end: bytes) -> Iterator[SegmentRef]:
    """Yield references to what `s` shows below `start`, and from `end` on."""
    low, high = keys_seen(s)
    if low < start:
        yield _replace(s, clip_key_max=start)
    if high > end:
        yield _replace(s, clip_key_min=end)


def _shows(s: SegmentRef, start: bytes, end: bytes) -> bool:
    low, high = keys_seen(s)
    return low <= start and high >= end


def _whole(s: SegmentRef) -> SegmentRef:
    """Return a reference to all keys of a segment: the same for all that are clipped by keys."""
    if s.clip_key_min is None and s.clip_key_max is None:
        return s
    return _replace(s, clip_key_min=None, clip_key_max=None)


def _check_live(m: Manifest) -> None:
    if m.state != "live":
        raise NotFoundError(
            f"namespace {m.namespace!r} was {m.state} in generation {m.generation} or before; "
            "create it again to write to it"
        )


def _check_author(m: Manifest, epoch: int | None, intent: str | None) -> str:
    """Return the owner that the segments of this author carry in their ids."""
    if (epoch is None) == (intent is None):
        raise InvariantError(
            "segments are published under an epoch or an intent: expected one of them"
        )
    if intent is not None:
        _check_intent(m, intent)
        return intent
    assert epoch is not None
    _check_given_out(m, "writer", epoch, m.writer_epoch)
    if epoch < m.writer_epoch:
        holder = "" if m.lease is None else f" by {m.lease.holder} on {m.lease.host}"
        raise FencedError(
            f"namespace {m.namespace!r} was opened{holder} with writer epoch {m.writer_epoch}, "
            f"after this writer's {epoch}; open it again to go on"
        )
    return f"e{epoch}"


def check_standing(m: Manifest, compactor_epoch: int | None, intent: str | None) -> None:
    """Raise StalePlanError if the intent of a job was ended, or another compactor has begun."""
    if compactor_epoch is None and intent is None:
        raise InvariantError("segments are replaced under a compactor epoch or an intent")
    if compactor_epoch is not None:
        _check_given_out(m, "compactor", compactor_epoch, m.compactor_epoch)
        if compactor_epoch < m.compactor_epoch:
            raise StalePlanError(
                f"another compactor of epoch {m.compactor_epoch} began in namespace "
                f"{m.namespace!r} while this one, of epoch {compactor_epoch}, was at work; what "
                "this one has published stays, and the other does the rest"
            )
    if intent is not None:
        _check_intent(m, intent)


def _check_given_out(m: Manifest, what: str, epoch: int, newest: int) -> None:
    if epoch > newest:
        raise InvariantError(
            f"{what} epoch {epoch} was never given out in namespace {m.namespace!r}: "
            f"its head, generation {m.generation}, has {newest}; nothing was written"
        )


def _check_intent(m: Manifest, id: str) -> None:
    if all(intent.id != id for intent in m.intents):
        raise StalePlanError(
            f"intent {id!r} does not stand in generation {m.generation} of namespace "
            f"{m.namespace!r}: it was ended, and its job can no longer publish: start another job"
        )


def _check_owned(segments: Iterable[SegmentRef], owner: str) -> None:
    """Collection spares unreferenced segments by the owner in their ids: it must be there."""
    for segment in segments:
        if segment.id.partition("-")[2] != owner:
            raise InvariantError(
                f"segment {segment.id} is published by {owner!r} but does not carry it in its id; "
                "nothing was written"
            )


def _check_points(m: Manifest, known_points: Iterable[int]) -> None:
    known = set(known_points)
    if not known:
        raise InvariantError(
            "a compaction knows no retained point, not even the retention floor; nothing was written"
        )
    newest = max(known)
    for point in retained_points(m):
        if point < newest and point not in known:
            raise StalePlanError(
                f"LSN {point} is retained in generation {m.generation} of {m.namespace!r}, which "
                "this compaction did not know; nothing was written: plan it anew"
            )


def _pending(m: Manifest, key: str) -> PendingDelete:
    return PendingDelete(key, m.generation + 1)


def _schema_bytes(m: Manifest, schema: pa.Schema | None) -> bytes:
    """Return `schema` as the manifest keeps it: the same bytes as before, if it is the same."""
    if schema is None:
        return m.schema
    if m.schema and schema.equals(decode_schema(pa.py_buffer(m.schema), "", 0), True):
        return m.schema
    return bytes(schema.serialize().to_pybytes())
