"""The dedup window of a rebuild: from the log, and from the window that its entry had.

The old one stays where it is sound and knows something that the new one does not: no request that
would be recognised now may be taken for a new one afterwards.
"""

from __future__ import annotations

from reef.engine import Context, Dedup, write_window
from reef.errors import CorruptError, IncompleteError, NotFoundError, UnreadableError
from reef.format import (
    DedupRef,
    DedupWindow,
    Manifest,
    decode_dedup,
    dedup_checksum,
    dedup_key,
)
from reef.jobs._fold._stitch import Stitched


def renew_window(
    context: Context, m: Manifest, stitched: Stitched, now_us: int
) -> tuple[DedupRef | None, str]:
    """Return the window from now on, and whether it was made "anew", is "kept", or there is "none".

    Raises IncompleteError if it cannot be had, UnavailableError.
    """
    old: DedupWindow | None = None
    lost: UnreadableError | None = None
    try:
        old = read_window(context, m)
    except UnreadableError as error:
        lost = error
    try:
        new = stitched.window(context, now_us)
        if new is None and lost is not None:  # nobody has used one since the entry
            new = read_window(context, stitched.manifest)
    except (NotFoundError, UnreadableError) as error:
        if lost is not None:
            raise IncompleteError(
                lost.key,
                0,
                "a dedup window, or an older one to go on from",
                f"neither: {lost}; {error}; nothing was published: `reef repair` says what is lost",
            ) from error
        new = None
    if old is not None and (new is None or not _knows(context, new, old, now_us)):
        return m.dedup, "kept"
    if new is None:
        return None, "none"
    return write_window(context, m.namespace, new), "anew"


def read_window(context: Context, m: Manifest) -> DedupWindow | None:
    """Return the window that a manifest names, None if it names none; damage is looked at again.

    Raises UnreadableError, also if it is not there; UnavailableError.
    """
    if m.dedup is None:
        return None
    key = dedup_key(m.namespace, m.dedup.id)
    try:
        return _read(context, key, m.dedup)
    except UnreadableError:
        return _read(context, key, m.dedup)


def _read(context: Context, key: str, ref: DedupRef) -> DedupWindow:
    try:
        data = context.store.get(key)
    except NotFoundError:
        told = f"a dedup window of {ref.size} bytes"
        raise IncompleteError(key, 0, told, "nothing; `reef repair` makes it anew") from None
    found, told_of = (len(data), dedup_checksum(data, key=key)), (ref.size, ref.checksum)
    if found != told_of:
        raise CorruptError(key, 0, f"{told_of}, as the manifest says of it", f"{found}")
    return decode_dedup(data, key=key)


def _knows(context: Context, new: DedupWindow, old: DedupWindow, now_us: int) -> bool:
    """Return whether all that counts of the old window is in the new one."""
    settings = context.settings
    age_max_us = round(settings.dedup_max_age * 1_000_000)
    counting = Dedup(old, keys_max=settings.dedup_max_keys, age_max_us=age_max_us)
    standing = counting.window(old.last_lsn, now_us)
    entries = {(entry.key, entry.lsn) for entry in new.entries}
    streams = {(stream.source, stream.sequence) for stream in new.streams}
    return entries >= {(entry.key, entry.lsn) for entry in standing.entries} and streams >= {
        (stream.source, stream.sequence) for stream in standing.streams
    }
