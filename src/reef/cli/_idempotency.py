"""Idempotency keys as the shell gives them: any bytes, within the bounds of what the log can hold."""

from __future__ import annotations

import os

from reef.errors import InvalidInputError

KEY_BYTES_MAX = 512
PREFIX_BYTES_MAX = 480
"""Leaves room for the number of a batch."""


def check_key(key: str | None) -> bytes | None:
    """Return what `--idempotency-key` says. Raises InvalidInputError."""
    return _checked("--idempotency-key", key, KEY_BYTES_MAX)


def check_prefix(prefix: str | None) -> bytes | None:
    """Return what `--idempotency-prefix` says. Raises InvalidInputError."""
    return _checked("--idempotency-prefix", prefix, PREFIX_BYTES_MAX)


def _checked(option: str, text: str | None, bytes_max: int) -> bytes | None:
    if text is None:
        return None
    data = os.fsencode(text)
    if not 1 <= len(data) <= bytes_max:
        raise InvalidInputError(
            f"{option} = {text[:64]!r} has {len(data)} bytes: expected 1 to {bytes_max}"
        )
    return data
