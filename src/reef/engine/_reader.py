"""The reader: a handle that follows what a writer elsewhere commits, and writes nothing.

Following costs one GET of the next slot, and no LIST: that slot's absence is the end of the log.
But a slot that was collected is absent as well. So a reader that has not looked for half of the
grace period, within which nothing is collected, looks at the manifest's head first. Every reader
does so that often: only the head shows that the namespace was dropped. And whenever it does, it looks
for objects further behind the log's end: then it is no end, but a hole, and an error.
"""

from __future__ import annotations

from collections.abc import Sequence

from reef.context import Context
from reef.engine._handle import Handle
from reef.engine._holes import check_end
from reef.engine._tail import Tail
from reef.errors import DamagedError, DroppedError, UnavailableError
from reef.format import Manifest
from reef.manifest import Head, ManifestChain
from reef.threads import check_may_wait


class Reader(Handle):
    """An open namespace that is only read. Threads may share it."""

    def __init__(
        self, context: Context, namespace: str, chain: ManifestChain, head: Head, tail: Tail
    ) -> None:
        super().__init__(context, namespace, chain, head, tail)
        self._cond = context.threads.condition()
        contact = chain.last_contact
        self._seen_at = context.clock.monotonic() if contact is None else contact
        self._slots_at_manifest = tail.log_slots

    @property
    def staleness_s(self) -> float:
        """Seconds since this reader last looked at the log."""
        return self._context.clock.monotonic() - self._seen_at

    def refresh(self) -> int:
        """Read what was committed meanwhile; return the newest LSN.

        Raises UnavailableError, CorruptError. Versions seen before stay readable.
        """
        self.check_open()
        check_may_wait()
        with self._cond:
            return self._refresh()

    def keep_fresh(self) -> None:
        """Refresh if this reader last looked longer ago than `max_staleness`."""
        most_s = self._context.settings.max_staleness
        if self.staleness_s > most_s:
            self.check_open()
            check_may_wait()
            with self._cond:
                if self.staleness_s > most_s:  # another thread may have looked meanwhile
                    self._refresh()

    def catch_up(self, lsn: int) -> None:
        if lsn > self.lsn:
            self.refresh()
        super().catch_up(lsn)

    def newest_lsn(self) -> int:
        return self.refresh()

    def reload(self) -> None:
        check_may_wait()
        with self._cond:
            self._look_at_head()
            self._look_behind_end()

    def adopt(self, head: Head) -> None:
        with self._cond:
            self._adopt(head)

    def close(self) -> None:
        """Release the handle. Views taken earlier stay readable."""
        self._is_closed = True

    def _refresh(self) -> int:
        now = self._context.clock.monotonic()
        grace_s = self.manifest.gc.grace_ms / 1000
        probes = False
        if now - self._seen_at >= grace_s / 2 or self._chain.is_out_of_touch:
            self._look_at_head()
            probes = True
        try:
            self._replay(self._live.tail, probes=probes)
        except DamagedError:
            self._look_at_head()  # repair may have skipped the damaged object
            self._replay(self._live.tail, probes=True)
        replay = self._live.tail.replay
        while self._is_further(replay.reach, replay.ahead):
            self._look_at_head()
            self._replay(self._live.tail, probes=True)
            replay = self._live.tail.replay
        self._seen_at = now
        if self._is_long():
            self._follow()
            self._look_behind_end()
        return self.lsn

    def _look_behind_end(self) -> None:
        """Raise CorruptError if the log goes on behind a hole where it seems to end."""
        slot = self._live.tail.replay.reach
        self._is_further(slot, self._log.look_ahead(slot, self._head.parallel_writes_max))

    def _is_further(self, slot: int, ahead: Sequence[int]) -> bool:
        return check_end(self._context, self._chain, self._head, slot, ahead)

    @property
    def _head(self) -> Head:
        """The newest generation known."""
        head = self._chain.head
        assert head is not None
        return head

    def _replay(self, tail: Tail, *, probes: bool = False) -> None:
        parallel = self._head.parallel_writes_max if probes else 0
        for entry in self._log.read(tail.replay, parallel=parallel):
            attached = tuple(ref for record in entry.log.records for ref in record.segments)
            if attached and entry.is_valid and tail is self._live.tail:
                self._live.rebuild(attached)
            tail.apply(entry)

    def _tail_behind(self, manifest: Manifest) -> Tail:
        if manifest.wal_floor >= self.manifest.wal_floor:
            return super()._tail_behind(manifest)
        # Repair went back to an older generation: rows folded since are only in the log.
        tail = Tail(manifest)
        self._replay(tail)
        if tail.lsn < self.lsn:
            raise UnavailableError(
                f"namespace {self.namespace!r} was repaired: this reader had seen LSN {self.lsn}, but "
                f"the log now ends at LSN {tail.lsn}: open it again"
            )
        return tail

    def _adopt(self, head: Head) -> None:
        if self._is_over(head.manifest):
            raise DroppedError(
                f"namespace {self.namespace!r} was dropped; a namespace of that name is now a "
                "different one: open it again"
            )
        if head.manifest.generation > self.manifest.generation:
            self._stand_on(head.manifest)
            self._slots_at_manifest = self._live.tail.log_slots

    def _look_at_head(self) -> None:
        head = self._chain.load()
        if head is None:
            raise UnavailableError(
                f"the manifests of namespace {self.namespace!r} are gone: expected at least one; "
                "`reef inspect` lists what is left"
            )
        self._adopt(head)

    def _is_long(self) -> bool:
        """Return whether the log has grown so much that its writer may have folded it."""
        settings, tail = self._context.settings, self._live.tail
        return (
            tail.memtable.nbytes >= settings.flush_threshold_bytes
            or tail.log_slots - self._slots_at_manifest >= settings.flush_threshold_slots // 4
        )

    def _follow(self) -> None:
        self._adopt(self._chain.follow())
        self._slots_at_manifest = self._live.tail.log_slots
