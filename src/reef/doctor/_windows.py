"""Reading a dedup window that a manifest names, checked against what the manifest says of it."""

from __future__ import annotations

from dataclasses import dataclass

from reef.engine import read_window
from reef.errors import NotFoundError, UnreadableError
from reef.format import DedupRef, DedupWindow, dedup_key
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
