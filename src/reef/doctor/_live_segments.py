"""Which segments are live, by their footers alone: for a rebuild without any manifest.

A segment *stands for* its rows' slots in its keys: of each key it has the newest version that those
slots wrote, or a tombstone, or nothing where nothing older can come to light. That holds whether a
manifest ever named it or not: a flush or fold has what the log had, and a compaction has what its
inputs had. So any segments that stand for every slot and key once give the head's content. Rules:

- What an output of a compaction lists as replaced was live once, and is hidden in the output's keys.
- A slot is folded once. So a segment of slots that an output or a listed segment was folded from, and
  that no output lists, was left behind by a flush or job that never published it.
- Of outputs with slots and keys in common, neither of which lists the other, one was never
  published: see `_loser`.
- Of the rest, those are chosen that are of the most slots.

Nothing here asks the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import msgspec

from reef.errors import CorruptError
from reef.format import Footer, SegmentRef, joined_slots, segment_key, ulid_number

Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class FoundSegment:
    """A segment that is in the bucket, and what its footer says."""

    ref: SegmentRef
    footer: Footer
    slots: Spans | None
    """Of which log slots its rows are; None: not known."""

    @cached_property
    def number(self) -> int:
        """Its ULID."""
        return ulid_number(self.ref.id)

    @cached_property
    def direct(self) -> frozenset[int]:
        """The ULIDs of its inputs."""
        return frozenset(map(ulid_number, self.footer.replaced_segments))

    @cached_property
    def replaced(self) -> frozenset[int]:
        """The ULIDs of all segments that it is known to have replaced, directly or not."""
        return frozenset(self.footer.replaced_numbers())

    @property
    def is_output(self) -> bool:
        """Whether it was made from other segments."""
        return bool(self.footer.replaced_segments)

    @property
    def keys(self) -> tuple[bytes, bytes | None]:
        """The keys in which it stands for its inputs; the end is exclusive, None: there is none."""
        merged = self.footer.merged
        return (b"", None) if merged is None else (merged.key_start, merged.key_end)


@dataclass(frozen=True)
class LiveSegments:
    """What was chosen."""

    refs: tuple[SegmentRef, ...]
    slots: Spans
    """The slots that they are known to stand for."""
    unproven: tuple[str, ...]


def choose_live(
    namespace: str,
    found: Sequence[FoundSegment],
    shared: Sequence[SegmentRef],
    *,
    slot_end: int,
    lsn_end: int,
) -> LiveSegments:
    """Return the live segments, as far as they have versions below `lsn_end`, in slots below `slot_end`.

    `found` are a namespace's own; those without slots are outputs, or attached, or were never
    attached. `shared` is what the namespace began with, of others, and what the log attached. Raises
    CorruptError where it cannot be proved what is live.
    """
    return _Choice(namespace, found, shared, slot_end, lsn_end).choose()


class _Choice:
    def __init__(
        self,
        namespace: str,
        found: Sequence[FoundSegment],
        shared: Sequence[SegmentRef],
        slot_end: int,
        lsn_end: int,
    ) -> None:
        self._namespace = namespace
        self._shared = shared
        self._slot_end = slot_end
        self._lsn_end = lsn_end
        self._found = {one.number: one for one in found}
        self._present = {*self._found, *(ulid_number(ref.id) for ref in shared)}
        self._outputs = [one for one in found if one.is_output]
        for one in self._outputs:
            if one.slots is None:
                raise self._unproven(
                    one,
                    "its footer does not say of which log slots its rows are: it was compacted "
                    "by a Reef that did not record them, or from such segments",
                )
        self._replaced = {one.number: self._closure(one) for one in self._outputs}
        self._listed = frozenset().union(*(one.replaced for one in self._outputs))

    def choose(self) -> LiveSegments:
        outputs = self._published()
        attached = {ulid_number(ref.id) for ref in self._shared}
        folds = [
            one
            for one in self._found.values()
            if not one.is_output and one.slots is not None and one.number not in attached
        ]
        listed = [one for one in folds if one.number in self._listed]
        spans = [span for one in (*self._outputs, *listed) for span in one.slots or ()]
        folded = joined_slots(spans)
        free: list[FoundSegment] = []
        for one in folds:
            if one.number in self._listed:
                continue
            if not _meet(one.slots or (), folded):
                free.append(one)
            else:
                self._check_left_behind(one, outputs)
        chosen = self._tile(free)
        hiding = [(one.keys, self._replaced[one.number]) for one in outputs]
        named = [one.ref for one in (*outputs, *listed, *chosen)] + [*self._shared]
        refs = [part for ref in named for part in self._visible(ref, hiding)]
        refs.sort(key=lambda ref: ref.lsn_max, reverse=True)
        slots = joined_slots((*folded, *(span for one in chosen for span in one.slots or ())))
        return LiveSegments(tuple(refs), slots, tuple(self._parts_missing(outputs)))

    def _closure(self, one: FoundSegment) -> frozenset[int]:
        """Return all that an output has replaced, also by way of outputs that are still there."""
        known, left = set(one.replaced), list(one.replaced)
        while left:
            other = self._found.get(left.pop())
            if other is not None:
                left += other.replaced - known
                known |= other.replaced
        return frozenset(known)

    # Outputs.

    def _published(self) -> list[FoundSegment]:
        """Return the outputs without those that were never published and stand beside others."""
        outputs = sorted(self._outputs, key=lambda one: one.keys[0])
        while True:
            pair = next((p for p in _neighbours(outputs) if self._collide(*p)), None)
            if pair is None:
                return outputs
            losers = self._losers(*pair)
            outputs = [one for one in outputs if one not in losers]

    def _collide(self, a: FoundSegment, b: FoundSegment) -> bool:
        if a.number in self._replaced[b.number] or b.number in self._replaced[a.number]:
            return False
        return _meet(a.slots or (), b.slots or ())

    def _losers(self, a: FoundSegment, b: FoundSegment) -> list[FoundSegment]:
        """Return which of two outputs to leave out. Both, if all inputs of both are there."""
        listed = [one for one in (a, b) if one.number in self._listed]
        if len(listed) == 1:  # others were made from it: it was live
            return [b] if listed == [a] else [a]
        whole = [one for one in (a, b) if one.direct <= self._present]
        if whole:  # its inputs hold the same
            return whole
        # Inputs are replaced, and so collected, together.
        torn = [one for one in (a, b) if self._is_torn(one)]
        if len(torn) == 1:
            return torn
        for one, other in ((a, b), (b, a)):
            short = other.footer.merged is not None and other.footer.merged.is_short
            inside = _within(one.slots or (), other.slots or ()) and _keys_within(one, other)
            if short and inside and not one.direct & other.direct:
                return [one]  # replaced so long ago that it is not listed any more
            gone, others_gone = one.direct - self._present, other.direct - self._present
            if (
                gone <= self._replaced[other.number]
                and not others_gone <= self._replaced[one.number]
            ):
                return [one]  # only the other accounts for all that is gone
        raise self._unproven(a, f"it stands beside {b.ref.id}: only one of them was published")

    def _is_torn(self, one: FoundSegment) -> bool:
        """Return whether of the inputs that it took whole some are there, and others are gone."""
        start, end = one.keys
        there = (self._found[n] for n in one.direct if n in self._found)
        whole = [
            s for s in there if start <= s.ref.key_min and (end is None or s.ref.key_max < end)
        ]
        return bool(whole) and not one.direct <= self._present

    def _check_left_behind(self, one: FoundSegment, outputs: Sequence[FoundSegment]) -> None:
        """Raise if a segment that no output lists may be live all the same."""
        beside = [o for o in outputs if _meet(one.slots or (), o.slots or ())]
        if not any(o.footer.merged is not None and o.footer.merged.is_short for o in beside):
            return
        if not any(
            _within(one.slots or (), o.slots or ()) and _keys_within(one, o) for o in beside
        ):
            raise self._unproven(
                one, "whether it was replaced is not recorded: too many segments were since"
            )

    def _parts_missing(self, outputs: Sequence[FoundSegment]) -> Iterator[str]:
        """Yield what cannot be told of outputs that are not there."""
        jobs: dict[tuple[str, int], set[int]] = {}
        for one in self._outputs:
            jobs.setdefault((_owner(one), one.footer.part[1]), set()).add(one.footer.part[0])
        live = {(_owner(one), one.footer.part[1]) for one in outputs}
        for (job, count), parts in sorted(jobs.items()):
            if (job, count) in live and len(parts) < count:
                yield (
                    f"segments: {count - len(parts)} of {count} outputs of job {job} are not there: "
                    "replaced since, or lost"
                )

    # Flushes and folds.

    def _tile(self, free: Sequence[FoundSegment]) -> list[FoundSegment]:
        """Return segments without a slot in common, of the most slots together."""
        tiles: dict[tuple[int, int], list[FoundSegment]] = {}
        for one in free:
            for span in (one.slots or ())[:1]:
                if span[0] < self._slot_end:
                    tiles.setdefault(span, []).append(one)
        spans = sorted((span for span in tiles if self._is_whole(tiles[span])), key=lambda s: s[1])
        best: list[tuple[int, int]] = [(0, 0)]  # slots, and minus the number of segments
        came: list[tuple[int, bool]] = [(0, False)]
        for at, (first, last) in enumerate(spans):
            before = at
            while before and spans[before - 1][1] >= first:
                before -= 1
            slots, few = best[before]
            taken = (slots + min(last, self._slot_end - 1) - first + 1, few - 1)
            is_taken = taken > best[at]
            best.append(taken if is_taken else best[at])
            came.append((before, True) if is_taken else (at, False))
        chosen: list[FoundSegment] = []
        at = len(spans)
        while at:
            before, is_taken = came[at]
            if is_taken:
                chosen += self._alike(tiles[spans[at - 1]])
            at = before
        return chosen

    def _is_whole(self, same: Sequence[FoundSegment]) -> bool:
        """Return whether all parts are there of segments that are of the same slots."""
        return len(self._parts(same)) == same[0].footer.part[1]

    def _parts(self, same: Sequence[FoundSegment]) -> dict[int, FoundSegment]:
        owner, count = _owner(same[0]), same[0].footer.part[1]
        mine = [s for s in same if (_owner(s), s.footer.part[1]) == (owner, count)]
        return {one.footer.part[0]: one for one in reversed(mine)}

    def _alike(self, same: Sequence[FoundSegment]) -> list[FoundSegment]:
        """Return one of the segments of the same slots, or all parts of one flush."""
        parts = self._parts(same)
        for one in same:
            if one.footer.part[1] == same[0].footer.part[1] == 1 and _sums(one) != _sums(same[0]):
                raise self._unproven(
                    one,
                    f"it is of the same log slots as {same[0].ref.id}, and holds something else",
                )
        return [*parts.values()]

    def _visible(
        self,
        ref: SegmentRef,
        hiding: Iterable[tuple[tuple[bytes, bytes | None], frozenset[int]]],
    ) -> Iterator[SegmentRef]:
        """Yield references to what a segment shows besides what outputs stand for."""
        if ref.lsn_min >= self._lsn_end:
            return
        if ref.lsn_max >= self._lsn_end:
            clip = self._lsn_end - 1
            clip = clip if ref.clip_lsn is None else min(clip, ref.clip_lsn)
            ref = msgspec.structs.replace(ref, clip_lsn=clip)
        low = max(ref.key_min, ref.clip_key_min or b"")
        high = ref.key_max + b"\0"
        high = high if ref.clip_key_max is None else min(high, ref.clip_key_max)
        number = ulid_number(ref.id)
        for start, end in sorted(
            ((keys[0], keys[1]) for keys, replaced in hiding if number in replaced),
            key=lambda keys: keys[0],
        ):
            if low < high and start > low:
                yield _clipped(ref, low, min(start, high))
            low = high if end is None else max(low, end)
        if low < high:
            yield _clipped(ref, low, high)

    def _unproven(self, one: FoundSegment, why: str) -> CorruptError:
        return CorruptError(
            segment_key(self._namespace, one.ref.id),
            0,
            "to know whether it is live, although there is no manifest",
            f"{why}; nothing was changed: restore a manifest from a backup",
        )


def _neighbours(outputs: Sequence[FoundSegment]) -> Iterator[tuple[FoundSegment, FoundSegment]]:
    """Yield pairs of outputs that have keys in common, in the order in which their keys begin."""
    for at, one in enumerate(outputs):
        end = one.keys[1]
        for other in islice(outputs, at + 1, None):
            if end is not None and other.keys[0] >= end:
                break
            yield one, other


def _clipped(ref: SegmentRef, low: bytes, high: bytes) -> SegmentRef:
    return msgspec.structs.replace(
        ref,
        clip_key_min=low if low > ref.key_min else None,
        clip_key_max=high if high <= ref.key_max else None,
    )


def _owner(one: FoundSegment) -> str:
    return one.ref.id.partition("-")[2]


def _sums(one: FoundSegment) -> tuple[object, ...]:
    ref = one.ref
    return ref.rows, ref.tombstones, ref.key_min, ref.key_max, ref.lsn_min, ref.lsn_max


def _meet(a: Spans, b: Spans) -> bool:
    return any(x[0] <= y[1] and y[0] <= x[1] for x in a for y in b)


def _within(a: Spans, b: Spans) -> bool:
    return all(any(y[0] <= x[0] and x[1] <= y[1] for y in b) for x in a)


def _keys_within(one: FoundSegment, other: FoundSegment) -> bool:
    start, end = other.keys
    return start <= one.ref.key_min and (end is None or one.ref.key_max < end)
