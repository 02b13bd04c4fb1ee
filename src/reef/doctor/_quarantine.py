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
_ELSEWHERE = b"reef repair: the object of this name is kept by the namespace that it belongs to\n"


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
        self._own = f"namespaces/{namespace}/"
        self._folder = f"{self._own}quarantine/"
        self.sizes = {meta.key: meta.size for meta in store.list(self._folder)}

    def place(self, key: str, checksum: int | None = None) -> str:
        """Return where a copy of the object `key` is kept, which may be another namespace's.

        `checksum` is that of its damaged bytes, for names that can hold different bytes over time.
        """
        tail = "" if checksum is None else f".{checksum:08x}"
        return f"{self._folder}{key.removeprefix(self._own)}{tail}"

    def holds(self, key: str, checksum: int | None = None) -> bool:
        """Return whether the damaged or missing object has been dealt with."""
        return self.place(key, checksum) in self.sizes

    def copy(self, key: str, checksum: int | None = None) -> None:
        """Copy the object, if that was not done; of a missing one, or of another's, leave a note.

        Raises UnavailableError.
        """
        target = self.place(key, checksum)
        if target in self.sizes:
            return
        size = size_of(self._store, key)
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
