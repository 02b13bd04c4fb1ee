"""Why an object cannot be read, as a value that a task hands back to another process."""

from __future__ import annotations

import msgspec

from reef.errors import CorruptError, FormatVersionError, IncompleteError, UnreadableError

_KINDS: dict[str, type[UnreadableError]] = {
    kind.__name__: kind for kind in (CorruptError, IncompleteError, FormatVersionError)
}


class Unreadable(msgspec.Struct, frozen=True, array_like=True):
    """The parts of an UnreadableError."""

    kind: str
    key: str
    offset: int
    expected: str
    got: str

    @classmethod
    def of(cls, error: UnreadableError) -> Unreadable:
        """Return the parts of `error`."""
        return cls(type(error).__name__, error.key, error.offset, error.expected, error.got)

    def error(self) -> UnreadableError:
        """Return an error equal to the one that `of` took apart."""
        return _KINDS[self.kind](self.key, self.offset, self.expected, self.got)
