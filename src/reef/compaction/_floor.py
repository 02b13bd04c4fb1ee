"""How far the retention floor may rise: as far as the window for time travel allows.

Time is the store's: Last-Modified of its objects, and of the job's own latest PUT for "now". Log objects
are kept as long as the window lasts, so a binary search among them finds where it begins; where versions
are not numbered by slots, the search is among the generations. Where neither tells, the floor stays.
"""

from __future__ import annotations

from bisect import bisect_left

from reef.context import Context
from reef.errors import NotFoundError, UnreadableError
from reef.format import LogKind, Manifest, log_key
from reef.gc import read_log_kind
from reef.manifest import ManifestChain
from reef.types import pack_lsn


def reachable_floor(context: Context, manifest: Manifest, now_us: int, *, lag_us: int = 0) -> int:
    """Return the LSN that the retention floor may rise to at `now_us`, by the store's clock.

    Without a window that is the newest LSN in segments, or with `lag_us`, the newest that were in
    segments so long ago. Raises UnavailableError.
    """
    window_ms, window_s = manifest.retention.pitr_window_ms, context.settings.pitr_window
    window_us = max((window_ms or 0) * 1000, round((window_s or 0) * 1_000_000))
    newest = manifest.last_applied_lsn
    if not max(window_us, lag_us):
        return newest
    before_us = now_us - max(window_us, lag_us)
    if window_us and manifest.lsn_policy == "packed":
        lsn = _by_slots(context, manifest, before_us)
    else:
        lsn = _by_generations(context.chain(manifest.namespace), manifest.born, before_us)
    return max(manifest.retention.floor_lsn, min(lsn, newest))


def _by_slots(context: Context, manifest: Manifest, before_us: int) -> int:
    """Return the first LSN of the newest folded log object older than `before_us`, or 0.

    Fences are skipped: they have no LSN of their own.
    """

    def is_recent(slot: int) -> bool:
        try:
            meta = context.store.head(log_key(manifest.namespace, slot))
        except NotFoundError:  # collected, or moved aside by repair: it proves nothing
            return True
        return meta.last_modified_us > before_us

    slots = range(manifest.gc.boundary.slot, manifest.wal_floor)
    old = bisect_left(slots, True, key=is_recent)
    while old and _is_fence(context, manifest.namespace, slots[old - 1]):
        old -= 1
    return pack_lsn(slots[old - 1], 0) if old else 0


def _is_fence(context: Context, namespace: str, slot: int) -> bool:
    key = log_key(namespace, slot)
    try:
        size = context.store.head(key).size
        return read_log_kind(context.store, key, slot=slot, size=size) is LogKind.FENCE
    except NotFoundError:  # collected since: everything below is older
        return False


def _by_generations(chain: ManifestChain, born: int, before_us: int) -> int:
    """Return the newest LSN in segments of the newest generation older than `before_us`, or 0.

    Generations before `born` belonged to a dropped namespace of the same name: they do not count.
    """
    chain.load()
    for generation in reversed(chain.generations()):
        if generation.number < born:
            return 0
        if generation.published_at_us <= before_us:
            try:
                return chain.at(generation.number).manifest.last_applied_lsn
            except (NotFoundError, UnreadableError):
                return 0
    return 0
