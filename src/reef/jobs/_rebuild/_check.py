"""Segments that stay in a rebuild: the tasks of deep verify check every block of them."""

from __future__ import annotations

from collections.abc import Sequence

from reef.doctor import size_of
from reef.engine import Context
from reef.errors import UnavailableError
from reef.format import SegmentRef, segment_key
from reef.jobs._stages import Stage, Steps
from reef.jobs._verify import (
    VerifiedTask,
    VerifyOptions,
    VerifyPart,
    pack_parts,
    verify_parts,
)
from reef.segment import CheckedPart, CheckedSegment, cut_segment, join_parts


def checked(
    context: Context, namespace: str, refs: Sequence[SegmentRef], options: VerifyOptions
) -> Steps[list[CheckedSegment]]:
    """Return the result for each segment; one that is named several times is checked once, whole.

    Raises UnavailableError if one cannot be checked.
    """
    named = {segment_key(ref.namespace or namespace, ref.id): ref for ref in refs}
    cuts = []
    for key, ref in named.items():
        size = size_of(context.store, key)
        cuts.append([*cut_segment(namespace, ref, size, part_bytes=options.task_bytes)])
    tasks = [*pack_parts([VerifyPart(segment=part) for cut in cuts for part in cut], options)]
    if not tasks:
        return []
    sizes = [sum(part.nbytes for part in task.parts) for task in tasks]
    outcomes = yield Stage(verify_parts, tasks, VerifiedTask, sizes)
    results: list[CheckedPart] = []
    for outcome in outcomes:
        for part in outcome.returned().parts:
            if part.segment is None:
                raise UnavailableError(part.error)
            results.append(part.segment)
    left = iter(results)
    return [
        join_parts(namespace, ref, [next(left) for _ in cut])
        for ref, cut in zip(named.values(), cuts, strict=True)
    ]
