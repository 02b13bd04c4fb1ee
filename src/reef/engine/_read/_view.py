"""The rows of a namespace at one version: the one implementation of reads, for every handle.

A read takes the newest version of a key at or below the view's LSN from the memtable and the
segments. Nothing that a view can see changes under it. If a segment is gone, because it was
compacted away and collected, the view is built anew from the manifest's head at the same LSN, and
continues where it was; if that is not possible, `SnapshotExpiredError` says so. A missing object is
never "no such key".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TypeVar

import pyarrow as pa

from reef.engine._read._latest import (
    Columns,
    Latest,
    Part,
    Points,
    SortedKeys,
    parts_of,
    versions_of,
)
from reef.engine._read._layers import Run, layers_of
from reef.engine._read._thresholds import POINTS_MAX, WARM_SEGMENTS_MAX
from reef.errors import (
    DamagedError,
    InvalidInputError,
    NotFoundError,
    RetentionError,
    SnapshotExpiredError,
)
from reef.fork import abandon_in_child, forked_error
from reef.format import Manifest
from reef.segment import (
    RowSource,
    RowVersion,
    SegmentReader,
    SegmentSource,
    lookup,
    lookup_many,
    merge,
)
from reef.types import KEY_BYTES_MAX, after_prefix

_T = TypeVar("_T")
_RELOADS_MAX = 3


class _ParentSources(tuple[RowSource, ...]):
    """The sources of a view in a forked process."""

    def __iter__(self) -> Iterator[RowSource]:
        raise forked_error("this view")


class ReadState:
    """Where the rows of a namespace are, as of one manifest."""

    points_max = POINTS_MAX
    """Tests set it on the class, to have the same keys read both ways."""

    def __init__(
        self, manifest: Manifest, sources: tuple[RowSource, ...], segments: SegmentReader
    ) -> None:
        """`sources` are in descending order of their newest version, a memtable first."""
        self.manifest = manifest
        self.sources = sources
        self.is_warm = False
        self._segments = segments
        abandon_in_child(self)

    def abandon(self) -> None:
        """Refuse every read, in a forked process: caches and their locks are the parent's."""
        self.sources = _ParentSources()
        self.is_warm = False
        self.__dict__.pop("layers", None)

    @cached_property
    def layers(self) -> tuple[RowSource, ...]:
        """The sources as point reads look into them: segments without common keys are one."""
        return layers_of(self.sources)

    def one(self, key: bytes, lsn: int) -> RowVersion | None:
        """Return the newest version of `key` at or below `lsn`, a tombstone too, or None."""
        if not self.is_warm:
            self.warm(key, key)
        return lookup(self.layers, key, lsn)

    def bring(self, low: bytes, high: bytes, lsn: int, *, bytes_max: int) -> None:
        """Bring the blocks into memory that reads at `lsn` of the keys from `low` to `high` need.

        Those that are missing are fetched side by side, neighbours in one request, up to about
        `bytes_max`.
        """
        in_range: list[SegmentSource] = []
        for layer in self.layers:
            if layer.lsn_min <= lsn and layer.key_min <= high and layer.key_max >= low:
                if isinstance(layer, Run):
                    in_range += layer.between(low, high)
                elif isinstance(layer, SegmentSource):
                    in_range.append(layer)
        visible = [one for one in in_range if one.lsn_min <= lsn]
        self._segments.bring(visible, low, high, lsn, bytes_max=bytes_max)

    def warm(self, low: bytes, high: bytes | None) -> None:
        """Bring the tails that a read of these keys may need into memory, side by side.

        Once is enough: later reads of other keys find most of them there.
        """
        refs = [
            source.ref
            for source in self.sources
            if isinstance(source, SegmentSource)
            and source.key_max >= low
            and (high is None or source.key_min <= high)
        ]
        if len(refs) > 1:
            self._segments.prefetch_tails(refs[:WARM_SEGMENTS_MAX])
        self.is_warm = True

    def many(
        self, keys: Sequence[bytes] | pa.BinaryArray, lsn: int, *, wide: bool = True
    ) -> Latest:
        """Return the newest version of each key at or below `lsn`; all segments side by side.

        Without `wide`, rows from segments lack the columns that lie in blocks of their own.
        """
        if len(keys) <= self.points_max:
            listed = keys.to_pylist() if isinstance(keys, pa.Array) else keys
            return Latest(Points(keys, self._points(listed, lsn, wide=wide)))
        array = keys if isinstance(keys, pa.Array) else pa.array(keys, pa.binary())
        return Latest(self._joined(SortedKeys.of(array), lsn, wide=wide))

    def _points(self, keys: Sequence[bytes], lsn: int, *, wide: bool) -> list[RowVersion | None]:
        """Return the newest version of each key, looked up one by one; all segments side by side.

        A key that is in memory is looked for only in segments that may have a newer one.
        """
        best = lookup_many(
            [source for source in self.sources if not isinstance(source, SegmentSource)], keys, lsn
        )
        key_numbers: list[tuple[SegmentSource, list[int]]] = []
        for layer in self.layers:
            if not isinstance(layer, SegmentSource | Run) or layer.lsn_min > lsn:
                continue
            low, high, most = layer.key_min, layer.key_max, layer.lsn_max
            inside = [
                i
                for i, (key, found) in enumerate(zip(keys, best, strict=True))
                if low <= key <= high and (found is None or found.lsn < most)
            ]
            if isinstance(layer, Run):
                for source, some in layer.split([keys[i] for i in inside], lsn):
                    key_numbers.append((source, [inside[i] for i in some]))
            elif inside:
                key_numbers.append((layer, inside))
        answers = self._segments.get_many(
            [(source, [keys[i] for i in inside]) for source, inside in key_numbers],
            lsn,
            wide=wide,
        )
        for (_, inside), answer in zip(key_numbers, answers, strict=True):
            for i, version in zip(inside, answer, strict=True):
                known = best[i]
                if version is not None and (known is None or version.lsn > known.lsn):
                    best[i] = version
        return best

    def _joined(self, sorted_keys: SortedKeys, lsn: int, *, wide: bool) -> Columns:
        """Return the newest version of each key, with no step for each of them."""
        segments = [source for source in self.sources if isinstance(source, SegmentSource)]
        memory = [source for source in self.sources if not isinstance(source, SegmentSource)]
        held = lookup_many(memory, sorted_keys.keys.to_pylist(), lsn)
        known = versions_of(held)
        newest = known.copy()
        joined = self._segments.join(segments, sorted_keys.keys, newest, lsn, wide=wide)
        is_newest = (newest == known).tolist()
        parts = parts_of([one if ok else None for one, ok in zip(held, is_newest, strict=True)])
        return Columns(sorted_keys, newest, parts + [Part(rows, None, at) for rows, at in joined])


class View:
    """The rows of a namespace at one LSN."""

    def __init__(
        self,
        lsn: int,
        state: Callable[[], ReadState],
        reload: Callable[[], None],
        *,
        is_retained: bool = False,
    ) -> None:
        """`state` returns the current sources; `reload` looks for a newer manifest.

        `is_retained`: a snapshot holds the LSN, so that the retention floor does not matter.
        """
        self.lsn = lsn
        self._state = state
        self._reload = reload
        self._is_retained = is_retained
        self._state_held = state()
        self._check(self._state_held)

    @property
    def life(self) -> tuple[str, int]:
        """The namespace, and the generation with which this life of it began."""
        return self._state_held.manifest.namespace, self._state_held.manifest.born

    def one(self, key: bytes) -> RowVersion | None:
        """Return the row of `key`, or None. Raises SnapshotExpiredError, UnavailableError."""
        found = self.read(lambda state: state.one(key, self.lsn))
        return None if found is None or found.tombstone else found

    def many(self, keys: Sequence[bytes] | pa.BinaryArray, *, wide: bool = True) -> Latest:
        """Return the newest version of each key; without `wide`, rows lack wide columns."""
        return self.read(lambda state: state.many(keys, self.lsn, wide=wide))

    def scan(
        self,
        *,
        start: bytes | None = None,
        end: bytes | None = None,
        prefix: bytes | None = None,
        reverse: bool = False,
        columns: Sequence[str] | None = None,
        ordered: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows from `start` up to `end` (exclusive) in order of keys, in bounded memory.

        The columns are `_key`, `_lsn`, then those asked for (None: all). Without `ordered`, the
        same rows come in an order that costs less.
        """
        low, high = key_range(start, end, prefix)
        reloads = 0

        def passed(key: bytes) -> None:
            # If a segment is gone, the next attempt continues from this key.
            nonlocal low, high, reloads
            low, high = (low, key) if reverse else (key + b"\0", high)
            reloads = 0

        while high is None or low < high:
            try:
                state = self._state_held
                if not state.is_warm:
                    state.warm(low, high)
                yield from merge(
                    state.sources,
                    start=low,
                    end=high,
                    lsn=self.lsn,
                    columns=columns,
                    reverse=reverse,
                    ordered=ordered,
                    passed=passed,
                )
                return
            except (NotFoundError, DamagedError) as error:
                reloads += 1
                self._look_again(reloads, error)

    def _check(self, state: ReadState) -> None:
        manifest = state.manifest
        floor = manifest.retention.floor_lsn
        if self.lsn >= floor:
            return
        if not self._is_retained:
            raise RetentionError(
                f"LSN {self.lsn} of namespace {manifest.namespace!r} lies below {floor}; older "
                "versions are not kept: read at or above it, and next time take a snapshot first"
            )
        if not any(snapshot.lsn == self.lsn for snapshot in manifest.snapshots):
            raise SnapshotExpiredError(
                f"the snapshot of namespace {manifest.namespace!r} at LSN {self.lsn} has expired or "
                "was released; take a new one"
            )

    def read(self, read: Callable[[ReadState], _T]) -> _T:
        """Return `read` of the current sources; call it again if a segment is gone."""
        reloads = 0
        while True:
            try:
                return read(self._state_held)
            except (NotFoundError, DamagedError) as error:
                reloads += 1
                self._look_again(reloads, error)

    def _look_again(self, reloads: int, error: NotFoundError | DamagedError) -> None:
        """Use the newest manifest: a segment may have been collected, or restored by repair."""
        is_damaged = isinstance(error, DamagedError)
        if reloads > _RELOADS_MAX and not is_damaged:
            raise SnapshotExpiredError(
                f"an object that the view at LSN {self.lsn} needs was collected ({error}); "
                "take a new view"
            ) from error
        before = self._state_held.manifest.segments
        self._reload()
        state = self._state()
        try:
            self._check(state)
        except RetentionError as passed:
            raise SnapshotExpiredError(
                f"the view at LSN {self.lsn} was overtaken: {passed}"
            ) from error
        # Only now: a concurrent read must not take rows that are gone for absent.
        self._state_held = state
        if is_damaged and state.manifest.segments == before:
            raise error


def key_range(
    start: bytes | None, end: bytes | None, prefix: bytes | None
) -> tuple[bytes, bytes | None]:
    """Return the requested range: the least key and the end (exclusive; None: past every key)."""
    for name, key in (("start", start), ("end", end), ("prefix", prefix)):
        if key is not None and not isinstance(key, bytes | bytearray | memoryview):
            raise InvalidInputError.of(name, key, f"bytes, at most {KEY_BYTES_MAX} of them")
    low, high = bytes(start or b""), None if end is None else bytes(end)
    if prefix:
        low = max(low, bytes(prefix))
        above = after_prefix(bytes(prefix))
        high = above if high is None else high if above is None else min(high, above)
    return low, high
