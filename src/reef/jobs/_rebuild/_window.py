"""The dedup window of a rebuild: from the log, and from the window that its entry had.

The old one stays where it is sound and has an entry that the new one lacks: a request that is recognised
as a retry before a rebuild must be recognised after it.
"""

from __future__ import annotations

from reef.engine import Context, DedupIndex, read_window, write_window
from reef.errors import IncompleteError, NotFoundError, UnreadableError
from reef.format import (
    DedupRef,
    DedupWindow,
    Manifest,
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
        old = live_window(context, m)
    except UnreadableError as error:
        lost = error
    try:
        new = stitched.window(context, now_us)
        if new is None and lost is not None:  # nobody has used one since the entry
            new = live_window(context, stitched.manifest)
    except (NotFoundError, UnreadableError) as error:
        if lost is not None:
            raise IncompleteError(
                lost.key,
                0,
                "a dedup window, or an older one to continue from",
                f"neither: {lost}; {error}; nothing was published: `reef repair` says what is lost",
            ) from error
        new = None
    if old is not None and (new is None or not _knows(context, new, old, now_us)):
        return m.dedup, "kept"
    if new is None:
        return None, "none"
    return write_window(context, m.namespace, new), "anew"


def live_window(context: Context, m: Manifest) -> DedupWindow | None:
    """Return the window that a manifest names, None if it names none.

    Raises UnreadableError, also if the window is missing; UnavailableError.
    """
    if m.dedup is None:
        return None
    try:
        return read_window(context.store, m.namespace, m.dedup)
    except NotFoundError:
        raise IncompleteError(
            dedup_key(m.namespace, m.dedup.id),
            0,
            f"a dedup window of {m.dedup.size} bytes",
            "nothing; `reef repair` makes it anew",
        ) from None


def _knows(context: Context, new: DedupWindow, old: DedupWindow, now_us: int) -> bool:
    """Return whether the new window has every entry of the old one that is still in force."""
    settings = context.settings
    age_max_us = round(settings.dedup_max_age * 1_000_000)
    counting = DedupIndex(old, keys_max=settings.dedup_max_keys, age_max_us=age_max_us)
    standing = counting.window(old.last_lsn, now_us)
    entries = {(entry.key, entry.lsn) for entry in new.entries}
    streams = {(stream.source, stream.sequence) for stream in new.streams}
    return entries >= {(entry.key, entry.lsn) for entry in standing.entries} and streams >= {
        (stream.source, stream.sequence) for stream in standing.streams
    }
