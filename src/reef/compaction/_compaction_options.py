"""Options of a compaction. docs/pipeline.md has the names that Iceberg gives them."""

from __future__ import annotations

from typing import Literal

import msgspec

from reef.errors import InvalidInputError
from reef.settings import BYTES_MAX, Settings

# Memory for each run that a task reads: two portions of a scan, its piece of the merge, a block.
SOURCE_BYTES = 18 << 20
# Memory of a task beside that: what its writer has not sent yet, and the rows of one merge step.
TASK_BYTES = 64 << 20
MEMORY_BYTES_DEFAULT = 256 << 20
_TARGET_BYTES = 256 << 20
_INPUTS_MIN = 4
_PAGES = "pages"


class CompactionOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to compact. Raises InvalidInputError for values that make no sense."""

    target_size_bytes: int | None = None
    """The size of new segments. None: 256MiB; for pages, the setting image_layer_target_bytes."""
    min_input_files: int | None = None
    """Merge only where there are at least this many runs or small files.

    None: 4; for pages, the setting compaction_cadence.
    """
    concurrency: int = 5
    """How many groups of a namespace are merged at once."""
    group_size_bytes: int = 8 << 30
    """The most one group reads. A killed pass loses the groups in progress, no more."""
    max_bytes: int | None = None
    """About the most this pass reads; the next pass continues. None: no limit."""
    start: bytes = b""
    """Compact only keys from this one on. A segment that straddles it is rewritten as a whole."""
    end: bytes | None = None
    """Compact only keys below this one."""
    full: bool = False
    """Rewrite everything into one run."""
    keep_floor: bool = False
    """Drop no version that can be read now."""
    bottom_codec: Literal["lz4", "zstd"] = "lz4"
    """Codec of the bottom run: lz4 reads in about half the time, zstd is smaller."""
    memory_bytes: int = MEMORY_BYTES_DEFAULT
    """About how much one task holds in memory; bounds how many runs it merges at once."""

    def __post_init__(self) -> None:
        bounds = (
            ("target_size_bytes", 1, BYTES_MAX),
            ("min_input_files", 2, 1_000_000),
            ("concurrency", 1, 1_000_000),
            ("group_size_bytes", 1, BYTES_MAX),
            ("memory_bytes", TASK_BYTES + 2 * SOURCE_BYTES, BYTES_MAX),
        )
        for name, low, high in bounds:
            given = getattr(self, name)
            if given is not None and not low <= given <= high:
                raise InvalidInputError(
                    f"{name} is {given}; give a whole number from {low} to {high}"
                )
        if self.bottom_codec not in ("lz4", "zstd"):
            raise InvalidInputError(f"bottom_codec is {self.bottom_codec!r}; give 'lz4' or 'zstd'")
        if self.max_bytes is not None and self.max_bytes < 1:
            raise InvalidInputError(f"max_bytes is {self.max_bytes}; give at least 1, or None")
        if self.end is not None and self.end <= self.start:
            raise InvalidInputError(
                f"end is {self.end!r}, not above start, {self.start!r}; give a greater key, or None"
            )

    def settled(self, face: str, settings: Settings) -> CompactionOptions:
        """Return these options with the defaults of a face filled in."""
        is_pages = face == _PAGES
        size = settings.image_layer_target_bytes if is_pages else _TARGET_BYTES
        inputs = settings.compaction_cadence[0] if is_pages else _INPUTS_MIN
        return msgspec.structs.replace(
            self,
            target_size_bytes=self.target_size_bytes or size,
            min_input_files=self.min_input_files or inputs,
        )

    @property
    def target_bytes(self) -> int:
        """`target_size_bytes`, settled."""
        assert self.target_size_bytes is not None
        return self.target_size_bytes

    @property
    def inputs_min(self) -> int:
        """`min_input_files`, settled."""
        assert self.min_input_files is not None
        return self.min_input_files

    @property
    def runs_max(self) -> int:
        """How many runs one task may merge."""
        return (self.memory_bytes - TASK_BYTES) // SOURCE_BYTES
