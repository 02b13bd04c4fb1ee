"""A line of JSON → the document that it is, or a refusal."""

from __future__ import annotations

from typing import Any

import msgspec

from reef.errors import InvalidInputError

_DECODER = msgspec.json.Decoder()


def parse_document(line: str, place: str) -> dict[str, Any]:
    """Return the object that a line is. Raises InvalidInputError, which begins with `place`."""
    try:
        row = _DECODER.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInputError(f"{place} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise InvalidInputError(
            f"{place}: expected a JSON object, which is a document, got {type(row).__name__}"
        )
    return row
