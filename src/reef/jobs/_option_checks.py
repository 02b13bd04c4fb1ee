"""Checks of options that many passes share."""

from __future__ import annotations

import msgspec

from reef.errors import InvalidInputError


def check_positive(options: msgspec.Struct, *names: str) -> None:
    """Raise InvalidInputError if one of these options is below 1."""
    for name in names:
        if getattr(options, name) < 1:
            raise InvalidInputError(f"{name} is {getattr(options, name)}; expected 1 or more")
