"""Reading a dedup window that a manifest names, checked against what the manifest says of it."""

from __future__ import annotations

from dataclasses import dataclass

from reef.errors import CorruptError, DamagedError, NotFoundError, UnreadableError
from reef.format import DedupRef, DedupWindow, decode_dedup, dedup_checksum, dedup_key
from reef.store import Store


@dataclass(frozen=True)
class CheckedWindow:
    """The result of reading a dedup window."""

    key: str
    ref: DedupRef
    window: DedupWindow | None
    error: UnreadableError | None = None
    """Why it cannot be read; None without a window: it is missing."""


def check_window(store: Store, namespace: str, ref: DedupRef) -> CheckedWindow:
    """Read a window. Raises UnavailableError."""
    key = dedup_key(namespace, ref.id)
    try:
        return CheckedWindow(key, ref, read_window(store, namespace, ref))
    except NotFoundError:
        return CheckedWindow(key, ref, None)
    except UnreadableError as error:
        return CheckedWindow(key, ref, None, error)


def read_window(store: Store, namespace: str, ref: DedupRef) -> DedupWindow:
    """Return a window; damage is read again before it counts.

    Raises NotFoundError, UnreadableError, UnavailableError.
    """
    key = dedup_key(namespace, ref.id)
    try:
        return _decode_window(store.get(key), key, ref)
    except DamagedError:
        return _decode_window(store.get(key), key, ref)


def _decode_window(data: bytes, key: str, ref: DedupRef) -> DedupWindow:
    expected, got = (ref.size, ref.checksum), (len(data), dedup_checksum(data, key=key))
    if got != expected:
        raise CorruptError(key, 0, f"{expected}, as the manifest says of it", f"{got}")
    return decode_dedup(data, key=key)
