"""Which requests to make for which ranges: near ones share a GET."""

from __future__ import annotations

from collections.abc import Sequence

from reef.errors import InvalidInputError

MERGED_BYTES_MAX = 16 << 20
"""How large a request may grow by joining: a lost one is repeated whole, and others run beside it."""


def check_range(start: int, length: int) -> None:
    """Raise InvalidInputError unless these can be bytes of an object."""
    if start < 0 or length < 1:
        raise InvalidInputError.of(
            "range", (start, length), "(start, length), start at least 0, length at least 1"
        )


def merge_ranges(
    ranges: Sequence[tuple[int, int]], gap: int, most: int = MERGED_BYTES_MAX
) -> tuple[list[tuple[int, int]], list[tuple[int, int, int]]]:
    """Join (start, length) ranges that lie at most `gap` bytes apart, up to `most` bytes.

    Returns the ranges to fetch, in order of offset and disjoint, and for each range asked for, in
    its own order, its place for `cut_range`: (which fetched range, offset in it, length). Only
    where ranges overlap and would exceed `most` together, a place goes on in the next fetched
    range. One range that is larger than `most` by itself is fetched as it is.
    """
    for start, length in ranges:
        check_range(start, length)
    merged: list[tuple[int, int]] = []
    places = [(0, 0, 0)] * len(ranges)
    for i in sorted(range(len(ranges)), key=lambda i: (ranges[i][0], -ranges[i][1])):
        start, length = ranges[i]
        first, so_far = merged[-1] if merged else (start, 0)
        end, joined = first + so_far, start + length - first
        if merged and start <= end + gap and joined <= max(so_far, most):
            merged[-1] = (first, max(so_far, joined))
        else:
            begin = max(start, end)
            merged.append((begin, start + length - begin))
        at = len(merged) - 1
        while merged[at][0] > start:
            at -= 1
        places[i] = (at, start - merged[at][0], length)
    return merged, places


def cut_range(chunks: Sequence[bytes], place: tuple[int, int, int]) -> bytes:
    """Return the bytes at a place that `merge_ranges` gave, from the chunks that were fetched."""
    i, at, length = place
    data = chunks[i][at : at + length]
    while len(data) < length:
        i += 1
        data += chunks[i][: length - len(data)]
    return data
