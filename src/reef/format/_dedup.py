"""The dedup window: which requests were committed lately, and what their callers were told.

    0      8     magic "RFDED1\\0\\0"
    8      4     format version, u32 LE
    12     4     payload length N, u32 LE
    16     N     payload: a `DedupWindow` in MessagePack, every record an array
    16+N   4     crc32c of everything before, u32 LE

An immutable object that the manifest names. Nothing but the first 16 bytes is looked at before
the checksum holds, and bytes are encoded only if they read back as the window that was given.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from reef.errors import (
    CorruptError,
    IncompleteError,
    InvalidInputError,
    InvariantError,
    UnreadableError,
)
from reef.format._frame import (
    DEDUP_MAGIC,
    ENCODE_ERRORS,
    HEAD_BYTES,
    check_head,
    check_length,
    crc32c,
    decode_fields,
    head,
    short_repr,
)
from reef.format._log_model import DIGEST_BYTES, IDEMPOTENCY_KEY_BYTES_MAX, SOURCE_BYTES_MAX
from reef.format._manifest_model import ULID_PATTERN, Count, Lsn, LsnOrZero, Micros
from reef.types import U32_MAX, check_namespace

RECEIPT_BYTES_MAX = 16 << 20

_U32 = struct.Struct("<I")
_PAYLOAD_AT = HEAD_BYTES + _U32.size
_ULID = re.compile(ULID_PATTERN)


class DedupEntry(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One committed request."""

    key: Annotated[bytes, Meta(min_length=1, max_length=IDEMPOTENCY_KEY_BYTES_MAX)]
    """The caller's idempotency key."""
    lsn: Lsn
    digest: Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
    """Of the logical request: it distinguishes a repeat from another request with the same key."""
    receipt: Annotated[bytes, Meta(max_length=RECEIPT_BYTES_MAX)]
    """The answer to the caller, row by row; opaque here."""
    committed_at_us: Micros


class DedupStream(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """How far one source of numbered requests has come."""

    source: Annotated[str, Meta(min_length=1, max_length=SOURCE_BYTES_MAX)]
    sequence: Count
    """The highest sequence number committed."""
    lsn: Lsn


class DedupWindow(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Every request in the window up to `last_lsn`, and every source."""

    last_lsn: LsnOrZero
    """The window knows all commits at or below this; 0 before the first."""
    entries: tuple[DedupEntry, ...]
    """In order of LSN."""
    streams: tuple[DedupStream, ...]
    """In order of source."""


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(DedupWindow)


def dedup_key(namespace: str, id: str) -> str:
    """Return where the dedup window `id` of a namespace is stored. Raises InvalidInputError."""
    if not _ULID.fullmatch(id):
        raise InvalidInputError.of("dedup window id", id, "a ULID of 26 characters")
    return f"namespaces/{check_namespace(namespace)}/dedup/{id}.dedup"


def encode_dedup(window: DedupWindow) -> bytes:
    """Return the bytes of `window`, which `decode_dedup` is known to read back as it is.

    Raises InvariantError if a field or a rule between fields does not hold.
    """
    try:
        payload = _ENCODER.encode(window)
    except ENCODE_ERRORS as error:
        raise InvariantError(
            f"a dedup window cannot be encoded: {error}; nothing was written"
        ) from error
    if len(payload) > U32_MAX:
        raise InvariantError(
            f"a dedup window of {len(payload)} bytes is longer than {U32_MAX}: drop older "
            "entries; nothing was written"
        )
    covered = head(DEDUP_MAGIC) + _U32.pack(len(payload)) + payload
    data = covered + _U32.pack(crc32c(covered))
    try:
        decoded = decode_dedup(data)
    except UnreadableError as error:
        raise InvariantError(
            f"a dedup window breaks a rule: expected {error.expected}, got {error.got}; "
            "nothing was written"
        ) from error
    if decoded != window:
        raise InvariantError(
            "a dedup window would not read back as it was given (is every field of the right "
            "type? lists are tuples, keys are bytes); nothing was written"
        )
    return data


def decode_dedup(data: bytes, *, key: str = "") -> DedupWindow:
    """Return the dedup window that `data` is, every field checked.

    Raises IncompleteError, CorruptError or FormatVersionError.
    """
    dedup_checksum(data, key=key)
    payload = data[_PAYLOAD_AT : -_U32.size]
    window = decode_fields(
        _DECODER.decode, payload, "the fields of a dedup window", key, _PAYLOAD_AT
    )
    for expected, got in _violations(window):
        raise CorruptError(key, _PAYLOAD_AT, expected, got)
    return window


def dedup_checksum(data: bytes, *, key: str = "") -> int:
    """Return the checksum in the footer: what the manifest records of the window.

    Raises IncompleteError, CorruptError or FormatVersionError if the bytes are no whole window.
    """
    check_head(data, DEDUP_MAGIC, key)
    if len(data) < _PAYLOAD_AT:
        raise IncompleteError(key, len(data), "a payload length", "the end")
    (payload_bytes,) = _U32.unpack_from(data, HEAD_BYTES)
    at = _PAYLOAD_AT + payload_bytes
    check_length(data, at + _U32.size, key)
    checksum = crc32c(data[:at])
    (stored,) = _U32.unpack_from(data, at)
    if stored != checksum:
        raise CorruptError(key, at, f"crc32c {checksum:#010x}", f"{stored:#010x}")
    return checksum


def _violations(window: DedupWindow) -> Iterator[tuple[str, str]]:
    """Yield what was expected and what was found for each rule between fields that is broken."""
    lsns = [e.lsn for e in window.entries]
    for low, high in pairwise(lsns):
        if low >= high:
            yield "entries in strictly ascending order of LSN", f"{high} after {low}"
    sources = [s.source for s in window.streams]
    for first, second in pairwise(sources):
        if first >= second:
            got = f"{short_repr(second)} after {short_repr(first)}"
            yield "streams in strictly ascending order of source", got
    newest = max([*lsns[-1:], *(s.lsn for s in window.streams)], default=0)
    if newest > window.last_lsn:
        yield f"no LSN above last_lsn {window.last_lsn}", str(newest)
    seen: set[bytes] = set()
    if len({e.key for e in window.entries}) < len(lsns):
        for entry in window.entries:
            if entry.key in seen:
                yield "each idempotency key once", f"{short_repr(entry.key)} again"
            seen.add(entry.key)
