"""Runs that overlap in keys never overlap in LSNs: a compaction merges LSN-adjacent runs only.

If it passed over a run in between, a tombstone could be dropped in front of the version it hides.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def _overlap(kept: SegmentRef, output: SegmentRef) -> bool:
    low, high = keys_seen(kept)
    return (
        kept.lsn_min <= output.lsn_max
        and lsn_max_seen(kept) >= output.lsn_min
        and low <= output.key_max
        and high > output.key_min
    )


def keys_seen(s: SegmentRef) -> tuple[bytes, bytes]:
    """Return the least key that a reference lets be seen, and where its keys end (exclusive)."""
    low, high = max(s.key_min, s.clip_key_min or b""), s.key_max + b"\0"
    return low, high if s.clip_key_max is None else min(high, s.clip_key_max)


def lsn_max_seen(s: SegmentRef) -> int:
    """Return the newest version that a reference may let be seen."""
    return s.lsn_max if s.clip_lsn is None else min(s.lsn_max, s.clip_lsn)
