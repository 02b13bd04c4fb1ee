"""Snapshots: a version that stays readable, whatever is compacted or collected meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from reef.context import Context
from reef.engine._read._view import ReadState, View
from reef.errors import NotFoundError, RetentionError
from reef.format import Snapshot
from reef.manifest import Head, ManifestChain, create_snapshot, release_snapshot, renew
from reef.types import new_ulid

_ATTEMPTS = 5


class SnapshotView(View):
    """A view that a snapshot holds until it is released."""

    def __init__(
        self,
        chain: ManifestChain,
        snapshot: Snapshot,
        state: Callable[[], ReadState],
        reload: Callable[[], None],
    ) -> None:
        super().__init__(snapshot.lsn, state, reload, is_retained=True)
        self._chain = chain
        self.snapshot = snapshot

    def renew(self, ttl_s: float | None) -> None:
        """Let it expire `ttl_s` seconds from now, or never. Raises NotFoundError if it is gone."""
        _, self.snapshot = renew(self._chain, id=self.snapshot.id, ttl_s=ttl_s)

    def release(self) -> None:
        """Release it: versions that only it could see may be collected. May be called twice."""
        with suppress(NotFoundError):
            release(self._chain, self.snapshot.id)


def take_snapshot(
    context: Context,
    chain: ManifestChain,
    newest: Callable[[], tuple[int, int]],
    ttl_s: float | None,
    *,
    id: str | None = None,
    born: int | None = None,
    keeps_log: bool = False,
) -> tuple[Head, Snapshot]:
    """Publish a snapshot of the newest version; `born` is the life that is meant, if not any.

    `newest` returns that version, and the last log slot that was seen (0: the LSN says it). With `keeps_log`, what is committed after it stays in the log as long as the snapshot stands.
    """
    name = id or new_ulid(context.clock, context.rng)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            lsn, slot = newest()
            return create_snapshot(
                chain,
                id=name,
                lsn=lsn,
                ttl_s=ttl_s,
                wal_last_seen=slot,
                born=born,
                keeps_log=keeps_log,
            )
        except RetentionError:
            # A compaction raised the floor above the newest version that this handle has seen: look
            # again.
            if attempt == _ATTEMPTS:
                raise
            chain.load()
    raise AssertionError


def release(chain: ManifestChain, id: str) -> Head:
    """Remove a snapshot. Raises NotFoundError."""
    return chain.publish(lambda head: None if head is None else release_snapshot(head.manifest, id))
