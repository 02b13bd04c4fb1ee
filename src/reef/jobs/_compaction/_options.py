"""How to compact: options as users of Iceberg know them."""

from __future__ import annotations

from typing import Literal

import msgspec

from reef.errors import InvalidInputError
from reef.settings import BYTES_MAX, Settings

# What a task holds of each run it reads: two portions of a scan, its piece of the merge, a block.
SOURCE_BYTES = 18 << 20
# And beside them: what the writer has waiting, and the rows of one round.
TASK_BYTES = 64 << 20
MEMORY_BYTES_DEFAULT = 256 << 20
_TARGET_BYTES = 256 << 20
_INPUTS_MIN = 4
_PAGES = "pages"


class CompactionOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to compact. Raises InvalidInputError for what makes no sense."""

    target_file_size_bytes: int | None = None
    """None: 256 MiB; of pages, the setting `image_layer_target_bytes`."""
    min_input_files: int | None = None
    """Fewer runs, or fewer small files, than this are left as they are.

    None: 4; of pages, what the setting `compaction_cadence` says.
    """
    max_concurrent_file_group_rewrites: int = 5
    """How many groups are handed to the runner at once; each is published when these are done."""
    max_file_group_size_bytes: int = 8 << 30
    """What a group reads at most, but at least one range: so much is lost where a driver dies."""
    max_bytes: int | None = None
    """About the most that one pass reads; the next goes on where it ends."""
    start: bytes = b""
    end: bytes | None = None
    """Only keys from `start` up to `end`; what becomes one file is rewritten as a whole."""
    full: bool = False
    """Rewrite everything, into one run."""
    raise_floor: bool = True
    """Let the retention floor follow the window for time travel first."""
    bottom_codec: Literal["lz4", "zstd"] = "lz4"
    """Of the bottom run: lz4 is read in about half the time, zstd is smaller. Others are lz4."""
    memory_bytes: int = MEMORY_BYTES_DEFAULT
    """What one task may hold: bounds how many runs it merges at once."""

    def __post_init__(self) -> None:
        bounds = (
            ("target_file_size_bytes", 1, BYTES_MAX),
            ("min_input_files", 2, 1_000_000),
            ("max_concurrent_file_group_rewrites", 1, 1_000_000),
            ("max_file_group_size_bytes", 1, BYTES_MAX),
            ("memory_bytes", TASK_BYTES + 2 * SOURCE_BYTES, BYTES_MAX),
        )
        for name, low, high in bounds:
            given = getattr(self, name)
            if given is not None and not low <= given <= high:
                allowed = f"a whole number from {low} to {high}"
                raise InvalidInputError.of(name, getattr(self, name), allowed)
        if self.bottom_codec not in ("lz4", "zstd"):
            raise InvalidInputError.of("bottom_codec", self.bottom_codec, "lz4 or zstd")
        if self.max_bytes is not None and self.max_bytes < 1:
            raise InvalidInputError.of("max_bytes", self.max_bytes, "at least 1, or none")
        if self.end is not None and self.end <= self.start:
            raise InvalidInputError.of("end", self.end, f"a key above start, {self.start!r}")

    def settled(self, face: str, settings: Settings) -> CompactionOptions:
        """Return these, with what is not said as the namespaces of a face have it."""
        is_pages = face == _PAGES
        size = settings.image_layer_target_bytes if is_pages else _TARGET_BYTES
        inputs = settings.compaction_cadence[0] if is_pages else _INPUTS_MIN
        return msgspec.structs.replace(
            self,
            target_file_size_bytes=self.target_file_size_bytes or size,
            min_input_files=self.min_input_files or inputs,
        )

    @property
    def target_bytes(self) -> int:
        """`target_file_size_bytes`, settled."""
        assert self.target_file_size_bytes is not None
        return self.target_file_size_bytes

    @property
    def inputs_min(self) -> int:
        """`min_input_files`, settled."""
        assert self.min_input_files is not None
        return self.min_input_files

    @property
    def runs_max(self) -> int:
        """How many runs one task may merge."""
        return (self.memory_bytes - TASK_BYTES) // SOURCE_BYTES
