"""The plan of a compaction: made from the manifest alone, and a plain value that can be kept.

*Tiers* are live segments whose LSNs overlap, newest first: LSNs of different tiers never do. A tier is
one sorted run, or several where a part of the keys was compacted, or segments were attached, among
others. A *window* is some tiers in a row, so whatever is merged in it is LSN-adjacent. Within a window,
segments whose keys overlap, directly or through others, form a *component*: components know nothing
of each other. What is rewritten is one component, or small ones side by side. Its keys are cut into
*ranges* of about the target size; each range is one task and becomes one segment.

Neighbouring ranges form a *group*, up to a size. One manifest publishes it, and names its outputs instead
of what its inputs have between its first key and its last. So the groups of a large component are done
one after the other, in any order, and a published group stays whatever happens to the others: the rest
of an input is a reference clipped to the other keys. In the next plan the outputs and the rest are one
tier, in which the rest is a component by itself: the next compaction goes on from there.

Unless everything is rewritten (`full`), a window takes tiers from the newest on, as long as the next is
not much larger than those before it together: so a row is rewritten only as often as its namespace
grows by half. Of a window these are rewritten: components that are `min_input_files` runs deep,
components that an earlier compaction has left in part, and stretches of as many files that are too
small. A component that is one file of a good size stays; if it is at level 0, its level is raised: it is
moved, not rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from reef.compaction._compaction_options import CompactionOptions
from reef.compaction._key_ranges import (
    Covered,
    KeyRange,
    VisibleSegment,
    bounds,
    components,
    cut_ranges,
    depth,
    in_key_range,
    inside_each,
    total,
    visible_segments,
)
from reef.context import Context
from reef.format import Manifest, SegmentRef

LEVEL_MAX = 255
GOOD_SIZE = 0.75
"""A file of this share of the target size is large enough to stay."""

SIZE_RATIO = 1.5
"""How much larger than those before it together the next tier of a window may be."""

_Segments: TypeAlias = Sequence[VisibleSegment]


class CompactionGroup(msgspec.Struct, frozen=True):
    """Segments that are replaced together: all of them, or what they have in the ranges."""

    number: int
    inputs: tuple[SegmentRef, ...]
    ranges: tuple[KeyRange, ...]
    """Neighbours, in order of keys."""
    moves: tuple[SegmentRef, ...]
    """Segments that are moved to `level` as they are."""
    level: int
    bytes_in: int
    reason: str

    @property
    def keys(self) -> tuple[bytes, bytes]:
        """The first key that is merged, and the end of the keys (exclusive)."""
        return self.ranges[0].start, self.ranges[-1].end


class CompactionPlan(msgspec.Struct, frozen=True):
    """What one pass over a namespace would rewrite. Can be kept as JSON and applied later."""

    namespace: str
    generation: int
    """The head that it was planned on; later changes are noticed when it is carried out."""
    options: CompactionOptions
    groups: tuple[CompactionGroup, ...]
    skipped: tuple[str, ...] = ()
    """What is not rewritten though it should be, and why."""
    is_partial: bool = False
    """Whether a full compaction needs another plan: there are more runs than a task may merge."""

    @property
    def bytes_in(self) -> int:
        """About how many bytes are read."""
        return sum(group.bytes_in for group in self.groups)


def plan_groups(
    context: Context,
    manifest: Manifest,
    options: CompactionOptions,
    *,
    window_bytes_max: int | None = None,
    spared: Set[str] = frozenset(),
) -> CompactionPlan | None:
    """Return what a compaction would do, or None if there is nothing to do. Writes nothing.

    `options` are settled. A window larger than `window_bytes_max` is skipped; the segments `spared`,
    and all that are older, are left alone. Reads tails of segments that are clipped, or will be cut.
    Raises UnavailableError, DamagedError.
    """
    namespace = manifest.namespace
    tiers = tiers_of(visible_segments(context, manifest))
    is_spared = (any(one.ref.id in spared for one in tier) for tier in tiers)
    free = tiers[: next((at for at, spare in enumerate(is_spared) if spare), len(tiers))]
    windows = _tier_windows(free, options, window_bytes_max)
    plan = _GroupBuilder(context, namespace, options)
    for first, end in windows:
        plan.add(tiers[first:end], Covered([one for tier in tiers[end:] for one in tier]))
    if window_bytes_max is not None:
        plan.skipped += _too_large(free, options, windows)
    if not plan.groups and not plan.skipped:
        return None
    return CompactionPlan(
        namespace,
        manifest.generation,
        options,
        tuple(plan.groups),
        tuple(plan.skipped),
        is_partial=options.full and len(windows) > 1 and options.max_bytes is None,
    )


@dataclass(frozen=True)
class _Candidate:
    """Segments that are worth rewriting, from one key up to another."""

    segments: _Segments
    low: bytes
    high: bytes
    reason: str


class _GroupBuilder:
    """The groups of a plan so far, and how many bytes may still be read."""

    def __init__(self, context: Context, namespace: str, options: CompactionOptions) -> None:
        self._context = context
        self._namespace = namespace
        self._options = options
        self._room = options.max_bytes
        self._is_short = False
        self.groups: list[CompactionGroup] = []
        self.skipped: list[str] = []

    def add(self, window: Sequence[_Segments], older: Covered) -> None:
        """Add what is worth rewriting of some tiers, as far as there is room."""
        level = _level(window)
        first = len(self.groups)
        moves: list[VisibleSegment] = []
        for chosen in _in_turn(_candidate_groups(window, self._options, moves), self._options):
            ranges = self._fitting(chosen, older)
            keys = [(some[0].start, some[-1].end) for some in ranges]
            for some, inside in zip(ranges, inside_each(chosen.segments, keys), strict=True):
                refs = tuple(one.ref for one in inside)
                size = sum(one.bytes_in for one in some)
                number = len(self.groups)
                self.groups.append(
                    CompactionGroup(number, refs, some, (), level, size, chosen.reason)
                )
        moved = tuple(one.ref for one in moves)
        if moved and len(self.groups) > first:
            self.groups[first] = msgspec.structs.replace(self.groups[first], moves=moved)
        elif moved:
            reason = "no other has any of their keys"
            self.groups.append(CompactionGroup(first, (), (), moved, level, 0, reason))

    def _fitting(self, chosen: _Candidate, older: Covered) -> list[tuple[KeyRange, ...]]:
        """Return the ranges of a candidate that there is room for, those of a group together."""
        if self._is_short and total(chosen.segments) > (self._room or 0):
            self._skip(chosen, total(chosen.segments), chosen.low)
            return []
        ranges = cut_ranges(
            self._context,
            self._namespace,
            chosen.segments,
            chosen.low,
            chosen.high,
            older,
            self._options,
        )
        groups: list[tuple[KeyRange, ...]] = []
        group: list[KeyRange] = []
        size = 0
        for at, one in enumerate(ranges):
            if self._room is not None and one.bytes_in > self._room:
                self._is_short = True
                self._skip(chosen, sum(some.bytes_in for some in ranges[at:]), one.start)
                break
            if group and size + one.bytes_in > self._options.group_size_bytes:
                groups.append(tuple(group))
                group, size = [], 0
            group.append(one)
            size += one.bytes_in
            if self._room is not None:
                self._room -= one.bytes_in
        return [*groups, tuple(group)] if group else groups

    def _skip(self, chosen: _Candidate, size: int, start: bytes) -> None:
        where = "" if start == chosen.low else f", from key {start!r} on"
        self.skipped.append(
            f"{len(in_key_range(chosen.segments, start, chosen.high))} segments of {size} bytes{where}: "
            f"more than is left of max_bytes, {self._options.max_bytes}"
        )


def tiers_of(segments: _Segments) -> list[list[VisibleSegment]]:
    """Return segments, newest first, those whose LSNs overlap together."""
    tiers: list[list[VisibleSegment]] = []
    oldest = 0
    for one in sorted(segments, key=lambda one: one.lsn_max, reverse=True):
        if tiers and one.lsn_max >= oldest:
            tiers[-1].append(one)
            oldest = min(oldest, one.lsn_min)
        else:
            tiers.append([one])
            oldest = one.lsn_min
    return tiers


def _too_large(
    tiers: Sequence[_Segments], options: CompactionOptions, windows: Sequence[tuple[int, int]]
) -> Iterator[str]:
    """Yield the windows that a bound on their size has ruled out altogether."""
    for first, end in _tier_windows(tiers, options):
        if not any(low < end and high > first for low, high in windows):
            segments = [one for tier in tiers[first:end] for one in tier]
            yield f"{len(segments)} segments of {total(segments)} bytes"


def _tier_windows(
    tiers: Sequence[_Segments], options: CompactionOptions, bytes_max: int | None = None
) -> list[tuple[int, int]]:
    """Return the first tier and the end of each window.

    With `full` they cover all tiers: one does, unless that is more than a task may merge.
    """
    sizes = [total(tier) for tier in tiers]
    windows: list[tuple[int, int]] = []
    first = 0
    while first < len(tiers):
        end, size = first + 1, sizes[first]
        inside = list(tiers[first])
        while (
            end < len(tiers)
            and (options.full or sizes[end] <= size * SIZE_RATIO)
            and (bytes_max is None or size + sizes[end] <= bytes_max)
            and _fits(inside, tiers[end], options)
        ):
            size += sizes[end]
            inside += tiers[end]
            end += 1
        is_worth = len(inside) >= options.inputs_min or any(one.is_cut for one in inside)
        is_worth = is_worth and (bytes_max is None or size <= bytes_max)
        if options.full or is_worth:
            windows.append((first, end))
            first = end
        else:
            first += 1
    return windows


def _fits(inside: _Segments, more: _Segments, options: CompactionOptions) -> bool:
    """Return whether a task may merge all of them."""
    together = [*inside, *more]
    return len(together) <= options.runs_max or depth(together) <= options.runs_max


def _candidate_groups(
    window: Sequence[_Segments], options: CompactionOptions, moves: list[VisibleSegment]
) -> Iterator[_Candidate]:
    """Yield what is worth rewriting of some tiers; add what is only moved to `moves`."""
    for segments in _component_groups(window, options, moves):
        low, high = _keys_to_rewrite(segments, options)
        inside = in_key_range(segments, low, high)
        reason = _reason(inside, low, high, options)
        if reason:
            yield _Candidate(inside, low, high, reason)


def _in_turn(chosen: Iterator[_Candidate], options: CompactionOptions) -> list[_Candidate]:
    """Return candidates in order: if there is no room for all, what no pass has rewritten comes first."""
    listed = list(chosen)
    if options.full and options.max_bytes is not None:
        listed.sort(key=lambda one: (depth(one.segments) < 2, min(_levels(one.segments)) > 0))
    return listed


def _component_groups(
    window: Sequence[_Segments], options: CompactionOptions, moves: list[VisibleSegment]
) -> Iterator[list[VisibleSegment]]:
    """Yield neighbouring components together, up to the target size."""
    neighbours: list[VisibleSegment] = []
    for component in components([one for tier in window for one in tier]):
        is_settled = (
            not options.full and len(component) == 1 and not _is_below_target(component[0], options)
        )
        is_in_range = _is_in_range(component, options)
        if neighbours and (
            is_settled or not is_in_range or not _has_room(neighbours, component, options)
        ):
            # Components on both sides of a segment that stays are not joined.
            yield neighbours
            neighbours = []
        if is_settled or not is_in_range:
            if is_settled and is_in_range and component[0].ref.level == 0:
                moves += component
            continue
        neighbours += component
        if total(neighbours) >= options.target_bytes:
            yield neighbours
            neighbours = []
    if neighbours:
        yield neighbours


def _has_room(neighbours: _Segments, more: _Segments, options: CompactionOptions) -> bool:
    """Return whether one pass may read both, so that the next does not begin with its outputs."""
    return options.max_bytes is None or total(neighbours) + total(more) <= options.max_bytes


def _reason(segments: _Segments, low: bytes, high: bytes, options: CompactionOptions) -> str:
    """Return why segments are worth rewriting; "" if they are not."""
    if options.full:
        return "everything is rewritten"
    runs = depth(segments, low, high)
    if runs >= min(options.inputs_min, options.runs_max):
        return f"{runs} runs have keys in common"
    if runs > 1 and any(one.is_cut for one in segments):
        return f"the rest of {runs} runs that were compacted in part"
    small = sum(_is_below_target(one, options) for one in segments)
    if small >= options.inputs_min:
        return f"{small} files are too small"
    return ""


def _level(window: Sequence[_Segments]) -> int:
    """Return the level of the outputs of a window: one up if runs of one level are merged."""
    levels = _levels([one for tier in window for one in tier])
    is_up = len(window) > 1 and len(levels) == 1
    return min(LEVEL_MAX, max(1, max(levels) + is_up))


def _levels(segments: _Segments) -> set[int]:
    return {one.ref.level for one in segments}


def _is_below_target(one: VisibleSegment, options: CompactionOptions) -> bool:
    return one.size < options.target_bytes * GOOD_SIZE


def _is_in_range(component: _Segments, options: CompactionOptions) -> bool:
    """Return whether a component has keys between the `start` and `end` of the options."""
    low, high = bounds(component)
    return high > options.start and (options.end is None or low < options.end)


def _keys_to_rewrite(segments: _Segments, options: CompactionOptions) -> tuple[bytes, bytes]:
    """Return the keys of segments that are rewritten: all of them if they become one file.

    What is larger is cut at the `start` and `end` of the options.
    """
    low, high = bounds(segments)
    if total(segments) <= options.target_bytes:
        return low, high
    return max(low, options.start), high if options.end is None else min(high, options.end)
