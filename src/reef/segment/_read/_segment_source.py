"""Segments as sources of rows.

Invariants:

- A key outside of the segment's range, or of the keys that its reference shows, costs nothing. Any
  other costs at most two steps of requests: the tail, then the block or the two neighbouring blocks
  in which the index says the version must be; a third for the values of wide columns.
- The filter is asked only where it saves a request: a block that is in memory answers faster.
- A missing object raises NotFoundError: the reader decides what that means.
- A source holds no part of the segment: what is decoded is in the caches only, which are bounded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reef.format import SegmentRef, SegmentTail, segment_key
from reef.metrics import Metrics
from reef.segment._read._block_cache import BlockCache
from reef.segment._read._disk_cache import DiskCache
from reef.segment._read._join import NewestRows, join
from reef.segment._read._loader import Loader, Wanted
from reef.segment._read._point import cached_row, get_many
from reef.segment._read._scan import scan
from reef.segment._row_source import Clip, Prune, RowVersion
from reef.store import Store

_COLD: Any = object()
_HOT_KEYS_MAX = 4
"""Of a segment with wide columns, up to this many keys are answered one by one from blocks in memory;
more get one batch for the rows of a block, instead of one for each row."""
_new = tuple.__new__  # like RowVersion's own constructor, without the call


class SegmentReader:
    """Opens the segments that a namespace's manifests name. Safe among threads."""

    def __init__(
        self,
        store: Store,
        namespace: str,
        *,
        cache: BlockCache,
        disk: DiskCache | None = None,
        metrics: Metrics,
    ) -> None:
        self.namespace = namespace
        self._loader = Loader(store, cache=cache, disk=disk, metrics=metrics)

    def open(self, ref: SegmentRef) -> SegmentSource:
        """Return the rows that `ref` shows. Fetches nothing yet."""
        key = segment_key(ref.namespace or self.namespace, ref.id)
        return SegmentSource(self, key, ref)

    def prefetch_tails(self, refs: Sequence[SegmentRef]) -> None:
        """Bring the tails of segments into memory, those that are missing side by side.

        Raises NotFoundError, UnavailableError, DamagedError.
        """
        self._loader.prefetch_tails([self.open(ref) for ref in refs])

    def get_many(
        self,
        keys_by_source: Sequence[tuple[SegmentSource, Sequence[bytes]]],
        lsn: int,
        *,
        wide: bool = True,
    ) -> list[list[RowVersion | None]]:
        """Return for each source what its `get_many` would, with all requests side by side.

        `wide=False` leaves out the values of wide columns, which cost requests of their own.
        """
        answers = [
            [source._get_hot(key, lsn, asks_filter=False, wide=wide) for key in keys]
            if len(keys) <= _HOT_KEYS_MAX or not (wide and source.is_wide)
            else [_COLD] * len(keys)  # one batch for the rows of a block, instead of one each
            for source, keys in keys_by_source
        ]
        cold = [[i for i, found in enumerate(some) if found is _COLD] for some in answers]
        if any(cold):
            rest = [
                (source, [keys[i] for i in some])
                for (source, keys), some in zip(keys_by_source, cold, strict=True)
            ]
            for into, some, found in zip(
                answers, cold, get_many(self._loader, rest, lsn, wide=wide), strict=True
            ):
                for i, one in zip(some, found, strict=True):
                    into[i] = one
        return answers

    def join(
        self,
        sources: Sequence[SegmentSource],
        keys: pa.BinaryArray,
        newest: npt.NDArray[np.int64],
        lsn: int,
        *,
        wide: bool,
    ) -> list[NewestRows]:
        """Return the rows of sorted keys, each once, that sources have newer versions of than known."""
        return join(self._loader, sources, keys, newest, lsn, wide=wide)

    def bring(
        self,
        sources: Sequence[SegmentSource],
        low: bytes,
        high: bytes,
        lsn: int,
        *,
        bytes_max: int,
    ) -> None:
        """Bring the row blocks into memory that may hold keys from `low` to `high` at `lsn`.

        What is missing is fetched side by side, neighbours in one request, up to about `bytes_max`.
        """
        loader = self._loader
        entries = loader.tails(sources)
        wanted: list[Wanted] = []
        size = 0
        for source, entry in zip(sources, entries, strict=True):
            for number in entry.blocks_between(low, high, source.file_lsn(lsn)):
                is_kept = loader.cache.find((source.object_key, number)) is not None
                if is_kept or size >= bytes_max:
                    continue
                wanted.append(Wanted(entry, number))
                size += wanted[-1].place.length
        if wanted:
            loader.blocks(wanted)


class SegmentSource(Clip):
    """The rows of one segment that its reference shows: a RowSource."""

    __slots__ = ("_cache", "_find", "_is_plain", "_loader", "_reader", "_version")

    def __init__(self, reader: SegmentReader, object_key: str, ref: SegmentRef) -> None:
        super().__init__(object_key, ref)
        self._reader = reader
        self._loader = reader._loader
        self._cache = self._loader.cache
        self._find = self._cache.find
        self._version = ref.version
        self._is_plain = ref.clip_lsn is None

    @property
    def is_wide(self) -> bool:
        """Whether it is known to have wide columns."""
        entry = self._find(self.object_key)
        return entry is not None and bool(entry.wide)

    def tail(self) -> SegmentTail:
        """Return the segment's tail. Raises NotFoundError, UnavailableError, DamagedError."""
        return self._loader.tail(self).tail

    def get(self, key: bytes, lsn: int) -> RowVersion | None:
        """Return the newest version of `key` at or below `lsn`, a tombstone too, or None.

        The row has all columns; a tombstone's may lack the wide ones.
        """
        found: RowVersion | None = self._get_hot(key, lsn)
        if found is _COLD:
            return get_many(self._loader, [(self, [key])], lsn, wide=True)[0][0]
        return found

    def _get_hot(self, key: bytes, lsn: int, *, asks_filter: bool = True, wide: bool = True) -> Any:
        """Return what `get` does if everything is in memory and the case is simple; else `_COLD`.

        In as few steps as Python takes: every microsecond of a hot read is here. Without
        `asks_filter`, the filter is left to a caller that can ask it for many keys at once.
        """
        if not self.key_min <= key < self.key_end:
            return None
        find, object_key = self._find, self.object_key
        entry = find(object_key)
        if entry is None or not self._is_plain:
            return _COLD
        number = bisect_left(entry.key_last, key)
        if entry.key_first[number] > key:
            self._cache.used_tail(object_key)
            return None
        at = (object_key, number)
        block = find(at)
        if block is None:
            if asks_filter and not self._loader.may_contain(entry, key):
                self._cache.used_tail(object_key)
                return None
            return _COLD
        if (keys := block.keys) is None:
            return _COLD
        row = bisect_left(keys, key)
        if keys[row] != key:
            self._cache.used(object_key, at)
            return None
        if (found := self._version or block.lsns[row]) > lsn:
            return _COLD
        self._cache.used(object_key, at)
        dead = block.tombstones
        if dead is not None and dead[row] == 1:
            return _new(RowVersion, (found, True, block.batch, row))
        if wide and entry.wide:
            whole = cached_row(self._cache, Wanted(entry, number), block, row)
            return _COLD if whole is None else _new(RowVersion, (found, False, whole, 0))
        return _new(RowVersion, (found, False, block.batch, row))

    def get_many(self, keys: Sequence[bytes], lsn: int) -> list[RowVersion | None]:
        """Return for each key what `get` would, with near blocks in one request."""
        return self._reader.get_many(((self, keys),), lsn)[0]

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
        """Yield the versions of keys from `start` up to `end`, as `RowSource` says.

        A batch is what lies in one block. At most two portions of 8 MiB or a block are in memory.
        """
        return scan(
            self._loader, self, start, end, columns=columns, reverse=reverse, lsn=lsn, prune=prune
        )
