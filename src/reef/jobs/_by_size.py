"""Where the tasks of a namespace run, by how much they have to read."""

from __future__ import annotations

from collections.abc import Sequence

from reef.jobs._progress import Unit
from reef.jobs._tasks import Runner


class BySize:
    """Two runners: one for small namespaces, and one for large ones, which may be slow to start.

    A namespace is small if its tasks of one round read at most `small_bytes` together. Deletes that
    were too many for the one task of a namespace count as large.
    """

    def __init__(self, small: Runner, large: Runner, small_bytes: int) -> None:
        self._small = small
        self._large = large
        self._small_bytes = small_bytes

    @property
    def parallelism(self) -> int:
        """How many tasks of large namespaces run side by side."""
        return self._large.parallelism

    def pick(self, unit: Unit, sizes: Sequence[int]) -> Runner:
        """Return who runs tasks that have so much to do, together."""
        if unit == "bytes":
            return self._small if sum(sizes) <= self._small_bytes else self._large
        return self._large if unit == "objects" else self._small
