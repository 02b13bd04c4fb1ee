"""The manifest: one JSON document per generation of a namespace, framed by fixed-width fields.

    {"magic":"RFMAN1","format_version":<digit>,"bytes":"<16 digits>",   the prefix
    "namespace":...,"generation":...,...                          the body, a `Manifest`
    ,"checksum":"<8 hex>"}\\n                                     the trailer

Invariants: `bytes` is the length of the object, so a truncated object differs from a damaged one; `checksum` is the
crc32c of every byte before the trailer, and nothing but the prefix is looked at before it holds.
Bytes are encoded only if they read back as the manifest that was given. What uses no optional member
is written as version 1, so an older Reef goes on reading it, and refuses what it would misread.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from reef.errors import (
    CorruptError,
    IncompleteError,
    InvalidInputError,
    InvariantError,
    UnreadableError,
)
from reef.format._frame import (
    ENCODE_ERRORS,
    FORMAT_VERSION,
    MANIFEST_MAGIC,
    check_length,
    check_magic,
    check_version,
    crc32c,
    decode_fields,
)
from reef.format._manifest_invariants import check_invariants, find_violation
from reef.format._manifest_model import (
    MANIFEST_VERSION_MAX,
    Manifest,
    format_version,
    new_records,
)
from reef.types import LSN_MAX, check_namespace

_PREFIX = MANIFEST_MAGIC.decode() + ',"format_version":%d,"bytes":"%016d",'
_TRAILER = ',"checksum":"%08x"}\n'
_PREFIX_SAMPLE = (_PREFIX % (FORMAT_VERSION, 0)).encode()
PREFIX_BYTES = len(_PREFIX_SAMPLE)
TRAILER_BYTES = len(_TRAILER % 0)

_AFTER_MAGIC = len(MANIFEST_MAGIC)
_VERSION_AT = _AFTER_MAGIC + len(',"format_version":')
# At the end of the bytes the number may be cut short, but no more than that.
_VERSION = re.compile(rb',"format_version":(0|[1-9][0-9]{0,9})(?:,|\Z)')
_LENGTH = re.compile(rb',"format_version":[0-9],"bytes":"([0-9]{16})",')
_KEY = re.compile(r"namespaces/([^/]+)/manifest/([0-9]{20})\.manifest\.json")

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Manifest)


def manifest_key(namespace: str, generation: int) -> str:
    """Return where a generation of a namespace is stored. Raises InvalidInputError."""
    if not 1 <= generation <= LSN_MAX:
        raise InvalidInputError.of("generation", generation, f"a number from 1 to {LSN_MAX}")
    return f"namespaces/{check_namespace(namespace)}/manifest/{generation:020d}.manifest.json"


class ManifestKey(NamedTuple):
    """What the key of a manifest says."""

    namespace: str
    generation: int


def parse_manifest_key(key: str) -> ManifestKey | None:
    """Return the namespace and generation that `key` names, or None if it is no manifest's key."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    named = ManifestKey(match[1], int(match[2]))
    try:
        manifest_key(*named)
    except InvalidInputError:
        return None
    return named


def encode_manifest(manifest: Manifest, *, base: Manifest | None = None) -> bytes:
    """Return the bytes of `manifest`, which `decode_manifest` is known to read back as it is.

    `base` was decoded or encoded before: snapshots that are its very records are not checked again,
    because there may be thousands. Raises InvariantError if a field or a rule between fields does not
    hold.
    """
    what = f"generation {manifest.generation!r} of namespace {manifest.namespace!r}"
    try:
        body = _ENCODER.encode(manifest)
    except ENCODE_ERRORS as error:
        raise InvariantError(f"{what} cannot be encoded: {error}; nothing was written") from error
    data = _frame(body, format_version(manifest))
    unknown = manifest if base is None else _without_known(manifest, base)
    shown = data
    if unknown is not manifest:
        shown = _frame(_ENCODER.encode(unknown), format_version(unknown))
    try:
        decoded = _decode_body(shown, what)
    except UnreadableError as error:
        raise InvariantError(
            f"{what} has a field out of range: expected {error.expected}, got {error.got}; "
            "nothing was written"
        ) from error
    check_invariants(decoded)
    _check_same(unknown, decoded, what)
    # The conditional put recognises its own object by the nonce, wherever it stands in the bytes.
    # What the base holds is older than the nonce.
    if (times := shown.count(manifest.nonce.encode())) != 1:
        raise InvariantError(
            f"{what} holds its nonce {manifest.nonce} {times} times: expected once, or another "
            "author's manifest could be taken for this one; nothing was written"
        )
    return data


def decode_manifest(
    data: bytes, *, key: str = "", namespace: str | None = None, generation: int | None = None
) -> Manifest:
    """Return the manifest that `data` is, every field checked.

    `namespace` and `generation` are what it must be of; where they are not given, a `key` that is
    a manifest's says so. Raises IncompleteError, CorruptError or FormatVersionError.
    """
    manifest_checksum(data, key=key)
    manifest = _decode_body(data, key)
    violation = find_violation(manifest)
    if violation is not None:
        raise CorruptError(key, PREFIX_BYTES, *violation)
    named = parse_manifest_key(key)
    if named is not None:
        namespace = named.namespace if namespace is None else namespace
        generation = named.generation if generation is None else generation
    if namespace is not None and manifest.namespace != namespace:
        raise CorruptError(
            key, PREFIX_BYTES, f"a manifest of namespace {namespace!r}", repr(manifest.namespace)
        )
    if generation is not None and manifest.generation != generation:
        raise CorruptError(
            key, PREFIX_BYTES, f"generation {generation}", f"generation {manifest.generation}"
        )
    return manifest


def manifest_checksum(data: bytes, *, key: str = "") -> int:
    """Return the checksum in the trailer: what the next generation records of this one.

    Raises IncompleteError, CorruptError or FormatVersionError if the bytes are no whole manifest.
    """
    length = _check_prefix(data, key)
    check_length(data, length, key)
    at = length - TRAILER_BYTES
    checksum = crc32c(memoryview(data)[:at])
    trailer = (_TRAILER % checksum).encode()
    if data[at:] != trailer:
        raise CorruptError(key, at, repr(trailer), repr(data[at:]))
    return checksum


def _without_known(manifest: Manifest, base: Manifest) -> Manifest:
    """Return `manifest` without the snapshots of `base`, which keep every rule without the others."""
    is_whole = manifest.state != "live" or manifest.followed or not base.snapshots
    if is_whole or not isinstance(manifest.snapshots, tuple):
        return manifest
    new = new_records(base.snapshots, manifest.snapshots)
    if new and not {s.id for s in new}.isdisjoint([s.id for s in base.snapshots]):
        return manifest
    return msgspec.structs.replace(manifest, snapshots=tuple(new))


def _frame(body: bytes, version: int) -> bytes:
    """Return the object around `body`, whose braces give way to the prefix and the trailer."""
    length = PREFIX_BYTES + len(body) - 2 + TRAILER_BYTES
    prefix, inner = (_PREFIX % (version, length)).encode(), memoryview(body)[1:-1]
    trailer = (_TRAILER % crc32c(inner, crc32c(prefix))).encode()
    return b"".join((prefix, inner, trailer))


def _check_prefix(data: bytes, key: str) -> int:
    """Return the length that the prefix gives, which is enough for a prefix and a trailer."""
    check_magic(data, MANIFEST_MAGIC, key)
    version = _VERSION.match(data[:PREFIX_BYTES], _AFTER_MAGIC)
    if version is not None:
        check_version(int(version[1]), key, version.start(1), MANIFEST_VERSION_MAX)
    # What is missing of a short prefix is filled in: it is damaged only if the rest does not fit.
    prefix = data[:PREFIX_BYTES] + _PREFIX_SAMPLE[len(data) :]
    match = _LENGTH.fullmatch(prefix, _AFTER_MAGIC)
    if match is None:
        expected = repr(_PREFIX_SAMPLE[_AFTER_MAGIC:])
        raise CorruptError(key, _AFTER_MAGIC, expected, repr(data[_AFTER_MAGIC:PREFIX_BYTES]))
    if len(data) < PREFIX_BYTES:
        raise IncompleteError(key, len(data), f"a prefix of {PREFIX_BYTES} bytes", "the end")
    length = int(match[1])
    if length < PREFIX_BYTES + TRAILER_BYTES:
        least = f"a length of at least {PREFIX_BYTES + TRAILER_BYTES}"
        raise CorruptError(key, match.start(1), least, str(length))
    return length


def _decode_body(data: bytes, key: str) -> Manifest:
    """Return what stands between prefix and trailer, each field of its type and in its range."""
    # Blanks instead of the prefix, so that the positions in msgspec's messages are the object's.
    body = b"{".rjust(PREFIX_BYTES) + data[PREFIX_BYTES:-TRAILER_BYTES] + b"}"
    decoded = decode_fields(_DECODER.decode, body, "the fields of a manifest", key, PREFIX_BYTES)
    version = data[_VERSION_AT : _VERSION_AT + 1].decode()
    if (needed := format_version(decoded)) > int(version):
        expected = f"the members of format version {version}"
        raise CorruptError(key, PREFIX_BYTES, expected, f"one that only version {needed} has")
    return decoded


def _check_same(given: Manifest, decoded: Manifest, what: str) -> None:
    for name in Manifest.__struct_fields__:
        if getattr(given, name) != getattr(decoded, name):
            raise InvariantError(
                f"{what}: {name} would not read back as it was given (is it of the right type? "
                "lists are tuples, keys are bytes); nothing was written"
            )
