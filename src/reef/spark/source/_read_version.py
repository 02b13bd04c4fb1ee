"""One version of a namespace: found once by the driver, opened alike by every worker.

The driver notes a manifest generation and an LSN. A worker opens that very generation and replays
the log behind it up to that LSN, not up to its end: so all tasks see the same rows while writers,
folds and compactions go on. Whatever a generation names, and the log behind it, stays in the bucket
for the grace period (`gc_grace`, 15 minutes) after the next generation came. If something is gone
after all, the same LSN is looked for in the newest generation, where it is as long as the retention
floor is not above it, or a snapshot holds it. Else `SnapshotExpiredError`.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Lock

import msgspec
import pyarrow as pa

from reef.engine import Context, Face, Reader, ReadState, Tail, View, face_of, open_for_reading
from reef.errors import AccessDeniedError, NotFoundError, RetentionError, SnapshotExpiredError
from reef.format import Manifest, SegmentRef, Snapshot
from reef.log import LogReader
from reef.manifest import Head, ManifestChain, create_snapshot, renew
from reef.segment import RowSource, SegmentSource
from reef.spark.source._read_options import NamespaceRef, ReadOptions
from reef.types import new_ulid

SNAPSHOT_FROM_BYTES = 8 << 30
_OPENED_MAX = 4
_ATTEMPTS = 5
RENEW_AT_SHARE = 0.9
SNAPSHOT_PREFIX = "spark-"


@dataclass(frozen=True)
class ReadVersion:
    """A version of a namespace, small enough to travel with every task."""

    ref: NamespaceRef
    generation: int
    lsn: int
    snapshot: str | None
    """The snapshot that holds it, if one does."""
    replays: bool
    """Whether rows of it are in the log behind the generation."""
    attached: tuple[SegmentRef, ...]
    """Segments that are named by that part of the log."""
    face: str
    schema: bytes
    """The columns to read by, as an Arrow IPC message; b"" if there are none yet."""

    @property
    def key(self) -> tuple[object, ...]:
        """The identity of this version."""
        bucket = msgspec.msgpack.encode(self.ref.bucket)
        return bucket, self.ref.namespace, self.generation, self.lsn, self.snapshot, self.replays

    @property
    def columns(self) -> pa.Schema | None:
        """The columns as they are stored."""
        return pa.ipc.read_schema(pa.py_buffer(self.schema)) if self.schema else None


def find_version(options: ReadOptions) -> ReadVersion:
    """Return the requested version, or the newest one: the manifest, and the unfolded log.

    It is held, by a snapshot that ends by itself, for as long as `hold` says. Without `hold` only a
    namespace of 8 GiB or more is, for the setting `snapshot_ttl` (an hour): a smaller one is read
    well within the grace period, which costs nothing, whereas a snapshot is a PUT, a generation, and
    old versions that compactions have to carry until it ends, because Spark does not say when a
    query is over. Without permission to write, a read is unheld, unless `hold` was set. Reads of one
    LSN share a snapshot, which is renewed if less than nine tenths of `hold` are left of it.

    Raises NotFoundError, RetentionError, SnapshotExpiredError, InvalidInputError, UnavailableError.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _find_once(options)
        except RetentionError:
            # A compaction raised the floor above the newest version that was just found: it is not
            # the newest any more.
            if options.lsn is not None or attempt == _ATTEMPTS:
                raise
    raise AssertionError


def _find_once(options: ReadOptions) -> ReadVersion:
    context = options.ref.bucket.open()
    head = context.chain(options.ref.namespace).load()
    face = Face("", pa.schema([])) if head is None else face_of(head.manifest)
    reader = open_for_reading(context, options.ref.namespace, face)
    try:
        found = _requested_version(reader, options)
        seconds = _hold_s(context, reader.manifest, options)
        if not seconds:
            return found
        try:
            return _pinned_version(context, reader, found, seconds)
        except AccessDeniedError:
            if options.hold_s is not None:
                raise
            return found
    finally:
        reader.close()


def _requested_version(reader: Reader, options: ReadOptions) -> ReadVersion:
    lsn = reader.lsn
    if options.lsn is not None:
        lsn = reader.at_lsn(options.lsn).lsn
    elif options.snapshot is not None:
        lsn = reader.at_snapshot(options.snapshot).lsn
    manifest, tail = reader.manifest, reader.tail
    generation, applied = manifest.generation, manifest.last_applied_lsn
    if options.generation is not None:
        generation = options.generation
        lsn = applied = reader.at_generation(generation).lsn
    return ReadVersion(
        ref=options.ref,
        generation=generation,
        lsn=lsn,
        snapshot=options.snapshot,
        replays=lsn > applied,
        attached=_attached_between(tail.attached, applied, lsn),
        face=face_of(manifest).name,
        schema=b"" if tail.schema is None else tail.schema.serialize().to_pybytes(),
    )


def _attached_between(
    refs: tuple[SegmentRef, ...], above: int, through: int
) -> tuple[SegmentRef, ...]:
    return tuple(ref for ref in refs if above < (ref.version or ref.lsn_max) <= through)


def _hold_s(context: Context, manifest: Manifest, options: ReadOptions) -> float:
    if options.hold_s is not None:
        return options.hold_s
    if options.generation is not None or options.snapshot is not None:
        return 0.0
    is_large = sum(ref.size for ref in manifest.segments) >= SNAPSHOT_FROM_BYTES
    return context.settings.snapshot_ttl if is_large else 0.0


def _pinned_version(
    context: Context, reader: Reader, version: ReadVersion, seconds: float
) -> ReadVersion:
    """Return the same version with a snapshot that holds it. Raises RetentionError."""
    chain = context.chain(version.ref.namespace)
    snapshots = reader.manifest.snapshots
    ours = next(
        (s for s in snapshots if s.id.startswith(SNAPSHOT_PREFIX) and s.lsn == version.lsn), None
    )
    if ours is not None:
        left_s = (ours.expires_at_us - chain.estimated_now_us) / 1_000_000
        if left_s >= seconds * RENEW_AT_SHARE:
            return replace(version, snapshot=ours.id)
    head, snapshot = _take_or_renew(context, chain, reader, version.lsn, seconds, ours)
    applied = head.manifest.last_applied_lsn  # somebody may have folded the log meanwhile
    return replace(
        version,
        # A new snapshot stands on the head, or on a generation that was folded just as far.
        generation=snapshot.generation if ours is None else head.generation,
        snapshot=snapshot.id,
        replays=version.lsn > applied,
        attached=_attached_between(version.attached, applied, version.lsn),
    )


def _take_or_renew(
    context: Context,
    chain: ManifestChain,
    reader: Reader,
    lsn: int,
    seconds: float,
    ours: Snapshot | None,
) -> tuple[Head, Snapshot]:
    """Take a snapshot of `lsn`, or let an earlier read's last as long."""
    if ours is not None:
        with suppress(NotFoundError):
            return renew(chain, id=ours.id, ttl_s=seconds)
    id = SNAPSHOT_PREFIX + new_ulid(context.clock, context.rng)
    slot = reader.tail.replay.next_slot - 1
    return create_snapshot(chain, id=id, lsn=lsn, ttl_s=seconds, wal_last_seen=slot)


class OpenVersion:
    """A version, opened: where its rows are, for `View` to read."""

    def __init__(self, context: Context, version: ReadVersion) -> None:
        """Look for the generation: one GET. The log is replayed when the first view is taken."""
        self.version = version
        self._context = context
        self._segments = context.segments(version.ref.namespace)
        self._chain = context.chain(version.ref.namespace)
        self._manifest: Manifest | None = None
        self._state: ReadState | None = None
        try:
            self._manifest = self._chain.at(version.generation).manifest
        except NotFoundError:
            self.reload()

    def segments(self) -> list[SegmentSource]:
        """Return the segments that rows are in, the log's own among them."""
        if self._state is not None:
            return [source for source in self._state.sources if isinstance(source, SegmentSource)]
        assert self._manifest is not None
        return list(map(self._segments.open, (*self.version.attached, *self._manifest.segments)))

    def prefetch(self, sources: Sequence[SegmentSource]) -> None:
        """Bring the block indexes of segments into memory, side by side. Raises NotFoundError."""
        self._segments.prefetch_tails([source.ref for source in sources])

    def view(self) -> View:
        """Return the rows. Raises SnapshotExpiredError if they are gone."""
        if self._state is None:
            assert self._manifest is not None
            try:
                self._state = self._at(self._manifest, replays=self.version.replays)
            except NotFoundError:
                self.reload()
        is_retained = self.version.snapshot is not None
        try:
            return View(self.version.lsn, self._current, self.reload, is_retained=is_retained)
        except RetentionError as error:
            raise SnapshotExpiredError(f"{error}") from error

    def reload(self) -> None:
        """Look for the same LSN in the newest generation."""
        head = self._chain.load()
        lsn = self.version.lsn
        if head is None or head.manifest.state != "live":
            raise SnapshotExpiredError(
                f"namespace {self.version.ref.namespace!r} was dropped while it was read"
            )
        try:
            self._state = self._at(head.manifest, replays=head.manifest.last_applied_lsn < lsn)
        except NotFoundError as error:
            raise SnapshotExpiredError(f"LSN {lsn} was collected ({error})") from error

    def _current(self) -> ReadState:
        assert self._state is not None
        return self._state

    def _at(self, manifest: Manifest, *, replays: bool) -> ReadState:
        memory: tuple[RowSource, ...] = ()
        refs = manifest.segments
        if replays:
            tail = self._replayed(manifest)
            memory, refs = (tail.memtable,), (*tail.attached, *refs)
        sources = sorted(map(self._segments.open, refs), key=lambda s: s.lsn_max, reverse=True)
        return ReadState(manifest, (*memory, *sources), self._segments)

    def _replayed(self, manifest: Manifest) -> Tail:
        """Return the log behind `manifest` up to the version's LSN. Raises NotFoundError."""
        tail, lsn = Tail(manifest), self.version.lsn
        log = LogReader(self._context.store, manifest.namespace, manifest.lsn_policy)
        entries = log.read(tail.replay, last_known=manifest.wal_last_seen)
        while tail.lsn < lsn:
            entry = next(entries, None)
            if entry is None:
                raise NotFoundError(
                    f"the log of namespace {manifest.namespace!r} behind generation "
                    f"{manifest.generation} ends at LSN {tail.lsn}, before {lsn}"
                )
            tail.apply(entry)
        return tail


_opened: OrderedDict[tuple[object, ...], OpenVersion] = OrderedDict()
_opened_lock = Lock()


def open_version(version: ReadVersion) -> OpenVersion:
    """Return a version opened, the same each time within one process: its log is replayed once.

    A process keeps the four that were used last.
    """
    key = (os.getpid(), *version.key)
    with _opened_lock:
        found = _opened.get(key)
        if found is None:
            found = _opened[key] = OpenVersion(version.ref.bucket.open(), version)
            while len(_opened) > _OPENED_MAX:
                _opened.popitem(last=False)
        _opened.move_to_end(key)
    return found


def version_expired(version: ReadVersion, error: SnapshotExpiredError) -> SnapshotExpiredError:
    """Return the error for a version that has gone while Spark was reading it."""
    advice = (
        "its snapshot ended too early: take it for longer"
        if version.snapshot is not None
        else "load() it again, or keep it readable for as long as the query takes with the option "
        "hold, such as hold=2h"
    )
    return SnapshotExpiredError(
        f"LSN {version.lsn} of namespace {version.ref.namespace!r}"
        f" was compacted away and collected while it was read: {advice} ({error})"
    )
