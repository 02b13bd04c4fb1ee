"""Key ranges of a compaction: how much lies where, and where to cut.

Sizes and cuts come from the manifest, and from the tails of segments where it does not tell enough: of
segments that are cut inside, and of those whose reference is clipped. Tails are read a few at a time, so
that the driver has few of them in memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby, pairwise
from typing import TypeAlias

import msgspec

from reef.compaction._compaction_options import CompactionOptions
from reef.compaction._merge_task import key_weights, open_sources
from reef.context import Context
from reef.errors import NotFoundError, UnreadableError
from reef.format import Manifest, SegmentRef
from reef.segment import Clip, SegmentSource

# Segments smaller than this share of a file are cut at their bounds, larger ones at blocks.
_CUTS_PER_FILE = 8
_TAILS_BYTES = 64 << 20
"""About how many bytes of tails are in memory at once."""
# A range is up to a block of each run larger than wanted; with `max_bytes` it must not be.
_BOUNDED_SHARE = 0.8


class KeyRange(msgspec.Struct, frozen=True):
    """Keys of a group that one task merges."""

    start: bytes
    end: bytes
    """Exclusive."""
    bytes_in: int
    """About how many bytes are read."""
    is_bottom: bool
    """Whether no older run outside of the group can have any of these keys."""


class VisibleSegment(Clip):
    """The part of a segment that its reference shows, and about how many bytes that is."""

    __slots__ = ("size",)

    def __init__(self, ref: SegmentRef) -> None:
        super().__init__("", ref)
        self.size = ref.size

    @property
    def is_cut(self) -> bool:
        """Whether the reference hides some keys of the segment."""
        return self.key_min > self.ref.key_min or self.key_end <= self.ref.key_max


def visible_segments(context: Context, manifest: Manifest) -> list[VisibleSegment]:
    """Return the live segments. Reads the tails of those that are shown only in part."""
    segments = [VisibleSegment(ref) for ref in manifest.segments]
    cut = [one for one in segments if one.is_cut]
    try:
        for one, source in _open_segments(context, manifest.namespace, cut):
            one.size = max(1, sum(weight for _, weight in key_weights(source)))
    except (NotFoundError, UnreadableError):
        pass  # its task will report it; until then it counts as whole
    return segments


def total(segments: Sequence[VisibleSegment]) -> int:
    """Return about how many bytes references show of segments."""
    return sum(one.size for one in segments)


def bounds(segments: Sequence[VisibleSegment]) -> tuple[bytes, bytes]:
    """Return the least key of some segments, and the end of their keys (exclusive)."""
    return min(one.key_min for one in segments), max(one.key_end for one in segments)


def components(segments: Sequence[VisibleSegment]) -> Iterator[list[VisibleSegment]]:
    """Yield segments whose keys overlap, directly or through others, together, in order of keys."""
    component: list[VisibleSegment] = []
    high = b""
    for one in sorted(segments, key=lambda one: one.key_min):
        if component and one.key_min >= high:
            yield component
            component = []
        component.append(one)
        high = max(high, one.key_end)
    if component:
        yield component


def depth(segments: Sequence[VisibleSegment], low: bytes = b"", high: bytes | None = None) -> int:
    """Return how many segments have one key from `low` up to `high` in their range, at most."""
    inside = in_key_range(segments, low, high)
    lows = sorted(max(low, one.key_min) for one in inside)
    highs = sorted(one.key_end for one in inside)
    return max((i + 1 - bisect_right(highs, at) for i, at in enumerate(lows)), default=0)


def in_key_range(
    segments: Sequence[VisibleSegment], low: bytes, high: bytes | None
) -> list[VisibleSegment]:
    """Return the segments that may show a key from `low` up to `high`."""
    return [one for one in segments if one.key_end > low and (high is None or one.key_min < high)]


class Covered:
    """The keys that some segments may hold."""

    def __init__(self, segments: Sequence[VisibleSegment]) -> None:
        ranges = [bounds(component) for component in components(segments)]
        self._lows = [low for low, _ in ranges]
        self._highs = [high for _, high in ranges]

    def overlaps(self, start: bytes, end: bytes) -> bool:
        """Return whether any of them may hold a key from `start` up to `end`."""
        at = bisect_right(self._highs, start)
        return at < len(self._lows) and self._lows[at] < end


def inside_each(
    segments: Sequence[VisibleSegment], ranges: Sequence[tuple[bytes, bytes]]
) -> Iterator[list[VisibleSegment]]:
    """Yield for each of some ranges, in order of keys, the segments that may show any key of it."""
    waiting = sorted(segments, key=lambda one: one.key_min, reverse=True)
    reached: list[VisibleSegment] = []
    for start, end in ranges:
        while waiting and waiting[-1].key_min < end:
            reached.append(waiting.pop())
        reached = [one for one in reached if one.key_end > start]
        yield list(reached)


def part_bytes(options: CompactionOptions) -> int:
    """Return about how much one task is to read."""
    if options.max_bytes is None or options.max_bytes > options.target_bytes:
        return options.target_bytes
    return max(1, int(options.max_bytes * _BOUNDED_SHARE))


def cut_ranges(
    context: Context,
    namespace: str,
    segments: Sequence[VisibleSegment],
    low: bytes,
    high: bytes,
    older: Covered,
    options: CompactionOptions,
) -> tuple[KeyRange, ...]:
    """Cut the keys from `low` up to `high` into ranges of about the same size.

    None is much larger than `part_bytes`.
    """
    most = part_bytes(options)
    is_whole = (low, high) == bounds(segments)
    target = options.target_bytes
    if is_whole and total(segments) <= min(target, options.max_bytes or target):
        return (KeyRange(low, high, total(segments), not older.overlaps(low, high)),)
    step = max(1, most // _CUTS_PER_FILE)
    weights: list[_Weight] = []
    for one in segments:
        if one.size <= step:
            key = max(low, one.key_min)
            weights.append((key, one.size, _has_row_at(one, key, low)))
    large = [one for one in segments if one.size > step]
    for one, source in _open_segments(context, namespace, large):
        for key, weight in key_weights(source, low, high, step_bytes=step):
            weights.append((key, weight, _has_row_at(one, key, low)))
    size = total(segments) if is_whole else sum(weight for _, weight, _ in weights)
    cuts, sizes = _cut_by_weight(sorted(weights), low, high, max(1, -(-size // most)))
    return tuple(
        KeyRange(start, end, some_bytes, not older.overlaps(start, end))
        for (start, end), some_bytes in zip(pairwise(cuts), sizes, strict=True)
    )


def _open_segments(
    context: Context, namespace: str, segments: Sequence[VisibleSegment]
) -> Iterator[tuple[VisibleSegment, SegmentSource]]:
    """Yield segments with their tails in memory, a few of them at a time."""
    ends = accumulate(one.ref.footer_length for one in segments)
    numbered = zip(segments, ends, strict=True)
    for _, group in groupby(numbered, key=lambda pair: pair[1] // _TAILS_BYTES):
        some = [one for one, _ in group]
        yield from zip(
            some, open_sources(context, namespace, [one.ref for one in some]), strict=True
        )


_Weight: TypeAlias = tuple[bytes, int, bool]
"""A key, about how many bytes follow, and whether there is certainly a row of that key."""


def _has_row_at(one: VisibleSegment, key: bytes, low: bytes) -> bool:
    """Return whether the first key of a segment, or of a block, is visible from `low` on."""
    ref = one.ref
    is_whole = ref.clip_lsn is None or ref.clip_lsn >= ref.lsn_max
    return is_whole and key < one.key_end and (key > max(low, one.key_min) or key == ref.key_min)


def _cut_by_weight(
    weights: Sequence[_Weight], low: bytes, high: bytes, count: int
) -> tuple[list[bytes], list[int]]:
    """Return up to `count` + 1 keys from `low` to `high`, and the weight between each two.

    There is a row between each two keys: a task without rows would leave no segment, and the parts of
    a group are counted before its tasks run.
    """
    whole = sum(weight for _, weight, _ in weights)
    cuts, sizes, done, since = [low], [], 0, 0
    row: bytes | None = None
    for key, weight, is_row in weights:
        is_due = done * count // max(1, whole) >= len(cuts)
        if is_due and is_row and row is not None and row < key < high:
            cuts.append(key)
            sizes.append(since)
            since, row = 0, key
        if is_row and row is None:
            row = key
        done += weight
        since += weight
    return [*cuts, high], [*sizes, since]
