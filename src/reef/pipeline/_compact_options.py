"""How to compact: options as users of Iceberg know them."""

from __future__ import annotations

import msgspec

from reef.errors import InvalidInputError
from reef.settings import BYTES_MAX

# What a task holds of each run it reads: two portions of a scan, its piece of the merge, a block.
SOURCE_BYTES = 18 << 20
# And beside them: what the writer has waiting, and the rows of one round.
TASK_BYTES = 64 << 20
MEMORY_BYTES_DEFAULT = 256 << 20


class CompactionOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to compact. Raises InvalidInputError for what makes no sense."""

    target_file_size_bytes: int = 256 << 20
    min_input_files: int = 4
    """Fewer runs, or fewer small files, than this are left as they are."""
    max_concurrent_file_group_rewrites: int = 5
    """How many groups are handed to the runner at once; each is published when these are done."""
    max_bytes: int | None = None
    """The most that one pass reads; a group that does not fit is left for the next."""
    start: bytes = b""
    end: bytes | None = None
    """Only what holds keys from `start` up to `end`: whole components."""
    full: bool = False
    """Rewrite everything, into one run."""
    raise_floor: bool = True
    """Let the retention floor follow the window for time travel first."""
    memory_bytes: int = MEMORY_BYTES_DEFAULT
    """What one task may hold: bounds how many runs it merges at once."""

    def __post_init__(self) -> None:
        bounds = (
            ("target_file_size_bytes", 1, BYTES_MAX),
            ("min_input_files", 2, 1_000_000),
            ("max_concurrent_file_group_rewrites", 1, 1_000_000),
            ("memory_bytes", TASK_BYTES + 2 * SOURCE_BYTES, BYTES_MAX),
        )
        for name, low, high in bounds:
            if not low <= getattr(self, name) <= high:
                allowed = f"a whole number from {low} to {high}"
                raise InvalidInputError.of(name, getattr(self, name), allowed)
        if self.max_bytes is not None and self.max_bytes < 1:
            raise InvalidInputError.of("max_bytes", self.max_bytes, "at least 1, or none")
        if self.end is not None and self.end <= self.start:
            raise InvalidInputError.of("end", self.end, f"a key above start, {self.start!r}")

    @property
    def runs_max(self) -> int:
        """How many runs one task may merge."""
        return (self.memory_bytes - TASK_BYTES) // SOURCE_BYTES
