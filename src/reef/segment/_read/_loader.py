"""Tails and blocks of segments, from memory, disk or store.

Invariants:

- Bytes are checked before they are used or kept: against the block's checksum, the index and the
  manifest.
- A damaged tail or block is read once more, from the store itself, before its error is raised: the
  disk cache or the network may have damaged it.
- Only the caches keep anything, and they are bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from reef.errors import DamagedError
from reef.format import BlockPlace, decode_tail, hash_key
from reef.metrics import Metrics
from reef.segment._read._block import ColumnBlock, RowBlock, TailEntry
from reef.segment._read._block_cache import BlockCache
from reef.segment._read._disk_cache import DiskCache
from reef.segment._read._fetch import Extent, cut_by_bytes, detached, fetch
from reef.segment._row_source import Clip
from reef.store import Store


class Wanted(NamedTuple):
    """A block of a segment: of its rows, or of a wide column."""

    entry: TailEntry
    number: int
    column: str = ""
    """"" for a row block."""

    @property
    def cache_key(self) -> tuple[str, int] | tuple[str, int, str]:
        """Its key in the block cache."""
        key = self.entry.tail.key
        return (key, self.number, self.column) if self.column else (key, self.number)

    @property
    def place(self) -> BlockPlace:
        tail = self.entry.tail
        return (tail.column_places[self.column] if self.column else tail.row_places)[self.number]

    @property
    def extent(self) -> Extent:
        place = self.place
        tail = self.entry.tail
        return Extent(tail.key, place.offset, place.length, tail.checksum)

    def decode(self, data: pa.Buffer) -> pa.RecordBatch | pa.Array:
        """Return rows, or values of the column, from bytes. Raises DamagedError, FormatVersionError."""
        tail = self.entry.tail
        if self.column:
            return tail.decode_column(self.column, self.number, data)
        return tail.decode_rows(self.number, data)


Block: TypeAlias = RowBlock | ColumnBlock


class Loader:
    """Reads through the caches: what a reader's sources share."""

    def __init__(
        self, store: Store, *, cache: BlockCache, disk: DiskCache | None, metrics: Metrics
    ) -> None:
        self.store = store
        self.cache = cache
        self.disk = disk
        self.metrics = metrics
        self._hashed = (b"", hash_key(b""))

    def tail(self, segment: Clip) -> TailEntry:
        """Return the tail of a segment."""
        entry: TailEntry | None = self.cache.use("tail", segment.object_key)
        return entry if entry is not None else self._fetch_tails([segment])[0]

    def tails(self, segments: Sequence[Clip]) -> list[TailEntry]:
        """Return the tails of segments; those that are nowhere cached are fetched side by side."""
        found = {one.object_key: self.cache.use("tail", one.object_key) for one in segments}
        missing = {one.object_key: one for one in segments if found[one.object_key] is None}
        found.update(zip(missing, self._fetch_tails([*missing.values()]), strict=True))
        return [found[one.object_key] for one in segments]

    def prefetch_tails(self, segments: Sequence[Clip]) -> None:
        """Bring the tails of segments into memory."""
        distinct = {one.object_key: one for one in segments}
        missing = [one for key, one in distinct.items() if self.cache.use("tail", key) is None]
        for some in cut_by_bytes(missing, [one.ref.footer_length for one in missing]):
            self._fetch_tails(some)

    def blocks(self, wanted: Sequence[Wanted]) -> list[Any]:
        """Return blocks, and keep them; those that are nowhere cached are fetched side by side."""
        found: dict[Wanted, Block] = {}
        missing: list[Wanted] = []
        for want in dict.fromkeys(wanted):
            block = self.cache.use("block", want.cache_key)
            if block is None:
                missing.append(want)
            else:
                found[want] = block
        data = self._read([want.extent for want in missing])
        for want, some in zip(missing, data, strict=True):
            found[want] = self.keep(want, self.decode(want, detached(some)))
        return [found[want] for want in wanted]

    def keep(self, want: Wanted, decoded: pa.RecordBatch | pa.Array) -> Any:
        """Keep a decoded block in memory, and return it."""
        block: Block = ColumnBlock(decoded) if want.column else RowBlock(decoded)
        self.cache.put(want.cache_key, block)
        return block

    def keys(self, want: Wanted, block: RowBlock) -> list[bytes]:
        """Return the keys of a block, as a list that is made once and accounted for."""
        if block.keys is None:
            self.cache.resize(want.cache_key, block, block.make_lists())
            assert block.keys is not None
        return block.keys

    def may_contain(self, entry: TailEntry, key: bytes) -> bool:
        """Return False, and count it, if the bloom filter rules out that a segment has `key`."""
        of, hashed = self._hashed
        if of is not key:  # a read asks one segment after the other for the same key
            hashed = hash_key(key)
            self._hashed = (key, hashed)
        if entry.tail.bloom.may_contain(hashed):
            return True
        self.metrics.count("reef_bloom_skips_total")
        return False

    def decode(self, want: Wanted, data: pa.Buffer) -> pa.RecordBatch | pa.Array:
        """Return a block from its bytes, or from the store's if these are damaged."""
        try:
            return want.decode(data)
        except DamagedError:
            return want.decode(self._read_again(want.extent))

    def on_disk(self, want: Wanted) -> pa.Buffer | None:
        """Return the bytes of a block if the cache on disk is known to have them."""
        if self.disk is None:
            return None
        name = self._name(want.extent)
        return self.disk.get(name) if name in self.disk else None

    def _fetch_tails(self, segments: Sequence[Clip]) -> list[TailEntry]:
        extents = [_tail_extent(one) for one in segments]
        entries = []
        for one, extent, data in zip(segments, extents, self._read(extents), strict=True):
            try:
                entry = _tail_entry(one, data)
            except DamagedError:
                entry = _tail_entry(one, self._read_again(extent))
            self.cache.put(one.object_key, entry)
            entries.append(entry)
        return entries

    def _read(self, extents: Sequence[Extent]) -> list[pa.Buffer]:
        """Return bytes from the cache on disk, else from the store."""
        if self.disk is None:
            return fetch(self.store, extents)
        found = [self.disk.get(self._name(extent)) for extent in extents]
        missing = [i for i, data in enumerate(found) if data is None]
        for i, data in zip(missing, fetch(self.store, [extents[i] for i in missing]), strict=True):
            found[i] = data
            self.disk.put(self._name(extents[i]), data)
        return [data for data in found if data is not None]

    def _read_again(self, extent: Extent) -> pa.Buffer:
        if self.disk is not None:
            self.disk.drop(self._name(extent))
        return pa.py_buffer(self.store.get_range(extent.key, extent.offset, extent.length))

    def _name(self, extent: Extent) -> str:
        # With the checksum of its footer: a bucket of the same address may be another one some day.
        key, offset, length, checksum = extent
        return f"{self.store.url} {key} {checksum:08x} {offset} {length}"


def _tail_extent(segment: Clip) -> Extent:
    ref = segment.ref
    offset = ref.size - ref.footer_length
    return Extent(segment.object_key, offset, ref.footer_length, ref.checksum)


def _tail_entry(segment: Clip, data: pa.Buffer) -> TailEntry:
    key, ref = segment.object_key, segment.ref
    return TailEntry(decode_tail(data.to_pybytes(), key=key, size=ref.size, ref=ref), data.size)
