"""Decoded tails and blocks of segments in memory, the least recently used evicted first.

Invariants:

- The entries' bytes are at most `capacity_bytes`, whenever no call is running. An
  entry that is larger by itself is not kept.
- Segments never change, so an entry is right for as long as it is there.
- A hit takes no lock: the lookup and the step to the end of the order are single operations of
  `OrderedDict`, each atomic; an entry that is evicted between the two was found all the same. Only
  what changes the sum of bytes holds the lock.

Hot reads are counted by `itertools.count`, which loses none among threads and costs a tenth of a
locked counter; the metrics learn of them every 1,024 reads, and when `publish` is called.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from itertools import count
from typing import Any, Literal, Protocol

from reef.metrics import Metrics

Kind = Literal["block", "tail"]
_PUBLISH_MASK = 1023


class CacheEntry(Protocol):
    """A cacheable object, with its bytes in memory. Only the cache changes that number."""

    nbytes: int


class _HitCounter:
    """Counts hits without a lock."""

    def __init__(self) -> None:
        self.step = count(1).__next__
        self._reads = 0
        self._published = 0

    def take_unpublished(self) -> int:
        """Return the hits since the last call. For one thread at a time."""
        hits = self.step() - 1 - self._reads  # reading the counter takes a step of its own
        self._reads += 1
        unpublished, self._published = hits - self._published, hits
        return unpublished


class BlockCache:
    """Decoded tails and blocks, bounded in bytes. Safe among threads."""

    def __init__(self, capacity_bytes: int, *, metrics: Metrics) -> None:
        self.capacity_bytes = capacity_bytes
        self._metrics = metrics
        self._entries: OrderedDict[Hashable, CacheEntry] = OrderedDict()
        self._touch = self._entries.move_to_end
        self._nbytes = 0
        self._lock = threading.Lock()
        self._tail_hits = _HitCounter()
        self._block_hits = _HitCounter()
        self._tail_hit = self._tail_hits.step
        self._block_hit = self._block_hits.step
        self.find: Callable[[Hashable], Any] = self._entries.get
        """Return the entry of a key, or None. It is neither counted nor marked as used."""

    @property
    def nbytes(self) -> int:
        """The bytes of all entries."""
        return self._nbytes

    def __len__(self) -> int:
        return len(self._entries)

    def use(self, kind: Kind, key: Hashable) -> Any:
        """Return the entry of `key`, now the most recently used, or None; count the lookup."""
        entry = self.find(key)
        name = "reef_cache_misses_total" if entry is None else "reef_cache_hits_total"
        self._metrics.count(name, cache=kind)
        if entry is not None:
            with suppress(KeyError):  # evicted since
                self._touch(key)
        return entry

    # Hot reads call this. try-except, because `suppress` takes half a microsecond.

    def used(self, tail: Hashable, block: Hashable) -> None:
        """Record a hit of a tail and a block."""
        try:
            self._touch(tail)
            self._touch(block)
        except KeyError:  # evicted since
            pass
        self._tail_hit()
        if not self._block_hit() & _PUBLISH_MASK:
            self.publish()

    def used_tail(self, tail: Hashable) -> None:
        """Record a hit of a tail alone."""
        try:  # noqa: SIM105
            self._touch(tail)
        except KeyError:  # evicted since
            pass
        if not self._tail_hit() & _PUBLISH_MASK:
            self.publish()

    def put(self, key: Hashable, entry: CacheEntry) -> None:
        """Keep `entry`, and evict others for it, unless it is too large by itself."""
        if entry.nbytes > self.capacity_bytes:
            return
        with self._lock:
            self._remove(key)
            self._entries[key] = entry
            self._nbytes += entry.nbytes
            self._evict()

    def resize(self, key: Hashable, entry: CacheEntry, nbytes: int) -> None:
        """Record that an entry, kept or not, takes `nbytes` now."""
        with self._lock:
            if self._entries.get(key) is entry:
                self._nbytes += nbytes - entry.nbytes
            entry.nbytes = nbytes
            self._evict()

    def publish(self) -> None:
        """Add the hot reads since the last call to the metrics."""
        with self._lock:
            for kind, hits in (("tail", self._tail_hits), ("block", self._block_hits)):
                if unpublished := hits.take_unpublished():
                    self._metrics.count("reef_cache_hits_total", unpublished, cache=kind)

    def _remove(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._nbytes -= entry.nbytes

    def _evict(self) -> None:
        while self._nbytes > self.capacity_bytes:
            _, entry = self._entries.popitem(last=False)
            self._nbytes -= entry.nbytes
