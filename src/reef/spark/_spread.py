"""Spreading work: which descriptors share a Spark task."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def balanced_parts(weights: Sequence[int], parts_max: int) -> list[list[int]]:
    """Return the positions of `weights` in at most `parts_max` parts of about the same weight.

    The heaviest first, within a part and among them: what takes longest begins first.
    """
    parts = min(parts_max, len(weights))
    lightest = [(0, part) for part in range(parts)]
    positions: list[list[int]] = [[] for _ in range(parts)]
    for position in sorted(range(len(weights)), key=lambda p: -weights[p]):
        load, part = lightest[0]
        positions[part].append(position)
        heapq.heapreplace(lightest, (load + weights[position] + 1, part))
    loads = {part: load for load, part in lightest}
    return [positions[part] for part in sorted(loads, key=lambda p: (-loads[p], p))]
