"""A segment as a reference lets it be seen: which keys, and which versions."""

from __future__ import annotations

from reef.format import SegmentRef
from reef.types import LSN_MAX


class Clip:
    """What a manifest's reference says of a segment's rows; all bounds but `key_end` are inclusive.

    Key clips cut off keys; `clip_lsn` cuts off newer versions; `version` is that of every row,
    whatever the file says.
    """

    __slots__ = ("key_end", "key_max", "key_min", "lsn_max", "lsn_min", "object_key", "ref")

    def __init__(self, object_key: str, ref: SegmentRef) -> None:
        self.object_key = object_key
        self.ref = ref
        self.key_min = max(ref.key_min, ref.clip_key_min or b"")
        self.key_max = ref.key_max
        self.key_end = ref.key_max + b"\0"
        if ref.clip_key_max is not None:
            self.key_max = min(self.key_max, ref.clip_key_max)
            self.key_end = min(self.key_end, ref.clip_key_max)
        self.lsn_min, self.lsn_max = ref.lsn_min, ref.lsn_max
        if ref.version is not None:
            self.lsn_min = self.lsn_max = ref.version
        if ref.clip_lsn is not None:
            self.lsn_max = min(self.lsn_max, ref.clip_lsn)

    def file_lsn(self, lsn: int) -> int:
        """Return the newest version in the file that may be seen at `lsn`, or 0 for none."""
        lsn = min(lsn, self.lsn_max)
        if lsn < self.lsn_min:
            return 0
        return lsn if self.ref.version is None else LSN_MAX
