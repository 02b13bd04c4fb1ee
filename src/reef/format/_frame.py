"""What the binary formats share: the checksum, the magic numbers and the first twelve bytes."""

from __future__ import annotations

import struct

import crc32c as library
from typing_extensions import Buffer

from reef.errors import CorruptError, FormatVersionError, IncompleteError

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


def crc32c(data: Buffer, before: int = 0) -> int:
    """Return the CRC-32C (Castagnoli) of `data`, which follows bytes of the checksum `before`."""
    return library.crc32c(data, before)


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


def check_version(version: int, key: str, offset: int) -> None:
    """Raise FormatVersionError unless this Reef reads format version `version`."""
    if version != FORMAT_VERSION:
        raise FormatVersionError(
            key, offset, f"format version {FORMAT_VERSION}", f"format version {version}"
        )


def head(magic: bytes) -> bytes:
    """Return the first twelve bytes of an object: its magic and the format version."""
    return magic + _VERSION.pack(FORMAT_VERSION)


HEAD_BYTES = 8 + _VERSION.size
