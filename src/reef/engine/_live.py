"""The sources of an open namespace's rows: its manifest, the unfolded log, and open segments.

A handle and its commit path share one. Reads take no lock: they note the newest version first
and `state` second. Changes need the handle's lock.
"""

from __future__ import annotations

from collections.abc import Iterable

from reef.engine._read._view import ReadState
from reef.engine._tail import Tail
from reef.format import Manifest, SegmentRef
from reef.segment import RowSource, SegmentReader


class LiveRows:
    """The sources of reads. Each part is replaced in one step."""

    def __init__(self, segments: SegmentReader, manifest: Manifest, tail: Tail) -> None:
        self._segments = segments
        self._opened: dict[SegmentRef, RowSource] = {}
        self.tail = tail
        self.state = self._build(manifest, tail)

    @property
    def manifest(self) -> Manifest:
        """The manifest that reads use."""
        return self.state.manifest

    def current(self) -> ReadState:
        """Return the sources of all rows, records in flight included."""
        return self.state

    def rebuild(self, attached: tuple[SegmentRef, ...] = ()) -> None:
        """Read from the tail's segments, and from `attached`, which will be in the tail."""
        self.state = self._build(self.manifest, self.tail, attached)

    def stand_on(self, manifest: Manifest, tail: Tail) -> None:
        """Read from the segments of `manifest`, and from `tail`, which begins at its floor."""
        self.tail.schema = tail.schema  # first: reads that see new rows need their columns
        self.state = self._build(manifest, tail)
        self.tail = tail

    def at(self, manifest: Manifest) -> ReadState:
        """Return the sources of another generation's rows."""
        sources = [self._segments.open(ref) for ref in manifest.segments]
        return ReadState(manifest, tuple(_newest_first(sources)), self._segments)

    def _build(
        self, manifest: Manifest, tail: Tail, attached: tuple[SegmentRef, ...] = ()
    ) -> ReadState:
        refs = (*attached, *tail.attaching, *tail.attached, *manifest.segments)
        opened = {ref: self._opened.get(ref) or self._segments.open(ref) for ref in refs}
        self._opened = opened
        sources = (tail.memtable, *_newest_first(opened.values()))
        return ReadState(manifest, sources, self._segments)


def _newest_first(sources: Iterable[RowSource]) -> list[RowSource]:
    return sorted(sources, key=lambda source: source.lsn_max, reverse=True)
