"""Damage to objects where they lie."""

from __future__ import annotations

from reef.store import Store


def flip(store: Store, key: str) -> bytes:
    """Damage an object where it lies; return what it was."""
    whole = store.get(key)
    data = bytearray(whole)
    data[len(data) // 2] ^= 1
    store.delete(key)
    store.put_if_absent(key, bytes(data))
    return whole
