"""Which requests to make for which ranges: near ones share a GET."""

from __future__ import annotations

from collections.abc import Sequence

from reef.errors import InvalidInputError


def check_range(start: int, length: int) -> None:
    """Raise InvalidInputError unless these can be bytes of an object."""
    if start < 0 or length < 1:
        raise InvalidInputError.of(
            "range", (start, length), "(start, length), start at least 0, length at least 1"
        )


def merge_ranges(
    ranges: Sequence[tuple[int, int]], gap: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int, int]]]:
    """Join (start, length) ranges that lie at most `gap` bytes apart.

    Returns the ranges to fetch, in order of offset, and for each range asked for, in its own
    order, (which fetched range, offset in it, length).
    """
    for start, length in ranges:
        check_range(start, length)
    merged: list[tuple[int, int]] = []
    places = [(0, 0, 0)] * len(ranges)
    for i in sorted(range(len(ranges)), key=lambda i: ranges[i]):
        start, length = ranges[i]
        if merged and start <= sum(merged[-1]) + gap:
            first, so_far = merged[-1]
            merged[-1] = (first, max(so_far, start + length - first))
        else:
            merged.append((start, length))
        places[i] = (len(merged) - 1, start - merged[-1][0], length)
    return merged, places
