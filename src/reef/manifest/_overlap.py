"""Runs that overlap in keys never overlap in LSNs: a compaction merges LSN-adjacent runs only.

If it passed over a run in between, a tombstone could be dropped in front of the version it hides.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from reef.errors import InvariantError
from reef.format import SegmentRef


def check_adjacent(
    inputs: Sequence[SegmentRef], outputs: Sequence[SegmentRef], kept: Sequence[SegmentRef]
) -> None:
    """Raise InvariantError if outputs reach beyond the inputs, or across a run that stays."""
    if not inputs:
        raise InvariantError("a compaction without inputs; nothing was written")
    low = min(s.lsn_min for s in inputs)
    high = max(map(lsn_max_seen, inputs))
    for output in outputs:
        if output.lsn_min < low or output.lsn_max > high:
            raise InvariantError(
                f"segment {output.id} holds LSNs {output.lsn_min} to {output.lsn_max}, its inputs "
                f"only {low} to {high}; nothing was written"
            )
    between = [s for s in kept if s.lsn_min <= high and lsn_max_seen(s) >= low]
    for segment in between:
        for output in outputs:
            if _overlap(segment, output):
                raise InvariantError(
                    f"segment {output.id} with LSNs {output.lsn_min} to {output.lsn_max} would lie "
                    f"across {segment.id} with {segment.lsn_min} to {lsn_max_seen(segment)}, which has "
                    "keys in common with it and was no input; nothing was written"
                )


def overlaps(refs: Sequence[SegmentRef]) -> Iterator[tuple[SegmentRef, SegmentRef]]:
    """Yield pairs that have keys and LSNs in common; each segment is paired at most once as the newer.

    Attached segments are left out: they take the version of their slot, and a flush around it has
    versions on both sides.
    """
    plain = [ref for ref in refs if ref.version is None]
    active: list[tuple[bytes, bytes, SegmentRef]] = []
    ends: list[tuple[int, bytes, str]] = []
    for ref in sorted(plain, key=lambda ref: (ref.lsn_min, ref.key_min)):
        while ends and ends[0][0] < ref.lsn_min:
            _, low, id = heapq.heappop(ends)
            at = bisect_left(active, low, key=lambda one: one[0])
            while at < len(active) and active[at][2].id != id:
                at += 1
            del active[at : at + 1]
        low, high = keys_seen(ref)
        at = bisect_left(active, low, key=lambda one: one[0])
        if at and active[at - 1][1] > low:
            yield active[at - 1][2], ref
        elif at < len(active) and active[at][0] < high:
            yield active[at][2], ref
        active.insert(at, (low, high, ref))
        heapq.heappush(ends, (lsn_max_seen(ref), low, ref.id))


def _overlap(kept: SegmentRef, output: SegmentRef) -> bool:
    low, high = keys_seen(kept)
    return (
        kept.lsn_min <= output.lsn_max
        and lsn_max_seen(kept) >= output.lsn_min
        and low <= output.key_max
        and high > output.key_min
    )


def keys_seen(s: SegmentRef) -> tuple[bytes, bytes]:
    """Return the least key that a reference shows, and where its keys end (exclusive)."""
    low, high = max(s.key_min, s.clip_key_min or b""), s.key_max + b"\0"
    return low, high if s.clip_key_max is None else min(high, s.clip_key_max)


def lsn_max_seen(s: SegmentRef) -> int:
    """Return the newest version that a reference may show."""
    return s.lsn_max if s.clip_lsn is None else min(s.lsn_max, s.clip_lsn)
