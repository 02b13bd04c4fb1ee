"""What a compaction would do: chosen from the manifest alone, and a plain value that can be kept.

*Tiers* are live segments whose LSNs overlap, newest first: LSNs of different tiers never do. A tier is
one sorted run, or several where a part of the keys was compacted, or segments were attached, among
others. A *window* is some tiers in a row, so whatever is merged in it is LSN-adjacent. Within a window,
segments whose keys overlap, directly or through others, form a *component*: components know nothing
of each other, so each can be rewritten and published by itself. A *group* is one component, or small
ones side by side, and is replaced as a whole by one manifest. Its keys are cut into *ranges* of about
the target size; each range is one task and becomes one segment.

What is chosen, unless everything is (`full`): from the newest tier on, tiers as long as the next is not
much larger than those before it together, so that a row is rewritten only as often as its namespace
grows by half; of them the components that are `min_input_files` runs deep, and
stretches of as many files that are too small. A component that is one file of a good size is
left where it is; if it is fresh, its level is raised: it is moved, not rewritten.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

import msgspec

from reef.engine import Context
from reef.errors import NotFoundError
from reef.format import Manifest, SegmentRef
from reef.pipeline._compact_options import CompactionOptions
from reef.pipeline._compact_task import key_weights, open_sources
from reef.segment._clip import Clipped

__all__ = [
    "CompactionOptions",
    "CompactionPlan",
    "Group",
    "KeyRange",
    "plan_compaction",
    "plan_on",
    "tiers_of",
]

LEVEL_MAX = 255
GOOD_SIZE = 0.75
"""Of the target size: a file as large as that is not worth rewriting for its size."""

SIZE_RATIO = 1.5
"""How much larger than those before it together the next tier of a window may be."""

# How finely a group is cut: by bounds of segments if they are as small as that, else by blocks.
_CUTS_PER_FILE = 8


_Segments: TypeAlias = Sequence[Clipped]
"""Segments as their references let them be seen."""


class KeyRange(msgspec.Struct, frozen=True):
    """A stretch of a group's keys: what one task merges."""

    start: bytes
    end: bytes
    """Exclusive."""
    bytes_in: int
    """About so many are read."""
    is_bottom: bool
    """Whether no older run outside of the group can hold any of these keys."""


class Group(msgspec.Struct, frozen=True):
    """Segments that are replaced together."""

    number: int
    inputs: tuple[SegmentRef, ...]
    ranges: tuple[KeyRange, ...]
    moves: tuple[SegmentRef, ...]
    """Segments that go to `level` as they are."""
    level: int
    bytes_in: int
    reason: str


class CompactionPlan(msgspec.Struct, frozen=True):
    """What one pass over a namespace would rewrite. Can be kept as JSON and applied later."""

    namespace: str
    generation: int
    """It was planned on; what has changed since is noticed when it is applied."""
    options: CompactionOptions
    groups: tuple[Group, ...]
    skipped: tuple[str, ...] = ()
    """What would have been rewritten too, and why it is not."""
    is_partial: bool = False
    """Whether a full compaction takes another pass: there are more runs than a task may merge."""

    @property
    def bytes_in(self) -> int:
        """About so many bytes are read."""
        return sum(group.bytes_in for group in self.groups)


def plan_compaction(
    context: Context, namespace: str, options: CompactionOptions | None = None
) -> CompactionPlan | None:
    """Return what a pass would do, or None if everything is fine as it is. Writes nothing.

    Reads the head of the manifests, and tails of segments where a group is cut within them. Raises
    NotFoundError if there is no such namespace, UnavailableError, DamagedError.
    """
    head = context.chain(namespace).load()
    if head is None or head.manifest.state != "live":
        raise NotFoundError(f"there is no namespace {namespace!r}")
    return plan_on(context, head.manifest, options or CompactionOptions())


def plan_on(
    context: Context, manifest: Manifest, options: CompactionOptions
) -> CompactionPlan | None:
    """Return what a pass would do as of one manifest, or None."""
    tiers = tiers_of(manifest)
    windows = _all_windows(tiers, options) if options.full else _windows(tiers, options)
    groups: list[Group] = []
    skipped: list[str] = []
    room = options.max_bytes
    for first, end in windows:
        older = _Covered([one for tier in tiers[end:] for one in tier])
        for group in _groups(tiers[first:end], options):
            if room is not None and group.bytes_in > room:
                skipped.append(
                    f"{len(group.inputs)} segments of {group.bytes_in} bytes: more than is left of "
                    f"max_bytes, {options.max_bytes}"
                )
                continue
            room = None if room is None else room - group.bytes_in
            ranges = _ranges(context, manifest.namespace, group.inputs, older, options)
            numbered = msgspec.structs.replace(group, number=len(groups), ranges=ranges)
            groups.append(numbered)
    if not groups and not skipped:
        return None
    return CompactionPlan(
        manifest.namespace,
        manifest.generation,
        options,
        tuple(groups),
        tuple(skipped),
        is_partial=options.full and len(windows) > 1,
    )


def tiers_of(manifest: Manifest) -> list[list[Clipped]]:
    """Return the live segments as they are seen, newest first, those together whose LSNs overlap."""
    tiers: list[list[Clipped]] = []
    oldest = 0
    seen = [Clipped("", ref) for ref in manifest.segments]
    for one in sorted(seen, key=lambda one: one.lsn_max, reverse=True):
        if tiers and one.lsn_max >= oldest:
            tiers[-1].append(one)
            oldest = min(oldest, one.lsn_min)
        else:
            tiers.append([one])
            oldest = one.lsn_min
    return tiers


def _windows(tiers: Sequence[_Segments], options: CompactionOptions) -> list[tuple[int, int]]:
    """Return from which tier up to which the windows go."""
    sizes = [_size(tier) for tier in tiers]
    windows: list[tuple[int, int]] = []
    first = 0
    while first < len(tiers):
        end, size = first + 1, sizes[first]
        within = list(tiers[first])
        while (
            end < len(tiers)
            and sizes[end] <= size * SIZE_RATIO
            and _fits(within, tiers[end], options)
        ):
            size += sizes[end]
            within += tiers[end]
            end += 1
        if len(within) >= options.min_input_files:
            windows.append((first, end))
            first = end
        else:
            first += 1
    return windows


def _all_windows(tiers: Sequence[_Segments], options: CompactionOptions) -> list[tuple[int, int]]:
    """Return windows that cover all tiers: one, unless that is more than a task may merge."""
    windows: list[tuple[int, int]] = []
    first = 0
    while first < len(tiers):
        end = first + 1
        within = list(tiers[first])
        while end < len(tiers) and _fits(within, tiers[end], options):
            within += tiers[end]
            end += 1
        windows.append((first, end))
        first = end
    return windows


def _fits(within: _Segments, more: _Segments, options: CompactionOptions) -> bool:
    """Return whether a task may merge all of them."""
    together = [*within, *more]
    return len(together) <= options.runs_max or _depth(together) <= options.runs_max


def _groups(window: Sequence[_Segments], options: CompactionOptions) -> Iterator[Group]:
    """Yield what is worth rewriting of some tiers, without numbers and ranges."""
    level = _level(window)
    moves: list[Clipped] = []
    found: list[Group] = []
    for segments in _stretches(window, options, moves):
        reason = _reason(segments, options)
        if reason:
            refs = tuple(one.ref for one in segments)
            found.append(Group(0, refs, (), (), level, _size(segments), reason))
    moved = tuple(one.ref for one in moves)
    if moved and found:
        found[0] = msgspec.structs.replace(found[0], moves=moved)
    elif moved:
        found.append(Group(0, (), (), moved, level, 0, "no other has any of their keys"))
    yield from found


def _stretches(
    window: Sequence[_Segments], options: CompactionOptions, moves: list[Clipped]
) -> Iterator[list[Clipped]]:
    """Yield neighbouring components together, up to the target size; note what is to be moved."""
    held: list[Clipped] = []
    for component in _components([one for tier in window for one in tier]):
        is_settled = (
            not options.full and len(component) == 1 and not _is_small(component[0], options)
        )
        is_asked = _is_asked(component, options)
        if is_settled or not is_asked:
            if held:  # what is behind a segment that stays is not joined with what is before it
                yield held
                held = []
            if is_settled and is_asked and component[0].ref.level == 0:
                moves += component
            continue
        held += component
        if _size(held) >= options.target_file_size_bytes:
            yield held
            held = []
    if held:
        yield held


def _reason(segments: _Segments, options: CompactionOptions) -> str:
    """Return why segments are worth rewriting, "" if they are not."""
    if options.full:
        return "everything is rewritten"
    depth = _depth(segments)
    if depth >= min(options.min_input_files, options.runs_max):
        return f"{depth} runs have keys in common"
    small = sum(_is_small(one, options) for one in segments)
    if small >= options.min_input_files:
        return f"{small} files are smaller than they should be"
    return ""


def _level(window: Sequence[_Segments]) -> int:
    """Return the level of what a window becomes: one up, where runs of one level are merged."""
    levels = {one.ref.level for tier in window for one in tier}
    is_up = len(window) > 1 and len(levels) == 1
    return min(LEVEL_MAX, max(1, max(levels) + is_up))


def _size(segments: _Segments) -> int:
    return sum(one.ref.size for one in segments)


def _is_small(one: Clipped, options: CompactionOptions) -> bool:
    return one.ref.size < options.target_file_size_bytes * GOOD_SIZE


def _is_asked(component: _Segments, options: CompactionOptions) -> bool:
    """Return whether a component has keys in the range that is to be compacted."""
    low, high = _bounds(component)
    return high > options.start and (options.end is None or low < options.end)


def _bounds(segments: _Segments) -> tuple[bytes, bytes]:
    """Return the least key of some segments, and where their keys end (exclusive)."""
    return min(one.key_min for one in segments), max(one.key_end for one in segments)


def _components(segments: _Segments) -> Iterator[list[Clipped]]:
    """Yield segments whose keys overlap, directly or through others, together, in order of keys."""
    component: list[Clipped] = []
    high = b""
    for one in sorted(segments, key=lambda one: one.key_min):
        if component and one.key_min >= high:
            yield component
            component = []
        component.append(one)
        high = max(high, one.key_end)
    if component:
        yield component


def _depth(segments: _Segments) -> int:
    """Return how many segments have one key in their range, at most."""
    lows = sorted(one.key_min for one in segments)
    highs = sorted(one.key_end for one in segments)
    return max((i + 1 - bisect_right(highs, low) for i, low in enumerate(lows)), default=0)


class _Covered:
    """The keys that some segments may hold."""

    def __init__(self, segments: _Segments) -> None:
        bounds = [_bounds(component) for component in _components(segments)]
        self._lows = [low for low, _ in bounds]
        self._highs = [high for _, high in bounds]

    def overlaps(self, start: bytes, end: bytes) -> bool:
        """Return whether any of them may hold a key from `start` up to `end`."""
        at = bisect_right(self._highs, start)
        return at < len(self._lows) and self._lows[at] < end


def _ranges(
    context: Context,
    namespace: str,
    inputs: Sequence[SegmentRef],
    older: _Covered,
    options: CompactionOptions,
) -> tuple[KeyRange, ...]:
    """Cut the keys of a group into ranges of about the same size, none much above the target."""
    if not inputs:
        return ()
    segments = [Clipped("", ref) for ref in inputs]
    (low, high), size = _bounds(segments), _size(segments)
    count = -(-size // options.target_file_size_bytes)
    if count == 1:
        return (KeyRange(low, high, size, not older.overlaps(low, high)),)
    step = max(1, options.target_file_size_bytes // _CUTS_PER_FILE)
    large = [one.ref for one in segments if one.ref.size > step]
    opened = dict(zip(large, open_sources(context, namespace, large), strict=True))
    weights: list[_Weight] = []
    for one in segments:
        source = opened.get(one.ref)
        some = [(one.key_min, one.ref.size)]
        if source is not None:
            some = key_weights(source, step_bytes=step)
        weights += ((key, size, _has_row_at(one, key)) for key, size in some)
    cuts, sizes = _cut(sorted(weights), low, high, count)
    return tuple(
        KeyRange(start, end, some_bytes, not older.overlaps(start, end))
        for (start, end), some_bytes in zip(pairwise(cuts), sizes, strict=True)
    )


_Weight: TypeAlias = tuple[bytes, int, bool]
"""A key, about the bytes from there on, and whether there is certainly a row of it."""


def _has_row_at(one: Clipped, key: bytes) -> bool:
    """Return whether a key at which a segment, or a block of it, begins can be seen in it."""
    ref = one.ref
    is_whole = ref.clip_lsn is None or ref.clip_lsn >= ref.lsn_max
    return is_whole and key < one.key_end and (key > one.key_min or key == ref.key_min)


def _cut(
    weights: Sequence[_Weight], low: bytes, high: bytes, count: int
) -> tuple[list[bytes], list[int]]:
    """Return up to `count` + 1 keys from `low` to `high`, and the weight between each two.

    There is a row between each two: a task that finds none would leave no segment, and the parts of a
    group are counted before its tasks run.
    """
    total = sum(weight for _, weight, _ in weights)
    cuts, sizes, done, since = [low], [], 0, 0
    has_row = False
    for key, weight, is_row in weights:
        is_due = done * count // max(1, total) >= len(cuts)
        if is_due and has_row and is_row and cuts[-1] < key < high:
            cuts.append(key)
            sizes.append(since)
            since = 0
        has_row = has_row or is_row
        done += weight
        since += weight
    return [*cuts, high], [*sizes, since]
