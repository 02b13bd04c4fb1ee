"""The task of a compaction: one key range of some segments becomes one segment.

Rows stream through: blocks of the inputs are merged, versions that retention does not keep are dropped,
and the rest is written. The task has a small cache of its own and leaves the caches of its process
alone: it reads everything once.

A range with rows always leaves a segment. The segments of a group count their parts: only all of them
together replace what their inputs have in the group's keys. So if a range would come out empty, because
every key of it ends in a tombstone with nothing left to hide, one of these tombstones stays.

Crash points: before the upload is complete there is nothing; after it there is an orphan under the
intent of the job, or the epoch of the writer, whose name no other attempt uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Literal

import msgspec
import numpy as np
import pyarrow as pa

from reef.context import Context
from reef.format import (
    Merged,
    SegmentOptions,
    SegmentOrigin,
    SegmentRef,
    joined_slots,
    pack_numbers,
    slots_of,
    ulid_number,
    vector_columns,
)
from reef.segment import (
    BlockCache,
    SegmentReader,
    SegmentSource,
    keep_versions,
    merge_versions,
    versions_schema,
    write_segment,
)
from reef.types import new_ulid

# A decoded tail takes a few times its size in the file.
_TAIL_GROWTH = 4
_CACHE_BYTES_MIN = 8 << 20

SLOT_RANGES_MAX = 512
"""An output of more separate ranges of slots says that it does not know them."""
REPLACED_BEFORE_MAX = 512
"""So many of the segments that its inputs had replaced an output names, the newest: 8 KiB of every tail
that is read. The rest is known by its slots, which are among those of the output."""


class MergeTask(msgspec.Struct, frozen=True):
    """One key range to merge."""

    namespace: str
    job: str
    """Who publishes the output, as its id says: an intent, or `e` and the epoch of a writer."""
    group: int
    part: tuple[int, int]
    inputs: tuple[SegmentRef, ...]
    """The segments that have keys in the range."""
    replaced: tuple[str, ...]
    """Their ids, each once."""
    start: bytes
    end: bytes
    """Exclusive."""
    floor_lsn: int
    points: tuple[int, ...]
    is_bottom: bool
    codec: Literal["lz4", "zstd"]
    level: int
    bytes_in: int
    is_packed: bool = True
    """Whether versions tell slots."""


class MergedRange(msgspec.Struct, frozen=True):
    """What a task made of its range."""

    namespace: str
    group: int
    part: tuple[int, int]
    segment: SegmentRef | None
    """None: the inputs show no row of the range."""
    rows_in: int
    rows_out: int
    bytes_in: int
    """Bytes of the blocks that the range is in."""
    bytes_out: int


def merge_range(context: Context, task: MergeTask) -> MergedRange:
    """Write the versions of a key range that retention keeps as one segment.

    Raises NotFoundError if an input is gone, UnavailableError, DamagedError.
    """
    sources = open_sources(context, task.namespace, task.inputs)
    counted = _CountedRows(merge_versions(sources, start=task.start, end=task.end))
    kept = keep_versions(
        counted, floor_lsn=task.floor_lsn, points=task.points, is_bottom=task.is_bottom
    )
    first = next(kept, None)
    if first is None:
        first = counted.tombstone
    segment = None
    if first is not None:
        segment = _write_outputs(context, task, sources, chain((first,), kept))
    weights = (key_weights(source, task.start, task.end) for source in sources)
    return MergedRange(
        task.namespace,
        task.group,
        task.part,
        segment,
        counted.rows,
        0 if segment is None else segment.rows,
        sum(weight for some in weights for _, weight in some),
        0 if segment is None else segment.size,
    )


def open_sources(
    context: Context, namespace: str, refs: Sequence[SegmentRef]
) -> list[SegmentSource]:
    """Return segments to read once: their tails in memory, and a cache of their own."""
    tails = sum(ref.footer_length for ref in refs)
    cache = BlockCache(_CACHE_BYTES_MIN + _TAIL_GROWTH * tails, metrics=context.metrics)
    reader = SegmentReader(context.store, namespace, cache=cache, metrics=context.metrics)
    reader.prefetch_tails(refs)
    return [reader.open(ref) for ref in refs]


def key_weights(
    source: SegmentSource, start: bytes = b"", end: bytes | None = None, *, step_bytes: int = 1
) -> list[tuple[bytes, int]]:
    """Return keys of a segment from `start` up to `end`, and about how many bytes follow each.

    They are first keys of row blocks, about `step_bytes` apart. Needs only the tail.
    """
    tail = source.tail()
    low = max(start, source.key_min)
    high = source.key_end if end is None else min(end, source.key_end)
    blocks = tail.blocks_of(low, high)
    if low >= high or not blocks:
        return []
    rows = tail.row_places.rows[blocks.start : blocks.stop]
    sizes = tail.row_places.length[blocks.start : blocks.stop].astype(np.float64)
    for places in tail.column_places.values():
        sizes += rows * (places.length.sum() / tail.footer.rows)
    steps = np.cumsum(sizes) // step_bytes
    firsts = np.flatnonzero(np.append(True, steps[1:] != steps[:-1]))
    sums = np.add.reduceat(sizes, firsts).astype(np.int64)
    keys = (tail.ranges.key_first[blocks.start + i] for i in firsts.tolist())
    return [(max(key, low), size) for key, size in zip(keys, sums.tolist(), strict=True)]


def _write_outputs(
    context: Context,
    task: MergeTask,
    sources: Sequence[SegmentSource],
    rows: Iterator[pa.RecordBatch],
) -> SegmentRef:
    schema = versions_schema(sources)
    origin = SegmentOrigin(
        id=f"{new_ulid(context.clock, context.rng)}-{task.job}",
        namespace=task.namespace,
        level=task.level,
        author=context.author,
        created_at_us=context.clock.now_us(),
        replaced_segments=task.replaced,
        part=task.part,
        merged=_merged(task, sources),
    )
    options = SegmentOptions(
        codec=task.codec,
        wide=_wide(sources, schema),
        row_block_bytes=context.settings.row_block_bytes,
    )
    return write_segment(context.store, task.namespace, schema, origin, options, rows)


def _merged(task: MergeTask, sources: Sequence[SegmentSource]) -> Merged:
    """Return what the output stands for: the union of what its inputs do."""
    slots: list[tuple[int, int]] = []
    before: set[int] = set()
    is_whole, is_short = True, False
    for source in sources:
        footer = source.tail().footer
        spans = slots_of(footer, source.ref, is_packed=task.is_packed)
        slots += spans or ()
        is_whole &= spans is not None
        before |= footer.replaced_numbers()
        is_short |= footer.merged is not None and footer.merged.is_short
    before -= set(map(ulid_number, task.replaced))
    newest = sorted(before, reverse=True)[:REPLACED_BEFORE_MAX]
    joined = joined_slots(slots)
    if not is_whole or len(joined) > SLOT_RANGES_MAX:
        is_whole, joined = False, ()
    is_short |= len(newest) < len(before)
    return Merged(task.start, task.end, joined, is_whole, pack_numbers(newest), is_short)


def _wide(sources: Sequence[SegmentSource], schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns with blocks of their own: vectors, and those that had them in an input."""
    wide = set(vector_columns(schema))
    for source in sources:
        wide.update(source.tail().footer.wide)
    return tuple(name for name in schema.names if name in wide)


class _CountedRows:
    """Passes batches on, counts their rows, and keeps one tombstone of them."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.rows = 0
        self.tombstone: pa.RecordBatch | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            if self.tombstone is None and batch.column(2).true_count:
                at = batch.column(2).index(True).as_py()
                # A copy: a slice would keep all of the batch alive.
                self.tombstone = batch.take(pa.array([at]))
            yield batch
