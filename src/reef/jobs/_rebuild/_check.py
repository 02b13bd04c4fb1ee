"""Segments that stay in a rebuild: the tasks of deep verify check every block of them."""

from __future__ import annotations

from collections.abc import Sequence

from reef.doctor import size_of
from reef.engine import Context
from reef.errors import UnavailableError
from reef.format import SegmentRef, segment_key
from reef.jobs._pass import Work
from reef.jobs._verify import VerifyOptions, VerifyPart, pack_parts, read_parts
from reef.segment import CheckedPart, CheckedSegment, cut_segment, join_parts


def check_segments(
    context: Context, namespace: str, refs: Sequence[SegmentRef], options: VerifyOptions
) -> Work[list[CheckedSegment]]:
    """Return the result for each segment; one that is named several times is read once, whole.

    Raises UnavailableError if one cannot be read.
    """
    named = {segment_key(ref.namespace or namespace, ref.id): ref for ref in refs}
    cuts = []
    for key, ref in named.items():
        size = size_of(context.store, key)
        cuts.append([*cut_segment(namespace, ref, size, part_bytes=options.task_bytes)])
    tasks = [*pack_parts([VerifyPart(segment=part) for cut in cuts for part in cut], options)]
    if not tasks:
        return []
    outcomes = yield read_parts(tasks)
    checked: list[CheckedPart] = []
    for outcome in outcomes:
        for part in outcome.returned().parts:
            if part.segment is None:
                raise UnavailableError(part.error)
            checked.append(part.segment)
    left = iter(checked)
    return [
        join_parts(namespace, ref, [next(left) for _ in cut])
        for ref, cut in zip(named.values(), cuts, strict=True)
    ]
