"""The interface of anything that holds rows (a segment, a memtable), and the clips of a segment.

A *source* holds versions of keys, each (key, LSN) at most once. The batches that it gives have the
segment's system columns first: `_key`, `_lsn`, `_tombstone`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reef.format import SegmentRef
from reef.types import LSN_MAX


class RowVersion(NamedTuple):
    """A version of a key: its LSN, whether it is a tombstone, and the batch and number of its row.

    `lsn` is the version to go by: the `_lsn` column of `batch` may say another, where a whole
    segment takes its version from the log (an attached one).
    """

    lsn: int
    tombstone: bool
    batch: pa.RecordBatch
    row: int


Prune = Callable[[pa.RecordBatch, Collection[str]], npt.NDArray[np.bool_]]
"""Tells which blocks of a segment are worth reading, from its row index and its columns' names.

A block that is left out may hide a newer version: the caller has to make sure that what it finds is
the newest.
"""


class RowSource(Protocol):
    """Versions of keys between two LSNs and between two keys, all bounds inclusive."""

    @property
    def lsn_min(self) -> int: ...

    @property
    def lsn_max(self) -> int: ...

    @property
    def key_min(self) -> bytes: ...

    @property
    def key_max(self) -> bytes: ...

    def get(self, key: bytes, lsn: int) -> RowVersion | None:
        """Return the newest version of `key` at or below `lsn`, a tombstone too, or None."""
        ...

    def get_many(self, keys: Sequence[bytes], lsn: int) -> list[RowVersion | None]:
        """Return for each key what `get` would."""
        ...

    def batches(
        self,
        start: bytes,
        end: bytes | None,
        *,
        columns: Sequence[str] | None,
        reverse: bool,
        lsn: int,
        prune: Prune | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the versions of keys from `start` up to `end` (exclusive; None is past every key).

        The columns are `_key`, `_lsn`, `_tombstone`, then those of `columns` that the source has, in
        the order asked (None: all of its own). Rows are sorted by key, ascending, or descending in
        reverse, and within a key always from the newest version to the oldest. Versions above
        `lsn` may be among them. Blocks that `prune` rules out may be left out.
        """
        ...


class Clip:
    """The limits of a manifest's reference to a segment; all bounds but `key_end` are inclusive.

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
