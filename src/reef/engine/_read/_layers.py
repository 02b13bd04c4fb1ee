"""Which segment may hold a key, found in memory: runs of segments, and a bisect in each.

A *layer* is something to look into: the memtable, a segment, or a run of segments that have no keys
in common. Layers come in descending order of their newest version, and of the segments that may hold
a key, the newer one is always in an earlier layer. So a point read costs a step for each layer, not
for each segment, and asks nobody but the manifest in memory which segments there are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from reef.segment import Prune, RowSource, RowVersion, SegmentSource


class Run:
    """Segments without a key in common, in order of keys: a RowSource for point reads."""

    __slots__ = ("_firsts", "key_max", "key_min", "lsn_max", "lsn_min", "sources")

    def __init__(self, sources: Sequence[SegmentSource]) -> None:
        """`sources` are at least one, in order of keys."""
        self.sources = sources
        self._firsts = [source.key_min for source in sources]
        self.key_min = self._firsts[0]
        self.key_max = sources[-1].key_max
        self.lsn_min = min(source.lsn_min for source in sources)
        self.lsn_max = max(source.lsn_max for source in sources)

    def get(self, key: bytes, lsn: int) -> RowVersion | None:
        """Return the newest version of `key` at or below `lsn`; `key` is not below `key_min`."""
        source = self.sources[bisect_right(self._firsts, key) - 1]
        if source.key_end <= key or source.lsn_min > lsn:
            return None
        return source.get(key, lsn)

    def get_many(self, keys: Sequence[bytes], lsn: int) -> list[RowVersion | None]:
        """Return for each key what `get` would."""
        return [self.get(key, lsn) for key in keys]

    def split(self, keys: Sequence[bytes], lsn: int) -> Iterator[tuple[SegmentSource, list[int]]]:
        """Yield the segments that may hold some of the keys, none below `key_min`, and which."""
        inside: dict[int, list[int]] = {}
        for i, key in enumerate(keys):
            inside.setdefault(bisect_right(self._firsts, key) - 1, []).append(i)
        for number, some in inside.items():
            source = self.sources[number]
            if source.lsn_min <= lsn:
                within = [i for i in some if keys[i] < source.key_end]
                if within:
                    yield source, within

    def between(self, low: bytes, high: bytes | None) -> Sequence[SegmentSource]:
        """Return the segments that may hold keys from `low` to `high`, both included."""
        first = max(0, bisect_right(self._firsts, low) - 1)
        stop = len(self.sources) if high is None else bisect_right(self._firsts, high)
        some = self.sources[first:stop]
        return some[1:] if some and some[0].key_end <= low else some

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
        """Yield what its segments do, one after the other."""
        sources = self.between(start, end)
        for source in reversed(sources) if reverse else sources:
            yield from source.batches(
                start, end, columns=columns, reverse=reverse, lsn=lsn, prune=prune
            )


def layers_of(sources: Iterable[RowSource]) -> tuple[RowSource, ...]:
    """Return the layers of sources that come in descending order of their newest version."""
    layers: list[RowSource] = []
    gathered = _LayerBuilder()
    for source in sources:
        if not isinstance(source, SegmentSource):
            layers += gathered.layer()
            layers.append(source)
            gathered = _LayerBuilder()
        elif source.key_min >= source.key_end:
            pass  # its reference clips all of it, so it has no place in the order
        elif not gathered.take(source):
            layers += gathered.layer()
            gathered = _LayerBuilder()
            gathered.take(source)
    return (*layers, *gathered.layer())


class CountedLookup(NamedTuple):
    """The row that a read found, and how many layers it looked into."""

    found: RowVersion | None
    layers: int


def lookup_counted(layers: Sequence[RowSource], key: bytes, lsn: int) -> CountedLookup:
    """Return what `lookup` would, and the number of layers it looked into."""
    best: RowVersion | None = None
    newest, looked = -1, 0
    for layer in layers:
        if layer.lsn_max <= newest:
            break
        if layer.lsn_min <= lsn and layer.key_min <= key <= layer.key_max:
            looked += 1
            found = layer.get(key, lsn)
            if found is not None and found.lsn > newest:
                best, newest = found, found.lsn
    return CountedLookup(best, looked)


class _LayerBuilder:
    """Segments that will become one layer."""

    def __init__(self) -> None:
        self._firsts: list[bytes] = []
        self._sources: list[SegmentSource] = []

    def take(self, source: SegmentSource) -> bool:
        """Add a segment, unless it has keys in common with one that is there."""
        at = bisect_left(self._firsts, source.key_min)
        if at < len(self._firsts) and self._firsts[at] < source.key_end:
            return False
        if at and self._sources[at - 1].key_end > source.key_min:
            return False
        self._firsts.insert(at, source.key_min)
        self._sources.insert(at, source)
        return True

    def layer(self) -> tuple[RowSource, ...]:
        """Return them as a layer, or nothing."""
        if len(self._sources) > 1:
            return (Run(self._sources),)
        return tuple(self._sources)
