"""What is left of a log whose namespace has no manifest: where to go on from, and what it says.

Collection has deleted objects from the lower part, all of which were folded. It leaves fences, the
object at `wal_anchor`, the newest schema and what attaches live segments. So the log ends in a run of
objects without a gap; what lies below the run is in segments.

An object is void if it was in flight behind a write that lost its slot to another writer's fence.
Fences are never deleted. So an object is valid exactly if no object below it is of a higher epoch; in
the run at the end, the chain decides as always.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from reef.engine import Context
from reef.errors import CorruptError
from reef.format import (
    PARALLEL_WRITES_MAX,
    LogKind,
    LogObject,
    Manifest,
    SegmentRef,
    log_key,
)
from reef.gc import FENCE_BYTES
from reef.log import ChainPoint, Damaged, LogReader, Replay, list_slots
from reef.types import unpack_lsn

_AT_ONCE = 32


@dataclass
class LogRemains:
    """What a log says without a manifest."""

    sizes: Mapping[int, int]
    """The bytes of every object, by slot."""
    first: int
    """The first slot of the run at the end."""
    end: int
    """The first slot behind it."""
    point: ChainPoint
    """The last valid object before `first`."""
    lowest: ChainPoint
    """What the lowest object of all names as the one before it."""
    born: int
    """The slot of the object that begins the chain anew, behind a dropped namespace; else 1."""
    epoch: int
    """The highest."""
    lsn_first: int
    """The first version of the run; 0: it has none."""
    lsn_last: int
    is_packed: bool
    """Whether every version can be one that tells its slot."""
    schema: pa.Schema | None
    """The newest that the log sets."""
    is_open: bool
    """Whether the last valid object is no fence: then the namespace was not dropped after it."""
    attached: list[SegmentRef] = field(default_factory=list)
    """What valid objects below `first` attach."""
    fields: dict[str, pa.Field] = field(default_factory=dict)
    """The columns of the rows in the run."""
    value_bytes_max: int = 0
    """The bytes of the largest value of the first row that has one."""


def read_remains(
    context: Context, namespace: str, folded: Sequence[tuple[int, int]], segments: Collection[str]
) -> LogRemains:
    """Return what the log says.

    `folded` are slots that segments are known to stand for, `segments` the ids of those in the bucket.

    Raises CorruptError if there is no log, or it is damaged; UnavailableError.
    """
    sizes = list_slots(context.store, namespace)
    if not sizes:
        raise CorruptError(
            f"namespaces/{namespace}/wal/",
            0,
            "the log: without any manifest, it alone tells which epochs were given out",
            "no log object; nothing was changed: restore a manifest from a backup",
        )
    reader = LogReader(context.store, namespace, "caller")
    runs = _runs(sizes)
    below, last = runs[:-1], runs[-1]
    if below and _is_in_flight(context, reader, namespace, below, last, folded):
        below, last = runs[:-2], runs[-2]
    return _Reading(context, reader, namespace, sizes, segments).read(below, last)


def _runs(sizes: Mapping[int, int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for slot in sizes:
        if runs and runs[-1][1] == slot - 1:
            runs[-1] = runs[-1][0], slot
        else:
            runs.append((slot, slot))
    return runs


def _is_in_flight(
    context: Context,
    reader: LogReader,
    namespace: str,
    below: Sequence[tuple[int, int]],
    last: tuple[int, int],
    folded: Sequence[tuple[int, int]],
) -> bool:
    """Return whether the last run was never committed: the slots before it were never taken.

    A writer has as many objects in flight at most as it has put fences. Else the slots before were
    collected, so all below was folded. Raises CorruptError if both may be.
    """
    gap = last[0] - below[-1][1] - 1
    if gap >= PARALLEL_WRITES_MAX or _is_folded(last[0] - 1, folded):
        return False
    run = range(last[0], min(last[1], last[0] + PARALLEL_WRITES_MAX) + 1)
    logs = [
        f[0] for _, f in _decoded(context, reader, namespace, run) if not isinstance(f, Damaged)
    ]
    # A fence is put at the first slot that is absent: once, all below was there.
    if not logs or last[1] not in run or any(log.kind is LogKind.FENCE for log in logs):
        return False
    slots = [slot for first, end in below for slot in range(first, end + 1)]
    epoch, fences, is_unfolded = 0, 0, False
    for slot, found in _decoded(context, reader, namespace, slots):
        if isinstance(found, Damaged) or found[0].epoch < epoch:
            continue
        epoch = found[0].epoch
        fences += found[0].kind is LogKind.FENCE and epoch == logs[0].epoch
        is_unfolded |= found[0].kind is LogKind.DATA and not _is_folded(slot, folded)
    if gap >= (fences or PARALLEL_WRITES_MAX):
        return False
    if not is_unfolded:
        raise CorruptError(
            log_key(namespace, last[0]),
            0,
            "to know whether it was committed: no segment is known to be folded from the slots before it",
            f"a gap of {gap} slots, and a writer that may have had {fences} objects in flight; nothing "
            "was changed: restore a manifest from a backup",
        )
    return True


def _is_folded(slot: int, folded: Sequence[tuple[int, int]]) -> bool:
    return any(first <= slot <= end for first, end in folded)


def _decoded(
    context: Context, reader: LogReader, namespace: str, slots: Sequence[int]
) -> Iterator[tuple[int, tuple[LogObject, int, int] | Damaged]]:
    for at in range(0, len(slots), _AT_ONCE):
        some = slots[at : at + _AT_ONCE]
        keys = [log_key(namespace, slot) for slot in some]
        for slot, data in zip(some, context.store.get_many(keys), strict=True):
            if data is not None:
                yield slot, reader.decode(slot, data)


class _Reading:
    """Reads every object once, from the lowest slot on."""

    def __init__(
        self,
        context: Context,
        reader: LogReader,
        namespace: str,
        sizes: Mapping[int, int],
        segments: Collection[str],
    ) -> None:
        self._context = context
        self._reader = reader
        self._namespace = namespace
        self._sizes = sizes
        self._segments = segments
        self._epoch = 0
        self._born = 1
        self._is_packed = True
        self._schema: pa.Schema | None = None
        self._attached: list[tuple[int, tuple[SegmentRef, ...]]] = []
        self._lowest: ChainPoint | None = None
        self._fields: dict[str, pa.Field] = {}
        self._value_bytes_max = 0

    def read(self, below: Sequence[tuple[int, int]], last: tuple[int, int]) -> LogRemains:
        """Return what there is to know."""
        slots = [slot for first, end in below for slot in range(first, end + 1)]
        for _, found in _decoded(self._context, self._reader, self._namespace, slots):
            if not isinstance(found, Damaged) and found[0].epoch >= self._epoch:
                self._take(found[0])
        first, end = last[0], last[1] + 1
        replay: Replay | None = None
        point, is_open = ChainPoint(0, 0, 0), False
        lsn_first = lsn_last = 0
        numbers = range(first, end)
        for slot, decoded in _decoded(self._context, self._reader, self._namespace, numbers):
            if replay is None:
                if isinstance(decoded, Damaged):
                    first = slot + 1
                    continue
                log = decoded[0]
                if log.epoch < self._epoch:
                    continue  # void
                if log.prev.slot:
                    point = ChainPoint(log.prev.slot, log.prev.checksum, self._epoch)
                replay = Replay(point, slot)
            if isinstance(decoded, Damaged):
                replay.add_damaged(decoded)
                continue
            entry = replay.add(*decoded)
            if not entry.is_valid:
                continue
            self._take(entry.log)
            is_open = entry.log.kind is not LogKind.FENCE
            if is_open:
                lsn_first, lsn_last = lsn_first or entry.log.lsn_first, entry.log.lsn_last
            if any(ref.id not in self._segments for ref in _attached_by(entry.log)):
                # Replaced and collected: so all up to here was folded.
                first, point, lsn_first = slot + 1, replay.point, 0
        if replay is None:
            raise CorruptError(
                log_key(self._namespace, first),
                0,
                "a valid log object at the end of the log",
                "none",
            )
        assert self._lowest is not None
        return LogRemains(
            sizes=self._sizes,
            first=first,
            end=end,
            point=point,
            lowest=self._lowest,
            born=self._born,
            epoch=self._epoch,
            lsn_first=lsn_first,
            lsn_last=lsn_last,
            is_packed=self._is_packed,
            schema=self._schema,
            is_open=is_open,
            attached=[ref for slot, refs in self._attached if slot < first for ref in refs],
            fields=self._fields,
            value_bytes_max=self._value_bytes_max,
        )

    def _take(self, log: LogObject) -> None:
        """Take note of a valid object."""
        self._epoch = max(self._epoch, log.epoch)
        if self._lowest is None:
            self._lowest = ChainPoint(log.prev.slot, log.prev.checksum, 0)
        if log.prev.slot == 0 and log.slot > 1:
            self._born, self._schema, self._attached = log.slot, None, []
        if log.kind is not LogKind.FENCE:
            self._is_packed &= unpack_lsn(log.lsn_first)[0] == log.slot
        if log.kind is LogKind.ATTACH:
            self._attached.append((log.slot, _attached_by(log)))
        for record in log.records:
            if record.schema is not None:
                self._schema = record.schema
            if record.batch is not None:
                self._see(record.batch)

    def _see(self, batch: pa.RecordBatch) -> None:
        for column in batch.schema:
            if not column.name.startswith("_"):
                self._fields.setdefault(column.name, column)
        if not self._value_bytes_max and batch.num_rows and batch.num_columns > 2:
            self._value_bytes_max = largest_value(batch)


def attached_until(context: Context, m: Manifest, lsn: int) -> list[SegmentRef]:
    """Return what the log of a namespace attaches from the floor of generation `m` on, up to a version.

    Collection has left those objects, for the branches that stand on `m`. Raises UnavailableError.
    """
    if lsn <= m.last_applied_lsn or m.lsn_policy != "packed":
        return []
    reader = LogReader(context.store, m.namespace, m.lsn_policy)
    slots = [
        slot
        for slot, size in list_slots(context.store, m.namespace).items()
        if slot <= unpack_lsn(lsn)[0] and (slot >= m.wal_floor or size == FENCE_BYTES)
    ]
    epoch, attached = 0, []
    for slot, found in _decoded(context, reader, m.namespace, slots):
        if isinstance(found, Damaged) or found[0].epoch < epoch:
            continue
        epoch = found[0].epoch
        if slot >= m.wal_floor:
            attached += [ref for r in found[0].records if r.lsn <= lsn for ref in r.segments]
    return attached


def _attached_by(log: LogObject) -> tuple[SegmentRef, ...]:
    return tuple(ref for record in log.records for ref in record.segments)


def largest_value(batch: pa.RecordBatch) -> int:
    """Return the bytes of the largest binary value of some rows; 0: there is none."""
    columns = [c for c in batch.columns[2:] if pa.types.is_binary(c.type)]
    return max((len(v.as_py()) for c in columns for v in c if v.is_valid), default=0)
