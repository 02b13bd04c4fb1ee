"""The flush: what the writer holds in memory becomes a level-0 segment.

1. Note how far the log is durable.                      crash: nothing happened
2. Upload the rows up to there as a segment, and the     crash: orphans, which collection finds
   dedup window if it changed.                           after the next open
3. Publish the manifest that names them and moves        crash: done; the next open replays less
   `wal_floor` behind them: the only visible step.

It is published only onto a head on which it is still true: the writer's epoch stands, and no
other job has folded meanwhile. If one has, the rows it folded are dropped from memory, and the rest is
planned anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from itertools import chain, pairwise

import pyarrow as pa

from reef.context import Context
from reef.engine._commit._dedup_index import DedupIndex
from reef.engine._memtable._memtable import Memtable
from reef.engine._tail import Tail
from reef.errors import CorruptError, DamagedError, InvariantError
from reef.format import (
    DedupRef,
    DedupWindow,
    Manifest,
    SegmentOptions,
    SegmentOrigin,
    SegmentRef,
    SkippedSlot,
    WalAnchor,
    decode_dedup,
    dedup_checksum,
    dedup_key,
    encode_dedup,
)
from reef.manifest import Head, ManifestChain, advance_floor
from reef.segment import write_segment
from reef.store import Store
from reef.types import new_ulid, unpack_lsn


@dataclass(frozen=True, kw_only=True)
class FlushPlan:
    """What one flush folds: the log from `slot_first` to `slot_last`."""

    slot_first: int
    slot_last: int
    anchor: WalAnchor
    lsn: int
    schema: pa.Schema | None
    skipped: tuple[SkippedSlot, ...]
    attached: tuple[SegmentRef, ...]
    memtable: Memtable
    window: DedupWindow | None
    """None: the manifest's window is still current."""
    is_packed: bool
    """Whether versions tell slots."""

    def slots(self, above: int, lsn: int) -> tuple[int, int]:
        """Return the slots of the versions above `above` up to `lsn`, at each of which it is cut.

        The slots of attached segments are not among them. Where callers give the versions, that
        is not known.
        """
        if not self.is_packed:
            return self.slot_first, self.slot_last
        first = unpack_lsn(above)[0] + 1 if above else self.slot_first
        is_attached = any(ref.lsn_max == lsn for ref in self.attached)
        return first, unpack_lsn(lsn)[0] - 1 if is_attached else self.slot_last


@dataclass(frozen=True)
class FlushedFiles:
    """The files that a flush has uploaded; no manifest names them yet."""

    segments: tuple[SegmentRef, ...]
    dedup: DedupRef | None

    def made(self, plan: FlushPlan) -> frozenset[str]:
        """Return the ids of what the flush has uploaded itself."""
        attached = {ref.id for ref in plan.attached}
        window = () if self.dedup is None else (self.dedup.id,)
        return frozenset((*(s.id for s in self.segments if s.id not in attached), *window))


def plan_flush(manifest: Manifest, tail: Tail, dedup: DedupIndex, now_us: int) -> FlushPlan | None:
    """Return what there is to flush, or None. The handle's lock is held."""
    slot_last = tail.replay.next_slot - 1
    if slot_last < manifest.wal_floor:
        return None
    point = tail.replay.point
    is_window_new = dedup.last_lsn > manifest.last_applied_lsn
    return FlushPlan(
        slot_first=manifest.wal_floor,
        slot_last=slot_last,
        anchor=WalAnchor(slot=point.slot, checksum=point.checksum, epoch=point.epoch),
        lsn=tail.lsn,
        schema=tail.schema,
        skipped=tail.skipped,
        attached=tail.attached,
        memtable=tail.memtable,
        window=dedup.window(tail.lsn, now_us) if is_window_new else None,
        is_packed=manifest.lsn_policy == "packed",
    )


def write_flush(context: Context, namespace: str, epoch: int, plan: FlushPlan) -> FlushedFiles:
    """Upload the rows and the window of `plan`. Raises UnavailableError."""
    # Cut where segments were attached: their versions lie between those of the rows around them,
    # and the versions of segments whose keys overlap never do.
    cuts = sorted({0, plan.lsn, *(ref.lsn_max for ref in plan.attached)})
    opened = [
        (plan.slots(above, lsn), first, batches)
        for above, lsn in pairwise(cuts)
        if (first := next(batches := plan.memtable.flush_batches(lsn, above=above), None))
        is not None
    ]
    segments = plan.attached
    for slots, first, batches in opened:
        rows = chain((first,), batches)
        segments += (_write_rows(context, namespace, epoch, slots, first.schema, rows),)
    dedup = None if plan.window is None else write_window(context, namespace, plan.window)
    return FlushedFiles(segments, dedup)


def publish_flush(
    manifests: ManifestChain,
    epoch: int,
    plan: FlushPlan,
    written: FlushedFiles,
    unlisted: Set[str] = frozenset(),
) -> Head:
    """Publish the manifest that names what was written; of `unlisted`, nothing waits in `gc.pending`.

    Raises FencedError, StalePlanError if another job has folded, OutcomeUnknownError.
    """

    def flushed(head: Head | None) -> Manifest:
        if head is None:
            raise InvariantError("a namespace that was open has no manifest")
        return advance_floor(
            head.manifest,
            epoch=epoch,
            slot_first=plan.slot_first,
            slot_last=plan.slot_last,
            anchor=plan.anchor,
            segments=written.segments,
            last_applied_lsn=plan.lsn,
            dedup=written.dedup or head.manifest.dedup,
            skipped=plan.skipped,
            schema=plan.schema,
            unlisted=unlisted,
        )

    return manifests.publish(flushed)


def _write_rows(
    context: Context,
    namespace: str,
    epoch: int,
    slots: tuple[int, int],
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
) -> SegmentRef:
    origin = SegmentOrigin(
        id=f"{new_ulid(context.clock, context.rng)}-e{epoch}",
        namespace=namespace,
        level=0,
        author=context.author,
        created_at_us=context.clock.now_us(),
        replaced_slots=slots,
    )
    options = SegmentOptions(row_block_bytes=context.settings.row_block_bytes)
    return write_segment(context.store, namespace, schema, origin, options, batches)


def write_window(context: Context, namespace: str, window: DedupWindow) -> DedupRef:
    """Upload a dedup window; return what a manifest says of it. Raises UnavailableError."""
    data = encode_dedup(window)
    id = new_ulid(context.clock, context.rng)
    context.store.upload(dedup_key(namespace, id), [data])
    return DedupRef(id=id, size=len(data), checksum=dedup_checksum(data))


def read_window(store: Store, namespace: str, ref: DedupRef) -> DedupWindow:
    """Return the dedup window that a manifest names, if it is the very object; damage is read again.

    Another window under that name, however sound, is damage as well: an older one does not know the
    newest requests, and a retry of them would write twice. Raises NotFoundError, CorruptError or
    IncompleteError, FormatVersionError, UnavailableError.
    """
    key = dedup_key(namespace, ref.id)
    try:
        return _decode_window(store.get(key), key, ref)
    except DamagedError:
        return _decode_window(store.get(key), key, ref)


def _decode_window(data: bytes, key: str, ref: DedupRef) -> DedupWindow:
    try:
        size, checksum = len(data), dedup_checksum(data, key=key)
        if (size, checksum) != (ref.size, ref.checksum):
            raise CorruptError(
                key,
                0,
                f"the dedup window that the manifest names, of {ref.size} bytes and checksum "
                f"{ref.checksum:#010x}",
                f"another window, of {size} bytes and checksum {checksum:#010x}",
            )
        return decode_dedup(data, key=key)
    except DamagedError as error:
        got = f"{error.got}; run `reef repair`, which makes the window anew"
        raise type(error)(key, error.offset, error.expected, got) from error
