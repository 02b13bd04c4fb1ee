"""Python values ↔ the JSON text that free-form attributes are stored as.

Text is compact. What JSON has no form for but has one obvious text (times, UUIDs, bytes as base64,
NumPy's numbers and arrays) becomes that; NaN and infinity have none, and are refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from reef.documents._refusal import CONVERSION_ERRORS, Spot


def encode_json(values: Sequence[object], spot: Spot) -> pa.Array:
    """Return each of `values` as JSON text; None stays null. Raises InvalidInputError."""
    try:
        texts = [None if value is None else _encode(value) for value in values]
        array = pa.array(texts, pa.string())
    except CONVERSION_ERRORS:
        i, why = _refused(values)
        raise spot.refusal(i, values[i], "json", why) from None
    for i, text in enumerate(texts):
        # The encoder writes NaN and infinity as null: look closer where there is one.
        if text is not None and b"null" in text and _holds_nan(values[i]):
            raise spot.refusal(i, values[i], "json", "NaN or infinity, which JSON has not")
    return array


def decode_json(column: pa.Array) -> list[Any]:
    """Return the values that the texts of `column` stand for."""
    return [None if text is None else _DECODER.decode(text) for text in column.to_pylist()]


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


_encode = msgspec.json.Encoder(enc_hook=_plain).encode
_DECODER = msgspec.json.Decoder()


def _refused(values: Sequence[object]) -> tuple[int, str]:
    for i, value in enumerate(values):
        try:
            _encode(value).decode()
        except RecursionError:
            return i, "a value that is nested too deeply"
        except CONVERSION_ERRORS as error:
            return i, f"{type(value).__name__} that JSON cannot hold ({error})"
    return 0, "more text than fits in one batch"


def _holds_nan(value: object) -> bool:
    if isinstance(value, (float, np.floating)):
        return not math.isfinite(value)
    if isinstance(value, np.ndarray):
        return _holds_nan(value.tolist())
    if isinstance(value, Mapping):
        return any(map(_holds_nan, value.values()))
    return isinstance(value, (list, tuple, set, frozenset)) and any(map(_holds_nan, value))
