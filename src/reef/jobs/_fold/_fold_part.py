"""The task of a fold: a contiguous run of log objects becomes sorted level-0 segments.

Invariants:

- Objects are decided by `Replay`, in order, as recovery does it; only rows of valid ones are written.
- Segments of a part are disjoint in LSNs and hold whole slots, in order. Each names the slots since
  the one before it, so that of two segments of one fold no slot is in both.
- The rows of an attached segment lie between two segments, never within the LSNs of one: runs that
  overlap in keys never overlap in LSNs.
- Memory holds about `memory_bytes` of rows, or one object's if that is more; two windows of log objects,
  a quarter of that; and a few pieces of some MiB on their way out.

Crash points: anywhere. Segments have names that no other attempt uses, and nothing names them before
the driver publishes what came back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import msgspec

from reef.engine import Context, DedupIndex, FoldRows
from reef.errors import InvariantError
from reef.format import (
    DedupWindow,
    LogKind,
    LogObject,
    LsnPolicy,
    SegmentOptions,
    SegmentOrigin,
    SegmentRef,
    SkippedSlot,
    log_key,
)
from reef.jobs._fold._part_chain import ChainState, DamagedSlot, PartFold
from reef.jobs._job import new_segment_id
from reef.log import Damaged, LogEntry, LogReader
from reef.segment import write_segment
from reef.types import LSN_MAX

WINDOW_SLOTS_MAX = 256
_SLACK = 1.05  # of what a segment is expected to take, so that the last one takes up the rest


class FoldPart(msgspec.Struct, frozen=True, kw_only=True):
    """A contiguous run of log slots to fold."""

    namespace: str
    job_id: str
    lsn_policy: LsnPolicy
    slot_first: int
    slot_last: int
    log_bytes: int
    """Bytes of all its objects, as they were listed."""
    object_bytes_max: int
    """Bytes of the largest object: decides how many are fetched at once."""
    memory_bytes: int
    skipped: tuple[SkippedSlot, ...] = ()
    """Slots that the manifest names as skipped."""
    entered: ChainState | None = None
    """The state of the chain before it; None: assume it from the first object."""


class FoldedPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part, folded: segments that nothing names yet, and how it fits to its neighbours."""

    slot_first: int
    slot_last: int
    """The last slot that was found; below the part's own if an object is gone."""
    entered: ChainState | None
    """None, as `left` is then: nothing could be read, and nothing was known before."""
    left: ChainState | None
    segments: tuple[SegmentRef, ...]
    """In the order of their LSNs."""
    attached: tuple[SegmentRef, ...]
    lsn_first: int
    """First and last version of the valid objects; 0 and 0 if there are none."""
    lsn_last: int
    schema: bytes
    """The last one that the log sets, as an Arrow IPC schema; b"" if none."""
    skipped: tuple[SkippedSlot, ...]
    """Slots that valid fences name as skipped."""
    damaged: tuple[DamagedSlot, ...]
    """All damaged objects."""
    window: DedupWindow
    """Its newest requests and streams, at most as many as a window holds."""
    voids: int
    rows: int
    log_bytes: int
    """Bytes of the objects that were read."""


def fold_part(context: Context, part: FoldPart) -> FoldedPart:
    """Fold the slots of `part` into level-0 segments.

    A missing object ends the fold there: `slot_last` shows it. Raises CorruptError if a damaged object
    is followed by one that does not name it as skipped; that counts only if `entered` was given. Raises
    UnavailableError, FormatVersionError, InvariantError.
    """
    fold = PartFold(part.slot_first, part.skipped, part.entered)
    folding = _Folding(context, part)
    slot = part.slot_first - 1
    for decoded in _decoded_slots(context, part):
        if decoded is None:
            break
        slot += 1
        if isinstance(decoded, Damaged):
            fold.add_damaged(decoded)
            folding.damaged.append(decoded)
        else:
            folding.take(fold.add(*decoded))
    left = fold.left
    folding.close(slot if left is None else left.last_decided(slot))
    return folding.done(slot, fold.entered, left)


class _Folding:
    """Takes decided objects in order, and writes a segment whenever memory is full."""

    def __init__(self, context: Context, part: FoldPart) -> None:
        self._context = context
        self._part = part
        self._rows = FoldRows()
        self._dedup = DedupIndex(
            None,
            keys_max=context.settings.dedup_max_keys,
            age_max_us=round(context.settings.dedup_max_age * 1_000_000),
        )
        self._slot_first = part.slot_first
        self._segments: list[SegmentRef] = []
        self._attached: list[SegmentRef] = []
        self._skipped: list[SkippedSlot] = []
        self._schema = b""
        self._lsn_first = self._lsn_last = 0
        self._voids = self._log_bytes = self._closed_bytes = 0
        self.damaged: list[Damaged] = []

    def take(self, entry: LogEntry) -> None:
        """Take the next decided object."""
        self._log_bytes += entry.size
        if not entry.is_valid:
            self._voids += 1
            return
        if entry.log.kind is LogKind.ATTACH:
            self.close(entry.slot - 1)
            self._slot_first = entry.slot + 1
        for record in entry.log.records:
            if record.batch is not None:
                self._rows.add(record.lsn, record.batch)
            self._attached += record.segments
            self._skipped += record.skipped
            if record.schema is not None:
                self._schema = record.schema.serialize().to_pybytes()
        if entry.log.kind is not LogKind.FENCE:
            self._rise(entry.log)
        self._dedup.apply(entry.log)
        if self._rows.nbytes >= self._rows_bytes_max():
            self.close(entry.slot)

    def close(self, slot_last: int) -> None:
        """Write the rows since the last segment, if any, as the segment up to `slot_last`."""
        self._closed_bytes += self._rows.nbytes
        rows, self._rows = self._rows.sorted(), FoldRows()
        first = next(rows, None)
        if first is None:
            return
        context, part = self._context, self._part
        origin = SegmentOrigin(
            id=new_segment_id(context, part.job_id),
            namespace=part.namespace,
            level=0,
            author=context.author,
            created_at_us=context.clock.now_us(),
            replaced_slots=(self._slot_first, slot_last),
        )
        options = SegmentOptions(row_block_bytes=context.settings.row_block_bytes)
        batches = chain((first,), rows)
        self._segments.append(
            write_segment(context.store, part.namespace, first.schema, origin, options, batches)
        )
        self._slot_first = slot_last + 1

    def done(
        self, slot_last: int, entered: ChainState | None, left: ChainState | None
    ) -> FoldedPart:
        """Return the result, once everything is closed."""
        return FoldedPart(
            slot_first=self._part.slot_first,
            slot_last=slot_last,
            entered=entered,
            left=left,
            segments=tuple(self._segments),
            attached=tuple(self._attached),
            lsn_first=self._lsn_first,
            lsn_last=self._lsn_last,
            schema=self._schema,
            skipped=tuple(self._skipped),
            damaged=tuple(map(DamagedSlot.of, self.damaged)),
            window=self._dedup.window(LSN_MAX, 0),
            voids=self._voids,
            rows=sum(ref.rows for ref in self._segments),
            log_bytes=self._log_bytes,
        )

    def _rows_bytes_max(self) -> float:
        """Return how many bytes of rows a segment gets: all segments of a part are about alike.

        Estimated from the log so far, so that no part ends in a segment of a few rows.
        """
        memory = self._part.memory_bytes
        rows_bytes = self._closed_bytes + self._rows.nbytes
        expected = rows_bytes * max(1.0, self._part.log_bytes / self._log_bytes)
        segments = -(-expected // memory)
        return float(min(memory, expected / max(1, segments) * _SLACK))

    def _rise(self, log: LogObject) -> None:
        if log.lsn_first <= self._lsn_last:
            raise InvariantError(
                f"version {log.lsn_first} of log object {log.slot} in namespace "
                f"{self._part.namespace!r} after version {self._lsn_last}"
            )
        self._lsn_first = self._lsn_first or log.lsn_first
        self._lsn_last = log.lsn_last


def _decoded_slots(
    context: Context, part: FoldPart
) -> Iterator[tuple[LogObject, int, int] | Damaged | None]:
    """Yield the objects of a part in order, None for one that is absent; fetched many at once."""
    reader = LogReader(context.store, part.namespace, part.lsn_policy)
    largest = max(1, part.object_bytes_max)
    count = min(WINDOW_SLOTS_MAX, max(1, part.memory_bytes // 8 // largest))
    end = part.slot_last + 1
    windows = [range(at, min(at + count, end)) for at in range(part.slot_first, end, count)]
    objects = context.store.get_many([log_key(part.namespace, slot) for slot in windows[0]])
    for window, following in zip(windows, [*windows[1:], range(0)], strict=True):
        with _fetching(context, part.namespace, following) as fetched:
            for i, slot in enumerate(window):
                data, objects[i] = objects[i], None  # once decoded, it need not wait for the others
                yield None if data is None else reader.decode(slot, data)
        objects = fetched


@contextmanager
def _fetching(context: Context, namespace: str, slots: range) -> Iterator[list[bytes | None]]:
    """Fetch log objects while the body runs; they are there behind it. Raises what the store raised."""
    keys = [log_key(namespace, slot) for slot in slots]
    objects: list[bytes | None] = []
    errors: list[BaseException] = []

    def fetch() -> None:
        try:
            objects.extend(context.store.get_many(keys))
        except BaseException as error:  # noqa: BLE001 raised where they are waited for
            errors.append(error)

    thread = context.threads.start(fetch, name=f"reef-fold-{namespace}") if keys else None
    try:
        yield objects
    finally:
        if thread is not None:
            thread.join()
    if errors:
        raise errors[0]
