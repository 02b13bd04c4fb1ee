"""Segments to check in depth, in parts that can be checked anywhere: descriptors, and what comes back.

A part is a range of bytes: whoever cuts knows only how long a segment is. The blocks that begin in it
belong to it; its tail is read by each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from reef.doctor._verify_faults import Fault
from reef.doctor._verify_segments import SegmentFacts, check_segment
from reef.format import SegmentRef, segment_key
from reef.store import Store


class SegmentPart(msgspec.Struct, frozen=True):
    """A segment to check in depth, or those of its blocks that begin within a range of bytes."""

    namespace: str
    """Of the manifest that names it."""
    ref: SegmentRef
    size: int | None
    """What a LIST says; None if it shows none."""
    span: tuple[int, int] | None = None
    """The first byte of the range, and the first behind it; None: all of it."""


class SegmentLook(msgspec.Struct, frozen=True):
    """What is known of a part of a segment."""

    is_missing: bool
    faults: tuple[Fault, ...]
    bad_rows: tuple[int, ...]
    blocks: int


def cut_segment(
    namespace: str, ref: SegmentRef, size: int | None, *, part_bytes: int
) -> Iterator[SegmentPart]:
    """Cut a segment into parts of about so many bytes, or leave it whole if it is not much more."""
    end = ref.size - ref.footer_length
    pieces = round(end / part_bytes)
    if size != ref.size or pieces <= 1:
        yield SegmentPart(namespace, ref, size)
        return
    edges = [end * piece // pieces for piece in range(pieces + 1)]
    for low, high in pairwise(edges):
        yield SegmentPart(namespace, ref, size, (low, high))


def check_segment_part(store: Store, part: SegmentPart) -> SegmentLook:
    """Return what is known of a part of a segment, every block looked at. Raises UnavailableError."""
    facts = check_segment(store, part.namespace, part.ref, part.size, deep=True, span=part.span)
    return SegmentLook(
        facts.is_missing, tuple(map(Fault.of, facts.errors)), facts.bad_rows, facts.blocks
    )


def join_looks(namespace: str, ref: SegmentRef, looks: Sequence[SegmentLook]) -> SegmentFacts:
    """Return what is known of a segment by all of its parts; its tail is not at hand."""
    key = segment_key(ref.namespace or namespace, ref.id)
    if any(look.is_missing for look in looks):
        return SegmentFacts(key, ref, is_missing=True)
    # What is wrong with the tail is told by every part.
    faults = dict.fromkeys(fault for look in looks for fault in look.faults)
    errors = sorted((fault.error() for fault in faults), key=lambda error: error.offset)
    bad_rows = sorted({number for look in looks for number in look.bad_rows})
    blocks = sum(look.blocks for look in looks)
    return SegmentFacts(key, ref, errors=tuple(errors), bad_rows=tuple(bad_rows), blocks=blocks)
