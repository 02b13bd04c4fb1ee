"""What the formats share: checksums, magic numbers, lengths, fields, and why bytes cannot be read."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

import msgspec
from crc32c import crc32c as crc32c  # (data, checksum of what precedes it)

from reef.errors import (
    CorruptError,
    FormatVersionError,
    IncompleteError,
    TooLargeError,
    UnreadableError,
)

LOG_MAGIC = b"RFWAL1\0\0"
SEGMENT_MAGIC = b"RFSEG1\0\0"
DEDUP_MAGIC = b"RFDED1\0\0"
MANIFEST_MAGIC = b'{"magic":"RFMAN1"'

FORMAT_VERSION = 1

_KINDS = {
    LOG_MAGIC: "a log object",
    SEGMENT_MAGIC: "a segment",
    DEDUP_MAGIC: "a dedup window",
    MANIFEST_MAGIC: "a manifest",
}
_VERSION = struct.Struct("<I")
_UNREADABLE: dict[str, type[UnreadableError]] = {
    kind.__name__: kind
    for kind in (CorruptError, IncompleteError, FormatVersionError, TooLargeError)
}
_REPR_MAX = 100

ENCODE_ERRORS = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError)
"""What an encoder of msgspec raises for fields of wrong types."""

_T = TypeVar("_T")


class Unreadable(msgspec.Struct, frozen=True, array_like=True):
    """Why an object cannot be read, as a value that a task hands back to another process."""

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
        return _UNREADABLE[self.kind](self.key, self.offset, self.expected, self.got)


def damaged_checksum(data: bytes) -> int:
    """Return what names a damaged object: the crc32c of all its bytes, whatever they are."""
    return crc32c(data)


def other_kind(data: bytes) -> str | None:
    """Return what kind of Reef object begins like `data`, for error messages."""
    return next((kind for magic, kind in _KINDS.items() if data.startswith(magic)), None)


def check_magic(data: bytes, magic: bytes, key: str) -> None:
    """Raise unless `data` begins with `magic`; say so if it is an object of another kind."""
    kind = _KINDS[magic]
    if not data:
        raise IncompleteError(key, 0, kind, "an empty object")
    head = data[: len(magic)]
    if head == magic:
        return
    if len(head) < len(magic) and magic.startswith(head):
        raise IncompleteError(key, len(data), f"{kind} with its magic {magic!r}", "the end")
    raise CorruptError(key, 0, f"{kind} with its magic {magic!r}", other_kind(data) or repr(head))


def check_head(data: bytes, magic: bytes, key: str) -> None:
    """Raise unless `data` begins with `magic` and a format version that this Reef reads."""
    check_magic(data, magic, key)
    at = len(magic)
    if len(data) < at + _VERSION.size:
        raise IncompleteError(key, len(data), "a format version", "the end")
    (version,) = _VERSION.unpack_from(data, at)
    check_version(version, key, at)


def check_version(version: int, key: str, offset: int, newest: int = FORMAT_VERSION) -> None:
    """Raise FormatVersionError unless this Reef reads format version `version` of an object."""
    if not FORMAT_VERSION <= version <= newest:
        read = f"{FORMAT_VERSION}" if newest == FORMAT_VERSION else f"{FORMAT_VERSION} to {newest}"
        raise FormatVersionError(key, offset, f"format version {read}", f"format version {version}")


def head(magic: bytes) -> bytes:
    """Return the first twelve bytes of an object: its magic and the format version."""
    return magic + _VERSION.pack(FORMAT_VERSION)


HEAD_BYTES = 8 + _VERSION.size


def check_length(data: bytes, length: int, key: str) -> None:
    """Raise unless `data` is `length` bytes."""
    if len(data) < length:
        raise IncompleteError(key, len(data), f"{length} bytes", f"{len(data)} bytes")
    if len(data) > length:
        raise CorruptError(key, length, f"the end after {length} bytes", f"{len(data)} bytes")


def decode_fields(
    decode: Callable[[bytes], _T], data: bytes, what: str, key: str, offset: int
) -> _T:
    """Return what `decode` reads from `data`; raise CorruptError if that is not `what`."""
    try:
        return decode(data)
    except MemoryError as error:
        raise TooLargeError(key, offset, what, "no memory for it") from error
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise CorruptError(key, offset, what, str(error)) from error


def short_repr(value: object) -> str:
    """Return how `value` looks in an error message: its first 100 characters."""
    text = repr(value)
    return text if len(text) <= _REPR_MAX else f"{text[:_REPR_MAX]}..."
