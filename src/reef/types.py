"""The small values everyone shares: names, keys, versions, identities.

A *slot* numbers a log object. A *version* (LSN) is a positive 63-bit number; under the packed
policy it is a slot and the ordinal of a record in it, so that two batches in one object never tie.
63 bits, because Arrow, Spark and SQL have no unsigned 64-bit integers that they agree on.
"""

from __future__ import annotations

import random
import re
from functools import lru_cache

from reef.clock import Clock
from reef.errors import InvalidInputError

U32_MAX = 2**32 - 1
LSN_MAX = 2**63 - 1
ORDINAL_BITS = 20
ORDINAL_MAX = 2**ORDINAL_BITS - 1
SLOT_MAX = LSN_MAX >> ORDINAL_BITS

KEY_BYTES_MAX = 4096
NONCE_BYTES = 16
NAME_BYTES_MAX = 128
OBJECT_KEY_BYTES_MAX = 1024
KEY_PART_BYTES_MAX = 255  # what file systems take

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_KEY_PART = rf"(?!\.\.?(?:/|\Z))[A-Za-z0-9._@-]{{1,{KEY_PART_BYTES_MAX}}}"
_OBJECT_KEY = re.compile(f"{_KEY_PART}(?:/{_KEY_PART})*")
_NAMES = f"1 to {NAME_BYTES_MAX} of A-Z a-z 0-9 . _ - starting with a letter or a digit"
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def pack_lsn(slot: int, ordinal: int) -> int:
    """Return the version of record `ordinal` in log object `slot`."""
    if not 1 <= slot <= SLOT_MAX:
        raise InvalidInputError.of("slot", slot, f"a number from 1 to {SLOT_MAX}")
    if not 0 <= ordinal <= ORDINAL_MAX:
        raise InvalidInputError.of("ordinal", ordinal, f"a number from 0 to {ORDINAL_MAX}")
    return slot << ORDINAL_BITS | ordinal


def unpack_lsn(lsn: int) -> tuple[int, int]:
    """Return the slot and the ordinal that `pack_lsn` put into `lsn`."""
    return lsn >> ORDINAL_BITS, lsn & ORDINAL_MAX


@lru_cache(256)
def check_namespace(name: str) -> str:
    """Return `name` if a namespace may be called that: a name, or a name, @ and that of a branch.

    Raises InvalidInputError for anything that could leave the namespace's own prefix.
    """
    root, at, branch = name.partition("@")
    if not _is_name(root) or (at and not _is_name(branch)) or len(name) > KEY_PART_BYTES_MAX:
        raise InvalidInputError.of("namespace", name, _NAMES)
    return name


def namespace_of(name: str, branch: str | None = None) -> str:
    """Return the namespace that holds `name`, or that branch of it. Raises InvalidInputError."""
    if not isinstance(name, str) or not _is_name(name):
        raise InvalidInputError.of("namespace", name, _NAMES, "a branch is given as branch=")
    if branch is None:
        return name
    if not isinstance(branch, str) or not _is_name(branch):
        raise InvalidInputError.of("branch", branch, _NAMES)
    return check_namespace(f"{name}@{branch}")


def split_namespace(namespace: str) -> tuple[str, str | None]:
    """Return the name and the branch that `namespace_of` put together; None: it is no branch."""
    name, at, branch = namespace.partition("@")
    return name, branch if at else None


def _is_name(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and len(name) <= NAME_BYTES_MAX


def check_snapshot_id(id: str) -> str:
    """Return `id` if a snapshot may be called that. Raises InvalidInputError."""
    if not isinstance(id, str) or not _is_name(id):
        raise InvalidInputError.of("snapshot id", id, _NAMES)
    return id


def check_object_key(key: str) -> str:
    """Return `key` if it is a plain relative path of an object.

    Raises InvalidInputError for empty parts, `.`, `..` and characters outside A-Z a-z 0-9 . _ @ -.
    """
    if len(key) > OBJECT_KEY_BYTES_MAX or _OBJECT_KEY.fullmatch(key) is None:
        raise InvalidInputError.of(
            "object key",
            key,
            f"at most {OBJECT_KEY_BYTES_MAX} bytes of parts joined by '/', "
            f"each at most {KEY_PART_BYTES_MAX} of A-Z a-z 0-9 . _ @ - and none of them '.' or '..'",
        )
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix` if it is "" or names a folder by ending in "/"."""
    if prefix and (not prefix.endswith("/") or not check_object_key(prefix[:-1])):
        raise InvalidInputError.of("prefix", prefix, "'' or a folder's path ending in '/'")
    return prefix


def new_nonce(rng: random.Random) -> bytes:
    """Return 16 bytes that no other author will write: what tells one's own object from another's."""
    return rng.randbytes(NONCE_BYTES)


def new_ulid(clock: Clock, rng: random.Random) -> str:
    """Return a fresh name of 26 characters: 48 bits of milliseconds, then 80 random bits."""
    value = (clock.now_us() // 1000 & (2**48 - 1)) << 80 | rng.getrandbits(80)
    return "".join(_CROCKFORD[value >> shift & 31] for shift in range(125, -1, -5))


def after_prefix(prefix: bytes) -> bytes | None:
    """Return the least key above every key that starts with `prefix`, or None if there is none."""
    short = prefix.rstrip(b"\xff")
    return short[:-1] + bytes([short[-1] + 1]) if short else None
