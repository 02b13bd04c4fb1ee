"""An open namespace, for writing or for reading: a manifest, the unfolded log, and reads.

Reads take no lock. They note the newest version first and where rows are second: the rows of that
version are then there, whatever a flush or a refresh swaps meanwhile.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from reef.context import Context
from reef.engine._durable_settings import change_settings, durable_settings
from reef.engine._live import LiveRows
from reef.engine._read._snapshot_view import SnapshotView, take_snapshot
from reef.engine._read._version_by_time import TimedVersion, version_by_time
from reef.engine._read._view import View
from reef.engine._tail import Tail
from reef.errors import (
    ClosedError,
    DamagedError,
    InvalidInputError,
    NotFoundError,
    RetentionError,
    SnapshotExpiredError,
    UnavailableError,
)
from reef.fork import abandon_in_child, forked_error
from reef.format import Manifest, log_key
from reef.log import LogReader
from reef.manifest import Head, ManifestChain, longest_grace_ms
from reef.segment import RowVersion, lookup
from reef.settings import iso_time


class Handle(ABC):
    """An open namespace. `Writer` and `Reader` differ in how they learn of new log objects."""

    def __init__(
        self, context: Context, namespace: str, chain: ManifestChain, head: Head, tail: Tail
    ) -> None:
        self.namespace = namespace
        self._context = context
        self._chain = chain
        self._log = LogReader(context.store, namespace, head.manifest.lsn_policy)
        self._live = LiveRows(context.segments(namespace), head.manifest, tail)
        self._is_closed = False
        self._is_abandoned = False
        abandon_in_child(self)

    def abandon(self) -> None:
        """Be closed, in a forked process: threads, epoch and slots are the parent's."""
        self._is_closed = self._is_abandoned = True

    @property
    def is_open(self) -> bool:
        """Whether it is open."""
        return not self._is_closed

    @property
    def lsn(self) -> int:
        """The newest version that a read sees."""
        return max(self._live.tail.lsn, self._live.manifest.last_applied_lsn)

    @property
    def manifest(self) -> Manifest:
        """The manifest that reads use."""
        return self._live.manifest

    @property
    def tail(self) -> Tail:
        """The unfolded log, for reports. Do not change it."""
        return self._live.tail

    def one(self, key: bytes) -> RowVersion | None:
        """Return the newest row of `key`, or None."""
        if self._is_closed:
            self.check_open()
        live = self._live
        lsn = live.tail.lsn
        state = live.state
        if state.manifest.last_applied_lsn > lsn:
            lsn = state.manifest.last_applied_lsn
        try:
            if not state.is_warm:
                state.warm(key, key)
            found = lookup(state.layers, key, lsn)
        except (NotFoundError, DamagedError):
            return self.view().one(key)
        return None if found is None or found.tombstone else found

    def view(self) -> View:
        """Return a view of the newest version. The view does not change."""
        self.check_open()
        return View(self.lsn, self._live.current, self.reload)

    def at_lsn(self, lsn: int) -> View:
        """Return a view of the version at `lsn`. Raises RetentionError, InvalidInputError."""
        self.check_open()
        self.catch_up(lsn)
        if lsn < 0 or lsn > self.lsn:
            raise InvalidInputError.of(
                "lsn", lsn, f"a number from 0 to {self.lsn}, the newest version"
            )
        return View(lsn, self._live.current, self.reload)

    def at_time(self, at_us: int) -> View:
        """Return a view of the newest version that was written by a time, by the store's clock.

        Raises RetentionError if it is not kept, InvalidInputError for a time ahead.
        """
        found = self.version_by_time(at_us)
        try:
            return self.at_kept(found.lsn)
        except RetentionError as error:
            if found.generation is not None:
                return self.at_generation(found.generation)
            raise RetentionError(
                f"at {iso_time(at_us)} namespace {self.namespace!r} was at LSN {found.lsn}, below "
                f"its retention floor {self.manifest.retention.floor_lsn}: what was visible there "
                "may be gone. Ask for a later time; a longer `pitr_window` or a snapshot keeps more"
            ) from error

    def at_kept(self, lsn: int) -> View:
        """Return a view of the version at `lsn`, also below the floor where a snapshot keeps it.

        Raises RetentionError, InvalidInputError, UnavailableError if it lies ahead.
        """
        manifest = self.manifest
        if lsn < manifest.retention.floor_lsn and any(s.lsn == lsn for s in manifest.snapshots):
            return View(lsn, self._live.current, self.reload, is_retained=True)
        return self.at_lsn(lsn)

    def version_by_time(self, at_us: int) -> TimedVersion:
        """Return the newest version that was written by a time; it may lie below the floor.

        Raises RetentionError if nothing that is kept is as old, InvalidInputError for a time ahead.
        """
        self.check_open()
        self.newest_lsn()
        while True:
            lsn = self.lsn
            last_slot = self.tail.replay.next_slot - 1
            if lsn == self.lsn:
                break
        if at_us > self._chain.estimated_now_us and at_us > self._modified_us(last_slot):
            now = iso_time(self._chain.estimated_now_us)
            raise InvalidInputError.of("time", iso_time(at_us), f"a time in the past; it is {now}")
        found = version_by_time(self._context, self.manifest, last_slot, at_us)
        return TimedVersion(lsn) if found is None else found

    def _modified_us(self, slot: int) -> int:
        try:
            return self._context.store.head(log_key(self.namespace, slot)).last_modified_us
        except (NotFoundError, InvalidInputError):  # slot 0: there is no log yet
            return 0

    def at_generation(self, generation: int) -> View:
        """Return a view of the rows in the segments of a manifest generation.

        Raises SnapshotExpiredError if it was collected.
        """
        self.check_open()
        try:
            manifest = self._context.chain(self.namespace).at(generation).manifest
        except NotFoundError as error:
            raise SnapshotExpiredError(
                f"generation {generation} of namespace {self.namespace!r} does not exist or was "
                "collected: `reef inspect` lists those that exist"
            ) from error
        if manifest.born != self.manifest.born:
            raise SnapshotExpiredError(
                f"generation {generation} belongs to an earlier namespace {self.namespace!r} that "
                "was dropped: `reef inspect` lists those of this one"
            )
        state = self._live.at(manifest)
        return View(manifest.last_applied_lsn, lambda: state, lambda: None)

    def at_snapshot(self, id: str) -> View:
        """Return a view of a snapshot. Raises NotFoundError, SnapshotExpiredError."""
        self.check_open()
        self.reload()
        for snapshot in self.manifest.snapshots:
            if snapshot.id == id:
                self.catch_up(snapshot.lsn)
                return View(snapshot.lsn, self._live.current, self.reload, is_retained=True)
        raise NotFoundError(
            f"namespace {self.namespace!r} has no snapshot {id!r}: it was released, it expired, or "
            "it never existed; `reef snapshot list` shows them"
        )

    def snapshot(
        self,
        ttl_s: float | None,
        *,
        id: str | None = None,
        lsn: int | None = None,
        keeps_log: bool = False,
    ) -> SnapshotView:
        """Keep a version readable for `ttl_s` seconds by the store's clock, or for good.

        That is the version at `lsn`, or the newest. With `keeps_log`, the changes after it stay in the
        log as long. Raises RetentionError below the floor.
        """
        self.check_open()
        if lsn is not None:
            self.at_lsn(lsn)
        head, snapshot = take_snapshot(
            self._context,
            self._chain,
            self._newest if lsn is None else lambda: (lsn, 0),
            ttl_s,
            id=id,
            born=self.manifest.born,
            keeps_log=keeps_log,
        )
        self.adopt(head)
        return SnapshotView(self._chain, snapshot, self._live.current, self.reload)

    def _newest(self) -> tuple[int, int]:
        """Return the newest version, and the last slot that was seen if versions do not tell it."""
        lsn = self.newest_lsn()
        seen = self.tail.replay.next_slot - 1 if self.manifest.lsn_policy == "caller" else 0
        return lsn, seen

    def configure(self, given: Mapping[str, object]) -> dict[str, Any]:
        """Change durable settings, and return all of them."""
        self.check_open()
        self.adopt(change_settings(self._chain, given, born=self.manifest.born))
        return durable_settings(self.manifest)

    def newest_lsn(self) -> int:
        """Look for the newest version, and return it."""
        return self.lsn

    def catch_up(self, lsn: int) -> None:
        """Make sure that reads see `lsn`. Raises UnavailableError if it is not there yet."""
        if lsn > self.lsn:
            raise UnavailableError(
                f"LSN {lsn} of namespace {self.namespace!r} does not exist yet (the newest is "
                f"{self.lsn}): wait and retry"
            )

    @abstractmethod
    def reload(self) -> None:
        """Look for a newer manifest and use it."""

    @abstractmethod
    def adopt(self, head: Head) -> None:
        """Use `head`, unless it is older than the current manifest."""

    def check_open(self) -> None:
        """Raise ClosedError if the handle was closed."""
        if self._is_abandoned:
            raise forked_error(f"namespace {self.namespace!r}")
        if self._is_closed:
            raise ClosedError(f"namespace {self.namespace!r} was closed: open it again")

    def _is_over(self, manifest: Manifest) -> bool:
        """Return whether the namespace was dropped, even if another one has its name now."""
        return manifest.state != "live" or manifest.born != self.manifest.born

    def _stand_on(self, manifest: Manifest) -> None:
        """Make reads use `manifest` and the tail. Lock held."""
        self._live.stand_on(manifest, self._tail_behind(manifest))

    def _tail_behind(self, manifest: Manifest) -> Tail:
        """Return the tail from the floor of `manifest` on."""
        tail = self._live.tail
        if manifest.wal_floor > tail.replay.next_slot:
            # The log was folded further than this handle has read, so all of its rows are in
            # segments.
            return Tail(manifest)
        tail.drop_folded(manifest)
        return tail

    def stats(self, mode: str) -> dict[str, Any]:
        """Return figures that need no request, for people and programs."""
        manifest, tail = self.manifest, self.tail
        levels: dict[int, dict[str, int]] = {}
        # One segment may have several references, each to some of its keys; count it once.
        for ref in {(ref.namespace, ref.id): ref for ref in manifest.segments}.values():
            level = levels.setdefault(
                ref.level, {"segments": 0, "rows": 0, "tombstones": 0, "bytes": 0}
            )
            level["segments"] += 1
            level["rows"] += ref.rows
            level["tombstones"] += ref.tombstones
            level["bytes"] += ref.size
        return {
            "namespace": self.namespace,
            "mode": mode,
            "lsn": self.lsn,
            "generation": manifest.generation,
            "writer_epoch": manifest.writer_epoch,
            "compactor_epoch": manifest.compactor_epoch,
            "wal_floor": manifest.wal_floor,
            "next_slot": tail.replay.next_slot,
            "unfolded_log": {"slots": tail.log_slots, "bytes": tail.log_bytes},
            "memtable": {"rows": tail.memtable.rows, "bytes": tail.memtable.nbytes},
            "levels": {str(number): levels[number] for number in sorted(levels)},
            "last_applied_lsn": manifest.last_applied_lsn,
            "settings": durable_settings(manifest),
            "retention_floor_lsn": manifest.retention.floor_lsn,
            "pitr_window_ms": manifest.retention.pitr_window_ms,
            "snapshots": len(manifest.snapshots),
            "pins": len(manifest.pins),
            "intents": len(manifest.intents),
            "gc": {
                "pending": len(manifest.gc.pending),
                "boundary_slot": manifest.gc.boundary.slot,
                "boundary_generation": manifest.gc.boundary.generation,
                "grace_ms": manifest.gc.grace_ms,
                "longest_grace_ms": longest_grace_ms(manifest.gc),
            },
        }

    def tell(self) -> None:
        """Set the gauges of this namespace to their current values."""
        manifest = self.manifest
        metrics, labels = self._context.metrics, {"namespace": self.namespace}
        metrics.forget(**labels)  # a level that has become empty has no figure
        metrics.gauge("reef_unfolded_log_bytes", self._live.tail.log_bytes, **labels)
        metrics.gauge("reef_unfolded_log_slots", self._live.tail.log_slots, **labels)
        metrics.gauge("reef_memtable_bytes", self._live.tail.memtable.nbytes, **labels)
        levels: dict[int, int] = {}
        for ref in manifest.segments:
            levels[ref.level] = levels.get(ref.level, 0) + 1
        for level, count in levels.items():
            metrics.gauge("reef_segments", count, level=str(level), **labels)
