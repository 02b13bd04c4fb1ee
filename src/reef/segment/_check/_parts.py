"""Checking a segment in parts, by tasks: what each checks, and how the results are joined.

A part is a range of bytes, because cutting needs nothing but the size of the segment. The blocks that
begin in the range belong to the part; the tail is read by every part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from reef.format import SegmentRef, Unreadable, segment_key
from reef.segment._check._check import CheckedSegment, check_segment
from reef.store import Store


class SegmentPart(msgspec.Struct, frozen=True):
    """A segment to check in depth, or those of its blocks that begin within a range of bytes."""

    namespace: str
    """Of the manifest that names the segment."""
    ref: SegmentRef
    size: int | None
    """The bytes that a LIST shows; None if the segment is not there."""
    span: tuple[int, int] | None = None
    """The first byte of the range and its end (exclusive); None: the whole segment."""


class CheckedPart(msgspec.Struct, frozen=True):
    """The result of checking a part of a segment."""

    is_missing: bool
    errors: tuple[Unreadable, ...]
    bad_rows: tuple[int, ...]
    blocks: int


def cut_segment(
    namespace: str, ref: SegmentRef, size: int | None, *, part_bytes: int
) -> Iterator[SegmentPart]:
    """Cut a segment into parts of about `part_bytes`; one that is hardly larger stays whole."""
    end = ref.size - ref.footer_length
    pieces = round(end / part_bytes)
    if size != ref.size or pieces <= 1:
        yield SegmentPart(namespace, ref, size)
        return
    edges = [end * piece // pieces for piece in range(pieces + 1)]
    for low, high in pairwise(edges):
        yield SegmentPart(namespace, ref, size, (low, high))


def check_segment_part(store: Store, part: SegmentPart) -> CheckedPart:
    """Check every block of a part. Raises UnavailableError."""
    checked = check_segment(store, part.namespace, part.ref, part.size, deep=True, span=part.span)
    errors = tuple(map(Unreadable.of, checked.errors))
    return CheckedPart(checked.is_missing, errors, checked.bad_rows, checked.blocks)


def join_parts(namespace: str, ref: SegmentRef, parts: Sequence[CheckedPart]) -> CheckedSegment:
    """Return the result for a segment from those of all its parts; it has no tail."""
    key = segment_key(ref.namespace or namespace, ref.id)
    if any(part.is_missing for part in parts):
        return CheckedSegment(key, ref, is_missing=True)
    # Damage to the tail is in the result of every part.
    distinct = dict.fromkeys(error for part in parts for error in part.errors)
    errors = sorted((one.error() for one in distinct), key=lambda error: error.offset)
    bad_rows = sorted({number for part in parts for number in part.bad_rows})
    blocks = sum(part.blocks for part in parts)
    return CheckedSegment(key, ref, errors=tuple(errors), bad_rows=tuple(bad_rows), blocks=blocks)
