"""Snapshots that last as long as asked, by the store's clock.

The time at which a snapshot ends must be written down before the store has told its time. So it is
written by the best guess and checked against the Last-Modified of the very PUT that carried it; if
this machine's clock was wrong, it is published once more with the store's.

Crash points: after the first publish the snapshot stands, perhaps for too short a time; its author
was not told of it. If it is taken out before it is corrected, it is added anew, as a new snapshot
would be, or refused below the floor.
"""

from __future__ import annotations

from collections.abc import Callable

from reef.errors import InvalidInputError
from reef.format import Manifest, Snapshot
from reef.manifest._manifest_chain import ManifestChain
from reef.manifest._manifest_reader import Head, no_namespace
from reef.manifest._retention import add_snapshot, find_snapshot, renew_snapshot
from reef.settings import SECONDS_MAX

# S3 rounds Last-Modified to seconds.
SHORT_US_MAX = 1_000_000
# Too long only costs space: not worth a generation until it is much.
LONG_US_MAX = 60_000_000
ROUNDS_MAX = 4

_Setter = Callable[[Manifest, int], Manifest]


def create_snapshot(
    chain: ManifestChain,
    *,
    id: str,
    lsn: int,
    ttl_s: float | None,
    wal_last_seen: int = 0,
    born: int | None = None,
    keeps_log: bool = False,
) -> tuple[Head, Snapshot]:
    """Keep what is visible at `lsn` for `ttl_s` seconds from now (None or 0: until released).

    `born` is the life of the namespace that is meant, if not any; `keeps_log` keeps what is committed
    after it as well. It stands on the generation of the snapshot before it if nothing was folded
    since. Returns the generation that carries it. Raises what `add_snapshot` and `publish` raise.
    """

    def add(m: Manifest, expires_at_us: int) -> Manifest:
        shared = chain.stood_on(m.snapshots[-1].generation) if m.snapshots else None
        return add_snapshot(
            m,
            id=id,
            lsn=lsn,
            expires_at_us=expires_at_us,
            wal_last_seen=wal_last_seen,
            born=born,
            shared=shared,
            keeps_log=keeps_log,
        )

    return _publish_until(chain, id, ttl_s, add)


def renew(chain: ManifestChain, *, id: str, ttl_s: float | None) -> tuple[Head, Snapshot]:
    """Let a snapshot stand for `ttl_s` seconds from now (None or 0: until released).

    Raises NotFoundError if it is not there, or not any more, and what `publish` raises.
    """
    return _publish_until(chain, id, ttl_s, lambda m, at: renew_snapshot(m, id, expires_at_us=at))


def _publish_until(
    chain: ManifestChain, id: str, ttl_s: float | None, first: _Setter
) -> tuple[Head, Snapshot]:
    """Publish with `first`, and again where the snapshot would not last as long as asked."""

    def again(m: Manifest, expires_at_us: int) -> Manifest:
        if find_snapshot(m, id) is None:
            return first(m, expires_at_us)
        return renew_snapshot(m, id, expires_at_us=expires_at_us)

    ttl_us = _microseconds(ttl_s)
    late_us = 0
    for setter in (first, *[again] * (ROUNDS_MAX - 1)):
        began = chain.clock.monotonic()
        head, snapshot = _publish(chain, id, setter, ttl_us, late_us)
        short_us = head.published_at_us + ttl_us - snapshot.expires_at_us
        if not ttl_us or -LONG_US_MAX <= short_us <= SHORT_US_MAX:
            break
        # The store's time is known now: what was missing beside it is how long publishing takes.
        took_us = round((chain.clock.monotonic() - began) * 1_000_000)
        late_us = min(max(0, short_us), took_us)
    return head, snapshot


def _publish(
    chain: ManifestChain, id: str, setter: _Setter, ttl_us: int, late_us: int
) -> tuple[Head, Snapshot]:
    def change(head: Head | None) -> Manifest:
        if head is None:
            raise no_namespace(chain.url, chain.namespace)
        return setter(head.manifest, chain.estimated_now_us + ttl_us + late_us if ttl_us else 0)

    head = chain.publish(change)
    snapshot = find_snapshot(head.manifest, id)
    assert snapshot is not None
    return head, snapshot


def _microseconds(ttl_s: float | None) -> int:
    if not ttl_s:
        return 0
    if not 0 < ttl_s <= SECONDS_MAX:
        raise InvalidInputError.of(
            "ttl", ttl_s, f"a duration from 0 (never expires) to {SECONDS_MAX:g} seconds"
        )
    return max(1, round(ttl_s * 1_000_000))
