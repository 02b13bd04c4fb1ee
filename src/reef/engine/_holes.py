"""Holes in the log: telling a deleted log object from one that is in flight.

A writer has at most P log objects in flight, and nobody writes behind an absent slot otherwise. So
an object P or more slots behind an absent one says that the absent one was deleted, by other means than
collection. Before that counts as damage, all else that may have happened is excluded:

1. What was found there is a log object: it decodes, and its slot is that of its key.
2. The slot is still absent: the object may have come since, or a LIST may have been taken while the log
   grew.
3. The head, loaded after that, says that the slot is neither folded nor collected, that this is still
   the same life of the namespace (between two lives a slot stays empty), and that P is not greater.

P rises only with a new epoch, before that writer sends anything, and falls only when that writer's
fences stand, behind which no slot is absent. So two heads of one epoch, one loaded before the slot was
seen to be absent and one after it, bound P. With another epoch between them, all is looked at again.

Nobody reads past a hole, writes behind it or folds it away. `reef repair` decides by name.
"""

from __future__ import annotations

from collections.abc import Iterable

from reef.context import Context
from reef.errors import CorruptError, NotFoundError, UnavailableError
from reef.format import Manifest, log_key
from reef.log import ListedLog, LogReader, list_log
from reef.manifest import Head, ManifestChain

_LOOKS_MAX = 10


def list_unfolded(context: Context, chain: ManifestChain, head: Head) -> ListedLog:
    """Return the unfolded log of `head` as a LIST shows it, if it has no hole: one LIST.

    Raises CorruptError that names the slot if it has one, UnavailableError.
    """
    manifest = head.manifest
    for _ in range(_LOOKS_MAX):
        listed = list_log(context.store, manifest.namespace, manifest.wal_floor)
        if not check_end(context, chain, head, listed.end, listed.ahead):
            return listed
        newest = chain.head
        if newest is None or _is_past(newest.manifest, manifest, listed.end):
            return listed  # it is not the unfolded log any more, as the head shows
        head = newest
    raise UnavailableError(
        f"the log of namespace {manifest.namespace!r} was not listed without gaps {_LOOKS_MAX} times "
        "in a row; retry"
    )


def check_end(
    context: Context, chain: ManifestChain, head: Head, slot: int, ahead: Iterable[int]
) -> bool:
    """Raise CorruptError if the absent `slot` is a hole, by the objects found in slots `ahead` of it.

    `head` was loaded before any of them was looked for. Returns whether the log, or the head, has moved
    since: what was read then is not its end. That costs no request unless something lies behind `slot`
    that cannot be in flight. Raises UnavailableError.
    """
    namespace = head.manifest.namespace
    far = sorted((at for at in ahead if at - slot >= head.parallel_writes_max), reverse=True)
    reader = LogReader(context.store, namespace, head.manifest.lsn_policy)
    witness = next(filter(reader.has_object, far), None)
    if witness is None:
        return False
    for _ in range(_LOOKS_MAX):
        if _is_there(context, log_key(namespace, slot)):
            return True
        newest = chain.load()
        if newest is None or _is_past(newest.manifest, head.manifest, slot):
            return True
        parallel = max(head.parallel_writes_max, newest.parallel_writes_max)
        if newest.manifest.writer_epoch == head.manifest.writer_epoch:
            if witness - slot < parallel:
                return False
            raise _hole(newest.manifest, slot, witness)
        head = newest
    raise UnavailableError(
        f"namespace {namespace!r} was opened for writing {_LOOKS_MAX} times while the end of its log "
        "was being looked for; retry"
    )


def log_object_gone(manifest: Manifest, slot: int, seen: int = 0) -> CorruptError:
    """Return the error for a log object of the unfolded log that was seen, itself or a later one."""
    return CorruptError(
        log_key(manifest.namespace, slot),
        0,
        f"a log object: generation {manifest.generation} has not folded it, and the log was seen up "
        f"to slot {max(seen, slot, manifest.wal_last_seen)}",
        "nothing; run `reef repair`, which shows what is lost before it changes anything",
    )


def _is_past(newest: Manifest, manifest: Manifest, slot: int) -> bool:
    """Return whether a slot of the unfolded log of `manifest` is in that of `newest` no more."""
    is_same_life = newest.state == "live" and newest.born == manifest.born
    return not is_same_life or slot < max(newest.wal_floor, newest.gc.boundary.slot)


def _hole(manifest: Manifest, slot: int, witness: int) -> CorruptError:
    return CorruptError(
        log_key(manifest.namespace, slot),
        0,
        f"a log object: log object {witness} lies behind it, and at most "
        f"{manifest.max_parallel_writes} can be in flight",
        "nothing, twice: it was deleted by other means than Reef, and nobody reads or writes behind "
        "it before `reef repair` has decided what it loses",
    )


def _is_there(context: Context, key: str) -> bool:
    try:
        context.store.get(key)
    except NotFoundError:
        return False
    return True
