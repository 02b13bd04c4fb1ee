"""A file in memory, for a rollback journal: what a crash leaves of it is of no use to anybody.

`journal_mode=MEMORY` needs none; this is for applications that do not ask for it.
"""

from __future__ import annotations


class ScratchFile:
    """Bytes, gone when it is closed; with the calls of a `DatabaseFile`."""

    def __init__(self) -> None:
        self._data = bytearray()

    def read(self, amount: int, offset: int) -> bytes:
        """Return bytes; fewer than asked for at the end."""
        return bytes(self._data[offset : offset + amount])

    def write(self, data: bytes, offset: int) -> None:
        """Keep bytes."""
        if offset > len(self._data):
            self._data.extend(bytes(offset - len(self._data)))
        self._data[offset : offset + len(data)] = data

    def truncate(self, size: int) -> None:
        """Cut."""
        del self._data[size:]

    def size(self) -> int:
        """Return how many bytes there are."""
        return len(self._data)

    def lock(self, level: int) -> None:
        """Nothing to do: no other connection has it."""

    unlock = lock

    def control(self, op: int, argument: int | None) -> bool:
        """Return False: nothing is asked of a journal."""
        return False

    def pragma(self, name: str, value: str | None) -> None:
        """Leave it to SQLite."""

    def sync(self) -> None:
        """There is nothing to make durable."""

    def is_reserved(self) -> bool:
        """Return False: nobody else has it."""
        return False
