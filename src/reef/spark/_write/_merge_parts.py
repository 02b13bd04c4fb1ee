"""Parts of a load that have keys in common → parts that have none, as an attach needs them.

Every part is sorted by itself. They are merged by a few at a time, in the order of their numbers, so
that of equal keys the part with the higher number has the later row; the result is written under the same
intent, and the inputs are left to collection. Memory holds what a scan holds of each part
that is merged at once, about 16 MiB, and a piece of each that is still in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

import msgspec
import pyarrow as pa

from reef.engine import Context
from reef.format import SegmentRef
from reef.jobs.load import LoadedPart, LoadPlan, write_part
from reef.segment import UniqueKeys, align, merge_runs
from reef.types import LSN_MAX

FAN_IN = 16

Run: TypeAlias = Callable[[], Iterator[pa.RecordBatch]]
"""Gives rows in order of keys, in the columns of the load, each time anew."""


def are_disjoint(parts: Sequence[LoadedPart]) -> bool:
    """Return whether no key can be in two of the segments of `parts`."""
    refs = sorted((ref for part in parts for ref in part.segments), key=lambda ref: ref.key_min)
    return all(ref.key_max < other.key_min for ref, other in pairwise(refs))


def merge_parts(context: Context, plan: LoadPlan, runs: Sequence[Run | LoadedPart]) -> LoadedPart:
    """Write the rows of `runs` anew, in one order, as the part that they make together.

    Raises InvalidInputError for a key that is in two of them, unless the last is to stay;
    NotFoundError, UnavailableError, DamagedError.
    """
    dropped = 0
    while len(runs) > FAN_IN:
        merged = [
            _merge_some(context, plan, runs[first : first + FAN_IN])
            for first in range(0, len(runs), FAN_IN)
        ]
        dropped += sum(part.dropped for part in merged)
        runs = merged
    last = _merge_some(context, plan, runs)
    return msgspec.structs.replace(last, dropped=last.dropped + dropped)


def merged_rows(
    context: Context, plan: LoadPlan, runs: Sequence[Run | LoadedPart], unique: UniqueKeys
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `runs` in order of keys, each once. At most `FAN_IN` runs."""
    opened = [
        part_rows(context, plan, run) if isinstance(run, LoadedPart) else run() for run in runs
    ]
    return unique.batches(merge_runs(opened))


def part_rows(context: Context, plan: LoadPlan, part: LoadedPart) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part, in order of keys. Raises NotFoundError, UnavailableError."""
    segments = context.segments(plan.namespace)
    schema = plan.row_schema

    def rows(ref: SegmentRef) -> Iterator[pa.RecordBatch]:
        return segments.open(ref).batches(b"", None, columns=None, reverse=False, lsn=LSN_MAX)

    return (
        align(batch, schema)
        for ref in sorted(part.segments, key=lambda ref: ref.key_min)
        for batch in rows(ref)
        if batch.num_rows
    )


def _merge_some(context: Context, plan: LoadPlan, runs: Sequence[Run | LoadedPart]) -> LoadedPart:
    if len(runs) == 1 and isinstance(runs[0], LoadedPart):
        return msgspec.structs.replace(runs[0], dropped=0)
    unique = UniqueKeys(plan.duplicates)
    part = write_part(context, plan, merged_rows(context, plan, runs, unique))
    return msgspec.structs.replace(part, dropped=part.dropped + unique.dropped)
