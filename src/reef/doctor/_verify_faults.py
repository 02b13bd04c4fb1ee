"""What is wrong with an object, as it crosses between processes."""

from __future__ import annotations

import msgspec

from reef.errors import CorruptError, FormatVersionError, IncompleteError, UnreadableError

_KINDS: dict[str, type[UnreadableError]] = {
    kind.__name__: kind for kind in (CorruptError, IncompleteError, FormatVersionError)
}


class Fault(msgspec.Struct, frozen=True, array_like=True):
    """An UnreadableError, taken apart."""

    kind: str
    key: str
    offset: int
    expected: str
    got: str

    @classmethod
    def of(cls, error: UnreadableError) -> Fault:
        """Return what `error` says."""
        return cls(type(error).__name__, error.key, error.offset, error.expected, error.got)

    def error(self) -> UnreadableError:
        """Return what `of` was given."""
        return _KINDS[self.kind](self.key, self.offset, self.expected, self.got)
