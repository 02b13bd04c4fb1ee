"""Quarantine: copies of damaged objects, kept for people to look at.

The damaged object itself stays where it is until collection removes it. Put-if-absent forgets deleted
names: if repair emptied a slot of the log or a generation of the manifest, a writer that slept since
before it was written could take the name, and would report a success that no reader ever sees. So
repair names the damaged object as skipped, and its own name stays taken.
"""

from __future__ import annotations

from collections.abc import Iterator

from reef.errors import AlreadyExistsError, NotFoundError
from reef.store import Store

_PART_BYTES = 8 << 20
_MISSING = b"reef repair: the object of this name was missing\n"
_ELSEWHERE = b"reef repair: the object of this name is kept by the namespace that it belongs to\n"


def stored_size(store: Store, key: str) -> int | None:
    """Return the bytes of an object, None if there is none. Raises UnavailableError."""
    try:
        return store.head(key).size
    except NotFoundError:
        return None


class Quarantine:
    """The quarantine of a namespace."""

    def __init__(self, store: Store, namespace: str) -> None:
        """List the copies."""
        self._store = store
        self._own = f"namespaces/{namespace}/"
        self._folder = f"{self._own}quarantine/"
        self.sizes = {meta.key: meta.size for meta in store.list(self._folder)}

    def key_of(self, key: str, checksum: int | None = None) -> str:
        """Return the key for a copy of the object `key`, which may be another namespace's.

        `checksum` is that of its damaged bytes: a name can hold different bytes over time.
        """
        tail = "" if checksum is None else f".{checksum:08x}"
        return f"{self._folder}{key.removeprefix(self._own)}{tail}"

    def holds(self, key: str, checksum: int | None = None) -> bool:
        """Return whether repair has dealt with a damaged or missing object."""
        return self.key_of(key, checksum) in self.sizes

    def copy(self, key: str, checksum: int | None = None) -> None:
        """Copy an object, unless there is a copy; for a missing one, or another namespace's, put a note.

        Raises UnavailableError.
        """
        target = self.key_of(key, checksum)
        if target in self.sizes:
            return
        size = stored_size(self._store, key)
        note = _MISSING if size is None else b"" if key.startswith(self._own) else _ELSEWHERE
        try:
            if note or size is None or size <= _PART_BYTES:
                self._store.put_if_absent(target, note or self._store.get(key))
            else:
                self._store.upload(target, self._parts(key, size))
        except AlreadyExistsError:
            pass  # the same bytes, by an earlier or another repair
        self.sizes[target] = len(note) or size or 0

    def _parts(self, key: str, size: int) -> Iterator[bytes]:
        for start in range(0, size, _PART_BYTES):
            yield self._store.get_range(key, start, min(_PART_BYTES, size - start))
