"""Quarantine: copies of damaged objects, kept aside for people.

The damaged object itself stays where it is until collection removes it. Put-if-absent forgets deleted
names: were a slot of the log or a generation of the manifest emptied, somebody who has slept since
before it was written could take it again, and be told of a success that nobody will ever read. So
what is damaged is passed over by name, and its name stays taken.
"""

from __future__ import annotations

from collections.abc import Iterator

from reef.errors import AlreadyExistsError, NotFoundError
from reef.store import Store

_PART_BYTES = 8 << 20
_MISSING = b"reef repair: the object of this name was missing\n"


def quarantine_key(key: str, checksum: int | None = None) -> str:
    """Return where a copy of the object `key` is kept.

    `checksum` is that of its damaged bytes, for names that can hold different bytes over time.
    """
    root, namespace, rest = key.split("/", 2)
    tail = "" if checksum is None else f".{checksum:08x}"
    return f"{root}/{namespace}/quarantine/{rest}{tail}"


def size_of(store: Store, key: str) -> int | None:
    """Return the bytes of an object, None if there is none. Raises UnavailableError."""
    try:
        return store.head(key).size
    except NotFoundError:
        return None


class Quarantine:
    """The copies that a namespace has."""

    def __init__(self, store: Store, namespace: str) -> None:
        """List them."""
        self._store = store
        self.sizes = {
            meta.key: meta.size for meta in store.list(f"namespaces/{namespace}/quarantine/")
        }

    def holds(self, key: str, checksum: int | None = None) -> bool:
        """Return whether the damaged or missing object has been dealt with."""
        return quarantine_key(key, checksum) in self.sizes

    def copy(self, key: str, checksum: int | None = None) -> str:
        """Copy the object, if that was not done, and return where to; of a missing one, a note on that.

        Raises UnavailableError.
        """
        target = quarantine_key(key, checksum)
        if target in self.sizes:
            return target
        size = size_of(self._store, key)
        try:
            if size is None:
                self._store.put_if_absent(target, _MISSING)
            elif size <= _PART_BYTES:
                self._store.put_if_absent(target, self._store.get(key))
            else:
                self._store.upload(target, self._parts(key, size))
        except AlreadyExistsError:
            pass  # the same bytes, by an earlier or another repair
        self.sizes[target] = len(_MISSING) if size is None else size
        return target

    def _parts(self, key: str, size: int) -> Iterator[bytes]:
        for start in range(0, size, _PART_BYTES):
            yield self._store.get_range(key, start, min(_PART_BYTES, size - start))
